/* elements.h: the element-wise arithmetic of collectives, of one source for the host (reduce.c) and
 * NVIDIA's GPUs (cuda/kernels/sums.cu), so that both leave the same bits.
 *
 * Who includes it defines LOOP(expression): d[i] gets the expression's value for each i below
 * `count` that is its own, and true is returned.
 *
 * Every result is rounded to the data type (to nearest, ties to even); half and bfloat16 go
 * through float, which is exact enough for one operation. The same bits on every machine: a NaN
 * result is the one canonical NaN; max and min prefer the number to a NaN and order -0 below +0;
 * integers wrap; integer averages truncate towards zero.
 */
#ifndef RANKFOLD_ELEMENTS_H
#define RANKFOLD_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "number.h"

enum element_op { OP_SUM, OP_PROD, OP_MAX, OP_MIN }; /* enum hal_reduction */

INLINE float max_f(float a, float b)
{
	if (a == b)
		return bits_float(float_bits(a) & float_bits(b));
	return b != b ? canonical_f(a) : a > b ? a : canonical_f(b);
}
INLINE float min_f(float a, float b)
{
	if (a == b)
		return bits_float(float_bits(a) | float_bits(b));
	return b != b ? canonical_f(a) : a < b ? a : canonical_f(b);
}
INLINE double max_d(double a, double b)
{
	if (a == b)
		return bits_double(double_bits(a) & double_bits(b));
	return b != b ? canonical_d(a) : a > b ? a : canonical_d(b);
}
INLINE double min_d(double a, double b)
{
	if (a == b)
		return bits_double(double_bits(a) | double_bits(b));
	return b != b ? canonical_d(a) : a < b ? a : canonical_d(b);
}

/* `wide` is unsigned, so that sums and products wrap instead of overflowing. */
#define INTEGER(name, type, wide)                                                                  \
	INLINE bool reduce_##name(type *d, const type *a, const type *b, uint64_t count,           \
				  uint32_t op)                                                     \
	{                                                                                          \
		switch (op) {                                                                      \
		case OP_SUM: LOOP((type)((wide)a[i] + (wide)b[i]));                                \
		case OP_PROD: LOOP((type)((wide)a[i] * (wide)b[i]));                               \
		case OP_MAX: LOOP(a[i] > b[i] ? a[i] : b[i]);                                      \
		case OP_MIN: LOOP(a[i] < b[i] ? a[i] : b[i]);                                      \
		}                                                                                  \
		return false;                                                                      \
	}                                                                                          \
	INLINE bool scale_##name(type *d, const type *a, uint64_t count, const type *scalar,       \
				 uint64_t divisor)                                                 \
	{                                                                                          \
		type s;                                                                            \
		if (!scalar)                                                                       \
			LOOP((type)(a[i] / (type)divisor));                                        \
		memcpy(&s, scalar, sizeof s);                                                      \
		LOOP((type)((wide)a[i] * (wide)s));                                                \
	}

#define FLOATING(name, type, real, from, to, canonical, max, min)                                  \
	INLINE bool reduce_##name(type *d, const type *a, const type *b, uint64_t count,           \
				  uint32_t op)                                                     \
	{                                                                                          \
		switch (op) {                                                                      \
		case OP_SUM: LOOP(to(canonical(from(a[i]) + from(b[i]))));                         \
		case OP_PROD: LOOP(to(canonical(from(a[i]) * from(b[i]))));                        \
		case OP_MAX: LOOP(to(max(from(a[i]), from(b[i]))));                                \
		case OP_MIN: LOOP(to(min(from(a[i]), from(b[i]))));                                \
		}                                                                                  \
		return false;                                                                      \
	}                                                                                          \
	INLINE bool scale_##name(type *d, const type *a, uint64_t count, const type *scalar,       \
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

#endif
