/* graph_exec.c: creates, changes and launches instantiated graphs. A launch issues the nodes one
 * after the other into the stream.
 *
 * An exec is a graph with copies of the nodes, and an order. It has no lock, and does not block by
 * itself.
 */
#include <stdlib.h>

#include "graph.h"
#include "invariant.h"

/* ---- instantiation ---- */

/* A node in a cycle, or after one, also in a child graph; NULL: none. */
static void *node_in_cycle(const struct graph *g)
{
	bool *done = calloc(g->count + 1, sizeof *done);
	size_t *order = calloc(g->count + 1, sizeof *order), i = 0;
	if (done && order)
		graph_order(g, done, order);
	while (done && i < g->count && done[i])
		i++;
	void *found = done && i < g->count ? g->nodes[i] : NULL;
	free(done);
	free(order);
	for (i = 0; !found && i < g->count; i++)
		if (g->nodes[i]->child)
			found = node_in_cycle(g->nodes[i]->child);
	return found;
}

enum instantiate_flags { AUTO_FREE = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, NODE_PRIORITY = 8 };

static int instantiate_graph(void **out, const struct graph *g, unsigned long long flags)
{
	struct graph *exec = NULL;
	if (!out || !g || flags > (AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) ||
	    (flags & AUTO_FREE && flags & DEVICE_LAUNCH))
		return INVALID_VALUE;
	if (flags & DEVICE_LAUNCH) {
		LOG_ONCE("graphs that kernels launch are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	int error = graph_copy(g, true, &exec);
	if (error)
		return error;
	exec->flags = flags & ~(unsigned long long)UPLOAD; /* is not returned */
	*out = exec;
	return CUDA_OK;
}

int graph_instantiate(void **out, const void *graph, unsigned long long flags, void **failed)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	int error = flags & UPLOAD ? INVALID_VALUE : instantiate_graph(out, g, flags);
	if (failed)
		*failed = error && g ? node_in_cycle(g) : NULL;
	return error;
}

int graph_instantiate_with(void **out, const void *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!p)
		return INVALID_VALUE;
	int error = instantiate_graph(out, g, p->flags);
	p->hErrNode_out = error && g ? node_in_cycle(g) : NULL;
	p->result_out = !error            ? INSTANTIATE_SUCCESS
			: p->hErrNode_out ? INSTANTIATE_INVALID_STRUCTURE
					  : INSTANTIATE_ERROR;
	return error;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
	const struct graph *g = graph_check(hGraphExec, EXEC_MAGIC);
	if (!g || !flags)
		return INVALID_VALUE;
	*flags = g->flags;
	return CUDA_OK;
}

/* ---- changes ---- */

/* Numbers of CUgraphExecUpdateResult. */
enum update { UPDATE_OK = 0, UPDATE_ERROR = 1, UPDATE_TOPOLOGY = 2, UPDATE_KIND = 3 };

static bool same_needs(const struct nodes *a, const struct nodes *b)
{
	bool same = a->count == b->count;
	for (size_t i = 0; same && i < a->count; i++) {
		size_t k = 0;
		while (k < b->count && b->at[k]->index != a->at[i]->index)
			k++;
		same = k < b->count;
	}
	return same;
}

static CUgraphExecUpdateResultInfo compare_graphs(const struct graph *e, const struct graph *g)
{
	CUgraphExecUpdateResultInfo why = {UPDATE_OK, NULL, NULL};
	if (e->count != g->count)
		why.result = UPDATE_TOPOLOGY;
	for (size_t i = 0; !why.result && i < g->count; i++)
		if (e->nodes[i]->kind != g->nodes[i]->kind)
			why = (CUgraphExecUpdateResultInfo){UPDATE_KIND, g->nodes[i], NULL};
	for (size_t i = 0; !why.result && i < g->count; i++)
		if (!same_needs(&e->nodes[i]->needs, &g->nodes[i]->needs))
			why = (CUgraphExecUpdateResultInfo){UPDATE_TOPOLOGY, g->nodes[i], NULL};
	for (size_t i = 0; !why.result && i < g->count; i++)
		if (g->nodes[i]->child)
			why = compare_graphs(e->nodes[i]->child, g->nodes[i]->child);
	return why;
}

/* Keeps the numbers by which the program names the nodes, and which of them are disabled. */
static void reuse_nodes(struct graph *e, const struct graph *old)
{
	INVARIANT(e->count == old->count, "an update keeps the nodes of a graph");
	for (size_t i = 0; i < e->count; i++) {
		struct node *n = e->nodes[i], *before = old->nodes[i];
		n->graph = e;
		n->origin = before->origin;
		n->disabled = before->disabled;
		if (n->child)
			reuse_nodes(n->child, before->child);
	}
	e->flags = old->flags;
}

/* Gives the exec the node parameters of a graph with the same shape. On an error nothing
 * changes. */
int graph_update(void *exec, const void *graph, CUgraphExecUpdateResultInfo *info)
{
	struct graph *e = graph_check(exec, EXEC_MAGIC), *fresh = NULL;
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	if (!e || !g || !info)
		return INVALID_VALUE;
	*info = compare_graphs(e, g);
	if (!info->result && graph_copy(g, true, &fresh))
		info->result = UPDATE_ERROR;
	if (info->result)
		return GRAPH_UPDATE_FAILED;
	struct graph old = *e;
	*e = *fresh;
	*fresh = old;
	reuse_nodes(e, fresh);
	graph_free(fresh);
	return CUDA_OK;
}

int graph_update_plain(void *exec, const void *graph, void **failed, int *result)
{
	CUgraphExecUpdateResultInfo info;
	int error = failed && result ? graph_update(exec, graph, &info) : INVALID_VALUE;
	if (!error || error == GRAPH_UPDATE_FAILED) {
		*failed = info.errorNode;
		*result = info.result;
	}
	return error;
}

/* The exec's copy of a node of any kind. */
static struct node *any_copy_of(const void *exec, const void *node)
{
	struct graph *g = graph_check(exec, EXEC_MAGIC);
	const struct node *n = node;
	if (!g || !n)
		return NULL;
	if (n->index < g->count && g->nodes[n->index]->origin == n->number)
		return g->nodes[n->index];
	for (size_t i = 0; i < g->count; i++) /* earlier nodes were removed from the graph */
		if (g->nodes[i]->origin == n->number)
			return g->nodes[i];
	return NULL;
}

static struct node *copy_of(const void *exec, const void *node, enum node_kind kind)
{
	return node_of(any_copy_of(exec, node), kind);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	struct node *n = copy_of(hGraphExec, hNode, NODE_KERNEL);
	return n && nodeParams ? node_set_kernel(n, nodeParams->func, nodeParams) : INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
					   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	struct node *n = copy_of(hGraphExec, hNode, NODE_KERNEL);
	return n ? node_set_kernel(n, node_function(nodeParams), nodeParams) : INVALID_VALUE;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	(void)ctx;
	struct node *n = copy_of(hGraphExec, hNode, NODE_COPY);
	return n ? node_set_copy(n, copyParams) : INVALID_VALUE;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	(void)ctx;
	struct node *n = copy_of(hGraphExec, hNode, NODE_FILL);
	return n ? node_set_fill(n, memsetParams) : INVALID_VALUE;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				      const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n = copy_of(hGraphExec, hNode, NODE_HOST);
	return n ? node_set_host(n, nodeParams) : INVALID_VALUE;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    CUgraph childGraph)
{
	CUgraphExecUpdateResultInfo why;
	struct node *n = copy_of(hGraphExec, hNode, NODE_CHILD);
	return n && !graph_update(n->child, childGraph, &why) ? CUDA_OK : INVALID_VALUE;
}

int graph_exec_event_set(const void *exec, const void *node, enum node_kind kind, const void *event)
{
	struct node *n = copy_of(exec, node, kind);
	return n ? node_set_event(n, kind, event) : INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				  CUgraphNodeParams *nodeParams)
{
	if (nodeParams && nodeParams->type == NODE_CHILD && !nodeParams->graph.ownership)
		return cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode,
							  nodeParams->graph.graph);
	struct node *n = nodeParams ? copy_of(hGraphExec, hNode, nodeParams->type) : NULL;
	return n && n->kind != NODE_CHILD ? node_set(n, nodeParams) : INVALID_VALUE;
}

/* Only these kinds of nodes can be disabled. */
static struct node *find_switchable(const void *exec, const void *node)
{
	struct node *n = any_copy_of(exec, node);
	bool can = n && (n->kind == NODE_KERNEL || n->kind == NODE_GEMM || n->kind == NODE_COPY ||
			 n->kind == NODE_FILL);
	return can ? n : NULL;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
	struct node *n = find_switchable(hGraphExec, hNode);
	if (!n)
		return INVALID_VALUE;
	n->disabled = !isEnabled;
	return CUDA_OK;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
	const struct node *n = find_switchable(hGraphExec, hNode);
	if (!n || !isEnabled)
		return INVALID_VALUE;
	*isEnabled = !n->disabled;
	return CUDA_OK;
}

/* ---- launch ---- */

static int run_all(const struct graph *exec, const void *stream);

static int run_node(const struct node *n, const void *stream)
{
	struct launch l = n->launch;
	l.hints = &n->hints;
	struct copy copy = n->copy;
	int error = stream_number(stream, &l.stream);
	if (error || n->disabled)
		return error;
	copy.stream = l.stream;
	switch (n->kind) {
	case NODE_KERNEL: return enqueue_launch(&l);
	case NODE_COPY: /* unlike a copy outside of graphs, it reads pageable memory when it is
			 * due */
		if (memory_where(copy.src) == AT_PAGEABLE && !capturing(copy.stream))
			error = stream_before_reading(copy.stream);
		return error ? error : copy_slices(&copy, &n->slices);
	case NODE_FILL:
		return memory_fill((void *)n->fill.dst, n->fill.pitch, n->fill.value,
				   n->fill.elementSize, n->fill.width, n->fill.height, stream);
	case NODE_GEMM: return gemm_post(&n->gemm, stream);
	case NODE_HOST: return stream_host_function(stream, n->host.fn, n->host.userData);
	case NODE_CHILD: return run_all(n->child, stream);
	case NODE_RECORD: return event_record((void *)n->event, stream, 0);
	case NODE_WAIT: return stream_wait(stream, (void *)n->event, 0);
	case NODE_ALLOC:
	case NODE_FREE: graph_memory_launched(n); return CUDA_OK;
	default: return CUDA_OK;
	}
}

static int run_all(const struct graph *exec, const void *stream)
{
	int error = CUDA_OK;
	for (size_t i = 0; !error && i < exec->count; i++) {
		size_t at = exec->order[i];
		INVARIANT(at < exec->count && exec->nodes[at]->graph == exec,
			  "a launch issues the nodes of its graph");
		error = run_node(exec->nodes[at], stream);
	}
	return error;
}

static int gather_objects(const struct graph *exec, struct user_objects *set)
{
	int error = user_objects_share(set, &exec->objects);
	for (size_t i = 0; !error && i < exec->count; i++)
		if (exec->nodes[i]->child)
			error = gather_objects(exec->nodes[i]->child, set);
	return error;
}

static void launch_over(void *set)
{
	user_objects_drop(set);
	free(set);
}

/* Releases the references in the stream after the launch; in a capture, its graph keeps them
 * instead. */
static int release_after_launch(struct user_objects *set, const void *stream)
{
	int status;
	void *graph = NULL;
	int error = capture_info(stream, &status, NULL, &graph, NULL, NULL, NULL);
	if (error || graph) {
		error = error ? error : user_objects_share(&((struct graph *)graph)->objects, set);
		launch_over(set);
		return error;
	}
	error = stream_host_function(stream, launch_over, set);
	if (error)
		launch_over(set);
	return error;
}

static int retain_objects(const struct graph *exec, const void *stream)
{
	struct user_objects set = {NULL, 0};
	int error = gather_objects(exec, &set);
	struct user_objects *retained = !error && set.count ? malloc(sizeof *retained) : NULL;
	if (retained) {
		*retained = set;
		return release_after_launch(retained, stream);
	}
	error = error || !set.count ? error : OUT_OF_MEMORY;
	user_objects_drop(&set);
	return error;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	const struct graph *g = graph_check(hGraphExec, EXEC_MAGIC);
	int error = g ? CUDA_OK : INVALID_VALUE;
	if (!error && !(g->flags & AUTO_FREE))
		error = graph_memory_check(g);
	error = error ? error : run_all(g, hStream);
	return error ? error : retain_objects(g, hStream);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct graph *g = graph_check(hGraphExec, EXEC_MAGIC);
	if (!g)
		return INVALID_VALUE;
	graph_free(g);
	return CUDA_OK;
}
