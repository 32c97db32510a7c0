/* graph.h: what graphs (graph.c), captures (capture.c) and the runtime's forms of them share. */
#ifndef RANKFOLD_GRAPH_H
#define RANKFOLD_GRAPH_H

#include "bodies.h"

#define GRAPH_MAGIC 0x52464752u
#define EXEC_MAGIC 0x52464558u

enum node_kind { /* numbers of CUgraphNodeType */
	NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_HOST = 3, NODE_CHILD = 4, NODE_EMPTY = 5,
	NODE_WAIT = 6, NODE_RECORD = 7,
	NODE_GEMM = 1000, /* a kernel, to the program */
};
struct nodes { struct node **at; size_t count; };
struct node {
	enum node_kind kind;
	size_t index;          /* in its graph, in order of creation */
	const struct graph *graph;
	struct nodes needs;
	struct launch launch;  /* kernel; `packed` is owned */
	struct copy copy;
	struct slices slices;  /* of the copy */
	CUDA_MEMSET_NODE_PARAMS fill;
	CUDA_HOST_NODE_PARAMS host;
	struct rf_gemm gemm;
	uint64_t event;
	struct graph *child;   /* owned, an exec */
};

struct graph {
	uint32_t magic;
	struct node **nodes;
	size_t count, room;
	size_t *order;         /* of an exec: indices of its nodes */
};

/* graph.c */
struct graph *graph_check(const void *handle, uint32_t magic); /* NULL: it is none */
void graph_free(struct graph *);
int graph_copy(const struct graph *, struct graph **out); /* all nodes with the same indices */
/* Fill in what a node does. */
void *node_function(const CUDA_KERNEL_NODE_PARAMS *); /* whichever of its forms is given */
int node_set_kernel(struct node *, void *function, const CUDA_KERNEL_NODE_PARAMS *);
int node_set_copy(struct node *, const CUDA_MEMCPY3D *);
int node_set_fill(struct node *, const CUDA_MEMSET_NODE_PARAMS *);

bool nodes_add(struct nodes *, struct node *);
bool nodes_join(struct nodes *, const struct nodes *other);
void nodes_clear(struct nodes *);
bool nodes_in(const struct graph *, const struct nodes *); /* are all of them the graph's? */
/* Is each wanted node one of `from`, or needed by one of them? */
bool nodes_reach(const struct graph *, const struct nodes *from, const struct nodes *wanted);

struct node *node_launch(const struct launch *, const void *packed, size_t bytes);
struct node *node_copy(const struct copy *);
struct node *node_fill(const CUDA_MEMSET_NODE_PARAMS *);
struct node *node_host(CUhostFn function, void *data);
struct node *node_gemm(const struct rf_gemm *);
struct node *node_event(enum node_kind, uint64_t event);
/* Takes the node, whatever it returns. */
int graph_append(struct graph *, struct node *, const struct nodes *needs);

#endif
