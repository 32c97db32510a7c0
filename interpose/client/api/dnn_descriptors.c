/* dnn_descriptors.c: descriptors of cuDNN's functions for recurrent networks, dropout, activations
 * and spatial transformers, which NVIDIA's own library computes; dnn_rows.c has the others. A
 * descriptor is kept as it is sent (library_call.h); a tensor's is dnn.c's. Errors are
 * cudnnStatus_t.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

size_t dnn_type_bytes(int type)
{
	static const uint8_t bytes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8, 1, 1, 1};

	return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static bool dnn_has_doubles(const void *tensor)
{
	return tensor && ((const struct dnn_tensor *)tensor)->type == CUDNN_DATA_DOUBLE;
}

static size_t dnn_element_bytes(const void *tensor)
{
	return tensor ? dnn_type_bytes(((const struct dnn_tensor *)tensor)->type) : 0;
}

static void put_tensor(uint64_t *slots, const struct dnn_tensor *t)
{
	slots[0] = DNN_PRESENT | (uint64_t)(uint8_t)t->type << 8 | (uint64_t)t->dimensions << 32;
	for (int64_t i = 0; i < t->dimensions; i++)
		slots[1 + i] = (uint32_t)t->size[i] | (uint64_t)t->stride[i] << 32;
}

void dnn_put(uint64_t *slots, char kind, const void *descriptor)
{
	size_t bytes = rf_slots_of(kind) * sizeof *slots;

	memset(slots, 0, bytes);
	if (!descriptor)
		return;
	if (kind == 't')
		put_tensor(slots, descriptor);
	else if (((const struct dnn_descriptor *)descriptor)->kind == kind)
		memcpy(slots, ((const struct dnn_descriptor *)descriptor)->slots, bytes);
}

struct remote_function *dnn_sized_for(struct dnn_sized all[DNN_SIZES], size_t slots)
{
	for (size_t i = 0; i < DNN_SIZES; i++)
		if (slots <= all[i].slots)
			return &all[i].f;
	return NULL;
}

struct remote_library remote_cudnn = {
	.image = RF_LIBRARY_TEXT "cudnn",
	.without = "not supported by rankfold on this device; torch.backends.cudnn.enabled = False "
		   "makes PyTorch use its own kernels",
	.handles = HANDLE_DNN,
	.status = {CUDNN_STATUS_NOT_INITIALIZED, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED,
		   CUDNN_STATUS_EXECUTION_FAILED},
	.put = dnn_put,
	.has_doubles = dnn_has_doubles,
	.element_bytes = dnn_element_bytes,
};

int descriptor_create(char kind, void **out, const char *name)
{
	struct dnn_descriptor *d;
	int status;

	if (!out)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	status = remote_ready(&remote_cudnn, name);
	if (status)
		return status;
	d = calloc(1, sizeof *d + rf_slots_of(kind) * sizeof *d->slots);
	if (!d)
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	d->kind = kind;
	*out = d;
	return CUDNN_STATUS_SUCCESS;
}

struct dnn_descriptor *descriptor_of(char kind, void *descriptor)
{
	struct dnn_descriptor *d = descriptor;

	return d && d->kind == kind ? d : NULL;
}

int descriptor_destroy(char kind, void *descriptor)
{
	if (descriptor && !descriptor_of(kind, descriptor))
		return CUDNN_STATUS_BAD_PARAM;
	free(descriptor);
	return CUDNN_STATUS_SUCCESS;
}

int activation_set(void *descriptor, int mode, int nan, double coefficient)
{
	struct dnn_descriptor *d = descriptor_of('a', descriptor);

	if (!d)
		return CUDNN_STATUS_BAD_PARAM;
	d->slots[0] = DNN_PRESENT | (uint64_t)(uint8_t)mode << 8 | (uint64_t)(uint8_t)nan << 16;
	d->slots[1] = sent_double(coefficient);
	return CUDNN_STATUS_SUCCESS;
}

int activation_get(void *descriptor, int *mode, int *nan, double *coefficient)
{
	const struct dnn_descriptor *d = descriptor_of('a', descriptor);

	if (!d || !d->slots[0] || !mode || !nan || !coefficient)
		return CUDNN_STATUS_BAD_PARAM;
	*mode = (int)(d->slots[0] >> 8 & 0xff);
	*nan = (int)(d->slots[0] >> 16 & 0xff);
	memcpy(coefficient, &d->slots[1], sizeof *coefficient);
	return CUDNN_STATUS_SUCCESS;
}

int dropout_set(void *descriptor, const void *handle, float probability, const void *states,
		size_t bytes, unsigned long long seed, bool fill)
{
	static struct remote_function f = {.name = "cudnnSetDropoutDescriptor"};
	struct dnn_descriptor *d = descriptor_of('o', descriptor);
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	uint32_t bits;

	if (!d)
		return CUDNN_STATUS_BAD_PARAM;
	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	memcpy(&bits, &probability, sizeof bits);
	d->slots[0] = DNN_PRESENT;
	d->slots[1] = bits;
	d->slots[2] = (uint64_t)states;
	d->slots[3] = bytes;
	d->slots[4] = seed;
	return fill && states /* a probability of 0 needs none */
		       ? remote_send(&remote_cudnn, &f, h->stream, d->slots, RF_DROPOUT_SLOTS, NULL)
		       : CUDNN_STATUS_SUCCESS;
}

int rnn_set(void *descriptor, const uint32_t n[13], const void *dropout)
{
	struct dnn_descriptor *d = descriptor_of('r', descriptor);

	if (!d)
		return CUDNN_STATUS_BAD_PARAM;
	d->slots[0] = DNN_PRESENT;
	for (int i = 0; i < 7; i++)
		d->slots[0] |= (uint64_t)(uint8_t)n[i] << (8 + 8 * i);
	for (int i = 0; i < 3; i++)
		d->slots[1 + i] = n[7 + 2 * i] | (uint64_t)n[8 + 2 * i] << 32;
	dnn_put(d->slots + RF_RNN_SLOTS - RF_DROPOUT_SLOTS, 'o', dropout);
	return CUDNN_STATUS_SUCCESS;
}

int sequences_set(void *descriptor, int type, int layout, int longest, int count, int elements,
		  const int *lengths, const void *fill)
{
	struct dnn_descriptor *d = descriptor_of('q', descriptor);
	uint64_t run_count = 0, *run;

	if (!d || count < 1 || !lengths)
		return CUDNN_STATUS_BAD_PARAM;
	memset(d->slots, 0, RF_SEQUENCES_SLOTS * sizeof *d->slots);
	run = d->slots + RF_SEQUENCES_SLOTS - RF_SEQUENCE_RUNS;
	for (int i = 0; i < count; i++) {
		if (run_count && (int)(uint32_t)run[run_count - 1] == lengths[i]) {
			run[run_count - 1] += 1ull << 32;
			continue;
		}
		if (run_count == RF_SEQUENCE_RUNS) {
			LOG_ONCE("a cuDNN batch whose sequences change their lengths more than %u "
				 "times is not supported by rankfold: sort them by length",
				 RF_SEQUENCE_RUNS);
			return CUDNN_STATUS_NOT_SUPPORTED;
		}
		run[run_count++] = (uint32_t)lengths[i] | 1ull << 32;
	}
	d->slots[0] = DNN_PRESENT | (uint64_t)(uint8_t)type << 8 | (uint64_t)(uint8_t)layout << 16 |
		      (fill ? 1ull << 24 : 0) | run_count << 32;
	d->slots[1] = (uint32_t)longest | (uint64_t)(uint32_t)count << 32;
	d->slots[2] = (uint32_t)elements;
	if (fill)
		memcpy(&d->slots[3], fill,
		       type == CUDNN_DATA_DOUBLE  ? 8
		       : type == CUDNN_DATA_FLOAT ? 4
						  : 2);
	return CUDNN_STATUS_SUCCESS;
}

int transformer_set(void *descriptor, int sampler, int type, int dimensions, const int *sizes)
{
	struct dnn_descriptor *d = descriptor_of('g', descriptor);

	if (!d || !sizes || dimensions < 1 || dimensions > (int)RF_TRANSFORMER_DIMENSIONS)
		return CUDNN_STATUS_BAD_PARAM;
	d->slots[0] = DNN_PRESENT | (uint64_t)(uint8_t)sampler << 8 |
		      (uint64_t)(uint8_t)type << 16 | (uint64_t)dimensions << 32;
	for (int i = 0; i < dimensions; i++)
		d->slots[1 + i] = (uint32_t)sizes[i];
	return CUDNN_STATUS_SUCCESS;
}

/* ---- weights of a recurrent network ---- */

static void take_tensor(struct dnn_tensor *t, const uint64_t *slots)
{
	uint32_t dimensions = (uint32_t)(slots[0] >> 32);

	if (!t)
		return;
	*t = (struct dnn_tensor){.type = (int)(slots[0] >> 8 & 0xff)};
	t->dimensions = dimensions < DNN_DIMENSIONS_MAX ? dimensions : DNN_DIMENSIONS_MAX;
	for (int64_t i = 0; i < t->dimensions; i++) {
		t->size[i] = (int32_t)slots[1 + i];
		t->stride[i] = (int32_t)(slots[1 + i] >> 32);
	}
}

int rnn_weights(const void *handle, const void *rnn, const struct rf_dnn_weights *which,
		void *matrix, void **matrix_at, void *bias, void **bias_at)
{
	static struct remote_function f = {.name = "cudnnGetRNNWeightParams"};
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	uint64_t sent[1 + RF_RNN_SLOTS + sizeof *which / sizeof(uint64_t)];
	uint64_t answer[1 + 2 + 2 * RF_TENSOR_SLOTS] = {0};
	int status;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	dnn_put(sent + 1, 'r', rnn);
	memcpy(sent + 1 + RF_RNN_SLOTS, which, sizeof *which);
	status = remote_query(&remote_cudnn, &f, h->stream, sent, sizeof sent / sizeof *sent,
			      answer, sizeof answer / sizeof *answer);
	if (status)
		return status;
	if (matrix_at)
		*matrix_at = (void *)answer[1];
	if (bias_at)
		*bias_at = (void *)answer[2];
	take_tensor(matrix, answer + 3);
	take_tensor(bias, answer + 3 + RF_TENSOR_SLOTS);
	return CUDNN_STATUS_SUCCESS;
}
