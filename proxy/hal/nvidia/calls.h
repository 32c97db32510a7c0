/* calls.h: calls of NVIDIA's libraries for ranks (calls.c), and what these need of each library. */
#ifndef RANKFOLD_CUDA_CALLS_H
#define RANKFOLD_CUDA_CALLS_H

#include "library_call.h"
#include "nvidia_hal.h"

enum nvidia_library {
	NVIDIA_CUSOLVER,
	NVIDIA_CUFFT,
	NVIDIA_CUBLAS,
	NVIDIA_CUDNN,
	NVIDIA_LIBRARIES
};

/* The results of a call, after its status. */
struct nvidia_answer {
	uint32_t count;
	uint64_t of[RF_DNN_QUERY_SLOTS - 1];
};

/* A function that ranks may call. */
struct nvidia_call {
	enum nvidia_library library;
	const char *name;
	const char *kinds; /* of its parameters (library_call.h); NULL: `make` reads them */
	/* Makes the call with these parameters, `count` with the answer's address before them: the
	 * library's status, and what the call gives. */
	int (*make)(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		    uint32_t count, struct nvidia_answer *);
	uint32_t slots; /* with the first */
	void *function; /* of the library; found when the rank first asks for it */
};

/* fft.c */
int nvidia_fft_make(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		    uint32_t count, struct nvidia_answer *);
int nvidia_fft_execute(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *);
void nvidia_fft_close(struct hal_device *);

/* cublas.c: the device's handle, set to this stream and as the slots say: cublasStatus_t. */
int nvidia_cublas_open(struct hal_stream *, const uint64_t *slots, void **handle);

/* cublaslt_own.c */
int nvidia_lt_multiply(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *);
int nvidia_lt_transform(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
			uint32_t count, struct nvidia_answer *);

/* cusolver.c: the same; descriptors by their kinds: *out is NULL if the slots say that there is
 * none. */
int nvidia_solver_open(struct hal_stream *, void **handle);
int nvidia_iteration_make(char kind, const uint64_t *slots, void **out);
void nvidia_iteration_forget(char kind, void *made);
void nvidia_solver_close(struct hal_device *);

/* dnn.c */
enum { DNN_BAD_PARAM = 2000, DNN_NOT_SUPPORTED = 3000, DNN_NO_MEMORY = 4003 };
/* The device's handle, set to this stream: cudnnStatus_t. */
int nvidia_dnn_open(struct hal_stream *, void **handle);
int nvidia_dnn_query(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		     uint32_t count, struct nvidia_answer *);
int nvidia_dnn_execute(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *);
void nvidia_dnn_close(struct hal_device *);

/* dnn_rows.c: descriptors that are rows of numbers */
bool nvidia_dnn_is_row(char kind);
int nvidia_dnn_row_create(char kind, void **out);
int nvidia_dnn_row_set(char kind, void *descriptor, const uint64_t *slots);
void nvidia_dnn_row_destroy(char kind, void *descriptor);

/* dnn_descriptors.c: descriptors of cuDNN that are made for one call, by their kinds */
#define NVIDIA_DESCRIPTORS_MAX 12u
struct nvidia_descriptors {
	uint32_t count;
	char kind[NVIDIA_DESCRIPTORS_MAX];
	void *made[NVIDIA_DESCRIPTORS_MAX];
};
/* Makes what the slots describe: *out is NULL if they say that there is none. */
int nvidia_dnn_make(struct nvidia_descriptors *, const struct hal_space *, void *handle, char kind,
		    const uint64_t *slots, void **out);
void nvidia_dnn_forget(struct nvidia_descriptors *);
int nvidia_dnn_dropout(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *);
int nvidia_dnn_weights(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *);

/* dnn_ctc.c */
int nvidia_dnn_ctc(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		   uint32_t count, struct nvidia_answer *);
int nvidia_dnn_ctc_size(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
			uint32_t count, struct nvidia_answer *);

#endif
