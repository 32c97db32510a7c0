/* gemm.c: turns one matrix product of a program into one call of cuBLASLt.
 *
 * For cuBLASLt, D is stored by columns; if a program's D is stored by rows, the transposed product
 * is computed, which has the same elements. A and B stay as they are and are transposed by the
 * call. The algorithm is the first that the library's heuristic returns for these shapes, types and
 * alignments, without a workspace; equal calls on equal GPUs therefore give equal bits, and
 * products of several streams share nothing. Inputs that the library cannot take as they are (no A
 * and B, or a bias at any address) are copied into memory of the stream for this one call.
 *
 * If the record says how the program has called cuBLAS or cuBLASLt (struct rf_gemm_how), the same
 * call is made instead, with the program's layouts, workspace and preferences (cublas.c, and here
 * for cuBLASLt): its bits are those of plain CUDA.
 *
 * A product is a kernel: it runs in the window of its rank (nvidia_hal.h). Addresses in the record
 * are checked against the rank's mappings; those in lists are the program's responsibility, like
 * those in its kernels.
 *
 * Runs in the device thread.
 */
#include <stdio.h>
#include <string.h>

#include "algorithms.h"

#define ALIGNED_MAX 256u /* no algorithm needs a larger alignment */

/* ---- supported products --------------------------------------------------------------------- */

static uint32_t type_bytes(uint8_t type)
{
	switch (type) {
	case CUDA_R_8I: return 1;
	case CUDA_R_16F:
	case CUDA_R_16BF: return 2;
	case CUDA_R_32F:
	case CUDA_R_32I: return 4;
	case CUDA_R_64F: return 8;
	default: return 0;
	}
}

#define WITH_AUX (RF_GEMM_KEEP | RF_GEMM_DRELU | RF_GEMM_DGELU)
#define SUMMED (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B)

/* The library itself decides on combinations of types. */
bool nvidia_gemm_acceptable(const struct rf_gemm_call *call)
{
	const struct rf_gemm *g = &call->g;

	if (g->flags & (WITH_AUX | SUMMED) && g->flags & RF_GEMM_POINTERS)
		return false;
	if (g->flags & WITH_AUX && (call->aux.row != 1 || call->aux.col < g->m))
		return false;
	if ((g->flags & SUMMED && !g->bias) ||
	    (g->flags & RF_GEMM_SUM_D && !(g->flags & (RF_GEMM_DRELU | RF_GEMM_DGELU))))
		return false;
	return type_bytes(g->type_ab) && type_bytes(g->type_cd) && type_bytes(g->type_scale) &&
	       g->type_scale != CUDA_R_8I && (!g->bias || type_bytes(g->type_bias)) &&
	       g->compute >= CUBLAS_COMPUTE_16F && g->compute <= CUBLAS_COMPUTE_32F_FAST_TF32 &&
	       g->m && g->n && g->count && g->m <= INT32_MAX && g->n <= INT32_MAX &&
	       g->k <= INT32_MAX && g->count <= INT32_MAX;
}

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

static struct rf_matrix transposed_matrix(const struct rf_matrix *x)
{
	return (struct rf_matrix){x->addr, x->col, x->row, x->batch};
}

/* With a single row or column the distance to the next one does not matter. */
static bool by_columns(const struct rf_matrix *x, uint64_t rows, uint64_t columns)
{
	return (x->row == 1 || rows == 1) && (x->col >= rows || columns == 1);
}

static uint64_t line_length(uint64_t stride, uint64_t length)
{
	return stride > length ? stride : length;
}

/* Returns the same product with D by columns, if possible: a bias is along D's rows, and kept data
 * is along its columns. */
static struct rf_gemm with_d_by_columns(const struct rf_gemm *call)
{
	struct rf_gemm g = *call;

	if (by_columns(&g.d, g.m, g.n) || g.bias || g.flags & WITH_AUX)
		return g;
	g.m = call->n;
	g.n = call->m;
	g.a = transposed_matrix(&call->b);
	g.b = transposed_matrix(&call->a);
	g.c = transposed_matrix(&call->c);
	g.d = transposed_matrix(&call->d);
	return g;
}

/* ---- addresses ------------------------------------------------------------------------------ */

enum use { READ, WRITTEN };

static bool is_mapped(const struct hal_space *space, uint64_t addr, uint64_t bytes, enum use use)
{
	struct hal_ref ref = {(struct hal_space *)(uintptr_t)space, addr};
	CUdeviceptr at;

	for (uint64_t n; bytes; addr += n, bytes -= n) {
		n = nvidia_space_resolve(space, addr, use == WRITTEN, &at);
		if (!n) {
			ref.addr = addr;
			nvidia_space_settle(&ref, bytes);
			return !ref.space;
		}
		if (n > bytes)
			return true;
	}
	return true;
}

/* Checks everything that the call reads or writes of a matrix, from its first element to its
 * last. */
static bool matrix_there(const struct hal_space *space, const struct rf_gemm *g,
			 const struct rf_matrix *x, uint64_t rows, uint64_t columns, uint8_t type,
			 enum use use)
{
	uint64_t last, across, batches, size = type_bytes(type);

	if (g->flags & RF_GEMM_POINTERS)
		return x->addr % 8 == 0 && is_mapped(space, x->addr, g->count * 8, READ);
	if (__builtin_mul_overflow(rows - 1, x->row, &last) ||
	    __builtin_mul_overflow(columns - 1, x->col, &across) ||
	    __builtin_mul_overflow(g->count - 1, x->batch, &batches) ||
	    __builtin_add_overflow(last, across, &last) ||
	    __builtin_add_overflow(last, batches, &last) || last >= RF_WINDOW_BYTES / size)
		return false;
	return x->addr % size == 0 && is_mapped(space, x->addr, (last + 1) * size, use);
}

/* The number of elements of a bias, or of the sums stored in its place. */
static uint64_t bias_length(const struct rf_gemm *g)
{
	return g->flags & RF_GEMM_SUM_B ? g->n : g->m;
}

static bool bias_there(const struct hal_space *space, const struct rf_gemm *g)
{
	uint64_t last, size = type_bytes(g->type_bias);

	return !__builtin_mul_overflow(g->count - 1, g->bias_batch, &last) &&
	       !__builtin_add_overflow(last, bias_length(g) - 1, &last) &&
	       last < RF_WINDOW_BYTES / size && g->bias % size == 0 &&
	       is_mapped(space, g->bias, (last + 1) * size, g->flags & SUMMED ? WRITTEN : READ);
}

/* Bits are checked as a matrix of bytes. */
static bool aux_there(const struct hal_space *space, const struct rf_gemm *g,
		      const struct rf_matrix *x)
{
	struct rf_matrix bytes = {x->addr, 1, x->col / 8, x->batch / 8};
	enum use use = g->flags & RF_GEMM_KEEP ? WRITTEN : READ;

	return g->flags & (RF_GEMM_RELU | RF_GEMM_DRELU)
		       ? matrix_there(space, g, &bytes, (g->m + 7) / 8, g->n, CUDA_R_8I, use)
		       : matrix_there(space, g, x, g->m, g->n, g->type_cd, use);
}

/* True if a scalar is zero, as far as that is known before the product runs. Its factor is then not
 * read. */
static bool is_zero(const struct rf_gemm *g, uint64_t bits)
{
	uint32_t width = 8 * type_bytes(g->type_scale);
	uint64_t sign = g->type_scale == CUDA_R_32I ? 0 : 1ull << (width - 1);

	if (width < 64)
		bits &= (1ull << width) - 1;
	return !(g->flags & RF_GEMM_SCALARS) && !(bits & ~sign);
}

static bool has_factors(const struct rf_gemm *g)
{
	return g->k && (!is_zero(g, g->alpha) || g->flags & (RF_GEMM_SUM_A | RF_GEMM_SUM_B));
}

static bool all_there(const struct hal_space *space, const struct rf_gemm *g,
		      const struct rf_matrix *aux)
{
	uint32_t scalar = type_bytes(g->type_scale);

	if (g->flags & RF_GEMM_SCALARS &&
	    (!is_mapped(space, g->alpha, scalar, READ) || !is_mapped(space, g->beta, scalar, READ)))
		return false;
	return (!has_factors(g) || (matrix_there(space, g, &g->a, g->m, g->k, g->type_ab, READ) &&
				    matrix_there(space, g, &g->b, g->k, g->n, g->type_ab, READ))) &&
	       (is_zero(g, g->beta) ||
		matrix_there(space, g, &g->c, g->m, g->n, g->type_cd, READ)) &&
	       matrix_there(space, g, &g->d, g->m, g->n, g->type_cd, WRITTEN) &&
	       (!g->bias || bias_there(space, g)) &&
	       (!(g->flags & WITH_AUX) || aux_there(space, g, aux));
}

static bool workspace_there(const struct hal_space *space, const struct rf_gemm_how *how)
{
	return !how->workspace || is_mapped(space, how->workspace, how->workspace_bytes, WRITTEN);
}

/* ---- inputs that the library cannot take as they are ----------------------------------------- */

#define ZEROS_DEPTH 16u /* supported by kernels of all types */

struct spares { /* memory for one call */
	CUdeviceptr at[3];
	uint32_t count;
	CUDA_MEMCPY2D back; /* copies a result back afterwards; Height 0: none */
};

static CUresult spare_alloc(const struct hal_stream *s, struct spares *all, uint64_t bytes,
			    uint64_t *at)
{
	CUresult error = s->device->driver->cuMemAllocAsync(&all->at[all->count], bytes, s->stream);

	if (!error)
		*at = all->at[all->count++];
	return error;
}

static CUresult spares_free(const struct hal_stream *s, const struct spares *all)
{
	CUresult error = CUDA_SUCCESS, last;

	for (uint32_t i = 0; i < all->count; i++) {
		last = s->device->driver->cuMemFreeAsync(all->at[i], s->stream);
		error = error ? error : last;
	}
	return error;
}

/* Sets A and B to zeros, because the library reads them whatever alpha is, and has no product with
 * k = 0. */
static CUresult without_factors(const struct hal_stream *s, struct rf_gemm *g, struct spares *all)
{
	const struct nvidia_driver *d = s->device->driver;
	uint64_t bytes = (g->m > g->n ? g->m : g->n) * ZEROS_DEPTH * type_bytes(g->type_ab);
	uint64_t zeros = 0, list = 0;
	CUresult error = spare_alloc(s, all, bytes, &zeros);

	if (!error)
		error = d->cuMemsetD2D8Async(zeros, bytes, 0, bytes, 1, s->stream);
	g->k = ZEROS_DEPTH;
	g->a = (struct rf_matrix){zeros, ZEROS_DEPTH, 1, 0};
	g->b = (struct rf_matrix){zeros, 1, ZEROS_DEPTH, 0};
	if (error || !(g->flags & RF_GEMM_POINTERS))
		return error;
	error = spare_alloc(s, all, g->count * sizeof zeros, &list);
	for (uint32_t half = 0; !error && half < 2; half++) /* halves of each address */
		error = d->cuMemsetD2D32Async(list + 4 * half, sizeof zeros,
					      (uint32_t)(zeros >> 32 * half), 1, g->count,
					      s->stream);
	g->a.addr = g->b.addr = list;
	return error;
}

static void swap_sides(CUDA_MEMCPY2D *rows)
{
	CUdeviceptr from = rows->srcDevice;
	size_t pitch = rows->srcPitch;

	rows->srcDevice = rows->dstDevice;
	rows->srcPitch = rows->dstPitch;
	rows->dstDevice = from;
	rows->dstPitch = pitch;
}

/* Moves a bias to an address that all kernels accept; sums are copied back. */
static CUresult align_bias(const struct hal_stream *s, struct rf_gemm *g, struct spares *all)
{
	uint64_t size = type_bytes(g->type_bias), bytes = bias_length(g) * size;
	uint64_t step = g->bias_batch * size;
	uint64_t pitch = (bytes + NVIDIA_BIAS_ALIGNED - 1) / NVIDIA_BIAS_ALIGNED *
			 NVIDIA_BIAS_ALIGNED,
		 at = 0;
	uint64_t count = step ? g->count : 1;
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .srcDevice = g->bias,
			      .srcPitch = count > 1 ? step : bytes,
			      .WidthInBytes = bytes,
			      .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .dstPitch = pitch,
			      .Height = count};
	CUresult error;

	if (g->bias % NVIDIA_BIAS_ALIGNED == 0 && (count == 1 || step % NVIDIA_BIAS_ALIGNED == 0))
		return CUDA_SUCCESS;
	if (rows.srcPitch < bytes || rows.srcPitch > INT32_MAX || pitch > INT32_MAX)
		return CUDA_ERROR_NOT_SUPPORTED; /* by copies */
	error = spare_alloc(s, all, count * pitch, &at);
	rows.dstDevice = at;
	if (!error && g->flags & SUMMED) {
		swap_sides(&rows);
		all->back = rows;
	} else if (!error)
		error = s->device->driver->cuMemcpy2DAsync_v2(&rows, s->stream);
	g->bias = at;
	g->bias_batch = step ? pitch / size : 0;
	return error;
}

/* Copies of pinned memory would not keep the stream's order, so it is not moved. */
static bool in_heap(const struct hal_space *space, uint64_t addr)
{
	CUdeviceptr at;

	return nvidia_space_resolve(space, addr, false, &at);
}

static CUresult prepare_call(const struct hal_stream *s, const struct hal_space *space,
			     struct rf_gemm *g, struct spares *all)
{
	CUresult error = has_factors(g) ? CUDA_SUCCESS : without_factors(s, g, all);

	if (!error && g->bias && in_heap(space, g->bias))
		error = align_bias(s, g, all);
	return error;
}

/* ---- the call ------------------------------------------------------------------------------- */

struct gemm_call { /* the descriptors of one product */
	const struct nvidia_blas *blas;
	const struct rf_gemm *g;
	const struct rf_matrix *aux;
	const struct rf_gemm_how *how; /* NULL: not as a program has called it */
	cublasStatus_t status;         /* of the first call that failed */
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c, d;
	cublasLtMatmulPreference_t preference;
};
#define TRY(k, name, ...) ((k)->status = (k)->status ? (k)->status : (k)->blas->name(__VA_ARGS__))
#define SET_DESC(k, attribute, value)                                                              \
	TRY(k, cublasLtMatmulDescSetAttribute, (k)->desc, attribute, &(value), sizeof(value))
#define SET_LAYOUT(k, layout, attribute, value)                                                    \
	TRY(k, cublasLtMatrixLayoutSetAttribute, layout, attribute, &(value), sizeof(value))
#define SET_PREFERENCE(k, attribute, value)                                                        \
	TRY(k, cublasLtMatmulPreferenceSetAttribute, (k)->preference, attribute, &(value),         \
	    sizeof(value))

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

/* The alignment of several matrices is that of the first one and of their distance; for those in a
 * list only the type is known. */
static uint32_t alignment(const struct rf_gemm *g, const struct rf_matrix *x, uint8_t type)
{
	bool listed = g->flags & RF_GEMM_POINTERS;
	uint64_t size = type_bytes(type), bits = listed ? size : x->addr | ALIGNED_MAX;

	if (!listed && g->count > 1)
		bits |= x->batch * size;
	return (uint32_t)(bits & -bits);
}

static struct nvidia_question question_of(const struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;
	struct nvidia_question q = nvidia_question_of(g, k->how, k->aux);

	if (k->how) {
		memcpy(q.aligned, k->how->aligned, sizeof q.aligned);
		return q;
	}
	q.aligned[0] = alignment(g, &g->a, g->type_ab);
	q.aligned[1] = alignment(g, &g->b, g->type_ab);
	q.aligned[2] = alignment(g, is_zero(g, g->beta) ? &g->d : &g->c, g->type_cd);
	q.aligned[3] = alignment(g, &g->d, g->type_cd);
	return q;
}

/* The preference: the program's, or without a workspace. */
static void prefer(struct gemm_call *k, const uint32_t aligned[4])
{
	static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	bool exact = !k->how && k->g->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
	uint64_t workspace = k->how ? k->how->most_bytes : 0;
	uint32_t reductions = k->how  ? k->how->reductions
			      : exact ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE_MASK
				      : UINT32_MAX;

	TRY(k, cublasLtMatmulPreferenceCreate, &k->preference);
	SET_PREFERENCE(k, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
	if (reductions != UINT32_MAX)
		SET_PREFERENCE(k, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
	for (uint32_t i = 0; i < 4; i++)
		SET_PREFERENCE(k, attributes[i], aligned[i]);
}

static void choose_algorithm(struct gemm_call *k, struct hal_device *device,
			     cublasLtMatmulAlgo_t *algo)
{
	struct nvidia_question question = question_of(k);
	cublasLtMatmulHeuristicResult_t found = {0};
	int count = 0;

	if (nvidia_algorithm_find(device, &question, algo))
		return;
	prefer(k, question.aligned);
	TRY(k, cublasLtMatmulAlgoGetHeuristic, device->blas, k->desc, k->a, k->b, k->c, k->d,
	    k->preference, 1, &found, &count);
	if (!k->status && !count)
		k->status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (!k->status)
		k->status = found.state;
	*algo = found.algo;
	if (!k->status)
		nvidia_algorithm_keep(device, &question, algo);
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

static cublasStatus_t run_product(const struct nvidia_blas *blas, struct hal_device *device,
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
		choose_algorithm(&k, device, &algo);
	TRY(&k, cublasLtMatmul, device->blas, k.desc, alpha, as_pointer(g->a.addr), k.a,
	    as_pointer(g->b.addr), k.b, beta,
	    as_pointer(!how && is_zero(g, g->beta) ? g->d.addr : g->c.addr), k.c,
	    (void *)(uintptr_t)g->d.addr, k.d, without ? NULL : &algo,
	    how ? (void *)(uintptr_t)how->workspace : NULL, how ? how->workspace_bytes : 0, stream);
	call_close(&k);
	return k.status;
}

static CUresult error_of(cublasStatus_t status)
{
	switch (status) {
	case CUBLAS_STATUS_SUCCESS: return CUDA_SUCCESS;
	case CUBLAS_STATUS_NOT_SUPPORTED:
	case CUBLAS_STATUS_ARCH_MISMATCH: return CUDA_ERROR_NOT_SUPPORTED;
	case CUBLAS_STATUS_INVALID_VALUE: return CUDA_ERROR_INVALID_VALUE;
	case CUBLAS_STATUS_ALLOC_FAILED: return CUDA_ERROR_OUT_OF_MEMORY;
	default: return CUDA_ERROR_LAUNCH_FAILED;
	}
}

static CUresult product_error(const struct nvidia_blas *blas, cublasStatus_t status, char *what,
			      uint32_t what_bytes)
{
	snprintf(what, what_bytes, "a matrix product, %s of cuBLASLt",
		 blas->cublasLtGetStatusName(status));
	return error_of(status);
}

/* True if the call is one of cuBLAS and was made, with this status. */
static bool called_cublas(struct hal_stream *s, const struct rf_gemm_call *call,
			  cublasStatus_t *status, char *what, uint32_t what_bytes)
{
	uint8_t api = call->how.api;

	return api > RF_GEMM_LT && nvidia_cublas(s, call, status, what, what_bytes);
}

CUresult nvidia_gemm(struct hal_stream *s, struct hal_space *space, const struct rf_gemm_call *call,
		     char *what, uint32_t what_bytes)
{
	struct hal_device *device = s->device;
	const struct nvidia_blas *blas = nvidia_blas(what, what_bytes);
	bool own = call->how.api;
	struct rf_gemm g = own ? call->g : with_d_by_columns(&call->g);
	cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
	struct spares spares = {.count = 0};
	CUresult error, last;

	if (!blas)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!all_there(space, &g, &call->aux) || !workspace_there(space, &call->how)) {
		snprintf(what, what_bytes,
			 "a matrix product with an address that is not mapped, or with a result in "
			 "memory that is read-only");
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	if (called_cublas(s, call, &status, what, what_bytes))
		return status ? product_error(blas, status, what, what_bytes) : CUDA_SUCCESS;
	if (!device->blas)
		status = blas->cublasLtCreate(&device->blas);
	if (status)
		return product_error(blas, status, what, what_bytes);
	snprintf(what, what_bytes, "memory for a matrix product");
	error = own ? CUDA_SUCCESS : prepare_call(s, space, &g, &spares);
	if (!error)
		status = run_product(blas, device, &g, call, s->stream);
	if (!error && !status && spares.back.Height)
		error = device->driver->cuMemcpy2DAsync_v2(&spares.back, s->stream);
	last = spares_free(s, &spares);
	if (status)
		return product_error(blas, status, what, what_bytes);
	return error ? error : last;
}

void nvidia_gemm_close(struct hal_device *device)
{
	if (device->blas)
		nvidia_blas(NULL, 0)->cublasLtDestroy(device->blas);
	device->blas = NULL;
	nvidia_algorithms_close(device);
	nvidia_cublas_close(device);
}
