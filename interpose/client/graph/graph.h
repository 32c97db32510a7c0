/* graph.h: graphs, their nodes and what captures make of them, for the files of this layer. */
#ifndef RANKFOLD_GRAPH_H
#define RANKFOLD_GRAPH_H

#include "api.h"
#include "enqueue.h"

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
	uint64_t origin; /* number of the node that it was copied from */
	struct graph *graph;
	struct nodes needs;
	bool disabled;        /* exec: skipped */
	struct launch launch; /* kernel; `packed` is owned */
	bool buffer;          /* its parameters were passed as one buffer */
	struct hints hints;   /* of a kernel */
	void **shown;         /* pointers to the parameters that a query returned; owned */
	CUDA_MEMCPY3D box;    /* copy: the description */
	struct copy copy;     /* copy: the same as addresses */
	struct slices slices; /* slices of the copy */
	CUDA_MEMSET_NODE_PARAMS fill;
	CUDA_HOST_NODE_PARAMS host;
	struct rf_gemm_call gemm;
	uint64_t event;
	struct graph *child;         /* owned; an exec's is an exec */
	struct graph_memory *memory; /* that it allocates or frees: a reference */
};

/* References to objects, with a count for each object. */
struct user_objects {
	struct reference *at;
	size_t count;
};

struct graph {
	uint32_t magic;
	bool owned; /* by a node */
	struct node **nodes;
	size_t count, capacity;
	size_t *order;            /* exec: indices of its nodes */
	unsigned long long flags; /* exec: flags of its instantiation */
	struct user_objects objects;
};

/* NULL: no graph of that kind. */
static inline struct graph *graph_check(const void *handle, uint32_t magic)
{
	struct graph *g = (struct graph *)handle;
	return g && g->magic == magic ? g : NULL;
}
/* NULL: no node of that kind. */
static inline struct node *node_of(const void *node, enum node_kind kind)
{
	struct node *n = (struct node *)node;
	return n && n->kind == kind ? n : NULL;
}

/* user_object.c */
void user_objects_drop(struct user_objects *);
int user_objects_share(struct user_objects *to, const struct user_objects *from);

/* graph.c */
struct graph *graph_new(void);
void graph_free(struct graph *);
int graph_copy(const struct graph *, bool exec, struct graph **out); /* with the same indices */
/* Computes an order in which every node comes after those that it needs; of several candidates, the
 * one created first comes first. Returns the number of nodes in it: fewer than all if there is a
 * cycle. */
size_t graph_order(const struct graph *, bool *done, size_t *order);
bool nodes_contain(const struct nodes *, const struct node *);
bool nodes_add(struct nodes *, struct node *);
bool nodes_join(struct nodes *, const struct nodes *other);
bool nodes_remove(struct nodes *, const struct node *);
void nodes_clear(struct nodes *);
bool nodes_in(const struct graph *, const struct nodes *); /* true if all belong to the graph */
/* True if each wanted node is one of `from`, or needed by one of them. */
bool nodes_reach(const struct graph *, const struct nodes *from, const struct nodes *wanted);
/* Takes ownership of the node, whatever it returns. */
int graph_append(struct graph *, struct node *, const struct nodes *needs);
int graph_add(struct graph *, struct node *); /* without needs; takes the node if it returns 0 */
struct node *node_new(enum node_kind);
void node_free(struct node *);
/* Copies a kernel's parameters into memory that the launch then owns. NULL: zeros. */
int node_copy_packed(struct launch *, const void *packed, size_t bytes);
void node_drop_parameters(struct node *);

/* node.c */
/* Set what a node does; on an error it stays as it was. */
int node_set(struct node *, const CUgraphNodeParams *);
int node_set_kernel(struct node *, void *function, const CUDA_KERNEL_NODE_PARAMS *);
int node_set_copy(struct node *, const CUDA_MEMCPY3D *);
int node_set_fill(struct node *, const CUDA_MEMSET_NODE_PARAMS *);
int node_set_host(struct node *, const CUDA_HOST_NODE_PARAMS *);
int node_set_event(struct node *, enum node_kind, const void *event);
int node_set_child(struct node *, const void *graph, int ownership);
void *node_function(const CUDA_KERNEL_NODE_PARAMS *); /* from either of its two fields */
int node_params_check(const void *params, const size_t used[NODE_KINDS]);
/* Create the nodes of captured work; NULL: out of memory. */
struct node *node_launch(const struct launch *, const void *packed, size_t bytes);
struct node *node_copy(const struct copy *);
struct node *node_fill(const CUDA_MEMSET_NODE_PARAMS *);
struct node *node_host(CUhostFn function, void *data);
struct node *node_gemm(const struct rf_gemm_call *);
struct node *node_event(enum node_kind, uint64_t event);

/* capture.c */
/* The node becomes the stream's last work. Takes ownership of it, whatever it returns. */
int capture_add(uint64_t stream, struct node *);
int capture_add_numbered(uint64_t stream, struct node *, uint64_t *number);
/* Whether a node may be added now; otherwise the capture is invalidated, as by capture_add. */
int capture_takes(uint64_t stream);
/* True if the stream's next node comes after the node of this number, in the same capture. */
bool capture_follows(uint64_t stream, uint64_t node);
/* True: the stream or event is captured. Then the event stands for nodes, or the stream waits for
 * them, or *error is set. */
bool capture_record(struct handle *event, uint64_t stream, int *error);
bool capture_wait(uint64_t stream, const struct handle *event, int *error);
/* True while a capture adds to the graph: as in CUDA, nothing of it may be removed then. */
bool capture_into(const struct graph *);

/* graph_memory.c */
struct graph_memory *graph_memory_keep(struct graph_memory *); /* NULL: none, in both functions */
void graph_memory_drop(struct graph_memory *);
/* Whether the exec may be launched: the program has freed what the last launch has allocated. */
int graph_memory_check(const struct graph *exec);
void graph_memory_launched(const struct node *); /* NODE_ALLOC or NODE_FREE */

#endif
