/* gemm.c: matrix products of libraries: D = step(alpha * A * B + beta * C + bias), and what
 * training needs in addition: the step's input, and sums for a bias's gradient.
 *
 * The order of operations is fixed. An element's sum runs over k in ascending order, one fused
 * multiply-add each, from zero, in the type of the sum (double for double, int32 for int8 into
 * int32, else float); then alpha * sum, fused beta * C, + bias, the step, and one rounding to D's
 * type. The bits therefore depend only on the operands: not on tiles, workers or the machine. As in
 * BLAS, A and B are not read if alpha is 0, and C is not read if beta is 0. Sums of rows or columns
 * are also in ascending order, in the type of the sum; sums of D's rows use elements before that
 * rounding.
 *
 * Work is divided into tiles of D, which any worker may compute. A tile packs panels of A and B
 * into the worker's own memory, in the type of the sum, and multiplies them. If D's rows are
 * summed, one worker computes all tiles of these rows, from left to right.
 *
 * Runs in a fault scope (fault.c): it takes no locks and uses no memory but the worker's own. The
 * call comes from a program: only matrix_at turns its values into addresses.
 */
#include <stdlib.h>
#include <string.h>

#include "gelu.h"
#include "number.h"
#include "soft.h"

#pragma GCC optimize("O3")
#if defined(__x86_64__)
#pragma GCC target("avx2,fma") /* part of x86-64-v3, which compiled kernels also need */
#endif

#define TILE_M 128u
#define TILE_N 96u
#define DEPTH 256u /* of a packed panel */
#define COLUMNS 6u /* of D, in one pass of the innermost loop */
#define VECTOR_BYTES 32u
#define SLICE (1ull << 29) /* multiplications until other streams get a turn */
#define SCRATCH_BYTES ((TILE_M * DEPTH + TILE_N * DEPTH + TILE_M * TILE_N) * sizeof(double))

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_8I = 3, R_32I = 10, R_16BF = 14 }; /* cudaDataType */
enum sum { SUM_NONE, SUM_FLOAT, SUM_DOUBLE, SUM_INT };

static uint32_t type_bytes(uint8_t type)
{
	switch (type) {
	case R_8I: return 1;
	case R_16F:
	case R_16BF: return 2;
	case R_32F:
	case R_32I: return 4;
	case R_64F: return 8;
	default: return 0;
	}
}

static bool is_float(uint8_t type) { return type == R_32F || type == R_16F || type == R_16BF; }

static enum sum sum_of(const struct rf_gemm *g)
{
	if (g->type_ab == R_64F && g->type_cd == R_64F)
		return SUM_DOUBLE;
	if (g->type_ab == R_8I && g->type_cd == R_32I)
		return SUM_INT;
	return (is_float(g->type_ab) || g->type_ab == R_8I) && is_float(g->type_cd) ? SUM_FLOAT
										    : SUM_NONE;
}

#define STEPS (RF_GEMM_RELU | RF_GEMM_GELU | RF_GEMM_DRELU | RF_GEMM_DGELU)
#define WITH_AUX (RF_GEMM_KEEP | RF_GEMM_DRELU | RF_GEMM_DGELU)
#define WITH_BITS (RF_GEMM_RELU | RF_GEMM_DRELU)
#define SUMMED (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B)

/* True if the flags are compatible, and if each tile's bits fill whole bytes. */
static bool extras_good(const struct rf_gemm_call *call)
{
	uint32_t flags = call->g.flags, sums = flags & SUMMED;
	const struct rf_matrix *x = &call->aux;

	if (flags & (WITH_AUX | SUMMED) && flags & RF_GEMM_POINTERS)
		return false;
	if (flags & RF_GEMM_KEEP && !(flags & (RF_GEMM_RELU | RF_GEMM_GELU)))
		return false;
	if (sums && (!call->g.bias || sums & (sums - 1) ||
		     (!(sums & RF_GEMM_SUM_D) && call->g.type_ab == R_8I)))
		return false;
	if (flags & WITH_AUX && (x->row != 1 || x->col < call->g.m ||
				 (flags & WITH_BITS && (x->col % TILE_M || x->batch % TILE_M))))
		return false;
	flags &= STEPS;
	return !(flags & (flags - 1));
}

static uint64_t tiles_across(const struct rf_gemm *g)
{
	return g->flags & RF_GEMM_SUM_D ? 1 : (g->n + TILE_N - 1) / TILE_N;
}

/* The number of tiles; 0: not supported. */
uint64_t soft_gemm_tiles(const struct rf_gemm_call *call)
{
	const struct rf_gemm *g = &call->g;
	uint64_t tiles = (g->m + TILE_M - 1) / TILE_M, columns = tiles_across(g);
	bool steps = g->bias || g->flags & (STEPS | WITH_AUX | SUMMED);
	enum sum sum = sum_of(g);

	if (sum == SUM_NONE || !type_bytes(g->type_scale) || g->type_scale == R_8I ||
	    (sum == SUM_INT) != (g->type_scale == R_32I) || (sum == SUM_INT && steps) ||
	    (sum == SUM_DOUBLE) != (g->type_scale == R_64F) || !extras_good(call))
		return 0;
	if (g->bias && !(sum == SUM_DOUBLE ? g->type_bias == R_64F : is_float(g->type_bias)))
		return 0;
	if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX ||
	    __builtin_mul_overflow(tiles, columns, &tiles) ||
	    __builtin_mul_overflow(tiles, g->count, &tiles))
		return 0;
	return tiles;
}

/* The number of tiles computed at a time, so that a long product does not delay other streams. */
uint64_t soft_gemm_slice(const struct rf_gemm *g)
{
	bool whole = g->flags & RF_GEMM_SUM_D; /* whole rows */
	uint64_t width = whole && g->n > TILE_N ? g->n : TILE_N, least = whole ? 1 : 8;
	uint64_t tiles = SLICE / (TILE_M * width) / (g->k ? g->k : 1);

	return tiles > least ? tiles : least;
}

bool soft_gemm_ready(struct soft_scratch *scratch)
{
	if (!scratch->gemm)
		scratch->gemm = aligned_alloc(64, SCRATCH_BYTES);
	return scratch->gemm != NULL;
}

/* ---- addresses --------------------------------------------------------------------------- */

struct tile_job { /* the work of one tile */
	const struct rf_gemm *call;
	const struct rf_matrix *aux;
	struct hal_space *space;
	uint64_t batch;
	uint32_t i, j, rows, columns; /* of D */
	uint32_t end;                 /* the column after its last one */
};

/* The host address of `bytes` at a device address, which must be a multiple of `align`. */
static uint8_t *window_at(const struct hal_space *space, uint64_t addr, uint64_t bytes,
			  uint32_t align)
{
	uint64_t offset = addr - RF_DEV_BASE;

	if (offset >= RF_WINDOW_BYTES || bytes > RF_WINDOW_BYTES - offset || addr % align)
		soft_abort(SOFT_ILLEGAL_ADDRESS);
	return space->base + offset;
}

/* The b-th address of a list, or a base address plus b strides. */
static uint64_t batch_addr(const struct tile_job *b, uint64_t addr, uint64_t stride, uint32_t size,
			   bool listed)
{
	uint64_t bytes;

	if (listed) {
		if (__builtin_mul_overflow(b->batch, sizeof addr, &bytes) ||
		    __builtin_add_overflow(addr, bytes, &addr))
			soft_abort(SOFT_ILLEGAL_ADDRESS);
		memcpy(&addr, window_at(b->space, addr, sizeof addr, sizeof addr), sizeof addr);
		return addr;
	}
	if (__builtin_mul_overflow(b->batch, stride, &bytes) ||
	    __builtin_mul_overflow(bytes, (uint64_t)size, &bytes) ||
	    __builtin_add_overflow(addr, bytes, &addr))
		soft_abort(SOFT_ILLEGAL_ADDRESS);
	return addr;
}

/* The host address of this product's matrix; all of it is in the window. */
static uint8_t *matrix_at(const struct tile_job *b, const struct rf_matrix *x, uint64_t rows,
			  uint64_t columns, uint8_t type)
{
	uint32_t size = type_bytes(type);
	uint64_t addr = batch_addr(b, x->addr, x->batch, size, b->call->flags & RF_GEMM_POINTERS);
	uint64_t last, across;

	if (__builtin_mul_overflow(rows - 1, x->row, &last) ||
	    __builtin_mul_overflow(columns - 1, x->col, &across) ||
	    __builtin_add_overflow(last, across, &last) || last >= RF_WINDOW_BYTES)
		soft_abort(SOFT_ILLEGAL_ADDRESS);
	return window_at(b->space, addr, (last + 1) * size, size);
}

/* ---- numbers ----------------------------------------------------------------------------- */

static double load_number(const void *at, uint8_t type)
{
	uint16_t half;
	float single;
	double wide;

	switch (type) {
	case R_64F: memcpy(&wide, at, 8); return wide;
	case R_32F: memcpy(&single, at, 4); return single;
	case R_16F: memcpy(&half, at, 2); return from_half(half);
	default: memcpy(&half, at, 2); return from_bfloat16(half);
	}
}

static void store_number(void *at, double x, uint8_t type)
{
	float single = (float)x;
	uint16_t half;

	switch (type) {
	case R_64F: memcpy(at, &x, 8); break;
	case R_32F: memcpy(at, &single, 4); break;
	case R_16F:
		half = to_half(single);
		memcpy(at, &half, 2);
		break;
	default: half = to_bfloat16(single); memcpy(at, &half, 2);
	}
}

/* Alpha or beta: exact as a double, also for integers. */
static double load_scalar(const struct tile_job *b, const uint64_t *value)
{
	uint8_t type = b->call->type_scale;
	const void *at = value;
	int32_t integer;

	if (b->call->flags & RF_GEMM_SCALARS)
		at = window_at(b->space, *value, type_bytes(type), type_bytes(type));
	if (type != R_32I)
		return load_number(at, type);
	memcpy(&integer, at, 4);
	return integer;
}

static double apply_activation(double x, uint32_t flags)
{
	if (flags & RF_GEMM_GELU)
		return gelu(x);
	return flags & RF_GEMM_RELU && x <= 0.0 ? 0.0 : x; /* a NaN remains one */
}

/* ---- packing: `width` rows side by side for each p, missing ones zero -------------------- */

#define SAME(x) (x)
#define PACK(name, type, real, from)                                                               \
	static void pack_##name(real *to, const void *at, uint64_t row, uint64_t col,              \
				uint32_t rows, uint32_t depth, uint32_t width)                     \
	{                                                                                          \
		const type *x = at;                                                                \
		for (uint32_t first = 0; first < rows; first += width, x += width * row) {         \
			uint32_t have = rows - first < width ? rows - first : width;               \
			for (uint32_t p = 0; p < depth; p++, to += width) {                        \
				const type *line = x + p * col;                                    \
				for (uint32_t i = 0; i < have; i++)                                \
					to[i] = from(line[i * row]);                               \
				for (uint32_t i = have; i < width; i++)                            \
					to[i] = 0;                                                 \
			}                                                                          \
		}                                                                                  \
	}
PACK(float, float, float, SAME)
PACK(half, uint16_t, float, from_half)
PACK(bfloat16, uint16_t, float, from_bfloat16)
PACK(char, int8_t, float, (float))
PACK(double, double, double, SAME)
PACK(int, int8_t, uint32_t, (uint32_t)(int32_t))

static void pack_single(float *to, const void *at, uint64_t row, uint64_t col, uint32_t rows,
			uint32_t depth, uint32_t width, uint8_t type)
{
	switch (type) {
	case R_32F: pack_float(to, at, row, col, rows, depth, width); break;
	case R_16F: pack_half(to, at, row, col, rows, depth, width); break;
	case R_16BF: pack_bfloat16(to, at, row, col, rows, depth, width); break;
	default: pack_char(to, at, row, col, rows, depth, width); break;
	}
}
#define PACK_SINGLE(to, at, x, rows, depth, width, type)                                           \
	pack_single(to, at, (x)->row, (x)->col, rows, depth, width, type)
#define PACK_DOUBLE(to, at, x, rows, depth, width, type)                                           \
	pack_double(to, at, (x)->row, (x)->col, rows, depth, width)
#define PACK_INT(to, at, x, rows, depth, width, type)                                              \
	pack_int(to, at, (x)->row, (x)->col, rows, depth, width)

/* ---- sums -------------------------------------------------------------------------------- */

/* Two vectors of rows by COLUMNS columns stay in registers over the depth. Contraction makes the
 * fused multiply-adds that the order above requires; integers wrap. */
#define SUMS(name, real, PACK)                                                                     \
	typedef real vector_##name __attribute__((vector_size(VECTOR_BYTES)));                     \
	enum { rows_##name = 2 * VECTOR_BYTES / sizeof(real) };                                    \
	__attribute__((optimize("O3", "fp-contract=fast"))) static void multiply_##name(           \
		const real *a, const real *b, real *sums, uint32_t depth)                          \
	{                                                                                          \
		const vector_##name *x = (const void *)a;                                          \
		vector_##name *totals = (void *)sums, sum[COLUMNS][2];                             \
		for (uint32_t j = 0; j < COLUMNS; j++)                                             \
			sum[j][0] = totals[2 * j], sum[j][1] = totals[2 * j + 1];                  \
		for (uint32_t p = 0; p < depth; p++, x += 2, b += COLUMNS)                         \
			for (uint32_t j = 0; j < COLUMNS; j++) {                                   \
				sum[j][0] += x[0] * b[j];                                          \
				sum[j][1] += x[1] * b[j];                                          \
			}                                                                          \
		for (uint32_t j = 0; j < COLUMNS; j++)                                             \
			totals[2 * j] = sum[j][0], totals[2 * j + 1] = sum[j][1];                  \
	}                                                                                          \
	/* A * B of a tile: panels of rows_ by COLUMNS, columns of panels one after another. */    \
	static void sums_##name(const struct tile_job *t, real *a, real *b, real *sums)            \
	{                                                                                          \
		const struct rf_gemm *g = t->call;                                                 \
		uint32_t across = (t->rows + rows_##name - 1) / rows_##name;                       \
		uint32_t size = type_bytes(g->type_ab);                                            \
		const uint8_t *x = matrix_at(t, &g->a, g->m, g->k, g->type_ab);                    \
		const uint8_t *y = matrix_at(t, &g->b, g->k, g->n, g->type_ab);                    \
		struct rf_matrix turned = {.row = g->b.col, .col = g->b.row};                      \
		for (uint64_t p = 0; p < g->k; p += DEPTH) {                                       \
			uint32_t depth = g->k - p < DEPTH ? (uint32_t)(g->k - p) : DEPTH;          \
			PACK(a, x + (t->i * g->a.row + p * g->a.col) * size, &g->a, t->rows,       \
			     depth, rows_##name, g->type_ab);                                      \
			PACK(b, y + (p * g->b.row + t->j * g->b.col) * size, &turned, t->columns,  \
			     depth, COLUMNS, g->type_ab);                                          \
			for (uint32_t j = 0; j * COLUMNS < t->columns; j++)                        \
				for (uint32_t i = 0; i < across; i++)                              \
					multiply_##name(a + i * rows_##name * depth,               \
							b + j * COLUMNS * depth,                   \
							sums + (j * across + i) * rows_##name *    \
									COLUMNS,                   \
							depth);                                    \
		}                                                                                  \
	}                                                                                          \
	/* Column j of a tile: its element i is at (i / rows_) * rows_ * COLUMNS + i % rows_. */   \
	static inline real *column_##name(const struct tile_job *t, real *sums, uint32_t j)        \
	{                                                                                          \
		uint32_t across = (t->rows + rows_##name - 1) / rows_##name;                       \
		return sums + (j / COLUMNS * across * COLUMNS + j % COLUMNS) * rows_##name;        \
	}                                                                                          \
	static inline uint32_t place_##name(uint32_t i)                                            \
	{                                                                                          \
		return i / rows_##name * rows_##name * COLUMNS + i % rows_##name;                  \
	}
SUMS(single, float, PACK_SINGLE)
SUMS(double, double, PACK_DOUBLE)
SUMS(int, uint32_t, PACK_INT)

/* ---- from a sum to D --------------------------------------------------------------------- */

struct finish {
	double alpha, beta;
	const uint8_t *c, *bias; /* or NULL */
	uint8_t *d, *aux;        /* aux: or NULL */
	double *sums;            /* of the rows of D, or NULL */
};

/* Bits are addressed as a matrix of bytes. */
static uint8_t *aux_at(const struct tile_job *t)
{
	const struct rf_gemm *g = t->call;
	const struct rf_matrix *x = t->aux;
	struct rf_matrix bytes = {x->addr, 1, x->col / 8, x->batch / 8};

	return g->flags & WITH_BITS ? matrix_at(t, &bytes, (g->m + 7) / 8, g->n, R_8I)
				    : matrix_at(t, x, g->m, g->n, g->type_cd);
}

/* The address of the bias, or of the sums stored there. */
static uint8_t *bias_at(const struct tile_job *t)
{
	const struct rf_gemm *g = t->call;
	uint32_t size = type_bytes(g->type_bias);
	uint64_t length = g->flags & RF_GEMM_SUM_B ? g->n : g->m;

	return window_at(t->space, batch_addr(t, g->bias, g->bias_batch, size, false),
			 length * size, size);
}

static struct finish finish_of(const struct tile_job *t, double alpha, double beta)
{
	const struct rf_gemm *g = t->call;
	struct finish f = {.alpha = alpha, .beta = beta};

	f.d = matrix_at(t, &g->d, g->m, g->n, g->type_cd);
	if (beta != 0.0)
		f.c = matrix_at(t, &g->c, g->m, g->n, g->type_cd);
	if (g->bias && !(g->flags & SUMMED))
		f.bias = bias_at(t);
	if (g->flags & WITH_AUX)
		f.aux = aux_at(t);
	return f;
}

static inline const uint8_t *element_at(const uint8_t *base, const struct rf_matrix *x, uint64_t i,
					uint64_t j, uint32_t size)
{
	return base + (i * x->row + j * x->col) * size;
}

/* Applies the step to element (i, j) of D; reads or writes its `aux`. */
static double step_at(const struct tile_job *t, const struct finish *f, double x, uint64_t i,
		      uint64_t j)
{
	uint32_t flags = t->call->flags, size = type_bytes(t->call->type_cd);

	if (!f->aux)
		return apply_activation(x, flags);
	uint64_t place = j * t->aux->col + i;
	uint8_t *bits = f->aux + place / 8, *at = f->aux + place * size;
	uint8_t bit = (uint8_t)(1u << place % 8);

	if (flags & RF_GEMM_DRELU)
		return *bits & bit ? x : 0.0;
	if (flags & RF_GEMM_DGELU)
		return x * gelu_slope(load_number(at, t->call->type_cd));
	if (flags & RF_GEMM_GELU)
		store_number(at, x, t->call->type_cd);
	else
		*bits = (uint8_t)(x <= 0.0 ? *bits & ~bit : *bits | bit);
	return apply_activation(x, flags);
}

static float finish_single(const struct tile_job *t, const struct finish *f, float sum, uint64_t i,
			   uint64_t j)
{
	const struct rf_gemm *g = t->call;
	uint32_t size = type_bytes(g->type_cd);
	float x = (float)f->alpha * sum;

	if (f->c)
		x = __builtin_fmaf(
			(float)f->beta,
			(float)load_number(element_at(f->c, &g->c, i, j, size), g->type_cd), x);
	if (f->bias)
		x += (float)load_number(f->bias + i * type_bytes(g->type_bias), g->type_bias);
	return canonical_f((float)step_at(t, f, x, i, j));
}

static void store_single(const struct tile_job *t, const struct finish *f, float *sums)
{
	const struct rf_gemm *g = t->call;
	uint32_t size = type_bytes(g->type_cd);

	for (uint32_t j = 0; j < t->columns; j++) {
		const float *column = column_single(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			float x = finish_single(t, f, column[place_single(i)], row, col);

			store_number((uint8_t *)element_at(f->d, &g->d, row, col, size), x,
				     g->type_cd);
			if (f->sums)
				f->sums[i] = (float)f->sums[i] + x;
		}
	}
}

static void store_double(const struct tile_job *t, const struct finish *f, double *sums)
{
	const struct rf_gemm *g = t->call;

	for (uint32_t j = 0; j < t->columns; j++) {
		const double *column = column_double(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			double x = f->alpha * column[place_double(i)];

			if (f->c)
				x = __builtin_fma(
					f->beta,
					load_number(element_at(f->c, &g->c, row, col, 8), R_64F),
					x);
			if (f->bias)
				x += load_number(f->bias + row * 8, R_64F);
			x = canonical_d(step_at(t, f, x, row, col));
			memcpy((uint8_t *)element_at(f->d, &g->d, row, col, 8), &x, 8);
			if (f->sums)
				f->sums[i] += x;
		}
	}
}

static void store_int(const struct tile_job *t, const struct finish *f, uint32_t *sums)
{
	const struct rf_gemm *g = t->call;
	uint32_t alpha = (uint32_t)(int32_t)f->alpha, beta = (uint32_t)(int32_t)f->beta, c;

	for (uint32_t j = 0; j < t->columns; j++) {
		const uint32_t *column = column_int(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			uint32_t x = alpha * column[place_int(i)];

			if (f->c) {
				memcpy(&c, element_at(f->c, &g->c, row, col, 4), 4);
				x += beta * c;
			}
			memcpy((uint8_t *)element_at(f->d, &g->d, row, col, 4), &x, 4);
		}
	}
}

/* ---- sums of rows or columns --------------------------------------------------------------- */

static void store_sums(const struct tile_job *t, const double *sums, uint32_t first, uint32_t count)
{
	uint8_t *to = bias_at(t), type = t->call->type_bias;

	for (uint32_t i = 0; i < count; i++)
		store_number(to + (first + i) * (uint64_t)type_bytes(type),
			     type == R_64F ? canonical_d(sums[i]) : canonical_f((float)sums[i]),
			     type);
}

/* Sums a factor: the first tile of each row sums rows of A, the first tile of each column sums
 * columns of B. */
static void sum_factor(const struct tile_job *t)
{
	const struct rf_gemm *g = t->call;
	bool of_a = g->flags & RF_GEMM_SUM_A, wide = g->type_ab == R_64F;
	struct rf_matrix x = of_a ? g->a : g->b;
	uint32_t first = of_a ? t->i : t->j, count = of_a ? t->rows : t->columns;
	uint32_t size = type_bytes(g->type_ab);
	double sums[TILE_M] = {0};

	if (of_a ? t->j : t->i)
		return;
	if (!of_a)
		x = (struct rf_matrix){x.addr, x.col, x.row, x.batch};
	const uint8_t *from = g->k ? matrix_at(t, &x, of_a ? g->m : g->n, g->k, g->type_ab) : NULL;
	for (uint64_t p = 0; p < g->k; p++)
		for (uint32_t i = 0; i < count; i++) {
			double value = load_number(element_at(from, &x, first + i, p, size),
						   g->type_ab);

			sums[i] = wide ? sums[i] + value : (float)sums[i] + (float)value;
		}
	store_sums(t, sums, first, count);
}

/* ---- tiles -------------------------------------------------------------------------------- */

#define RUN(name, real)                                                                            \
	static void run_##name(struct tile_job *t, real *scratch)                                  \
	{                                                                                          \
		real *a = scratch, *b = a + TILE_M * DEPTH, *sums = b + TILE_N * DEPTH;            \
		double alpha = load_scalar(t, &t->call->alpha),                                    \
		       beta = load_scalar(t, &t->call->beta);                                      \
		struct finish finish = finish_of(t, alpha, beta);                                  \
		double rows[TILE_M] = {0};                                                         \
		finish.sums = t->call->flags & RF_GEMM_SUM_D ? rows : NULL;                        \
		for (; t->j < t->end; t->j += TILE_N) {                                            \
			t->columns = t->end - t->j < TILE_N ? t->end - t->j : TILE_N;              \
			memset(sums, 0, TILE_M * TILE_N * sizeof *sums);                           \
			if (alpha != 0.0 && t->call->k)                                            \
				sums_##name(t, a, b, sums);                                        \
			store_##name(t, &finish, sums);                                            \
		}                                                                                  \
		if (finish.sums)                                                                   \
			store_sums(t, rows, t->i, t->rows);                                        \
	}
RUN(single, float)
RUN(double, double)
RUN(int, uint32_t)

/* Tiles are numbered down D's columns first, then across, then by product. */
static struct tile_job tile_of(const struct hal_work *work, uint64_t number)
{
	const struct rf_gemm *g = &work->gemm.call->g;
	uint64_t down = (g->m + TILE_M - 1) / TILE_M, across = tiles_across(g);
	struct tile_job t = {.call = g,
			     .aux = &work->gemm.call->aux,
			     .space = work->gemm.space,
			     .batch = number / (down * across)};

	t.i = (uint32_t)(number % down * TILE_M);
	t.j = (uint32_t)(number / down % across * TILE_N);
	t.rows = g->m - t.i < TILE_M ? (uint32_t)(g->m - t.i) : TILE_M;
	t.end = across == 1 || g->n - t.j < TILE_N ? (uint32_t)g->n : t.j + TILE_N;
	t.columns = t.end - t.j < TILE_N ? t.end - t.j : TILE_N;
	return t;
}

void soft_gemm(struct soft_worker *worker, const struct hal_work *work)
{
	enum sum sum = sum_of(&work->gemm.call->g);
	bool factor = work->gemm.call->g.flags & (RF_GEMM_SUM_A | RF_GEMM_SUM_B);
	void *scratch = worker->scratch.gemm;
	uint64_t number;
	uint32_t count;

	while ((number = soft_next_blocks(worker, &count)) != SOFT_NO_BLOCK &&
	       !atomic_load(&work->gemm.space->error)) {
		struct tile_job t = tile_of(work, number);

		if (factor)
			sum_factor(&t);
		if (sum == SUM_DOUBLE)
			run_double(&t, scratch);
		else if (sum == SUM_INT)
			run_int(&t, scratch);
		else
			run_single(&t, scratch);
	}
}
