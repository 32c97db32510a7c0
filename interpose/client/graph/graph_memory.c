/* graph_memory.c: memory that a capture allocates and frees.
 *
 * The memory is taken from the heap when the call is captured, so its address holds for every
 * launch; the nodes only stand for the order. An allocation that no node frees belongs to the
 * program until it frees it, even when its graph is gone; other memory returns to the heap when the
 * last graph with a node of it is freed. A capture uses memory again that was freed before on the
 * same path.
 *
 * Lock: GRAPH_LOCK around the list; nothing is awaited and no other lock taken under it.
 */
#include <stdlib.h>
#include <string.h>

#include "graph_memory.h"

enum { CANDIDATES = 4 };

/* Under GRAPH_LOCK. */
static struct graph_memory *memory_at(const void *address)
{
	struct graph_memory *m = graph_memories;
	while (m && m->address != (uint64_t)address)
		m = m->next;
	return m;
}

/* ---- captured calls ---- */

static struct graph_memory *memory_new(uint64_t bytes)
{
	struct graph_memory *m = calloc(1, sizeof *m);
	if (!m || memory_alloc_for(0, bytes, &m->address)) {
		free(m);
		return NULL;
	}
	m->bytes = bytes;
	m->references = 1;
	lock(GRAPH_LOCK);
	m->next = graph_memories;
	graph_memories = m;
	graph_memory_used += bytes;
	if (graph_memory_used > graph_memory_most_used)
		graph_memory_most_used = graph_memory_used;
	unlock(GRAPH_LOCK);
	return m;
}

/* Memory of that size that a node before the stream's next one frees; NULL: none. */
static struct graph_memory *memory_again(uint64_t stream, uint64_t bytes)
{
	struct graph_memory *candidates[CANDIDATES], *found = NULL;
	uint64_t freed_by[CANDIDATES];
	size_t count = 0;
	lock(GRAPH_LOCK);
	for (struct graph_memory *m = graph_memories; m && count < CANDIDATES; m = m->next)
		if (m->bytes == bytes && m->freed_by) {
			freed_by[count] = m->freed_by;
			candidates[count++] = graph_memory_keep(m);
		}
	unlock(GRAPH_LOCK);
	for (size_t i = 0; i < count; i++) {
		bool ours = !found && capture_follows(stream, freed_by[i]);
		if (ours) {
			lock(GRAPH_LOCK);
			ours = candidates[i]->freed_by == freed_by[i];
			candidates[i]->freed_by = ours ? 0 : candidates[i]->freed_by;
			unlock(GRAPH_LOCK);
		}
		if (ours)
			found = candidates[i];
		else
			graph_memory_drop(candidates[i]);
	}
	return found;
}

/* Adds the node and sets the state that the program then sees. Drops the caller's reference. */
static int add_memory_node(uint64_t stream, enum node_kind kind, struct graph_memory *m)
{
	struct node *n = m ? node_new(kind) : NULL;
	uint64_t number = 0;
	if (n)
		n->memory = graph_memory_keep(m);
	int error = n ? capture_add_numbered(stream, n, &number) : OUT_OF_MEMORY;
	if (!error) {
		lock(GRAPH_LOCK);
		m->state = kind == NODE_ALLOC ? CAPTURED : FREED;
		m->freed_by = kind == NODE_FREE ? number : 0;
		unlock(GRAPH_LOCK);
	}
	graph_memory_drop(m);
	return error;
}

int capture_allocate(uint64_t stream, uint64_t bytes, void **out)
{
	int error = capture_takes(stream);
	if (error)
		return error;
	struct graph_memory *m = memory_again(stream, bytes);
	m = m ? m : memory_new(bytes);
	void *address = m ? (void *)m->address : NULL;
	error = add_memory_node(stream, NODE_ALLOC, m);
	if (!error)
		*out = address;
	return error;
}

int capture_free(uint64_t stream, const void *address)
{
	lock(GRAPH_LOCK);
	struct graph_memory *m = memory_at(address);
	bool freed = m && m->state == FREED;
	m = freed ? NULL : graph_memory_keep(m);
	unlock(GRAPH_LOCK);
	if (freed)
		return INVALID_VALUE;
	return m ? add_memory_node(stream, NODE_FREE, m) : capture_refuse_free(stream);
}

/* ---- other calls ---- */

bool graph_memory_free(const void *address, uint64_t stream, int *error)
{
	lock(GRAPH_LOCK);
	struct graph_memory *m = memory_at(address);
	bool found = m != NULL, gone = false;
	*error = found && m->state == FREED ? INVALID_VALUE : CUDA_OK;
	if (found && !*error) {
		m->state = FREED;
		gone = graph_memory_unlink_unneeded(m);
	}
	unlock(GRAPH_LOCK);
	if (gone) {
		*error = stream ? memory_free_in(address, stream) : allocation_free(address);
		free(m);
	}
	return found;
}

int graph_memory_check(const struct graph *exec)
{
	int error = CUDA_OK;
	lock(GRAPH_LOCK);
	for (size_t i = 0; i < exec->count; i++)
		if (exec->nodes[i]->kind == NODE_ALLOC && exec->nodes[i]->memory->state == LAUNCHED)
			error = INVALID_VALUE; /* the program has what the last launch allocated */
	unlock(GRAPH_LOCK);
	return error;
}

void graph_memory_launched(const struct node *n)
{
	lock(GRAPH_LOCK);
	n->memory->state = n->kind == NODE_ALLOC ? LAUNCHED : FREED;
	unlock(GRAPH_LOCK);
}

/* The attributes are, in this order: used, the most that was used, and the same of what is
 * reserved. */
int graph_memory_get(int device, int attribute, void *value)
{
	int error = value && attribute >= 0 && attribute <= 3 ? device_check(device)
							      : INVALID_VALUE;
	if (error)
		return error;
	lock(GRAPH_LOCK);
	memcpy(value, attribute % 2 ? &graph_memory_most_used : &graph_memory_used,
	       sizeof graph_memory_used);
	unlock(GRAPH_LOCK);
	return CUDA_OK;
}

/* The high watermarks (odd numbers) may be set, to 0. */
int graph_memory_set(int device, int attribute, const void *value)
{
	uint64_t none = 0;
	if (!value || (attribute != 1 && attribute != 3) || memcmp(value, &none, sizeof none))
		return INVALID_VALUE;
	int error = device_check(device);
	if (error)
		return error;
	lock(GRAPH_LOCK);
	graph_memory_most_used = graph_memory_used;
	unlock(GRAPH_LOCK);
	return CUDA_OK;
}
