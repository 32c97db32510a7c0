/* cublaslt.c: cuBLASLt's matrix products, and its one algorithm.
 *
 * A product becomes the same record as cuBLAS's. If a descriptor has a value that a record does
 * not have and that would change the result, the product is NVIDIA's (cublaslt_remote.c); without
 * its library it is refused, and the message names the attribute. There is
 * one algorithm: its configurations are stored and returned, and compute the same result. Errors
 * are cublasStatus_t.
 */
#include <string.h>

#include "blaslt.h"

/* ---- products ---- */

/* Reports an unsupported value of an attribute. */
static int refuse_value(const char *what, long long value)
{
	if (!blas_checking)
		LOG_ONCE("a cuBLASLt product with %s %lld is not supported by rankfold", what,
			 value);
	return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The record's flags for each epilogue. */
#define BIASED 0x80000000u /* not a flag of the record: bias is an operand */
static const struct {
	uint32_t epilogue, flags;
} epilogues[] = {
	{CUBLASLT_EPILOGUE_DEFAULT, 0},
	{CUBLASLT_EPILOGUE_RELU, RF_GEMM_RELU},
	{CUBLASLT_EPILOGUE_BIAS, BIASED},
	{CUBLASLT_EPILOGUE_RELU_BIAS, RF_GEMM_RELU | BIASED},
	{CUBLASLT_EPILOGUE_GELU, RF_GEMM_GELU},
	{CUBLASLT_EPILOGUE_GELU_BIAS, RF_GEMM_GELU | BIASED},
	{CUBLASLT_EPILOGUE_RELU_AUX, RF_GEMM_RELU | RF_GEMM_KEEP},
	{CUBLASLT_EPILOGUE_RELU_AUX_BIAS, RF_GEMM_RELU | RF_GEMM_KEEP | BIASED},
	{CUBLASLT_EPILOGUE_DRELU, RF_GEMM_DRELU},
	{CUBLASLT_EPILOGUE_DRELU_BGRAD, RF_GEMM_DRELU | RF_GEMM_SUM_D},
	{CUBLASLT_EPILOGUE_GELU_AUX, RF_GEMM_GELU | RF_GEMM_KEEP},
	{CUBLASLT_EPILOGUE_GELU_AUX_BIAS, RF_GEMM_GELU | RF_GEMM_KEEP | BIASED},
	{CUBLASLT_EPILOGUE_DGELU, RF_GEMM_DGELU},
	{CUBLASLT_EPILOGUE_DGELU_BGRAD, RF_GEMM_DGELU | RF_GEMM_SUM_D},
	{CUBLASLT_EPILOGUE_BGRADA, RF_GEMM_SUM_A},
	{CUBLASLT_EPILOGUE_BGRADB, RF_GEMM_SUM_B},
};
#define WITH_AUX (RF_GEMM_KEEP | RF_GEMM_DRELU | RF_GEMM_DGELU)
#define WITH_BIAS (BIASED | RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B)

static int set_bias(struct rf_gemm *m, const struct desc *d)
{
	if (d->bias_stride < 0)
		return refuse_value("CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE", d->bias_stride);
	m->bias = (uint64_t)d->bias;
	m->bias_batch = (uint64_t)d->bias_stride;
	m->type_bias = d->bias_type < 0 ? m->type_cd : (uint8_t)d->bias_type;
	bool is_double = m->type_bias == CUDA_R_64F;
	if (is_double != (m->type_cd == CUDA_R_64F) ||
	    (!is_double && m->type_bias != CUDA_R_32F && m->type_bias != m->type_cd))
		return refuse_value("CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE", d->bias_type);
	return CUBLAS_STATUS_SUCCESS;
}

/* Sets the auxiliary matrix, stored by columns: ReLU's has bits, GELU's has D's type. */
static int set_aux(struct rf_gemm_call *call, const struct desc *d)
{
	bool bits = call->g.flags & (RF_GEMM_RELU | RF_GEMM_DRELU);
	int64_t unit = bits ? 128 : 8;

	if (!bits && d->aux_type >= 0 && d->aux_type != call->g.type_cd)
		return refuse_value("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE", d->aux_type);
	if (d->aux_ld < (int64_t)call->g.m || d->aux_ld % unit || d->aux_stride < 0 ||
	    d->aux_stride % unit)
		return CUBLAS_STATUS_INVALID_VALUE;
	call->aux = (struct rf_matrix){(uint64_t)d->aux, 1, (uint64_t)d->aux_ld,
				       call->g.count > 1 ? (uint64_t)d->aux_stride : 0};
	return CUBLAS_STATUS_SUCCESS;
}

static int fill_epilogue(struct rf_gemm_call *call, const struct desc *d)
{
	struct rf_gemm *m = &call->g;
	uint32_t flags = UINT32_MAX;
	for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
		if (epilogues[i].epilogue == d->epilogue)
			flags = epilogues[i].flags;
	if (flags == UINT32_MAX)
		return refuse_value("cublasLtEpilogue_t", d->epilogue);
	if (m->type_cd == CUDA_R_32I && flags)
		return refuse_value("an integer result and cublasLtEpilogue_t", d->epilogue);
	if (m->type_ab == CUDA_R_8I && flags & (RF_GEMM_SUM_A | RF_GEMM_SUM_B))
		return refuse_value("integer factors and cublasLtEpilogue_t", d->epilogue);
	m->flags |= flags & ~BIASED;
	int status = flags & WITH_BIAS ? set_bias(m, d) : CUBLAS_STATUS_SUCCESS;
	return !status && flags & WITH_AUX ? set_aux(call, d) : status;
}

/* True if the addresses that the epilogue needs are set. */
static bool has_operands(const struct rf_gemm_call *call, const struct desc *d)
{
	bool biased = d->epilogue & CUBLASLT_EPILOGUE_BIAS ||
		      call->g.flags & (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B);

	return (!biased || call->g.bias) && (!(call->g.flags & WITH_AUX) || call->aux.addr);
}

/* Describes op(X), which must have `rows` and `columns`. */
static int fill_matrix(struct rf_matrix *to, const void *at, const struct layout *x, bool turned,
		       uint64_t rows, uint64_t columns, int32_t count)
{
	bool by_rows = x->order == CUBLASLT_ORDER_ROW;
	uint64_t line = by_rows ? x->columns : x->rows;
	if (x->order > CUBLASLT_ORDER_ROW)
		return refuse_value("CUBLASLT_MATRIX_LAYOUT_ORDER", x->order);
	if ((turned ? x->columns : x->rows) != rows || (turned ? x->rows : x->columns) != columns ||
	    x->count != count || x->ld < 0 || (uint64_t)x->ld < (line ? line : 1))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (x->stride < 0)
		return refuse_value("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", x->stride);
	*to = (struct rf_matrix){(uint64_t)at, 1, (uint64_t)x->ld,
				 count > 1 ? (uint64_t)x->stride : 0};
	if (by_rows != turned) {
		to->row = (uint64_t)x->ld;
		to->col = 1;
	}
	return CUBLAS_STATUS_SUCCESS;
}

/* The first attribute that is set and that records do not have; 0: there is none. */
static int foreign_attribute(const struct desc *d)
{
	static const uint8_t foreign[] = {
		CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
		CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
		CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
		CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
		CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
		CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER,
		CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER,
		CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER,
	};
	for (size_t i = 0; i < sizeof foreign; i++)
		if (d->set >> foreign[i] & 1)
			return foreign[i];
	return 0;
}

/* Fills in a product, except its scalars. */
static int fill_product(struct rf_gemm_call *call, const struct desc *d, const struct operands *o)
{
	struct rf_gemm *m = &call->g;
	if (!d || !o->la || !o->lb || !o->lc || !o->ld)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (foreign_attribute(d))
		return refuse_value("cublasLtMatmulDescAttributes_t", foreign_attribute(d));
	if (d->pointers != CUBLASLT_POINTER_MODE_HOST &&
	    d->pointers != CUBLASLT_POINTER_MODE_DEVICE)
		return refuse_value("CUBLASLT_MATMUL_DESC_POINTER_MODE", d->pointers);
	if (d->transc != CUBLAS_OP_N)
		return refuse_value("CUBLASLT_MATMUL_DESC_TRANSC", d->transc);
	if (d->fill != CUBLAS_FILL_MODE_FULL)
		return refuse_value("CUBLASLT_MATMUL_DESC_FILL_MODE", d->fill);
	if (o->lc->type != o->ld->type)
		return refuse_value("C and D of different types; D's is", o->ld->type);
	int status = gemm_types(m, (int)o->la->type, (int)o->lb->type, (int)o->ld->type,
				d->compute);
	if (status)
		return status;
	if (d->scale != m->type_scale)
		return refuse_value("CUBLASLT_MATMUL_DESC_SCALE_TYPE", d->scale);
	bool turn_a = d->transa != CUBLAS_OP_N, turn_b = d->transb != CUBLAS_OP_N;
	m->m = o->ld->rows;
	m->n = o->ld->columns;
	m->k = turn_a ? o->la->rows : o->la->columns;
	m->count = o->ld->count > 0 ? (uint64_t)o->ld->count : 0;
	status = fill_matrix(&m->a, o->a, o->la, turn_a, m->m, m->k, o->ld->count);
	if (!status)
		status = fill_matrix(&m->b, o->b, o->lb, turn_b, m->k, m->n, o->ld->count);
	if (!status)
		status = fill_matrix(&m->c, o->c, o->lc, false, m->m, m->n, o->ld->count);
	if (!status)
		status = fill_matrix(&m->d, o->d, o->ld, false, m->m, m->n, o->ld->count);
	return status ? status : fill_epilogue(call, d);
}

/* A cuBLAS handle may be used instead of a cuBLASLt handle. */
static bool is_handle(const void *handle)
{
	return handle_get(HANDLE_BLASLT, handle) || handle_get(HANDLE_BLAS, handle);
}

/* Without an algorithm the library chooses one for the workspace. */
static struct rf_gemm_how how_of_lt(const struct desc *d, const struct operands *o,
				    const struct algo *algo, const void *workspace, size_t bytes)
{
	const struct layout *layouts[] = {o->la, o->lb, o->lc, o->ld};
	struct rf_gemm_how how = {.workspace = bytes ? (uint64_t)workspace : 0,
				  .workspace_bytes = workspace ? bytes : 0,
				  .api = RF_GEMM_LT,
				  .op = {(uint8_t)d->transa, (uint8_t)d->transb},
				  .sm_count = d->sm_count,
				  .most_bytes = workspace ? bytes : 0,
				  .reductions = UINT32_MAX};
	for (int i = 0; i < 4; i++) {
		how.ld[i] = (uint64_t)layouts[i]->ld;
		how.by_rows |= (uint8_t)((layouts[i]->order == CUBLASLT_ORDER_ROW) << i);
	}
	if (algo && algo->chosen) {
		how.most_bytes = algo->most_bytes;
		how.reductions = algo->reductions;
		for (int i = 0; i < 4; i++)
			how.aligned[i] = 1u << algo->aligned[i];
	}
	return how;
}

/* The same; true if it is no record, and NVIDIA's library has the product. */
static bool is_nvidias(struct rf_gemm_call *call, const struct desc *d, const struct operands *o,
		       int *status)
{
	bool there = remote_is_there(&remote_cublas);

	blas_checking = there;
	*status = fill_product(call, d, o);
	blas_checking = false;
	return there && *status == CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
			      const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
			      const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
			      const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
			      cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
			      void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream)
{
	const struct desc *d = (const void *)computeDesc;
	struct operands o = {A,
			     B,
			     C,
			     D,
			     (const void *)Adesc,
			     (const void *)Bdesc,
			     (const void *)Cdesc,
			     (const void *)Ddesc};
	struct rf_gemm_call m = {0};
	if (!is_handle(lightHandle))
		return CUBLAS_STATUS_NOT_INITIALIZED;
	int status;
	if (is_nvidias(&m, d, &o, &status))
		return lt_multiply(d, &o, alpha, beta, (const void *)algo, workspace,
				   workspaceSizeInBytes, stream);
	if (!status && !has_operands(&m, d))
		status = CUBLAS_STATUS_INVALID_VALUE;
	if (!status)
		status = gemm_scalars(&m.g, alpha, beta,
				      d->pointers == CUBLASLT_POINTER_MODE_DEVICE);
	if (!status && remote_is_there(&remote_cublas))
		m.how = how_of_lt(d, &o, (const void *)algo, workspace, workspaceSizeInBytes);
	return status ? status : gemm_send(&m, stream);
}

/* ---- the one algorithm ---- */

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t lightHandle, cublasComputeType_t computeType,
				      cudaDataType_t scaleType, cudaDataType_t Atype,
				      cudaDataType_t Btype, cudaDataType_t Ctype,
				      cudaDataType_t Dtype, int algoId, cublasLtMatmulAlgo_t *algo)
{
	struct rf_gemm m;
	struct algo one = {.split_k = 1};
	if (!is_handle(lightHandle))
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!algo || algoId != 0)
		return CUBLAS_STATUS_INVALID_VALUE;
	int status = gemm_types(&m, Atype, Btype, Dtype, computeType);
	if (!status && (Ctype != Dtype || scaleType != m.type_scale))
		status = CUBLAS_STATUS_NOT_SUPPORTED;
	return status ? status : described_init(algo, sizeof *algo, &one, sizeof one);
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t lightHandle,
					cublasComputeType_t computeType, cudaDataType_t scaleType,
					cudaDataType_t Atype, cudaDataType_t Btype,
					cudaDataType_t Ctype, cudaDataType_t Dtype,
					int requestedAlgoCount, int algoIdsArray[],
					int *returnAlgoCount)
{
	cublasLtMatmulAlgo_t algo;
	int status = cublasLtMatmulAlgoInit(lightHandle, computeType, scaleType, Atype, Btype,
					    Ctype, Dtype, 0, &algo);
	if (requestedAlgoCount < 1 || !algoIdsArray || !returnAlgoCount)
		return CUBLAS_STATUS_INVALID_VALUE;
	*returnAlgoCount = !status;
	if (!status)
		algoIdsArray[0] = 0;
	return status;
}

static int check_operands(const void *handle, const void *desc, const struct operands *o,
			  cublasLtMatmulHeuristicResult_t *result)
{
	struct rf_gemm_call m = {0};
	struct algo one = {.split_k = 1};
	if (!is_handle(handle))
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!result)
		return CUBLAS_STATUS_INVALID_VALUE;
	memset(result, 0, sizeof *result);
	int status;
	if (is_nvidias(&m, desc, o, &status))
		status = CUBLAS_STATUS_SUCCESS; /* as far as the client knows */
	result->state = status;
	if (!result->state)
		described_init(&result->algo, sizeof result->algo, &one, sizeof one);
	result->wavesCount = 1.0f;
	return result->state;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle,
				       cublasLtMatmulDesc_t operationDesc,
				       cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
				       cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
				       const cublasLtMatmulAlgo_t *algo,
				       cublasLtMatmulHeuristicResult_t *result)
{
	struct operands o = {.la = (const void *)Adesc,
			     .lb = (const void *)Bdesc,
			     .lc = (const void *)Cdesc,
			     .ld = (const void *)Ddesc};
	int status = check_operands(lightHandle, operationDesc, &o, result);
	if (!status && algo)
		result->algo = *algo;
	return status;
}

/* The proxy asks NVIDIA's heuristic with the same preference when the product runs: its first
 * algorithm is the one that the program would have got here. */
static void remember_preference(cublasLtMatmulHeuristicResult_t *result,
				const struct preference *preference)
{
	struct algo one = {.split_k = 1,
			   .chosen = 1,
			   .reductions = preference->reductions,
			   .most_bytes = preference->workspace};
	for (int i = 0; i < 4; i++)
		while (one.aligned[i] < 8 && 2u << one.aligned[i] <= preference->alignment[i])
			one.aligned[i]++;
	described_init(&result->algo, sizeof result->algo, &one, sizeof one);
	result->workspaceSize = preference->workspace;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
	cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
	cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc,
	cublasLtMatrixLayout_t Ddesc, cublasLtMatmulPreference_t preference, int requestedAlgoCount,
	cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
	struct operands o = {.la = (const void *)Adesc,
			     .lb = (const void *)Bdesc,
			     .lc = (const void *)Cdesc,
			     .ld = (const void *)Ddesc};
	if (!preference || requestedAlgoCount < 1 || !returnAlgoCount)
		return CUBLAS_STATUS_INVALID_VALUE;
	int status = check_operands(lightHandle, operationDesc, &o, heuristicResultsArray);
	*returnAlgoCount = !status;
	if (!status && remote_is_there(&remote_cublas))
		remember_preference(heuristicResultsArray, (const void *)preference);
	return status;
}
