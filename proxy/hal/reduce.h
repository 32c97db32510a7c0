/* reduce.h: element-wise arithmetic of collectives on host memory, the same bits for every HAL. */
#ifndef RANKFOLD_REDUCE_H
#define RANKFOLD_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

/* False: there is no such type or operation, or the divisor does not fit. With count 0 it only
 * answers that. */
bool hal_reduce(void *dst, const void *a, const void *b, uint64_t count, uint32_t dtype,
		uint32_t op);
bool hal_scale(void *dst, const void *a, uint64_t count, uint32_t dtype, const void *scalar,
	       uint64_t divisor); /* scalar NULL: divide */

#endif
