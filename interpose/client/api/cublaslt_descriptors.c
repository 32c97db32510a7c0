/* cublaslt_descriptors.c: descriptors of cuBLASLt and their attributes.
 *
 * Descriptors are plain memory, allocated by the program (Init) or by us (Create), with attributes
 * at fixed places; an unsupported attribute is refused, and the message has its number. Errors are
 * cublasStatus_t. No lock; nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "blaslt.h"

/* ---- attributes ---- */

struct attribute {
	int number;
	uint16_t offset, bytes;
};
#define AT(name, type, member)                                                                     \
	{name, offsetof(struct type, member), sizeof((struct type){0}.member)}

static const struct attribute layout_attributes[] = {
	AT(CUBLASLT_MATRIX_LAYOUT_TYPE, layout, type),
	AT(CUBLASLT_MATRIX_LAYOUT_ORDER, layout, order),
	AT(CUBLASLT_MATRIX_LAYOUT_ROWS, layout, rows),
	AT(CUBLASLT_MATRIX_LAYOUT_COLS, layout, columns),
	AT(CUBLASLT_MATRIX_LAYOUT_LD, layout, ld),
	AT(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, layout, count),
	AT(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, layout, stride),
};
static const struct attribute desc_attributes[] = {
	AT(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, desc, compute),
	AT(CUBLASLT_MATMUL_DESC_SCALE_TYPE, desc, scale),
	AT(CUBLASLT_MATMUL_DESC_POINTER_MODE, desc, pointers),
	AT(CUBLASLT_MATMUL_DESC_TRANSA, desc, transa),
	AT(CUBLASLT_MATMUL_DESC_TRANSB, desc, transb),
	AT(CUBLASLT_MATMUL_DESC_TRANSC, desc, transc),
	AT(CUBLASLT_MATMUL_DESC_FILL_MODE, desc, fill),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE, desc, epilogue),
	AT(CUBLASLT_MATMUL_DESC_BIAS_POINTER, desc, bias),
	AT(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, desc, bias_stride),
	AT(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, desc, bias_type),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, desc, aux),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, desc, aux_ld),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, desc, aux_stride),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, desc, aux_type),
	AT(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, desc, sm_count),
	AT(CUBLASLT_MATMUL_DESC_FAST_ACCUM, desc, fast_accumulation),
	AT(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, desc, alpha_stride),
	AT(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, desc, scales[0]),
	AT(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, desc, scales[1]),
	AT(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, desc, scales[2]),
	AT(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, desc, scales[3]),
	AT(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, desc, amax),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, desc, aux_scale),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, desc, aux_amax),
	AT(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, desc, scale_modes[0]),
	AT(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, desc, scale_modes[1]),
	AT(CUBLASLT_MATMUL_DESC_C_SCALE_MODE, desc, scale_modes[2]),
	AT(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, desc, scale_modes[3]),
	AT(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, desc, aux_scale_mode),
	AT(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, desc, out_scale),
	AT(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, desc, out_scale_mode),
};
static const struct attribute transform_attributes[] = {
	AT(CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, transform, scale),
	AT(CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, transform, pointers),
	AT(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, transform, transa),
	AT(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, transform, transb),
};
static const struct attribute preference_attributes[] = {
	AT(CUBLASLT_MATMUL_PREF_SEARCH_MODE, preference, search),
	AT(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, preference, workspace),
	AT(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, preference, reductions),
	AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, preference, alignment[0]),
	AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, preference, alignment[1]),
	AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, preference, alignment[2]),
	AT(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, preference, alignment[3]),
	AT(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, preference, waves),
	AT(CUBLASLT_MATMUL_PREF_IMPL_MASK, preference, implementations),
};
static const struct attribute algo_attributes[] = {
	AT(CUBLASLT_ALGO_CONFIG_ID, algo, id),
	AT(CUBLASLT_ALGO_CONFIG_TILE_ID, algo, tile),
	AT(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, algo, split_k),
	AT(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, algo, reduction),
	AT(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, algo, swizzling),
	AT(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, algo, custom),
	AT(CUBLASLT_ALGO_CONFIG_STAGES_ID, algo, stages),
	AT(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, algo, inner_shape),
	AT(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, algo, cluster_shape),
};
#define TABLE(array, name) {array, sizeof array / sizeof *array, name}
static const struct {
	const struct attribute *at;
	size_t count;
	const char *name;
} tables[] = {
	[OF_DESC] = TABLE(desc_attributes, "cublasLtMatmulDescAttributes_t"),
	[OF_TRANSFORM] = TABLE(transform_attributes, "cublasLtMatrixTransformDescAttributes_t"),
	[OF_LAYOUT] = TABLE(layout_attributes, "cublasLtMatrixLayoutAttribute_t"),
	[OF_PREFERENCE] = TABLE(preference_attributes, "cublasLtMatmulPreferenceAttributes_t"),
	[OF_ALGO] = TABLE(algo_attributes, "cublasLtMatmulAlgoConfigAttributes_t"),
};

static const struct attribute *find_attribute(const void *object, enum described what, int number)
{
	size_t most = what == OF_DESC ? ((const struct desc *)object)->bytes : SIZE_MAX;

	for (size_t i = 0; i < tables[what].count; i++) {
		const struct attribute *a = &tables[what].at[i];

		if (a->number == number && (size_t)a->offset + a->bytes <= most)
			return a;
	}
	LOG_ONCE("%s %d is not supported by rankfold", tables[what].name, number);
	return NULL;
}

int attribute_set(void *object, enum described what, int number, const void *from, size_t bytes)
{
	if (!object || !from)
		return CUBLAS_STATUS_INVALID_VALUE;
	const struct attribute *a = find_attribute(object, what, number);
	if (!a)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (bytes != a->bytes)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy((char *)object + a->offset, from, bytes);
	if (what == OF_DESC)
		((struct desc *)object)->set |= 1ull << number;
	return CUBLAS_STATUS_SUCCESS;
}

void desc_put_attributes(const struct desc *d, uint64_t to[][2])
{
	const size_t count = sizeof desc_attributes / sizeof *desc_attributes;
	size_t used = 0;

	for (size_t i = 0; i < count && used < RF_LT_ATTRIBUTES; i++) {
		const struct attribute *a = &desc_attributes[i];

		if (!(d->set >> a->number & 1) || a->number == CUBLASLT_MATMUL_DESC_COMPUTE_TYPE ||
		    a->number == CUBLASLT_MATMUL_DESC_SCALE_TYPE)
			continue;
		to[used][0] = (uint64_t)a->number | (uint64_t)a->bytes << 32;
		memcpy(&to[used++][1], (const char *)d + a->offset, a->bytes);
	}
}

/* With `bytes` 0 only returns the attribute's size. */
int attribute_get(const void *object, enum described what, int number, void *to, size_t bytes,
		  size_t *written)
{
	if (!object || (bytes ? !to : !written))
		return CUBLAS_STATUS_INVALID_VALUE;
	const struct attribute *a = find_attribute(object, what, number);
	if (!a)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (bytes && bytes < a->bytes)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (bytes)
		memcpy(to, (const char *)object + a->offset, a->bytes);
	if (written)
		*written = a->bytes;
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

int described_init(void *object, size_t capacity, const void *value, size_t bytes)
{
	if (!object || capacity < bytes)
		return CUBLAS_STATUS_INVALID_VALUE;
	memset(object, 0, capacity);
	memcpy(object, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

static int create_descriptor(void *out, size_t capacity, const void *value, size_t bytes)
{
	if (!out)
		return CUBLAS_STATUS_INVALID_VALUE;
	void *object = malloc(capacity);
	if (!object)
		return CUBLAS_STATUS_ALLOC_FAILED;
	memcpy(out, &object, sizeof object);
	return described_init(object, capacity, value, bytes);
}

int described_free(void *object)
{
	free(object);
	return CUBLAS_STATUS_SUCCESS;
}

static struct desc new_desc(int compute, int scale, size_t bytes)
{
	return (struct desc){
		.compute = compute,
		.bytes = (uint32_t)(bytes < sizeof(struct desc) ? bytes : sizeof(struct desc)),
		.scale = scale,
		.fill = CUBLAS_FILL_MODE_FULL,
		.epilogue = CUBLASLT_EPILOGUE_DEFAULT,
		.bias_type = -1,
		.aux_type = -1};
}

int desc_create(cublasLtMatmulDesc_t *out, int compute, int scale)
{
	struct desc d = new_desc(compute, scale, sizeof d);
	return create_descriptor(out, sizeof(cublasLtMatmulDescOpaque_t), &d, sizeof d);
}

int desc_init(cublasLtMatmulDesc_t desc, size_t bytes, int compute, int scale)
{
	struct desc d = new_desc(compute, scale, bytes);
	return bytes < DESC_BYTES_LEAST ? CUBLAS_STATUS_INVALID_VALUE
					: described_init(desc, bytes, &d, d.bytes);
}

int layout_create(cublasLtMatrixLayout_t *out, int type, uint64_t rows, uint64_t columns,
		  int64_t ld)
{
	struct layout l = {
		.type = (uint32_t)type, .rows = rows, .columns = columns, .ld = ld, .count = 1};
	return create_descriptor(out, sizeof(cublasLtMatrixLayoutOpaque_t), &l, sizeof l);
}

int layout_init(cublasLtMatrixLayout_t layout, size_t bytes, int type, uint64_t rows,
		uint64_t columns, int64_t ld)
{
	struct layout l = {
		.type = (uint32_t)type, .rows = rows, .columns = columns, .ld = ld, .count = 1};
	return described_init(layout, bytes, &l, sizeof l);
}

int transform_create(cublasLtMatrixTransformDesc_t *out, int scale)
{
	struct transform t = {.scale = scale};
	return create_descriptor(out, sizeof(cublasLtMatrixTransformDescOpaque_t), &t, sizeof t);
}

int transform_init(cublasLtMatrixTransformDesc_t desc, size_t bytes, int scale)
{
	struct transform t = {.scale = scale};
	return described_init(desc, bytes, &t, sizeof t);
}

static const struct preference new_preference = {
	.implementations = UINT64_MAX,
	.reductions = UINT32_MAX,
	.alignment = {256, 256, 256, 256},
};

int preference_create(cublasLtMatmulPreference_t *out)
{
	return create_descriptor(out, sizeof(cublasLtMatmulPreferenceOpaque_t), &new_preference,
				 sizeof new_preference);
}

int preference_init(cublasLtMatmulPreference_t preference, size_t bytes)
{
	return described_init(preference, bytes, &new_preference, sizeof new_preference);
}
