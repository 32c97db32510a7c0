/* fake_dnn.h: what the files of the fake driver's cuDNN share. */
#ifndef RANKFOLD_FAKE_DNN_H
#define RANKFOLD_FAKE_DNN_H

#include "fake.h"

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
#define SEQUENCES 64

/* ---- dnn.c ---- */

enum { FORWARD = 10, FILTER = 11, DATA = 12 };
struct fake_tensor {
	int64_t id, dimensions, size[5], stride[5];
	bool by_value;
};
struct fake_convolution {
	int type, engine, spatial; /* type: FORWARD, FILTER or DATA */
	int64_t before[3], step[3], dilation[3];
	double alpha, beta;
	struct fake_tensor x, w, y;
	uint64_t at[3];
	float value; /* by which a tensor is multiplied */
};
void fake_dnn_convolve(const uint8_t *params); /* a struct fake_convolution */

/* ---- dnn_calls.c ---- */

struct numbers { /* of any descriptor here */
	char kind;
	bool set, live;
	int n[24], count, size[8], stride[8];
	double real;
	void *states;
	size_t bytes;
	unsigned long long seed;
	const struct numbers *dropout;
	int lengths[SEQUENCES];
};
int fake_dnn_make(void **out, char kind);
int fake_dnn_drop(struct numbers *, char kind);
/* Under fake_lock. False is a fault of the caller: it is no such descriptor, or not set; the memory
 * is not the rank's. */
bool fake_dnn_is_set(const char *call, const struct numbers *, char kind);
bool fake_dnn_shown(const char *call, const void *at, uint64_t bytes);
uint64_t fake_dnn_bytes(const struct numbers *tensor);
int fake_dnn_sized(const char *call, size_t *bytes, size_t value);

#define DESCRIPTOR(name, kind)                                                                     \
	EXPORT int cudnnCreate##name(void **out)                                                   \
	{                                                                                          \
		BEGIN(cudnnCreate##name);                                                          \
		return fake_end(fake_dnn_make(out, kind));                                         \
	}                                                                                          \
	EXPORT int cudnnDestroy##name(void *descriptor)                                            \
	{                                                                                          \
		BEGIN(cudnnDestroy##name);                                                         \
		return fake_end(fake_dnn_drop(descriptor, kind));                                  \
	}

#endif
