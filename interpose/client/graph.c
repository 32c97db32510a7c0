/* graph.c: graphs, kept in the client. Launching one issues its nodes one after the other into the
 * stream, in an order that respects their dependencies: every order that does is a legal execution.
 * So the server knows nothing of graphs, and a graph moves with the process.
 *
 * A node's parameters are copied when it is made or changed. An instantiated graph has copies of
 * its own; a node keeps its index, by which the exec's copy is found. As in CUDA, one graph is used
 * by one thread at a time. Nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct graph *graph_check(const void *handle, uint32_t magic)
{
	struct graph *g = (struct graph *)handle;
	return g && g->magic == magic ? g : NULL;
}

static void free_node(struct node *n)
{
	if (!n)
		return;
	free((void *)n->launch.packed);
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
	g->nodes[g->count++] = n;
	return CUDA_OK;
}

/* ---- what a node does ---- */

static int keep_packed(struct node *n, const void *packed, size_t bytes)
{
	uint8_t *kept = calloc(1, bytes + 1);
	if (!kept)
		return OUT_OF_MEMORY;
	if (packed)
		memcpy(kept, packed, bytes);
	n->launch.args = NULL;
	n->launch.packed = kept;
	n->launch.packed_bytes = bytes;
	return CUDA_OK;
}

static int pack_list(struct node *n, void **args)
{
	const struct function *f = n->launch.function;
	int error = keep_packed(n, NULL, f->info.param_bytes);
	for (uint32_t i = 0; !error && i < f->info.param_count; i++)
		memcpy((uint8_t *)n->launch.packed + f->params[i].offset, args[i], f->params[i].bytes);
	return error;
}

static int pack_buffer(struct node *n, void **extra)
{
	const void *packed;
	size_t bytes;
	int error = packed_parameters(extra, &packed, &bytes);
	return error ? error : keep_packed(n, packed, packed ? bytes : 0);
}

int node_set_kernel(struct node *n, void *function, const CUDA_KERNEL_NODE_PARAMS *p)
{
	if (!function_is(function))
		return INVALID_HANDLE;
	n->kind = NODE_KERNEL;
	n->launch = (struct launch){.function = function, .shared_bytes = p->sharedMemBytes,
				    .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
				    .block = {p->blockDimX, p->blockDimY, p->blockDimZ}};
	int error = p->kernelParams && p->extra ? INVALID_VALUE : function_ready(function);
	if (error)
		return error;
	return p->kernelParams ? pack_list(n, p->kernelParams) : pack_buffer(n, p->extra);
}

int node_set_copy(struct node *n, const CUDA_MEMCPY3D *d)
{
	int error = copy_of_description(d, &n->copy, &n->slices);
	n->kind = NODE_COPY;
	n->copy.async = true;
	return error;
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
	if (!keep_packed(n, packed, bytes))
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
	if (!g)
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
	int error = n && p ? node_set_kernel(n, function, p) : n ? INVALID_VALUE : OUT_OF_MEMORY;
	return finish(error, n, out, graph, dependencies, count);
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return add_kernel(phGraphNode, hGraph, dependencies, numDependencies,
			  nodeParams ? nodeParams->func : NULL, nodeParams);
}

void *node_function(const CUDA_KERNEL_NODE_PARAMS *p)
{
	return !p ? NULL : p->func ? p->func : p->kern;
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
	return finish(n ? node_set_copy(n, copyParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph, dependencies,
		      numDependencies);
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
	int error = n ? CUDA_OK : OUT_OF_MEMORY;
	if (!error && !(nodeParams && nodeParams->fn))
		error = INVALID_VALUE;
	if (!error) {
		n->kind = NODE_HOST;
		n->host = *nodeParams;
	}
	return finish(error, n, phGraphNode, hGraph, dependencies, numDependencies);
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
	struct node *n = node_new(NODE_CHILD);
	int error = n ? graph_instantiate((void **)&n->child, childGraph) : OUT_OF_MEMORY;
	return finish(error, n, phGraphNode, hGraph, dependencies, numDependencies);
}

static int add_event(enum node_kind kind, void **out, const void *graph,
		     const CUgraphNode *dependencies, size_t count, const void *event)
{
	uint64_t number;
	int error = event_number(event, &number);
	struct node *n = node_event(kind, number);
	return finish(n ? error : OUT_OF_MEMORY, n, out, graph, dependencies, count);
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

int graph_edges(void *graph, const CUgraphNode *from, const CUgraphNode *to, const void *data,
		size_t count)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!g || (count && !(from && to)))
		return INVALID_VALUE;
	if (data)
		SAY_ONCE("data on the edges of a graph have no effect under rankfold");
	for (size_t i = 0; i < count; i++) {
		struct node *a = from[i], *b = to[i];
		if (!a || !b || a == b || a->graph != g || b->graph != g || nodes_hold(&b->needs, a))
			return INVALID_VALUE;
		if (!nodes_add(&b->needs, a))
			return OUT_OF_MEMORY;
	}
	return CUDA_OK;
}

static int give_nodes(const struct nodes *set, CUgraphNode *out, size_t *count)
{
	if (!count)
		return INVALID_VALUE;
	for (size_t i = 0; out && i < *count; i++)
		out[i] = i < set->count ? set->at[i] : NULL;
	if (!out || *count > set->count)
		*count = set->count;
	return CUDA_OK;
}

int node_dependencies(const void *node, CUgraphNode *out, size_t *count)
{
	return node ? give_nodes(&((const struct node *)node)->needs, out, count) : INVALID_VALUE;
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
	struct nodes roots = {NULL, 0};
	const struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	int error = g ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < g->count; i++)
		if (!g->nodes[i]->needs.count && !nodes_add(&roots, g->nodes[i]))
			error = OUT_OF_MEMORY;
	if (!error)
		error = give_nodes(&roots, rootNodes, numRootNodes);
	nodes_clear(&roots);
	return error;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	if (!hNode || !type)
		return INVALID_VALUE;
	enum node_kind kind = ((const struct node *)hNode)->kind;
	*type = kind == NODE_GEMM ? NODE_KERNEL : (int)kind;
	return CUDA_OK;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	if (!g || !numNodes)
		return INVALID_VALUE;
	for (size_t i = 0; nodes && i < *numNodes; i++)
		nodes[i] = i < g->count ? g->nodes[i] : NULL;
	if (!nodes || *numNodes > g->count)
		*numNodes = g->count;
	return CUDA_OK;
}

/* ---- copies ---- */

static struct node *clone(const struct node *from)
{
	struct node *n = malloc(sizeof *n);
	if (!n)
		return NULL;
	*n = *from;
	n->needs = (struct nodes){NULL, 0};
	n->launch.packed = NULL;
	n->child = NULL;
	int error = CUDA_OK;
	if (from->launch.packed)
		error = keep_packed(n, from->launch.packed, from->launch.packed_bytes);
	if (!error && from->child)
		error = graph_copy(from->child, &n->child);
	if (!error)
		return n;
	free_node(n);
	return NULL;
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

/* All nodes with the same indices. */
int graph_copy(const struct graph *g, struct graph **out)
{
	struct graph *copy = calloc(1, sizeof *copy);
	int error = copy ? CUDA_OK : OUT_OF_MEMORY;
	for (size_t i = 0; !error && i < g->count; i++) {
		struct node *n = clone(g->nodes[i]);
		error = n ? append(copy, n) : OUT_OF_MEMORY;
		if (error)
			free_node(n);
	}
	if (!error)
		error = clone_needs(g, copy);
	if (!error && g->order) {
		copy->order = malloc((g->count + 1) * sizeof *copy->order);
		if (copy->order)
			memcpy(copy->order, g->order, g->count * sizeof *g->order);
		else
			error = OUT_OF_MEMORY;
	}
	if (error) {
		graph_free(copy);
		return error;
	}
	copy->magic = g->magic;
	*out = copy;
	return CUDA_OK;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
	const struct graph *g = graph_check(originalGraph, GRAPH_MAGIC);
	struct graph *copy = NULL;
	int error = phGraphClone && g ? graph_copy(g, &copy) : INVALID_VALUE;
	if (!error)
		*phGraphClone = copy;
	return error;
}
