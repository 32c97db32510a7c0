/* gelu.h: GELU in its tanh form, and its derivative, in double.
 *
 * It does not use the C library, whose results depend on its version.
 */
#ifndef RANKFOLD_GELU_H
#define RANKFOLD_GELU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x, accurate to about the last bit. */
static inline double exponential(double x)
{
	static const double inverse[] = {
		/* of factorials */
		1.0,
		1.0,
		1.0 / 2,
		1.0 / 6,
		1.0 / 24,
		1.0 / 120,
		1.0 / 720,
		1.0 / 5040,
		1.0 / 40320,
		1.0 / 362880,
		1.0 / 3628800,
		1.0 / 39916800,
		1.0 / 479001600,
		1.0 / 6227020800.0,
	};
	double n, r, sum = inverse[13], power;
	uint64_t bits;

	if (!(x < 708.0))
		return x != x ? x : INFINITY;
	if (x < -708.0)
		return 0.0;
	n = __builtin_rint(x * 0x1.71547652b82fep0); /* / ln 2 */
	r = __builtin_fma(-n, 0x1.62e42fefa39efp-1, x);
	r = __builtin_fma(-n, 0x1.abc9e3b39803fp-56, r);
	for (int i = 12; i >= 0; i--)
		sum = __builtin_fma(sum, r, inverse[i]);
	bits = (uint64_t)((int64_t)n + 1023) << 52;
	memcpy(&power, &bits, 8);
	return sum * power;
}

/* x / 2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3). */
#define GELU_ROOT 0x1.9884533d43651p-1
static inline double gelu(double x)
{
	double u = GELU_ROOT * __builtin_fma(0.044715 * x * x, x, x);

	return x / (1.0 + exponential(-2.0 * u));
}

/* Its derivative: s + 2 x s (1 - s) u', s = 1 / (1 + e^-2u). */
static inline double gelu_slope(double x)
{
	double u = GELU_ROOT * __builtin_fma(0.044715 * x * x, x, x);
	double s = 1.0 / (1.0 + exponential(-2.0 * u));

	if (!(__builtin_fabs(x) < 64.0)) /* here s is 0 or 1, and u' may be infinite */
		return x != x ? x : x > 0.0 ? 1.0 : 0.0;
	return s + 2.0 * x * s * (1.0 - s) * GELU_ROOT * __builtin_fma(3 * 0.044715 * x, x, 1.0);
}

#endif
