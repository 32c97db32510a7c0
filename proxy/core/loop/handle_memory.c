/* handle_memory.c: requests for memory, copies and fills (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/handlers.h"
#include "loop/internal.h"
#include "queue/accesses.h"
#include "queue/fence.h"
#include "queue/item.h"
#include "queue/queue.h"

int on_alloc(struct rank *r, const struct rf_alloc *a, uint32_t extra)
{
	(void)extra;
	if (memory_dying(&r->memory, a->addr, a->bytes) && !r->async_error)
		return RETRY; /* running work may still reach it */
	int error = memory_alloc(&r->memory, a);
	/* The client counts memory as free when it frees it; here it is free when older work is
	 * complete. */
	return error == CU_OUT_OF_MEMORY && r->queue->frees && !r->async_error ? RETRY : error;
}

/* stream NULL: a synchronous free. That only matters for the check of the program's order. */
static int give_back(struct rank *r, const struct rf_record *a, uint64_t addr,
		     const struct stream *s)
{
	struct buffer *b = memory_find(&r->memory, addr);
	if (!b || b->addr != addr || b->freed)
		return CU_INVALID_VALUE;
	if (!fence_push_free(r, addr, a->seq, a->slot))
		return CU_OUT_OF_MEMORY;
	accesses_free(r, s, addr, b->bytes, a->seq);
	memory_freed(b);
	return ANSWERED;
}

int on_free(struct rank *r, const struct rf_free *a, uint32_t extra)
{
	(void)extra;
	return give_back(r, &a->r, a->addr, NULL);
}

int on_free_async(struct rank *r, const struct rf_free_async *a, uint32_t extra)
{
	(void)extra;
	const struct stream *s = get_stream(r, a->stream);
	return s ? give_back(r, &a->r, a->addr, s) : CU_INVALID_HANDLE;
}

int on_pinned(struct rank *r, const struct rf_record *a, uint32_t extra)
{
	(void)a;
	(void)extra;
	return memory_pins_follow(&r->memory) ? CU_OK : RETRY;
}

int on_grant(struct rank *r, const struct rf_grant *a, uint32_t extra)
{
	(void)extra;
	struct rf_grant_reply reply = {r->proxy->device.memory.total * RF_CHUNK_BYTES};
	if (a->want_bytes > reply.grant_bytes)
		return CU_OUT_OF_MEMORY;
	atomic_store(&r->ring.header->grant_bytes, reply.grant_bytes);
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}

/* True if all rows of one side of a copy are inside of what that side names. */
static bool side_valid(struct rank *r, uint8_t place, uint64_t at, uint64_t pitch,
		       const struct rf_copy *c, uint32_t inline_bytes)
{
	uint64_t rows = (c->height - 1) * pitch;
	if (c->height > 1 && (pitch < c->width || rows / pitch != c->height - 1))
		return false;
	uint64_t span = rows + c->width;
	if (span < rows)
		return false;
	switch (place) {
	case RF_AT_ADDRESS: return memory_valid(&r->memory, at, span);
	case RF_AT_BULK: return ring_bulk(r, at, span) != NULL;
	case RF_AT_INLINE: return at <= inline_bytes && span <= inline_bytes - at;
	default: return false;
	}
}

int on_copy(struct rank *r, const struct rf_copy *c, uint32_t extra)
{
	struct stream *s = get_stream(r, c->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if (c->dst_place == RF_AT_INLINE)
		return CU_INVALID_VALUE;
	if (c->width && c->height &&
	    (!side_valid(r, c->dst_place, c->dst, c->dst_pitch, c, 0) ||
	     !side_valid(r, c->src_place, c->src, c->src_pitch, c, extra))) {
		if (c->release_bulk && c->src_place == RF_AT_BULK)
			ring_release_bulk(r, (uint32_t)(c->src / RF_BULK_BYTES));
		return CU_INVALID_VALUE;
	}
	struct item *i = item_new(r, ITEM_COPY, c->r.seq, c->src_place == RF_AT_INLINE ? extra : 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->copy.copy = *c;
	i->slot = c->r.slot;
	if (c->src_place == RF_AT_INLINE)
		memcpy(i->data, c->data, extra);
	stream_push(r, s, i);
	return ANSWERED;
}

int on_fill(struct rank *r, const struct rf_fill *f, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, f->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if ((f->element != 1 && f->element != 2 && f->element != 4) || f->width > RF_HEAP_BYTES ||
	    f->dst % f->element || f->pitch % f->element)
		return CU_INVALID_VALUE;
	uint64_t row = f->width * f->element, rows = f->height ? (f->height - 1) * f->pitch : 0;
	if (row && f->height > 1 && (f->pitch < row || rows / f->pitch != f->height - 1))
		return CU_INVALID_VALUE;
	if (row && f->height &&
	    (rows > RF_HEAP_BYTES || !memory_valid(&r->memory, f->dst, rows + row)))
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_FILL, f->r.seq, 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->fill.fill = *f;
	i->slot = f->r.slot;
	stream_push(r, s, i);
	return ANSWERED;
}
