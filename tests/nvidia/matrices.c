/* matrices.c: of the fake driver (fake.h): cuBLAS's routines of matrices, as their definitions say.
 *
 * Each makes dense matrices of the elements that it may read, computes with them, and stores those
 * that it may write.
 */
#include <stdlib.h>

#include "matrices.h"

enum { LOWER, UPPER };
enum { LEFT, RIGHT };

static int64_t place(const struct stored *m, int64_t i, int64_t j)
{
	switch (m->storage) {
	case BAND: return m->above + i - j + j * m->ld;
	case PACKED: return m->upper ? i + j * (j + 1) / 2 : i + j * (2 * m->rows - j - 1) / 2;
	default: return i + j * m->ld;
	}
}

static uint64_t address(const struct stored *m, int64_t i, int64_t j)
{
	return m->at + (uint64_t)place(m, i, j) * number_bytes(m->type);
}

static bool in_half(const struct stored *m, int64_t i, int64_t j)
{
	return m->upper ? i <= j : i >= j;
}

static number as_stored(const struct stored *m, int64_t i, int64_t j)
{
	bool inside = m->shape == GENERAL || in_half(m, i, j);
	number x;

	if (m->unit && i == j)
		return 1;
	if (!inside && m->shape == TRIANGLE)
		return 0;
	if (!inside)
		return m->shape == HERMITIAN ? conj(as_stored(m, j, i)) : as_stored(m, j, i);
	if (m->storage == BAND && (j - i > m->above || i - j > m->below))
		return 0;
	x = number_at(address(m, i, j), m->type);
	return m->shape == HERMITIAN && i == j ? creal(x) : x;
}

struct dense dense_new(int64_t rows, int64_t columns)
{
	uint64_t count = (uint64_t)(rows * columns);

	return (struct dense){rows, columns, calloc(count ? count : 1, sizeof(number))};
}

/* op(M). */
struct dense dense_of(const struct stored *m)
{
	bool turned = m->op != OP_N;
	struct dense to = turned ? dense_new(m->columns, m->rows) : dense_new(m->rows, m->columns);

	for (int64_t j = 0; j < to.columns; j++)
		for (int64_t i = 0; i < to.rows; i++) {
			number x = turned ? as_stored(m, j, i) : as_stored(m, i, j);

			*in(&to, i, j) = m->op == OP_C ? conj(x) : x;
		}
	return to;
}

void dense_store(const struct stored *m, const struct dense *from)
{
	for (int64_t j = 0; j < from->columns; j++)
		for (int64_t i = 0; i < from->rows; i++)
			if (m->shape == GENERAL || in_half(m, i, j))
				put_number(address(m, i, j), m->type, *in(from, i, j));
}

/* to += factor * A * B; B's elements or those of its transpose, as they are or conjugate. */
void dense_add(const struct dense *to, number factor, const struct dense *a, const struct dense *b,
	       bool turned, bool conjugate)
{
	for (int64_t j = 0; j < to->columns; j++)
		for (int64_t i = 0; i < to->rows; i++)
			for (int64_t k = 0; k < a->columns; k++) {
				number x = turned ? *in(b, j, k) : *in(b, k, j);

				*in(to, i, j) += factor * *in(a, i, k) * (conjugate ? conj(x) : x);
			}
}

/* beta * C, without reading it if beta is 0. */
static struct dense scaled(const struct stored *c, number beta)
{
	bool turned = c->op != OP_N;
	struct dense to = beta != 0 ? dense_of(c)
			  : turned  ? dense_new(c->columns, c->rows)
				    : dense_new(c->rows, c->columns);

	for (int64_t i = 0; i < to.rows * to.columns; i++)
		to.of[i] *= beta;
	return to;
}

/* The solution X of A X = B, in B; A is a triangle. */
void dense_solve(const struct dense *a, bool upper, const struct dense *b)
{
	for (int64_t j = 0; j < b->columns; j++)
		for (int64_t n = 0; n < a->rows; n++) {
			int64_t i = upper ? a->rows - 1 - n : n;
			number sum = *in(b, i, j);

			for (int64_t k = upper ? i + 1 : 0; k < (upper ? a->rows : i); k++)
				sum -= *in(a, i, k) * *in(b, k, j);
			*in(b, i, j) = sum / *in(a, i, i);
		}
}

static struct dense turned_of(const struct dense *m)
{
	struct dense to = dense_new(m->columns, m->rows);

	for (int64_t j = 0; j < m->columns; j++)
		for (int64_t i = 0; i < m->rows; i++)
			*in(&to, j, i) = *in(m, i, j);
	return to;
}

void dense_drop(struct dense *m) { free(m->of); }

/* ---- operands ---- */

/* A matrix at parameter k, its leading dimension after it. */
struct stored stored_matrix(const struct call *c, int k, int64_t rows, int64_t columns)
{
	return (struct stored){c->at[k],           c->type,         OP_N, .rows = rows,
			       .columns = columns, .ld = INT(k + 1)};
}

static struct stored operand(const struct call *c, int k, int op, int64_t rows, int64_t columns)
{
	struct stored m = op ? stored_matrix(c, k, columns, rows)
			     : stored_matrix(c, k, rows, columns);

	m.op = op;
	return m;
}

/* A vector as a row whose columns are a step apart, turned. A negative step begins at its end. */
static struct stored vector(const struct call *c, int k, int64_t n)
{
	int64_t step = INT(k + 1);
	uint64_t back = step < 0 ? (uint64_t)((1 - n) * step) * number_bytes(c->type) : 0;

	return (struct stored){c->at[k] + back, c->type, OP_T, .rows = 1, .columns = n, .ld = step};
}

static void store_vector(const struct stored *x, const struct dense *from)
{
	struct dense row = turned_of(from);

	dense_store(x, &row);
	dense_drop(&row);
}

/* One half of a square matrix: its parameter, and, of bands, the one with their number. */
struct stored stored_half(const struct call *c, int k, int uplo, int64_t n, enum shape shape,
			  enum storage storage, int64_t diagonals)
{
	bool upper = c->at[uplo] == UPPER;

	return (struct stored){.at = c->at[k],
			       .type = c->type,
			       .shape = shape,
			       .storage = storage,
			       .rows = n,
			       .columns = n,
			       .ld = storage == PACKED ? 0 : INT(k + 1),
			       .above = upper ? diagonals : 0,
			       .below = upper ? 0 : diagonals,
			       .upper = upper};
}

/* ---- of matrices and vectors ---- */

static void times_vector(const struct call *c, const struct stored *a, int alpha, int x, int beta)
{
	struct dense left = dense_of(a);
	struct stored from = vector(c, x, left.columns), to = vector(c, beta + 1, left.rows);
	struct dense v = dense_of(&from), sum = scaled(&to, factor_of(c, beta));

	dense_add(&sum, factor_of(c, alpha), &left, &v, false, false);
	store_vector(&to, &sum);
	dense_drop(&left);
	dense_drop(&v);
	dense_drop(&sum);
}

/* Call `c` with the addresses of product b, in a list, or steps apart (parameters of 64 bits after
 * the leading dimensions). */
struct call fake_product_of(const struct call *c, int64_t b, enum fake_batch batch,
			    const int *places)
{
	struct call one = *c;

	for (int i = 0; places[i]; i++) {
		int k = places[i];

		if (batch == FAKE_LISTED)
			one.at[k] = ((const uint64_t *)c->at[k])[b];
		if (batch == FAKE_STRIDED)
			one.at[k] += (uint64_t)(b * (int64_t)c->at[k + 2]) * number_bytes(c->type);
	}
	return one;
}

static void gemv(const struct call *all)
{
	static const int places[][4] = {{5, 7, 10}, {5, 7, 10}, {5, 8, 12}};
	static const int counts[] = {0, 12, 15};
	int x = places[all->variant][1], y = places[all->variant][2];
	int64_t count = all->variant ? whole_of(all, counts[all->variant]) : 1;

	for (int64_t b = 0; b < count; b++) {
		struct call one = fake_product_of(all, b, (enum fake_batch)all->variant,
						  places[all->variant]);
		const struct call *c = &one;
		struct stored a = stored_matrix(c, 5, INT(2), INT(3));

		a.op = (int)c->at[1];
		times_vector(c, &a, 4, x, y - 1);
	}
}
FOUR(gemv_v2, "ennapnpnapn", gemv, FAKE_ONE)
FOUR(gemvBatched, "ennapnpnapnn", gemv, FAKE_LISTED)
FOUR(gemvStridedBatched, "ennapnlpnlapnln", gemv, FAKE_STRIDED)

static void gbmv(const struct call *c)
{
	struct stored a = stored_matrix(c, 7, INT(2), INT(3));

	a.storage = BAND;
	a.below = INT(4);
	a.above = INT(5);
	a.op = (int)c->at[1];
	times_vector(c, &a, 6, 9, 11);
}
FOUR(gbmv_v2, "ennnnapnpnapn", gbmv, 0)

static void symv(const struct call *c) /* uplo, n, alpha, A, ld, x, … */
{
	struct stored a = stored_half(c, 4, 1, INT(2), (enum shape)c->variant, WHOLE, 0);

	times_vector(c, &a, 3, 6, 8);
}
FOUR(symv_v2, "enapnpnapn", symv, SYMMETRIC)
PAIRS(hemv_v2, "enapnpnapn", symv, HERMITIAN)

static void sbmv(const struct call *c) /* uplo, n, k, alpha, A, ld, x, … */
{
	struct stored a = stored_half(c, 5, 1, INT(2), (enum shape)c->variant, BAND, INT(3));

	times_vector(c, &a, 4, 7, 9);
}
REALS(sbmv_v2, "ennapnpnapn", sbmv, SYMMETRIC)
PAIRS(hbmv_v2, "ennapnpnapn", sbmv, HERMITIAN)

static void spmv(const struct call *c) /* uplo, n, alpha, AP, x, … */
{
	struct stored a = stored_half(c, 4, 1, INT(2), (enum shape)c->variant, PACKED, 0);

	times_vector(c, &a, 3, 5, 7);
}
REALS(spmv_v2, "enappnapn", spmv, SYMMETRIC)
PAIRS(hpmv_v2, "enappnapn", spmv, HERMITIAN)

static struct stored triangle(const struct call *c, int k, int uplo, int64_t n,
			      enum storage storage, int64_t diagonals)
{
	struct stored a = stored_half(c, k, uplo, n, TRIANGLE, storage, diagonals);

	a.op = (int)c->at[uplo + 1];
	a.unit = c->at[uplo + 2] == 1;
	return a;
}

/* op(A) is upper: it is stored so, or its transpose is. */
bool stored_is_upper(const struct stored *a) { return a->upper == (a->op == OP_N); }

/* In place: A x, or the solution of A y = x. */
enum { TIMES, SOLVE };
static void triangle_and_vector(const struct call *c, const struct stored *a, int x)
{
	struct dense left = dense_of(a), product = dense_new(left.rows, 1);
	struct stored at = vector(c, x, left.rows);
	struct dense v = dense_of(&at);

	dense_add(&product, 1, &left, &v, false, false);
	if (c->variant == SOLVE)
		dense_solve(&left, stored_is_upper(a), &v);
	store_vector(&at, c->variant == SOLVE ? &v : &product);
	dense_drop(&left);
	dense_drop(&product);
	dense_drop(&v);
}

static void trv(const struct call *c)
{
	struct stored a = triangle(c, 5, 1, INT(4), WHOLE, 0);

	triangle_and_vector(c, &a, 7);
}
FOUR(trmv_v2, "eeenpnpn", trv, TIMES)
FOUR(trsv_v2, "eeenpnpn", trv, SOLVE)

static void tbv(const struct call *c)
{
	struct stored a = triangle(c, 6, 1, INT(4), BAND, INT(5));

	triangle_and_vector(c, &a, 8);
}
FOUR(tbmv_v2, "eeennpnpn", tbv, TIMES)
FOUR(tbsv_v2, "eeennpnpn", tbv, SOLVE)

static void tpv(const struct call *c)
{
	struct stored a = triangle(c, 5, 1, INT(4), PACKED, 0);

	triangle_and_vector(c, &a, 6);
}
FOUR(tpmv_v2, "eeenppn", tpv, TIMES)
FOUR(tpsv_v2, "eeenppn", tpv, SOLVE)

static void ger(const struct call *c)
{
	struct stored x = vector(c, 4, INT(1)), y = vector(c, 6, INT(2));
	struct stored a = stored_matrix(c, 8, INT(1), INT(2));
	struct dense left = dense_of(&x), right = dense_of(&y), sum = dense_of(&a);

	dense_add(&sum, factor_of(c, 3), &left, &right, true, c->variant);
	dense_store(&a, &sum);
	dense_drop(&left);
	dense_drop(&right);
	dense_drop(&sum);
}
REALS(ger_v2, "nnapnpnpn", ger, false)
PAIRS(geru_v2, "nnapnpnpn", ger, false)
PAIRS(gerc_v2, "nnapnpnpn", ger, true)

/* Adds alpha * X * Y', and, of two, the product the other way round. */
static void update(const struct stored *a, number alpha, number beta, const struct dense *x,
		   const struct dense *y, bool twice)
{
	bool hermitian = a->shape == HERMITIAN;
	struct dense sum = scaled(a, beta);

	dense_add(&sum, alpha, x, y, true, hermitian);
	if (twice)
		dense_add(&sum, hermitian ? conj(alpha) : alpha, y, x, true, hermitian);
	for (int64_t i = 0; hermitian && i < a->rows; i++)
		*in(&sum, i, i) = creal(*in(&sum, i, i));
	dense_store(a, &sum);
	dense_drop(&sum);
}

/* uplo, n, alpha, x, (y,) A: the variant is the shape; of updates by two vectors, and of packed
 * matrices it has a further bit. */
enum { TWO = 16, IN_PACK = 32, SHAPE = 15 };
static void syr(const struct call *c)
{
	bool two = c->variant & TWO;
	struct stored a = stored_half(c, two ? 8 : 6, 1, INT(2), (enum shape)(c->variant & SHAPE),
				      c->variant & IN_PACK ? PACKED : WHOLE, 0);
	struct stored x = vector(c, 4, INT(2)), y = vector(c, two ? 6 : 4, INT(2));
	struct dense left = dense_of(&x), right = dense_of(&y);

	update(&a, factor_of(c, 3), 1, &left, &right, two);
	dense_drop(&left);
	dense_drop(&right);
}
FOUR(syr_v2, "enapnpn", syr, SYMMETRIC)
PAIRS(her_v2, "enrpnpn", syr, HERMITIAN)
REALS(spr_v2, "enapnp", syr, SYMMETRIC | IN_PACK)
PAIRS(hpr_v2, "enrpnp", syr, HERMITIAN | IN_PACK)
FOUR(syr2_v2, "enapnpnpn", syr, SYMMETRIC | TWO)
PAIRS(her2_v2, "enapnpnpn", syr, HERMITIAN | TWO)
REALS(spr2_v2, "enapnpnp", syr, SYMMETRIC | TWO | IN_PACK)
PAIRS(hpr2_v2, "enapnpnp", syr, HERMITIAN | TWO | IN_PACK)

/* ---- of matrices ---- */

static void multiply(const struct stored *to, number alpha, const struct stored *a,
		     const struct stored *b, number beta)
{
	struct dense left = dense_of(a), right = dense_of(b), sum = scaled(to, beta);

	dense_add(&sum, alpha, &left, &right, false, false);
	dense_store(to, &sum);
	dense_drop(&left);
	dense_drop(&right);
	dense_drop(&sum);
}

/* opa, opb, m, n, k, alpha, A, B, beta, C, with lists or steps. */
void fake_gemm(const struct call *all)
{
	static const int places[][4] = {{7, 9, 12}, {7, 9, 12}, {7, 10, 14}};
	static const int counts[] = {0, 14, 17};
	const int *at = places[all->variant];
	int64_t count = all->variant ? whole_of(all, counts[all->variant]) : 1;

	for (int64_t i = 0; i < count; i++) {
		struct call one = fake_product_of(all, i, (enum fake_batch)all->variant, at);
		const struct call *c = &one;
		struct stored a = operand(c, at[0], (int)c->at[1], INT(3), INT(5));
		struct stored b = operand(c, at[1], (int)c->at[2], INT(5), INT(4));
		struct stored d = stored_matrix(c, at[2], INT(3), INT(4));

		multiply(&d, factor_of(c, 6), &a, &b, factor_of(c, at[2] - 1));
	}
}
PAIRS(gemm_v2, "eennnapnpnapn", fake_gemm, FAKE_ONE)
PAIRS(gemm3m, "eennnapnpnapn", fake_gemm, FAKE_ONE)
PAIRS(gemmBatched, "eennnapnpnapnn", fake_gemm, FAKE_LISTED)
PAIRS(gemmStridedBatched, "eennnapnlpnlapnln", fake_gemm, FAKE_STRIDED)

static void symm(const struct call *c) /* side, uplo, m, n, alpha, A, B, beta, C */
{
	bool right = c->at[1] == RIGHT;
	struct stored a = stored_half(c, 6, 2, right ? INT(4) : INT(3), (enum shape)c->variant,
				      WHOLE, 0);
	struct stored b = stored_matrix(c, 8, INT(3), INT(4)),
		      d = stored_matrix(c, 11, INT(3), INT(4));

	multiply(&d, factor_of(c, 5), right ? &b : &a, right ? &a : &b, factor_of(c, 10));
}
FOUR(symm_v2, "eennapnpnapn", symm, SYMMETRIC)
PAIRS(hemm_v2, "eennapnpnapn", symm, HERMITIAN)

enum { OTHER = 32 };                   /* syrkx: a second factor, but one product */
static void syrk(const struct call *c) /* uplo, op, n, k, alpha, A, (B,) beta, C */
{
	bool both = c->variant & (TWO | OTHER);
	struct stored a = operand(c, 6, (int)c->at[2], INT(3), INT(4));
	struct stored b = operand(c, both ? 8 : 6, (int)c->at[2], INT(3), INT(4));
	struct stored d = stored_half(c, both ? 11 : 9, 1, INT(3), (enum shape)(c->variant & SHAPE),
				      WHOLE, 0);
	struct dense left = dense_of(&a), right = dense_of(&b);

	update(&d, factor_of(c, 5), factor_of(c, both ? 10 : 8), &left, &right, c->variant & TWO);
	dense_drop(&left);
	dense_drop(&right);
}
FOUR(syrk_v2, "eennapnapn", syrk, SYMMETRIC)
PAIRS(herk_v2, "eennrpnrpn", syrk, HERMITIAN)
FOUR(syr2k_v2, "eennapnpnapn", syrk, SYMMETRIC | TWO)
PAIRS(her2k_v2, "eennapnpnrpn", syrk, HERMITIAN | TWO)
FOUR(syrkx, "eennapnpnapn", syrk, SYMMETRIC | OTHER)
PAIRS(herkx, "eennapnpnrpn", syrk, HERMITIAN | OTHER)

static void trmm(const struct call *c) /* side, uplo, op, diag, m, n, alpha, A, B, C */
{
	bool right = c->at[1] == RIGHT;
	struct stored a = triangle(c, 8, 2, right ? INT(6) : INT(5), WHOLE, 0);
	struct stored b = stored_matrix(c, 10, INT(5), INT(6)),
		      d = stored_matrix(c, 12, INT(5), INT(6));

	multiply(&d, factor_of(c, 7), right ? &b : &a, right ? &a : &b, 0);
}
FOUR(trmm_v2, "eeeennapnpnpn", trmm, 0)

static void solve_matrix(const struct stored *a, const struct stored *b, number alpha, bool right)
{
	struct dense left = dense_of(a), x = scaled(b, alpha), turned;

	if (right) { /* X A = B: A' X' = B' */
		struct dense other = turned_of(&left);

		turned = turned_of(&x);
		dense_solve(&other, !stored_is_upper(a), &turned);
		dense_drop(&other);
		dense_drop(&x);
		x = turned_of(&turned);
		dense_drop(&turned);
	} else {
		dense_solve(&left, stored_is_upper(a), &x);
	}
	dense_store(b, &x);
	dense_drop(&left);
	dense_drop(&x);
}

static void trsm(const struct call *all)
{
	int64_t count = all->variant ? whole_of(all, 12) : 1;

	for (int64_t i = 0; i < count; i++) {
		struct call one = fake_product_of(all, i, (enum fake_batch)all->variant,
						  (int[]){8, 10, 0});
		const struct call *c = &one;
		bool right = c->at[1] == RIGHT;
		struct stored a = triangle(c, 8, 2, right ? INT(6) : INT(5), WHOLE, 0);
		struct stored b = stored_matrix(c, 10, INT(5), INT(6));

		solve_matrix(&a, &b, factor_of(c, 7), right);
	}
}
FOUR(trsm_v2, "eeeennapnpn", trsm, FAKE_ONE)
FOUR(trsmBatched, "eeeennapnpnn", trsm, FAKE_LISTED)

static void geam(const struct call *c) /* opa, opb, m, n, alpha, A, beta, B, C */
{
	struct stored a = operand(c, 6, (int)c->at[1], INT(3), INT(4));
	struct stored b = operand(c, 9, (int)c->at[2], INT(3), INT(4));
	struct stored d = stored_matrix(c, 11, INT(3), INT(4));
	struct dense left = scaled(&a, factor_of(c, 5)), right = scaled(&b, factor_of(c, 8));
	struct dense sum = dense_new(d.rows, d.columns);

	for (int64_t i = 0; i < d.rows * d.columns; i++)
		sum.of[i] = left.of[i] + right.of[i];
	dense_store(&d, &sum);
	dense_drop(&left);
	dense_drop(&right);
	dense_drop(&sum);
}
FOUR(geam, "eennapnapnpn", geam, 0)

static void dgmm(const struct call *c) /* side, m, n, A, x, C */
{
	bool right = c->at[1] == RIGHT;
	struct stored a = stored_matrix(c, 4, INT(2), INT(3)),
		      d = stored_matrix(c, 8, INT(2), INT(3));
	struct stored x = vector(c, 6, right ? INT(3) : INT(2));
	struct dense m = dense_of(&a), v = dense_of(&x);

	for (int64_t j = 0; j < m.columns; j++)
		for (int64_t i = 0; i < m.rows; i++)
			*in(&m, i, j) *= v.of[right ? j : i];
	dense_store(&d, &m);
	dense_drop(&m);
	dense_drop(&v);
}
FOUR(dgmm, "ennpnpnpn", dgmm, 0)
