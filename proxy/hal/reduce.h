/* reduce.h: element-wise arithmetic of collectives; the same bits in every HAL. */
#ifndef RANKFOLD_REDUCE_H
#define RANKFOLD_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "hal.h"

/* Returns false if there is no such type or operation, or the divisor does not fit the type. With
 * count 0 it only checks that. */
bool hal_reduce(void *dst, const void *a, const void *b, uint64_t count, uint32_t dtype,
		uint32_t op);
bool hal_scale(void *dst, const void *a, uint64_t count, uint32_t dtype, const void *scalar,
	       uint64_t divisor); /* scalar NULL: divide */

/* True if this HAL_REDUCE or HAL_SCALE has a known type and operation. */
bool hal_sum_acceptable(const struct hal_work *);
/* Writes its operands: dst, a and (HAL_REDUCE) b. Returns how many. */
#define HAL_SUM_REFS 3u
uint32_t hal_sum_refs(const struct hal_work *, struct hal_ref refs[HAL_SUM_REFS]);
uint32_t hal_sum_element(const struct hal_work *); /* bytes of one element */
uint64_t hal_sum_bytes(const struct hal_work *);   /* of one operand; UINT64_MAX on overflow */
/* Computes `count` elements, with operands at these host addresses; b may be NULL. */
void hal_sum(const struct hal_work *, void *dst, const void *a, const void *b, uint64_t count);

#endif
