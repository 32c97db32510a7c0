/* dnn_tensors.c: of the fake driver (fake.h): cuDNN's poolings, softmax, activations, LRN, dropout,
 * and operations on tensors, in float, as their definitions say.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_dnn.h"

enum { FLOAT = 0, DOUBLE = 1 };
enum { POOL_MOST, POOL_MEAN_OF_ALL, POOL_MEAN_OF_INSIDE };
enum { SIGMOID, RELU, TANH, CLIPPED, ELU, IDENTITY };
enum { OP_ADD, OP_MULTIPLY, OP_LEAST, OP_MOST };
enum { SUM = 0, LEAST = 2, MOST = 3, MEAN = 5 };
enum { SOFTMAX_LOG = 2, INSTANCE = 0 };

DESCRIPTOR(PoolingDescriptor, 'z')
DESCRIPTOR(OpTensorDescriptor, 'y')
DESCRIPTOR(ReduceTensorDescriptor, 'u')
DESCRIPTOR(LRNDescriptor, 'x')

static int set_numbers(struct numbers *d, char kind, const int *numbers, int count)
{
	if (d->kind != kind)
		return BAD_PARAM;
	memcpy(d->n, numbers, (size_t)count * sizeof *numbers);
	d->set = true;
	return SUCCESS;
}

EXPORT int cudnnSetPoolingNdDescriptor(void *descriptor, int mode, int nan, int places,
				       const int *window, const int *padding, const int *stride)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetPoolingNdDescriptor);
	if (mode < 0 || mode > POOL_MEAN_OF_INSIDE || places < 1 || places > 3)
		return fake_end(NOT_SUPPORTED);
	for (int i = 0; i < places; i++) {
		d->size[i] = window[i];
		d->stride[i] = stride[i];
		d->lengths[i] = padding[i];
	}
	d->count = places;
	return fake_end(set_numbers(d, 'z', (int[]){mode, nan}, 2));
}

EXPORT int cudnnSetOpTensorDescriptor(void *descriptor, int operation, int type, int nan)
{
	BEGIN(cudnnSetOpTensorDescriptor);
	if (operation < 0 || operation > OP_MOST || type != FLOAT)
		return fake_end(NOT_SUPPORTED);
	return fake_end(set_numbers(descriptor, 'y', (int[]){operation, type, nan}, 3));
}

EXPORT int cudnnSetReduceTensorDescriptor(void *descriptor, int operation, int type, int nan,
					  int indices, int index_type)
{
	BEGIN(cudnnSetReduceTensorDescriptor);
	if (type != FLOAT || indices || index_type)
		return fake_end(NOT_SUPPORTED);
	return fake_end(set_numbers(descriptor, 'u', (int[]){operation, type, nan}, 3));
}

EXPORT int cudnnSetLRNDescriptor(void *descriptor, unsigned channels, double alpha, double beta,
				 double k)
{
	struct numbers *d = descriptor;
	const double numbers[] = {alpha, beta, k};

	BEGIN(cudnnSetLRNDescriptor);
	memcpy(d->lengths, numbers, sizeof numbers);
	return fake_end(set_numbers(d, 'x', (int[]){(int)channels}, 1));
}

/* ---- one kernel ---- */

struct operand {
	int count, size[8], stride[8];
	float *at;
};
struct work {
	void (*run)(const struct work *);
	double alpha, beta, more;
	struct operand a, b, c, to; /* inputs, and the result */
	struct numbers of;          /* its descriptor */
	int mode, algorithm;
	uint8_t *reserve;
};

static int64_t elements(const struct operand *t)
{
	int64_t count = 1;

	for (int i = 0; i < t->count; i++)
		count *= t->size[i];
	return count;
}

/* The indices of element n. */
static void split(const struct operand *t, int64_t n, int *i)
{
	for (int d = t->count; d--;) {
		i[d] = (int)(n % t->size[d]);
		n /= t->size[d];
	}
}

/* With a size of 1, for all indices. */
static float *at(const struct operand *t, const int *i)
{
	int64_t place = 0;

	for (int d = 0; d < t->count; d++)
		place += (int64_t)(t->size[d] == 1 ? 0 : i[d]) * t->stride[d];
	return t->at + place;
}

static void store(const struct work *k, const int *i, double value)
{
	float *to = at(&k->to, i);

	*to = (float)(k->alpha * value + (k->beta ? k->beta * (double)*to : 0));
}

static void run_work(const uint8_t *params)
{
	const struct work *k = (const void *)params;

	k->run(k);
}

/* ---- what a call says ---- */

static bool read_operand(const char *call, struct operand *to, const void *descriptor,
			 const void *memory)
{
	const struct numbers *d = descriptor;

	if (!fake_dnn_is_set(call, d, 't') || d->n[0] != FLOAT ||
	    !fake_dnn_shown(call, memory, fake_dnn_bytes(d)))
		return false;
	to->count = d->count;
	memcpy(to->size, d->size, sizeof to->size);
	memcpy(to->stride, d->stride, sizeof to->stride);
	to->at = (float *)memory;
	return true;
}

static bool read_descriptor(const char *call, struct work *k, const void *descriptor, char kind)
{
	if (!fake_dnn_is_set(call, descriptor, kind))
		return false;
	k->of = *(const struct numbers *)descriptor;
	return true;
}

static int push(const char *call, const struct work *k, bool fits)
{
	if (!fits || !fake_dnn_handle(call))
		return BAD_PARAM;
	fake_push_kernel(fake_dnn_stream(), run_work, k, sizeof *k);
	return SUCCESS;
}

#define WORK(function) {.run = function, .alpha = (double)*alpha, .beta = (double)*beta}

/* ---- poolings ---- */

/* Calls `visit` for each element of x under the window of y's element i. */
static int under_window(const struct work *k, const struct operand *x, const int *i,
			void (*visit)(void *, float *), void *argument)
{
	int window[8], count = 1, inside = 0;

	for (int d = 0; d < k->of.count; d++)
		count *= k->of.size[d];
	for (int n = 0; n < count; n++) {
		bool there = true;
		int rest = n;

		memcpy(window, i, sizeof window);
		for (int d = k->of.count; d--;) {
			window[2 + d] = i[2 + d] * k->of.stride[d] - k->of.lengths[d] +
					rest % k->of.size[d];
			rest /= k->of.size[d];
			there = there && window[2 + d] >= 0 && window[2 + d] < x->size[2 + d];
		}
		if (!there)
			continue;
		inside++;
		visit(argument, at(x, window));
	}
	return k->of.n[0] == POOL_MEAN_OF_ALL ? count : inside;
}

struct seen {
	double sum;
	float *most;
	const float *base;
	float *gradients; /* of x, from `base` on; NULL: none are added to */
	double add;
};

static void see(void *argument, float *x)
{
	struct seen *s = argument;

	s->sum += (double)*x;
	if (!s->most || *x > *s->most)
		s->most = x;
	if (s->gradients)
		s->gradients[x - s->base] += (float)s->add;
}

static void pool(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		struct seen s = {0};
		int i[8] = {0}, count;

		split(&k->to, n, i);
		count = under_window(k, &k->a, i, see, &s);
		store(k, i, k->of.n[0] == POOL_MOST ? (double)*s.most : s.sum / count);
	}
}

/* a: dy, b: x. Tensors of x are packed. */
static void pool_back(const struct work *k)
{
	int64_t count = elements(&k->to);
	float *gradients = calloc((size_t)count, sizeof *gradients);

	for (int64_t n = 0; n < elements(&k->a); n++) {
		struct seen s = {.base = k->b.at};
		int i[8] = {0}, under;
		double dy;

		split(&k->a, n, i);
		dy = (double)*at(&k->a, i);
		under = under_window(k, &k->b, i, see, &s);
		if (k->of.n[0] == POOL_MOST) {
			gradients[s.most - k->b.at] += (float)dy;
			continue;
		}
		s.gradients = gradients;
		s.add = dy / under;
		under_window(k, &k->b, i, see, &s);
	}
	for (int64_t n = 0; n < count; n++) {
		int i[8] = {0};

		split(&k->to, n, i);
		store(k, i, (double)gradients[n]);
	}
	free(gradients);
}

EXPORT int cudnnPoolingForward(void *handle, void *pooling, const float *alpha, void *xd,
			       const void *x, const float *beta, void *yd, void *y)
{
	static const char call[] = "cudnnPoolingForward";
	struct work k = WORK(pool);

	(void)handle;
	BEGIN(cudnnPoolingForward);
	return fake_end(push(call, &k,
			     read_descriptor(call, &k, pooling, 'z') &&
				     read_operand(call, &k.a, xd, x) &&
				     read_operand(call, &k.to, yd, y)));
}

EXPORT int cudnnPoolingBackward(void *handle, void *pooling, const float *alpha, void *yd,
				const void *y, void *dyd, const void *dy, void *xd, const void *x,
				const float *beta, void *dxd, void *dx)
{
	static const char call[] = "cudnnPoolingBackward";
	struct work k = WORK(pool_back);

	(void)handle;
	BEGIN(cudnnPoolingBackward);
	return fake_end(
		push(call, &k,
		     read_descriptor(call, &k, pooling, 'z') && read_operand(call, &k.c, yd, y) &&
			     read_operand(call, &k.a, dyd, dy) && read_operand(call, &k.b, xd, x) &&
			     read_operand(call, &k.to, dxd, dx)));
}

/* ---- softmax ---- */

/* A group is the channels of one place, or all elements of one sample. */
static bool in_group(const struct work *k, const int *i, const int *j)
{
	for (int d = 0; d < k->to.count; d++)
		if (i[d] != j[d] && d != 1 && (d == 0 || k->mode != INSTANCE))
			return false;
	return true;
}

static double group_sum(const struct work *k, const int *i,
			double (*of)(const struct work *, const int *))
{
	double sum = 0;

	for (int64_t n = 0; n < elements(&k->to); n++) {
		int j[8] = {0};

		split(&k->to, n, j);
		if (in_group(k, i, j))
			sum += of(k, j);
	}
	return sum;
}

static double power(const struct work *k, const int *i) { return exp((double)*at(&k->a, i)); }

static double dy_of(const struct work *k, const int *i) { return (double)*at(&k->b, i); }

static double y_times_dy(const struct work *k, const int *i)
{
	return (double)*at(&k->a, i) * (double)*at(&k->b, i);
}

static void softmax(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};
		double part;

		split(&k->to, n, i);
		part = power(k, i) / group_sum(k, i, power);
		store(k, i, k->algorithm == SOFTMAX_LOG ? log(part) : part);
	}
}

/* a: y, b: dy */
static void softmax_back(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};
		double y, dy;

		split(&k->to, n, i);
		y = (double)*at(&k->a, i);
		dy = dy_of(k, i);
		store(k, i,
		      k->algorithm == SOFTMAX_LOG ? dy - exp(y) * group_sum(k, i, dy_of)
						  : y * (dy - group_sum(k, i, y_times_dy)));
	}
}

EXPORT int cudnnSoftmaxForward(void *handle, int algorithm, int mode, const float *alpha, void *xd,
			       const void *x, const float *beta, void *yd, void *y)
{
	static const char call[] = "cudnnSoftmaxForward";
	struct work k = WORK(softmax);

	(void)handle;
	BEGIN(cudnnSoftmaxForward);
	k.algorithm = algorithm;
	k.mode = mode;
	return fake_end(push(call, &k,
			     read_operand(call, &k.a, xd, x) && read_operand(call, &k.to, yd, y)));
}

EXPORT int cudnnSoftmaxBackward(void *handle, int algorithm, int mode, const float *alpha, void *yd,
				const void *y, void *dyd, const void *dy, const float *beta,
				void *dxd, void *dx)
{
	static const char call[] = "cudnnSoftmaxBackward";
	struct work k = WORK(softmax_back);

	(void)handle;
	BEGIN(cudnnSoftmaxBackward);
	k.algorithm = algorithm;
	k.mode = mode;
	return fake_end(push(call, &k,
			     read_operand(call, &k.a, yd, y) && read_operand(call, &k.b, dyd, dy) &&
				     read_operand(call, &k.to, dxd, dx)));
}

/* ---- activations ---- */

static double activated(const struct numbers *of, double x)
{
	switch (of->n[0]) {
	case SIGMOID: return 1 / (1 + exp(-x));
	case RELU: return x > 0 ? x : 0;
	case TANH: return tanh(x);
	case CLIPPED: return x < 0 ? 0 : x > of->real ? of->real : x;
	case ELU: return x > 0 ? x : of->real * (exp(x) - 1);
	default: return x;
	}
}

/* From the result y, and x. */
static double slope(const struct numbers *of, double x, double y)
{
	switch (of->n[0]) {
	case SIGMOID: return y * (1 - y);
	case RELU: return x > 0;
	case TANH: return 1 - y * y;
	case CLIPPED: return x > 0 && x < of->real;
	case ELU: return x > 0 ? 1 : y + of->real;
	default: return 1;
	}
}

static void activate(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};

		split(&k->to, n, i);
		store(k, i, activated(&k->of, (double)*at(&k->a, i)));
	}
}

/* a: y, b: dy, c: x */
static void activate_back(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};

		split(&k->to, n, i);
		store(k, i,
		      dy_of(k, i) * slope(&k->of, (double)*at(&k->c, i), (double)*at(&k->a, i)));
	}
}

EXPORT int cudnnActivationForward(void *handle, void *activation, const float *alpha, void *xd,
				  const void *x, const float *beta, void *yd, void *y)
{
	static const char call[] = "cudnnActivationForward";
	struct work k = WORK(activate);

	(void)handle;
	BEGIN(cudnnActivationForward);
	return fake_end(push(call, &k,
			     read_descriptor(call, &k, activation, 'a') &&
				     read_operand(call, &k.a, xd, x) &&
				     read_operand(call, &k.to, yd, y)));
}

EXPORT int cudnnActivationBackward(void *handle, void *activation, const float *alpha, void *yd,
				   const void *y, void *dyd, const void *dy, void *xd,
				   const void *x, const float *beta, void *dxd, void *dx)
{
	static const char call[] = "cudnnActivationBackward";
	struct work k = WORK(activate_back);

	(void)handle;
	BEGIN(cudnnActivationBackward);
	return fake_end(push(
		call, &k,
		read_descriptor(call, &k, activation, 'a') && read_operand(call, &k.a, yd, y) &&
			read_operand(call, &k.b, dyd, dy) && read_operand(call, &k.c, xd, x) &&
			read_operand(call, &k.to, dxd, dx)));
}

/* ---- LRN ---- */

static void normalise_channels(const struct work *k)
{
	int channels = k->of.n[0], half = (channels - 1) / 2;
	double of[3];

	memcpy(of, k->of.lengths, sizeof of);
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0}, j[8];
		double squares = 0;

		split(&k->to, n, i);
		memcpy(j, i, sizeof j);
		for (j[1] = i[1] - half; j[1] < i[1] - half + channels; j[1]++)
			if (j[1] >= 0 && j[1] < k->a.size[1])
				squares += pow((double)*at(&k->a, j), 2);
		store(k, i, (double)*at(&k->a, i) / pow(of[2] + of[0] / channels * squares, of[1]));
	}
}

EXPORT int cudnnLRNCrossChannelForward(void *handle, void *lrn, int mode, const float *alpha,
				       void *xd, const void *x, const float *beta, void *yd,
				       void *y)
{
	static const char call[] = "cudnnLRNCrossChannelForward";
	struct work k = WORK(normalise_channels);

	(void)handle;
	BEGIN(cudnnLRNCrossChannelForward);
	return fake_end(push(call, &k,
			     !mode && read_descriptor(call, &k, lrn, 'x') &&
				     read_operand(call, &k.a, xd, x) &&
				     read_operand(call, &k.to, yd, y)));
}

/* ---- dropout: which elements stay is in the reserve ---- */

static void drop_out(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};

		split(&k->to, n, i);
		if (!k->mode)
			k->reserve[n] = (uint64_t)(n * 7 + (int64_t)k->of.seed) % 10 >=
					(uint64_t)(k->of.real * 10);
		*at(&k->to, i) = k->reserve[n] ? (float)((double)*at(&k->a, i) / (1 - k->of.real))
					       : 0;
	}
}

EXPORT int cudnnDropoutGetReserveSpaceSize(void *tensor, size_t *bytes)
{
	BEGIN(cudnnDropoutGetReserveSpaceSize);
	if (!fake_dnn_is_set("cudnnDropoutGetReserveSpaceSize", tensor, 't'))
		return fake_end(BAD_PARAM);
	*bytes = fake_dnn_bytes(tensor) / sizeof(float);
	return fake_end(SUCCESS);
}

static int dropout(const char *call, void *of, bool back, void *ad, const void *a, void *tod,
		   void *to, void *reserve, size_t bytes)
{
	struct work k = {.run = drop_out, .mode = back, .reserve = reserve};

	return push(call, &k,
		    read_descriptor(call, &k, of, 'o') && read_operand(call, &k.a, ad, a) &&
			    read_operand(call, &k.to, tod, to) &&
			    bytes >= (size_t)elements(&k.to) &&
			    fake_dnn_shown(call, reserve, bytes));
}

EXPORT int cudnnDropoutForward(void *handle, void *of, void *xd, const void *x, void *yd, void *y,
			       void *reserve, size_t bytes)
{
	(void)handle;
	BEGIN(cudnnDropoutForward);
	return fake_end(dropout("cudnnDropoutForward", of, false, xd, x, yd, y, reserve, bytes));
}

EXPORT int cudnnDropoutBackward(void *handle, void *of, void *dyd, const void *dy, void *dxd,
				void *dx, void *reserve, size_t bytes)
{
	(void)handle;
	BEGIN(cudnnDropoutBackward);
	return fake_end(
		dropout("cudnnDropoutBackward", of, true, dyd, dy, dxd, dx, reserve, bytes));
}

/* ---- operations on tensors ---- */

static void operate(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};
		double a, b;

		split(&k->to, n, i);
		a = k->alpha * (double)*at(&k->a, i);
		b = k->more * (double)*at(&k->b, i);
		*at(&k->to, i) = (float)((k->of.n[0] == OP_ADD        ? a + b
					  : k->of.n[0] == OP_MULTIPLY ? a * b
					  : k->of.n[0] == OP_LEAST    ? fmin(a, b)
								      : fmax(a, b)) +
					 (k->beta ? k->beta * (double)*at(&k->to, i) : 0));
	}
}

EXPORT int cudnnOpTensor(void *handle, void *operation, const float *alpha, void *ad, const void *a,
			 const float *more, void *bd, const void *b, const float *beta, void *cd,
			 void *c)
{
	static const char call[] = "cudnnOpTensor";
	struct work k = WORK(operate);

	(void)handle;
	BEGIN(cudnnOpTensor);
	k.more = (double)*more;
	return fake_end(
		push(call, &k,
		     read_descriptor(call, &k, operation, 'y') && read_operand(call, &k.a, ad, a) &&
			     read_operand(call, &k.b, bd, b) && read_operand(call, &k.to, cd, c)));
}

static void reduce(const struct work *k)
{
	int64_t each = elements(&k->a) / elements(&k->to);

	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0}, j[8] = {0};
		double result = 0;
		bool first = true;

		split(&k->to, n, i);
		for (int64_t m = 0; m < elements(&k->a); m++) {
			double value;

			split(&k->a, m, j);
			if (at(&k->to, j) != at(&k->to, i))
				continue;
			value = (double)*at(&k->a, j);
			result = first                 ? value
				 : k->of.n[0] == LEAST ? fmin(result, value)
				 : k->of.n[0] == MOST  ? fmax(result, value)
						       : result + value;
			first = false;
		}
		store(k, i, k->of.n[0] == MEAN ? result / (double)each : result);
	}
}

static int reduction_bytes(const char *call, const void *of, const void *a, const void *c,
			   size_t *bytes, size_t value)
{
	return fake_dnn_is_set(call, of, 'u') && fake_dnn_is_set(call, a, 't') &&
			       fake_dnn_is_set(call, c, 't')
		       ? fake_dnn_sized(call, bytes, value)
		       : BAD_PARAM;
}

EXPORT int cudnnGetReductionWorkspaceSize(void *handle, void *of, void *a, void *c, size_t *bytes)
{
	(void)handle;
	BEGIN(cudnnGetReductionWorkspaceSize);
	return fake_end(reduction_bytes("cudnnGetReductionWorkspaceSize", of, a, c, bytes, 80));
}

EXPORT int cudnnGetReductionIndicesSize(void *handle, void *of, void *a, void *c, size_t *bytes)
{
	(void)handle;
	BEGIN(cudnnGetReductionIndicesSize);
	return fake_end(reduction_bytes("cudnnGetReductionIndicesSize", of, a, c, bytes, 0));
}

EXPORT int cudnnReduceTensor(void *handle, void *of, void *indices, size_t index_bytes, void *area,
			     size_t bytes, const float *alpha, void *ad, const void *a,
			     const float *beta, void *cd, void *c)
{
	static const char call[] = "cudnnReduceTensor";
	struct work k = WORK(reduce);

	(void)handle, (void)indices, (void)index_bytes;
	BEGIN(cudnnReduceTensor);
	return fake_end(push(call, &k,
			     read_descriptor(call, &k, of, 'u') &&
				     read_operand(call, &k.a, ad, a) &&
				     read_operand(call, &k.to, cd, c) && bytes >= 80 &&
				     fake_dnn_shown(call, area, bytes)));
}

static void copy(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};

		split(&k->to, n, i);
		store(k, i, (double)*at(&k->a, i));
	}
}

static int copy_work(const char *call, const float *alpha, void *ad, const void *a,
		     const float *beta, void *cd, void *c, void (*run)(const struct work *))
{
	struct work k = WORK(run);

	return push(call, &k, read_operand(call, &k.a, ad, a) && read_operand(call, &k.to, cd, c));
}

EXPORT int cudnnAddTensor(void *handle, const float *alpha, void *ad, const void *a,
			  const float *beta, void *cd, void *c)
{
	(void)handle;
	BEGIN(cudnnAddTensor);
	return fake_end(copy_work("cudnnAddTensor", alpha, ad, a, beta, cd, c, copy));
}

EXPORT int cudnnTransformTensor(void *handle, const float *alpha, void *xd, const void *x,
				const float *beta, void *yd, void *y)
{
	(void)handle;
	BEGIN(cudnnTransformTensor);
	return fake_end(copy_work("cudnnTransformTensor", alpha, xd, x, beta, yd, y, copy));
}

EXPORT int cudnnConvolutionBackwardBias(void *handle, const float *alpha, void *dyd, const void *dy,
					const float *beta, void *dbd, void *db)
{
	(void)handle;
	BEGIN(cudnnConvolutionBackwardBias);
	return fake_end(
		copy_work("cudnnConvolutionBackwardBias", alpha, dyd, dy, beta, dbd, db, reduce));
}

static void fill(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++) {
		int i[8] = {0};
		float *to = at(&k->to, (split(&k->to, n, i), i));

		*to = (float)(k->alpha * (k->mode ? (double)*to : 1));
	}
}

EXPORT int cudnnScaleTensor(void *handle, void *yd, void *y, const float *alpha)
{
	struct work k = {.run = fill, .alpha = (double)*alpha, .mode = 1};

	(void)handle;
	BEGIN(cudnnScaleTensor);
	return fake_end(
		push("cudnnScaleTensor", &k, read_operand("cudnnScaleTensor", &k.to, yd, y)));
}

static void fill_doubles(const struct work *k)
{
	for (int64_t n = 0; n < elements(&k->to); n++)
		((double *)k->to.at)[n] = k->alpha;
}

/* The value has the tensor's type. Tensors of doubles are packed. */
EXPORT int cudnnSetTensor(void *handle, void *yd, void *y, const void *value)
{
	static const char call[] = "cudnnSetTensor";
	const struct numbers *d = yd;
	struct numbers floats;
	struct work k = {0};
	bool fits;

	(void)handle;
	BEGIN(cudnnSetTensor);
	if (!fake_dnn_is_set(call, d, 't') || d->n[0] > DOUBLE)
		return fake_end(BAD_PARAM);
	floats = *d;
	floats.n[0] = FLOAT;
	fits = read_operand(call, &k.to, &floats, y);
	k.run = d->n[0] == DOUBLE ? fill_doubles : fill;
	k.alpha = d->n[0] == DOUBLE ? *(const double *)value : (double)*(const float *)value;
	return fake_end(push(call, &k, fits));
}
