/* dnn.c: handles and tensor descriptors of cuDNN.
 *
 * Where the job's device has NVIDIA's cuDNN, that executes the plans of the backend API
 * (dnn_graph.c). Elsewhere, what PyTorch requests by default is served: convolutions
 * (dnn_convolution.c, requested through descriptors of the backend, dnn_backend.c) and batch
 * normalisation (dnn_norm.c). A handle is a number and a stream in the client; the server does not
 * know it. Errors are cudnnStatus_t.
 */
#include "dnn.h"

#include <stdlib.h>
#include <string.h>

/* ---- handles ---- */

bool dnn_is_remote(void) { return remote_serves(&remote_cudnn); }

int dnn_check(const void *handle)
{
	return handle_get(HANDLE_DNN, handle) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

int dnn_create(void **out)
{
	struct handle *h;

	if (!out)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (context_use_device())
		return CUDNN_STATUS_NOT_INITIALIZED;
	h = handle_new(HANDLE_DNN, context_owner());
	if (!h)
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	*out = (void *)h->number;
	return CUDNN_STATUS_SUCCESS;
}

int dnn_destroy(const void *handle)
{
	struct handle *h = handle_get(HANDLE_DNN, handle);

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	handle_drop(h);
	return CUDNN_STATUS_SUCCESS;
}

int dnn_set_stream(const void *handle, void *stream)
{
	struct handle *h = handle_get(HANDLE_DNN, handle);
	uint64_t number;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (stream_number(stream, &number))
		return CUDNN_STATUS_BAD_PARAM;
	h->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

int dnn_get_stream(const void *handle, void **stream)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!stream)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	*stream = h->stream;
	return CUDNN_STATUS_SUCCESS;
}

const char *dnn_status_name(int status)
{
	static const struct {
		int status;
		const char *name;
	} names[] = {
#define STATUS(name) {CUDNN_STATUS_##name, "CUDNN_STATUS_" #name}
		STATUS(SUCCESS),
		STATUS(NOT_INITIALIZED),
		STATUS(BAD_PARAM),
		STATUS(BAD_PARAM_NULL_POINTER),
		STATUS(BAD_PARAM_NOT_FINALIZED),
		STATUS(BAD_PARAM_SHAPE_MISMATCH),
		STATUS(BAD_PARAM_ATTRIBUTE_TYPE),
		{CUDNN_STATUS_NOT_SUPPORTED,
		 "CUDNN_STATUS_NOT_SUPPORTED: not supported by rankfold; "
		 "torch.backends.cudnn.enabled = False makes PyTorch use its own kernels"},
		STATUS(INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
		STATUS(EXECUTION_FAILED),
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].status == status)
			return names[i].name;
	return "CUDNN_STATUS_<unknown>";
}

void dnn_last_error(char *message, size_t bytes)
{
	static const char text[] =
		"rankfold names on stderr what it does not support; "
		"torch.backends.cudnn.enabled = False makes PyTorch use its own kernels";
	size_t n = bytes < sizeof text ? bytes : sizeof text;

	if (!message || !n)
		return;
	memcpy(message, text, n);
	message[n - 1] = 0;
}

/* ---- types, scalars, launches ---- */

extern const char dnn_ptx_s[], dnn_ptx_d[], dnn_ptx_h[], dnn_ptx_b[]; /* images.S */

struct dnn_type *dnn_type_of(int type)
{
	static struct dnn_type types[] = {
		{CUDNN_DATA_FLOAT, CUDA_R_32F, CUDNN_DATA_FLOAT, 4, 4, {dnn_ptx_s, NULL}},
		{CUDNN_DATA_DOUBLE, CUDA_R_64F, CUDNN_DATA_DOUBLE, 8, 8, {dnn_ptx_d, NULL}},
		{CUDNN_DATA_HALF, CUDA_R_16F, CUDNN_DATA_FLOAT, 2, 4, {dnn_ptx_h, NULL}},
		{CUDNN_DATA_BFLOAT16, CUDA_R_16BF, CUDNN_DATA_FLOAT, 2, 4, {dnn_ptx_b, NULL}},
	};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i].type == type)
			return &types[i];
	LOG_ONCE("cuDNN with cudnnDataType_t %d is not supported by rankfold", type);
	return NULL;
}

int dnn_scalar(const struct dnn_type *t, double *out, const void *scalar)
{
	float number;

	if (!scalar)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (t->type == CUDNN_DATA_DOUBLE) {
		memcpy(out, scalar, sizeof *out);
	} else {
		memcpy(&number, scalar, sizeof number);
		*out = (double)number;
	}
	return CUDNN_STATUS_SUCCESS;
}

int dnn_launch(struct dnn_type *t, const char *kernel, const void *args, size_t bytes,
	       int64_t width, int64_t height, const void *stream)
{
	struct launch l = {
		.grid = {(uint32_t)((width + DNN_THREADS - 1) / DNN_THREADS), (uint32_t)height, 1},
		.block = {DNN_THREADS, 1, 1},
		.packed = args,
		.packed_bytes = bytes};

	return carried_launch(&t->kernels, kernel, &l, stream) ? CUDNN_STATUS_EXECUTION_FAILED
							       : CUDNN_STATUS_SUCCESS;
}

/* ---- tensor descriptors: memory of the client, to which the program has the address ---- */

int64_t dnn_elements(const struct dnn_tensor *t, int64_t first)
{
	int64_t product = 1;

	for (int64_t i = first; i < t->dimensions; i++)
		product *= t->size[i];
	return product;
}

bool dnn_even(const struct dnn_tensor *t, int64_t first, int64_t *step)
{
	int64_t next = 0; /* the expected stride; 0: none yet, all sizes so far are 1 */

	*step = 1;
	for (int64_t i = t->dimensions - 1; i >= first; i--) {
		if (t->size[i] == 1)
			continue;
		if (!next)
			*step = next = t->stride[i];
		if (t->stride[i] != next)
			return false;
		next *= t->size[i];
	}
	return true;
}

int tensor_create(void **out)
{
	if (!out)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	*out = calloc(1, sizeof(struct dnn_tensor));
	return *out ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

int tensor_destroy(void *tensor)
{
	free(tensor);
	return CUDNN_STATUS_SUCCESS;
}

int tensor_set(void *tensor, int type, int dimensions, const int *size, const int *stride)
{
	struct dnn_tensor made = {.type = type, .dimensions = dimensions};

	if (!tensor || !size || !stride)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (dimensions < 1 || dimensions > DNN_DIMENSIONS_MAX)
		return CUDNN_STATUS_NOT_SUPPORTED;
	for (int i = 0; i < dimensions; i++) {
		if (size[i] < 1)
			return CUDNN_STATUS_BAD_PARAM;
		made.size[i] = size[i];
		made.stride[i] = stride[i];
	}
	*(struct dnn_tensor *)tensor = made;
	return CUDNN_STATUS_SUCCESS;
}

int tensor_set_packed(void *tensor, int format, int type, int n, int c, int h, int w)
{
	if (format == CUDNN_TENSOR_NCHW)
		return tensor_set(tensor, type, 4, (int[]){n, c, h, w},
				  (int[]){c * h * w, h * w, w, 1});
	if (format == CUDNN_TENSOR_NHWC)
		return tensor_set(tensor, type, 4, (int[]){n, c, h, w},
				  (int[]){c * h * w, 1, w * c, c});
	LOG_ONCE("cudnnTensorFormat_t %d is not supported by rankfold", format);
	return CUDNN_STATUS_NOT_SUPPORTED;
}

int tensor_set_layout(void *tensor, int layout, int type, int dimensions, const int *size)
{
	int stride[DNN_DIMENSIONS_MAX], next = 1;

	if (!size)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (dimensions < 3 || dimensions > DNN_DIMENSIONS_MAX)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (layout != CUDNN_TENSOR_NCHW && layout != CUDNN_TENSOR_NHWC)
		return tensor_set_packed(tensor, layout, type, 1, 1, 1, 1);
	if (layout == CUDNN_TENSOR_NHWC) {
		stride[1] = 1;
		next = size[1];
	}
	for (int i = dimensions - 1; i >= 0; i--) {
		if (i == 1 && layout == CUDNN_TENSOR_NHWC)
			continue;
		stride[i] = next;
		next *= size[i];
	}
	return tensor_set(tensor, type, dimensions, size, stride);
}

int tensor_bytes(const struct dnn_tensor *t, size_t *bytes)
{
	int64_t last = 0;

	if (!t || !bytes)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	for (int64_t i = 0; i < t->dimensions; i++)
		last += (t->size[i] - 1) * t->stride[i];
	*bytes = t->dimensions ? (size_t)(last + 1) * dnn_type_bytes(t->type) : 0;
	return CUDNN_STATUS_SUCCESS;
}

int tensor_get_4d(const struct dnn_tensor *t, int *type, int *const size[4], int *const stride[4])
{
	if (!t || !type)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (t->dimensions != 4)
		return CUDNN_STATUS_BAD_PARAM;
	*type = t->type;
	for (int i = 0; i < 4; i++) {
		if (size[i])
			*size[i] = (int)t->size[i];
		if (stride[i])
			*stride[i] = (int)t->stride[i];
	}
	return CUDNN_STATUS_SUCCESS;
}

/* Reads a descriptor of at most `most` dimensions. */
int tensor_get(const void *tensor, int most, int *type, int *dimensions, int *size, int *stride)
{
	const struct dnn_tensor *t = tensor;

	if (!t || !type || !dimensions || !size || !stride)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	*type = t->type;
	*dimensions = (int)t->dimensions;
	for (int i = 0; i < *dimensions && i < most; i++) {
		size[i] = (int)t->size[i];
		stride[i] = (int)t->stride[i];
	}
	return CUDNN_STATUS_SUCCESS;
}
