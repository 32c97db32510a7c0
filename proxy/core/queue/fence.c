/* fence.c: fences, and the frees that wait for them.
 *
 * A FREE takes effect when everything older is done, and frees take effect in their order: the
 * client knows them by one number.
 */
#include <stdlib.h>

#include "loop/internal.h"
#include "queue/kinds.h"

void fence_push(struct rank *r, uint64_t seq, struct fence *f)
{
	f->left = 1; /* ours, until all are pushed */
	for (uint32_t n = 0; n < r->stream_count; n++) {
		if (!r->streams[n]->head)
			continue;
		struct item *i = item_new(r, ITEM_FENCE, seq, 0);
		if (!i)
			break;
		i->fence = f;
		f->left++;
		stream_push(r, r->streams[n], i);
	}
	f->left--;
}

void fence_free_push(struct rank *r, struct fence *f)
{
	if (r->frees_tail)
		r->frees_tail->next = f;
	else
		r->frees = f;
	r->frees_tail = f;
	fence_push(r, f->free_seq, f);
}

void fence_complete(struct rank *r, struct item *i)
{
	struct fence *f = i->fence;
	if (f->left)
		f->left--;
	if (f->left || f->free_addr)
		return; /* frees retire in their order */
	ring_reply(r, f->slot, r->async_error, NULL, 0);
	free(f);
}

void fence_drop(struct item *i)
{
	if (--i->fence->left == 0 && !i->fence->free_addr)
		free(i->fence);
}

void fence_retire(struct rank *r)
{
	while (r->frees && !r->frees->left && !memory_moving(&r->memory)) {
		struct fence *f = r->frees;
		memory_free(&r->memory, f->free_addr);
		ring_retired(r, f->free_seq);
		r->frees = f->next;
		if (!r->frees)
			r->frees_tail = NULL;
		ring_reply(r, f->slot, r->async_error, NULL, 0);
		free(f);
		r->proxy->progress = true;
	}
}

void fence_drop_frees(struct rank *r)
{
	for (struct fence *f = r->frees, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	r->frees = r->frees_tail = NULL;
}
