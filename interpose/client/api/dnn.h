/* dnn.h: tensors, handles and kernels of cuDNN, which the files dnn_*.c share. */
#ifndef RANKFOLD_DNN_H
#define RANKFOLD_DNN_H

#include "../../dnn/args.h"
#include "bodies.h"
#include "carried.h"

#define DNN_DIMENSIONS_MAX 8
#define DNN_SPATIAL_MAX 3

struct dnn_tensor {
	int type;                         /* cudnnDataType_t */
	int64_t dimensions;               /* samples, channels, then places; 0: not described yet */
	int64_t size[DNN_DIMENSIONS_MAX]; /* elements */
	int64_t stride[DNN_DIMENSIONS_MAX]; /* elements */
	int64_t id, alignment;              /* of the backend's tensors */
	bool is_virtual, by_value;
};

/* ---- dnn.c ---- */

/* A type that our kernels have. */
struct dnn_type {
	int type; /* cudnnDataType_t */
	int cuda; /* cudaDataType */
	int sums; /* cudnnDataType_t of sums, parameters and statistics */
	int64_t bytes, sum_bytes;
	struct carried kernels;
};
struct dnn_type *dnn_type_of(int type); /* NULL: it is not served, and a line has said so */
/* Reads a scalar in host memory, a float or, for double, a double. */
int dnn_scalar(const struct dnn_type *, double *out, const void *scalar);
/* Launches a kernel on `width` by `height` threads, in blocks of DNN_THREADS by 1. */
int dnn_launch(struct dnn_type *, const char *kernel, const void *args, size_t bytes, int64_t width,
	       int64_t height, const void *stream);
/* True if the dimensions from `first` on are equally spaced in memory, the last one fastest; *step
 * is then the distance of neighbours. */
bool dnn_even(const struct dnn_tensor *, int64_t first, int64_t *step);
/* The product of the sizes from `first` on. */
int64_t dnn_elements(const struct dnn_tensor *, int64_t first);

/* ---- dnn_descriptors.c: for NVIDIA's own library ---- */

#define DNN_PRESENT 1u  /* in the first slot of a descriptor that is set */
struct dnn_descriptor { /* none of a tensor */
	char kind;
	uint64_t slots[];
};
struct dnn_descriptor *descriptor_of(char kind, void *descriptor); /* NULL: none of this kind */
size_t dnn_type_bytes(int type); /* of an element, of any type; 0: it is unknown */
/* Writes one as it is sent; NULL: none. */
void dnn_put(uint64_t *slots, char kind, const void *descriptor);
/* A function that is there for each of RF_DNN_SIZES. */
struct dnn_sized {
	struct remote_function f;
	size_t slots;
};
#define DNN_SIZES 3
/* NULL: there is none for so many slots. */
struct remote_function *dnn_sized_for(struct dnn_sized[DNN_SIZES], size_t slots);

/* ---- dnn_convolution.c ---- */

enum dnn_direction { DNN_FORWARD, DNN_BACKWARD_DATA, DNN_BACKWARD_FILTER };
struct dnn_convolution {
	enum dnn_direction direction;
	struct dnn_tensor x, w, y; /* or their gradients */
	int compute;               /* cudnnDataType_t */
	int mode;                  /* cudnnConvolutionMode_t */
	int64_t spatial;
	int64_t before[DNN_SPATIAL_MAX], after[DNN_SPATIAL_MAX]; /* padding */
	int64_t step[DNN_SPATIAL_MAX], dilation[DNN_SPATIAL_MAX];
	double alpha, beta;
};
/* Whether it is served, and the bytes of its workspace. */
int dnn_convolution_check(const struct dnn_convolution *, int64_t *workspace);
/* `x`, `w`, `y` and `workspace` are device addresses. */
int dnn_convolve(const struct dnn_convolution *, uint64_t x, uint64_t w, uint64_t y,
		 uint64_t workspace, const void *stream);

#endif
