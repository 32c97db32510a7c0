/* graph.c: graphs, kept in the client. Launching one issues its nodes one after the other into the
 * stream, in an order that respects their dependencies: every order that does is a legal execution.
 * So the server knows nothing of graphs, and a graph moves with the process.
 *
 * A node's parameters are copied when it is made or changed. An instantiated graph has nodes of its
 * own; a node has a number, and its copies say whose they are. As in CUDA, one graph is used by one
 * thread at a time. Nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct graph *graph_check(const void *handle, uint32_t magic)
{
	struct graph *g = (struct graph *)handle;
	return g && g->magic == magic ? g : NULL;
}

static void drop_parameters(struct node *n)
{
	free((void *)n->launch.packed);
	free(n->shown);
	n->launch.packed = NULL;
	n->shown = NULL;
}

static void free_node(struct node *n)
{
	if (!n)
		return;
	drop_parameters(n);
	nodes_clear(&n->needs);
	graph_free(n->child);
	free(n);
}

void graph_free(struct graph *g)
{
	for (size_t i = 0; g && i < g->count; i++)
		free_node(g->nodes[i]);
	if (!g)
		return;
	free(g->nodes);
	free(g->order);
	user_objects_drop(&g->objects);
	g->magic = 0;
	free(g);
}

/* ---- sets of nodes ---- */

static bool nodes_hold(const struct nodes *set, const struct node *n)
{
	for (size_t i = 0; i < set->count; i++)
		if (set->at[i] == n)
			return true;
	return false;
}

bool nodes_add(struct nodes *set, struct node *n)
{
	if (nodes_hold(set, n))
		return true;
	struct node **more = realloc(set->at, (set->count + 1) * sizeof *more);
	if (!more)
		return false;
	set->at = more;
	set->at[set->count++] = n;
	return true;
}

bool nodes_join(struct nodes *set, const struct nodes *other)
{
	for (size_t i = 0; i < other->count; i++)
		if (!nodes_add(set, other->at[i]))
			return false;
	return true;
}

static bool nodes_remove(struct nodes *set, const struct node *n)
{
	size_t i = 0;
	while (i < set->count && set->at[i] != n)
		i++;
	if (i == set->count)
		return false;
	memmove(&set->at[i], &set->at[i + 1], (--set->count - i) * sizeof *set->at);
	return true;
}

void nodes_clear(struct nodes *set)
{
	free(set->at);
	*set = (struct nodes){NULL, 0};
}

bool nodes_in(const struct graph *g, const struct nodes *set)
{
	for (size_t i = 0; i < set->count; i++)
		if (!set->at[i] || set->at[i]->graph != g)
			return false;
	return graph_check(g, GRAPH_MAGIC) != NULL;
}

bool nodes_reach(const struct graph *g, const struct nodes *from, const struct nodes *wanted)
{
	bool *seen = calloc(g->count + 1, sizeof *seen), more = seen != NULL, all = more;
	for (size_t i = 0; seen && i < from->count; i++)
		seen[from->at[i]->index] = true;
	while (more) { /* once, where nodes were made after what they need */
		more = false;
		for (size_t i = g->count; i-- > 0;)
			for (size_t k = 0; seen[i] && k < g->nodes[i]->needs.count; k++) {
				size_t need = g->nodes[i]->needs.at[k]->index;
				more |= !seen[need] && need > i;
				seen[need] = true;
			}
	}
	for (size_t i = 0; all && i < wanted->count; i++)
		all = seen[wanted->at[i]->index];
	free(seen);
	return all;
}

static int append(struct graph *g, struct node *n)
{
	if (g->count == g->room) {
		size_t room = g->room ? g->room * 2 : 16;
		struct node **more = realloc(g->nodes, room * sizeof *more);
		if (!more)
			return OUT_OF_MEMORY;
		g->nodes = more;
		g->room = room;
	}
	n->index = g->count;
	n->graph = g;
	n->number = handle_number();
	g->nodes[g->count++] = n;
	return CUDA_OK;
}

/* ---- what a node does ---- */

static int keep_packed(struct launch *l, const void *packed, size_t bytes)
{
	uint8_t *kept = calloc(1, bytes + 1);
	if (!kept)
		return OUT_OF_MEMORY;
	if (packed)
		memcpy(kept, packed, bytes);
	l->args = NULL;
	l->packed = kept;
	l->packed_bytes = bytes;
	return CUDA_OK;
}

static int pack_list(struct launch *l, void **args)
{
	const struct function *f = l->function;
	int error = keep_packed(l, NULL, f->info.param_bytes);
	for (uint32_t i = 0; !error && i < f->info.param_count; i++)
		memcpy((uint8_t *)l->packed + f->params[i].offset, args[i], f->params[i].bytes);
	return error;
}

static int pack_buffer(struct launch *l, void **extra)
{
	const void *packed;
	size_t bytes;
	int error = packed_parameters(extra, &packed, &bytes);
	return error ? error : keep_packed(l, packed, packed ? bytes : 0);
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
	struct launch l = {.function = function, .shared_bytes = p->sharedMemBytes,
			   .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
			   .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
			   .cooperative = n->launch.cooperative};
	int error = p->kernelParams && p->extra ? INVALID_VALUE : function_ready(function);
	if (!error)
		error = p->kernelParams ? pack_list(&l, p->kernelParams) : pack_buffer(&l, p->extra);
	if (error)
		return error;
	drop_parameters(n);
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

static int set_child(struct node *n, const void *graph, int ownership)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct graph *copy;
	if (g && ownership == 1) {
		SAY_ONCE("a child graph that is moved into its parent is not supported by rankfold: "
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

/* Both interfaces' structures are 256 bytes: the type, 12 bytes of zeros, and the member of that
 * type, of which `used` has the size, padded with zeros. */
int node_params_check(const void *params, const size_t used[NODE_KINDS])
{
	const uint8_t *bytes = params;
	int kind = params ? *(const int *)params : -1;
	if (kind >= NODE_KINDS && kind < NODE_KINDS_KNOWN) {
		SAY_ONCE("graph nodes of type %d are not supported by rankfold", kind);
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
		[NODE_KERNEL] = sizeof p->kernel, [NODE_COPY] = sizeof p->memcpy,
		[NODE_FILL] = sizeof p->memset, [NODE_HOST] = sizeof p->host,
		[NODE_CHILD] = sizeof p->graph, [NODE_WAIT] = sizeof p->eventWait,
		[NODE_RECORD] = sizeof p->eventRecord,
	};
	int error = node_params_check(p, used);
	if (error)
		return error;
	switch (p->type) {
	case NODE_KERNEL:
		return node_set_kernel(n, node_function(&p->kernel), &p->kernel);
	case NODE_COPY:
		return p->memcpy.flags || p->memcpy.reserved ? INVALID_VALUE
							     : node_set_copy(n, &p->memcpy.copyParams);
	case NODE_FILL:
		return node_set_fill(n, &p->memset.params);
	case NODE_HOST:
		return node_set_host(n, &p->host);
	case NODE_CHILD:
		return set_child(n, p->graph.graph, p->graph.ownership);
	case NODE_WAIT:
		return node_set_event(n, NODE_WAIT, p->eventWait);
	case NODE_RECORD:
		return node_set_event(n, NODE_RECORD, p->eventRecord);
	default:
		return CUDA_OK;
	}
}

/* ---- nodes that a capture makes ---- */

static struct node *node_new(enum node_kind kind)
{
	struct node *n = calloc(1, sizeof *n);
	if (n)
		n->kind = kind;
	return n;
}

struct node *node_launch(const struct launch *l, const void *packed, size_t bytes)
{
	struct node *n = node_new(NODE_KERNEL);
	if (!n)
		return NULL;
	n->launch = *l;
	n->buffer = !l->args && l->packed;
	if (!keep_packed(&n->launch, packed, bytes))
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

struct node *node_gemm(const struct rf_gemm *m)
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

/* Takes the node, whatever it returns. */
int graph_append(struct graph *g, struct node *n, const struct nodes *needs)
{
	int error = g && n && nodes_join(&n->needs, needs) ? append(g, n) : OUT_OF_MEMORY;
	if (error)
		free_node(n);
	return error;
}

/* ---- graphs ---- */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	if (!phGraph || flags)
		return INVALID_VALUE;
	struct graph *g = calloc(1, sizeof *g);
	if (!g)
		return OUT_OF_MEMORY;
	g->magic = GRAPH_MAGIC;
	*phGraph = g;
	return CUDA_OK;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
	struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	if (!g || g->owned)
		return INVALID_VALUE;
	graph_free(g);
	return CUDA_OK;
}

/* Put a filled-in node into the graph, or free it. */
static int finish(int error, struct node *n, void **out, const void *graph,
		  const CUgraphNode *dependencies, size_t count)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!error && (!n || !out || !g || (count && !dependencies)))
		error = n ? INVALID_VALUE : OUT_OF_MEMORY;
	for (size_t i = 0; !error && i < count; i++) {
		if (!dependencies[i] || ((struct node *)dependencies[i])->graph != g ||
		    nodes_hold(&n->needs, dependencies[i]))
			error = INVALID_VALUE;
		else if (!nodes_add(&n->needs, dependencies[i]))
			error = OUT_OF_MEMORY;
	}
	if (!error)
		error = append(g, n);
	if (error)
		free_node(n);
	else
		*out = n;
	return error;
}

static int add_kernel(void **out, const void *graph, const CUgraphNode *dependencies, size_t count,
		      void *function, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_kernel(n, function, p) : OUT_OF_MEMORY, n, out, graph, dependencies,
		      count);
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return add_kernel(phGraphNode, hGraph, dependencies, numDependencies,
			  nodeParams ? nodeParams->func : NULL, nodeParams);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
				 const CUgraphNode *dependencies, size_t numDependencies,
				 const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return add_kernel(phGraphNode, hGraph, dependencies, numDependencies, node_function(nodeParams),
			  nodeParams);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	(void)ctx;
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_copy(n, copyParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
		      dependencies, numDependencies);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	(void)ctx;
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_fill(n, memsetParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
		      dependencies, numDependencies);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			    const CUgraphNode *dependencies, size_t numDependencies,
			    const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_host(n, nodeParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
		      dependencies, numDependencies);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			     const CUgraphNode *dependencies, size_t numDependencies)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? CUDA_OK : OUT_OF_MEMORY, n, phGraphNode, hGraph, dependencies,
		      numDependencies);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  CUgraph childGraph)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? set_child(n, childGraph, 0) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
		      dependencies, numDependencies);
}

static int add_event(enum node_kind kind, void **out, const void *graph,
		     const CUgraphNode *dependencies, size_t count, const void *event)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_event(n, kind, event) : OUT_OF_MEMORY, n, out, graph, dependencies,
		      count);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				   const CUgraphNode *dependencies, size_t numDependencies,
				   CUevent event)
{
	return add_event(NODE_RECORD, phGraphNode, hGraph, dependencies, numDependencies, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				 const CUgraphNode *dependencies, size_t numDependencies,
				 CUevent event)
{
	return add_event(NODE_WAIT, phGraphNode, hGraph, dependencies, numDependencies, event);
}

/* Data on an edge say that it may be met before its first node is over. It is met then. */
static int check_edge(const CUgraphEdgeData *d)
{
	static const CUgraphEdgeData plain;
	if (!memcmp(d, &plain, sizeof plain))
		return CUDA_OK;
	if (d->from_port > 2 || d->to_port || d->type > 1 ||
	    memcmp(d->reserved, plain.reserved, sizeof plain.reserved))
		return INVALID_VALUE;
	SAY_ONCE("data on the edges of a graph have no effect under rankfold");
	return CUDA_OK;
}

int graph_add_node(void **out, void *graph, const CUgraphNode *needs, const CUgraphEdgeData *data,
		   size_t count, const CUgraphNodeParams *p)
{
	struct node *n = node_new(NODE_EMPTY);
	int error = n ? node_set(n, p) : OUT_OF_MEMORY;
	for (size_t i = 0; !error && data && i < count; i++)
		error = check_edge(&data[i]);
	return finish(error, n, out, graph, needs, count);
}

int graph_edges(void *graph, const CUgraphNode *from, const CUgraphNode *to,
		const CUgraphEdgeData *data, size_t count)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	int error = g && (!count || (from && to)) ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		struct node *a = from[i], *b = to[i];
		if (!a || !b || a == b || a->graph != g || b->graph != g || nodes_hold(&b->needs, a))
			return INVALID_VALUE;
		error = data ? check_edge(&data[i]) : CUDA_OK;
		if (!error && !nodes_add(&b->needs, a))
			error = OUT_OF_MEMORY;
	}
	return error;
}

/* All edges are there without data. */
int graph_cut(void *graph, const CUgraphNode *from, const CUgraphNode *to,
	      const CUgraphEdgeData *data, size_t count)
{
	static const CUgraphEdgeData plain;
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!g || (count && !(from && to)))
		return INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		struct node *b = to[i];
		if (!from[i] || !b || b->graph != g || (data && memcmp(&data[i], &plain, sizeof plain)) ||
		    !nodes_remove(&b->needs, from[i]))
			return INVALID_VALUE;
	}
	return CUDA_OK;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
	struct node *n = hNode;
	if (!n)
		return INVALID_VALUE;
	struct graph *g = n->graph;
	g->count--;
	for (size_t i = n->index; i < g->count; i++) {
		g->nodes[i] = g->nodes[i + 1];
		g->nodes[i]->index = i;
	}
	for (size_t i = 0; i < g->count; i++)
		nodes_remove(&g->nodes[i]->needs, n);
	free_node(n);
	return CUDA_OK;
}

/* ---- other parameters for a node ---- */

struct node *node_of(const void *node, enum node_kind kind)
{
	struct node *n = (struct node *)node;
	return n && n->kind == kind ? n : NULL;
}

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

/* ---- copies ---- */

/* What there is of it is the caller's, with an error too. */
static int clone(const struct node *from, bool exec, struct node **out)
{
	struct node *n = malloc(sizeof *n);
	if (!n)
		return OUT_OF_MEMORY;
	*n = *from;
	n->origin = from->number;
	n->needs = (struct nodes){NULL, 0};
	n->launch.packed = NULL;
	n->shown = NULL;
	n->child = NULL;
	int error = CUDA_OK;
	if (from->launch.packed)
		error = keep_packed(&n->launch, from->launch.packed, from->launch.packed_bytes);
	if (!error && from->child)
		error = graph_copy(from->child, exec, &n->child);
	*out = n;
	return error;
}

static int clone_needs(const struct graph *g, struct graph *copy)
{
	for (size_t i = 0; i < g->count; i++)
		for (size_t k = 0; k < g->nodes[i]->needs.count; k++)
			if (!nodes_add(&copy->nodes[i]->needs,
				       copy->nodes[g->nodes[i]->needs.at[k]->index]))
				return OUT_OF_MEMORY;
	return CUDA_OK;
}

int graph_copy(const struct graph *g, bool exec, struct graph **out)
{
	struct graph *copy = calloc(1, sizeof *copy);
	int error = copy ? CUDA_OK : OUT_OF_MEMORY;
	for (size_t i = 0; !error && i < g->count; i++) {
		struct node *n = NULL;
		error = clone(g->nodes[i], exec, &n);
		if (!error)
			error = append(copy, n);
		if (error)
			free_node(n);
	}
	if (!error)
		error = clone_needs(g, copy);
	if (!error)
		error = user_objects_share(&copy->objects, &g->objects);
	if (!error && exec)
		error = graph_order(copy);
	if (error) {
		graph_free(copy);
		return error;
	}
	copy->magic = exec ? EXEC_MAGIC : GRAPH_MAGIC;
	copy->owned = g->owned;
	*out = copy;
	return CUDA_OK;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
	const struct graph *g = graph_check(originalGraph, GRAPH_MAGIC);
	struct graph *copy = NULL;
	int error = phGraphClone && g ? graph_copy(g, false, &copy) : INVALID_VALUE;
	if (error)
		return error;
	copy->owned = false;
	*phGraphClone = copy;
	return CUDA_OK;
}
