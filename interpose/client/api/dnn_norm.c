/* dnn_norm.c: batch normalisation, one kernel for each call.
 *
 * Normalised are each channel (CUDNN_BATCHNORM_SPATIAL and _PERSISTENT, which computes the same),
 * or each element of an image. Workspaces and reserved memory are not needed. Fused activations
 * and additions are refused. Errors are cudnnStatus_t.
 */
#include "dnn.h"

static int norm_refused(const char *what)
{
	LOG_ONCE("cuDNN's batch normalisation with %s is not supported by rankfold", what);
	return CUDNN_STATUS_NOT_SUPPORTED;
}

/* The strides of a tensor: features, samples, and places of a feature in a sample. */
static int norm_strides(int mode, const struct dnn_tensor *t, int64_t *feature, int64_t *sample,
			int64_t *place)
{
	bool spatial = mode != CUDNN_BATCHNORM_PER_ACTIVATION;

	*sample = t->stride[0];
	*feature = t->stride[1];
	if (!dnn_even(t, spatial ? 2 : 1, spatial ? place : feature))
		return norm_refused("elements that are not evenly spaced");
	if (!spatial)
		*place = 0;
	return CUDNN_STATUS_SUCCESS;
}

static bool norm_same_sizes(const struct dnn_tensor *a, const struct dnn_tensor *b)
{
	bool same = a->dimensions == b->dimensions && a->type == b->type;

	for (int64_t i = 0; same && i < a->dimensions; i++)
		same = a->size[i] == b->size[i];
	return same;
}

/* Describes x and the tensor of the other strides, y or dy. */
static int norm_describe(struct dnn_norm *k, struct dnn_type **type, const void *handle, int mode,
			 const struct dnn_tensor *x, const struct dnn_tensor *other,
			 const struct dnn_tensor *parameters)
{
	bool spatial = mode != CUDNN_BATCHNORM_PER_ACTIVATION;
	int status;

	if (dnn_check(handle))
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!x || !other || !parameters)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (mode < CUDNN_BATCHNORM_PER_ACTIVATION || mode > CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
		return CUDNN_STATUS_BAD_PARAM;
	*type = dnn_type_of(x->type);
	if (!*type)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (parameters->type != (*type)->sums)
		return norm_refused("parameters of another type than float (for double: double)");
	if (x->dimensions < 2 || !norm_same_sizes(x, other))
		return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
	k->samples = x->size[0];
	k->features = spatial ? x->size[1] : dnn_elements(x, 1);
	k->places = spatial ? dnn_elements(x, 2) : 1;
	if (dnn_elements(parameters, 0) != k->features)
		return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
	if (k->places > INT32_MAX || k->features > INT32_MAX)
		return norm_refused("more than 2^31 - 1 features, or elements of one");
	status = norm_strides(mode, x, &k->feature_stride, &k->sample_stride, &k->place_stride);
	return status ? status
		      : norm_strides(mode, other, &k->dy_feature_stride, &k->dy_sample_stride,
				     &k->dy_place_stride);
}

static int norm_scalars(const struct dnn_type *type, double *alpha, double *beta,
			const void *given_alpha, const void *given_beta)
{
	int status = dnn_scalar(type, alpha, given_alpha);

	return status ? status : dnn_scalar(type, beta, given_beta);
}

/* norm_describe, and the factors of the result and of what is there already. */
static int norm_prepare(struct dnn_norm *k, struct dnn_type **type, const void *handle, int mode,
			const struct dnn_tensor *x, const struct dnn_tensor *other,
			const struct dnn_tensor *parameters, const void *alpha, const void *beta)
{
	int status = norm_describe(k, type, handle, mode, x, other, parameters);

	return status ? status : norm_scalars(*type, &k->alpha, &k->beta, alpha, beta);
}

static int launch_norm(const struct dnn_norm *k, struct dnn_type *type, const char *kernel,
		       const void *handle)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);

	return dnn_launch(type, kernel, k, sizeof *k, k->features * DNN_THREADS, 1, h->stream);
}

int norm_plain(int operations)
{
	return operations == CUDNN_BATCHNORM_OPS_BN ? CUDNN_STATUS_SUCCESS
						    : norm_refused("an activation or an addition");
}

int norm_training(const void *handle, int mode, const void *alpha, const void *beta,
		  struct norm_tensor x, struct norm_tensor y, struct norm_parameters p,
		  double factor, double epsilon)
{
	struct dnn_norm k = {.x = (uint64_t)x.at,
			     .y = (uint64_t)y.at,
			     .scale = (uint64_t)p.scale,
			     .bias = (uint64_t)p.bias,
			     .mean = (uint64_t)p.mean,
			     .deviation = (uint64_t)p.deviation,
			     .running_mean = (uint64_t)p.running_mean,
			     .running_variance = (uint64_t)p.running_variance,
			     .epsilon = epsilon,
			     .factor = factor};
	struct dnn_type *type;
	int status = norm_prepare(&k, &type, handle, mode, x.as, y.as, p.as, alpha, beta);

	if (status)
		return status;
	if (!x.at || !y.at || !p.scale || !p.bias || !p.mean != !p.deviation ||
	    !p.running_mean != !p.running_variance)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	k.flags = (p.mean ? DNN_SAVED : 0u) | (p.running_mean ? DNN_RUNNING : 0u);
	return launch_norm(&k, type, "norm_training", handle);
}

int norm_inference(const void *handle, int mode, const void *alpha, const void *beta,
		   struct norm_tensor x, struct norm_tensor y, struct norm_parameters p,
		   double epsilon)
{
	struct dnn_norm k = {.x = (uint64_t)x.at,
			     .y = (uint64_t)y.at,
			     .scale = (uint64_t)p.scale,
			     .bias = (uint64_t)p.bias,
			     .running_mean = (uint64_t)p.running_mean,
			     .running_variance = (uint64_t)p.running_variance,
			     .epsilon = epsilon};
	struct dnn_type *type;
	int status = norm_prepare(&k, &type, handle, mode, x.as, y.as, p.as, alpha, beta);

	if (status)
		return status;
	if (!x.at || !y.at || !p.scale || !p.bias || !p.running_mean || !p.running_variance)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	return launch_norm(&k, type, "norm_inference", handle);
}

int norm_backward(const void *handle, int mode, const void *const scalar[4], struct norm_tensor x,
		  struct norm_tensor dy, struct norm_tensor dx, struct norm_parameters p,
		  double epsilon)
{
	struct dnn_norm k = {.x = (uint64_t)x.at,
			     .dy = (uint64_t)dy.at,
			     .dx = (uint64_t)dx.at,
			     .scale = (uint64_t)p.scale,
			     .d_scale = (uint64_t)p.d_scale,
			     .d_bias = (uint64_t)p.d_bias,
			     .mean = (uint64_t)p.mean,
			     .deviation = (uint64_t)p.deviation,
			     .epsilon = epsilon};
	struct dnn_type *type;
	int status = norm_prepare(&k, &type, handle, mode, x.as, dy.as, p.as, scalar[0], scalar[1]);

	if (!status)
		status = norm_scalars(type, &k.alpha_d, &k.beta_d, scalar[2], scalar[3]);
	if (status)
		return status;
	if (!x.at || !dy.at || !dx.at || !p.scale || !p.d_scale || !p.d_bias ||
	    !p.mean != !p.deviation)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (!dx.as || !norm_same_sizes(x.as, dx.as))
		return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
	for (int64_t i = 0; i < x.as->dimensions; i++)
		if (x.as->size[i] > 1 && x.as->stride[i] != dx.as->stride[i])
			return norm_refused("a gradient that is stored otherwise than x");
	k.flags = p.mean ? DNN_SAVED : 0u;
	return launch_norm(&k, type, "norm_backward", handle);
}

/* The descriptor of the parameters: as x, with size 1 where they are shared. */
int norm_derive(struct dnn_tensor *to, const struct dnn_tensor *x, int mode)
{
	int size[DNN_DIMENSIONS_MAX], stride[DNN_DIMENSIONS_MAX], next = 1;
	const struct dnn_type *type;

	if (!to || !x)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	type = dnn_type_of(x->type);
	if (!type)
		return CUDNN_STATUS_NOT_SUPPORTED;
	for (int i = (int)x->dimensions - 1; i >= 0; i--) {
		bool shared = i == 0 || (i > 1 && mode != CUDNN_BATCHNORM_PER_ACTIVATION);

		size[i] = shared ? 1 : (int)x->size[i];
		stride[i] = next;
		next *= size[i];
	}
	return tensor_set(to, type->sums, (int)x->dimensions, size, stride);
}

/* Returns the size of a workspace or reserved memory: none is needed. */
int norm_no_memory(const void *handle, size_t *bytes)
{
	if (!bytes)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	*bytes = 0;
	return dnn_check(handle);
}
