/* gemm.c: matrix products of libraries: D = step(alpha * A * B + beta * C + bias).
 *
 * The order of operations is fixed: an element's sum runs over k in ascending order, one fused
 * multiply-add each, from zero, in the type of the sum (double for double, int32 for int8 into
 * int32, else float); then alpha * sum, fused beta * C, + bias, the step, and one rounding to D's
 * type. So the bits depend on the operands alone: not on tiles, workers or the machine. As in BLAS,
 * A and B are not read where alpha is 0, and C is not read where beta is 0.
 *
 * Work is cut into tiles of D, which any worker may compute. A tile packs panels of A and B into
 * the worker's scratch memory, in the type of the sum, and multiplies those.
 *
 * Runs guarded (fault.c): no locks, no memory that is not the worker's scratch. The call comes from
 * a program: matrix_at alone makes addresses of what it says.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"
#include "soft.h"

#pragma GCC optimize("O3")
#if defined(__x86_64__)
#pragma GCC target("avx2,fma") /* of x86-64-v3, which compiled kernels need as well */
#endif

#define TILE_M 128u
#define TILE_N 96u
#define DEPTH 256u         /* of a packed panel */
#define COLUMNS 6u         /* of D that one pass of the innermost loop computes */
#define VECTOR_BYTES 32u
#define SLICE (1ull << 29) /* multiplications until another stream gets its turn */
#define SCRATCH_BYTES ((TILE_M * DEPTH + TILE_N * DEPTH + TILE_M * TILE_N) * sizeof(double))

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_8I = 3, R_32I = 10, R_16BF = 14 }; /* cudaDataType */
enum sum { SUM_NONE, SUM_FLOAT, SUM_DOUBLE, SUM_INT };

static uint32_t type_bytes(uint8_t type)
{
	switch (type) {
	case R_8I: return 1;
	case R_16F: case R_16BF: return 2;
	case R_32F: case R_32I: return 4;
	case R_64F: return 8;
	default: return 0;
	}
}

static bool floats(uint8_t type)
{
	return type == R_32F || type == R_16F || type == R_16BF;
}

static enum sum sum_of(const struct rf_gemm *g)
{
	if (g->type_ab == R_64F && g->type_cd == R_64F)
		return SUM_DOUBLE;
	if (g->type_ab == R_8I && g->type_cd == R_32I)
		return SUM_INT;
	return (floats(g->type_ab) || g->type_ab == R_8I) && floats(g->type_cd) ? SUM_FLOAT
										 : SUM_NONE;
}

/* The number of tiles; 0: this device cannot do it. */
uint64_t soft_gemm_tiles(const struct rf_gemm *g)
{
	uint64_t tiles = (g->m + TILE_M - 1) / TILE_M, columns = (g->n + TILE_N - 1) / TILE_N;
	bool steps = g->bias || g->flags & (RF_GEMM_RELU | RF_GEMM_GELU);
	enum sum sum = sum_of(g);

	if (sum == SUM_NONE || !type_bytes(g->type_scale) || g->type_scale == R_8I ||
	    (sum == SUM_INT) != (g->type_scale == R_32I) || (sum == SUM_INT && steps) ||
	    (sum == SUM_DOUBLE) != (g->type_scale == R_64F))
		return 0;
	if (g->bias && !(sum == SUM_DOUBLE ? g->type_bias == R_64F : floats(g->type_bias)))
		return 0;
	if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX ||
	    __builtin_mul_overflow(tiles, columns, &tiles) ||
	    __builtin_mul_overflow(tiles, g->count, &tiles))
		return 0;
	return tiles;
}

/* So many tiles at a time, so that a long product does not hold up other streams. */
uint64_t soft_gemm_slice(const struct rf_gemm *g)
{
	uint64_t tiles = SLICE / ((uint64_t)TILE_M * TILE_N * (g->k ? g->k : 1));

	return tiles > 8 ? tiles : 8;
}

bool soft_gemm_ready(struct soft_scratch *scratch)
{
	if (!scratch->gemm)
		scratch->gemm = aligned_alloc(64, SCRATCH_BYTES);
	return scratch->gemm != NULL;
}

/* ---- addresses --------------------------------------------------------------------------- */

struct block { /* what one tile is about */
	const struct rf_gemm *call;
	struct hal_space *space;
	uint64_t batch;
	uint32_t i, j, rows, columns; /* of D */
};

/* Host address of `bytes` at a device address, which must be a multiple of `align`. */
static uint8_t *window_at(const struct hal_space *space, uint64_t addr, uint64_t bytes,
			  uint32_t align)
{
	uint64_t offset = addr - RF_DEV_BASE;

	if (offset >= RF_WINDOW_BYTES || bytes > RF_WINDOW_BYTES - offset || addr % align)
		soft_leave(SOFT_ILLEGAL_ADDRESS);
	return space->base + offset;
}

/* The b-th address of a list, or the b-th step behind one address. */
static uint64_t batch_addr(const struct block *b, uint64_t addr, uint64_t stride, uint32_t size,
			   bool listed)
{
	uint64_t bytes;

	if (listed) {
		if (__builtin_mul_overflow(b->batch, sizeof addr, &bytes) ||
		    __builtin_add_overflow(addr, bytes, &addr))
			soft_leave(SOFT_ILLEGAL_ADDRESS);
		memcpy(&addr, window_at(b->space, addr, sizeof addr, sizeof addr), sizeof addr);
		return addr;
	}
	if (__builtin_mul_overflow(b->batch, stride, &bytes) ||
	    __builtin_mul_overflow(bytes, (uint64_t)size, &bytes) ||
	    __builtin_add_overflow(addr, bytes, &addr))
		soft_leave(SOFT_ILLEGAL_ADDRESS);
	return addr;
}

/* Where this product's matrix begins; all of it lies in the window. */
static uint8_t *matrix_at(const struct block *b, const struct rf_matrix *x, uint64_t rows,
			  uint64_t columns, uint8_t type)
{
	uint32_t size = type_bytes(type);
	uint64_t addr = batch_addr(b, x->addr, x->batch, size, b->call->flags & RF_GEMM_POINTERS);
	uint64_t last, across;

	if (__builtin_mul_overflow(rows - 1, x->row, &last) ||
	    __builtin_mul_overflow(columns - 1, x->col, &across) ||
	    __builtin_add_overflow(last, across, &last) || last >= RF_WINDOW_BYTES)
		soft_leave(SOFT_ILLEGAL_ADDRESS);
	return window_at(b->space, addr, (last + 1) * size, size);
}

/* ---- numbers ----------------------------------------------------------------------------- */

static double load(const void *at, uint8_t type)
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

/* Alpha or beta: exact as a double, also the integers. */
static double scalar(const struct block *b, const uint64_t *value)
{
	uint8_t type = b->call->type_scale;
	const void *at = value;
	int32_t integer;

	if (b->call->flags & RF_GEMM_SCALARS)
		at = window_at(b->space, *value, type_bytes(type), type_bytes(type));
	if (type != R_32I)
		return load(at, type);
	memcpy(&integer, at, 4);
	return integer;
}

/* e^x to the last bit or so, without the C library, whose bits depend on its version. */
static double exponential(double x)
{
	static const double inverse[] = { /* of factorials */
		1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
		1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
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
static double gelu(double x)
{
	double u = 0x1.9884533d43651p-1 * __builtin_fma(0.044715 * x * x, x, x);

	return x / (1.0 + exponential(-2.0 * u));
}

static double step(double x, uint32_t flags)
{
	if (flags & RF_GEMM_GELU)
		return gelu(x);
	return flags & RF_GEMM_RELU && x <= 0.0 ? 0.0 : x; /* a NaN stays one */
}

/* ---- packing: `width` rows side by side for each p, missing ones zero -------------------- */

#define SAME(x) (x)
#define PACK(name, type, real, from) \
	static void pack_##name(real *to, const void *at, uint64_t row, uint64_t col, \
				uint32_t rows, uint32_t depth, uint32_t width) \
	{ \
		const type *x = at; \
		for (uint32_t first = 0; first < rows; first += width, x += width * row) { \
			uint32_t have = rows - first < width ? rows - first : width; \
			for (uint32_t p = 0; p < depth; p++, to += width) { \
				const type *line = x + p * col; \
				for (uint32_t i = 0; i < have; i++) \
					to[i] = from(line[i * row]); \
				for (uint32_t i = have; i < width; i++) \
					to[i] = 0; \
			} \
		} \
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
#define PACK_SINGLE(to, at, x, rows, depth, width, type) \
	pack_single(to, at, (x)->row, (x)->col, rows, depth, width, type)
#define PACK_DOUBLE(to, at, x, rows, depth, width, type) \
	pack_double(to, at, (x)->row, (x)->col, rows, depth, width)
#define PACK_INT(to, at, x, rows, depth, width, type) \
	pack_int(to, at, (x)->row, (x)->col, rows, depth, width)

/* ---- sums -------------------------------------------------------------------------------- */

/* Two vectors of rows by COLUMNS columns stay in registers over the depth. Contraction makes the
 * fused multiply-adds that the promise above names; integers wrap. */
#define SUMS(name, real, PACK) \
	typedef real vector_##name __attribute__((vector_size(VECTOR_BYTES))); \
	enum { rows_##name = 2 * VECTOR_BYTES / sizeof(real) }; \
	__attribute__((optimize("O3", "fp-contract=fast"))) \
	static void multiply_##name(const real *a, const real *b, real *sums, uint32_t depth) \
	{ \
		const vector_##name *x = (const void *)a; \
		vector_##name *kept = (void *)sums, sum[COLUMNS][2]; \
		for (uint32_t j = 0; j < COLUMNS; j++) \
			sum[j][0] = kept[2 * j], sum[j][1] = kept[2 * j + 1]; \
		for (uint32_t p = 0; p < depth; p++, x += 2, b += COLUMNS) \
			for (uint32_t j = 0; j < COLUMNS; j++) { \
				sum[j][0] += x[0] * b[j]; \
				sum[j][1] += x[1] * b[j]; \
			} \
		for (uint32_t j = 0; j < COLUMNS; j++) \
			kept[2 * j] = sum[j][0], kept[2 * j + 1] = sum[j][1]; \
	} \
	/* A * B of a tile: panels of rows_ by COLUMNS, columns of panels one after another. */ \
	static void sums_##name(const struct block *t, real *a, real *b, real *sums) \
	{ \
		const struct rf_gemm *g = t->call; \
		uint32_t across = (t->rows + rows_##name - 1) / rows_##name; \
		uint32_t size = type_bytes(g->type_ab); \
		const uint8_t *x = matrix_at(t, &g->a, g->m, g->k, g->type_ab); \
		const uint8_t *y = matrix_at(t, &g->b, g->k, g->n, g->type_ab); \
		struct rf_matrix turned = {.row = g->b.col, .col = g->b.row}; \
		for (uint64_t p = 0; p < g->k; p += DEPTH) { \
			uint32_t depth = g->k - p < DEPTH ? (uint32_t)(g->k - p) : DEPTH; \
			PACK(a, x + (t->i * g->a.row + p * g->a.col) * size, &g->a, t->rows, \
			     depth, rows_##name, g->type_ab); \
			PACK(b, y + (p * g->b.row + t->j * g->b.col) * size, &turned, t->columns, \
			     depth, COLUMNS, g->type_ab); \
			for (uint32_t j = 0; j * COLUMNS < t->columns; j++) \
				for (uint32_t i = 0; i < across; i++) \
					multiply_##name(a + i * rows_##name * depth, \
							b + j * COLUMNS * depth, \
							sums + (j * across + i) * rows_##name * COLUMNS, \
							depth); \
		} \
	} \
	/* Column j of a tile: its element i is at (i / rows_) * rows_ * COLUMNS + i % rows_. */ \
	static inline real *column_##name(const struct block *t, real *sums, uint32_t j) \
	{ \
		uint32_t across = (t->rows + rows_##name - 1) / rows_##name; \
		return sums + (j / COLUMNS * across * COLUMNS + j % COLUMNS) * rows_##name; \
	} \
	static inline uint32_t place_##name(uint32_t i) \
	{ \
		return i / rows_##name * rows_##name * COLUMNS + i % rows_##name; \
	}
SUMS(single, float, PACK_SINGLE)
SUMS(double, double, PACK_DOUBLE)
SUMS(int, uint32_t, PACK_INT)

/* ---- what becomes of a sum ---------------------------------------------------------------- */

struct finish {
	double alpha, beta;
	const uint8_t *c, *bias; /* or NULL */
	uint8_t *d;
};

static struct finish finish_of(const struct block *t, double alpha, double beta)
{
	const struct rf_gemm *g = t->call;
	struct finish f = {.alpha = alpha, .beta = beta};
	uint32_t size = type_bytes(g->type_bias);

	f.d = matrix_at(t, &g->d, g->m, g->n, g->type_cd);
	if (beta != 0.0)
		f.c = matrix_at(t, &g->c, g->m, g->n, g->type_cd);
	if (g->bias)
		f.bias = window_at(t->space, batch_addr(t, g->bias, g->bias_batch, size, false),
				   g->m * size, size);
	return f;
}

static inline const uint8_t *element(const uint8_t *base, const struct rf_matrix *x, uint64_t i,
				     uint64_t j, uint32_t size)
{
	return base + (i * x->row + j * x->col) * size;
}

static float finish_single(const struct block *t, const struct finish *f, float sum, uint64_t i,
			   uint64_t j)
{
	const struct rf_gemm *g = t->call;
	uint32_t size = type_bytes(g->type_cd);
	float x = (float)f->alpha * sum;

	if (f->c)
		x = __builtin_fmaf((float)f->beta,
				   (float)load(element(f->c, &g->c, i, j, size), g->type_cd), x);
	if (f->bias)
		x += (float)load(f->bias + i * type_bytes(g->type_bias), g->type_bias);
	return canonical_f((float)step(x, g->flags));
}

static void store_single(const struct block *t, const struct finish *f, float *sums)
{
	const struct rf_gemm *g = t->call;
	uint32_t size = type_bytes(g->type_cd);

	for (uint32_t j = 0; j < t->columns; j++) {
		const float *column = column_single(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			float x = finish_single(t, f, column[place_single(i)], row, col);
			uint8_t *at = (uint8_t *)element(f->d, &g->d, row, col, size);
			uint16_t half = g->type_cd == R_16F ? to_half(x) : to_bfloat16(x);

			memcpy(at, size == 4 ? (void *)&x : (void *)&half, size);
		}
	}
}

static void store_double(const struct block *t, const struct finish *f, double *sums)
{
	const struct rf_gemm *g = t->call;

	for (uint32_t j = 0; j < t->columns; j++) {
		const double *column = column_double(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			double x = f->alpha * column[place_double(i)];

			if (f->c)
				x = __builtin_fma(f->beta, load(element(f->c, &g->c, row, col, 8),
								R_64F), x);
			if (f->bias)
				x += load(f->bias + row * 8, R_64F);
			x = canonical_d(step(x, g->flags));
			memcpy((uint8_t *)element(f->d, &g->d, row, col, 8), &x, 8);
		}
	}
}

static void store_int(const struct block *t, const struct finish *f, uint32_t *sums)
{
	const struct rf_gemm *g = t->call;
	uint32_t alpha = (uint32_t)(int32_t)f->alpha, beta = (uint32_t)(int32_t)f->beta, c;

	for (uint32_t j = 0; j < t->columns; j++) {
		const uint32_t *column = column_int(t, sums, j);

		for (uint32_t i = 0; i < t->rows; i++) {
			uint64_t row = t->i + i, col = t->j + j;
			uint32_t x = alpha * column[place_int(i)];

			if (f->c) {
				memcpy(&c, element(f->c, &g->c, row, col, 4), 4);
				x += beta * c;
			}
			memcpy((uint8_t *)element(f->d, &g->d, row, col, 4), &x, 4);
		}
	}
}

/* ---- tiles -------------------------------------------------------------------------------- */

#define RUN(name, real) \
	static void run_##name(const struct block *t, real *scratch) \
	{ \
		real *a = scratch, *b = a + TILE_M * DEPTH, *sums = b + TILE_N * DEPTH; \
		double alpha = scalar(t, &t->call->alpha), beta = scalar(t, &t->call->beta); \
		struct finish finish = finish_of(t, alpha, beta); \
		memset(sums, 0, TILE_M * TILE_N * sizeof *sums); \
		if (alpha != 0.0 && t->call->k) \
			sums_##name(t, a, b, sums); \
		store_##name(t, &finish, sums); \
	}
RUN(single, float)
RUN(double, double)
RUN(int, uint32_t)

/* Tiles go down D's columns first, then across, then on to the next product. */
static struct block tile(const struct hal_work *work, uint64_t number)
{
	const struct rf_gemm *g = work->gemm.call;
	uint64_t down = (g->m + TILE_M - 1) / TILE_M, across = (g->n + TILE_N - 1) / TILE_N;
	struct block t = {.call = g, .space = work->gemm.space, .batch = number / (down * across)};

	t.i = (uint32_t)(number % down * TILE_M);
	t.j = (uint32_t)(number / down % across * TILE_N);
	t.rows = g->m - t.i < TILE_M ? (uint32_t)(g->m - t.i) : TILE_M;
	t.columns = g->n - t.j < TILE_N ? (uint32_t)(g->n - t.j) : TILE_N;
	return t;
}

void soft_gemm(struct soft_worker *worker, const struct hal_work *work)
{
	enum sum sum = sum_of(work->gemm.call);
	void *scratch = worker->scratch.gemm;
	uint64_t number;
	uint32_t count;

	while ((number = soft_next_blocks(worker, &count)) != SOFT_NO_BLOCK &&
	       !atomic_load(&work->gemm.space->error)) {
		struct block t = tile(work, number);

		if (sum == SUM_DOUBLE)
			run_double(&t, scratch);
		else if (sum == SUM_INT)
			run_int(&t, scratch);
		else
			run_single(&t, scratch);
	}
}
