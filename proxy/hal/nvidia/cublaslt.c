/* cublaslt.c: describes one product for cuBLASLt, and makes the call.
 *
 * A and B stay as they are and are transposed by the call. Equal calls on equal GPUs give equal
 * bits, and without a workspace products of several streams share nothing. If the program has
 * called cuBLASLt itself, its own layouts, workspace and preferences are used.
 *
 * Runs in the device thread.
 */
#include "gemm.h"

/* A handle's math mode is expressed by the compute type here. */
static cublasComputeType_t compute_of(const struct rf_gemm *g)
{
	uint32_t mode = g->math & 15u;

	if (mode == CUBLAS_PEDANTIC_MATH && g->compute <= CUBLAS_COMPUTE_32I)
		return (cublasComputeType_t)(g->compute | 1u); /* odd numbers are pedantic */
	if (mode == CUBLAS_TF32_TENSOR_OP_MATH && g->compute == CUBLAS_COMPUTE_32F)
		return CUBLAS_COMPUTE_32F_FAST_TF32;
	return (cublasComputeType_t)g->compute;
}

static uint64_t line_length(uint64_t stride, uint64_t length)
{
	return stride > length ? stride : length;
}

#define SET_DESC(k, attribute, value)                                                              \
	TRY(k, cublasLtMatmulDescSetAttribute, (k)->desc, attribute, &(value), sizeof(value))
#define SET_LAYOUT(k, layout, attribute, value)                                                    \
	TRY(k, cublasLtMatrixLayoutSetAttribute, layout, attribute, &(value), sizeof(value))

static void make_layout(struct gemm_call *k, cublasLtMatrixLayout_t *out, const struct rf_matrix *x,
			uint8_t type, uint64_t rows, uint64_t columns, uint64_t ld, int32_t order)
{
	int32_t count = (int32_t)k->g->count, mode = CUBLASLT_BATCH_MODE_POINTER_ARRAY;
	int64_t stride = (int64_t)x->batch;

	TRY(k, cublasLtMatrixLayoutCreate, out, (cudaDataType)type, rows, columns, (int64_t)ld);
	if (order != CUBLASLT_ORDER_COL)
		SET_LAYOUT(k, *out, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
	if (k->g->flags & RF_GEMM_POINTERS)
		SET_LAYOUT(k, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, mode);
	if (count > 1 || k->g->flags & RF_GEMM_POINTERS)
		SET_LAYOUT(k, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
	if (count > 1 && !(k->g->flags & RF_GEMM_POINTERS))
		SET_LAYOUT(k, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

/* Describes matrix number `i` as the program has. */
static void describe_own(struct gemm_call *k, cublasLtMatrixLayout_t *out,
			 const struct rf_matrix *x, uint32_t i, uint64_t rows, uint64_t columns)
{
	const struct rf_gemm_how *how = k->how;
	bool turned = i < 2 && how->op[i] != CUBLAS_OP_N;

	make_layout(k, out, x, i < 2 ? k->g->type_ab : k->g->type_cd, turned ? columns : rows,
		    turned ? rows : columns, how->ld[i],
		    how->by_rows >> i & 1 ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL);
}

/* Describes A or B: by columns, or transposed by the call. */
static void describe_operand(struct gemm_call *k, cublasLtMatrixLayout_t *out,
			     const struct rf_matrix *x, uint64_t rows, uint64_t columns,
			     cublasLtMatmulDescAttributes_t attribute)
{
	int32_t op = by_columns(x, rows, columns) ? CUBLAS_OP_N : CUBLAS_OP_T;

	if (op == CUBLAS_OP_N)
		make_layout(k, out, x, k->g->type_ab, rows, columns, line_length(x->col, rows),
			    CUBLASLT_ORDER_COL);
	else
		make_layout(k, out, x, k->g->type_ab, columns, rows, line_length(x->row, columns),
			    CUBLASLT_ORDER_COL);
	SET_DESC(k, attribute, op);
}

static void describe_result(struct gemm_call *k, cublasLtMatrixLayout_t *out,
			    const struct rf_matrix *x)
{
	uint64_t m = k->g->m, n = k->g->n;
	bool columns = by_columns(x, m, n);

	make_layout(k, out, x, k->g->type_cd, m, n,
		    columns ? line_length(x->col, m) : line_length(x->row, n),
		    columns ? CUBLASLT_ORDER_COL : CUBLASLT_ORDER_ROW);
}

/* The step as a cublasLtEpilogue_t; 0: none. */
static uint32_t steps_of(const struct rf_gemm *g)
{
	static const struct {
		uint32_t flag, keeping, summing, plain;
	} all[] = {
		{RF_GEMM_RELU, CUBLASLT_EPILOGUE_RELU_AUX, 0, CUBLASLT_EPILOGUE_RELU},
		{RF_GEMM_GELU, CUBLASLT_EPILOGUE_GELU_AUX, 0, CUBLASLT_EPILOGUE_GELU},
		{RF_GEMM_DRELU, 0, CUBLASLT_EPILOGUE_DRELU_BGRAD, CUBLASLT_EPILOGUE_DRELU},
		{RF_GEMM_DGELU, 0, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_DGELU},
		{RF_GEMM_SUM_A, 0, CUBLASLT_EPILOGUE_BGRADA, 0},
		{RF_GEMM_SUM_B, 0, CUBLASLT_EPILOGUE_BGRADB, 0},
	};
	uint32_t steps = g->bias && !(g->flags & SUMMED) ? CUBLASLT_EPILOGUE_BIAS : 0;

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (g->flags & all[i].flag)
			steps |= g->flags & RF_GEMM_KEEP ? all[i].keeping
				 : g->flags & SUMMED     ? all[i].summing
							 : all[i].plain;
	return steps;
}

static void describe_epilogue(struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;
	uint32_t steps = steps_of(g);
	int32_t type = g->type_bias;
	int64_t stride = (int64_t)g->bias_batch, aux_ld = (int64_t)k->aux->col;
	int64_t aux_stride = (int64_t)k->aux->batch;

	if (!steps)
		return;
	SET_DESC(k, CUBLASLT_MATMUL_DESC_EPILOGUE, steps);
	if (g->flags & WITH_AUX) {
		SET_DESC(k, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, k->aux->addr);
		SET_DESC(k, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
		if (g->count > 1)
			SET_DESC(k, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, aux_stride);
	}
	if (!g->bias)
		return;
	SET_DESC(k, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
	if (type != g->type_cd)
		SET_DESC(k, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
	if (g->count > 1)
		SET_DESC(k, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, stride);
}

static void describe_matrices(struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;

	describe_operand(k, &k->a, &g->a, g->m, g->k, CUBLASLT_MATMUL_DESC_TRANSA);
	describe_operand(k, &k->b, &g->b, g->k, g->n, CUBLASLT_MATMUL_DESC_TRANSB);
	describe_result(k, &k->c, is_zero(g, g->beta) ? &g->d : &g->c);
	describe_result(k, &k->d, &g->d);
}

static void describe_own_matrices(struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;
	int32_t a = k->how->op[0], b = k->how->op[1], sm_count = k->how->sm_count;

	describe_own(k, &k->a, &g->a, 0, g->m, g->k);
	describe_own(k, &k->b, &g->b, 1, g->k, g->n);
	describe_own(k, &k->c, &g->c, 2, g->m, g->n);
	describe_own(k, &k->d, &g->d, 3, g->m, g->n);
	SET_DESC(k, CUBLASLT_MATMUL_DESC_TRANSA, a);
	SET_DESC(k, CUBLASLT_MATMUL_DESC_TRANSB, b);
	if (sm_count)
		SET_DESC(k, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sm_count);
}

static void describe_call(struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;
	int32_t on_device = CUBLASLT_POINTER_MODE_DEVICE;

	TRY(k, cublasLtMatmulDescCreate, &k->desc, compute_of(g), (cudaDataType)g->type_scale);
	if (k->how)
		describe_own_matrices(k);
	else
		describe_matrices(k);
	describe_epilogue(k);
	if (g->flags & RF_GEMM_SCALARS)
		SET_DESC(k, CUBLASLT_MATMUL_DESC_POINTER_MODE, on_device);
}

static void call_close(const struct gemm_call *k)
{
	const struct nvidia_blas *blas = k->blas;
	cublasLtMatrixLayout_t layouts[] = {k->a, k->b, k->c, k->d};

	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i])
			blas->cublasLtMatrixLayoutDestroy(layouts[i]);
	if (k->desc)
		blas->cublasLtMatmulDescDestroy(k->desc);
	if (k->preference)
		blas->cublasLtMatmulPreferenceDestroy(k->preference);
}

static const void *as_pointer(uint64_t addr) { return (const void *)(uintptr_t)addr; }

cublasStatus_t nvidia_cublaslt(const struct nvidia_blas *blas, struct hal_device *device,
			       const struct rf_gemm *g, const struct rf_gemm_call *call,
			       CUstream stream)
{
	const struct rf_gemm_how *how = call->how.api ? &call->how : NULL;
	struct gemm_call k = {.blas = blas, .g = g, .aux = &call->aux, .how = how};
	bool on_device = g->flags & RF_GEMM_SCALARS;
	const void *alpha = on_device ? as_pointer(g->alpha) : &g->alpha;
	const void *beta = on_device ? as_pointer(g->beta) : &g->beta;
	/* A program that gives no algorithm leaves the choice to the call. */
	bool without = how && !how->aligned[0];
	cublasLtMatmulAlgo_t algo;

	describe_call(&k);
	if (!without)
		nvidia_choose_algorithm(&k, device, &algo);
	TRY(&k, cublasLtMatmul, device->blas, k.desc, alpha, as_pointer(g->a.addr), k.a,
	    as_pointer(g->b.addr), k.b, beta,
	    as_pointer(!how && is_zero(g, g->beta) ? g->d.addr : g->c.addr), k.c,
	    (void *)(uintptr_t)g->d.addr, k.d, without ? NULL : &algo,
	    how ? (void *)(uintptr_t)how->workspace : NULL, how ? how->workspace_bytes : 0, stream);
	call_close(&k);
	return k.status;
}
