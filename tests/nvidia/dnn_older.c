/* dnn_older.c: of the fake driver (fake.h): cuDNN's convolutions without its backend API, in float.
 *
 * Algorithm n adds as engine n of the backend does (dnn.c), so results show which one was chosen.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_dnn.h"

enum { FLOAT = 0, CROSS_CORRELATION = 1, RELU = 1, IDENTITY = 5 };
enum { MATH = 2, GROUPS = 3, ORDER = 4, PLACES = 5, HEAD = 6 }; /* in a convolution's numbers */
#define ALGORITHMS 3
#define AREA 256 /* bytes of a workspace, times the algorithm */

DESCRIPTOR(FilterDescriptor, 'k')
DESCRIPTOR(ConvolutionDescriptor, 'c')

EXPORT int cudnnSetFilterNdDescriptor(void *descriptor, int type, int layout, int count,
				      const int *size)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetFilterNdDescriptor);
	if (d->kind != 'k' || count < 3)
		return fake_end(BAD_PARAM);
	if (layout || count > 5)
		return fake_end(NOT_SUPPORTED);
	d->n[0] = type;
	d->count = count;
	for (int i = count; i--;) {
		d->size[i] = size[i];
		d->stride[i] = i == count - 1 ? 1 : d->stride[i + 1] * size[i + 1];
	}
	d->set = true;
	return fake_end(SUCCESS);
}

EXPORT int cudnnSetConvolutionNdDescriptor(void *descriptor, int places, const int *padding,
					   const int *stride, const int *dilation, int mode,
					   int type)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetConvolutionNdDescriptor);
	if (d->kind != 'c' || places < 1)
		return fake_end(BAD_PARAM);
	if (places > 3)
		return fake_end(NOT_SUPPORTED);
	d->n[0] = mode;
	d->n[1] = type;
	d->n[PLACES] = places;
	for (int i = 0; i < places; i++) {
		if (padding[i] < 0 || stride[i] < 1 || dilation[i] < 1)
			return fake_end(BAD_PARAM);
		d->n[HEAD + i] = padding[i];
		d->n[HEAD + places + i] = stride[i];
		d->n[HEAD + 2 * places + i] = dilation[i];
	}
	d->set = true;
	return fake_end(SUCCESS);
}

static int set_number(struct numbers *d, int at, int value, int least)
{
	if (d->kind != 'c' || value < least)
		return BAD_PARAM;
	d->n[at] = value;
	return SUCCESS;
}

EXPORT int cudnnSetConvolutionMathType(void *descriptor, int type)
{
	BEGIN(cudnnSetConvolutionMathType);
	return fake_end(set_number(descriptor, MATH, type, 0));
}

EXPORT int cudnnSetConvolutionGroupCount(void *descriptor, int groups)
{
	BEGIN(cudnnSetConvolutionGroupCount);
	return fake_end(set_number(descriptor, GROUPS, groups, 1));
}

EXPORT int cudnnSetConvolutionReorderType(void *descriptor, int order)
{
	BEGIN(cudnnSetConvolutionReorderType);
	return fake_end(set_number(descriptor, ORDER, order, 0));
}

/* ---- what a call says ---- */

static struct fake_tensor tensor_of(const struct numbers *d)
{
	struct fake_tensor t = {.dimensions = d->count};

	for (int i = 0; i < d->count; i++) {
		t.size[i] = d->size[i];
		t.stride[i] = d->stride[i];
	}
	return t;
}

static bool sizes_fit(const struct numbers *x, const struct numbers *w, const struct numbers *y,
		      const struct numbers *c)
{
	int places = c->n[PLACES];

	if (x->count != places + 2 || w->count != places + 2 || y->count != places + 2 ||
	    x->size[1] != w->size[1] * c->n[GROUPS] || y->size[0] != x->size[0] ||
	    y->size[1] != w->size[0] || w->size[0] % c->n[GROUPS])
		return false;
	for (int i = 0; i < places; i++) {
		int covered = (w->size[2 + i] - 1) * c->n[HEAD + 2 * places + i] + 1;
		int left = x->size[2 + i] + 2 * c->n[HEAD + i] - covered;

		if (left < 0 || y->size[2 + i] != left / c->n[HEAD + places + i] + 1)
			return false;
	}
	return true;
}

/* A function's operands, in its order: two, and the result. */
struct operands {
	const void *as[3], *at[3];
};

static int place_of_x(int type) { return type == DATA ? 2 : 0; }
static int place_of_w(int type) { return type == DATA ? 0 : type == FILTER ? 2 : 1; }
static int place_of_y(int type) { return type == FORWARD ? 2 : 1; }

static int read_call(const char *call, struct fake_convolution *k, int type,
		     const struct operands *o, const struct numbers *c, int algorithm)
{
	const struct numbers *x = o->as[place_of_x(type)], *w = o->as[place_of_w(type)];
	const struct numbers *y = o->as[place_of_y(type)];
	int places;

	if (!fake_dnn_handle(call) || !fake_dnn_is_set(call, x, 't') ||
	    !fake_dnn_is_set(call, w, 'k') || !fake_dnn_is_set(call, y, 't') ||
	    !fake_dnn_is_set(call, c, 'c') || !c->n[GROUPS] || !sizes_fit(x, w, y, c))
		return BAD_PARAM;
	if (c->n[0] != CROSS_CORRELATION || c->n[1] != FLOAT || algorithm < 0 ||
	    algorithm >= ALGORITHMS)
		return NOT_SUPPORTED;
	places = c->n[PLACES];
	*k = (struct fake_convolution){.type = type,
				       .engine = algorithm,
				       .spatial = places,
				       .x = tensor_of(x),
				       .w = tensor_of(w),
				       .y = tensor_of(y),
				       .alpha = 1};
	for (int i = 0; i < places; i++) {
		k->before[i] = c->n[HEAD + i];
		k->step[i] = c->n[HEAD + places + i];
		k->dilation[i] = c->n[HEAD + 2 * places + i];
	}
	return SUCCESS;
}

/* The call with its memory, ready to run. */
static int read_all(const char *call, struct fake_convolution *k, int type,
		    const struct operands *o, const void *c, int algorithm, const void *area,
		    size_t bytes)
{
	int status = read_call(call, k, type, o, c, algorithm);
	size_t needed = (size_t)AREA * (size_t)algorithm;

	if (status)
		return status;
	for (int i = 0; i < 3; i++)
		if (!fake_dnn_shown(call, o->at[i], fake_dnn_bytes(o->as[i])))
			return BAD_PARAM;
	if (bytes < needed || (needed && !fake_dnn_shown(call, area, needed)))
		return BAD_PARAM;
	k->at[0] = (uint64_t)o->at[place_of_x(type)];
	k->at[1] = (uint64_t)o->at[place_of_w(type)];
	k->at[2] = (uint64_t)o->at[place_of_y(type)];
	return SUCCESS;
}

static int run(const char *call, int type, double alpha, double beta, const struct operands *o,
	       const void *c, int algorithm, const void *area, size_t bytes)
{
	struct fake_convolution k;
	int status = read_all(call, &k, type, o, c, algorithm, area, bytes);

	if (status)
		return status;
	k.alpha = alpha;
	k.beta = beta;
	fake_push_kernel(fake_dnn_stream(), fake_dnn_convolve, &k, sizeof k);
	return SUCCESS;
}

struct performance { /* cudnnConvolution…AlgoPerf_t */
	int algorithm, status;
	float time;
	size_t memory;
	int determinism, math, reserved[3];
};

static int last_most; /* results that were asked for */

int fake_most(void) { return last_most; }

/* `time`: of the fastest one; -1: of none. */
static int list(const struct numbers *c, float time, int most, int *count,
		struct performance *results)
{
	static const int order[] = {2, 0, 1};
	int i = 0;

	last_most = most;
	for (; i < ALGORITHMS && i < most; i++)
		results[i] = (struct performance){.algorithm = order[i],
						  .time = time < 0 ? time : time * (float)(i + 1),
						  .memory = (size_t)AREA * (size_t)order[i],
						  .determinism = order[i] != 1,
						  .math = c->n[MATH]};
	*count = i;
	return i ? SUCCESS : BAD_PARAM;
}

static int find(const char *call, int type, const struct operands *o, const void *c, float time,
		int most, int *count, struct performance *results)
{
	struct fake_convolution k;
	int status = read_call(call, &k, type, o, c, 0);

	return status ? status : list(c, time, most, count, results);
}

/* ---- the functions of each direction ---- */

#define O(...)                                                                                     \
	(struct operands) { __VA_ARGS__ }
#define DIRECTION(name, type)                                                                      \
	EXPORT int cudnnGetConvolution##name##AlgorithmMaxCount(void *handle, int *count)          \
	{                                                                                          \
		(void)handle;                                                                      \
		BEGIN(cudnnGetConvolution##name##AlgorithmMaxCount);                               \
		*count = ALGORITHMS;                                                               \
		return fake_end(SUCCESS);                                                          \
	}                                                                                          \
	EXPORT int cudnnGetConvolution##name##Algorithm_v7(void *handle, void *ad, void *bd,       \
							   void *c, void *to, int most,            \
							   int *count, struct performance *found)  \
	{                                                                                          \
		(void)handle;                                                                      \
		BEGIN(cudnnGetConvolution##name##Algorithm_v7);                                    \
		return fake_end(find("cudnnGetConvolution" #name "Algorithm_v7", type,             \
				     &O({ad, bd, to}, {0}), c, -1, most, count, found));           \
	}                                                                                          \
	EXPORT int cudnnFindConvolution##name##Algorithm(void *handle, void *ad, void *bd,         \
							 void *c, void *to, int most, int *count,  \
							 struct performance *found)                \
	{                                                                                          \
		(void)handle;                                                                      \
		BEGIN(cudnnFindConvolution##name##Algorithm);                                      \
		return fake_end(find("cudnnFindConvolution" #name "Algorithm", type,               \
				     &O({ad, bd, to}, {0}), c, 0.5f, most, count, found));         \
	}                                                                                          \
	EXPORT int cudnnFindConvolution##name##AlgorithmEx(                                        \
		void *handle, void *ad, void *a, void *bd, void *b, void *c, void *tod, void *to,  \
		int most, int *count, struct performance *found, void *area, size_t bytes)         \
	{                                                                                          \
		int status;                                                                        \
                                                                                                   \
		(void)handle;                                                                      \
		BEGIN(cudnnFindConvolution##name##AlgorithmEx);                                    \
		status = run("cudnnFindConvolution" #name "AlgorithmEx", type, 1, 0,               \
			     &O({ad, bd, tod}, {a, b, to}), c, 0, area, bytes);                    \
		return fake_end(status ? status : list(c, 0.25f, most, count, found));             \
	}                                                                                          \
	EXPORT int cudnnGetConvolution##name##WorkspaceSize(                                       \
		void *handle, void *ad, void *bd, void *c, void *to, int algorithm, size_t *bytes) \
	{                                                                                          \
		struct fake_convolution k;                                                         \
                                                                                                   \
		(void)handle;                                                                      \
		BEGIN(cudnnGetConvolution##name##WorkspaceSize);                                   \
		*bytes = (size_t)AREA * (size_t)algorithm;                                         \
		return fake_end(read_call("cudnnGetConvolution" #name "WorkspaceSize", &k, type,   \
					  &O({ad, bd, to}, {0}), c, algorithm));                   \
	}                                                                                          \
	EXPORT int cudnnConvolution##name(void *handle, const float *alpha, void *ad, void *a,     \
					  void *bd, void *b, void *c, int algorithm, void *area,   \
					  size_t bytes, const float *beta, void *tod, void *to)    \
	{                                                                                          \
		(void)handle;                                                                      \
		BEGIN(cudnnConvolution##name);                                                     \
		return fake_end(run("cudnnConvolution" #name, type, (double)*alpha, (double)*beta, \
				    &O({ad, bd, tod}, {a, b, to}), c, algorithm, area, bytes));    \
	}
DIRECTION(Forward, FORWARD)
DIRECTION(BackwardData, DATA)
DIRECTION(BackwardFilter, FILTER)

/* ---- with a bias and an activation ---- */

struct fused {
	struct fake_convolution of;
	double before; /* times z */
	const float *z, *bias;
	int64_t elements;
	int mode;
};

/* Tensors are packed. z may be y. */
static void convolve_fused(const uint8_t *params)
{
	const struct fused *k = (const void *)params;
	int64_t each = k->elements / (k->of.y.size[0] * k->of.y.size[1]);
	float *sum = calloc((size_t)k->elements, sizeof *sum), *y = (float *)k->of.at[2];
	struct fake_convolution of = k->of;

	of.at[2] = (uint64_t)sum;
	fake_dnn_convolve((const uint8_t *)&of);
	for (int64_t i = 0; i < k->elements; i++) {
		double value = (double)sum[i] + k->before * (double)k->z[i] +
			       (double)k->bias[i / each % k->of.y.size[1]];

		y[i] = (float)(k->mode == RELU && value < 0 ? 0 : value);
	}
	free(sum);
}

EXPORT int cudnnConvolutionBiasActivationForward(void *handle, const float *alpha, void *xd,
						 void *x, void *wd, void *w, void *c, int algorithm,
						 void *area, size_t bytes, const float *before,
						 void *zd, const float *z, void *bd,
						 const float *bias, void *activation, void *yd,
						 void *y)
{
	static const char call[] = "cudnnConvolutionBiasActivationForward";
	const struct numbers *a = activation;
	struct fused k = {.before = (double)*before, .z = z, .bias = bias};
	int status;

	(void)handle;
	BEGIN(cudnnConvolutionBiasActivationForward);
	status = read_all(call, &k.of, FORWARD, &O({xd, wd, yd}, {x, w, y}), c, algorithm, area,
			  bytes);
	if (status)
		return fake_end(status);
	if (!fake_dnn_is_set(call, zd, 't') || !fake_dnn_is_set(call, bd, 't') ||
	    !fake_dnn_is_set(call, a, 'a') || (a->n[0] != RELU && a->n[0] != IDENTITY) ||
	    !fake_dnn_shown(call, z, fake_dnn_bytes(zd)) ||
	    !fake_dnn_shown(call, bias, fake_dnn_bytes(bd)))
		return fake_end(BAD_PARAM);
	k.mode = a->n[0];
	k.of.alpha = (double)*alpha;
	k.elements = (int64_t)(fake_dnn_bytes(yd) / sizeof(float));
	fake_push_kernel(fake_dnn_stream(), convolve_fused, &k, sizeof k);
	return fake_end(SUCCESS);
}
