/* cublaslt_own.c: products of cuBLASLt that are no records, and transformations of matrices: with
 * descriptors as the program has made them, which live for one call.
 *
 * What a rank sends is passed on to cuBLASLt, which checks it; addresses must be the rank's.
 *
 * Runs in the device thread.
 */
#include <string.h>

#include "calls.h"
#include "gemm.h"

/* Attributes of a product's descriptor (cublasLtMatmulDescAttributes_t) that are addresses. */
#define ADDRESSES                                                                                  \
	(1ull << 8 | 1ull << 11 | 15ull << 17 | 1ull << 21 | 1ull << 23 | 1ull << 24 | 1ull << 36)
#define EMULATION 38u /* an address of the host; none of the later ones is known here */

static bool is_there(const struct hal_space *space, uint64_t address)
{
	return !address || nvidia_space_has(space, address);
}

static bool are_there(const struct hal_space *space, const struct rf_lt *lt)
{
	for (uint32_t i = 0; i < 4; i++)
		if (!is_there(space, lt->at[i]))
			return false;
	return is_there(space, lt->workspace) &&
	       (!lt->alpha_on_device || is_there(space, lt->alpha[0])) &&
	       (!lt->beta_on_device || is_there(space, lt->beta[0]));
}

static void own_layout(struct gemm_call *k, cublasLtMatrixLayout_t *out,
		       const struct rf_lt_layout *l)
{
	int32_t order = (int32_t)l->order, count = (int32_t)l->count;

	if (!l->there)
		return;
	TRY(k, cublasLtMatrixLayoutCreate, out, (cudaDataType)l->type, l->rows, l->columns, l->ld);
	if (order != CUBLASLT_ORDER_COL)
		TRY(k, cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_ORDER, &order,
		    sizeof order);
	if (count == 1)
		return;
	TRY(k, cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
	    sizeof count);
	TRY(k, cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
	    &l->stride, sizeof l->stride);
}

/* The next attribute of the descriptor, or false. */
static bool next_attribute(const struct rf_lt *lt, uint32_t *i, uint32_t *number, uint32_t *bytes)
{
	if (*i >= RF_LT_ATTRIBUTES || !lt->attributes[*i][0])
		return false;
	*number = (uint32_t)lt->attributes[*i][0];
	*bytes = (uint32_t)(lt->attributes[*i][0] >> 32);
	return ++*i;
}

static void own_descriptor(struct gemm_call *k, const struct hal_space *space,
			   const struct rf_lt *lt)
{
	uint32_t i = 0, number, bytes;

	TRY(k, cublasLtMatmulDescCreate, &k->desc, (cublasComputeType_t)lt->compute,
	    (cudaDataType)lt->scale);
	while (next_attribute(lt, &i, &number, &bytes)) {
		const uint64_t *value = &lt->attributes[i - 1][1];

		if (number >= EMULATION || bytes > sizeof *value ||
		    (ADDRESSES >> number & 1 && !is_there(space, *value)))
			k->status = CUBLAS_STATUS_INVALID_VALUE;
		TRY(k, cublasLtMatmulDescSetAttribute, k->desc,
		    (cublasLtMatmulDescAttributes_t)number, value, bytes);
	}
}

/* The algorithm that the program got from the heuristic (algorithms.c), which is asked again. */
static void own_algorithm(struct gemm_call *k, void *handle, const struct rf_lt *lt,
			  cublasLtMatmulAlgo_t *algo)
{
	cublasLtMatmulHeuristicResult_t found = {0};
	uint32_t reductions = (uint32_t)lt->reductions, aligned;
	int count = 0;

	TRY(k, cublasLtMatmulPreferenceCreate, &k->preference);
	TRY(k, cublasLtMatmulPreferenceSetAttribute, k->preference,
	    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->most_bytes, sizeof lt->most_bytes);
	if (reductions != UINT32_MAX)
		TRY(k, cublasLtMatmulPreferenceSetAttribute, k->preference,
		    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
	for (uint32_t i = 0; i < 4; i++) {
		aligned = (uint32_t)lt->aligned[i];
		TRY(k, cublasLtMatmulPreferenceSetAttribute, k->preference,
		    (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES +
							   i),
		    &aligned, sizeof aligned);
	}
	TRY(k, cublasLtMatmulAlgoGetHeuristic, handle, k->desc, k->a, k->b, k->c, k->d,
	    k->preference, 1, &found, &count);
	if (!k->status && !count)
		k->status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (!k->status)
		k->status = found.state;
	*algo = found.algo;
}

static void forget_own(const struct gemm_call *k)
{
	cublasLtMatrixLayout_t layouts[] = {k->a, k->b, k->c, k->d};

	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i])
			k->blas->cublasLtMatrixLayoutDestroy(layouts[i]);
	if (k->desc)
		k->blas->cublasLtMatmulDescDestroy(k->desc);
	if (k->preference)
		k->blas->cublasLtMatmulPreferenceDestroy(k->preference);
}

/* A factor as cuBLASLt takes it: an address, or a number of up to 16 bytes. */
static const void *factor_of(const uint64_t *sent, bool address, uint64_t *aligned)
{
	memcpy(aligned, sent, RF_NUMBER_SLOTS * sizeof *sent);
	return address ? (const void *)(uintptr_t)*sent : aligned;
}

static cublasStatus_t begin_own(struct gemm_call *k, struct hal_stream *s,
				const struct hal_space *space, const struct rf_lt *lt)
{
	char text[CUDA_TEXT_BYTES];

	k->blas = nvidia_blas(text, sizeof text);
	if (!k->blas)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!are_there(space, lt))
		return CUBLAS_STATUS_INVALID_VALUE;
	return s->device->blas ? CUBLAS_STATUS_SUCCESS : k->blas->cublasLtCreate(&s->device->blas);
}

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

int nvidia_lt_multiply(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *answer)
{
	_Alignas(16) uint64_t numbers[2][RF_NUMBER_SLOTS];
	const struct rf_lt *lt = (const void *)(slots + 1);
	struct gemm_call k = {0};
	cublasLtMatmulAlgo_t algo;

	(void)count;
	(void)answer;
	k.status = begin_own(&k, s, space, lt);
	if (k.status)
		return k.status;
	own_descriptor(&k, space, lt);
	own_layout(&k, &k.a, &lt->layouts[0]);
	own_layout(&k, &k.b, &lt->layouts[1]);
	own_layout(&k, &k.c, &lt->layouts[2]);
	own_layout(&k, &k.d, &lt->layouts[3]);
	if (lt->aligned[0])
		own_algorithm(&k, s->device->blas, lt, &algo);
	TRY(&k, cublasLtMatmul, s->device->blas, k.desc,
	    factor_of(lt->alpha, lt->alpha_on_device, numbers[0]), pointer(lt->at[0]), k.a,
	    pointer(lt->at[1]), k.b, factor_of(lt->beta, lt->beta_on_device, numbers[1]),
	    pointer(lt->at[2]), k.c, pointer(lt->at[3]), k.d, lt->aligned[0] ? &algo : NULL,
	    pointer(lt->workspace), lt->workspace_bytes, s->stream);
	forget_own(&k);
	return k.status;
}

int nvidia_lt_transform(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
			uint32_t count, struct nvidia_answer *answer)
{
	_Alignas(16) uint64_t numbers[2][RF_NUMBER_SLOTS];
	const struct rf_lt *lt = (const void *)(slots + 1);
	cublasLtMatrixTransformDesc_t desc = NULL;
	struct gemm_call k = {0};
	uint32_t i = 0, number, bytes;

	(void)count;
	(void)answer;
	k.status = begin_own(&k, s, space, lt);
	if (k.status)
		return k.status;
	TRY(&k, cublasLtMatrixTransformDescCreate, &desc, (cudaDataType)lt->scale);
	while (next_attribute(lt, &i, &number, &bytes))
		TRY(&k, cublasLtMatrixTransformDescSetAttribute, desc,
		    (cublasLtMatrixTransformDescAttributes_t)number, &lt->attributes[i - 1][1],
		    bytes <= sizeof(uint64_t) ? bytes : 0);
	own_layout(&k, &k.a, &lt->layouts[0]);
	own_layout(&k, &k.b, &lt->layouts[1]);
	own_layout(&k, &k.c, &lt->layouts[2]);
	TRY(&k, cublasLtMatrixTransform, s->device->blas, desc,
	    factor_of(lt->alpha, lt->alpha_on_device, numbers[0]), pointer(lt->at[0]), k.a,
	    factor_of(lt->beta, lt->beta_on_device, numbers[1]), pointer(lt->at[1]), k.b,
	    pointer(lt->at[2]), k.c, s->stream);
	if (desc)
		k.blas->cublasLtMatrixTransformDescDestroy(desc);
	forget_own(&k);
	return k.status;
}
