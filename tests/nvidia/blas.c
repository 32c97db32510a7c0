/* blas.c: of the fake driver (fake.h): a cuBLASLt, as a part of the same library.
 *
 * Its products are kernels of the fake's streams: sums in double over k upwards, one rounding at
 * the end. It is stricter than NVIDIA's: descriptors that are left, attributes of a wrong size or
 * without a use, alignments that are not so, a bias that is not aligned to 16 bytes, algorithms
 * of another product, and addresses outside of the window and of the stream's own memory are faults
 * of the caller. A and B are read whatever alpha is. D and C must be stored by columns.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "fake.h"
#include "fake_blas.h"
#include "number.h"
#include "routines.h"

struct cublasLtContext {
	int live;
};
struct cublasLtMatmulDescOpaque {
	int32_t compute, scale, pointers, op[2];
	uint32_t epilogue;
	uint64_t bias;
	int64_t bias_stride;
	int32_t bias_type, sm_count;
	uint64_t aux;
	int64_t aux_ld, aux_stride;
	uint64_t scales[2]; /* addresses of factors of A and B */
};
struct cublasLtMatmulPreferenceOpaque {
	uint64_t workspace;
	uint32_t reductions, aligned[4];
};

/* A call, by value: what runs may outlive the descriptors. */
struct product {
	struct cublasLtMatmulDescOpaque desc;
	struct cublasLtMatrixLayoutOpaque layout[4];
	uint64_t at[4], alpha[2], beta[2];
};
enum { A, B, C, D };
enum { A_SCALE_POINTER = 17, B_SCALE_POINTER = 18 }; /* further attributes of a product */

static int described; /* descriptors that live */
static int computed;  /* how the last product's sums were to be computed */

EXPORT int fake_computed(void) { return computed; }

static int version = 130100;
int fake_cublas = 130100;

EXPORT void fake_version(int cublaslt, int cublas)
{
	version = cublaslt;
	fake_cublas = cublas;
}

EXPORT size_t cublasLtGetVersion(void) { return (size_t)version; }

static struct fake_called called;

void fake_called_with(struct fake_called call) { called = call; }

EXPORT uint64_t fake_called(char *name, int bytes)
{
	snprintf(name, (size_t)bytes, "%s", called.name ? called.name : "");
	return called.workspace;
}

EXPORT const char *cublasLtGetStatusName(cublasStatus_t status)
{
	return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
	       : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
						       : "CUBLAS_STATUS_OTHER";
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
	BEGIN(cublasLtCreate);
	*out = calloc(1, sizeof **out);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	BEGIN(cublasLtDestroy);
	if (described)
		fake_fault("cublasLtDestroy: %d descriptors are left", described);
	described = 0;
	free(handle);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

/* ---- descriptors ---- */

void fake_described(int more) { described += more; }

static cublasStatus_t forget(void *object)
{
	described--;
	free(object);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

struct attribute {
	int number;
	size_t offset, bytes;
};
#define AT(number, type, member)                                                                   \
	{number, offsetof(struct type, member), sizeof(((struct type *)0)->member)}

static cublasStatus_t set(const char *call, void *object, const struct attribute *all, size_t count,
			  int number, const void *value, size_t bytes)
{
	for (size_t i = 0; i < count; i++)
		if (all[i].number == number && all[i].bytes == bytes) {
			memcpy((char *)object + all[i].offset, value, bytes);
			return fake_end(CUBLAS_STATUS_SUCCESS);
		}
	fake_fault("%s: attribute %d with %zu bytes", call, number, bytes);
	return fake_end(CUBLAS_STATUS_INVALID_VALUE);
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
					       cublasComputeType_t compute, cudaDataType scale)
{
	BEGIN(cublasLtMatmulDescCreate);
	*out = calloc(1, sizeof **out);
	**out = (struct cublasLtMatmulDescOpaque){.compute = (int32_t)compute,
						  .scale = scale,
						  .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
						  .bias_type = -1};
	described++;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	BEGIN(cublasLtMatmulDescDestroy);
	return forget(desc);
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
						     cublasLtMatmulDescAttributes_t number,
						     const void *value, size_t bytes)
{
	static const struct attribute all[] = {
		AT(CUBLASLT_MATMUL_DESC_POINTER_MODE, cublasLtMatmulDescOpaque, pointers),
		AT(CUBLASLT_MATMUL_DESC_TRANSA, cublasLtMatmulDescOpaque, op[A]),
		AT(CUBLASLT_MATMUL_DESC_TRANSB, cublasLtMatmulDescOpaque, op[B]),
		AT(CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtMatmulDescOpaque, epilogue),
		AT(CUBLASLT_MATMUL_DESC_BIAS_POINTER, cublasLtMatmulDescOpaque, bias),
		AT(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, cublasLtMatmulDescOpaque, bias_stride),
		AT(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cublasLtMatmulDescOpaque, bias_type),
		AT(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, cublasLtMatmulDescOpaque, sm_count),
		AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, cublasLtMatmulDescOpaque, aux),
		AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, cublasLtMatmulDescOpaque, aux_ld),
		AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, cublasLtMatmulDescOpaque,
		   aux_stride),
		AT(A_SCALE_POINTER, cublasLtMatmulDescOpaque, scales[A]),
		AT(B_SCALE_POINTER, cublasLtMatmulDescOpaque, scales[B]),
	};

	BEGIN(cublasLtMatmulDescSetAttribute);
	return set("cublasLtMatmulDescSetAttribute", desc, all, sizeof all / sizeof *all,
		   (int)number, value, bytes);
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
						 uint64_t rows, uint64_t columns, int64_t ld)
{
	BEGIN(cublasLtMatrixLayoutCreate);
	*out = calloc(1, sizeof **out);
	**out = (struct cublasLtMatrixLayoutOpaque){
		.type = type, .count = 1, .rows = rows, .columns = columns, .ld = ld};
	described++;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	BEGIN(cublasLtMatrixLayoutDestroy);
	return forget(layout);
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
						       cublasLtMatrixLayoutAttribute_t number,
						       const void *value, size_t bytes)
{
	static const struct attribute all[] = {
		AT(CUBLASLT_MATRIX_LAYOUT_ORDER, cublasLtMatrixLayoutOpaque, order),
		AT(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, cublasLtMatrixLayoutOpaque, count),
		AT(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, cublasLtMatrixLayoutOpaque, stride),
		AT(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, cublasLtMatrixLayoutOpaque, mode),
	};

	BEGIN(cublasLtMatrixLayoutSetAttribute);
	return set("cublasLtMatrixLayoutSetAttribute", layout, all, sizeof all / sizeof *all,
		   (int)number, value, bytes);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
	BEGIN(cublasLtMatmulPreferenceCreate);
	*out = calloc(1, sizeof **out);
	(*out)->workspace = 1;
	for (int i = 0; i < 4; i++)
		(*out)->aligned[i] = 256;
	described++;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	BEGIN(cublasLtMatmulPreferenceDestroy);
	return forget(preference);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
	cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t number,
	const void *value, size_t bytes)
{
	static const struct attribute all[] = {
		AT(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublasLtMatmulPreferenceOpaque,
		   workspace),
		AT(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, cublasLtMatmulPreferenceOpaque,
		   reductions),
		AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, cublasLtMatmulPreferenceOpaque,
		   aligned[A]),
		AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, cublasLtMatmulPreferenceOpaque,
		   aligned[B]),
		AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, cublasLtMatmulPreferenceOpaque,
		   aligned[C]),
		AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, cublasLtMatmulPreferenceOpaque,
		   aligned[D]),
	};

	BEGIN(cublasLtMatmulPreferenceSetAttribute);
	return set("cublasLtMatmulPreferenceSetAttribute", preference, all,
		   sizeof all / sizeof *all, (int)number, value, bytes);
}

/* ---- the product ---- */

uint32_t fake_type_bytes(int32_t type)
{
	switch (type) {
	case FAKE_C_64F: return 16;
	case CUDA_R_64F:
	case FAKE_C_32F: return 8;
	case CUDA_R_32F:
	case CUDA_R_32I: return 4;
	case CUDA_R_8I:
	case FAKE_R_8F_E4M3: return 1;
	default: return 2;
	}
}

/* A sign, an exponent of four bits, a fraction of three. */
static double from_e4m3(uint8_t bits)
{
	int exponent = bits >> 3 & 15, fraction = bits & 7;
	double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);

	return bits & 128 ? -size : size;
}

double fake_load(uint64_t at, int32_t type)
{
	const void *from = (const void *)(uintptr_t)at;
	double wide;
	float single;
	int32_t integer;
	uint16_t half;

	switch (type) {
	case CUDA_R_64F: memcpy(&wide, from, 8); return wide;
	case CUDA_R_32F: memcpy(&single, from, 4); return single;
	case CUDA_R_32I: memcpy(&integer, from, 4); return integer;
	case CUDA_R_8I: return *(const int8_t *)from;
	case FAKE_R_8F_E4M3: return from_e4m3(*(const uint8_t *)from);
	default:
		memcpy(&half, from, 2);
		return type == CUDA_R_16F ? from_half(half) : from_bfloat16(half);
	}
}

void fake_store(uint64_t at, int32_t type, double x)
{
	void *to = (void *)(uintptr_t)at;
	float single = (float)x;
	int32_t integer = (int32_t)x;
	uint16_t half = type == CUDA_R_16F ? to_half(single) : to_bfloat16(single);

	memcpy(to,
	       type == CUDA_R_64F   ? (void *)&x
	       : type == CUDA_R_32F ? (void *)&single
	       : type == CUDA_R_32I ? (void *)&integer
				    : (void *)&half,
	       fake_type_bytes(type));
}

/* Element (i, j) of the b-th matrix as it is stored. */
static uint64_t element(const struct product *p, int which, int32_t b, uint64_t i, uint64_t j)
{
	const struct cublasLtMatrixLayoutOpaque *x = &p->layout[which];
	uint64_t at = p->at[which], size = fake_type_bytes(x->type);

	if (x->mode == CUBLASLT_BATCH_MODE_POINTER_ARRAY)
		memcpy(&at, (const void *)(uintptr_t)(at + 8 * (uint64_t)b), 8);
	else
		at += (uint64_t)b * (uint64_t)x->stride * size;
	return at + (i + j * (uint64_t)x->ld) * size;
}

static number factor(const struct product *p, int which, int32_t b, uint64_t i, uint64_t j)
{
	bool turned = p->desc.op[which] != CUBLAS_OP_N;
	number x = number_at(element(p, which, b, turned ? j : i, turned ? i : j),
			     p->layout[which].type);

	return p->desc.op[which] == OP_C ? conj(x) : x;
}

static double operand(const struct product *p, int which, int32_t b, uint64_t i, uint64_t j)
{
	return creal(factor(p, which, b, i, j));
}

#define BITS (CUBLASLT_EPILOGUE_RELU | 8u)
#define WITH_AUX 128u
#define DERIVED (8u | 64u)
#define SUM_D 16u

static int32_t bias_type(const struct product *p)
{
	return p->desc.bias_type < 0 ? p->layout[D].type : p->desc.bias_type;
}

static uint64_t bias_element(const struct product *p, int32_t b, uint64_t i)
{
	uint64_t stride = (uint64_t)p->desc.bias_stride;

	return p->desc.bias + (i + (uint64_t)b * stride) * fake_type_bytes(bias_type(p));
}

/* The element of the auxiliary matrix, or the byte that has its bit. */
static uint64_t aux_element(const struct product *p, int32_t b, uint64_t i, uint64_t j)
{
	uint64_t at = (uint64_t)b * (uint64_t)p->desc.aux_stride + j * (uint64_t)p->desc.aux_ld + i;

	if (p->desc.epilogue & BITS)
		return p->desc.aux + at / 8;
	return p->desc.aux + at * fake_type_bytes(p->layout[D].type);
}

static double gelu(double x)
{
	return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));

	return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static double derived(const struct product *p, uint64_t aux, uint64_t i, double x)
{
	if (p->desc.epilogue & BITS)
		return *(uint8_t *)(uintptr_t)aux >> i % 8 & 1 ? x : 0;
	return x * gelu_slope(fake_load(aux, p->layout[D].type));
}

static void keep(const struct product *p, uint64_t aux, uint64_t i, double x)
{
	uint8_t *byte = (uint8_t *)(uintptr_t)aux;

	if (!(p->desc.epilogue & BITS))
		fake_store(aux, p->layout[D].type, x);
	else
		*byte = (uint8_t)((*byte & ~(1u << i % 8)) | (x > 0 ? 1u << i % 8 : 0));
}

static double finished(const struct product *p, int32_t b, uint64_t i, uint64_t j, double x)
{
	uint32_t steps = p->desc.epilogue;
	uint64_t aux = aux_element(p, b, i, j);

	if (steps & CUBLASLT_EPILOGUE_BIAS)
		x += fake_load(bias_element(p, b, i), bias_type(p));
	if (steps & DERIVED)
		return derived(p, aux, i, x);
	if (steps & WITH_AUX)
		keep(p, aux, i, x);
	if (steps & CUBLASLT_EPILOGUE_RELU)
		x = x > 0 ? x : 0;
	return steps & CUBLASLT_EPILOGUE_GELU ? gelu(x) : x;
}

/* Sums of D's rows, A's rows or B's columns. */
static void sums(const struct product *p, int32_t b, uint64_t depth)
{
	bool of_b = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB, of_d = p->desc.epilogue & SUM_D;
	uint64_t length = of_b ? p->layout[D].columns : p->layout[D].rows;

	for (uint64_t i = 0; i < length; i++) {
		double sum = 0;

		for (uint64_t k = 0; k < (of_d ? p->layout[D].columns : depth); k++)
			sum += of_d   ? fake_load(element(p, D, b, i, k), p->layout[D].type)
			       : of_b ? operand(p, B, b, k, i)
				      : operand(p, A, b, i, k);
		fake_store(bias_element(p, b, i), bias_type(p), sum);
	}
}

static bool summed(const struct product *p)
{
	return p->desc.epilogue & (SUM_D | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
}

static bool is_complex(int type) { return type == FAKE_C_32F || type == FAKE_C_64F; }

static void multiply(const uint8_t *params)
{
	struct product p;
	memcpy(&p, params, sizeof p);
	bool on_device = p.desc.pointers == CUBLASLT_POINTER_MODE_DEVICE;
	number alpha = number_at(on_device ? *p.alpha : (uint64_t)p.alpha, p.desc.scale);
	number beta = number_at(on_device ? *p.beta : (uint64_t)p.beta, p.desc.scale);
	uint64_t depth = p.desc.op[A] != CUBLAS_OP_N ? p.layout[A].rows : p.layout[A].columns;

	for (int i = A; i <= B; i++)
		alpha *= p.desc.scales[i] ? fake_load(p.desc.scales[i], CUDA_R_32F) : 1;
	for (int32_t b = 0; b < p.layout[D].count; b++)
		for (uint64_t j = 0; j < p.layout[D].columns; j++)
			for (uint64_t i = 0; i < p.layout[D].rows; i++) {
				int type = p.layout[D].type;
				number sum = 0;

				for (uint64_t k = 0; k < depth; k++)
					sum += factor(&p, A, b, i, k) * factor(&p, B, b, k, j);
				sum *= alpha;
				if (beta != 0)
					sum += beta * number_at(element(&p, C, b, i, j), type);
				put_number(element(&p, D, b, i, j), type,
					   is_complex(type) ? sum
							    : finished(&p, b, i, j, creal(sum)));
			}
	for (int32_t b = 0; b < p.layout[D].count; b++)
		if (summed(&p))
			sums(&p, b, depth);
}

static bool good_layout(const struct cublasLtMatrixLayoutOpaque *x)
{
	return x->ld >= (int64_t)(x->order == CUBLASLT_ORDER_ROW ? x->columns : x->rows) &&
	       x->rows && x->columns && x->count > 0;
}

/* Does a type of alpha and beta go with how sums are computed? */
static bool good_scale(int32_t scale, int32_t compute)
{
	return compute <= CUBLAS_COMPUTE_16F_PEDANTIC ? scale == CUDA_R_16F
	       : compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC
		       ? scale == CUDA_R_64F
	       : compute == CUBLAS_COMPUTE_32I || compute == CUBLAS_COMPUTE_32I_PEDANTIC
		       ? scale == CUDA_R_32I
		       : scale == CUDA_R_32F;
}

static cublasStatus_t check(const char *call, const struct product *p)
{
	const struct cublasLtMatrixLayoutOpaque *x = p->layout;
	bool ta = p->desc.op[A] != CUBLAS_OP_N, tb = p->desc.op[B] != CUBLAS_OP_N;

	for (int i = A; i <= D; i++)
		if (!good_layout(&x[i]) || x[i].count != x[D].count || x[i].mode != x[D].mode) {
			fake_fault("%s: layout %d", call, i);
			return CUBLAS_STATUS_INVALID_VALUE;
		}
	if ((ta ? x[A].columns : x[A].rows) != x[D].rows ||
	    (tb ? x[B].rows : x[B].columns) != x[D].columns ||
	    (ta ? x[A].rows : x[A].columns) != (tb ? x[B].columns : x[B].rows) ||
	    x[C].rows != x[D].rows || x[C].columns != x[D].columns || x[A].type != x[B].type ||
	    x[C].type != x[D].type) {
		fake_fault("%s: sizes or types that do not fit", call);
		return CUBLAS_STATUS_INVALID_VALUE;
	}
	if (x[C].order != CUBLASLT_ORDER_COL || x[D].order != CUBLASLT_ORDER_COL ||
	    x[D].type == CUDA_R_8I || is_complex(p->desc.scale) != is_complex(x[A].type) ||
	    is_complex(x[D].type) != is_complex(x[A].type) ||
	    (is_complex(x[D].type) && p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT) ||
	    !good_scale(real_of(p->desc.scale), p->desc.compute) ||
	    (x[D].mode && p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return CUBLAS_STATUS_SUCCESS;
}

/* The product that an algorithm is for: addresses count by their alignment only. */
static uint64_t fingerprint(const struct product *product)
{
	struct product p;
	uint64_t h = 0xcbf29ce484222325ull;

	memcpy(&p, product, sizeof p);
	p.desc.bias = p.desc.bias ? 1 + p.desc.bias % 16 : 0;
	p.desc.aux %= 16;
	for (size_t i = 0; i < offsetof(struct product, at); i++)
		h = (h ^ ((const uint8_t *)&p)[i]) * 0x100000001b3ull;
	return h;
}

static struct product described_by(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
				   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
				   cublasLtMatrixLayout_t d)
{
	struct product p;

	memset(&p, 0, sizeof p);
	memcpy(&p.desc, desc, sizeof p.desc);
	memcpy(&p.layout[A], a, sizeof *a);
	memcpy(&p.layout[B], b, sizeof *b);
	memcpy(&p.layout[C], c, sizeof *c);
	memcpy(&p.layout[D], d, sizeof *d);
	return p;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
	cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
	cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *results,
	int *count)
{
	struct product p = described_by(desc, a, b, c, d);
	cublasStatus_t status;

	BEGIN(cublasLtMatmulAlgoGetHeuristic);
	status = check("cublasLtMatmulAlgoGetHeuristic", &p);
	if (!handle || wanted != 1)
		fake_fault("cublasLtMatmulAlgoGetHeuristic: several algorithms");
	*count = !status;
	if (!status) {
		memset(results, 0, sizeof *results);
		results->algo.data[0] = fingerprint(&p);
		memcpy(&results->algo.data[1], preference->aligned, sizeof preference->aligned);
		results->algo.data[3] = results->workspaceSize = preference->workspace;
	}
	return fake_end(status);
}

bool fake_shown(uint64_t at, uint64_t bytes)
{
	return fake_is_spare(at, bytes) ||
	       (fake_is_window(at) && fake_is_window(at + bytes - 1) && fake_reachable(at, bytes));
}

/* All of a matrix, or its list, is in the window and aligned as was said. */
static bool there(const struct product *p, int which, uint32_t aligned)
{
	const struct cublasLtMatrixLayoutOpaque *x = &p->layout[which];
	uint64_t size = fake_type_bytes(x->type);

	for (int32_t b = 0; b < x->count; b++) {
		uint64_t first, last;

		if (x->mode && !fake_shown(p->at[which] + 8 * (uint64_t)b, 8))
			return false;
		if (x->mode && fake_is_spare(p->at[which], 8))
			continue; /* the stream will have written it */
		first = element(p, which, b, 0, 0);
		last = element(p, which, b, x->rows - 1, x->columns - 1);
		if (first % aligned || !fake_shown(first, last - first + size))
			return false;
	}
	return true;
}

static bool bias_there(const struct product *p)
{
	const struct cublasLtMatrixLayoutOpaque *x = &p->layout[D];
	uint64_t length = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? x->columns : x->rows;

	for (int32_t b = 0; b < x->count; b++) {
		uint64_t at = bias_element(p, b, 0);

		if (at % 16 || !fake_shown(at, length * fake_type_bytes(bias_type(p))))
			return false;
	}
	return true;
}

static bool aux_there(const struct product *p)
{
	const struct cublasLtMatrixLayoutOpaque *x = &p->layout[D];
	int64_t unit = p->desc.epilogue & BITS ? 128 : 8;

	if (p->desc.aux_ld < (int64_t)x->rows || p->desc.aux_ld % unit || p->desc.aux_stride % unit)
		return false;
	for (int32_t b = 0; b < x->count; b++) {
		uint64_t first = aux_element(p, b, 0, 0);

		if (!fake_shown(first, aux_element(p, b, x->rows - 1, x->columns - 1) - first + 1))
			return false;
	}
	return true;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
				     const void *alpha, const void *a, cublasLtMatrixLayout_t la,
				     const void *b, cublasLtMatrixLayout_t lb, const void *beta,
				     const void *c, cublasLtMatrixLayout_t lc, void *d,
				     cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,
				     void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	struct product p = described_by(desc, la, lb, lc, ld);
	uint64_t print = fingerprint(&p);
	uint32_t aligned[4] = {1, 1, 1, 1};
	size_t scalar;

	BEGIN(cublasLtMatmul);
	scalar = fake_type_bytes(p.desc.scale);
	if (algo)
		memcpy(aligned, &algo->data[1], sizeof aligned);
	if (!handle || (algo && algo->data[0] != print))
		fake_fault("cublasLtMatmul: an algorithm of another product");
	if (algo && workspace_bytes < algo->data[3])
		return fake_end(CUBLAS_STATUS_INVALID_VALUE);
	if (workspace_bytes && !fake_shown((uintptr_t)workspace, workspace_bytes))
		fake_fault("cublasLtMatmul: a workspace of %zu bytes at %p", workspace_bytes,
			   workspace);
	fake_called_with((struct fake_called){algo ? "cublasLtMatmul" : "cublasLtMatmul by itself",
					      workspace_bytes});
	p.at[A] = (uintptr_t)a;
	p.at[B] = (uintptr_t)b;
	p.at[C] = (uintptr_t)c;
	p.at[D] = (uintptr_t)d;
	if (p.desc.pointers == CUBLASLT_POINTER_MODE_DEVICE) {
		*p.alpha = (uintptr_t)alpha;
		*p.beta = (uintptr_t)beta;
		if (!fake_shown(*p.alpha, scalar) || !fake_shown(*p.beta, scalar))
			fake_fault("cublasLtMatmul: scalars outside of the window");
	} else {
		memcpy(p.alpha, alpha, scalar);
		memcpy(p.beta, beta, scalar);
	}
	for (int i = A; i <= D; i++)
		if (!there(&p, i, aligned[i])) {
			fake_fault("cublasLtMatmul: matrix %d at %#llx", i,
				   (unsigned long long)p.at[i]);
			return fake_end(CUBLAS_STATUS_INVALID_VALUE);
		}
	for (int i = A; i <= B; i++)
		if (p.desc.scales[i] && !fake_shown(p.desc.scales[i], sizeof(float)))
			fake_fault("cublasLtMatmul: a scale of matrix %d", i);
	if (p.desc.epilogue & WITH_AUX && !aux_there(&p)) {
		fake_fault("cublasLtMatmul: an auxiliary matrix at %#llx",
			   (unsigned long long)p.desc.aux);
		return fake_end(CUBLAS_STATUS_INVALID_VALUE);
	}
	if ((p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS || summed(&p)) && !bias_there(&p)) {
		fake_fault("cublasLtMatmul: a bias at %#llx", (unsigned long long)p.desc.bias);
		return fake_end(CUBLAS_STATUS_INVALID_VALUE);
	}
	computed = p.desc.compute;
	fake_push_kernel(stream, multiply, &p, sizeof p);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}
