/* reduce.c: element-wise arithmetic of collectives (elements.h) for NCCL's data types, at host
 * addresses that the caller has resolved. */
#pragma GCC optimize("O3")
#include <string.h>

#include "hal.h"
#include "reduce.h"

#define LOOP(expression)                                                                           \
	do {                                                                                       \
		for (uint64_t i = 0; i < count; i++)                                               \
			d[i] = (expression);                                                       \
		return true;                                                                       \
	} while (0)

#include "elements.h"

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16 };

_Static_assert((int)OP_SUM == HAL_SUM && (int)OP_PROD == HAL_PROD && (int)OP_MAX == HAL_MAX &&
		       (int)OP_MIN == HAL_MIN,
	       "the operations of elements.h");

bool hal_reduce(void *dst, const void *a, const void *b, uint64_t count, uint32_t dtype,
		uint32_t op)
{
	switch (dtype) {
	case INT8: return reduce_int8(dst, a, b, count, op);
	case UINT8: return reduce_uint8(dst, a, b, count, op);
	case INT32: return reduce_int32(dst, a, b, count, op);
	case UINT32: return reduce_uint32(dst, a, b, count, op);
	case INT64: return reduce_int64(dst, a, b, count, op);
	case UINT64: return reduce_uint64(dst, a, b, count, op);
	case HALF: return reduce_half(dst, a, b, count, op);
	case FLOAT: return reduce_float(dst, a, b, count, op);
	case DOUBLE: return reduce_double(dst, a, b, count, op);
	case BFLOAT16: return reduce_bfloat16(dst, a, b, count, op);
	}
	return false;
}

bool hal_scale(void *dst, const void *a, uint64_t count, uint32_t dtype, const void *scalar,
	       uint64_t divisor)
{
	if (!scalar && divisor == 0)
		return false;
	switch (dtype) {
	case INT8:
		/* With a divisor beyond the type's range every quotient would truncate to zero or
		 * ±1; no communicator of more than 127 ranks averages int8 in one byte. */
		return (scalar || divisor <= INT8_MAX) &&
		       scale_int8(dst, a, count, scalar, divisor);
	case UINT8:
		return (scalar || divisor <= UINT8_MAX) &&
		       scale_uint8(dst, a, count, scalar, divisor);
	case INT32: return scale_int32(dst, a, count, scalar, divisor);
	case UINT32: return scale_uint32(dst, a, count, scalar, divisor);
	case INT64: return scale_int64(dst, a, count, scalar, divisor);
	case UINT64: return scale_uint64(dst, a, count, scalar, divisor);
	case HALF: return scale_half(dst, a, count, scalar, divisor);
	case FLOAT: return scale_float(dst, a, count, scalar, divisor);
	case DOUBLE: return scale_double(dst, a, count, scalar, divisor);
	case BFLOAT16: return scale_bfloat16(dst, a, count, scalar, divisor);
	}
	return false;
}

/* ---- works that consist of this arithmetic ---- */

bool hal_sum_acceptable(const struct hal_work *w)
{
	if (w->kind == HAL_REDUCE)
		return hal_reduce(NULL, NULL, NULL, 0, w->reduce.dtype, w->reduce.op);
	return hal_scale(NULL, NULL, 0, w->scale.dtype, w->scale.divide ? NULL : w->scale.scalar,
			 w->scale.divisor);
}

uint32_t hal_sum_refs(const struct hal_work *w, struct hal_ref refs[HAL_SUM_REFS])
{
	if (w->kind == HAL_REDUCE) {
		refs[0] = w->reduce.dst;
		refs[1] = w->reduce.a;
		refs[2] = w->reduce.b;
		return 3;
	}
	refs[0] = w->scale.dst;
	refs[1] = w->scale.a;
	return 2;
}

uint32_t hal_sum_element(const struct hal_work *w)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
	uint32_t dtype = w->kind == HAL_REDUCE ? w->reduce.dtype : w->scale.dtype;

	return dtype < sizeof bytes ? bytes[dtype] : 0;
}

uint64_t hal_sum_bytes(const struct hal_work *w)
{
	uint64_t count = w->kind == HAL_REDUCE ? w->reduce.count : w->scale.count, bytes;

	return __builtin_mul_overflow(count, (uint64_t)hal_sum_element(w), &bytes) ? UINT64_MAX
										   : bytes;
}

void hal_sum(const struct hal_work *w, void *dst, const void *a, const void *b, uint64_t count)
{
	if (w->kind == HAL_REDUCE)
		hal_reduce(dst, a, b, count, w->reduce.dtype, w->reduce.op);
	else
		hal_scale(dst, a, count, w->scale.dtype, w->scale.divide ? NULL : w->scale.scalar,
			  w->scale.divisor);
}
