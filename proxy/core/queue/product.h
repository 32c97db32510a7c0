/* product.h: the memory that a matrix product reaches. */
#ifndef RANKFOLD_QUEUE_PRODUCT_H
#define RANKFOLD_QUEUE_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"

/* Bytes of an element of a cudaDataType; 0: unknown type. */
static inline uint64_t element_bytes(uint8_t type)
{
	switch (type) {
	case 0: return 4;  /* CUDA_R_32F */
	case 1: return 8;  /* CUDA_R_64F */
	case 2:            /* CUDA_R_16F */
	case 14: return 2; /* CUDA_R_16BF */
	case 3:            /* CUDA_R_8I */
	case 28:           /* CUDA_R_8F_E4M3 */
	case 29: return 1; /* CUDA_R_8F_E5M2 */
	case 10: return 4; /* CUDA_R_32I */
	default: return 0;
	}
}

/* Computes the bytes from the first element of `count` matrices to the end of the last one. Returns
 * false if unknown. */
static inline bool matrix_bytes(const struct rf_matrix *x, uint64_t rows, uint64_t columns,
				uint64_t count, uint8_t type, uint64_t *bytes)
{
	uint64_t down, across, apart;
	*bytes = 0;
	if (!rows || !columns || !count)
		return true;
	return element_bytes(type) && !__builtin_mul_overflow(rows - 1, x->row, &down) &&
	       !__builtin_mul_overflow(columns - 1, x->col, &across) &&
	       !__builtin_mul_overflow(count - 1, x->batch, &apart) &&
	       !__builtin_add_overflow(down, across, bytes) &&
	       !__builtin_add_overflow(*bytes, apart, bytes) &&
	       !__builtin_add_overflow(*bytes, 1, bytes) &&
	       !__builtin_mul_overflow(*bytes, element_bytes(type), bytes) && *bytes <= INT64_MAX;
}

#endif
