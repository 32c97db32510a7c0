/* number.h: bits of floating-point numbers: half and bfloat16 to float and back (to nearest, ties
 * to even), and the one NaN that results have. The same on every machine. INLINE is what functions
 * are declared as that the host and an NVIDIA GPU have of one source.
 */
#ifndef RANKFOLD_NUMBER_H
#define RANKFOLD_NUMBER_H

#include <stdint.h>
#include <string.h>

#ifndef INLINE /* who compiles for a GPU has said */
#define INLINE static inline
#endif

INLINE uint32_t float_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, 4);
	return u;
}
INLINE float bits_float(uint32_t u)
{
	float x;
	memcpy(&x, &u, 4);
	return x;
}
INLINE uint64_t double_bits(double x)
{
	uint64_t u;
	memcpy(&u, &x, 8);
	return u;
}
INLINE double bits_double(uint64_t u)
{
	double x;
	memcpy(&x, &u, 8);
	return x;
}

INLINE float from_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff);

	if (rest >= 0x7c00)
		return bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
	/* As a float's bits this is value * 2^-112; the product is exact, subnormals too. */
	return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));
}

INLINE uint16_t to_half(float x)
{
	uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;

	if (rest > 0x7f800000)
		return 0x7fff;
	if (rest >= 0x477ff000) /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) /* subnormal half: let the float adder round */
		return (uint16_t)(sign | (float_bits(bits_float(rest) + 0.5f) - 0x3f000000));
	return (uint16_t)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

INLINE float from_bfloat16(uint16_t b) { return bits_float((uint32_t)b << 16); }

INLINE uint16_t to_bfloat16(float x)
{
	uint32_t u = float_bits(x);

	if ((u & 0x7fffffff) > 0x7f800000)
		return 0x7fff;
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

INLINE float canonical_f(float x) { return x != x ? bits_float(0x7fffffff) : x; }
INLINE double canonical_d(double x) { return x != x ? bits_double(0x7fffffffffffffff) : x; }

#endif
