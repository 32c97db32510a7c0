/* matrices.h: matrices of a call of the fake's cuBLAS, as they are stored and dense. */
#ifndef RANKFOLD_FAKE_MATRICES_H
#define RANKFOLD_FAKE_MATRICES_H

#include "routines.h"

enum storage { WHOLE, BAND, PACKED };
enum shape { GENERAL, TRIANGLE, SYMMETRIC, HERMITIAN };

struct stored {
	uint64_t at;
	int type, op;
	enum shape shape;
	enum storage storage;
	int64_t rows, columns, ld, below, above; /* as stored */
	bool upper, unit;
};

struct dense {
	int64_t rows, columns;
	number *of; /* by columns */
};
static inline number *in(const struct dense *m, int64_t i, int64_t j)
{
	return m->of + i + j * m->rows;
}

/* A matrix at parameter k, its leading dimension after it. */
struct stored stored_matrix(const struct call *, int k, int64_t rows, int64_t columns);
/* One half of a square matrix at parameter k, by the parameter that says which; `diagonals` of a
 * band. */
struct stored stored_half(const struct call *, int k, int uplo, int64_t n, enum shape, enum storage,
			  int64_t diagonals);
bool stored_is_upper(const struct stored *); /* with its operation */

struct dense dense_new(int64_t rows, int64_t columns);
struct dense dense_of(const struct stored *); /* with its operation */
void dense_store(const struct stored *, const struct dense *from);
/* to += factor * A * B; B's elements or those of its transpose, as they are or conjugate. */
void dense_add(const struct dense *to, number factor, const struct dense *a, const struct dense *b,
	       bool turned, bool conjugate);
/* The solution X of A X = B, in B; A is a triangle. */
void dense_solve(const struct dense *a, bool upper, const struct dense *b);
void dense_drop(struct dense *);

/* The call with the addresses of product b: those at `places` are of lists, or of steps, which are
 * after the leading dimensions. */
struct call fake_product_of(const struct call *, int64_t b, enum fake_batch, const int *places);
void fake_gemm(const struct call *); /* the variant is an enum fake_batch */

#define INT(k) whole_of(c, k)

#endif
