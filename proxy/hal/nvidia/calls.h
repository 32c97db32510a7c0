/* calls.h: calls of NVIDIA's libraries for ranks (calls.c), and plans of cuFFT (fft.c). */
#ifndef RANKFOLD_CUDA_CALLS_H
#define RANKFOLD_CUDA_CALLS_H

#include "library_call.h"
#include "nvidia_hal.h"

/* cuBLAS has no functions here: its products are records of their own (cublas.c). */
enum nvidia_library { NVIDIA_CUSOLVER, NVIDIA_CUFFT, NVIDIA_CUBLAS, NVIDIA_LIBRARIES };

/* A function that ranks may call. */
struct nvidia_call {
	enum nvidia_library library;
	const char *name;
	const char *kinds; /* of its parameters (library_call.h); NULL: `make` reads them */
	/* Makes the call with these parameters and the answer's address before them: the library's
	 * status, and what the call gives. */
	int (*make)(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		    uint64_t *outs);
	uint32_t slots; /* with the first */
	void *function; /* of the library; found when the rank first asks for it */
};

/* fft.c */
int nvidia_fft_make(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		    uint64_t *outs);
int nvidia_fft_execute(struct hal_stream *, const struct hal_space *, const uint64_t *slots,
		       uint64_t *outs);
void nvidia_fft_close(struct hal_device *);

#endif
