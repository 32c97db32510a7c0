/* graph.h: what graphs (graph.c), captures (capture.c) and the runtime's forms of them share. */
#ifndef RANKFOLD_GRAPH_H
#define RANKFOLD_GRAPH_H

#include "bodies.h"

enum node_kind { /* numbers of CUgraphNodeType */
	NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_HOST = 3, NODE_CHILD = 4, NODE_EMPTY = 5,
	NODE_WAIT = 6, NODE_RECORD = 7,
	NODE_GEMM = 1000, /* a kernel, to the program */
};
struct node;
struct graph;
struct nodes { struct node **at; size_t count; };

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
