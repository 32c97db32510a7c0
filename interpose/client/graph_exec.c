/* graph_exec.c: graphs that are instantiated: made, changed, launched. A launch issues the nodes one
 * after the other into the stream.
 *
 * An exec is a graph whose nodes are copies of their own, with an order. No lock, nothing that
 * blocks of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static int run_all(const struct graph *exec, const void *stream);

static int run(const struct node *n, const void *stream)
{
	struct launch l = n->launch;
	struct copy copy = n->copy;
	int error = stream_number(stream, &l.stream);
	if (error)
		return error;
	copy.stream = l.stream;
	switch (n->kind) {
	case NODE_KERNEL:
		return launch(&l);
	case NODE_COPY: /* unlike a copy outside of graphs it reads pageable memory when it is due */
		if (memory_where(copy.src) == AT_PAGEABLE && !capturing(copy.stream))
			error = stream_before_reading(copy.stream);
		return error ? error : copy_slices(&copy, &n->slices);
	case NODE_FILL:
		return memory_fill((void *)n->fill.dst, n->fill.pitch, n->fill.value,
				   n->fill.elementSize, n->fill.width, n->fill.height, stream);
	case NODE_GEMM:
		return gemm_post(&n->gemm, stream);
	case NODE_HOST:
		return stream_host_function(stream, n->host.fn, n->host.userData);
	case NODE_CHILD:
		return run_all(n->child, stream);
	case NODE_RECORD:
		return event_record((void *)n->event, stream, 0);
	case NODE_WAIT:
		return stream_wait(stream, (void *)n->event, 0);
	default:
		return CUDA_OK;
	}
}

static int run_all(const struct graph *exec, const void *stream)
{
	int error = CUDA_OK;
	for (size_t i = 0; !error && i < exec->count; i++)
		error = run(exec->nodes[exec->order[i]], stream);
	return error;
}

/* An order in which every node comes after what it needs; of several that could be next, the one
 * that was made first. */
static int put_in_order(const struct graph *g, size_t *order)
{
	bool *done = calloc(g->count + 1, sizeof *done);
	size_t have = 0, before = SIZE_MAX;
	while (done && have < g->count && have != before) {
		before = have;
		for (size_t i = 0; i < g->count; i++) {
			const struct nodes *needs = &g->nodes[i]->needs;
			size_t met = 0;
			while (met < needs->count && done[needs->at[met]->index])
				met++;
			if (!done[i] && met == needs->count)
				done[order[have++] = i] = true;
		}
	}
	free(done);
	return !done ? OUT_OF_MEMORY : have == g->count ? CUDA_OK : INVALID_VALUE; /* a circle */
}

int graph_instantiate(void **out, const void *graph)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct graph *exec = NULL;
	if (!out || !g)
		return INVALID_VALUE;
	int error = graph_copy(g, &exec);
	if (error)
		return error;
	exec->magic = EXEC_MAGIC;
	exec->order = calloc(g->count + 1, sizeof *exec->order);
	error = exec->order ? put_in_order(g, exec->order) : OUT_OF_MEMORY;
	if (error)
		graph_free(exec);
	else
		*out = exec;
	return error;
}

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

/* Give the exec what the nodes of a graph of the same shape do. Nothing changes otherwise. */
int graph_update(void *exec, const void *graph, CUgraphExecUpdateResultInfo *info)
{
	struct graph *e = graph_check(exec, EXEC_MAGIC), *fresh = NULL;
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	CUgraphExecUpdateResultInfo why = {UPDATE_OK, NULL, NULL};
	if (!e || !g || !info)
		return INVALID_VALUE;
	if (e->count != g->count)
		why.result = UPDATE_TOPOLOGY;
	for (size_t i = 0; !why.result && i < g->count; i++)
		if (e->nodes[i]->kind != g->nodes[i]->kind)
			why = (CUgraphExecUpdateResultInfo){UPDATE_KIND, g->nodes[i], NULL};
	for (size_t i = 0; !why.result && i < g->count; i++)
		if (!same_needs(&e->nodes[i]->needs, &g->nodes[i]->needs))
			why = (CUgraphExecUpdateResultInfo){UPDATE_TOPOLOGY, g->nodes[i], NULL};
	if (!why.result && graph_instantiate((void **)&fresh, graph))
		why.result = UPDATE_ERROR;
	if (!why.result) {
		struct graph old = *e;
		*e = *fresh;
		*fresh = old;
		for (size_t i = 0; i < e->count; i++)
			e->nodes[i]->graph = e;
	}
	graph_free(fresh);
	*info = why;
	return why.result ? GRAPH_UPDATE_FAILED : CUDA_OK;
}

/* The exec's copy of a node. */
static struct node *copy_of(const void *exec, const void *node, enum node_kind kind)
{
	struct graph *g = graph_check(exec, EXEC_MAGIC);
	const struct node *n = node;
	if (!g || !n || n->index >= g->count || n->kind != kind || g->nodes[n->index]->kind != kind)
		return NULL;
	return g->nodes[n->index];
}

/* Replace what the exec's node does; it stays as it was if the new one is wrong. */
static int replace_kernel(const void *exec, const void *node, void *function,
			  const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct node *n = copy_of(exec, node, NODE_KERNEL);
	if (!n || !p)
		return INVALID_VALUE;
	struct node fresh = *n;
	fresh.launch.packed = NULL;
	int error = node_set_kernel(&fresh, function, p);
	free((void *)(error ? fresh : *n).launch.packed);
	if (!error)
		*n = fresh;
	return error;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return replace_kernel(hGraphExec, hNode, nodeParams ? nodeParams->func : NULL, nodeParams);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
					   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return replace_kernel(hGraphExec, hNode, node_function(nodeParams), nodeParams);
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
	if (!n || !nodeParams || !nodeParams->fn)
		return INVALID_VALUE;
	n->host = *nodeParams;
	return CUDA_OK;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	const struct graph *g = graph_check(hGraphExec, EXEC_MAGIC);
	return g ? run_all(g, hStream) : INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct graph *g = graph_check(hGraphExec, EXEC_MAGIC);
	if (!g)
		return INVALID_VALUE;
	graph_free(g);
	return CUDA_OK;
}
