/* dnn_descriptors.c: makes descriptors of cuDNN for one call, as a rank sent them (library_call.h),
 * and calls the functions of cuDNN that are not in remote.def.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <string.h>

#include "calls.h"

static struct {
	int (*cudnnCreateTensorDescriptor)(void **);
	int (*cudnnDestroyTensorDescriptor)(void *);
	int (*cudnnSetTensorNdDescriptor)(void *, int, int, const int *, const int *);
	int (*cudnnGetTensorNdDescriptor)(const void *, int, int *, int *, int *, int *);
	int (*cudnnCreateActivationDescriptor)(void **);
	int (*cudnnDestroyActivationDescriptor)(void *);
	int (*cudnnSetActivationDescriptor)(void *, int, int, double);
	int (*cudnnCreateDropoutDescriptor)(void **);
	int (*cudnnDestroyDropoutDescriptor)(void *);
	int (*cudnnSetDropoutDescriptor)(void *, void *, float, void *, size_t, unsigned long long);
	int (*cudnnRestoreDropoutDescriptor)(void *, void *, float, void *, size_t,
					     unsigned long long);
	int (*cudnnCreateRNNDescriptor)(void **);
	int (*cudnnDestroyRNNDescriptor)(void *);
	int (*cudnnSetRNNDescriptor_v8)(void *, int, int, int, int, int, int, int, int, int32_t,
					int32_t, int32_t, int32_t, void *, uint32_t);
	int (*cudnnGetRNNWeightParams)(void *, void *, int32_t, size_t, const void *, int32_t,
				       void *, void **, void *, void **);
	int (*cudnnCreateRNNDataDescriptor)(void **);
	int (*cudnnDestroyRNNDataDescriptor)(void *);
	int (*cudnnSetRNNDataDescriptor)(void *, int, int, int, int, int, const int *, void *);
	int (*cudnnCreateSpatialTransformerDescriptor)(void **);
	int (*cudnnDestroySpatialTransformerDescriptor)(void *);
	int (*cudnnSetSpatialTransformerNdDescriptor)(void *, int, int, int, const int *);
} dnn;

static bool find_descriptors(void)
{
	static bool found;
	char text[CUDA_TEXT_BYTES];
	void *library;

	if (found)
		return true;
	library = nvidia_library("cudnn", text, sizeof text);
	found = library;
#define FIND(name) found = found && (*(void **)&dnn.name = dlsym(library, #name))
	FIND(cudnnCreateTensorDescriptor);
	FIND(cudnnDestroyTensorDescriptor);
	FIND(cudnnSetTensorNdDescriptor);
	FIND(cudnnGetTensorNdDescriptor);
	FIND(cudnnCreateActivationDescriptor);
	FIND(cudnnDestroyActivationDescriptor);
	FIND(cudnnSetActivationDescriptor);
	FIND(cudnnCreateDropoutDescriptor);
	FIND(cudnnDestroyDropoutDescriptor);
	FIND(cudnnSetDropoutDescriptor);
	FIND(cudnnRestoreDropoutDescriptor);
	FIND(cudnnCreateRNNDescriptor);
	FIND(cudnnDestroyRNNDescriptor);
	FIND(cudnnSetRNNDescriptor_v8);
	FIND(cudnnGetRNNWeightParams);
	FIND(cudnnCreateRNNDataDescriptor);
	FIND(cudnnDestroyRNNDataDescriptor);
	FIND(cudnnSetRNNDataDescriptor);
	FIND(cudnnCreateSpatialTransformerDescriptor);
	FIND(cudnnDestroySpatialTransformerDescriptor);
	FIND(cudnnSetSpatialTransformerNdDescriptor);
#undef FIND
	return found;
}

static int byte(uint64_t slot, int at) { return (int)(slot >> at & 0xff); }

static int low(uint64_t slot) { return (int)(uint32_t)slot; }

static int high(uint64_t slot) { return (int)(uint32_t)(slot >> 32); }

/* ---- one of each kind ---- */

static int set_tensor(void *made, const uint64_t *slots)
{
	int size[RF_TENSOR_DIMENSIONS], stride[RF_TENSOR_DIMENSIONS];
	uint32_t dimensions = (uint32_t)high(slots[0]);

	if (dimensions > RF_TENSOR_DIMENSIONS)
		return DNN_BAD_PARAM;
	for (uint32_t i = 0; i < dimensions; i++) {
		size[i] = low(slots[1 + i]);
		stride[i] = high(slots[1 + i]);
	}
	return dnn.cudnnSetTensorNdDescriptor(made, byte(slots[0], 8), (int)dimensions, size,
					      stride);
}

static int set_activation(void *made, const uint64_t *slots)
{
	double coefficient;

	memcpy(&coefficient, &slots[1], sizeof coefficient);
	return dnn.cudnnSetActivationDescriptor(made, byte(slots[0], 8), byte(slots[0], 16),
						coefficient);
}

/* `fill`: the library fills the states, in the handle's stream. Without states, which a probability
 * of 0 does not need, there is nothing to fill, and the library only accepts that function. */
static int set_dropout(void *made, const struct hal_space *space, void *handle,
		       const uint64_t *slots, bool fill)
{
	void *states = (void *)(uintptr_t)slots[2];
	float probability;

	if (slots[2] && !nvidia_space_has(space, slots[2]))
		return DNN_BAD_PARAM;
	memcpy(&probability, &slots[1], sizeof probability);
	return (fill || !states ? dnn.cudnnSetDropoutDescriptor
				: dnn.cudnnRestoreDropoutDescriptor)(made, handle, probability,
								     states, slots[3], slots[4]);
}

static int set_rnn(void *made, const uint64_t *s, void *dropout)
{
	return dnn.cudnnSetRNNDescriptor_v8(made, byte(s[0], 8), byte(s[0], 16), byte(s[0], 24),
					    byte(s[0], 32), byte(s[0], 40), byte(s[0], 48),
					    byte(s[0], 56), low(s[1]), low(s[2]), high(s[2]),
					    low(s[3]), high(s[3]), dropout, (uint32_t)high(s[1]));
}

#define SEQUENCES_MAX 65536u

static int set_sequences(void *made, const uint64_t *slots)
{
	static int lengths[SEQUENCES_MAX];
	const uint64_t *runs = slots + RF_SEQUENCES_SLOTS - RF_SEQUENCE_RUNS;
	uint32_t run_count = (uint32_t)high(slots[0]), count = (uint32_t)high(slots[1]), filled = 0;
	uint64_t fill = slots[3];

	if (run_count > RF_SEQUENCE_RUNS || count > SEQUENCES_MAX)
		return DNN_NOT_SUPPORTED;
	for (uint32_t i = 0; i < run_count; i++)
		for (uint32_t n = (uint32_t)high(runs[i]); n && filled < count; n--)
			lengths[filled++] = low(runs[i]);
	if (filled < count)
		return DNN_BAD_PARAM;
	return dnn.cudnnSetRNNDataDescriptor(made, byte(slots[0], 8), byte(slots[0], 16),
					     low(slots[1]), (int)count, low(slots[2]), lengths,
					     byte(slots[0], 24) ? &fill : NULL);
}

static int set_transformer(void *made, const uint64_t *slots)
{
	int sizes[RF_TRANSFORMER_DIMENSIONS];
	uint32_t dimensions = (uint32_t)high(slots[0]);

	if (dimensions > RF_TRANSFORMER_DIMENSIONS)
		return DNN_BAD_PARAM;
	for (uint32_t i = 0; i < dimensions; i++)
		sizes[i] = low(slots[1 + i]);
	return dnn.cudnnSetSpatialTransformerNdDescriptor(
		made, byte(slots[0], 8), byte(slots[0], 16), (int)dimensions, sizes);
}

static int dnn_descriptor_create(char kind, void **out)
{
	if (nvidia_dnn_is_row(kind))
		return nvidia_dnn_row_create(kind, out);
	switch (kind) {
	case 't': return dnn.cudnnCreateTensorDescriptor(out);
	case 'a': return dnn.cudnnCreateActivationDescriptor(out);
	case 'o': return dnn.cudnnCreateDropoutDescriptor(out);
	case 'r': return dnn.cudnnCreateRNNDescriptor(out);
	case 'q': return dnn.cudnnCreateRNNDataDescriptor(out);
	default: return dnn.cudnnCreateSpatialTransformerDescriptor(out);
	}
}

static void dnn_descriptor_destroy(char kind, void *descriptor)
{
	if (nvidia_dnn_is_row(kind)) {
		nvidia_dnn_row_destroy(kind, descriptor);
		return;
	}
	switch (kind) {
	case 't': dnn.cudnnDestroyTensorDescriptor(descriptor); break;
	case 'a': dnn.cudnnDestroyActivationDescriptor(descriptor); break;
	case 'o': dnn.cudnnDestroyDropoutDescriptor(descriptor); break;
	case 'r': dnn.cudnnDestroyRNNDescriptor(descriptor); break;
	case 'q': dnn.cudnnDestroyRNNDataDescriptor(descriptor); break;
	default: dnn.cudnnDestroySpatialTransformerDescriptor(descriptor);
	}
}

/* ---- those of a call ---- */

void nvidia_dnn_forget(struct nvidia_descriptors *d)
{
	while (d->count) {
		d->count--;
		dnn_descriptor_destroy(d->kind[d->count], d->made[d->count]);
	}
}

/* Makes one that nvidia_dnn_forget destroys. */
static int hold(struct nvidia_descriptors *d, char kind, void **out)
{
	int status = d->count < NVIDIA_DESCRIPTORS_MAX ? dnn_descriptor_create(kind, out)
						       : DNN_NOT_SUPPORTED;

	if (status)
		return status;
	d->kind[d->count] = kind;
	d->made[d->count++] = *out;
	return 0;
}

int nvidia_dnn_make(struct nvidia_descriptors *d, const struct hal_space *space, void *handle,
		    char kind, const uint64_t *slots, void **out)
{
	void *dropout = NULL;
	int status = 0;

	*out = NULL;
	if (!slots[0]) /* the program has none */
		return 0;
	if (!find_descriptors())
		return DNN_NOT_SUPPORTED;
	if (kind == 'r')
		status = nvidia_dnn_make(d, space, handle, 'o',
					 slots + RF_RNN_SLOTS - RF_DROPOUT_SLOTS, &dropout);
	if (!status)
		status = hold(d, kind, out);
	if (status)
		return status;
	if (nvidia_dnn_is_row(kind))
		return nvidia_dnn_row_set(kind, *out, slots);
	switch (kind) {
	case 't': return set_tensor(*out, slots);
	case 'a': return set_activation(*out, slots);
	case 'o': return set_dropout(*out, space, handle, slots, false);
	case 'r': return set_rnn(*out, slots, dropout);
	case 'q': return set_sequences(*out, slots);
	default: return set_transformer(*out, slots);
	}
}

/* ---- functions that are not in remote.def ---- */

int nvidia_dnn_dropout(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *answer)
{
	void *handle, *made;
	int status = nvidia_dnn_open(s, &handle);

	(void)count, (void)answer;
	if (!status && !find_descriptors())
		status = DNN_NOT_SUPPORTED;
	if (!status)
		status = dnn_descriptor_create('o', &made);
	if (status)
		return status;
	status = set_dropout(made, space, handle, slots + 1, true);
	dnn_descriptor_destroy('o', made);
	return status;
}

static void answer_tensor(struct nvidia_answer *answer, const void *tensor)
{
	int type = 0, dimensions = 0, size[RF_TENSOR_DIMENSIONS] = {0};
	int stride[RF_TENSOR_DIMENSIONS] = {0};

	dnn.cudnnGetTensorNdDescriptor(tensor, (int)RF_TENSOR_DIMENSIONS, &type, &dimensions, size,
				       stride);
	answer->of[answer->count++] = 1 | (uint64_t)(uint8_t)type << 8 |
				      (uint64_t)(uint32_t)dimensions << 32;
	for (uint32_t i = 0; i < RF_TENSOR_DIMENSIONS; i++)
		answer->of[answer->count++] = (uint32_t)size[i] | (uint64_t)(uint32_t)stride[i]
									  << 32;
}

/* The library computes addresses in the weights, and reads nothing. */
int nvidia_dnn_weights(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *answer)
{
	struct nvidia_descriptors made = {.count = 0};
	struct rf_dnn_weights which;
	void *handle, *rnn, *matrix, *bias, *matrix_at = NULL, *bias_at = NULL;
	int status = nvidia_dnn_open(s, &handle);

	(void)count;
	answer->count = 0;
	memcpy(&which, slots + 1 + RF_RNN_SLOTS, sizeof which);
	if (!status)
		status = nvidia_dnn_make(&made, space, handle, 'r', slots + 1, &rnn);
	if (!status && !rnn)
		status = DNN_BAD_PARAM;
	if (!status)
		status = hold(&made, 't', &matrix);
	if (!status)
		status = hold(&made, 't', &bias);
	if (!status)
		status = dnn.cudnnGetRNNWeightParams(handle, rnn, (int32_t)which.layer, which.bytes,
						     (void *)(uintptr_t)which.weights,
						     (int32_t)which.matrix, matrix, &matrix_at,
						     bias, &bias_at);
	if (!status) {
		answer->of[answer->count++] = (uint64_t)(uintptr_t)matrix_at;
		answer->of[answer->count++] = (uint64_t)(uintptr_t)bias_at;
		answer_tensor(answer, matrix);
		answer_tensor(answer, bias);
	}
	nvidia_dnn_forget(&made);
	return status;
}
