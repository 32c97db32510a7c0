/* graph.c: graphs, kept in the client. Launching one issues its nodes one after the other into the
 * stream, in an order that respects their dependencies: every order that does is a legal execution.
 * So the server knows nothing of graphs, and a graph moves with the process.
 *
 * An instantiated graph has nodes of its own; a node has a number, and its copies say whose they
 * are. As in CUDA, one graph is used by one thread at a time. Nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct graph *graph_check(const void *handle, uint32_t magic)
{
	struct graph *g = (struct graph *)handle;
	return g && g->magic == magic ? g : NULL;
}

void graph_free(struct graph *g)
{
	for (size_t i = 0; g && i < g->count; i++)
		node_free(g->nodes[i]);
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

/* Takes the node, whatever it returns. */
int graph_append(struct graph *g, struct node *n, const struct nodes *needs)
{
	int error = g && n && nodes_join(&n->needs, needs) ? append(g, n) : OUT_OF_MEMORY;
	if (error)
		node_free(n);
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
		node_free(n);
	else
		*out = n;
	return error;
}

static int add_kernel(void **out, const void *graph, const CUgraphNode *dependencies, size_t count,
		      void *function, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_kernel(n, function, p) : OUT_OF_MEMORY, n, out, graph,
		      dependencies, count);
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
	return add_kernel(phGraphNode, hGraph, dependencies, numDependencies,
			  node_function(nodeParams), nodeParams);
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
	return finish(n ? node_set_child(n, childGraph, 0) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
		      dependencies, numDependencies);
}

static int add_event(enum node_kind kind, void **out, const void *graph,
		     const CUgraphNode *dependencies, size_t count, const void *event)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish(n ? node_set_event(n, kind, event) : OUT_OF_MEMORY, n, out, graph,
		      dependencies, count);
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
		if (!a || !b || a == b || a->graph != g || b->graph != g ||
		    nodes_hold(&b->needs, a))
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
		if (!from[i] || !b || b->graph != g ||
		    (data && memcmp(&data[i], &plain, sizeof plain)) ||
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
	node_free(n);
	return CUDA_OK;
}

/* ---- copies ---- */

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
		error = node_clone(g->nodes[i], exec, &n);
		if (!error)
			error = append(copy, n);
		if (error)
			node_free(n);
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
