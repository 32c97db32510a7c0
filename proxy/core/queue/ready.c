/* ready.c: which items may be next.
 *
 * Order between streams: an item of the legacy stream waits for everything older in the blocking
 * streams, and an item of a blocking stream waits for everything older in the legacy stream; age is
 * the record's number (CUDA programming guide, "Default stream").
 */
#include "queue/ready.h"

#include "queue/queue_parts.h"

bool ready_waits_for_older(const struct rank *r, const struct stream *s)
{
	const struct item *i = s->next;
	if (!i || s->flags & RF_STREAM_NON_BLOCKING)
		return false;
	if (s != r->queue->legacy)
		return r->queue->legacy->head && r->queue->legacy->head->seq < i->seq;
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *o = r->queue->streams[n];
		if (o != s && !(o->flags & RF_STREAM_NON_BLOCKING) && o->head &&
		    o->head->seq < i->seq)
			return true;
	}
	return false;
}

bool ready_open(const struct rank *r, const struct stream *s)
{
	if (!s->next || ready_waits_for_older(r, s))
		return false;
	return s->head == s->next || !(item_row(s->head)->needs & HOLDS_NEXT) ||
	       s->head->execution->reported;
}

enum item_ready ready_item(const struct item *i)
{
	const struct item_row *row = item_row(i);
	return row->ready ? row->ready(i) : ITEM_READY;
}

uint64_t ready_before_collective(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *s = r->queue->streams[n];
		if (s->next && s->next->kind == ITEM_COLLECTIVE && s->head != s->next)
			return s->next->seq;
	}
	return 0;
}
