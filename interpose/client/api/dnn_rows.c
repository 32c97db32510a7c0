/* dnn_rows.c: descriptors of cuDNN that are rows of whole numbers, kept as they are sent
 * (library_call.h): of filters, convolutions, poolings, operations, reductions, LRN, and CTC.
 * Errors are cudnnStatus_t.
 */
#include <string.h>

#include "dnn.h"

enum { FILTER_HEAD = 3, CONVOLUTION_HEAD = 6, POOLING_HEAD = 3 };
enum { GROUPS = 3, CONVOLUTION_PLACES = 5, POOLING_PLACES = 2 }; /* where they are in a row */

static int *row_numbers(struct dnn_descriptor *d) { return (int *)(d->slots + 1); }

static uint32_t row_count(const struct dnn_descriptor *d) { return (uint32_t)(d->slots[0] >> 32); }

/* NULL: it is none of this kind, or not set. */
static const int *row_of_kind(int kind, void *descriptor)
{
	struct dnn_descriptor *d = descriptor_of((char)kind, descriptor);

	return d && d->slots[0] ? row_numbers(d) : NULL;
}

int row_set(int kind, void *descriptor, const int *numbers, uint32_t count)
{
	struct dnn_descriptor *d = descriptor_of((char)kind, descriptor);

	if (!d)
		return CUDNN_STATUS_BAD_PARAM;
	memset(d->slots, 0, RF_ROW_SLOTS * sizeof *d->slots);
	d->slots[0] = DNN_PRESENT | (uint64_t)count << 32;
	memcpy(row_numbers(d), numbers, count * sizeof *numbers);
	return CUDNN_STATUS_SUCCESS;
}

/* The last number of `head` is the length of each list. No number of a list is below `least`. */
static int set_lists(int kind, void *descriptor, const int *head, uint32_t head_count,
		     const int *const *lists, const int *least, uint32_t list_count, int most)
{
	int n = head[head_count - 1], row[RF_ROW_NUMBERS];
	uint32_t count = head_count;

	if (n < 1 || n > most)
		return CUDNN_STATUS_BAD_PARAM;
	memcpy(row, head, head_count * sizeof *row);
	for (uint32_t l = 0; l < list_count; l++)
		for (int i = 0; i < n; i++) {
			if (!lists[l] || lists[l][i] < least[l])
				return CUDNN_STATUS_BAD_PARAM;
			row[count++] = lists[l][i];
		}
	return row_set(kind, descriptor, row, count);
}

int filter_set(void *descriptor, int type, int layout, int dimensions, const int *sizes)
{
	return set_lists(RF_ROW_FILTER, descriptor, (int[]){type, layout, dimensions}, FILTER_HEAD,
			 &sizes, (int[]){1}, 1, RF_TENSOR_DIMENSIONS);
}

int convolution_set(void *descriptor, int places, const int *padding, const int *stride,
		    const int *dilation, int mode, int type)
{
	const int *before = row_of_kind(RF_ROW_CONVOLUTION, descriptor);
	int head[CONVOLUTION_HEAD] = {mode, type, 0, 1, 0, places};

	if (before)
		memcpy(head + 2, before + 2, 3 * sizeof *head);
	return set_lists(RF_ROW_CONVOLUTION, descriptor, head, CONVOLUTION_HEAD,
			 (const int *[]){padding, stride, dilation}, (int[]){0, 1, 1}, 3,
			 RF_PLACES);
}

int convolution_change(void *descriptor, int number, int value)
{
	struct dnn_descriptor *d = descriptor_of(RF_ROW_CONVOLUTION, descriptor);

	if (!d || (number == GROUPS && value < 1))
		return CUDNN_STATUS_BAD_PARAM;
	if (!d->slots[0]) { /* what convolution_set keeps; the places come with it */
		d->slots[0] = DNN_PRESENT | (uint64_t)CONVOLUTION_HEAD << 32;
		row_numbers(d)[GROUPS] = 1;
	}
	row_numbers(d)[number] = value;
	return CUDNN_STATUS_SUCCESS;
}

int pooling_set(void *descriptor, int mode, int nan, int places, const int *windows,
		const int *padding, const int *stride)
{
	return set_lists(RF_ROW_POOLING, descriptor, (int[]){mode, nan, places}, POOLING_HEAD,
			 (const int *[]){windows, padding, stride}, (int[]){1, 0, 1}, 3, RF_PLACES);
}

int lrn_set(void *descriptor, unsigned channels, double alpha, double beta, double k)
{
	int row[8] = {(int)channels};
	const double numbers[] = {alpha, beta, k};

	memcpy(row + 2, numbers, sizeof numbers);
	return row_set(RF_ROW_LRN, descriptor, row, 8);
}

/* ---- what a program asks ---- */

int row_get(int kind, void *descriptor, int *const *to, uint32_t count)
{
	struct dnn_descriptor *d = descriptor_of((char)kind, descriptor);

	if (!d || row_count(d) < count)
		return CUDNN_STATUS_BAD_PARAM;
	for (uint32_t i = 0; i < count; i++)
		if (to[i])
			*to[i] = row_numbers(d)[i];
	return CUDNN_STATUS_SUCCESS;
}

int row_get_lists(int kind, void *descriptor, int *const *to, uint32_t count, int most,
		  int *const *lists, uint32_t list_count)
{
	const int *row = row_of_kind(kind, descriptor);
	int status = row_get(kind, descriptor, to, count), n;

	if (status || most < 0)
		return CUDNN_STATUS_BAD_PARAM;
	n = row[count - 1];
	for (uint32_t l = 0; l < list_count; l++)
		for (int i = 0; i < n && i < most; i++)
			if (lists[l])
				lists[l][i] = row[count + l * (uint32_t)n + (uint32_t)i];
	return CUDNN_STATUS_SUCCESS;
}

int lrn_get(void *descriptor, unsigned *channels, double *alpha, double *beta, double *k)
{
	const int *row = row_of_kind(RF_ROW_LRN, descriptor);
	double *const to[] = {alpha, beta, k};

	if (!row)
		return CUDNN_STATUS_BAD_PARAM;
	if (channels)
		*channels = (unsigned)row[0];
	for (int i = 0; i < 3; i++)
		if (to[i])
			memcpy(to[i], row + 2 + 2 * i, sizeof **to);
	return CUDNN_STATUS_SUCCESS;
}

int filter_bytes(void *descriptor, size_t *bytes)
{
	const int *row = row_of_kind(RF_ROW_FILTER, descriptor);
	size_t product;

	if (!row || !bytes)
		return CUDNN_STATUS_BAD_PARAM;
	product = dnn_type_bytes(row[0]);
	for (int i = 0; i < row[2]; i++)
		product *= (size_t)row[FILTER_HEAD + i];
	*bytes = product;
	return product ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/* As NVIDIA documents it. 0: nothing is left. */
static int size_after(int64_t size, int padding, int window, int dilation, int stride)
{
	int64_t left = size + 2 * (int64_t)padding - ((int64_t)(window - 1) * dilation + 1);

	return left < 0 ? 0 : (int)(left / stride) + 1;
}

static int sizes_after(const struct dnn_tensor *x, int n, const int *padding, const int *windows,
		       const int *dilation, const int *stride, int *sizes)
{
	for (int i = 0; i < n; i++) {
		sizes[2 + i] = size_after(x->size[2 + i], padding[i], windows[i],
					  dilation ? dilation[i] : 1, stride[i]);
		if (!sizes[2 + i])
			return CUDNN_STATUS_BAD_PARAM;
	}
	return CUDNN_STATUS_SUCCESS;
}

int convolution_sizes(void *descriptor, const struct dnn_tensor *x, void *filter, int dimensions,
		      int *sizes)
{
	const int *c = row_of_kind(RF_ROW_CONVOLUTION, descriptor);
	const int *w = row_of_kind(RF_ROW_FILTER, filter);
	int n = c ? c[CONVOLUTION_PLACES] : 0;

	if (!n || !w || !x || !sizes || dimensions != n + 2 || x->dimensions != n + 2 ||
	    w[2] != n + 2 || x->size[1] != (int64_t)w[FILTER_HEAD + 1] * c[GROUPS])
		return CUDNN_STATUS_BAD_PARAM;
	sizes[0] = (int)x->size[0];
	sizes[1] = w[FILTER_HEAD];
	c += CONVOLUTION_HEAD;
	return sizes_after(x, n, c, w + FILTER_HEAD + 2, c + 2 * (size_t)n, c + n, sizes);
}

int pooling_sizes(void *descriptor, const struct dnn_tensor *x, int dimensions, int *sizes)
{
	const int *p = row_of_kind(RF_ROW_POOLING, descriptor);
	int n = p ? p[POOLING_PLACES] : 0;

	if (!n || !x || !sizes || dimensions != n + 2 || x->dimensions != n + 2)
		return CUDNN_STATUS_BAD_PARAM;
	sizes[0] = (int)x->size[0];
	sizes[1] = (int)x->size[1];
	p += POOLING_HEAD;
	return sizes_after(x, n, p + n, p, NULL, p + 2 * (size_t)n, sizes);
}

static int store_four(int status, const int *from, int *const to[4])
{
	for (int i = 0; i < 4 && !status; i++)
		if (to[i])
			*to[i] = from[i];
	return status;
}

int convolution_sizes_4d(void *descriptor, const struct dnn_tensor *x, void *filter,
			 int *const to[4])
{
	int sizes[4];

	return store_four(convolution_sizes(descriptor, x, filter, 4, sizes), sizes, to);
}

int pooling_sizes_4d(void *descriptor, const struct dnn_tensor *x, int *const to[4])
{
	int sizes[4];

	return store_four(pooling_sizes(descriptor, x, 4, sizes), sizes, to);
}
