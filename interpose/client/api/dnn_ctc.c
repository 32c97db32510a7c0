/* dnn_ctc.c: losses of cuDNN whose labels are in memory of the host. They are sent with the call
 * (library_call.h).
 */
#include <stdlib.h>

#include "dnn.h"

#define SIZES_OF(name) {RF_DNN_SIZES(SIZE_##name)}
#define SIZE_loss(slots) {{.name = "cudnnCTCLoss " #slots}, slots},
#define SIZE_bytes(slots) {{.name = "cudnnGetCTCLossWorkspaceSize " #slots}, slots},
static struct dnn_sized losses[DNN_SIZES] = SIZES_OF(loss);
static struct dnn_sized sizes[DNN_SIZES] = SIZES_OF(bytes);

/* How many labels there are; -1: the lengths are none. */
static int64_t sum_of_lengths(const int *lengths, int64_t count)
{
	int64_t sum = 0;

	for (int64_t i = 0; i < count; i++) {
		if (lengths[i] < 0)
			return -1;
		sum += lengths[i];
	}
	return sum;
}

/* The slots of a call, which are to be freed, with place for the answer's address; NULL: `status`
 * says why. */
static uint64_t *ctc_slots(struct dnn_sized *functions, struct rf_dnn_ctc of,
			   const struct dnn_tensor *probabilities,
			   const struct dnn_tensor *gradients, const void *descriptor,
			   struct ctc_labels from, size_t *count, int *status)
{
	size_t lengths, labels;
	uint64_t *sent, *next;
	int64_t sum;

	*status = CUDNN_STATUS_BAD_PARAM;
	if (!probabilities || probabilities->dimensions != 3 || !from.labels ||
	    !from.label_lengths || !from.input_lengths)
		return NULL;
	of.sequences = (uint64_t)probabilities->size[1];
	sum = sum_of_lengths(from.label_lengths, (int64_t)of.sequences);
	if (sum < 0)
		return NULL;
	of.labels = (uint64_t)sum;
	lengths = of.sequences * sizeof(int);
	labels = of.labels * sizeof(int);
	*count = 1 + RF_CTC_HEAD + (2 * lengths + labels + 7) / sizeof *sent;
	if (!dnn_sized_for(functions, *count)) {
		LOG_ONCE(
			"a cuDNN CTC loss with more than 8,080 labels and lengths in memory of the "
			"host is not supported by rankfold: have them on the device");
		*status = CUDNN_STATUS_NOT_SUPPORTED;
		return NULL;
	}
	*status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	sent = calloc(*count, sizeof *sent);
	if (!sent)
		return NULL;
	*status = CUDNN_STATUS_SUCCESS;
	next = sent + 1;
	dnn_put(next, 't', probabilities);
	dnn_put(next + RF_TENSOR_SLOTS, 't', gradients);
	next += 2 * RF_TENSOR_SLOTS;
	dnn_put(next, RF_ROW_CTC, descriptor);
	memcpy(next + RF_ROW_SLOTS, &of, sizeof of);
	next = sent + 1 + RF_CTC_HEAD;
	memcpy(next, from.input_lengths, lengths);
	memcpy((char *)next + lengths, from.label_lengths, lengths);
	memcpy((char *)next + 2 * lengths, from.labels, labels);
	return sent;
}

int ctc_loss(const void *handle, struct rf_dnn_ctc of, const struct dnn_tensor *probabilities,
	     const struct dnn_tensor *gradients, const void *descriptor, struct ctc_labels from)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	size_t count;
	uint64_t *sent;
	int status;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	sent = ctc_slots(losses, of, probabilities, gradients, descriptor, from, &count, &status);
	if (sent)
		status = remote_query(&remote_cudnn, dnn_sized_for(losses, count), h->stream, sent,
				      count, NULL, 0);
	free(sent);
	return status;
}

int ctc_size(const void *handle, int algorithm, const struct dnn_tensor *probabilities,
	     const struct dnn_tensor *gradients, const void *descriptor, struct ctc_labels from,
	     size_t *bytes)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	struct rf_dnn_ctc of = {.algorithm = (uint64_t)algorithm};
	uint64_t answer[1 + RF_CALL_OUTS] = {0}, *sent;
	size_t count;
	int status;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!bytes)
		return CUDNN_STATUS_BAD_PARAM;
	sent = ctc_slots(sizes, of, probabilities, gradients, descriptor, from, &count, &status);
	if (sent)
		status = remote_query(&remote_cudnn, dnn_sized_for(sizes, count), h->stream, sent,
				      count, answer, sizeof answer / sizeof *answer);
	free(sent);
	if (!status)
		*bytes = answer[1];
	return status;
}
