/* reduce.c: element-wise arithmetic of collectives, for NCCL's data types, at places in host memory
 * that whoever runs such a work has found.
 *
 * Every result is rounded to the data type (to nearest, ties to even); half and bfloat16 go
 * through float, which is exact enough for one operation. The same bits on every machine: a NaN
 * result is the one canonical NaN; max and min prefer the number to a NaN and order -0 below +0;
 * integers wrap; integer averages truncate towards zero.
 */
#pragma GCC optimize("O3")
#include <string.h>

#include "hal.h"
#include "number.h"
#include "reduce.h"

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16 };

static inline float max_f(float a, float b)
{
	if (a == b)
		return bits_float(float_bits(a) & float_bits(b));
	return b != b ? canonical_f(a) : a > b ? a : canonical_f(b);
}
static inline float min_f(float a, float b)
{
	if (a == b)
		return bits_float(float_bits(a) | float_bits(b));
	return b != b ? canonical_f(a) : a < b ? a : canonical_f(b);
}
static inline double max_d(double a, double b)
{
	if (a == b)
		return bits_double(double_bits(a) & double_bits(b));
	return b != b ? canonical_d(a) : a > b ? a : canonical_d(b);
}
static inline double min_d(double a, double b)
{
	if (a == b)
		return bits_double(double_bits(a) | double_bits(b));
	return b != b ? canonical_d(a) : a < b ? a : canonical_d(b);
}

#define LOOP(expression)                                                                           \
	do {                                                                                       \
		for (uint64_t i = 0; i < count; i++)                                               \
			d[i] = (expression);                                                       \
		return true;                                                                       \
	} while (0)

/* `wide` is unsigned, so that sums and products wrap instead of overflowing. */
#define INTEGER(name, type, wide)                                                                  \
	static bool reduce_##name(type *d, const type *a, const type *b, uint64_t count,           \
				  uint32_t op)                                                     \
	{                                                                                          \
		switch (op) {                                                                      \
		case HAL_SUM: LOOP((type)((wide)a[i] + (wide)b[i]));                               \
		case HAL_PROD: LOOP((type)((wide)a[i] * (wide)b[i]));                              \
		case HAL_MAX: LOOP(a[i] > b[i] ? a[i] : b[i]);                                     \
		case HAL_MIN: LOOP(a[i] < b[i] ? a[i] : b[i]);                                     \
		}                                                                                  \
		return false;                                                                      \
	}                                                                                          \
	static bool scale_##name(type *d, const type *a, uint64_t count, const type *scalar,       \
				 uint64_t divisor)                                                 \
	{                                                                                          \
		type s;                                                                            \
		if (!scalar)                                                                       \
			LOOP((type)(a[i] / (type)divisor));                                        \
		memcpy(&s, scalar, sizeof s);                                                      \
		LOOP((type)((wide)a[i] * (wide)s));                                                \
	}

#define FLOATING(name, type, real, from, to, canonical, max, min)                                  \
	static bool reduce_##name(type *d, const type *a, const type *b, uint64_t count,           \
				  uint32_t op)                                                     \
	{                                                                                          \
		switch (op) {                                                                      \
		case HAL_SUM: LOOP(to(canonical(from(a[i]) + from(b[i]))));                        \
		case HAL_PROD: LOOP(to(canonical(from(a[i]) * from(b[i]))));                       \
		case HAL_MAX: LOOP(to(max(from(a[i]), from(b[i]))));                               \
		case HAL_MIN: LOOP(to(min(from(a[i]), from(b[i]))));                               \
		}                                                                                  \
		return false;                                                                      \
	}                                                                                          \
	static bool scale_##name(type *d, const type *a, uint64_t count, const type *scalar,       \
				 uint64_t divisor)                                                 \
	{                                                                                          \
		type s;                                                                            \
		real r;                                                                            \
		if (!scalar)                                                                       \
			LOOP(to(canonical(from(a[i]) / (real)divisor)));                           \
		memcpy(&s, scalar, sizeof s);                                                      \
		r = from(s);                                                                       \
		LOOP(to(canonical(from(a[i]) * r)));                                               \
	}

#define SAME(x) (x)
INTEGER(int8, int8_t, uint32_t)
INTEGER(uint8, uint8_t, uint32_t)
INTEGER(int32, int32_t, uint32_t)
INTEGER(uint32, uint32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t)
INTEGER(uint64, uint64_t, uint64_t)
FLOATING(half, uint16_t, float, from_half, to_half, canonical_f, max_f, min_f)
FLOATING(float, float, float, SAME, SAME, canonical_f, max_f, min_f)
FLOATING(double, double, double, SAME, SAME, canonical_d, max_d, min_d)
FLOATING(bfloat16, uint16_t, float, from_bfloat16, to_bfloat16, canonical_f, max_f, min_f)

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
		/* A divisor beyond the type's range: every quotient truncates to zero or ±1; no
		 * communicator of more than 127 ranks averages int8 in one byte. */
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

/* ---- the works that consist of it ---- */

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
