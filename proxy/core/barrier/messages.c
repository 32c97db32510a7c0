/* messages.c: the barrier's base: failure, messages on their way out, and where a rank is. See
 * barrier.c for the protocol. */
#include "barrier_parts.h"

#include <stdio.h>
#include <stdlib.h>

void barrier_fail(struct barrier *b, const char *what, uint32_t rank, uint64_t comm)
{
	if (!b->error[0])
		snprintf(b->error, sizeof b->error, "barrier: %s (rank %u, communicator %llx)",
			 what, rank, (unsigned long long)comm);
}

void barrier_send(struct barrier *b, struct barrier_message m)
{
	if (b->queue_count == b->queue_capacity) {
		uint32_t capacity = b->queue_capacity ? 2 * b->queue_capacity : 64;
		struct barrier_message *queue = malloc(capacity * sizeof *queue);

		if (!queue) {
			barrier_fail(b, "out of memory", m.rank, m.comm);
			return;
		}
		for (uint32_t i = 0; i < b->queue_count; i++)
			queue[i] = b->queue[(b->queue_head + i) & (b->queue_capacity - 1)];
		free(b->queue);
		b->queue = queue;
		b->queue_capacity = capacity;
		b->queue_head = 0;
	}
	INVARIANT(b->queue_count < b->queue_capacity, "a message has space in the queue");
	m.from = b->device;
	b->queue[(b->queue_head + b->queue_count++) & (b->queue_capacity - 1)] = m;
}

void barrier_send_all(struct barrier *b, struct barrier_message m)
{
	for (m.to = 0; m.to < b->device_count; m.to++)
		barrier_send(b, m);
}

bool barrier_local(const struct barrier *b, uint32_t rank)
{
	return rank < b->world_size && b->ranks[rank].device == b->device;
}

struct barrier_rank *barrier_checked(struct barrier *b, uint32_t rank, const char *what)
{
	if (barrier_local(b, rank))
		return &b->ranks[rank];
	barrier_fail(b, what, rank, 0);
	return NULL;
}
