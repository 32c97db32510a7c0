/* matrix.c: the matrix operations of a warp: mma and wmma, ldmatrix, stmatrix, movmatrix, on the
 * frame of the block (kernel.h). PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
 *
 * The order of operations is fixed: an element's sum begins with C's element and runs over k in
 * ascending order, one fused multiply-add each, in float (double for double). It therefore has the
 * same bits as in gemm.c, whatever shapes the work is divided into; half accumulators are widened
 * before each instruction and rounded once after it. The other products of a warp, of integers and
 * bits, are exact. A NaN result is the canonical one.
 *
 * A fragment is assembled into its matrix, row by row (B: column by column), in an image; in the
 * registers, words of eight rows and four lanes each are side by side. WMMA's fragments, whose
 * layout PTX does not specify, are laid out like those of mma, side by side; their additional
 * registers repeat the same content.
 *
 * Runs in a fault scope (fault.c): it takes no locks and accesses only the frame, and the memory
 * whose addresses at() computes.
 */
#include <string.h>

#include "../number.h"
#include "block.h"
#include "soft.h"

#pragma GCC optimize("O3")
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c") /* part of x86-64-v3, which compiled kernels also need */
#endif

#define ROWS 8u            /* rows of a matrix that one register's words cover */
#define WORDS_MAX 16u      /* of a lane: its registers of one operand */
#define ELEMENTS_MAX 1024u /* of one operand: 16 x 64 */
#define SUMS_MAX 256u      /* 16 x 16 */
#define IMAGE_BYTES 2048u  /* of one operand: 16 x 16 doubles */

typedef uint32_t words[WORDS_MAX][WARP];

static uint32_t bits_of(uint32_t element)
{
	static const uint8_t bits[] = {
		[SOFT_F16] = 16, [SOFT_BF16] = 16, [SOFT_TF32] = 32, [SOFT_F32] = 32,
		[SOFT_F64] = 64, [SOFT_E4M3] = 8,  [SOFT_E5M2] = 8,  [SOFT_S8] = 8,
		[SOFT_U8] = 8,   [SOFT_S4] = 4,    [SOFT_U4] = 4,    [SOFT_B1] = 1,
		[SOFT_S32] = 32,
	};

	return bits[element];
}

/* ---- registers --------------------------------------------------------------------------- */

struct registers { /* of a lane */
	uint32_t count;
	const uint32_t *slots;
};
struct matrix_step {
	uint32_t kind, op;
	struct registers in[3], out;
};

/* Reads the step at `at`; returns the place of the next one. */
static const uint32_t *matrix_step_at(const uint32_t *at, struct matrix_step *step)
{
	const uint32_t *count = at + 2, *slots = at + 6;

	*step = (struct matrix_step){.kind = at[0], .op = at[1]};
	for (uint32_t i = 0; i < 4; slots += count[i++])
		*(i < 3 ? &step->in[i] : &step->out) = (struct registers){count[i], slots};
	return slots;
}

/* Reads the lanes' registers of an operand. Those of other lanes are zero. */
static void load_registers(const struct launch *launch, const struct registers *in, uint32_t first,
			   uint32_t lanes, uint32_t (*to)[WARP])
{
	for (uint32_t i = 0; i < in->count; i++) {
		const uint32_t *have = slot(launch, in->slots[i]) + first;

		memcpy(to[i], have, sizeof to[i]);
		for (uint32_t lane = 0; lanes != UINT32_MAX && lane < WARP; lane++)
			to[i][lane] &= -(lanes >> lane & 1);
	}
}

static void store_registers(const struct launch *launch, const struct registers *out,
			    uint32_t first, uint32_t lanes, uint32_t (*from)[WARP])
{
	for (uint32_t i = 0; i < out->count; i++) {
		uint32_t *there = slot(launch, out->slots[i]) + first;

		if (lanes == UINT32_MAX)
			memcpy(there, from[i], sizeof from[i]);
		else
			EACH_LANE(lane, lanes)
		there[lane] = from[i][lane];
	}
}

static void copy_lane(void *image, void *lane, size_t bytes, bool to_image)
{
	memcpy(to_image ? image : lane, to_image ? lane : image, bytes);
}

/* Copies an 8-byte element, which is in two registers of a lane. */
static void copy_wide(uint8_t *image, uint32_t (*lane_words)[WARP], uint32_t lane, bool to_image)
{
	copy_lane(image, &lane_words[0][lane], 4, to_image);
	copy_lane(image + 4, &lane_words[1][lane], 4, to_image);
}

/* Converts A (`paired` if it has more than eight rows) or the columns of B between registers and
 * image. Returns the number of registers. */
__attribute__((noinline)) static uint32_t multiplicand(uint32_t (*lane_words)[WARP], uint8_t *image,
						       uint32_t rows, uint32_t row_bytes, bool wide,
						       bool paired, bool to_image)
{
	uint32_t step = wide ? 32 : 16, groups = row_bytes / step;

	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t group = 0; group < groups; group++) {
			uint32_t block = row / ROWS, lane = row % ROWS * 4;
			uint32_t reg = paired ? block / 2 * 2 * groups + block % 2 + 2 * group
					      : block * groups + group;
			uint8_t *at = image + row * row_bytes + group * step;

			if (!wide)
				copy_lane(at, &lane_words[reg][lane], 16, to_image);
			else
				for (uint32_t t = 0; t < 4; t++)
					copy_wide(at + 8 * t, lane_words + 2 * reg, lane + t,
						  to_image);
		}
	return rows / ROWS * groups * (wide ? 2 : 1);
}

/* The same for C or D. */
__attribute__((noinline)) static uint32_t accumulator(uint32_t (*lane_words)[WARP], uint8_t *image,
						      uint32_t m, uint32_t n, uint32_t bytes,
						      bool to_image)
{
	uint32_t across = n / ROWS, height = m > ROWS ? 2 : 1;

	for (uint32_t row = 0; row < m; row++)
		for (uint32_t j = 0; j < across; j++) {
			uint32_t block = row / ROWS, lane = row % ROWS * 4;
			uint32_t reg = (block / height * across + j) * height + block % height;
			uint8_t *at = image + (row * n + j * 8) * bytes;

			if (bytes == 2) {
				copy_lane(at, &lane_words[reg][lane], 16, to_image);
				continue;
			}
			for (uint32_t t = 0; t < 4; t++, at += 2 * bytes)
				for (uint32_t e = 0; e < 2; e++)
					if (bytes == 4)
						copy_lane(at + 4 * e,
							  &lane_words[2 * reg + e][lane + t], 4,
							  to_image);
					else
						copy_wide(at + 8 * e,
							  lane_words + 2 * (2 * reg + e), lane + t,
							  to_image);
		}
	return m / ROWS * across * bytes / 2;
}

/* ---- numbers ----------------------------------------------------------------------------- */

typedef short vector_of_halves __attribute__((vector_size(16)));
typedef float vector_of_floats __attribute__((vector_size(32), may_alias, aligned(4)));

static float from_e4m3(uint8_t x)
{
	uint32_t sign = (uint32_t)(x & 0x80) << 24, rest = x & 0x7f;

	if (rest == 0x7f)
		return bits_float(0x7fffffff);
	/* As a float's bits this is value * 2^-120; the product is exact, subnormals too. */
	return bits_float(sign | float_bits(bits_float(rest << 20) * 0x1p120f));
}

/* Eight at a time: the counts of all shapes are multiples of eight. */
static void from_halves(const uint16_t *from, uint32_t count, float *to)
{
	for (uint32_t i = 0; i < count; i += 8) {
#if defined(__x86_64__)
		vector_of_halves halves;

		memcpy(&halves, from + i, sizeof halves);
		*(vector_of_floats *)(to + i) = __builtin_ia32_vcvtph2ps256(halves);
#else
		for (uint32_t j = 0; j < 8; j++)
			to[i + j] = from_half(from[i + j]);
#endif
	}
}

static void to_halves(const float *from, uint32_t count, uint8_t *to)
{
	for (uint32_t i = 0; i < count; i += 8) {
#if defined(__x86_64__)
		vector_of_halves halves = __builtin_ia32_vcvtps2ph256(
			*(const vector_of_floats *)(from + i), 0);

		memcpy(to + 2 * i, &halves, sizeof halves);
#else
		for (uint32_t j = 0; j < 8; j++) {
			uint16_t half = to_half(from[i + j]);

			memcpy(to + 2 * (i + j), &half, 2);
		}
#endif
	}
}

static void decode_elements(uint32_t element, const void *image, uint32_t count, float *to)
{
	const uint8_t *bytes = image;
	const uint16_t *halves = image;
	const uint32_t *singles = image;

	switch (element) {
	case SOFT_F16: from_halves(halves, count, to); break;
	case SOFT_BF16:
		for (uint32_t i = 0; i < count; i++)
			to[i] = from_bfloat16(halves[i]);
		break;
	case SOFT_TF32: /* the other 13 bits are ignored */
		for (uint32_t i = 0; i < count; i++)
			to[i] = bits_float(singles[i] & 0xffffe000);
		break;
	case SOFT_F32: memcpy(to, image, count * sizeof *to); break;
	case SOFT_E4M3:
		for (uint32_t i = 0; i < count; i++)
			to[i] = from_e4m3(bytes[i]);
		break;
	case SOFT_E5M2:
		for (uint32_t i = 0; i < count; i++)
			to[i] = from_half((uint16_t)(bytes[i] << 8));
		break;
	case SOFT_S8:
		for (uint32_t i = 0; i < count; i++)
			to[i] = (int8_t)bytes[i];
		break;
	case SOFT_U8:
		for (uint32_t i = 0; i < count; i++)
			to[i] = bytes[i];
		break;
	case SOFT_S4:
		for (uint32_t i = 0; i < count; i++)
			to[i] = (int8_t)(bytes[i / 2] << (i % 2 ? 0 : 4)) >> 4;
		break;
	case SOFT_U4:
		for (uint32_t i = 0; i < count; i++)
			to[i] = bytes[i / 2] >> 4 * (i % 2) & 15;
		break;
	}
}

/* ---- products ---------------------------------------------------------------------------- */

/* Sums of eight rows by eight columns, with a row distance of `ld` elements. Contraction makes the
 * fused multiply-adds that the order above requires. */
#define MULTIPLY(real, bytes)                                                                      \
	typedef real vector_##real                                                                 \
		__attribute__((vector_size(bytes), may_alias, aligned(sizeof(real))));             \
	__attribute__((noinline, optimize("O3", "fp-contract=fast"))) static void multiply_##real( \
		const real *a, const real *b, real *sums, uint32_t ld, uint32_t depth)             \
	{                                                                                          \
		enum { EACH = bytes / sizeof(real) };                                              \
		for (uint32_t j = 0; j < ROWS; j += EACH) {                                        \
			vector_##real sum[ROWS];                                                   \
			for (uint32_t i = 0; i < ROWS; i++)                                        \
				sum[i] = *(vector_##real *)(sums + i * ld + j);                    \
			for (uint32_t p = 0; p < depth; p++) {                                     \
				vector_##real y = *(const vector_##real *)(b + p * ROWS + j);      \
				for (uint32_t i = 0; i < ROWS; i++)                                \
					sum[i] += a[i * depth + p] * y;                            \
			}                                                                          \
			for (uint32_t i = 0; i < ROWS; i++)                                        \
				*(vector_##real *)(sums + i * ld + j) = sum[i];                    \
		}                                                                                  \
	}                                                                                          \
	/* sums (m x n) += a (m x k) * b, whose columns are contiguous */                          \
	static void product_##real(const real *a, const real *b, real *sums, uint32_t m,           \
				   uint32_t n, uint32_t k)                                         \
	{                                                                                          \
		real transposed[ELEMENTS_MAX / 2]; /* eight columns */                             \
		for (uint32_t j = 0; j < n; j += ROWS) {                                           \
			for (uint32_t i = 0; i < ROWS; i++)                                        \
				for (uint32_t p = 0; p < k; p++)                                   \
					transposed[p * ROWS + i] = b[(j + i) * k + p];             \
			for (uint32_t i = 0; i < m; i += ROWS)                                     \
				multiply_##real(a + i * k, transposed, sums + i * n + j, n, k);    \
		}                                                                                  \
	}
MULTIPLY(float, 32)
MULTIPLY(double, 32)

struct mma { /* SOFT_STEP_MMA's op */
	uint32_t m, n, k, a, b, c, d;
	bool saturates, ands, column_a, column_b;
	uint32_t rounding;
};

static struct mma mma_of(uint32_t op)
{
	uint32_t flags = op >> 26;

	return (struct mma){
		.m = 8 * (op & 7),
		.n = 8 * (op >> 3 & 7),
		.k = 1u << (op >> 6 & 15),
		.a = op >> 10 & 15,
		.b = op >> 14 & 15,
		.c = op >> 18 & 15,
		.d = op >> 22 & 15,
		.saturates = flags & SOFT_MMA_SATURATES,
		.ands = flags & SOFT_MMA_AND,
		.column_a = flags & SOFT_MMA_COLUMN_A,
		.column_b = flags & SOFT_MMA_COLUMN_B,
		.rounding = flags >> 4,
	};
}

/* Sets the rounding mode that double products require, until the next call. */
static void round_by(uint32_t rounding)
{
#if defined(__x86_64__)
	static const uint32_t bits[] = {[SOFT_ROUND_N] = 0,
					[SOFT_ROUND_M] = 0x2000,
					[SOFT_ROUND_P] = 0x4000,
					[SOFT_ROUND_Z] = 0x6000};

	__builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~0x6000u) | bits[rounding]);
#else
#error "double products round by MXCSR"
#endif
}

static void mma_float(const struct mma *x, const uint8_t *a, const uint8_t *b, const uint8_t *c,
		      uint8_t *d)
{
	float left[ELEMENTS_MAX], right[ELEMENTS_MAX], sums[SUMS_MAX];
	uint32_t count = x->m * x->n;

	decode_elements(x->a, a, x->m * x->k, left);
	decode_elements(x->b, b, x->n * x->k, right);
	decode_elements(x->c, c, count, sums);
	product_float(left, right, sums, x->m, x->n, x->k);
	for (uint32_t i = 0; i < count; i++)
		sums[i] = canonical_f(sums[i]);
	if (x->d == SOFT_F32)
		memcpy(d, sums, count * sizeof *sums);
	else
		to_halves(sums, count, d);
}

/* Products of integers of 8 bits or fewer: float represents all their sums exactly. */
static void mma_integer(const struct mma *x, const uint8_t *a, const uint8_t *b, const int32_t *c,
			int32_t *d)
{
	float left[ELEMENTS_MAX], right[ELEMENTS_MAX], sums[SUMS_MAX] = {0};

	decode_elements(x->a, a, x->m * x->k, left);
	decode_elements(x->b, b, x->n * x->k, right);
	product_float(left, right, sums, x->m, x->n, x->k);
	for (uint32_t i = 0; i < x->m * x->n; i++) {
		int32_t sum = (int32_t)sums[i];

		if (!x->saturates)
			d[i] = (int32_t)((uint32_t)c[i] + (uint32_t)sum);
		else if (__builtin_add_overflow(c[i], sum, &d[i]))
			d[i] = sum < 0 ? INT32_MIN : INT32_MAX;
	}
}

static void mma_double(const struct mma *x, const double *a, const double *b, const double *c,
		       double *d)
{
	memcpy(d, c, x->m * x->n * sizeof *d);
	round_by(x->rounding);
	product_double(a, b, d, x->m, x->n, x->k);
	round_by(SOFT_ROUND_N);
	for (uint32_t i = 0; i < x->m * x->n; i++)
		d[i] = canonical_d(d[i]);
}

static void mma_bits(const struct mma *x, const uint32_t *a, const uint32_t *b, const uint32_t *c,
		     uint32_t *d)
{
	uint32_t depth = x->k / 32;

	for (uint32_t i = 0; i < x->m; i++)
		for (uint32_t j = 0; j < x->n; j++) {
			uint32_t sum = c[i * x->n + j];

			for (uint32_t p = 0; p < depth; p++) {
				uint32_t l = a[i * depth + p], r = b[j * depth + p];

				sum += (uint32_t)__builtin_popcount(x->ands ? l & r : l ^ r);
			}
			d[i * x->n + j] = sum;
		}
}

/* mma.m8n8k4 of halves: four products, each by four lanes of both halves of the warp, with its own
 * fragment layout. */
static void mma_quads(const struct mma *x, uint32_t (*a)[WARP], uint32_t (*b)[WARP],
		      uint32_t (*c)[WARP], uint32_t (*d)[WARP])
{
	for (uint32_t quad = 0; quad < 4; quad++) {
		uint16_t left[8 * 4], right[8 * 4];
		float floats[2][8 * 4], sums[8 * 8];

		for (uint32_t i = 0; i < 8 * 4; i++) { /* lane i % 8 of the quad, element i / 8 */
			uint32_t place = i % 8, e = i / 8, high = place & 4, l = place % 4;
			uint32_t lane = quad * 4 + l + 4 * high, shift = 16 * (e % 2);

			left[x->column_a ? (e + high) * 4 + l : place * 4 + e] =
				(uint16_t)(a[e / 2][lane] >> shift);
			right[x->column_b ? place * 4 + e : (e + high) * 4 + l] =
				(uint16_t)(b[e / 2][lane] >> shift);
		}
		decode_elements(SOFT_F16, left, 8 * 4, floats[0]);
		decode_elements(SOFT_F16, right, 8 * 4, floats[1]);
		for (int pass = 0; pass < 2; pass++) { /* C, D */
			uint32_t type = pass ? x->d : x->c;

			for (uint32_t i = 0; i < 8 * 8; i++) {
				uint32_t place = i % 8, e = i / 8, high = place & 4;
				uint32_t l = place % 4, lane = quad * 4 + l + 4 * high;
				float *sum = sums + (type == SOFT_F16
							     ? place * 8 + e
							     : (high + (l & 1) + (e & 2)) * 8 +
								       (e & 4) + (l & 2) + (e & 1));
				uint32_t shift = 16 * (e % 2);

				if (pass == 0)
					*sum = type == SOFT_F16
						       ? from_half((uint16_t)(c[e / 2][lane] >>
									      shift))
						       : bits_float(c[e][lane]);
				else if (type == SOFT_F16)
					d[e / 2][lane] = (e % 2 ? d[e / 2][lane] : 0) |
							 (uint32_t)to_half(*sum) << shift;
				else
					d[e][lane] = float_bits(canonical_f(*sum));
			}
			if (pass == 0)
				product_float(floats[0], floats[1], sums, 8, 8, 4);
		}
	}
}

static void multiply_tiles(const struct launch *launch, const struct matrix_step *step,
			   uint32_t first, uint32_t lanes)
{
	_Alignas(32) uint8_t image[4][IMAGE_BYTES];
	struct mma x = mma_of(step->op);
	uint32_t bytes_c = bits_of(x.c) / 8, bytes_d = bits_of(x.d) / 8;
	uint32_t row_a = x.k * bits_of(x.a) / 8, row_b = x.k * bits_of(x.b) / 8;
	bool wide = x.a == SOFT_F64;
	words a, b, c;

	load_registers(launch, &step->in[0], first, lanes, a);
	load_registers(launch, &step->in[1], first, lanes, b);
	load_registers(launch, &step->in[2], first, lanes, c);
	if (x.k == 4 && x.a == SOFT_F16) {
		mma_quads(&x, a, b, c, a);
		store_registers(launch, &step->out, first, lanes, a);
		return;
	}
	multiplicand(a, image[0], x.m, row_a, wide, x.m > ROWS, true);
	multiplicand(b, image[1], x.n, row_b, wide, false, true);
	accumulator(c, image[2], x.m, x.n, bytes_c, true);
	if (wide)
		mma_double(&x, (void *)image[0], (void *)image[1], (void *)image[2],
			   (void *)image[3]);
	else if (x.a == SOFT_B1)
		mma_bits(&x, (void *)image[0], (void *)image[1], (void *)image[2],
			 (void *)image[3]);
	else if (x.c == SOFT_S32)
		mma_integer(&x, image[0], image[1], (void *)image[2], (void *)image[3]);
	else
		mma_float(&x, image[0], image[1], image[2], image[3]);
	accumulator(a, image[3], x.m, x.n, bytes_d, false);
	store_registers(launch, &step->out, first, lanes, a);
}

/* ---- memory ------------------------------------------------------------------------------ */

/* The host address of a device address in the space that the op names. */
static uint8_t *host_address(const struct launch *launch, uint32_t space, uint64_t addr,
			     uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE;

	if (space == SOFT_SPACE_GENERIC && addr >> 40 == SOFT_TAG_SHARED) {
		space = SOFT_SPACE_SHARED;
		addr &= (1ull << 40) - 1;
	}
	if (space == SOFT_SPACE_SHARED) {
		if (addr >= SOFT_SHARED_WINDOW || bytes > SOFT_SHARED_WINDOW - addr)
			soft_abort(SOFT_ILLEGAL_ADDRESS);
		return launch->block.shared + addr;
	}
	if (offset >= RF_WINDOW_BYTES || bytes > RF_WINDOW_BYTES - offset)
		soft_abort(SOFT_ILLEGAL_ADDRESS);
	return launch->block.base + offset;
}

struct tile { /* SOFT_STEP_TILE's op: lines of elements that are contiguous in memory */
	uint32_t element, rows, row_bytes, lines, line_bytes, words, space;
	bool sum, paired, transposed,
		stores; /* transposed: its lines are the columns of the image */
};

static struct tile tile_of(uint32_t op)
{
	uint32_t m = 8 * (op & 7), n = 8 * (op >> 3 & 7), k = 1u << (op >> 6 & 15);
	uint32_t part = op >> 14 & 3, flags = op >> 16, bits = bits_of(op >> 10 & 15);
	uint32_t rows = part == SOFT_TILE_B ? n : m, across = part == SOFT_TILE_C ? n : k;
	bool columns = flags & SOFT_TILE_COLUMNS, transposed = columns != (part == SOFT_TILE_B);

	return (struct tile){
		.element = op >> 10 & 15,
		.rows = rows,
		.row_bytes = across * bits / 8,
		.lines = transposed ? across : rows,
		.line_bytes = (transposed ? rows : across) * bits / 8,
		.sum = part == SOFT_TILE_C,
		.paired = part == SOFT_TILE_A && m > ROWS,
		.transposed = transposed,
		.stores = flags & SOFT_TILE_STORES,
		.space = op >> 18 & 3,
		.words = op >> 20,
	};
}

static uint32_t convert_fragment(const struct tile *x, uint32_t (*lane_words)[WARP], uint8_t *image,
				 bool to_image)
{
	uint32_t bytes = bits_of(x->element) / 8;

	if (x->sum)
		return accumulator(lane_words, image, x->rows, x->row_bytes / bytes, bytes,
				   to_image);
	return multiplicand(lane_words, image, x->rows, x->row_bytes, bytes == 8, x->paired,
			    to_image);
}

/* wmma.load and wmma.store. All lanes give one address and one stride: those of the first one are
 * used. */
static void move_tile(const struct launch *launch, const struct matrix_step *step, uint32_t first,
		      uint32_t lanes)
{
	struct tile x = tile_of(step->op);
	uint32_t lowest = (uint32_t)__builtin_ctz(lanes), bits = bits_of(x.element);
	uint32_t *low = slot(launch, step->in[0].slots[0]) + first;
	uint32_t *high = slot(launch, step->in[0].slots[1]) + first;
	uint64_t addr = low[lowest] | (uint64_t)high[lowest] << 32;
	uint64_t stride = (uint64_t)slot(launch, step->in[1].slots[0])[first + lowest] * bits / 8;
	_Alignas(32) uint8_t image[IMAGE_BYTES];
	words fragment;

	if (x.stores) {
		load_registers(launch, &step->in[2], first, lanes, fragment);
		convert_fragment(&x, fragment, image, true);
	}
	for (uint32_t i = 0; i < x.lines; i++) {
		uint8_t *line = host_address(launch, x.space, addr + i * stride, x.line_bytes);

		if (!x.transposed)
			copy_lane(line, image + i * x.row_bytes, x.line_bytes, x.stores);
		for (uint32_t e = 0, size = bits / 8; x.transposed && e < x.rows; e++)
			copy_lane(line + e * size, image + e * x.row_bytes + i * size, size,
				  x.stores);
	}
	if (!x.stores) {
		uint32_t count = convert_fragment(&x, fragment, image, false);

		for (uint32_t i = count; i < x.words; i++)
			memcpy(fragment[i], fragment[i % count], sizeof fragment[i]);
		store_registers(launch, &step->out, first, lanes, fragment);
	}
}

/* Transposes eight rows of eight 16-bit elements, held as the words of one register. */
static void transpose_rows(uint32_t from[WARP], uint32_t to[WARP])
{
	uint16_t rows[ROWS][ROWS], columns[ROWS][ROWS];

	memcpy(rows, from, sizeof rows);
	for (uint32_t i = 0; i < ROWS; i++)
		for (uint32_t j = 0; j < ROWS; j++)
			columns[j][i] = rows[i][j];
	memcpy(to, columns, sizeof columns);
}

/* ldmatrix and stmatrix: lane 8 i + r gives the address of row r of matrix i. */
static void move_rows(const struct launch *launch, const struct matrix_step *step, uint32_t first,
		      uint32_t lanes)
{
	uint32_t count = step->op & 7, flags = step->op >> 3, space = step->op >> 5;
	uint32_t addresses[2][WARP], fragment[4][WARP] = {0};
	bool stores = flags & SOFT_ROWS_STORES, transposed = flags & SOFT_ROWS_TURNED;

	load_registers(launch, &step->in[0], first, lanes, addresses);
	if (stores)
		load_registers(launch, &step->in[1], first, lanes, fragment);
	for (uint32_t i = 0; i < count; i++) {
		if (stores && transposed)
			transpose_rows(fragment[i], fragment[i]);
		EACH_LANE(lane, lanes >> i * ROWS & 0xff)
		{
			uint32_t from = i * ROWS + lane;
			uint64_t addr = addresses[0][from] | (uint64_t)addresses[1][from] << 32;

			if (addr % 16)
				soft_abort(SOFT_MISALIGNED_ADDRESS);
			copy_lane(host_address(launch, space, addr, 16), &fragment[i][4 * lane], 16,
				  stores);
		}
		if (!stores && transposed)
			transpose_rows(fragment[i], fragment[i]);
	}
	if (!stores)
		store_registers(launch, &step->out, first, lanes, fragment);
}

void soft_matrix(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		 uint32_t lanes)
{
	const uint32_t *at = cut->steps;

	for (uint32_t i = 0; i < cut->op; i++) {
		uint32_t fragment[1][WARP];
		struct matrix_step step;

		at = matrix_step_at(at, &step);
		switch (step.kind) {
		case SOFT_STEP_MMA: multiply_tiles(launch, &step, first, lanes); break;
		case SOFT_STEP_TILE: move_tile(launch, &step, first, lanes); break;
		case SOFT_STEP_ROWS: move_rows(launch, &step, first, lanes); break;
		case SOFT_STEP_TURN: /* movmatrix */
			load_registers(launch, &step.in[0], first, lanes, fragment);
			transpose_rows(fragment[0], fragment[0]);
			store_registers(launch, &step.out, first, lanes, fragment);
			break;
		}
	}
}
