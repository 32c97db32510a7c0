/* blas.h: calls of the kernels of BLAS (interpose/blas). */
#ifndef RANKFOLD_BLAS_H
#define RANKFOLD_BLAS_H

#include "bodies.h"

enum blas_kernel {
	KERNEL_EACH,
	KERNEL_REDUCE,
	KERNEL_TIMES_VECTOR,
	KERNEL_TRIANGLE_TIMES_VECTOR,
	KERNEL_SOLVE_VECTOR,
	KERNEL_UPDATE,
	KERNEL_TIMES_MATRIX,
	KERNEL_TRIANGLE_TIMES_MATRIX,
	KERNEL_SOLVE_MATRIX,
	KERNEL_FACTOR,
	KERNEL_SWAP_ROWS,
	KERNEL_COMBINE,
	KERNEL_ROTATION,
	BLAS_KERNELS,
};

/* A call for a handle and a type. blas_begin fails for an invalid handle or an unsupported type. */
struct blas_call {
	const struct handle *handle;
	int type;     /* cudaDataType: real or complex, float or double */
	size_t bytes; /* of one number */
	bool real, on_device;
	struct blas_args args;
};
int blas_begin(struct blas_call *, const void *handle, int type);
/* alpha or beta, by value or by address; `real`: a real number in a complex routine. */
int blas_alpha(struct blas_call *, const void *alpha, bool real);
int blas_beta(struct blas_call *, const void *beta, bool real);
/* Launches `work` threads for each product of args.count. */
int blas_launch(struct blas_call *, enum blas_kernel, int64_t work);
/* Numbers that a routine reads, writes or both, in the memory that the pointer mode selects:
 * *device receives the address that the kernel uses. Waits for results if they are in host
 * memory. */
struct blas_number {
	void *at;
	size_t bytes;
	bool in, out;
	uint64_t *device;
};
int blas_with_numbers(struct blas_call *, enum blas_kernel, struct blas_number *, size_t count);

#endif
