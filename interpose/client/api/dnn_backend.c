/* dnn_backend.c: the descriptors of cuDNN's backend API, as far as a convolution needs them.
 *
 * A program describes tensors and an operation, makes a graph of it, requests engines from a
 * heuristic, and executes the plan for one with the addresses of a variant pack. Here a graph has
 * one convolution, and there is one engine. A descriptor that refers to another one shares its
 * content, which no longer changes once it is finalized. An attribute that is not served is
 * refused, and a line has its number. Errors are cudnnStatus_t.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

#define NAMES_MAX 16 /* addresses of a variant pack */

struct content;
struct operation {
	struct content *convolution, *x, *w, *y;
	double alpha, beta;
};
/* `of`: the operation of a graph, the graph of a heuristic or engine, the engine of a
 * configuration, or the configuration of a plan. */
struct content {
	_Atomic uint32_t references;
	int type; /* cudnnBackendDescriptorType_t */
	bool final;
	struct content *of;
	union {
		struct dnn_tensor tensor;
		struct dnn_convolution convolution; /* its parameters; of a plan: all of it */
		struct operation operation;
		int64_t engine;
		int mode;
		struct {
			int64_t id_count, address_count, id[NAMES_MAX];
			uint64_t address[NAMES_MAX], workspace;
		} pack;
	};
	void *handle;
	int64_t workspace; /* of a plan: bytes */
};
struct descriptor {
	struct content *content;
};

static bool is_operation(int type)
{
	return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
	       type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
	       type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

static void content_release(struct content *c)
{
	struct content *next;

	for (; c && atomic_fetch_sub(&c->references, 1) == 1; c = next) {
		next = c->of;
		if (is_operation(c->type)) {
			content_release(c->operation.convolution);
			content_release(c->operation.x);
			content_release(c->operation.w);
			content_release(c->operation.y);
		}
		free(c);
	}
}

static struct content *content_share(struct content *c)
{
	atomic_fetch_add(&c->references, 1);
	return c;
}

static struct content *content_new(int type)
{
	struct content *c = calloc(1, sizeof *c);

	if (c) {
		c->references = 1;
		c->type = type;
	}
	return c;
}

/* ---- attributes ---- */

struct attribute {
	int owner, name, kind; /* kind: cudnnBackendAttributeType_t */
	uint16_t most;         /* elements */
	uint16_t bytes;        /* of an element here */
	uint16_t at, count;    /* offsets in a content; count 0: exactly one element */
};
#define IN(member) offsetof(struct content, member)
#define SIZE(member) sizeof(((struct content *)0)->member)
#define ONE(owner, name, kind, member)                                                             \
	{CUDNN_BACKEND_##owner##_DESCRIPTOR,                                                       \
	 CUDNN_ATTR_##name,                                                                        \
	 CUDNN_TYPE_##kind,                                                                        \
	 1,                                                                                        \
	 SIZE(member),                                                                             \
	 IN(member),                                                                               \
	 0}
#define MANY(owner, name, kind, member, counted)                                                   \
	{CUDNN_BACKEND_##owner##_DESCRIPTOR,                                                       \
	 CUDNN_ATTR_##name,                                                                        \
	 CUDNN_TYPE_##kind,                                                                        \
	 SIZE(member) / SIZE(member[0]),                                                           \
	 SIZE(member[0]),                                                                          \
	 IN(member),                                                                               \
	 IN(counted)}
#define OPERATION(owner, prefix, of_x, of_w, of_y)                                                 \
	ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_CONV_DESC,             \
	    BACKEND_DESCRIPTOR, operation.convolution),                                            \
		ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_##of_x,        \
		    BACKEND_DESCRIPTOR, operation.x),                                              \
		ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_##of_w,        \
		    BACKEND_DESCRIPTOR, operation.w),                                              \
		ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_##of_y,        \
		    BACKEND_DESCRIPTOR, operation.y),                                              \
		ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_ALPHA, DOUBLE, \
		    operation.alpha),                                                              \
		ONE(OPERATION_CONVOLUTION_##owner, OPERATION_CONVOLUTION_##prefix##_BETA, DOUBLE,  \
		    operation.beta)

static const struct attribute attributes[] = {
	ONE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, tensor.type),
	MANY(TENSOR, TENSOR_DIMENSIONS, INT64, tensor.size, tensor.dimensions),
	MANY(TENSOR, TENSOR_STRIDES, INT64, tensor.stride, tensor.dimensions),
	ONE(TENSOR, TENSOR_UNIQUE_ID, INT64, tensor.id),
	ONE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, tensor.alignment),
	ONE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, tensor.is_virtual),
	ONE(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, tensor.by_value),
	ONE(CONVOLUTION, CONVOLUTION_COMP_TYPE, DATA_TYPE, convolution.compute),
	ONE(CONVOLUTION, CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, convolution.mode),
	ONE(CONVOLUTION, CONVOLUTION_SPATIAL_DIMS, INT64, convolution.spatial),
	MANY(CONVOLUTION, CONVOLUTION_DILATIONS, INT64, convolution.dilation, convolution.spatial),
	MANY(CONVOLUTION, CONVOLUTION_FILTER_STRIDES, INT64, convolution.step, convolution.spatial),
	MANY(CONVOLUTION, CONVOLUTION_PRE_PADDINGS, INT64, convolution.before, convolution.spatial),
	MANY(CONVOLUTION, CONVOLUTION_POST_PADDINGS, INT64, convolution.after, convolution.spatial),
	OPERATION(FORWARD, FORWARD, X, W, Y),
	OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
	OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
	ONE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, handle),
	ONE(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, of),
	ONE(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, of),
	ONE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, mode),
	ONE(ENGINE, ENGINE_OPERATION_GRAPH, BACKEND_DESCRIPTOR, of),
	ONE(ENGINE, ENGINE_GLOBAL_INDEX, INT64, engine),
	ONE(ENGINECFG, ENGINECFG_ENGINE, BACKEND_DESCRIPTOR, of),
	ONE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, handle),
	ONE(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, of),
	ONE(EXECUTION_PLAN, EXECUTION_PLAN_WORKSPACE_SIZE, INT64, workspace),
	MANY(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, pack.id, pack.id_count),
	MANY(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, pack.address, pack.address_count),
	ONE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, pack.workspace),
};
/* Lists that are always empty: the engine has no knobs and nothing to note. */
static const int empty[] = {
	CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_ATTR_ENGINE_KNOB_INFO,
	CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,  CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
	CUDNN_ATTR_ENGINE_LAYOUT_INFO,
};

static const struct attribute *backend_attribute(const struct content *c, int name)
{
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (attributes[i].owner == c->type && attributes[i].name == name)
			return &attributes[i];
	LOG_ONCE("cudnnBackendAttributeName_t %d is not supported by rankfold", name);
	return NULL;
}

static bool always_empty(int name)
{
	for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
		if (empty[i] == name)
			return true;
	return false;
}

/* Stores the content of one finalized descriptor. */
static int set_reference(struct content **to, const struct descriptor *from)
{
	if (!from || !from->content)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (!from->content->final)
		return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
	content_release(*to);
	*to = content_share(from->content);
	return CUDNN_STATUS_SUCCESS;
}

static int several_operations(int64_t count)
{
	LOG_ONCE("a cuDNN graph of %lld operations is not supported by rankfold", (long long)count);
	return CUDNN_STATUS_NOT_SUPPORTED;
}

int backend_set(void *descriptor, int name, int kind, int64_t count, const void *from)
{
	struct content *c = descriptor ? ((struct descriptor *)descriptor)->content : NULL;
	const struct attribute *a;
	float number;

	if (!c || (count && !from))
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (c->final)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (always_empty(name) && !count)
		return CUDNN_STATUS_SUCCESS;
	a = backend_attribute(c, name);
	if (!a)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (name == CUDNN_ATTR_OPERATIONGRAPH_OPS && count != 1)
		return several_operations(count);
	if (count < (a->count ? 0 : 1) || count > a->most)
		return CUDNN_STATUS_BAD_PARAM;
	if (a->kind == CUDNN_TYPE_DOUBLE && kind == CUDNN_TYPE_FLOAT) {
		memcpy(&number, from, sizeof number);
		double wide = (double)number;
		memcpy((char *)c + a->at, &wide, sizeof wide);
		return CUDNN_STATUS_SUCCESS;
	}
	if (kind != a->kind)
		return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
	if (kind == CUDNN_TYPE_BACKEND_DESCRIPTOR)
		return set_reference((struct content **)(void *)((char *)c + a->at),
				     *(struct descriptor *const *)from);
	memcpy((char *)c + a->at, from, (size_t)count * a->bytes);
	if (a->count)
		memcpy((char *)c + a->count, &count, sizeof count);
	return CUDNN_STATUS_SUCCESS;
}

/* Fills in a descriptor that the program made for a result. */
static int store_reference(struct descriptor *to, struct content *c)
{
	if (!to || !to->content || !c)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (to->content->type != c->type)
		return CUDNN_STATUS_BAD_PARAM;
	content_release(to->content);
	to->content = content_share(c);
	return CUDNN_STATUS_SUCCESS;
}

/* The one configuration that a heuristic finds: of the only engine. */
static int store_result(struct descriptor *to, struct content *heuristic)
{
	struct content *engine = content_new(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
	struct content *configuration = content_new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
	int status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;

	if (engine && configuration) {
		engine->of = content_share(heuristic->of);
		configuration->of = content_share(engine);
		engine->final = configuration->final = true;
		status = store_reference(to, configuration);
	}
	content_release(engine);
	content_release(configuration);
	return status;
}

int backend_get(const void *descriptor, int name, int kind, int64_t most, int64_t *count, void *to)
{
	struct content *c = descriptor ? ((const struct descriptor *)descriptor)->content : NULL;
	int64_t ignored, available = 1;
	const struct attribute *a;

	if (!c)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (!c->final)
		return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
	count = count ? count : &ignored;
	if (always_empty(name)) {
		*count = 0;
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
	    c->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
		*count = 1;
		return most < 1 || !to ? CUDNN_STATUS_SUCCESS
				       : store_result(*(struct descriptor **)to, c);
	}
	a = backend_attribute(c, name);
	if (!a)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (kind != a->kind)
		return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
	if (a->count)
		memcpy(&available, (char *)c + a->count, sizeof available);
	*count = available;
	if (most < 1 || !to)
		return CUDNN_STATUS_SUCCESS;
	if (kind == CUDNN_TYPE_BACKEND_DESCRIPTOR)
		return store_reference(*(struct descriptor **)to,
				       *(struct content **)(void *)((char *)c + a->at));
	memcpy(to, (char *)c + a->at, (size_t)(most < available ? most : available) * a->bytes);
	return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

int backend_create(int type, void **out)
{
	struct descriptor *d;
	/* programs make the latter for the elements of lists that are empty here */
	bool served = type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR ||
		      type == CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR ||
		      type == CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR;

	if (!out)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		served |= attributes[i].owner == type;
	if (!served) {
		LOG_ONCE("cudnnBackendDescriptorType_t %d is not supported by rankfold", type);
		return CUDNN_STATUS_NOT_SUPPORTED;
	}
	d = calloc(1, sizeof *d);
	if (d)
		d->content = content_new(type);
	if (!d || !d->content) {
		free(d);
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	}
	if (is_operation(type))
		d->content->operation.alpha = 1;
	*out = d;
	return CUDNN_STATUS_SUCCESS;
}

int backend_destroy(void *descriptor)
{
	struct descriptor *d = descriptor;

	if (d)
		content_release(d->content);
	free(d);
	return CUDNN_STATUS_SUCCESS;
}

/* Describes the operation as a whole. */
static int operation_gather(struct dnn_convolution *g, const struct content *operation)
{
	const struct operation *o = &operation->operation;

	if (!o->convolution || !o->x || !o->w || !o->y ||
	    o->convolution->type != CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR ||
	    o->x->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || o->w->type != o->x->type ||
	    o->y->type != o->x->type)
		return CUDNN_STATUS_BAD_PARAM;
	*g = o->convolution->convolution;
	g->direction = operation->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
			       ? DNN_FORWARD
		       : operation->type ==
				       CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
			       ? DNN_BACKWARD_DATA
			       : DNN_BACKWARD_FILTER;
	g->x = o->x->tensor;
	g->w = o->w->tensor;
	g->y = o->y->tensor;
	g->alpha = o->alpha;
	g->beta = o->beta;
	return CUDNN_STATUS_SUCCESS;
}

/* Finds the operation of a plan through its configuration, engine and graph. */
static int plan_finalize(struct content *plan)
{
	const struct content *c = plan->of;
	int status;

	if (!c || c->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
		return CUDNN_STATUS_BAD_PARAM;
	c = c->of->of->of;
	status = operation_gather(&plan->convolution, c);
	return status ? status : dnn_convolution_check(&plan->convolution, &plan->workspace);
}

static int operation_finalize(const struct content *c)
{
	struct dnn_convolution g;
	int64_t workspace;
	int status = operation_gather(&g, c);

	return status ? status : dnn_convolution_check(&g, &workspace);
}

static int refers_to(const struct content *c, int type)
{
	return c->of && c->of->type == type ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

int backend_finalize(void *descriptor)
{
	struct content *c = descriptor ? ((struct descriptor *)descriptor)->content : NULL;
	int status = CUDNN_STATUS_SUCCESS;

	if (!c)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	switch (c->type) {
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
		status = operation_finalize(c);
		break;
	case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
		status = c->of && is_operation(c->of->type) ? CUDNN_STATUS_SUCCESS
							    : CUDNN_STATUS_BAD_PARAM;
		break;
	case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
	case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
		status = refers_to(c, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
		break;
	case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
		status = refers_to(c, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
		break;
	case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: status = plan_finalize(c); break;
	default: break;
	}
	c->final = !status;
	return status;
}

/* ---- execution ---- */

static uint64_t pack_address(const struct content *pack, int64_t id)
{
	for (int64_t i = 0; i < pack->pack.id_count && i < pack->pack.address_count; i++)
		if (pack->pack.id[i] == id)
			return pack->pack.address[i];
	return 0;
}

int backend_execute(const void *handle, const void *plan, const void *pack)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	const struct content *p = plan ? ((const struct descriptor *)plan)->content : NULL;
	const struct content *v = pack ? ((const struct descriptor *)pack)->content : NULL;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!p || !v)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
	    v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
		return CUDNN_STATUS_BAD_PARAM;
	if (!p->final || !v->final)
		return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
	return dnn_convolve(&p->convolution, pack_address(v, p->convolution.x.id),
			    pack_address(v, p->convolution.w.id),
			    pack_address(v, p->convolution.y.id), v->pack.workspace, h->stream);
}
