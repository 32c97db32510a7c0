/* graph.h: what graphs (graph.c), their nodes (graph_node.c, attributes.c), execs (graph_exec.c),
 * questions about them (graph_query.c), what they keep for programs (user_object.c), captures
 * (capture.c) and the runtime's forms share. */
#ifndef RANKFOLD_GRAPH_H
#define RANKFOLD_GRAPH_H

#include "bodies.h"

#define GRAPH_MAGIC 0x52464752u
#define EXEC_MAGIC 0x52464558u

struct nodes {
	struct node **at;
	size_t count;
};
struct node {
	enum node_kind kind;
	size_t index; /* in its graph, in order of creation */
	uint64_t number;
	uint64_t origin; /* number of the one that it was copied from */
	struct graph *graph;
	struct nodes needs;
	bool disabled;        /* of an exec: left out */
	struct launch launch; /* kernel; `packed` is owned */
	bool buffer;          /* its parameters came as one */
	struct hints hints;   /* of a kernel */
	void **shown;         /* what was told of them; owned */
	CUDA_MEMCPY3D box;    /* a copy, as it was described */
	struct copy copy;     /* the same */
	struct slices slices; /* of the copy */
	CUDA_MEMSET_NODE_PARAMS fill;
	CUDA_HOST_NODE_PARAMS host;
	struct rf_gemm_aux gemm;
	uint64_t event;
	struct graph *child; /* owned; an exec's is an exec */
};

/* What holds references, and how many to each object. */
struct user_objects {
	struct reference *at;
	size_t count;
};

struct graph {
	uint32_t magic;
	bool owned; /* by a node */
	struct node **nodes;
	size_t count, room;
	size_t *order;            /* of an exec: indices of its nodes */
	unsigned long long flags; /* of an exec: those of its instantiation */
	struct user_objects objects;
};

/* graph.c */
struct graph *graph_check(const void *handle, uint32_t magic); /* NULL: it is none */
void graph_free(struct graph *);
int graph_copy(const struct graph *, bool exec, struct graph **out); /* nodes at the same indices */
bool nodes_add(struct nodes *, struct node *);
bool nodes_join(struct nodes *, const struct nodes *other);
void nodes_clear(struct nodes *);
bool nodes_in(const struct graph *, const struct nodes *); /* are all of them the graph's? */
/* Is each wanted node one of `from`, or needed by one of them? */
bool nodes_reach(const struct graph *, const struct nodes *from, const struct nodes *wanted);
/* Takes the node, whatever it returns. */
int graph_append(struct graph *, struct node *, const struct nodes *needs);

/* graph_node.c */
struct node *node_new(enum node_kind);
/* What there is of it is the caller's, with an error too. */
int node_clone(const struct node *, bool exec, struct node **out);
void node_free(struct node *);
struct node *node_of(const void *node, enum node_kind); /* NULL: it is not of that kind */
/* Say what a node does; it stays as it was if that is wrong. */
int node_set(struct node *, const CUgraphNodeParams *);
int node_set_kernel(struct node *, void *function, const CUDA_KERNEL_NODE_PARAMS *);
int node_set_copy(struct node *, const CUDA_MEMCPY3D *);
int node_set_fill(struct node *, const CUDA_MEMSET_NODE_PARAMS *);
int node_set_host(struct node *, const CUDA_HOST_NODE_PARAMS *);
int node_set_event(struct node *, enum node_kind, const void *event);
int node_set_child(struct node *, const void *graph, int ownership);
void *node_function(const CUDA_KERNEL_NODE_PARAMS *); /* whichever of its forms is given */
int node_params_check(const void *params, const size_t used[NODE_KINDS]);
struct node *node_launch(const struct launch *, const void *packed, size_t bytes);
struct node *node_copy(const struct copy *);
struct node *node_fill(const CUDA_MEMSET_NODE_PARAMS *);
struct node *node_host(CUhostFn function, void *data);
struct node *node_gemm(const struct rf_gemm_aux *);
struct node *node_event(enum node_kind, uint64_t event);

/* attributes.c */
void node_take_hints(struct node *, const struct launch *); /* of the launch that it was */

/* graph_exec.c */
int graph_order(struct graph *);

/* graph_query.c */
CUDA_MEMCPY3D description_of_copy(const struct copy *);

/* user_object.c */
void user_objects_drop(struct user_objects *);
/* A launch into the stream holds them until it is over. */
int user_objects_hold(const struct graph *exec, const void *stream);
int user_objects_share(struct user_objects *to, const struct user_objects *from);

#endif
