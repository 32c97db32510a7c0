/* cublaslt_remote.c: what cuBLASLt does that is no record: products of complex numbers and 8-bit
 * floats, with scales or in other orders, and transformations of matrices. NVIDIA's own library
 * does it, in the proxy: a call carries its descriptors. Errors are cublasStatus_t; those of the
 * library fail the rank when the call runs.
 */
#include <string.h>

#include "blaslt.h"

static struct rf_lt_layout sent_layout(const struct layout *l)
{
	if (!l)
		return (struct rf_lt_layout){0};
	return (struct rf_lt_layout){1,          l->type, l->order, l->rows,
				     l->columns, l->ld,   l->count, l->stride};
}

/* A factor: its address, or its bytes. NULL is the library's to refuse, or a mode needs none. */
static int put_factor(uint64_t *to, uint64_t *on_device, const void *from, bool address, int type)
{
	size_t bytes = blas_number_bytes(type);

	*on_device = address;
	if (address)
		*to = (uint64_t)from;
	else if (!from || !bytes)
		return CUBLAS_STATUS_INVALID_VALUE;
	else
		memcpy(to, from, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

static int put_factors(struct rf_lt *lt, const void *alpha, const void *beta, int mode, int type)
{
	bool values = mode == CUBLASLT_POINTER_MODE_HOST;
	bool beta_value = values || mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST;
	int status = put_factor(lt->alpha, &lt->alpha_on_device, alpha, !values, type);

	if (mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO)
		beta = NULL;
	return status ? status : put_factor(lt->beta, &lt->beta_on_device, beta, !beta_value, type);
}

static int send(struct remote_function *f, const struct rf_lt *lt, const void *stream)
{
	if (!remote_serves(&remote_cublas))
		return refuse_call(&f->reported, f->name, remote_cublas.without,
				   CUBLAS_STATUS_NOT_SUPPORTED);
	return remote_send(&remote_cublas, f, stream, (const uint64_t *)lt,
			   sizeof *lt / sizeof(uint64_t), NULL);
}

int lt_multiply(const struct desc *d, const struct operands *o, const void *alpha, const void *beta,
		const struct algo *algo, const void *workspace, size_t bytes, const void *stream)
{
	static struct remote_function f = {.name = "cublasLtMatmul"};
	struct rf_lt lt = {
		.compute = d->compute,
		.scale = d->scale,
		.layouts = {sent_layout(o->la), sent_layout(o->lb), sent_layout(o->lc),
			    sent_layout(o->ld)},
		.at = {(uint64_t)o->a, (uint64_t)o->b, (uint64_t)o->c, (uint64_t)o->d},
		.workspace = bytes ? (uint64_t)workspace : 0,
		.workspace_bytes = workspace ? bytes : 0,
	};
	int status = put_factors(&lt, alpha, beta, d->pointers, d->scale);

	if (status)
		return status;
	desc_put_attributes(d, lt.attributes);
	if (algo && algo->chosen) {
		lt.most_bytes = algo->most_bytes;
		lt.reductions = algo->reductions;
		for (int i = 0; i < 4; i++)
			lt.aligned[i] = 1u << algo->aligned[i];
	}
	return send(&f, &lt, stream);
}

cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t lightHandle,
				       cublasLtMatrixTransformDesc_t transformDesc,
				       const void *alpha, const void *A,
				       cublasLtMatrixLayout_t Adesc, const void *beta,
				       const void *B, cublasLtMatrixLayout_t Bdesc, void *C,
				       cublasLtMatrixLayout_t Cdesc, cudaStream_t stream)
{
	static struct remote_function f = {.name = "cublasLtMatrixTransform"};
	const struct transform *t = (const void *)transformDesc;
	struct rf_lt lt = {
		.layouts = {sent_layout((const void *)Adesc), sent_layout((const void *)Bdesc),
			    sent_layout((const void *)Cdesc)},
		.at = {(uint64_t)A, (uint64_t)B, (uint64_t)C},
	};
	int status;

	if (!handle_get(HANDLE_BLASLT, lightHandle) && !handle_get(HANDLE_BLAS, lightHandle))
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!t || !A || !Adesc || !C || !Cdesc || (B && !Bdesc))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (!B)
		lt.layouts[1].there = 0;
	lt.scale = t->scale;
	status = put_factors(&lt, alpha, beta ? beta : alpha, t->pointers, t->scale);
	lt.attributes[0][0] = CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE | 4ull << 32;
	lt.attributes[1][0] = CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA | 4ull << 32;
	lt.attributes[2][0] = CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB | 4ull << 32;
	lt.attributes[0][1] = (uint32_t)t->pointers;
	lt.attributes[1][1] = (uint32_t)t->transa;
	lt.attributes[2][1] = (uint32_t)t->transb;
	return status ? status : send(&f, &lt, stream);
}
