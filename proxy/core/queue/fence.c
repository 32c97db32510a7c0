/* fence.c: fences, and the frees that wait for them.
 *
 * A FREE takes effect when everything older is complete. Frees take effect in their order, because
 * the client identifies them by one number.
 */
#include <stdlib.h>

#include "invariant.h"
#include "queue/queue_parts.h"
#include "queue/kinds.h"

struct fence *fence_new(uint16_t slot)
{
	struct fence *f = calloc(1, sizeof *f);
	if (f)
		f->slot = slot;
	return f;
}

void fence_push(struct rank *r, uint64_t seq, struct fence *f)
{
	f->left = 1; /* held here until all are pushed */
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		if (!r->queue->streams[n]->head)
			continue;
		struct item *i = item_new(r, ITEM_FENCE, seq, 0);
		if (!i)
			break;
		i->fence = f;
		f->left++;
		stream_push(r, r->queue->streams[n], i);
	}
	f->left--;
}

bool fence_push_free(struct rank *r, uint64_t addr, uint64_t seq, uint16_t slot)
{
	struct fence *f = fence_new(slot);
	if (!f)
		return false;
	f->free_addr = addr;
	f->free_seq = seq;
	if (r->queue->frees_tail)
		r->queue->frees_tail->next = f;
	else
		r->queue->frees = f;
	r->queue->frees_tail = f;
	fence_push(r, seq, f);
	return true;
}

void fence_complete(struct rank *r, struct item *i)
{
	struct fence *f = i->fence;
	if (f->left)
		f->left--;
	if (f->left || f->free_addr)
		return; /* frees retire in order */
	ring_reply(r, f->slot, r->async_error, NULL, 0);
	free(f);
}

void fence_drop(struct item *i)
{
	INVARIANT(i->fence->left, "a fence counts the streams it waits for");
	if (--i->fence->left == 0 && !i->fence->free_addr)
		free(i->fence);
}

void fence_retire(struct rank *r)
{
	while (r->queue->frees && !r->queue->frees->left && !memory_moving(&r->memory)) {
		struct fence *f = r->queue->frees;
		memory_free(&r->memory, f->free_addr);
		ring_retired(r, f->free_seq);
		r->queue->frees = f->next;
		if (!r->queue->frees)
			r->queue->frees_tail = NULL;
		ring_reply(r, f->slot, r->async_error, NULL, 0);
		free(f);
		turn_progress(&r->device->turn);
	}
}

void fence_drop_frees(struct rank *r)
{
	for (struct fence *f = r->queue->frees, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	r->queue->frees = r->queue->frees_tail = NULL;
}
