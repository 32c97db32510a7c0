/* dnn_ctc.c: the losses of cuDNN whose labels are in memory of the host: they come with the call.
 *
 * cuDNN reads as many of them as the tensor of probabilities has sequences, and as their lengths
 * say. So these must be the numbers that have come.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <string.h>

#include "calls.h"

static struct {
	int (*cudnnCTCLoss)(void *, void *, const void *, const int *, const int *, const int *,
			    void *, void *, void *, int, void *, void *, size_t);
	int (*cudnnGetCTCLossWorkspaceSize)(void *, void *, void *, const int *, const int *,
					    const int *, int, void *, size_t *);
} dnn;

static bool find_losses(void)
{
	char text[CUDA_TEXT_BYTES];
	void *library = nvidia_library("cudnn", text, sizeof text);
	bool found = library;

#define FIND(name) found = found && (*(void **)&dnn.name = dlsym(library, #name))
	FIND(cudnnCTCLoss);
	FIND(cudnnGetCTCLossWorkspaceSize);
#undef FIND
	return found;
}

struct loss {
	struct rf_dnn_ctc of;
	struct nvidia_descriptors made;
	void *handle, *probabilities, *gradients, *ctc;
	const int *input_lengths, *label_lengths, *labels;
};

/* The second one of three dimensions. */
static bool has_sequences(const uint64_t *tensor, uint64_t sequences)
{
	return tensor[0] >> 32 == 3 && (uint32_t)tensor[2] == sequences;
}

/* `numbers` are `count` of 32 bits. */
static bool labels_fit(struct loss *l, const uint64_t *tensors, const int *numbers, uint64_t count)
{
	const uint64_t *gradients = tensors + RF_TENSOR_SLOTS;
	uint64_t sequences = l->of.sequences, sum = 0;

	if (sequences > count / 2 || l->of.labels > count - 2 * sequences ||
	    !has_sequences(tensors, sequences) ||
	    (gradients[0] && !has_sequences(gradients, sequences)))
		return false;
	l->input_lengths = numbers;
	l->label_lengths = numbers + sequences;
	l->labels = numbers + 2 * sequences;
	for (uint64_t i = 0; i < sequences; i++) {
		if (l->label_lengths[i] < 0)
			return false;
		sum += (uint64_t)l->label_lengths[i];
	}
	return sum <= l->of.labels;
}

static bool memory_fits(const struct hal_space *space, const struct rf_dnn_ctc *of)
{
	const uint64_t at[] = {of->probabilities, of->costs, of->gradients, of->area};

	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		if (at[i] && !nvidia_space_has(space, at[i]))
			return false;
	return true;
}

/* `slots`: without the answer's address. */
static int read_loss(struct loss *l, struct hal_stream *s, const struct hal_space *space,
		     const uint64_t *slots, uint32_t count)
{
	const uint64_t *gradients = slots + RF_TENSOR_SLOTS, *ctc = gradients + RF_TENSOR_SLOTS;
	int status = nvidia_dnn_open(s, &l->handle);

	l->made.count = 0;
	if (!status && !find_losses())
		status = DNN_NOT_SUPPORTED;
	memcpy(&l->of, ctc + RF_ROW_SLOTS, sizeof l->of);
	if (!status &&
	    (!labels_fit(l, slots, (const int *)(slots + RF_CTC_HEAD), 2 * (count - RF_CTC_HEAD)) ||
	     !memory_fits(space, &l->of)))
		status = DNN_BAD_PARAM;
	if (!status)
		status = nvidia_dnn_make(&l->made, space, l->handle, 't', slots, &l->probabilities);
	if (!status)
		status = nvidia_dnn_make(&l->made, space, l->handle, 't', gradients, &l->gradients);
	if (!status)
		status = nvidia_dnn_make(&l->made, space, l->handle, RF_ROW_CTC, ctc, &l->ctc);
	return status;
}

int nvidia_dnn_ctc(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		   uint32_t count, struct nvidia_answer *answer)
{
	struct loss l;
	int status = read_loss(&l, s, space, slots + 1, count - 1);

	(void)answer;
	if (!status)
		status = dnn.cudnnCTCLoss(
			l.handle, l.probabilities, (void *)(uintptr_t)l.of.probabilities, l.labels,
			l.label_lengths, l.input_lengths, (void *)(uintptr_t)l.of.costs,
			l.gradients, (void *)(uintptr_t)l.of.gradients, (int)l.of.algorithm, l.ctc,
			(void *)(uintptr_t)l.of.area, l.of.area_bytes);
	nvidia_dnn_forget(&l.made);
	return status;
}

int nvidia_dnn_ctc_size(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
			uint32_t count, struct nvidia_answer *answer)
{
	struct loss l;
	size_t bytes = 0;
	int status = read_loss(&l, s, space, slots + 1, count - 1);

	if (!status)
		status = dnn.cudnnGetCTCLossWorkspaceSize(
			l.handle, l.probabilities, l.gradients, l.labels, l.label_lengths,
			l.input_lengths, (int)l.of.algorithm, l.ctc, &bytes);
	answer->of[0] = bytes;
	nvidia_dnn_forget(&l.made);
	return status;
}
