/* node.c: checks and stores the parameters of nodes, both those that the program creates and those
 * of a capture. A node's parameters are copied when it is created or changed; if new ones are
 * invalid, it stays as it was. No lock; nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static int pack_list(struct launch *l, void **args)
{
	const struct function *f = l->function;
	int error = node_copy_packed(l, NULL, f->info.param_bytes);
	for (uint32_t i = 0; !error && i < f->info.param_count; i++)
		memcpy((uint8_t *)l->packed + f->params[i].offset, args[i], f->params[i].bytes);
	return error;
}

static int pack_buffer(struct launch *l, void **extra)
{
	const void *packed;
	size_t bytes;
	int error = packed_parameters(extra, &packed, &bytes);
	return error ? error : node_copy_packed(l, packed, packed ? bytes : 0);
}

void *node_function(const CUDA_KERNEL_NODE_PARAMS *p)
{
	return !p ? NULL : p->func ? p->func : p->kern;
}

int node_set_kernel(struct node *n, void *function, const CUDA_KERNEL_NODE_PARAMS *p)
{
	if (!p)
		return INVALID_VALUE;
	if (!function_is(function))
		return INVALID_HANDLE;
	struct launch l = {.function = function,
			   .shared_bytes = p->sharedMemBytes,
			   .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
			   .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
			   .cooperative = n->launch.cooperative,
			   .cluster = n->launch.cluster};
	int error = p->kernelParams && p->extra ? INVALID_VALUE : function_can_run(function);
	if (!error)
		error = p->kernelParams ? pack_list(&l, p->kernelParams)
					: pack_buffer(&l, p->extra);
	if (error)
		return error;
	node_drop_parameters(n);
	n->kind = NODE_KERNEL;
	n->launch = l;
	n->buffer = p->extra != NULL;
	return CUDA_OK;
}

int node_set_copy(struct node *n, const CUDA_MEMCPY3D *d)
{
	struct copy copy;
	struct slices slices;
	int error = copy_of_description(d, &copy, &slices);
	if (error)
		return error;
	n->kind = NODE_COPY;
	n->box = *d;
	n->copy = copy;
	n->copy.async = true;
	n->slices = slices;
	return CUDA_OK;
}

int node_set_fill(struct node *n, const CUDA_MEMSET_NODE_PARAMS *p)
{
	if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) ||
	    (p->height > 1 && p->pitch < p->width * p->elementSize))
		return INVALID_VALUE;
	n->kind = NODE_FILL;
	n->fill = *p;
	return CUDA_OK;
}

int node_set_host(struct node *n, const CUDA_HOST_NODE_PARAMS *p)
{
	if (!p || !p->fn)
		return INVALID_VALUE;
	n->kind = NODE_HOST;
	n->host = *p;
	return CUDA_OK;
}

int node_set_event(struct node *n, enum node_kind kind, const void *event)
{
	uint64_t number;
	int error = event_number(event, &number);
	if (error)
		return error;
	n->kind = kind;
	n->event = number;
	return CUDA_OK;
}

int node_set_child(struct node *n, const void *graph, int ownership)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct graph *copy;
	if (g && ownership == 1) {
		LOG_ONCE(
			"a child graph that is moved into its parent is not supported by rankfold: "
			"let it be cloned");
		return NOT_SUPPORTED;
	}
	int error = g && !ownership ? graph_copy(g, false, &copy) : INVALID_VALUE;
	if (error)
		return error;
	graph_free(n->child);
	n->kind = NODE_CHILD;
	n->child = copy;
	copy->owned = true;
	return CUDA_OK;
}

/* Both APIs' structures are 256 bytes: the type, 12 bytes of zeros, and the member for that type
 * (of `used` bytes), padded with zeros. */
int node_params_check(const void *params, const size_t used[NODE_KINDS])
{
	const uint8_t *bytes = params;
	int kind = params ? *(const int *)params : -1;
	if (kind >= NODE_KINDS && kind < NODE_KINDS_KNOWN) {
		LOG_ONCE("graph nodes of type %d are not supported by rankfold", kind);
		return NOT_SUPPORTED;
	}
	if (kind < 0 || kind >= NODE_KINDS)
		return INVALID_VALUE;
	for (size_t i = sizeof kind; i < sizeof(CUgraphNodeParams); i++)
		if (bytes[i] && (i < 16 || i >= 16 + used[kind]))
			return INVALID_VALUE;
	return CUDA_OK;
}

int node_set(struct node *n, const CUgraphNodeParams *p)
{
	static const size_t used[NODE_KINDS] = {
		[NODE_KERNEL] = sizeof p->kernel,      [NODE_COPY] = sizeof p->memcpy,
		[NODE_FILL] = sizeof p->memset,        [NODE_HOST] = sizeof p->host,
		[NODE_CHILD] = sizeof p->graph,        [NODE_WAIT] = sizeof p->eventWait,
		[NODE_RECORD] = sizeof p->eventRecord,
	};
	int error = node_params_check(p, used);
	if (error)
		return error;
	switch (p->type) {
	case NODE_KERNEL: return node_set_kernel(n, node_function(&p->kernel), &p->kernel);
	case NODE_COPY:
		return p->memcpy.flags || p->memcpy.reserved
			       ? INVALID_VALUE
			       : node_set_copy(n, &p->memcpy.copyParams);
	case NODE_FILL: return node_set_fill(n, &p->memset.params);
	case NODE_HOST: return node_set_host(n, &p->host);
	case NODE_CHILD: return node_set_child(n, p->graph.graph, p->graph.ownership);
	case NODE_WAIT: return node_set_event(n, NODE_WAIT, p->eventWait);
	case NODE_RECORD: return node_set_event(n, NODE_RECORD, p->eventRecord);
	default: return CUDA_OK;
	}
}

/* ---- nodes of captured work ---- */

/* Stores the hints of the captured launch: its own, and for the others its stream's. */
static void copy_hints(struct node *n, const struct launch *l)
{
	const struct hints of = l->hints ? *l->hints : stream_hints(l->stream);
	hints_copy(&n->hints, &of, OF_NODE);
	for (unsigned i = 0; i < l->attribute_count; i++)
		hint_set(&n->hints, OF_NODE, l->attributes[i].id, &l->attributes[i].value);
	n->launch.hints = NULL;
	n->launch.attributes = NULL;
	n->launch.attribute_count = 0;
}

struct node *node_launch(const struct launch *l, const void *packed, size_t bytes)
{
	struct node *n = node_new(NODE_KERNEL);
	if (!n)
		return NULL;
	n->launch = *l;
	n->buffer = !l->args && l->packed;
	copy_hints(n, l);
	if (!node_copy_packed(&n->launch, packed, bytes))
		return n;
	free(n);
	return NULL;
}

struct node *node_copy(const struct copy *c)
{
	struct node *n = node_new(NODE_COPY);
	if (n) {
		n->copy = *c;
		n->slices = (struct slices){1, 0, 0};
		n->box = description_of_copy(c);
	}
	return n;
}

struct node *node_fill(const CUDA_MEMSET_NODE_PARAMS *p)
{
	struct node *n = node_new(NODE_FILL);
	if (n)
		n->fill = *p;
	return n;
}

struct node *node_host(CUhostFn function, void *data)
{
	struct node *n = node_new(NODE_HOST);
	if (n)
		n->host = (CUDA_HOST_NODE_PARAMS){function, data};
	return n;
}

struct node *node_gemm(const struct rf_gemm_call *m)
{
	struct node *n = node_new(NODE_GEMM);
	if (n)
		n->gemm = *m;
	return n;
}

struct node *node_event(enum node_kind kind, uint64_t event)
{
	struct node *n = node_new(kind);
	if (n)
		n->event = event;
	return n;
}

/* ---- changes of a node's parameters ---- */

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	struct node *n = node_of(hNode, NODE_KERNEL);
	return n && nodeParams ? node_set_kernel(n, nodeParams->func, nodeParams) : INVALID_VALUE;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	struct node *n = node_of(hNode, NODE_KERNEL);
	return n ? node_set_kernel(n, node_function(nodeParams), nodeParams) : INVALID_VALUE;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
	struct node *n = node_of(hNode, NODE_COPY);
	return n ? node_set_copy(n, nodeParams) : INVALID_VALUE;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	struct node *n = node_of(hNode, NODE_FILL);
	return n ? node_set_fill(n, nodeParams) : INVALID_VALUE;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n = node_of(hNode, NODE_HOST);
	return n ? node_set_host(n, nodeParams) : INVALID_VALUE;
}

int graph_event_set(const void *node, enum node_kind kind, const void *event)
{
	struct node *n = node_of(node, kind);
	return n ? node_set_event(n, kind, event) : INVALID_VALUE;
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	struct node *n = nodeParams ? node_of(hNode, nodeParams->type) : NULL;
	return n ? node_set(n, nodeParams) : INVALID_VALUE;
}
