/* graph_build.c: graphs that programs build: adds and removes nodes and edges. */
#include <string.h>

#include "graph.h"
#include "invariant.h"

/* ---- graphs ---- */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	if (!phGraph || flags)
		return INVALID_VALUE;
	*phGraph = graph_new();
	return *phGraph ? CUDA_OK : OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
	struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	if (!g || g->owned)
		return INVALID_VALUE;
	if (capture_into(g))
		return CAPTURE_UNSUPPORTED;
	graph_free(g);
	return CUDA_OK;
}

/* Adds a filled-in node to the graph, or frees it. */
static int finish_node(int error, struct node *n, void **out, const void *graph,
		       const CUgraphNode *dependencies, size_t count)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!error && (!n || !out || !g || (count && !dependencies)))
		error = n ? INVALID_VALUE : OUT_OF_MEMORY;
	for (size_t i = 0; !error && i < count; i++) {
		if (!dependencies[i] || ((struct node *)dependencies[i])->graph != g ||
		    nodes_contain(&n->needs, dependencies[i]))
			error = INVALID_VALUE;
		else if (!nodes_add(&n->needs, dependencies[i]))
			error = OUT_OF_MEMORY;
	}
	if (!error)
		error = graph_add(g, n);
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
	return finish_node(n ? node_set_kernel(n, function, p) : OUT_OF_MEMORY, n, out, graph,
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
	return finish_node(n ? node_set_copy(n, copyParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
			   dependencies, numDependencies);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	(void)ctx;
	struct node *n = node_new(NODE_EMPTY);
	return finish_node(n ? node_set_fill(n, memsetParams) : OUT_OF_MEMORY, n, phGraphNode,
			   hGraph, dependencies, numDependencies);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			    const CUgraphNode *dependencies, size_t numDependencies,
			    const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish_node(n ? node_set_host(n, nodeParams) : OUT_OF_MEMORY, n, phGraphNode, hGraph,
			   dependencies, numDependencies);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			     const CUgraphNode *dependencies, size_t numDependencies)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish_node(n ? CUDA_OK : OUT_OF_MEMORY, n, phGraphNode, hGraph, dependencies,
			   numDependencies);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  CUgraph childGraph)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish_node(n ? node_set_child(n, childGraph, 0) : OUT_OF_MEMORY, n, phGraphNode,
			   hGraph, dependencies, numDependencies);
}

static int add_event(enum node_kind kind, void **out, const void *graph,
		     const CUgraphNode *dependencies, size_t count, const void *event)
{
	struct node *n = node_new(NODE_EMPTY);
	return finish_node(n ? node_set_event(n, kind, event) : OUT_OF_MEMORY, n, out, graph,
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

/* Data on an edge permit it to be satisfied before its first node completes. Here that is on
 * completion. */
static int check_edge(const CUgraphEdgeData *d)
{
	static const CUgraphEdgeData plain;
	if (!memcmp(d, &plain, sizeof plain))
		return CUDA_OK;
	if (d->from_port > 2 || d->to_port || d->type > 1 ||
	    memcmp(d->reserved, plain.reserved, sizeof plain.reserved))
		return INVALID_VALUE;
	LOG_ONCE("data on the edges of a graph have no effect under rankfold");
	return CUDA_OK;
}

int graph_add_node(void **out, void *graph, const CUgraphNode *needs, const CUgraphEdgeData *data,
		   size_t count, const CUgraphNodeParams *p)
{
	struct node *n = node_new(NODE_EMPTY);
	int error = n ? node_set(n, p) : OUT_OF_MEMORY;
	for (size_t i = 0; !error && data && i < count; i++)
		error = check_edge(&data[i]);
	return finish_node(error, n, out, graph, needs, count);
}

int graph_edges(void *graph, const CUgraphNode *from, const CUgraphNode *to,
		const CUgraphEdgeData *data, size_t count)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	int error = g && (!count || (from && to)) ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		struct node *a = from[i], *b = to[i];
		if (!a || !b || a == b || a->graph != g || b->graph != g ||
		    nodes_contain(&b->needs, a))
			return INVALID_VALUE;
		error = data ? check_edge(&data[i]) : CUDA_OK;
		if (!error && !nodes_add(&b->needs, a))
			error = OUT_OF_MEMORY;
	}
	return error;
}

/* All edges are stored without data. */
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
	if (capture_into(g))
		return CAPTURE_UNSUPPORTED;
	INVARIANT(n->index < g->count && g->nodes[n->index] == n,
		  "a node that goes has its place in its graph");
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
