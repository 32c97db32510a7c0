/* graph_references.c: counts the references to memory of captures. */
#include <stdlib.h>

#include "graph_memory.h"

struct graph_memory *graph_memories;
uint64_t graph_memory_used, graph_memory_most_used;

bool graph_memory_unlink_unneeded(struct graph_memory *m)
{
	struct graph_memory **at = &graph_memories;
	if (m->state != FREED || atomic_load(&m->references))
		return false;
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	graph_memory_used -= m->bytes;
	return true;
}

/* Takes the lock only for the last reference. That one is dropped under the lock: otherwise another
 * thread could free the memory, and `m` with it, before this one has the lock. */
void graph_memory_drop(struct graph_memory *m)
{
	if (!m)
		return;
	uint32_t references = atomic_load(&m->references);
	while (references > 1)
		if (atomic_compare_exchange_weak(&m->references, &references, references - 1))
			return;
	lock(GRAPH_LOCK);
	bool last = atomic_fetch_sub(&m->references, 1) == 1;
	bool gone = last && graph_memory_unlink_unneeded(m);
	unlock(GRAPH_LOCK);
	if (!gone)
		return;
	allocation_free((void *)m->address); /* after all launches so far */
	free(m);
}

struct graph_memory *graph_memory_keep(struct graph_memory *m)
{
	if (m)
		atomic_fetch_add(&m->references, 1);
	return m;
}
