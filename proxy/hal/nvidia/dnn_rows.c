/* dnn_rows.c: descriptors of cuDNN that are rows of whole numbers (library_call.h): of filters,
 * convolutions, poolings, operations, reductions, LRN, and CTC. cuDNN checks the numbers.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <string.h>

#include "calls.h"

struct row {
	int n[RF_ROW_NUMBERS];
};

static struct {
	int (*cudnnSetFilterNdDescriptor)(void *, int, int, int, const int *);
	int (*cudnnSetConvolutionNdDescriptor)(void *, int, const int *, const int *, const int *,
					       int, int);
	int (*cudnnSetConvolutionMathType)(void *, int);
	int (*cudnnSetConvolutionGroupCount)(void *, int);
	int (*cudnnSetConvolutionReorderType)(void *, int);
	int (*cudnnSetPoolingNdDescriptor)(void *, int, int, int, const int *, const int *,
					   const int *);
	int (*cudnnSetOpTensorDescriptor)(void *, int, int, int);
	int (*cudnnSetReduceTensorDescriptor)(void *, int, int, int, int, int);
	int (*cudnnSetLRNDescriptor)(void *, unsigned, double, double, double);
	int (*cudnnSetCTCLossDescriptor_v9)(void *, int, int, int, int);
} set;

static int set_filter(void *made, const struct row *r)
{
	if (r->n[2] < 1 || r->n[2] > (int)RF_TENSOR_DIMENSIONS)
		return DNN_BAD_PARAM;
	return set.cudnnSetFilterNdDescriptor(made, r->n[0], r->n[1], r->n[2], r->n + 3);
}

static int set_convolution(void *made, const struct row *r)
{
	int places = r->n[5], status;

	if (places < 1 || places > (int)RF_PLACES)
		return DNN_BAD_PARAM;
	status = set.cudnnSetConvolutionNdDescriptor(made, places, r->n + 6, r->n + 6 + places,
						     r->n + 6 + 2 * places, r->n[0], r->n[1]);
	if (!status)
		status = set.cudnnSetConvolutionMathType(made, r->n[2]);
	if (!status)
		status = set.cudnnSetConvolutionGroupCount(made, r->n[3]);
	if (!status)
		status = set.cudnnSetConvolutionReorderType(made, r->n[4]);
	return status;
}

static int set_pooling(void *made, const struct row *r)
{
	int places = r->n[2];

	if (places < 1 || places > (int)RF_PLACES)
		return DNN_BAD_PARAM;
	return set.cudnnSetPoolingNdDescriptor(made, r->n[0], r->n[1], places, r->n + 3,
					       r->n + 3 + places, r->n + 3 + 2 * places);
}

static int set_operation(void *made, const struct row *r)
{
	return set.cudnnSetOpTensorDescriptor(made, r->n[0], r->n[1], r->n[2]);
}

static int set_reduction(void *made, const struct row *r)
{
	return set.cudnnSetReduceTensorDescriptor(made, r->n[0], r->n[1], r->n[2], r->n[3],
						  r->n[4]);
}

static int set_lrn(void *made, const struct row *r)
{
	double number[3];

	memcpy(number, r->n + 2, sizeof number);
	return set.cudnnSetLRNDescriptor(made, (unsigned)r->n[0], number[0], number[1], number[2]);
}

static int set_ctc(void *made, const struct row *r)
{
	return set.cudnnSetCTCLossDescriptor_v9(made, r->n[0], r->n[1], r->n[2], r->n[3]);
}

/* ---- all kinds ---- */

static struct kind_of_row {
	char kind;
	const char *create_name, *destroy_name;
	int (*fill)(void *, const struct row *);
	int (*create)(void **);
	int (*destroy)(void *);
} rows[] = {
#define ROW(kind, name, fill)                                                                      \
	{kind, "cudnnCreate" #name "Descriptor", "cudnnDestroy" #name "Descriptor", fill, NULL,    \
	 NULL},
	ROW(RF_ROW_FILTER, Filter, set_filter) ROW(RF_ROW_CONVOLUTION, Convolution, set_convolution)
		ROW(RF_ROW_POOLING, Pooling, set_pooling) ROW(RF_ROW_OPERATION, OpTensor,
							      set_operation)
			ROW(RF_ROW_REDUCTION, ReduceTensor, set_reduction)
				ROW(RF_ROW_LRN, LRN, set_lrn) ROW(RF_ROW_CTC, CTCLoss, set_ctc)
#undef ROW
};
#define ROW_KINDS (sizeof rows / sizeof *rows)

static bool find_rows(void)
{
	static bool found;
	char text[CUDA_TEXT_BYTES];
	void *library;

	if (found)
		return true;
	library = nvidia_library("cudnn", text, sizeof text);
	found = library;
#define FIND(name) found = found && (*(void **)&set.name = dlsym(library, #name))
	FIND(cudnnSetFilterNdDescriptor);
	FIND(cudnnSetConvolutionNdDescriptor);
	FIND(cudnnSetConvolutionMathType);
	FIND(cudnnSetConvolutionGroupCount);
	FIND(cudnnSetConvolutionReorderType);
	FIND(cudnnSetPoolingNdDescriptor);
	FIND(cudnnSetOpTensorDescriptor);
	FIND(cudnnSetReduceTensorDescriptor);
	FIND(cudnnSetLRNDescriptor);
	FIND(cudnnSetCTCLossDescriptor_v9);
#undef FIND
	for (size_t i = 0; found && i < ROW_KINDS; i++)
		found = (*(void **)&rows[i].create = dlsym(library, rows[i].create_name)) &&
			(*(void **)&rows[i].destroy = dlsym(library, rows[i].destroy_name));
	return found;
}

static const struct kind_of_row *row_of(char kind)
{
	for (size_t i = 0; i < ROW_KINDS; i++)
		if (rows[i].kind == kind)
			return &rows[i];
	return NULL;
}

bool nvidia_dnn_is_row(char kind) { return row_of(kind); }

int nvidia_dnn_row_create(char kind, void **out)
{
	return find_rows() ? row_of(kind)->create(out) : DNN_NOT_SUPPORTED;
}

void nvidia_dnn_row_destroy(char kind, void *descriptor) { row_of(kind)->destroy(descriptor); }

int nvidia_dnn_row_set(char kind, void *descriptor, const uint64_t *slots)
{
	struct row r;

	memcpy(r.n, slots + 1, sizeof r.n);
	return row_of(kind)->fill(descriptor, &r);
}
