/* graph_query.c: queries of a graph: nodes, edges, parameters, a drawing. Queries change only the
 * list of a kernel node's parameters, which the node owns. No lock.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

/* ---- nodes and edges ---- */

static int copy_nodes_out(const struct nodes *set, CUgraphNode *out, CUgraphEdgeData *data,
			  size_t *count)
{
	if (!count || (data && !out))
		return INVALID_VALUE;
	if (data)
		memset(data, 0, *count * sizeof *data);
	for (size_t i = 0; out && i < *count; i++)
		out[i] = i < set->count ? set->at[i] : NULL;
	if (!out || *count > set->count)
		*count = set->count;
	return CUDA_OK;
}

int node_dependencies(const void *node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
	const struct node *n = node;
	return n ? copy_nodes_out(&n->needs, out, data, count) : INVALID_VALUE;
}

static bool depends_on(const struct node *n, const struct node *wanted)
{
	size_t i = 0;
	while (i < n->needs.count && n->needs.at[i] != wanted)
		i++;
	return i < n->needs.count;
}

int node_dependents(const void *node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
	struct nodes found = {NULL, 0};
	const struct node *n = node;
	int error = n ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < n->graph->count; i++)
		if (depends_on(n->graph->nodes[i], n) && !nodes_add(&found, n->graph->nodes[i]))
			error = OUT_OF_MEMORY;
	if (!error)
		error = copy_nodes_out(&found, out, data, count);
	nodes_clear(&found);
	return error;
}

int graph_edges_get(const void *graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
		    size_t *count)
{
	const struct graph *g = graph_check(graph, GRAPH_MAGIC);
	size_t have = 0;
	if (!g || !count || !from != !to || (data && !from))
		return INVALID_VALUE;
	for (size_t i = 0; from && i < *count; i++)
		from[i] = to[i] = NULL;
	if (data)
		memset(data, 0, *count * sizeof *data);
	for (size_t i = 0; i < g->count; i++)
		for (size_t k = 0; k < g->nodes[i]->needs.count; k++, have++)
			if (from && have < *count) {
				from[have] = g->nodes[i]->needs.at[k];
				to[have] = g->nodes[i];
			}
	if (!from || *count > have)
		*count = have;
	return CUDA_OK;
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
		error = copy_nodes_out(&roots, rootNodes, NULL, numRootNodes);
	nodes_clear(&roots);
	return error;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	const struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	return g ? copy_nodes_out(&(struct nodes){g->nodes, g->count}, nodes, NULL, numNodes)
		 : INVALID_VALUE;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
				CUgraph hClonedGraph)
{
	const struct graph *g = graph_check(hClonedGraph, GRAPH_MAGIC);
	const struct node *n = hOriginalNode;
	if (!phNode || !n || !g)
		return INVALID_VALUE;
	for (size_t i = 0; i < g->count; i++)
		if (g->nodes[i]->origin == n->number) {
			*phNode = g->nodes[i];
			return CUDA_OK;
		}
	return INVALID_VALUE;
}

/* ---- parameters ---- */

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	if (!hNode || !type)
		return INVALID_VALUE;
	enum node_kind kind = ((const struct node *)hNode)->kind;
	*type = kind == NODE_GEMM ? NODE_KERNEL : (int)kind;
	return CUDA_OK;
}

/* Lists the parameters in the form in which they were passed; the list belongs to the node until it
 * gets other parameters. */
static int list_params(struct node *n)
{
	const struct launch *l = &n->launch;
	const struct function *f = l->function;
	if (n->shown)
		return CUDA_OK;
	n->shown = calloc(n->buffer ? 5 : f->info.param_count + 1, sizeof *n->shown);
	if (!n->shown)
		return OUT_OF_MEMORY;
	for (uint32_t i = 0; !n->buffer && i < f->info.param_count; i++)
		n->shown[i] = (uint8_t *)l->packed + f->params[i].offset;
	if (n->buffer) {
		void *list[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)l->packed,
				 CU_LAUNCH_PARAM_BUFFER_SIZE, &n->launch.packed_bytes,
				 CU_LAUNCH_PARAM_END};
		memcpy(n->shown, list, sizeof list);
	}
	return CUDA_OK;
}

int node_kernel(const void *node, CUDA_KERNEL_NODE_PARAMS *p, size_t bytes)
{
	struct node *n = (struct node *)node;
	if (n && p && n->kind == NODE_GEMM) {
		LOG_ONCE(
			"the kernel of a captured matrix product has no parameters under rankfold");
		return NOT_SUPPORTED;
	}
	int error = p && node_of(n, NODE_KERNEL) ? list_params(n) : INVALID_VALUE;
	if (error)
		return error;
	const struct launch *l = &n->launch;
	CUDA_KERNEL_NODE_PARAMS all = {.func = l->function,
				       .kern = l->function, /* they are one thing */
				       .gridDimX = l->grid[0],
				       .gridDimY = l->grid[1],
				       .gridDimZ = l->grid[2],
				       .blockDimX = l->block[0],
				       .blockDimY = l->block[1],
				       .blockDimZ = l->block[2],
				       .sharedMemBytes = (unsigned)l->shared_bytes,
				       .kernelParams = n->buffer ? NULL : n->shown,
				       .extra = n->buffer ? n->shown : NULL};
	memcpy(p, &all, bytes);
	return CUDA_OK;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
	const struct node *n = node_of(hNode, NODE_COPY);
	if (!n || !nodeParams)
		return INVALID_VALUE;
	*nodeParams = n->box;
	return CUDA_OK;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	const struct node *n = node_of(hNode, NODE_FILL);
	if (!n || !nodeParams)
		return INVALID_VALUE;
	*nodeParams = n->fill;
	return CUDA_OK;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
	const struct node *n = node_of(hNode, NODE_HOST);
	if (!n || !nodeParams)
		return INVALID_VALUE;
	*nodeParams = n->host;
	return CUDA_OK;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	const struct node *n = node_of(hNode, NODE_CHILD);
	if (!n || !phGraph)
		return INVALID_VALUE;
	*phGraph = n->child;
	return CUDA_OK;
}

int graph_event_get(const void *node, enum node_kind kind, void **event)
{
	const struct node *n = node_of(node, kind);
	if (!n || !event)
		return INVALID_VALUE;
	*event = (void *)n->event;
	return CUDA_OK;
}

/* ---- a drawing, in the language of Graphviz ---- */

enum dot_flags {
	DOT_ALL = 1 << 0,
	DOT_KERNEL = 1 << 2,
	DOT_COPY = 1 << 3,
	DOT_FILL = 1 << 4,
	DOT_HOST = 1 << 5,
	DOT_EVENT = 1 << 6,
	DOT_HANDLES = 1 << 10,
};

static const char *copy_direction(const CUDA_MEMCPY3D *d)
{
	static const char *const names[] = {"", "H", "D", "A", "U"}; /* enum cu_memory_type */
	static _Thread_local char text[8];
	snprintf(text, sizeof text, "%sto%s", names[d->srcMemoryType % 5],
		 names[d->dstMemoryType % 5]);
	return text;
}

/* Writes the text in a node's box, line by line. */
static void dot_label(FILE *out, const struct node *n, unsigned flags)
{
	static const char *const names[] = {"KERNEL",
					    "MEMCPY",
					    "MEMSET",
					    "HOST",
					    "GRAPH",
					    "EMPTY",
					    "EVENT_WAIT",
					    "EVENT_RECORD",
					    [NODE_ALLOC] = "MEM_ALLOC",
					    [NODE_FREE] = "MEM_FREE"};
	const struct launch *l = &n->launch;
	fprintf(out, "%zu\\n%s", n->index, n->kind == NODE_GEMM ? "KERNEL\\ngemm" : names[n->kind]);
	if (flags & DOT_HANDLES)
		fprintf(out, "\\nnode handle: %p", (const void *)n);
	if (n->kind == NODE_KERNEL)
		fprintf(out, "\\n%s", l->function->name);
	if (n->kind == NODE_KERNEL && flags & DOT_HANDLES)
		fprintf(out, "\\nfunction handle: %p", (void *)l->function);
	if (n->kind == NODE_KERNEL && flags & DOT_KERNEL)
		fprintf(out, "\\ngrid: {%u,%u,%u}\\nblock: {%u,%u,%u}\\nshared: %llu", l->grid[0],
			l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
			(unsigned long long)l->shared_bytes);
	if (n->kind == NODE_COPY)
		fprintf(out, "\\n%s", copy_direction(&n->box));
	if (n->kind == NODE_COPY && flags & DOT_COPY)
		fprintf(out, "\\nsrc: %p\\ndst: %p\\nwidth: %zu\\nheight: %zu\\ndepth: %zu",
			n->copy.src, n->copy.dst, n->box.WidthInBytes, n->box.Height, n->box.Depth);
	if (n->kind == NODE_FILL && flags & DOT_FILL)
		fprintf(out, "\\ndst: %p\\nvalue: %u\\nelement: %u\\nwidth: %zu\\nheight: %zu",
			(void *)n->fill.dst, n->fill.value, n->fill.elementSize, n->fill.width,
			n->fill.height);
	if (n->kind == NODE_HOST && flags & DOT_HOST)
		fprintf(out, "\\nfn: %p\\nuserData: %p", (void *)(uintptr_t)n->host.fn,
			n->host.userData);
	if ((n->kind == NODE_WAIT || n->kind == NODE_RECORD) && flags & DOT_EVENT)
		fprintf(out, "\\nevent: %p", (void *)n->event);
}

/* Draws a graph and its child graphs, numbered from *next. */
static void draw_graph(FILE *out, const struct graph *g, unsigned flags, int *next)
{
	int me = (*next)++;
	fprintf(out, "subgraph cluster_%d {\nlabel=\"graph_%d\" graph[style=\"dashed\"];\n", me,
		me);
	for (size_t i = 0; i < g->count; i++) {
		fprintf(out, "\"graph_%d_node_%zu\"[style=\"solid\" shape=\"rectangle\" label=\"",
			me, i);
		dot_label(out, g->nodes[i], flags);
		fprintf(out, "\"];\n");
	}
	for (size_t i = 0; i < g->count; i++)
		for (size_t k = 0; k < g->nodes[i]->needs.count; k++)
			fprintf(out, "\"graph_%d_node_%zu\" -> \"graph_%d_node_%zu\";\n", me,
				g->nodes[i]->needs.at[k]->index, me, i);
	fprintf(out, "}\n");
	for (size_t i = 0; i < g->count; i++)
		if (g->nodes[i]->child)
			draw_graph(out, g->nodes[i]->child, flags, next);
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	const struct graph *g = graph_check(hGraph, GRAPH_MAGIC);
	int saved_errno = errno, next = 1;
	if (!g || !path)
		return INVALID_VALUE;
	FILE *out = fopen(path, "we");
	if (out) {
		fprintf(out, "digraph dot {\n");
		draw_graph(out, g, flags & DOT_ALL ? ~0u : flags, &next);
		fprintf(out, "}\n");
	}
	bool written = out && !ferror(out);
	if (out && fclose(out))
		written = false;
	errno = saved_errno;
	return written ? CUDA_OK : OPERATING_SYSTEM;
}
