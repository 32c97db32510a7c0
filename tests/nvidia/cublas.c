/* cublas.c: of the fake driver (fake.h): the products of a cuBLAS, as a part of the same library.
 *
 * They have the bits of its cuBLASLt (blas.c). It is stricter than NVIDIA's: a handle that it did
 * not make, a call without a stream of its own, and memory outside of the window are faults of the
 * caller.
 */
#include <stdlib.h>

#include "blas.h"
#include "fake.h"
#include "fake_blas.h"

typedef struct cublasContext {
	CUstream stream;
	uint64_t workspace, workspace_bytes;
	int math, pointers, atomics, sm_count;
	bool streamed;
} *handle_t;
static handle_t own;

struct product { /* of one call, by value */
	int op[2], m, n, k, count, ab, c, scale, ld[3];
	long long step[3];
	uint64_t at[3], alpha, beta;
	bool listed, scalars;
};
enum { A, B, C };

static cublasStatus_t set(handle_t handle, int *to, int value)
{
	if (handle != own)
		return fake_end(CUBLAS_STATUS_NOT_INITIALIZED);
	*to = value;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

/* Types of properties are 0 to 2. */
EXPORT cublasStatus_t cublasGetProperty(int type, int *value)
{
	static const int part[] = {10000, 100, 1};

	if (type < 0 || type > 2)
		return CUBLAS_STATUS_INVALID_VALUE;
	*value = fake_cublas / part[type] % 100;
	return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasCreate_v2(handle_t *out)
{
	BEGIN(cublasCreate_v2);
	if (own)
		fake_fault("cublasCreate: a second handle");
	*out = own = calloc(1, sizeof *own);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasDestroy_v2(handle_t handle)
{
	BEGIN(cublasDestroy_v2);
	if (handle != own)
		return fake_end(CUBLAS_STATUS_NOT_INITIALIZED);
	free(own);
	own = NULL;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasSetStream_v2(handle_t handle, CUstream stream)
{
	BEGIN(cublasSetStream_v2);
	if (handle != own)
		return fake_end(CUBLAS_STATUS_NOT_INITIALIZED);
	own->stream = stream;
	own->streamed = true;
	own->workspace = own->workspace_bytes = 0;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasSetWorkspace_v2(handle_t handle, void *workspace, size_t bytes)
{
	BEGIN(cublasSetWorkspace_v2);
	if (handle != own || (uintptr_t)workspace % 256)
		return fake_end(CUBLAS_STATUS_INVALID_VALUE);
	own->workspace = (uintptr_t)workspace;
	own->workspace_bytes = bytes;
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasSetMathMode(handle_t handle, int mode)
{
	BEGIN(cublasSetMathMode);
	return set(handle, &handle->math, mode);
}

EXPORT cublasStatus_t cublasSetPointerMode_v2(handle_t handle, int mode)
{
	BEGIN(cublasSetPointerMode_v2);
	return set(handle, &handle->pointers, mode);
}

EXPORT cublasStatus_t cublasSetAtomicsMode(handle_t handle, int mode)
{
	BEGIN(cublasSetAtomicsMode);
	return set(handle, &handle->atomics, mode);
}

EXPORT cublasStatus_t cublasSetSmCountTarget(handle_t handle, int count)
{
	BEGIN(cublasSetSmCountTarget);
	return set(handle, &handle->sm_count, count);
}

EXPORT void fake_settings(int values[4])
{
	pthread_mutex_lock(&fake_lock);
	values[0] = own->math;
	values[1] = own->pointers;
	values[2] = own->atomics;
	values[3] = own->sm_count;
	pthread_mutex_unlock(&fake_lock);
}

/* ---- what runs ---- */

static uint64_t element(const struct product *p, int which, int b, int64_t row, int64_t column)
{
	int type = which == C ? p->c : p->ab;
	int64_t i = row + column * p->ld[which] + (p->listed ? 0 : b * p->step[which]);
	uint64_t at = p->listed ? ((const uint64_t *)p->at[which])[b] : p->at[which];

	return at + (uint64_t)i * fake_type_bytes(type);
}

static double operand(const struct product *p, int which, int b, int64_t row, int64_t column)
{
	bool turned = p->op[which];

	return fake_load(element(p, which, b, turned ? column : row, turned ? row : column), p->ab);
}

static double scalar(const struct product *p, const uint64_t *bits)
{
	return fake_load(p->scalars ? *bits : (uint64_t)(uintptr_t)bits, p->scale);
}

static void multiply(const uint8_t *params)
{
	const struct product *p = (const void *)params;
	double alpha = scalar(p, &p->alpha), beta = scalar(p, &p->beta);

	for (int b = 0; b < p->count; b++)
		for (int j = 0; j < p->n; j++)
			for (int i = 0; i < p->m; i++) {
				double sum = 0;

				for (int k = 0; k < p->k; k++)
					sum += operand(p, A, b, i, k) * operand(p, B, b, k, j);
				sum *= alpha;
				if (beta != 0)
					sum += beta * fake_load(element(p, C, b, i, j), p->c);
				fake_store(element(p, C, b, i, j), p->c, sum);
			}
}

/* ---- calls ---- */

static bool there(const struct product *p, int which)
{
	bool turned = which != C && p->op[which];
	int64_t rows = which == B ? p->k : p->m, columns = which == A ? p->k : p->n;

	if (p->listed)
		return fake_shown(p->at[which], (uint64_t)p->count * 8);
	return fake_shown(p->at[which],
			  element(p, which, p->count - 1, turned ? columns - 1 : rows - 1,
				  turned ? rows - 1 : columns - 1) +
				  fake_type_bytes(which == C ? p->c : p->ab) - p->at[which]);
}

static void take_scalars(struct product *p, const void *alpha, const void *beta)
{
	uint32_t bytes = fake_type_bytes(p->scale);

	p->scalars = own->pointers;
	if (p->scalars) {
		p->alpha = (uintptr_t)alpha;
		p->beta = (uintptr_t)beta;
		return;
	}
	if (fake_is_window((uintptr_t)alpha) || fake_is_window((uintptr_t)beta))
		fake_fault("cublas: scalars of the device as those of the host");
	__builtin_memcpy(&p->alpha, alpha, bytes);
	__builtin_memcpy(&p->beta, beta, bytes);
}

bool fake_cublas_begin(const char *name, const void *handle, CUstream *stream, bool *on_device)
{
	if (!handle || handle != own || !own->streamed) {
		fake_fault("%s: a handle of another, or without a stream", name);
		return false;
	}
	own->streamed = false;
	if (own->workspace_bytes && !fake_shown(own->workspace, own->workspace_bytes))
		fake_fault("%s: a workspace that is not the stream's or the rank's", name);
	if (own->workspace_bytes && own->atomics == 0 && own->sm_count == 0)
		*(volatile uint8_t *)own->workspace; /* it can be read */
	fake_called_with((struct fake_called){name, own->workspace_bytes});
	*stream = own->stream;
	*on_device = own->pointers;
	return true;
}

static cublasStatus_t run(const char *name, handle_t handle, struct product *p, const void *alpha,
			  const void *beta)
{
	CUstream stream;
	bool on_device;

	if (!fake_cublas_begin(name, handle, &stream, &on_device))
		return fake_end(CUBLAS_STATUS_NOT_INITIALIZED);
	take_scalars(p, alpha, beta);
	for (int i = A; i <= C; i++)
		if (p->k && !there(p, i)) {
			fake_fault("%s: matrix %d", name, i);
			return fake_end(CUBLAS_STATUS_INVALID_VALUE);
		}
	fake_push_kernel(stream, multiply, p, sizeof *p);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

#define SIZES int opa, int opb, int m, int n, int k
#define PRODUCT(...)                                                                               \
	struct product p = {.op = {opa, opb}, .m = m, .n = n, .k = k, .count = 1, __VA_ARGS__}
#define PLACES .at = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c}, .ld = {lda, ldb, ldc}

static int scale_of(int compute)
{
	return compute == CUBLAS_COMPUTE_64F   ? CUDA_R_64F
	       : compute == CUBLAS_COMPUTE_16F ? CUDA_R_16F
	       : compute == CUBLAS_COMPUTE_32I ? CUDA_R_32I
					       : CUDA_R_32F;
}

#define OF_TYPE(NAME, TYPE, suffix)                                                                \
	EXPORT cublasStatus_t cublas##NAME##suffix(handle_t h, SIZES, const void *alpha,           \
						   const void *a, int lda, const void *b, int ldb, \
						   const void *beta, void *c, int ldc)             \
	{                                                                                          \
		PRODUCT(PLACES, .ab = TYPE, .c = TYPE, .scale = TYPE);                             \
		BEGIN(cublas##NAME);                                                               \
		return run("cublas" #NAME, h, &p, alpha, beta);                                    \
	}                                                                                          \
	EXPORT cublasStatus_t cublas##NAME##StridedBatched(                                        \
		handle_t h, SIZES, const void *alpha, const void *a, int lda, long long as,        \
		const void *b, int ldb, long long bs, const void *beta, void *c, int ldc,          \
		long long cs, int count)                                                           \
	{                                                                                          \
		PRODUCT(PLACES, .ab = TYPE, .c = TYPE, .scale = TYPE, .step = {as, bs, cs});       \
		BEGIN(cublas##NAME##StridedBatched);                                               \
		p.count = count;                                                                   \
		return run("cublas" #NAME "StridedBatched", h, &p, alpha, beta);                   \
	}                                                                                          \
	EXPORT cublasStatus_t cublas##NAME##Batched(                                               \
		handle_t h, SIZES, const void *alpha, const void *a, int lda, const void *b,       \
		int ldb, const void *beta, void *c, int ldc, int count)                            \
	{                                                                                          \
		PRODUCT(PLACES, .ab = TYPE, .c = TYPE, .scale = TYPE, .listed = true);             \
		BEGIN(cublas##NAME##Batched);                                                      \
		p.count = count;                                                                   \
		return run("cublas" #NAME "Batched", h, &p, alpha, beta);                          \
	}
OF_TYPE(Sgemm, CUDA_R_32F, _v2)
OF_TYPE(Dgemm, CUDA_R_64F, _v2)
OF_TYPE(Hgemm, CUDA_R_16F, )

static bool is_complex(int type) { return type == 4 || type == 5; }

#define U(x) (uint64_t)(x)
EXPORT cublasStatus_t cublasGemmEx(handle_t h, SIZES, const void *alpha, const void *a, int ta,
				   int lda, const void *b, int tb, int ldb, const void *beta,
				   void *c, int tc, int ldc, int compute, int algorithm)
{
	PRODUCT(PLACES, .ab = ta, .c = tc, .scale = scale_of(compute));

	if (is_complex(ta)) /* as all are passed: each in 64 bits */
		return fake_complex_product("cublasGemmEx", FAKE_ONE, false,
					    (uint64_t[24]){U(h), U(opa), U(opb), U(m), U(n), U(k),
							   U(alpha), U(a), U(ta), U(lda), U(b),
							   U(tb), U(ldb), U(beta), U(c), U(tc),
							   U(ldc), U(compute), U(algorithm)});
	BEGIN(cublasGemmEx);
	if (ta != tb || algorithm < -1)
		return fake_end(CUBLAS_STATUS_NOT_SUPPORTED);
	return run("cublasGemmEx", h, &p, alpha, beta);
}

EXPORT cublasStatus_t cublasGemmStridedBatchedEx(handle_t h, SIZES, const void *alpha,
						 const void *a, int ta, int lda, long long as,
						 const void *b, int tb, int ldb, long long bs,
						 const void *beta, void *c, int tc, int ldc,
						 long long cs, int count, int compute,
						 int algorithm)
{
	PRODUCT(PLACES, .ab = ta, .c = tc, .scale = scale_of(compute), .step = {as, bs, cs});

	if (is_complex(ta))
		return fake_complex_product(
			"cublasGemmStridedBatchedEx", FAKE_STRIDED, false,
			(uint64_t[24]){U(h),     U(opa), U(opb),   U(m),      U(n),  U(k),
				       U(alpha), U(a),   U(ta),    U(lda),    U(as), U(b),
				       U(tb),    U(ldb), U(bs),    U(beta),   U(c),  U(tc),
				       U(ldc),   U(cs),  U(count), U(compute)});
	BEGIN(cublasGemmStridedBatchedEx);
	p.count = count;
	if (ta != tb || algorithm < -1)
		return fake_end(CUBLAS_STATUS_NOT_SUPPORTED);
	return run("cublasGemmStridedBatchedEx", h, &p, alpha, beta);
}

EXPORT cublasStatus_t cublasGemmBatchedEx(handle_t h, SIZES, const void *alpha, const void *a,
					  int ta, int lda, const void *b, int tb, int ldb,
					  const void *beta, void *c, int tc, int ldc, int count,
					  int compute, int algorithm)
{
	PRODUCT(PLACES, .ab = ta, .c = tc, .scale = scale_of(compute), .listed = true);

	if (is_complex(ta))
		return fake_complex_product("cublasGemmBatchedEx", FAKE_LISTED, false,
					    (uint64_t[24]){U(h), U(opa), U(opb), U(m), U(n), U(k),
							   U(alpha), U(a), U(ta), U(lda), U(b),
							   U(tb), U(ldb), U(beta), U(c), U(tc),
							   U(ldc), U(count), U(compute)});
	BEGIN(cublasGemmBatchedEx);
	p.count = count;
	if (ta != tb || algorithm < -1)
		return fake_end(CUBLAS_STATUS_NOT_SUPPORTED);
	return run("cublasGemmBatchedEx", h, &p, alpha, beta);
}
