/* args.h: what the kernels of kernels.cu take, one structure for all of them.
 *
 * The client (client/api/blas.c) fills it in and the kernels read it: C and CUDA C++ include it.
 * Sizes and strides count elements. Vectors and matrices are `count` ones, `batch` apart, or
 * `at` is a list of addresses (BLAS_LISTED).
 */
#ifndef RANKFOLD_BLAS_ARGS_H
#define RANKFOLD_BLAS_ARGS_H

#include <stdint.h>

#define BLAS_REDUCERS 256 /* threads of what runs as one block; part of the order of sums */

enum blas_flags {
	BLAS_ON_DEVICE = 1, /* alpha and beta: addresses of them */
	BLAS_LISTED = 2,
	BLAS_REAL_ALPHA = 4, /* of a complex routine: a real number */
	BLAS_REAL_BETA = 8,
	BLAS_WIDE = 16,       /* the index that is found has 64 bits */
	BLAS_HERMITIAN = 32,  /* what is updated: its diagonal becomes real */
	BLAS_CONJ = 64,       /* of two factors the second one is conjugated */
	BLAS_TWICE = 128,     /* and the product with the factors swapped is added */
	BLAS_RIGHT = 256,     /* the triangular matrix, or the diagonal, stands on the right */
	BLAS_BACKWARDS = 512, /* the last pivot is the first one */
};
enum blas_op {
	BLAS_AXPY,
	BLAS_SCAL,
	BLAS_COPY,
	BLAS_SWAP,
	BLAS_ROT,
	BLAS_ROTM, /* each */
	BLAS_DOT,
	BLAS_NRM2,
	BLAS_ASUM,
	BLAS_AMAX,
	BLAS_AMIN, /* reduce */
	BLAS_GEAM,
	BLAS_DGMM, /* combine */
	BLAS_ROTG,
	BLAS_ROTMG, /* rotation */
};
enum blas_shape { BLAS_GENERAL, BLAS_SYMMETRIC, BLAS_HERMITIC, BLAS_TRIANGULAR };

struct blas_vector {
	uint64_t at;
	int64_t step, batch;
};
/* As it is stored; a caller that needs op(A) transposes and conjugates it. Element (i, j) is not
 * zero where -below <= j - i <= above. A matrix that is not general has only one triangle stored.
 */
struct blas_matrix {
	uint64_t at;
	int64_t ld, batch;
	int64_t below, above;
	int64_t shift;  /* banded: row of the diagonal among the stored ones; -1: not banded */
	int64_t packed; /* the order of a packed one, or 0 */
	int32_t shape, upper, unit, turned, conj, reserved;
};
struct blas_args {
	int64_t m, n, k, count; /* of the result; k: what is summed over */
	struct blas_matrix a, b, c;
	struct blas_vector x, y;
	uint64_t alpha[2], beta[2]; /* their bits, or in [0] their address */
	uint64_t result;            /* the address of a number, or of parameters */
	uint32_t op, flags;
};

#endif
