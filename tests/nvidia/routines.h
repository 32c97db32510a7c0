/* routines.h: what the routines of the fake's cuBLAS share: a call, its numbers, its matrices.
 *
 * All numbers are computed as complex doubles, and rounded to their type where they are stored.
 */
#ifndef RANKFOLD_FAKE_ROUTINES_H
#define RANKFOLD_FAKE_ROUTINES_H

#include <complex.h>

#include "blas.h"
#include "fake.h"
#include "fake_blas.h"

typedef double _Complex number;
#define PARAMETERS 24

/* One letter for each parameter after the handle:
 *   n  a size, or a step: an int, or one of 64 bits in a function named …_64
 *   e  an int, always; l: one of 64 bits, always
 *   p  memory of the device
 *   a  a factor, and r: a real one, in the memory that the pointer mode selects
 *   y  a result there
 *   u  a number that is read and written there; U: five of them; V: five that are read
 *   h  an int of the host, which is set to 0 */
struct call {
	void (*compute)(const struct call *);
	const char *kinds;
	int type; /* cudaDataType of the numbers */
	int variant;
	bool wide, on_device;
	uint64_t at[PARAMETERS]; /* the parameters; the first one is the handle */
	number factors[PARAMETERS];
	double five[5]; /* of the host, for rotm: as they are there */
};
int fake_routine(const char *name, struct call *, const uint64_t *parameters);

int64_t whole_of(const struct call *, int parameter);
number factor_of(const struct call *, int parameter);
uint32_t number_bytes(int type);
int real_of(int type);
number number_at(uint64_t at, int type);
void put_number(uint64_t at, int type, number);

/* The exported functions; FOUR: of all types, and of both widths. */
#define N uint64_t
#define ENTRY(symbol, TYPE, WIDE, kinds, function, variant)                                        \
	EXPORT int symbol(N a, N b, N c, N d, N e, N f, N g, N h, N i, N j, N k, N l, N m, N n,    \
			  N o, N p, N q, N r, N s, N t, N u, N v, N w, N x)                        \
	{                                                                                          \
		const uint64_t all[PARAMETERS] = {a, b, c, d, e, f, g, h, i, j, k, l,              \
						  m, n, o, p, q, r, s, t, u, v, w, x};             \
		struct call call = {function, kinds, TYPE, variant, .wide = WIDE};                 \
		return fake_routine(#symbol, &call, all);                                          \
	}
#define BOTH(symbol, TYPE, ...)                                                                    \
	ENTRY(symbol, TYPE, false, __VA_ARGS__) ENTRY(symbol##_64, TYPE, true, __VA_ARGS__)
#define REALS(name, ...)                                                                           \
	BOTH(cublasS##name, CUDA_R_32F, __VA_ARGS__) BOTH(cublasD##name, CUDA_R_64F, __VA_ARGS__)
#define PAIRS(name, ...)                                                                           \
	BOTH(cublasC##name, FAKE_C_32F, __VA_ARGS__) BOTH(cublasZ##name, FAKE_C_64F, __VA_ARGS__)
#define FOUR(name, ...) REALS(name, __VA_ARGS__) PAIRS(name, __VA_ARGS__)
enum { FAKE_C_32F = 4, FAKE_C_64F = 5, FAKE_R_8F_E4M3 = 28 };
enum { OP_N, OP_T, OP_C };

#endif
