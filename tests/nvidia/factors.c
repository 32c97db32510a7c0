/* factors.c: of the fake driver (fake.h): cuBLAS's factorisations, solutions and inverses of lists
 * of matrices, packed matrices, and complex products by cudaDataType.
 */
#include <stdlib.h>

#include "matrices.h"

/* ---- LU, of lists ---- */

#define EACH(name, kinds, function)                                                                \
	ENTRY(cublasS##name, CUDA_R_32F, false, kinds, function, 0)                                \
	ENTRY(cublasD##name, CUDA_R_64F, false, kinds, function, 0)                                \
	ENTRY(cublasC##name, FAKE_C_32F, false, kinds, function, 0)                                \
	ENTRY(cublasZ##name, FAKE_C_64F, false, kinds, function, 0)

static void swap_rows(const struct dense *m, int64_t i, int64_t other)
{
	for (int64_t j = 0; j < m->columns; j++) {
		number kept = *in(m, i, j);

		*in(m, i, j) = *in(m, other, j);
		*in(m, other, j) = kept;
	}
}

static int factor(const struct dense *m, int *pivots)
{
	int info = 0;

	for (int64_t k = 0; k < m->rows; k++) {
		int64_t best = k;

		for (int64_t i = k + 1; pivots && i < m->rows; i++)
			if (cabs(*in(m, i, k)) > cabs(*in(m, best, k)))
				best = i;
		if (pivots) {
			swap_rows(m, k, best);
			pivots[k] = (int)best + 1;
		}
		if (*in(m, k, k) == 0) {
			info = info ? info : (int)k + 1;
			continue;
		}
		for (int64_t i = k + 1; i < m->rows; i++) {
			*in(m, i, k) /= *in(m, k, k);
			for (int64_t j = k + 1; j < m->columns; j++)
				*in(m, i, j) -= *in(m, i, k) * *in(m, k, j);
		}
	}
	return info;
}

static void getrf(const struct call *all) /* n, A, lda, P, info, count */
{
	for (int64_t i = 0; i < whole_of(all, 6); i++) {
		struct call one = fake_product_of(all, i, FAKE_LISTED, (int[]){2, 0});
		const struct call *c = &one;
		struct stored a = stored_matrix(c, 2, INT(1), INT(1));
		struct dense m = dense_of(&a);

		((int *)c->at[5])[i] = factor(&m, c->at[4] ? (int *)c->at[4] + i * INT(1) : NULL);
		dense_store(&a, &m);
		dense_drop(&m);
	}
}
EACH(getrfBatched, "npnppn", getrf)

/* The solution of op(A) X = B, in B, from A's factors. */
static void solve_factored(struct stored a, int op, const int *pivots, const struct dense *x)
{
	bool turned = op != OP_N;

	a.op = op;
	a.shape = TRIANGLE;
	for (int64_t k = 0; !turned && pivots && k < x->rows; k++)
		swap_rows(x, k, pivots[k] - 1);
	for (int half = 0; half < 2; half++) { /* the lower one is first, if not turned */
		struct dense m;

		a.upper = turned == !half;
		a.unit = !a.upper;
		m = dense_of(&a);
		dense_solve(&m, stored_is_upper(&a), x);
		dense_drop(&m);
	}
	for (int64_t k = x->rows - 1; turned && pivots && k >= 0; k--)
		swap_rows(x, k, pivots[k] - 1);
}

static void getrs(const struct call *all) /* op, n, columns, A, lda, P, B, ldb, info, count */
{
	for (int64_t i = 0; i < whole_of(all, 10); i++) {
		struct call one = fake_product_of(all, i, FAKE_LISTED, (int[]){4, 7, 0});
		const struct call *c = &one;
		const int *pivots = c->at[6] ? (const int *)c->at[6] + i * INT(2) : NULL;
		struct stored b = stored_matrix(c, 7, INT(2), INT(3));
		struct dense x = dense_of(&b);

		solve_factored(stored_matrix(c, 4, INT(2), INT(2)), (int)c->at[1], pivots, &x);
		dense_store(&b, &x);
		dense_drop(&x);
	}
}
EACH(getrsBatched, "ennpnppnhn", getrs)

static struct dense identity(int64_t n)
{
	struct dense m = dense_new(n, n);

	for (int64_t i = 0; i < n; i++)
		*in(&m, i, i) = 1;
	return m;
}

static void getri(const struct call *all) /* n, A, lda, P, C, ldc, info, count */
{
	for (int64_t i = 0; i < whole_of(all, 8); i++) {
		struct call one = fake_product_of(all, i, FAKE_LISTED, (int[]){2, 5, 0});
		const struct call *c = &one;
		const int *pivots = c->at[4] ? (const int *)c->at[4] + i * INT(1) : NULL;
		struct stored to = stored_matrix(c, 5, INT(1), INT(1));
		struct dense x = identity(INT(1));

		solve_factored(stored_matrix(c, 2, INT(1), INT(1)), OP_N, pivots, &x);
		dense_store(&to, &x);
		((int *)c->at[7])[i] = 0;
		dense_drop(&x);
	}
}
EACH(getriBatched, "npnppnpn", getri)

/* The solution of A X = B, in B. */
static int solve_whole(const struct dense *a, const struct dense *b)
{
	int *pivots = calloc((size_t)a->rows, sizeof *pivots);
	struct dense lower = identity(a->rows);
	int info = factor(a, pivots);

	for (int64_t j = 0; j < a->columns; j++)
		for (int64_t i = j + 1; i < a->rows; i++)
			*in(&lower, i, j) = *in(a, i, j);
	for (int64_t k = 0; k < a->rows; k++)
		swap_rows(b, k, pivots[k] - 1);
	dense_solve(&lower, false, b);
	dense_solve(a, true, b);
	dense_drop(&lower);
	free(pivots);
	return info;
}

static void matinv(const struct call *all) /* n, A, lda, its inverse, its ld, info, count */
{
	for (int64_t i = 0; i < whole_of(all, 7); i++) {
		struct call one = fake_product_of(all, i, FAKE_LISTED, (int[]){2, 4, 0});
		const struct call *c = &one;
		struct stored a = stored_matrix(c, 2, INT(1), INT(1)),
			      to = stored_matrix(c, 4, INT(1), INT(1));
		struct dense m = dense_of(&a), x = identity(INT(1));

		((int *)c->at[6])[i] = solve_whole(&m, &x);
		dense_store(&to, &x);
		dense_drop(&m);
		dense_drop(&x);
	}
}
EACH(matinvBatched, "npnpnpn", matinv)

/* Least squares, by the normal equations: op, m, n, columns, A, lda, C, ldc, info, its list, count
 */
static void gels(const struct call *all)
{
	for (int64_t i = 0; i < whole_of(all, 11); i++) {
		struct call one = fake_product_of(all, i, FAKE_LISTED, (int[]){5, 7, 0});
		const struct call *c = &one;
		struct stored a = stored_matrix(c, 5, INT(2), INT(3)),
			      b = stored_matrix(c, 7, INT(2), INT(4));
		struct dense left, right, square = dense_new(INT(3), INT(3)), given = dense_of(&b);
		struct dense x = dense_new(INT(3), INT(4));

		right = dense_of(&a);
		a.op = OP_C;
		left = dense_of(&a);
		dense_add(&square, 1, &left, &right, false, false);
		dense_add(&x, 1, &left, &given, false, false);
		((int *)c->at[10])[i] = solve_whole(&square, &x);
		dense_store(&b, &x);
		dense_drop(&left);
		dense_drop(&right);
		dense_drop(&square);
		dense_drop(&given);
		dense_drop(&x);
	}
}
EACH(gelsBatched, "ennnpnpnhpn", gels)

enum { TO_WHOLE, TO_PACK };
static void repack(const struct call *c) /* uplo, n, then AP, A, ld, or A, ld, AP */
{
	bool whole = c->variant == TO_WHOLE;
	struct stored pack = stored_half(c, whole ? 3 : 5, 1, INT(2), TRIANGLE, PACKED, 0);
	struct stored m = stored_half(c, whole ? 4 : 3, 1, INT(2), TRIANGLE, WHOLE, 0);
	struct dense from = dense_of(whole ? &pack : &m);

	dense_store(whole ? &m : &pack, &from);
	dense_drop(&from);
}
#define PACKS(letter, TYPE)                                                                        \
	ENTRY(cublas##letter##tpttr, TYPE, false, "enppn", repack, TO_WHOLE)                       \
	ENTRY(cublas##letter##trttp, TYPE, false, "enpnp", repack, TO_PACK)
PACKS(S, CUDA_R_32F)
PACKS(D, CUDA_R_64F)
PACKS(C, FAKE_C_32F)
PACKS(Z, FAKE_C_64F)

/* ---- products by cudaDataType ---- */

int fake_complex_product(const char *name, enum fake_batch batch, bool wide, const uint64_t *a)
{
	static const struct {
		const char *kinds;
		int types[3], compute, order[19];
	} forms[] = {
		{"eennnapnpnapn", {8, 11, 15}, 17, {1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 14, 16}},
		{"eennnapnpnapnn",
		 {8, 11, 15},
		 18,
		 {1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 14, 16, 17}},
		{"eennnapnlpnlapnln",
		 {8, 12, 17},
		 21,
		 {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20}},
	};
	struct call c = {fake_gemm, forms[batch].kinds, (int)a[8], (int)batch, .wide = wide};
	uint64_t parameters[PARAMETERS] = {a[0]};
	int compute = (int)a[forms[batch].compute];

	for (int i = 0; i < 3; i++)
		if ((int)a[forms[batch].types[i]] != c.type)
			return CUBLAS_STATUS_NOT_SUPPORTED;
	if (c.type == FAKE_C_32F ? compute != CUBLAS_COMPUTE_32F
				 : c.type != FAKE_C_64F || compute != CUBLAS_COMPUTE_64F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	for (int i = 0; forms[batch].order[i]; i++)
		parameters[i + 1] = a[forms[batch].order[i]];
	return fake_routine(name, &c, parameters);
}

/* Those of ints also compute with real numbers (cublas.c). */
#define WIDE_PRODUCT(symbol, batch)                                                                \
	EXPORT int symbol(N a, N b, N c, N d, N e, N f, N g, N h, N i, N j, N k, N l, N m, N n,    \
			  N o, N p, N q, N r, N s, N t, N u, N v, N w)                             \
	{                                                                                          \
		const uint64_t all[PARAMETERS] = {a, b, c, d, e, f, g, h, i, j, k, l,              \
						  m, n, o, p, q, r, s, t, u, v, w};                \
		return fake_complex_product(#symbol, batch, true, all);                            \
	}
WIDE_PRODUCT(cublasGemmEx_64, FAKE_ONE)
WIDE_PRODUCT(cublasGemmBatchedEx_64, FAKE_LISTED)
WIDE_PRODUCT(cublasGemmStridedBatchedEx_64, FAKE_STRIDED)
