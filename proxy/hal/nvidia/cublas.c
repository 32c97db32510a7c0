/* cublas.c: the handle of cuBLAS, and products of real numbers, as the program has called them: the
 * same function of NVIDIA's library with the same numbers, modes and workspace, so that the bits
 * are those of plain CUDA. (Other functions: calls.c.)
 *
 * There is one handle for the device. A call sets all that a program can set of its own.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "blas.h"
#include "calls.h"

typedef struct cublasContext *handle_t;
typedef cublasStatus_t one_t(handle_t, int, int, int, int, int, const void *, const void *, int,
			     const void *, int, const void *, void *, int);
typedef cublasStatus_t strided_t(handle_t, int, int, int, int, int, const void *, const void *, int,
				 long long, const void *, int, long long, const void *, void *, int,
				 long long, int);
typedef cublasStatus_t listed_t(handle_t, int, int, int, int, int, const void *, const void *, int,
				const void *, int, const void *, void *, int, int);

static struct {
	void *library;
	cublasStatus_t (*cublasCreate_v2)(handle_t *);
	cublasStatus_t (*cublasDestroy_v2)(handle_t);
	cublasStatus_t (*cublasSetStream_v2)(handle_t, CUstream);
	cublasStatus_t (*cublasSetWorkspace_v2)(handle_t, void *, size_t);
	cublasStatus_t (*cublasSetMathMode)(handle_t, int);
	cublasStatus_t (*cublasSetPointerMode_v2)(handle_t, int);
	cublasStatus_t (*cublasSetAtomicsMode)(handle_t, int);
	cublasStatus_t (*cublasSetSmCountTarget)(handle_t, int);
	cublasStatus_t (*cublasGemmEx)(handle_t, int, int, int, int, int, const void *,
				       const void *, int, int, const void *, int, int, const void *,
				       void *, int, int, int, int);
	cublasStatus_t (*cublasGemmStridedBatchedEx)(handle_t, int, int, int, int, int,
						     const void *, const void *, int, int,
						     long long, const void *, int, int, long long,
						     const void *, void *, int, int, long long, int,
						     int, int);
	cublasStatus_t (*cublasGemmBatchedEx)(handle_t, int, int, int, int, int, const void *,
					      const void *, int, int, const void *, int, int,
					      const void *, void *, int, int, int, int, int);
	one_t *cublasSgemm_v2, *cublasDgemm_v2, *cublasHgemm;
	strided_t *cublasSgemmStridedBatched, *cublasDgemmStridedBatched,
		*cublasHgemmStridedBatched;
	listed_t *cublasSgemmBatched, *cublasDgemmBatched, *cublasHgemmBatched;
} own;

static bool find_functions(char *text, uint32_t text_bytes)
{
	const char *missing = NULL;

	if (own.library)
		return true;
	own.library = nvidia_library("cublas", text, text_bytes);
	if (!own.library)
		return false;
#define FIND(name)                                                                                 \
	*(void **)&own.name = dlsym(own.library, #name);                                           \
	missing = own.name ? missing : #name
	FIND(cublasCreate_v2);
	FIND(cublasDestroy_v2);
	FIND(cublasSetStream_v2);
	FIND(cublasSetWorkspace_v2);
	FIND(cublasSetMathMode);
	FIND(cublasSetPointerMode_v2);
	FIND(cublasSetAtomicsMode);
	FIND(cublasSetSmCountTarget);
	FIND(cublasGemmEx);
	FIND(cublasGemmStridedBatchedEx);
	FIND(cublasGemmBatchedEx);
	FIND(cublasSgemm_v2);
	FIND(cublasDgemm_v2);
	FIND(cublasHgemm);
	FIND(cublasSgemmStridedBatched);
	FIND(cublasDgemmStridedBatched);
	FIND(cublasHgemmStridedBatched);
	FIND(cublasSgemmBatched);
	FIND(cublasDgemmBatched);
	FIND(cublasHgemmBatched);
#undef FIND
	if (missing) {
		snprintf(text, text_bytes, "cuBLAS has no %s: it must be of CUDA 12 or newer",
			 missing);
		own.library = NULL;
	}
	return !missing;
}

/* The first failure of several calls. */
#define TRY(status, call) ((status) = (status) ? (status) : (call))

struct settings {
	uint64_t workspace, workspace_bytes;
	int math, pointers, atomics, sm_count;
};

/* The device's handle, set as the program's is. Setting the stream also takes away a workspace, so
 * it is first. */
static cublasStatus_t set_handle(struct hal_stream *s, const struct settings *of)
{
	cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
	handle_t h;

	if (!s->device->cublas)
		status = own.cublasCreate_v2((handle_t *)&s->device->cublas);
	h = s->device->cublas;
	TRY(status, own.cublasSetStream_v2(h, s->stream));
	if (of->workspace)
		TRY(status, own.cublasSetWorkspace_v2(h, (void *)(uintptr_t)of->workspace,
						      of->workspace_bytes));
	TRY(status, own.cublasSetMathMode(h, of->math));
	TRY(status, own.cublasSetPointerMode_v2(h, of->pointers));
	TRY(status, own.cublasSetAtomicsMode(h, of->atomics));
	TRY(status, own.cublasSetSmCountTarget(h, of->sm_count));
	return status;
}

int nvidia_cublas_open(struct hal_stream *s, const uint64_t *slots, void **handle)
{
	char text[CUDA_TEXT_BYTES];
	struct settings settings = {.workspace = slots[2],
				    .workspace_bytes = slots[3],
				    .math = (int)(uint32_t)slots[0],
				    .pointers = slots[0] & RF_BLAS_ON_DEVICE ? 1 : 0,
				    .atomics = (int)(slots[0] >> RF_BLAS_ATOMICS & 1),
				    .sm_count = (int)slots[1]};
	cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;

	if (find_functions(text, sizeof text))
		status = set_handle(s, &settings);
	*handle = s->device->cublas;
	return status;
}

struct numbers { /* of a call, as cuBLAS takes them */
	int opa, opb, m, n, k, lda, ldb, ldc, count;
	long long a_step, b_step, c_step;
	const void *a, *b, *alpha, *beta;
	void *c;
};

static const void *scalar_of(const struct rf_gemm *g, const uint64_t *bits)
{
	return g->flags & RF_GEMM_SCALARS ? (const void *)(uintptr_t)*bits : bits;
}

static bool fits(uint64_t number) { return number <= INT32_MAX; }

static bool numbers_of(const struct rf_gemm_call *call, struct numbers *x)
{
	const struct rf_gemm *g = &call->g;
	const struct rf_gemm_how *how = &call->how;

	*x = (struct numbers){how->op[0],
			      how->op[1],
			      (int)g->m,
			      (int)g->n,
			      (int)g->k,
			      (int)how->ld[0],
			      (int)how->ld[1],
			      (int)how->ld[2],
			      (int)g->count,
			      (long long)g->a.batch,
			      (long long)g->b.batch,
			      (long long)g->c.batch,
			      (const void *)(uintptr_t)g->a.addr,
			      (const void *)(uintptr_t)g->b.addr,
			      scalar_of(g, &g->alpha),
			      scalar_of(g, &g->beta),
			      (void *)(uintptr_t)g->c.addr};
	return fits(how->ld[0]) && fits(how->ld[1]) && fits(how->ld[2]);
}

/* One of three, by the type of the numbers. */
#define TYPED(g, s, d, h)                                                                          \
	((g)->type_ab == CUDA_R_64F ? own.d : (g)->type_ab == CUDA_R_16F ? own.h : own.s)

static cublasStatus_t multiply(handle_t h, const struct rf_gemm_call *call, const struct numbers *x)
{
	const struct rf_gemm *g = &call->g;
	int ab = g->type_ab, c = g->type_cd, compute = (int)g->compute;
	int algorithm = call->how.algorithm;

	switch (call->how.api) {
	case RF_GEMM_ONE:
		return TYPED(g, cublasSgemm_v2, cublasDgemm_v2,
			     cublasHgemm)(h, x->opa, x->opb, x->m, x->n, x->k, x->alpha, x->a,
					  x->lda, x->b, x->ldb, x->beta, x->c, x->ldc);
	case RF_GEMM_STRIDED:
		return TYPED(g, cublasSgemmStridedBatched, cublasDgemmStridedBatched,
			     cublasHgemmStridedBatched)(
			h, x->opa, x->opb, x->m, x->n, x->k, x->alpha, x->a, x->lda, x->a_step,
			x->b, x->ldb, x->b_step, x->beta, x->c, x->ldc, x->c_step, x->count);
	case RF_GEMM_LISTED:
		return TYPED(g, cublasSgemmBatched, cublasDgemmBatched, cublasHgemmBatched)(
			h, x->opa, x->opb, x->m, x->n, x->k, x->alpha, x->a, x->lda, x->b, x->ldb,
			x->beta, x->c, x->ldc, x->count);
	case RF_GEMM_ONE_EX:
		return own.cublasGemmEx(h, x->opa, x->opb, x->m, x->n, x->k, x->alpha, x->a, ab,
					x->lda, x->b, ab, x->ldb, x->beta, x->c, c, x->ldc, compute,
					algorithm);
	case RF_GEMM_STRIDED_EX:
		return own.cublasGemmStridedBatchedEx(h, x->opa, x->opb, x->m, x->n, x->k, x->alpha,
						      x->a, ab, x->lda, x->a_step, x->b, ab, x->ldb,
						      x->b_step, x->beta, x->c, c, x->ldc,
						      x->c_step, x->count, compute, algorithm);
	case RF_GEMM_LISTED_EX:
		return own.cublasGemmBatchedEx(h, x->opa, x->opb, x->m, x->n, x->k, x->alpha, x->a,
					       ab, x->lda, x->b, ab, x->ldb, x->beta, x->c, c,
					       x->ldc, x->count, compute, algorithm);
	default: return CUBLAS_STATUS_NOT_SUPPORTED;
	}
}

bool nvidia_cublas(struct hal_stream *s, const struct rf_gemm_call *call, cublasStatus_t *status,
		   char *what, uint32_t what_bytes)
{
	const struct rf_gemm_how *how = &call->how;
	struct settings settings = {how->workspace,    how->workspace_bytes,
				    (int)call->g.math, call->g.flags & RF_GEMM_SCALARS ? 1 : 0,
				    how->atomics,      how->sm_count};
	struct numbers numbers = {0};

	if (!find_functions(what, what_bytes))
		return false;
	*status = CUBLAS_STATUS_SUCCESS;
	if (!numbers_of(call, &numbers))
		*status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (!*status)
		*status = set_handle(s, &settings);
	if (!*status)
		*status = multiply(s->device->cublas, call, &numbers);
	return true;
}

void nvidia_cublas_close(struct hal_device *device)
{
	if (device->cublas)
		own.cublasDestroy_v2(device->cublas);
	device->cublas = NULL;
}
