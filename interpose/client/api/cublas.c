/* cublas.c: handles of cuBLAS, and its matrix products of real numbers.
 *
 * A handle is a number and a few modes in the client; the server does not know it. Every product,
 * of whatever function, becomes one record (struct rf_gemm) in its stream: with scalars by value in
 * host pointer mode, and with an address and strides for each matrix. Combinations of types are
 * checked here, so that a program gets cuBLAS's error at once; the device checks addresses. Errors
 * are cublasStatus_t. Only a full ring and synchronous copies block.
 */
#include <string.h>

#include "bodies.h"

static void put_handle(uint64_t *slots, char kind, const void *handle);
/* Products become records of their own, also of NVIDIA's library. */
struct remote_library remote_cublas = {
	.image = RF_LIBRARY_TEXT "cublas",
	.without = "not supported by rankfold on this device",
	.handles = HANDLE_BLAS,
	.put = put_handle,
	.status = {CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_INVALID_VALUE,
		   CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_EXECUTION_FAILED},
};

/* ---- handles ---- */

static void put_handle(uint64_t *slots, char kind, const void *handle)
{
	const struct handle *h = handle;

	(void)kind; /* cuBLAS has no descriptors */
	slots[0] = (uint32_t)h->modes[BLAS_MATH] |
		   (h->modes[BLAS_POINTERS] ? RF_BLAS_ON_DEVICE : 0) |
		   (uint64_t)h->modes[BLAS_ATOMICS] << RF_BLAS_ATOMICS;
	slots[1] = (uint64_t)h->modes[BLAS_SM_COUNT];
	slots[2] = h->workspace;
	slots[3] = h->workspace_bytes;
}

static struct handle *blas_of(const void *handle) { return handle_get(HANDLE_BLAS, handle); }

int blas_check(const void *handle)
{
	return blas_of(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

int blas_create(void *out, enum handle_kind kind)
{
	if (!out)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (context_use_device())
		return CUBLAS_STATUS_NOT_INITIALIZED;
	struct handle *h = handle_new(kind, context_owner());
	if (!h)
		return CUBLAS_STATUS_ALLOC_FAILED;
	void *value = (void *)h->number;
	memcpy(out, &value, sizeof value);
	return CUBLAS_STATUS_SUCCESS;
}

/* Enqueued products of the handle continue. */
int blas_destroy(const void *handle, enum handle_kind kind)
{
	struct handle *h = handle_get(kind, handle);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	handle_drop(h);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId)
{
	struct handle *h = blas_of(handle);
	uint64_t number;
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (stream_number(streamId, &number))
		return CUBLAS_STATUS_INVALID_VALUE;
	h->stream = streamId;
	h->workspace = h->workspace_bytes = 0; /* as NVIDIA's does */
	return CUBLAS_STATUS_SUCCESS;
}

int blas_set_workspace(const void *handle, void *workspace, size_t bytes)
{
	struct handle *h = blas_of(handle);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (bytes && (!workspace || (uint64_t)workspace % 256))
		return CUBLAS_STATUS_INVALID_VALUE;
	h->workspace = bytes ? (uint64_t)workspace : 0;
	h->workspace_bytes = bytes;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId)
{
	const struct handle *h = blas_of(handle);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!streamId)
		return CUBLAS_STATUS_INVALID_VALUE;
	*streamId = h->stream;
	return CUBLAS_STATUS_SUCCESS;
}

int mode_set(const void *handle, enum blas_mode mode, int value, int most)
{
	struct handle *h = blas_of(handle);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (value < 0 || value > most)
		return CUBLAS_STATUS_INVALID_VALUE;
	h->modes[mode] = value;
	return CUBLAS_STATUS_SUCCESS;
}

int mode_get(const void *handle, enum blas_mode mode, int *value)
{
	const struct handle *h = blas_of(handle);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!value)
		return CUBLAS_STATUS_INVALID_VALUE;
	*value = h->modes[mode];
	return CUBLAS_STATUS_SUCCESS;
}

int blas_version(const void *handle, int *version, int number)
{
	(void)handle; /* many programs pass NULL */
	if (!version)
		return CUBLAS_STATUS_INVALID_VALUE;
	*version = number;
	return CUBLAS_STATUS_SUCCESS;
}

/* 0: major, 1: minor, 2: patch */
int blas_property(int property, int *value, int version)
{
	if (property < 0 || property > 2 || !value)
		return CUBLAS_STATUS_INVALID_VALUE;
	*value = property == 0   ? version / 10000
		 : property == 1 ? version / 100 % 100
				 : version % 100;
	return CUBLAS_STATUS_SUCCESS;
}

static const struct {
	int status;
	const char *name, *text;
} statuses[] = {
#define STATUS(name, text) {CUBLAS_STATUS_##name, "CUBLAS_STATUS_" #name, text}
	STATUS(SUCCESS, "success"),
	STATUS(NOT_INITIALIZED, "the library was not initialized"),
	STATUS(ALLOC_FAILED, "the resource allocation failed"),
	STATUS(INVALID_VALUE, "an unsupported value or parameter was passed to the function"),
	STATUS(ARCH_MISMATCH, "the device lacks a feature that the function needs"),
	STATUS(MAPPING_ERROR, "an access to device memory failed"),
	STATUS(EXECUTION_FAILED, "the function failed to run on the device"),
	STATUS(INTERNAL_ERROR, "an internal operation failed"),
	STATUS(NOT_SUPPORTED, "the function is not supported"),
	STATUS(LICENSE_ERROR, "the license could not be checked"),
};

const char *blas_status_name(int status)
{
	for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
		if (statuses[i].status == status)
			return statuses[i].name;
	return "CUBLAS_STATUS_<unknown>";
}

const char *blas_status_text(int status)
{
	for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
		if (statuses[i].status == status)
			return statuses[i].text;
	return "an unknown status";
}

/* ---- types and scalars ---- */

/* The type of alpha and beta for a cublasComputeType_t; -1: unknown. */
static int scale_of(int compute)
{
	switch (compute) {
	case CUBLAS_COMPUTE_16F:
	case CUBLAS_COMPUTE_16F_PEDANTIC: return CUDA_R_16F;
	case CUBLAS_COMPUTE_32F:
	case CUBLAS_COMPUTE_32F_PEDANTIC:
	case CUBLAS_COMPUTE_32F_FAST_16F:
	case CUBLAS_COMPUTE_32F_FAST_16BF:
	case CUBLAS_COMPUTE_32F_FAST_TF32: return CUDA_R_32F;
	case CUBLAS_COMPUTE_64F:
	case CUBLAS_COMPUTE_64F_PEDANTIC: return CUDA_R_64F;
	case CUBLAS_COMPUTE_32I:
	case CUBLAS_COMPUTE_32I_PEDANTIC: return CUDA_R_32I;
	default: return -1;
	}
}

/* The type of alpha and beta of a product of these types, if it is a record; otherwise -1. Accepts
 * the real combinations that cuBLAS documents, except 8-bit floats and int8 results. */
static int record_scale(int a, int b, int c, int compute)
{
	static const struct {
		int ab, c, scale;
	} all[] = {
		{CUDA_R_16F, CUDA_R_16F, CUDA_R_16F},   {CUDA_R_8I, CUDA_R_32I, CUDA_R_32I},
		{CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16F, CUDA_R_16F, CUDA_R_32F},
		{CUDA_R_8I, CUDA_R_32F, CUDA_R_32F},    {CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F},
		{CUDA_R_16F, CUDA_R_32F, CUDA_R_32F},   {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
		{CUDA_R_64F, CUDA_R_64F, CUDA_R_64F},
	};
	int scale = scale_of(compute);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i].ab == a && a == b && all[i].c == c && all[i].scale == scale)
			return scale;
	}
	return -1;
}

bool gemm_is_record(int a, int b, int c, int compute)
{
	return record_scale(a, b, c, compute) >= 0;
}

static bool is_complex_type(int type)
{
	return type == CUDA_C_16F || type == CUDA_C_16BF || type == CUDA_C_32F ||
	       type == CUDA_C_64F || type == CUDA_C_8I;
}

size_t gemm_scalar_bytes(int compute, int a)
{
	int scale = compute == CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT ? CUDA_R_64F
								      : scale_of(compute);
	size_t bytes = scale == CUDA_R_16F ? 2 : scale == CUDA_R_64F ? 8 : 4;

	return is_complex_type(a) ? 2 * bytes : bytes;
}

size_t blas_number_bytes(int type)
{
	switch (type) {
	case CUDA_R_8I:
	case CUDA_R_8U: return 1;
	case CUDA_R_16F:
	case CUDA_R_16BF: return 2;
	case CUDA_R_32F:
	case CUDA_R_32I:
	case CUDA_C_16F:
	case CUDA_C_16BF: return 4;
	case CUDA_R_64F:
	case CUDA_C_32F: return 8;
	case CUDA_C_64F: return 16;
	default: return 0;
	}
}

int gemm_types(struct rf_gemm *m, int a, int b, int c, int compute)
{
	int scale = record_scale(a, b, c, compute);

	if (scale < 0) {
		if (!blas_checking)
			LOG_ONCE("a cuBLAS product of cudaDataType %d by %d into %d, "
				 "cublasComputeType_t %d, is not supported by rankfold",
				 a, b, c, compute);
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	m->type_ab = (uint8_t)a;
	m->type_cd = (uint8_t)c;
	m->type_scale = (uint8_t)scale;
	m->compute = (uint32_t)compute;
	return CUBLAS_STATUS_SUCCESS;
}

int gemm_scalars(struct rf_gemm *m, const void *alpha, const void *beta, bool on_device)
{
	size_t bytes = m->type_scale == CUDA_R_16F ? 2 : m->type_scale == CUDA_R_64F ? 8 : 4;
	if (!alpha || !beta)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (on_device) {
		m->flags |= RF_GEMM_SCALARS;
		m->alpha = (uint64_t)alpha;
		m->beta = (uint64_t)beta;
	} else {
		memcpy(&m->alpha, alpha, bytes);
		memcpy(&m->beta, beta, bytes);
	}
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

/* Sends a product, unless there is nothing to do. */
int gemm_send(struct rf_gemm_call *call, const void *stream)
{
	const struct rf_gemm *m = &call->g;

	if (m->m > INT32_MAX || m->n > INT32_MAX || m->k > INT32_MAX || m->count > INT32_MAX) {
		LOG_ONCE(
			"a cuBLAS product with a side beyond 2^31 - 1 is not supported by rankfold");
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	if (!m->m || !m->n || !m->count)
		return CUBLAS_STATUS_SUCCESS;
	return gemm_post(call, stream) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

/* Describes op(X), which has `rows` and `columns`; X is stored by columns of `ld` elements each. */
static int describe_matrix(struct rf_matrix *to, const struct operand *x, int op, int64_t rows,
			   int64_t columns, int64_t count)
{
	bool turned = op != CUBLAS_OP_N;
	int64_t least = turned ? columns : rows;
	if (op < CUBLAS_OP_N || op > CUBLAS_OP_C || x->ld < (least > 1 ? least : 1))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (count > 1 && x->stride < 0) {
		LOG_ONCE("a cuBLAS product with a negative stride is not supported by rankfold");
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	*to = (struct rf_matrix){(uint64_t)x->at, 1, (uint64_t)x->ld,
				 count > 1 ? (uint64_t)x->stride : 0};
	if (turned) {
		to->row = (uint64_t)x->ld;
		to->col = 1;
	}
	return CUBLAS_STATUS_SUCCESS;
}

static bool is_complex(int a, int b, int c, int compute)
{
	return a == b && b == c &&
	       ((a == CUDA_C_32F && scale_of(compute) == CUDA_R_32F) ||
		(a == CUDA_C_64F && scale_of(compute) == CUDA_R_64F));
}

static struct rf_gemm_how how_of(const struct handle *h, enum rf_gemm_api api, int algorithm)
{
	return (struct rf_gemm_how){.workspace = h->workspace,
				    .workspace_bytes = h->workspace_bytes,
				    .api = (uint8_t)api,
				    .algorithm = algorithm,
				    .atomics = h->modes[BLAS_ATOMICS],
				    .sm_count = h->modes[BLAS_SM_COUNT]};
}

/* Runs any product of cuBLAS. The lists of RF_GEMM_LISTED are in device memory. */
int cublas_gemm(const void *handle, int transa, int transb, int64_t m, int64_t n, int64_t k,
		const void *alpha, struct operand a, struct operand b, const void *beta,
		struct operand c, int64_t count, int compute, enum rf_gemm_api api, int algorithm)
{
	bool pointers = api == RF_GEMM_LISTED || api == RF_GEMM_LISTED_EX;
	const struct handle *h = blas_of(handle);
	struct rf_gemm_call call = {.g = {.m = (uint64_t)m,
					  .n = (uint64_t)n,
					  .k = (uint64_t)k,
					  .count = (uint64_t)count,
					  .flags = pointers ? RF_GEMM_POINTERS : 0}};
	struct rf_gemm *r = &call.g;
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (is_complex(a.type, b.type, c.type, compute))
		return blas_gemm(handle, a.type, transa, transb, m, n, k, alpha, a, b, beta, c,
				 count, pointers);
	if (m < 0 || n < 0 || k < 0 || count < 0)
		return CUBLAS_STATUS_INVALID_VALUE;
	int status = describe_matrix(&r->a, &a, transa, m, k, count);
	if (!status)
		status = describe_matrix(&r->b, &b, transb, k, n, count);
	if (!status)
		status = describe_matrix(&r->c, &c, CUBLAS_OP_N, m, n, count);
	if (!status)
		status = gemm_types(r, a.type, b.type, c.type, compute);
	if (!status)
		status = gemm_scalars(r, alpha, beta, h->modes[BLAS_POINTERS]);
	if (status)
		return status;
	r->d = r->c;
	r->math = (uint32_t)h->modes[BLAS_MATH];
	if (remote_is_there(&remote_cublas)) {
		call.how = how_of(h, api, algorithm);
		call.how.op[0] = (uint8_t)transa;
		call.how.op[1] = (uint8_t)transb;
		call.how.ld[0] = (uint64_t)a.ld;
		call.how.ld[1] = (uint64_t)b.ld;
		call.how.ld[2] = call.how.ld[3] = (uint64_t)c.ld;
	}
	return gemm_send(&call, h->stream);
}

/* A dot product of half-precision vectors with sums in float: a product of a row and a column. */
static int dot_of_halves(const struct handle *h, int64_t n, const void *x, const void *y, int type,
			 int64_t incx, int64_t incy, void *result)
{
	const float one = 1, zero = 0;
	uint64_t k = n > 0 ? (uint64_t)n : 0;
	struct rf_gemm_call call = {.g = {.m = 1, .n = 1, .k = k, .count = 1}};
	struct rf_gemm *r = &call.g;

	r->a = (struct rf_matrix){(uint64_t)x, 1, (uint64_t)incx, 0};
	r->b = (struct rf_matrix){(uint64_t)y, (uint64_t)incy, 1, 0};
	r->c = r->d = (struct rf_matrix){(uint64_t)result, 1, 1, 0};
	int status = gemm_types(r, type, type, type, CUBLAS_COMPUTE_32F);
	if (!status)
		status = gemm_scalars(r, &one, &zero, false);
	r->math = (uint32_t)h->modes[BLAS_MATH];
	return status ? status : gemm_send(&call, h->stream);
}

/* A result in host memory passes through device memory, and the call waits for it. */
static int dot_for_host(const struct handle *h, int64_t n, const void *x, const void *y, int type,
			int64_t incx, int64_t incy, void *result)
{
	void *place = NULL;
	uint64_t stream;

	if (stream_idle_number(h->stream, &stream)) /* a capture cannot wait */
		return CUBLAS_STATUS_EXECUTION_FAILED;
	if (pool_alloc(&place, 2, NULL, h->stream))
		return CUBLAS_STATUS_ALLOC_FAILED;
	int status = dot_of_halves(h, n, x, y, type, incx, incy, place);
	int error = status ? 0 : memory_copy_1d(result, place, 2, DEVICE_TO_HOST, h->stream, false);
	int last = pool_free(place, h->stream);
	return status ? status : error || last ? CUBLAS_STATUS_EXECUTION_FAILED : 0;
}

/* The dot product of any type; types[]: of x, y, the result and the sums. */
int cublas_dot(const void *handle, const int types[4], bool conj, int64_t n, const void *x,
	       int64_t incx, const void *y, int64_t incy, void *result)
{
	const struct handle *h = blas_of(handle);
	int type = types[0];

	if ((type != CUDA_R_16F && type != CUDA_R_16BF) || types[1] != type || types[2] != type ||
	    types[3] != CUDA_R_32F)
		return blas_reduce(handle, blas_one_type(types, 4), BLAS_DOT, conj, n, x, incx, y,
				   incy, result, 0);
	if (!h)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!result)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (incx < 0 && incy < 0) { /* the same products, from the other end */
		incx = -incx;
		incy = -incy;
	}
	if (blas_checking)
		return CUBLAS_STATUS_SUCCESS;
	if (incx < 0 || incy < 0) {
		LOG_ONCE("a dot product of half-precision vectors, one of them read backwards, "
			 "is not supported by rankfold");
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	return h->modes[BLAS_POINTERS] ? dot_of_halves(h, n, x, y, type, incx, incy, result)
				       : dot_for_host(h, n, x, y, type, incx, incy, result);
}

/* ---- copies ---- */

/* Copies `height` lines of `width` elements; dst_ld and src_ld are the distances between lines. */
int copy_elements(void *dst, int64_t dst_ld, const void *src, int64_t src_ld, int64_t width,
		  int64_t height, int64_t element, int kind, const void *stream, bool async)
{
	if (width < 0 || height < 0 || element <= 0 || dst_ld < (width > 1 ? width : 1) ||
	    src_ld < (width > 1 ? width : 1))
		return CUBLAS_STATUS_INVALID_VALUE;
	int error = copy_2d(dst, (size_t)(dst_ld * element), src, (size_t)(src_ld * element),
			    (size_t)(width * element), (size_t)height, kind, stream, async);
	return error ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS;
}
