/* graph.c: graphs and their nodes as objects of the client: creates, orders, copies and frees them.
 *
 * Launching a graph issues its nodes one after the other into the stream, in an order that respects
 * their dependencies: every such order is a legal execution. So the server knows nothing of graphs,
 * and a graph moves with the process. An instantiated graph has its own nodes; each node has a
 * number, and a copy records the number of its original. As in CUDA, one graph is used by one
 * thread at a time. Nothing blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "invariant.h"

/* ---- sets of nodes ---- */

bool nodes_contain(const struct nodes *set, const struct node *n)
{
	for (size_t i = 0; i < set->count; i++)
		if (set->at[i] == n)
			return true;
	return false;
}

bool nodes_add(struct nodes *set, struct node *n)
{
	if (nodes_contain(set, n))
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

bool nodes_remove(struct nodes *set, const struct node *n)
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
	for (size_t i = 0; seen && i < from->count; i++) {
		INVARIANT(from->at[i]->graph == g && from->at[i]->index < g->count,
			  "a captured stream ends in nodes of the capture's graph");
		seen[from->at[i]->index] = true;
	}
	while (more) { /* once if all nodes were created after those that they need */
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

/* ---- nodes ---- */

struct node *node_new(enum node_kind kind)
{
	struct node *n = calloc(1, sizeof *n);
	if (n) {
		n->kind = kind;
		n->hints = usual_hints;
	}
	return n;
}

int node_copy_packed(struct launch *l, const void *packed, size_t bytes)
{
	uint8_t *packed_copy = calloc(1, bytes + 1);
	if (!packed_copy)
		return OUT_OF_MEMORY;
	if (packed)
		memcpy(packed_copy, packed, bytes);
	l->args = NULL;
	l->packed = packed_copy;
	l->packed_bytes = bytes;
	return CUDA_OK;
}

void node_drop_parameters(struct node *n)
{
	free((void *)n->launch.packed);
	free(n->shown);
	n->launch.packed = NULL;
	n->shown = NULL;
}

void node_free(struct node *n)
{
	if (!n)
		return;
	node_drop_parameters(n);
	nodes_clear(&n->needs);
	graph_free(n->child);
	graph_memory_drop(n->memory);
	free(n);
}

/* ---- graphs ---- */

struct graph *graph_new(void)
{
	struct graph *g = calloc(1, sizeof *g);
	if (g)
		g->magic = GRAPH_MAGIC;
	return g;
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

int graph_add(struct graph *g, struct node *n)
{
	if (g->count == g->capacity) {
		size_t capacity = g->capacity ? g->capacity * 2 : 16;
		struct node **more = realloc(g->nodes, capacity * sizeof *more);
		if (!more)
			return OUT_OF_MEMORY;
		g->nodes = more;
		g->capacity = capacity;
	}
	n->index = g->count;
	n->graph = g;
	n->number = handle_number();
	g->nodes[g->count++] = n;
	return CUDA_OK;
}

/* Takes ownership of the node, whatever it returns. */
int graph_append(struct graph *g, struct node *n, const struct nodes *needs)
{
	int error = g && n && nodes_join(&n->needs, needs) ? graph_add(g, n) : OUT_OF_MEMORY;
	if (error)
		node_free(n);
	return error;
}

size_t graph_order(const struct graph *g, bool *done, size_t *order)
{
	size_t have = 0, before = SIZE_MAX;
	while (have < g->count && have != before) {
		before = have;
		for (size_t i = 0; i < g->count; i++) {
			const struct nodes *needs = &g->nodes[i]->needs;
			size_t n_done = 0;
			while (n_done < needs->count && done[needs->at[n_done]->index])
				n_done++;
			if (!done[i] && n_done == needs->count)
				done[order[have++] = i] = true;
		}
	}
	return have;
}

static int put_in_order(struct graph *exec)
{
	bool *done = calloc(exec->count + 1, sizeof *done);
	exec->order = calloc(exec->count + 1, sizeof *exec->order);
	int error = done && exec->order ? CUDA_OK : OUT_OF_MEMORY;
	if (!error && graph_order(exec, done, exec->order) < exec->count)
		error = INVALID_VALUE;
	free(done);
	return error;
}

/* ---- copies ---- */

static int node_clone(const struct node *from, bool exec, struct node **out)
{
	struct node *n = malloc(sizeof *n);
	if (!n)
		return OUT_OF_MEMORY;
	*n = *from;
	n->origin = from->number;
	n->needs = (struct nodes){NULL, 0};
	n->launch.packed = NULL;
	n->shown = NULL;
	n->child = NULL;
	graph_memory_keep(n->memory);
	int error = CUDA_OK;
	if (from->launch.packed)
		error = node_copy_packed(&n->launch, from->launch.packed,
					 from->launch.packed_bytes);
	if (!error && from->child)
		error = graph_copy(from->child, exec, &n->child);
	*out = n;
	return error;
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

/* Checks all nodes and links, before they are copied for a launch. */
static void check_whole(const struct graph *g)
{
	INVARIANT(g->count <= g->capacity, "a graph has space for its nodes");
	for (size_t i = 0; i < g->count; i++) {
		const struct node *n = g->nodes[i];
		INVARIANT(n->index == i && n->graph == g, "a node has its place in its graph");
		for (size_t k = 0; k < n->needs.count; k++) {
			const struct node *need = n->needs.at[k];
			INVARIANT(need->index < g->count && g->nodes[need->index] == need,
				  "a node needs only nodes of its graph");
		}
	}
}

int graph_copy(const struct graph *g, bool exec, struct graph **out)
{
	check_whole(g);
	struct graph *copy = calloc(1, sizeof *copy);
	int error = copy ? CUDA_OK : OUT_OF_MEMORY;
	for (size_t i = 0; !error && i < g->count; i++) {
		struct node *n = NULL;
		error = node_clone(g->nodes[i], exec, &n);
		if (!error)
			error = graph_add(copy, n);
		if (error)
			node_free(n);
	}
	if (!error)
		error = clone_needs(g, copy);
	if (!error)
		error = user_objects_share(&copy->objects, &g->objects);
	if (!error && exec)
		error = put_in_order(copy);
	if (error) {
		graph_free(copy);
		return error;
	}
	copy->magic = exec ? EXEC_MAGIC : GRAPH_MAGIC;
	copy->owned = g->owned;
	*out = copy;
	return CUDA_OK;
}
