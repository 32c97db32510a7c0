/* gemm.c: turns one matrix product of a program into one call of cuBLAS or cuBLASLt.
 *
 * For cuBLASLt, D is stored by columns; if a program's D is stored by rows, the transposed product
 * is computed, which has the same elements. Inputs that the library cannot take as they are (no A
 * and B, or a bias at any address) are copied into memory of the stream for this one call.
 *
 * If the record says how the program has called cuBLAS or cuBLASLt (struct rf_gemm_how), the same
 * call is made instead, with the program's layouts, workspace and preferences: its bits are those
 * of plain CUDA.
 *
 * A product is a kernel: it runs in the window of its rank (nvidia_hal.h). Addresses in the record
 * are checked against the rank's mappings; those in lists are the program's responsibility, like
 * those in its kernels.
 *
 * Runs in the device thread.
 */
#include <stdio.h>

#include "gemm.h"

/* ---- supported products --------------------------------------------------------------------- */

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

static struct rf_matrix transposed_matrix(const struct rf_matrix *x)
{
	return (struct rf_matrix){x->addr, x->col, x->row, x->batch};
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
		status = nvidia_cublaslt(blas, device, &g, call, s->stream);
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
