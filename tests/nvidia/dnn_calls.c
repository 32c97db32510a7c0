/* dnn_calls.c: of the fake driver (fake.h): functions of cuDNN outside of its backend API, in
 * float.
 *
 * Batch normalisation of channels, LSTM in one direction, filling of dropout states, and grids of
 * spatial transformers, as their definitions say. The gradients of an LSTM are markers that only
 * show that the caller passed their places. Stricter than NVIDIA's: descriptors that are left, and
 * memory that belongs to others, are faults of the caller.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_dnn.h"

enum { FLOAT = 0, LSTM = 2, UNPACKED = 0, PACKED = 1 };
#define WORKSPACE 64
#define RESERVE 128
#define STATES 96

int fake_dnn_make(void **out, char kind)
{
	struct numbers *d = calloc(1, sizeof *d);

	d->kind = kind;
	d->live = true;
	fake_dnn_live(1);
	*out = d;
	return SUCCESS;
}

int fake_dnn_drop(struct numbers *d, char kind)
{
	if (!d->live || d->kind != kind)
		fake_fault("cudnn: a descriptor %c is destroyed as a %c", d->kind, kind);
	d->live = false;
	fake_dnn_live(-1);
	return SUCCESS;
}

DESCRIPTOR(TensorDescriptor, 't')
DESCRIPTOR(ActivationDescriptor, 'a')
DESCRIPTOR(DropoutDescriptor, 'o')
DESCRIPTOR(RNNDescriptor, 'r')
DESCRIPTOR(RNNDataDescriptor, 'q')
DESCRIPTOR(SpatialTransformerDescriptor, 'g')

bool fake_dnn_is_set(const char *call, const struct numbers *d, char kind)
{
	if (d && d->live && d->set && d->kind == kind)
		return true;
	fake_fault("%s: a descriptor %c", call, kind);
	return false;
}

bool fake_dnn_shown(const char *call, const void *at, uint64_t bytes)
{
	uint64_t first = (uint64_t)at;

	if (fake_is_window(first) && fake_is_window(first + bytes - 1) &&
	    fake_reachable(first, bytes))
		return true;
	fake_fault("%s: memory at %p", call, at);
	return false;
}

EXPORT int cudnnSetTensorNdDescriptor(void *descriptor, int type, int count, const int *size,
				      const int *stride)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetTensorNdDescriptor);
	if (count < 1 || count > 8)
		return fake_end(BAD_PARAM);
	d->n[0] = type;
	d->count = count;
	memcpy(d->size, size, (size_t)count * sizeof *size);
	memcpy(d->stride, stride, (size_t)count * sizeof *stride);
	d->set = true;
	return fake_end(SUCCESS);
}

EXPORT int cudnnGetTensorNdDescriptor(const void *descriptor, int most, int *type, int *count,
				      int *size, int *stride)
{
	const struct numbers *d = descriptor;

	BEGIN(cudnnGetTensorNdDescriptor);
	*type = d->n[0];
	*count = d->count;
	for (int i = 0; i < d->count && i < most; i++) {
		size[i] = d->size[i];
		stride[i] = d->stride[i];
	}
	return fake_end(SUCCESS);
}

EXPORT int cudnnSetActivationDescriptor(void *descriptor, int mode, int nan, double coefficient)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetActivationDescriptor);
	d->n[0] = mode;
	d->n[1] = nan;
	d->real = coefficient;
	d->set = true;
	return fake_end(SUCCESS);
}

/* ---- batch normalisation ---- */

struct norm {
	struct numbers x;
	const float *in, *dy, *scale, *bias;
	float *out, *mean, *deviation, *running_mean, *running_variance, *d_scale, *d_bias;
	double factor, epsilon, alpha, beta;
};

static int features(const struct numbers *t) { return t->size[1]; }

static int64_t each_of(const struct numbers *t) /* elements of one channel */
{
	int64_t count = t->size[0];

	for (int i = 2; i < t->count; i++)
		count *= t->size[i];
	return count;
}

static float *feature_at(const float *base, const struct numbers *t, int channel, int64_t i)
{
	int64_t at = channel * t->stride[1];

	for (int d = t->count - 1; d >= 2; d--) {
		at += i % t->size[d] * t->stride[d];
		i /= t->size[d];
	}
	return (float *)base + at + i * t->stride[0];
}

uint64_t fake_dnn_bytes(const struct numbers *t)
{
	uint64_t last = 0;

	for (int d = 0; d < t->count; d++)
		last += (uint64_t)(t->size[d] - 1) * (uint64_t)t->stride[d];
	return (last + 1) * sizeof(float);
}

static void normalise(const uint8_t *params)
{
	const struct norm *k = (const void *)params;
	int64_t count = each_of(&k->x);

	for (int c = 0; c < features(&k->x); c++) {
		double sum = 0, squares = 0, mean, deviation;

		for (int64_t i = 0; i < count; i++)
			sum += (double)*feature_at(k->in, &k->x, c, i);
		mean = sum / (double)count;
		for (int64_t i = 0; i < count; i++) {
			double from = (double)*feature_at(k->in, &k->x, c, i) - mean;

			squares += from * from;
		}
		deviation = 1 / sqrt(squares / (double)count + k->epsilon);
		for (int64_t i = 0; i < count; i++) {
			float *y = feature_at(k->out, &k->x, c, i);
			double value = ((double)*feature_at(k->in, &k->x, c, i) - mean) *
					       deviation * (double)k->scale[c] +
				       (double)k->bias[c];

			*y = (float)(k->alpha * value + (k->beta ? k->beta * (double)*y : 0));
		}
		if (k->mean) {
			k->mean[c] = (float)mean;
			k->deviation[c] = (float)deviation;
		}
		if (k->running_mean) {
			double variance = squares / (double)(count > 1 ? count - 1 : 1);

			k->running_mean[c] = (float)((1 - k->factor) * (double)k->running_mean[c] +
						     k->factor * mean);
			k->running_variance[c] = (float)((1 - k->factor) *
								 (double)k->running_variance[c] +
							 k->factor * variance);
		}
	}
}

static void normalise_back(const uint8_t *params)
{
	const struct norm *k = (const void *)params;
	int64_t count = each_of(&k->x);

	for (int c = 0; c < features(&k->x); c++) {
		double mean = (double)k->mean[c], deviation = (double)k->deviation[c];
		double sum = 0, product = 0;

		for (int64_t i = 0; i < count; i++) {
			double dy = (double)*feature_at(k->dy, &k->x, c, i);

			sum += dy;
			product += dy * ((double)*feature_at(k->in, &k->x, c, i) - mean) *
				   deviation;
		}
		k->d_bias[c] = (float)sum;
		k->d_scale[c] = (float)product;
		for (int64_t i = 0; i < count; i++) {
			double from = ((double)*feature_at(k->in, &k->x, c, i) - mean) * deviation;

			*feature_at(k->out, &k->x, c,
				    i) = (float)((double)k->scale[c] * deviation *
						 ((double)*feature_at(k->dy, &k->x, c, i) -
						  (sum + from * product) / (double)count));
		}
	}
}

int fake_dnn_sized(const char *call, size_t *bytes, size_t value)
{
	if (!fake_dnn_handle(call))
		return BAD_PARAM;
	*bytes = value;
	return SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops,
								    void *x, void *z, void *y,
								    void *p, void *a, size_t *bytes)
{
	(void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)p, (void)a;
	BEGIN(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize);
	return fake_end(fake_dnn_sized("cudnnGetBatchNormalization", bytes, WORKSPACE));
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops,
							     void *x, void *y, void *dy, void *dz,
							     void *dx, void *p, void *a,
							     size_t *bytes)
{
	(void)handle, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx;
	(void)p, (void)a;
	BEGIN(cudnnGetBatchNormalizationBackwardExWorkspaceSize);
	return fake_end(fake_dnn_sized("cudnnGetBatchNormalization", bytes, WORKSPACE));
}

EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops,
								void *a, void *x, size_t *bytes)
{
	(void)handle, (void)mode, (void)ops, (void)a, (void)x;
	BEGIN(cudnnGetBatchNormalizationTrainingExReserveSpaceSize);
	return fake_end(fake_dnn_sized("cudnnGetBatchNormalization", bytes, RESERVE));
}

EXPORT int cudnnBatchNormalizationForwardTrainingEx(
	void *handle, int mode, int ops, const float *alpha, const float *beta, void *xd,
	const float *x, void *zd, const void *z, void *yd, float *y, void *pd, const float *scale,
	const float *bias, double factor, float *running_mean, float *running_variance,
	double epsilon, float *mean, float *deviation, void *activation, void *workspace,
	size_t workspace_bytes, void *reserve, size_t reserve_bytes)
{
	static const char call[] = "cudnnBatchNormalizationForwardTrainingEx";
	struct norm k = {.in = x,
			 .out = y,
			 .scale = scale,
			 .bias = bias,
			 .mean = mean,
			 .deviation = deviation,
			 .running_mean = running_mean,
			 .running_variance = running_variance,
			 .factor = factor,
			 .epsilon = epsilon};
	uint64_t each;

	(void)handle, (void)mode, (void)ops, (void)activation;
	BEGIN(cudnnBatchNormalizationForwardTrainingEx);
	if (zd || z || !fake_dnn_is_set(call, xd, 't') || !fake_dnn_is_set(call, yd, 't') ||
	    !fake_dnn_is_set(call, pd, 't') || !fake_dnn_handle(call))
		return fake_end(BAD_PARAM);
	k.x = *(struct numbers *)xd;
	k.alpha = (double)*alpha;
	k.beta = (double)*beta;
	each = (uint64_t)features(&k.x) * sizeof(float);
	if (workspace_bytes < WORKSPACE || reserve_bytes < RESERVE ||
	    !fake_dnn_shown(call, workspace, workspace_bytes) ||
	    !fake_dnn_shown(call, reserve, reserve_bytes) ||
	    !fake_dnn_shown(call, x, fake_dnn_bytes(&k.x)) ||
	    !fake_dnn_shown(call, y, fake_dnn_bytes(&k.x)) || !fake_dnn_shown(call, scale, each) ||
	    !fake_dnn_shown(call, bias, each) || !fake_dnn_shown(call, mean, each) ||
	    !fake_dnn_shown(call, deviation, each))
		return fake_end(BAD_PARAM);
	fake_push_kernel(fake_dnn_stream(), normalise, &k, sizeof k);
	return fake_end(SUCCESS);
}

EXPORT int cudnnBatchNormalizationBackwardEx(
	void *handle, int mode, int ops, const float *alpha, const float *beta,
	const float *alpha_p, const float *beta_p, void *xd, const float *x, void *yd,
	const float *y, void *dyd, const float *dy, void *dzd, void *dz, void *dxd, float *dx,
	void *pd, const float *scale, const float *bias, float *d_scale, float *d_bias,
	double epsilon, float *mean, float *deviation, void *activation, void *workspace,
	size_t workspace_bytes, void *reserve, size_t reserve_bytes)
{
	static const char call[] = "cudnnBatchNormalizationBackwardEx";
	struct norm k = {.in = x,
			 .dy = dy,
			 .out = dx,
			 .scale = scale,
			 .mean = mean,
			 .deviation = deviation,
			 .d_scale = d_scale,
			 .d_bias = d_bias,
			 .epsilon = epsilon};
	uint64_t each;

	(void)handle, (void)mode, (void)ops, (void)yd, (void)y, (void)dzd, (void)dz, (void)bias;
	(void)activation;
	BEGIN(cudnnBatchNormalizationBackwardEx);
	if (!fake_dnn_is_set(call, xd, 't') || !fake_dnn_is_set(call, dyd, 't') ||
	    !fake_dnn_is_set(call, dxd, 't') || !fake_dnn_is_set(call, pd, 't') ||
	    !fake_dnn_handle(call) || *alpha != 1 || *beta != 0 || *alpha_p != 1 || *beta_p != 0)
		return fake_end(BAD_PARAM);
	k.x = *(struct numbers *)xd;
	each = (uint64_t)features(&k.x) * sizeof(float);
	if (workspace_bytes < WORKSPACE || reserve_bytes < RESERVE ||
	    !fake_dnn_shown(call, workspace, workspace_bytes) ||
	    !fake_dnn_shown(call, reserve, reserve_bytes) ||
	    !fake_dnn_shown(call, x, fake_dnn_bytes(&k.x)) ||
	    !fake_dnn_shown(call, dy, fake_dnn_bytes(&k.x)) ||
	    !fake_dnn_shown(call, dx, fake_dnn_bytes(&k.x)) ||
	    !fake_dnn_shown(call, d_scale, each) || !fake_dnn_shown(call, d_bias, each))
		return fake_end(BAD_PARAM);
	fake_push_kernel(fake_dnn_stream(), normalise_back, &k, sizeof k);
	return fake_end(SUCCESS);
}

/* ---- dropout ---- */

EXPORT int cudnnDropoutGetStatesSize(void *handle, size_t *bytes)
{
	(void)handle;
	BEGIN(cudnnDropoutGetStatesSize);
	return fake_end(fake_dnn_sized("cudnnDropoutGetStatesSize", bytes, STATES));
}

static void fill_states(const uint8_t *params)
{
	const struct numbers *d = (const void *)params;

	memset(d->states, (int)(uint8_t)d->seed, d->bytes);
}

static int set_dropout(const char *call, struct numbers *d, float probability, void *states,
		       size_t bytes, unsigned long long seed, bool fill)
{
	if (fill && !states) {
		d->set = d->kind == 'o' && probability == 0;
		return d->set ? SUCCESS : BAD_PARAM;
	}
	if (d->kind != 'o' || !states || bytes < STATES || !fake_dnn_shown(call, states, bytes))
		return BAD_PARAM;
	d->real = (double)probability;
	d->states = states;
	d->bytes = bytes;
	d->seed = seed;
	d->set = true;
	if (fill && fake_dnn_handle(call))
		fake_push_kernel(fake_dnn_stream(), fill_states, d, sizeof *d);
	return SUCCESS;
}

EXPORT int cudnnSetDropoutDescriptor(void *descriptor, void *handle, float probability,
				     void *states, size_t bytes, unsigned long long seed)
{
	(void)handle;
	BEGIN(cudnnSetDropoutDescriptor);
	return fake_end(set_dropout("cudnnSetDropoutDescriptor", descriptor, probability, states,
				    bytes, seed, true));
}

EXPORT int cudnnRestoreDropoutDescriptor(void *descriptor, void *handle, float probability,
					 void *states, size_t bytes, unsigned long long seed)
{
	(void)handle;
	BEGIN(cudnnRestoreDropoutDescriptor);
	return fake_end(set_dropout("cudnnRestoreDropoutDescriptor", descriptor, probability,
				    states, bytes, seed, false));
}

/* ---- recurrent networks ---- */

EXPORT int cudnnSetRNNDescriptor_v8(void *descriptor, int algorithm, int cell, int bias,
				    int direction, int input, int type, int precision, int math,
				    int input_size, int hidden, int projection, int layers,
				    void *dropout, uint32_t flags)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetRNNDescriptor_v8);
	if (cell != LSTM || direction || type != FLOAT || bias != 2 || input ||
	    precision != FLOAT || projection != hidden || algorithm > 3 || layers < 1 || layers > 4)
		return fake_end(NOT_SUPPORTED);
	(void)math, (void)flags;
	d->n[0] = input_size;
	d->n[1] = hidden;
	d->n[2] = layers;
	d->dropout = dropout;
	d->set = true;
	return fake_end(fake_dnn_is_set("cudnnSetRNNDescriptor_v8", dropout, 'o') ? SUCCESS
										  : BAD_PARAM);
}

EXPORT int cudnnSetRNNDataDescriptor(void *descriptor, int type, int layout, int longest, int count,
				     int elements, const int *lengths, void *fill)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetRNNDataDescriptor);
	if (type != FLOAT || (layout != UNPACKED && layout != PACKED) || count > SEQUENCES)
		return fake_end(NOT_SUPPORTED);
	if (fill)
		memcpy(&d->real, fill, sizeof(float));
	d->n[0] = layout;
	d->n[1] = longest;
	d->n[2] = count;
	d->n[3] = elements;
	memcpy(d->lengths, lengths, (size_t)count * sizeof *lengths);
	d->set = true;
	return fake_end(SUCCESS);
}

static int inputs_of(const struct numbers *rnn, int layer) { return rnn->n[layer ? 1 : 0]; }

/* The first number of a layer's matrix (0 to 7: four for the input, four for the state); number 8
 * is the first bias. */
static int64_t weight_at(const struct numbers *rnn, int layer, int matrix)
{
	int64_t hidden = rnn->n[1], at = 0;

	for (int i = 0; i < layer; i++)
		at += 4 * hidden * (inputs_of(rnn, i) + hidden + 2);
	at += (matrix < 4 ? matrix : 4) * hidden * inputs_of(rnn, layer);
	return at + (matrix > 4 ? matrix - 4 : 0) * hidden * hidden;
}

static size_t weight_bytes(const struct numbers *rnn)
{
	return (size_t)weight_at(rnn, rnn->n[2], 0) * sizeof(float);
}

EXPORT int cudnnGetRNNWeightSpaceSize(void *handle, void *rnn, size_t *bytes)
{
	(void)handle;
	BEGIN(cudnnGetRNNWeightSpaceSize);
	if (!fake_dnn_is_set("cudnnGetRNNWeightSpaceSize", rnn, 'r'))
		return fake_end(BAD_PARAM);
	return fake_end(fake_dnn_sized("cudnnGetRNNWeightSpaceSize", bytes, weight_bytes(rnn)));
}

EXPORT int cudnnGetRNNTempSpaceSizes(void *handle, void *rnn, int training, void *x,
				     size_t *workspace, size_t *reserve)
{
	(void)handle;
	BEGIN(cudnnGetRNNTempSpaceSizes);
	if (!fake_dnn_is_set("cudnnGetRNNTempSpaceSizes", rnn, 'r') ||
	    !fake_dnn_is_set("cudnnGetRNNTempSpaceSizes", x, 'q'))
		return fake_end(BAD_PARAM);
	*workspace = WORKSPACE;
	*reserve = training ? RESERVE : 0;
	return fake_end(SUCCESS);
}

static void set_shape(struct numbers *t, int rows, int columns)
{
	t->n[0] = FLOAT;
	t->count = 3;
	t->size[0] = 1, t->size[1] = rows, t->size[2] = columns;
	t->stride[0] = rows * columns, t->stride[1] = columns, t->stride[2] = 1;
	t->set = true;
}

EXPORT int cudnnGetRNNWeightParams(void *handle, void *descriptor, int32_t layer, size_t bytes,
				   const void *weights, int32_t matrix, void *md, void **m,
				   void *bd, void **b)
{
	const struct numbers *rnn = descriptor;
	int hidden = rnn->n[1];

	(void)handle;
	BEGIN(cudnnGetRNNWeightParams);
	if (!fake_dnn_is_set("cudnnGetRNNWeightParams", rnn, 'r') || bytes < weight_bytes(rnn) ||
	    layer < 0 || layer >= rnn->n[2] || matrix < 0 || matrix > 7)
		return fake_end(BAD_PARAM);
	*m = (float *)weights + weight_at(rnn, layer, matrix);
	*b = (float *)weights + weight_at(rnn, layer, 8) + matrix * hidden;
	set_shape(md, hidden, matrix < 4 ? inputs_of(rnn, layer) : hidden);
	set_shape(bd, hidden, 1);
	return fake_end(SUCCESS);
}

struct lstm {
	struct numbers rnn, x;
	const float *in, *h0, *c0, *weights;
	float *out, *h, *c;
};

/* The number of a vector: of a sequence, at a time. */
static int64_t vector_at(const struct numbers *x, int time, int sequence)
{
	int64_t at = 0;

	if (x->n[0] == UNPACKED)
		return (int64_t)time * x->n[2] + sequence;
	for (int t = 0; t < time; t++)
		for (int s = 0; s < x->n[2]; s++)
			at += x->lengths[s] > t;
	return at + sequence;
}

static double gate(const struct lstm *k, int layer, int g, int row, const float *x, const float *h)
{
	const float *w = k->weights + weight_at(&k->rnn, layer, g);
	const float *r = k->weights + weight_at(&k->rnn, layer, 4 + g);
	const float *b = k->weights + weight_at(&k->rnn, layer, 8);
	int inputs = inputs_of(&k->rnn, layer), hidden = k->rnn.n[1];
	double sum = (double)b[g * hidden + row] + (double)b[(4 + g) * hidden + row];

	for (int i = 0; i < inputs; i++)
		sum += (double)w[row * inputs + i] * (double)x[i];
	for (int i = 0; i < hidden; i++)
		sum += (double)r[row * hidden + i] * (double)h[i];
	return sum;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void step_layer(const struct lstm *k, int layer, const float *x, float *h, float *c)
{
	int hidden = k->rnn.n[1];
	float next_h[64], next_c[64];

	for (int i = 0; i < hidden; i++) {
		double in = sigmoid(gate(k, layer, 0, i, x, h));
		double forget = sigmoid(gate(k, layer, 1, i, x, h));
		double fresh = tanh(gate(k, layer, 2, i, x, h));
		double out = sigmoid(gate(k, layer, 3, i, x, h));

		next_c[i] = (float)(forget * (double)c[i] + in * fresh);
		next_h[i] = (float)(out * tanh((double)next_c[i]));
	}
	memcpy(h, next_h, (size_t)hidden * sizeof *h);
	memcpy(c, next_c, (size_t)hidden * sizeof *c);
}

static void run_lstm(const uint8_t *params)
{
	const struct lstm *k = (const void *)params;
	int hidden = k->rnn.n[1], layers = k->rnn.n[2], sequences = k->x.n[2];

	for (int s = 0; s < sequences; s++) {
		float h[4][64] = {{0}}, c[4][64] = {{0}};
		size_t bytes = (size_t)hidden * sizeof(float);

		for (int l = 0; l < layers; l++) {
			if (k->h0)
				memcpy(h[l], k->h0 + (l * sequences + s) * hidden, bytes);
			if (k->c0)
				memcpy(c[l], k->c0 + (l * sequences + s) * hidden, bytes);
		}
		for (int t = 0; t < k->x.lengths[s]; t++) {
			int64_t at = vector_at(&k->x, t, s);

			for (int l = 0; l < layers; l++)
				step_layer(k, l, l ? h[l - 1] : k->in + at * k->x.n[3], h[l], c[l]);
			memcpy(k->out + at * hidden, h[layers - 1], bytes);
		}
		for (int l = 0; l < layers; l++) {
			if (k->h)
				memcpy(k->h + (l * sequences + s) * hidden, h[l], bytes);
			if (k->c)
				memcpy(k->c + (l * sequences + s) * hidden, c[l], bytes);
		}
	}
}

/* Checks what all three functions of a network get. */
static bool lstm_fits(const char *call, void *rnn, void *x, void *y, size_t weight_size,
		      const void *weights, size_t workspace_bytes, const void *workspace,
		      size_t reserve_bytes, const void *reserve)
{
	return fake_dnn_handle(call) && fake_dnn_is_set(call, rnn, 'r') &&
	       fake_dnn_is_set(call, x, 'q') && fake_dnn_is_set(call, y, 'q') &&
	       weight_size >= weight_bytes(rnn) && fake_dnn_shown(call, weights, weight_size) &&
	       workspace_bytes >= WORKSPACE && fake_dnn_shown(call, workspace, workspace_bytes) &&
	       (!reserve_bytes || fake_dnn_shown(call, reserve, reserve_bytes));
}

EXPORT int cudnnRNNForward(void *handle, void *rnn, int training, const int32_t *lengths, void *xd,
			   const float *x, void *yd, float *y, void *hd, const float *hx, float *hy,
			   void *cd, const float *cx, float *cy, size_t weight_size,
			   const float *weights, size_t workspace_bytes, void *workspace,
			   size_t reserve_bytes, void *reserve)
{
	static const char call[] = "cudnnRNNForward";
	struct lstm k = {
		.in = x, .out = y, .h0 = hx, .c0 = cx, .h = hy, .c = cy, .weights = weights};

	(void)handle, (void)lengths;
	BEGIN(cudnnRNNForward);
	if (!lstm_fits(call, rnn, xd, yd, weight_size, weights, workspace_bytes, workspace,
		       reserve_bytes, reserve) ||
	    !fake_dnn_is_set(call, hd, 't') || !fake_dnn_is_set(call, cd, 't') ||
	    (training && reserve_bytes < RESERVE) || !fake_dnn_shown(call, x, 4) ||
	    !fake_dnn_shown(call, y, 4))
		return fake_end(BAD_PARAM);
	k.rnn = *(struct numbers *)rnn;
	k.x = *(struct numbers *)xd;
	fake_push_kernel(fake_dnn_stream(), run_lstm, &k, sizeof k);
	return fake_end(SUCCESS);
}

struct marks {
	float *to[3];
	float value[3];
};

static void mark(const uint8_t *params)
{
	const struct marks *m = (const void *)params;

	for (int i = 0; i < 3; i++)
		if (m->to[i])
			*m->to[i] = m->value[i];
}

EXPORT int cudnnRNNBackwardData_v8(void *handle, void *rnn, const int32_t *lengths, void *yd,
				   const float *y, const float *dy, void *xd, float *dx, void *hd,
				   const float *hx, const float *dhy, float *dhx, void *cd,
				   const float *cx, const float *dcy, float *dcx,
				   size_t weight_size, const float *weights, size_t workspace_bytes,
				   void *workspace, size_t reserve_bytes, void *reserve)
{
	static const char call[] = "cudnnRNNBackwardData_v8";
	struct marks m = {{dx, dhx, dcx}, {11, 12, 13}};

	(void)handle, (void)lengths, (void)hx, (void)cx, (void)dhy, (void)dcy;
	BEGIN(cudnnRNNBackwardData_v8);
	if (!lstm_fits(call, rnn, xd, yd, weight_size, weights, workspace_bytes, workspace,
		       reserve_bytes, reserve) ||
	    !fake_dnn_is_set(call, hd, 't') || !fake_dnn_is_set(call, cd, 't') ||
	    !fake_dnn_shown(call, y, 4) || !fake_dnn_shown(call, dy, 4) ||
	    !fake_dnn_shown(call, dx, 4))
		return fake_end(BAD_PARAM);
	fake_push_kernel(fake_dnn_stream(), mark, &m, sizeof m);
	return fake_end(SUCCESS);
}

EXPORT int cudnnRNNBackwardWeights_v8(void *handle, void *rnn, int add, const int32_t *lengths,
				      void *xd, const float *x, void *hd, const float *hx, void *yd,
				      const float *y, size_t weight_size, float *d_weights,
				      size_t workspace_bytes, void *workspace, size_t reserve_bytes,
				      void *reserve)
{
	static const char call[] = "cudnnRNNBackwardWeights_v8";
	struct marks m = {{d_weights}, {14}};

	(void)handle, (void)lengths, (void)hx, (void)add;
	BEGIN(cudnnRNNBackwardWeights_v8);
	if (!lstm_fits(call, rnn, xd, yd, weight_size, d_weights, workspace_bytes, workspace,
		       reserve_bytes, reserve) ||
	    !fake_dnn_is_set(call, hd, 't') || !fake_dnn_shown(call, x, 4) ||
	    !fake_dnn_shown(call, y, 4))
		return fake_end(BAD_PARAM);
	fake_push_kernel(fake_dnn_stream(), mark, &m, sizeof m);
	return fake_end(SUCCESS);
}

/* ---- spatial transformers ---- */

EXPORT int cudnnSetSpatialTransformerNdDescriptor(void *descriptor, int sampler, int type,
						  int count, const int *size)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetSpatialTransformerNdDescriptor);
	if (sampler || type != FLOAT || count != 4)
		return fake_end(NOT_SUPPORTED);
	memcpy(d->size, size, 4 * sizeof *size);
	d->count = count;
	d->set = true;
	return fake_end(SUCCESS);
}

struct grid {
	struct numbers st;
	const float *theta;
	float *to;
};

/* Corners are at -1 and 1. */
static void make_grid(const uint8_t *params)
{
	const struct grid *g = (const void *)params;
	int n = g->st.size[0], height = g->st.size[2], width = g->st.size[3];

	for (int i = 0; i < n * height * width; i++) {
		const float *t = g->theta + i / (height * width) * 6;
		double x = width > 1 ? 2.0 * (i % width) / (width - 1) - 1 : 0;
		double y = height > 1 ? 2.0 * (i / width % height) / (height - 1) - 1 : 0;

		g->to[2 * i] = (float)((double)t[0] * x + (double)t[1] * y + (double)t[2]);
		g->to[2 * i + 1] = (float)((double)t[3] * x + (double)t[4] * y + (double)t[5]);
	}
}

EXPORT int cudnnSpatialTfGridGeneratorForward(void *handle, void *descriptor, const float *theta,
					      float *grid)
{
	static const char call[] = "cudnnSpatialTfGridGeneratorForward";
	struct grid g = {.theta = theta, .to = grid};

	(void)handle;
	BEGIN(cudnnSpatialTfGridGeneratorForward);
	if (!fake_dnn_handle(call) || !fake_dnn_is_set(call, descriptor, 'g') ||
	    !fake_dnn_shown(call, theta, 24) || !fake_dnn_shown(call, grid, 8))
		return fake_end(BAD_PARAM);
	g.st = *(struct numbers *)descriptor;
	fake_push_kernel(fake_dnn_stream(), make_grid, &g, sizeof g);
	return fake_end(SUCCESS);
}
