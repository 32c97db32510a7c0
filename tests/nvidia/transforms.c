/* transforms.c: of the fake driver (fake.h): cuBLASLt's transformations of matrices that are stored
 * by columns or by rows.
 */
#include <stdlib.h>
#include <string.h>

#include "routines.h"

struct cublasLtMatrixTransformDescOpaque {
	int32_t scale, pointers, op[2];
};
struct transform {
	struct cublasLtMatrixTransformDescOpaque desc;
	struct cublasLtMatrixLayoutOpaque layout[3];
	uint64_t at[3], factors[2][2];
};
enum { A, B, C };

EXPORT cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t *out,
							cudaDataType scale)
{
	BEGIN(cublasLtMatrixTransformDescCreate);
	*out = calloc(1, sizeof **out);
	(*out)->scale = (int32_t)scale;
	fake_described(1);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

EXPORT cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t desc)
{
	BEGIN(cublasLtMatrixTransformDescDestroy);
	free(desc);
	fake_described(-1);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

/* All attributes are ints, in their order. */
EXPORT cublasStatus_t cublasLtMatrixTransformDescSetAttribute(
	cublasLtMatrixTransformDesc_t desc, cublasLtMatrixTransformDescAttributes_t number,
	const void *value, size_t bytes)
{
	BEGIN(cublasLtMatrixTransformDescSetAttribute);
	if (number > 3 || bytes != 4)
		return fake_end(CUBLAS_STATUS_INVALID_VALUE);
	memcpy((int32_t *)desc + number, value, bytes);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

static uint64_t element(const struct transform *t, int which, int64_t b, int64_t i, int64_t j)
{
	const struct cublasLtMatrixLayoutOpaque *x = &t->layout[which];
	int64_t at = x->order == CUBLASLT_ORDER_ROW ? i * x->ld + j : i + j * x->ld;

	return t->at[which] + (uint64_t)(at + b * x->stride) * fake_type_bytes(x->type);
}

static number term(const struct transform *t, int which, int64_t b, int64_t i, int64_t j)
{
	bool turned = t->desc.op[which] != OP_N;
	bool on_device = t->desc.pointers == CUBLASLT_POINTER_MODE_DEVICE;
	const uint64_t *factor = t->factors[which];
	number x = number_at(element(t, which, b, turned ? j : i, turned ? i : j),
			     t->layout[which].type);

	return number_at(on_device ? *factor : (uint64_t)factor, t->desc.scale) *
	       (t->desc.op[which] == OP_C ? conj(x) : x);
}

static void transform(const uint8_t *params)
{
	const struct transform *t = (const void *)params;
	const struct cublasLtMatrixLayoutOpaque *to = &t->layout[C];

	for (int64_t b = 0; b < to->count; b++)
		for (int64_t j = 0; j < (int64_t)to->columns; j++)
			for (int64_t i = 0; i < (int64_t)to->rows; i++) {
				number x = term(t, A, b, i, j);

				x += t->at[B] ? term(t, B, b, i, j) : 0;
				put_number(element(t, C, b, i, j), to->type, x);
			}
}

EXPORT cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t handle,
					      cublasLtMatrixTransformDesc_t desc, const void *alpha,
					      const void *a, cublasLtMatrixLayout_t la,
					      const void *beta, const void *b,
					      cublasLtMatrixLayout_t lb, void *c,
					      cublasLtMatrixLayout_t lc, cudaStream_t stream)
{
	struct transform t = {.desc = *desc, .at = {(uint64_t)a, (uint64_t)b, (uint64_t)c}};
	const void *factors[] = {alpha, beta};

	BEGIN(cublasLtMatrixTransform);
	if (!handle || !la || !lc || (b && !lb))
		fake_fault("cublasLtMatrixTransform: a handle or a layout");
	t.layout[A] = *la;
	t.layout[C] = *lc;
	if (b)
		t.layout[B] = *lb;
	for (int i = A; i <= C; i++)
		if (t.at[i] && !fake_shown(t.at[i], fake_type_bytes(t.layout[i].type)))
			fake_fault("cublasLtMatrixTransform: matrix %d", i);
	for (int i = 0; i < 2; i++)
		if (desc->pointers == CUBLASLT_POINTER_MODE_DEVICE)
			t.factors[i][0] = (uint64_t)factors[i];
		else
			memcpy(t.factors[i], factors[i], fake_type_bytes(desc->scale));
	fake_called_with((struct fake_called){"cublasLtMatrixTransform", 0});
	fake_push_kernel(stream, transform, &t, sizeof t);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}
