/* event.c: events: their records, stream items that wait for these, and replies that are due. */
#include <stdlib.h>

#include "invariant.h"
#include "queue/queue_parts.h"
#include "queue/accesses.h"
#include "queue/kinds.h"

static struct mark *mark_new(void)
{
	struct mark *m = calloc(1, sizeof *m);
	if (m)
		m->refs = 1;
	return m;
}

static void mark_release(struct mark *m)
{
	INVARIANT(!m || m->refs, "a mark counts what refers to it");
	if (!m || --m->refs)
		return;
	order_mark_free(m->order);
	free(m);
}

struct event *event_new(uint64_t id, uint32_t flags)
{
	struct event *e = calloc(1, sizeof *e);
	if (!e)
		return NULL;
	e->o = (struct object){OBJ_EVENT, id};
	e->flags = flags;
	return e;
}

bool event_from(struct event *e, uint64_t time_ns)
{
	e->last = mark_new();
	if (!e->last)
		return false;
	e->last->complete = true;
	e->last->time_ns = time_ns;
	return true;
}

int event_queue(struct rank *r, struct event *e, struct stream *s, enum item_kind kind,
		uint64_t seq)
{
	struct mark *mark = kind == ITEM_RECORD ? mark_new() : e->last;
	struct item *i = mark ? item_new(r, kind, seq, 0) : NULL;
	if (!i) {
		if (kind == ITEM_RECORD)
			mark_release(mark);
		return CU_OUT_OF_MEMORY;
	}
	if (kind == ITEM_RECORD) {
		mark->loud = !(e->flags & RF_EVENT_DISABLE_TIMING);
		mark->order = accesses_record(r, s);
		mark_release(e->last);
		e->last = mark;
	}
	mark->refs++;
	mark->loud |= kind == ITEM_WAIT;
	i->mark = mark;
	stream_push(r, s, i);
	return CU_OK;
}

bool event_await(struct rank *r, struct event *e, uint16_t slot)
{
	struct rank_queue *q = r->queue;
	if (q->waiter_count == q->waiter_capacity) {
		uint32_t capacity = q->waiter_capacity ? q->waiter_capacity * 2 : 16;
		struct waiter *more = realloc(q->waiters, capacity * sizeof *more);
		if (!more)
			return false;
		q->waiters = more;
		q->waiter_capacity = capacity;
	}
	e->last->refs++;
	e->last->loud = true;
	q->waiters[q->waiter_count++] = (struct waiter){e->last, slot};
	return true;
}

void event_free(struct event *e)
{
	mark_release(e->last);
	free(e);
}

bool event_done(const struct event *e) { return !e->last || e->last->complete; }

void waiters_answer(struct rank *r)
{
	for (uint32_t i = 0; i < r->queue->waiter_count;) {
		struct waiter *w = &r->queue->waiters[i];
		if (!w->mark->complete && !r->async_error) {
			i++;
			continue;
		}
		ring_reply(r, w->slot, r->async_error, NULL, 0);
		mark_release(w->mark);
		*w = r->queue->waiters[--r->queue->waiter_count];
	}
}

void waiters_drop(struct rank *r)
{
	for (uint32_t i = 0; i < r->queue->waiter_count; i++)
		mark_release(r->queue->waiters[i].mark);
	free(r->queue->waiters);
	r->queue->waiters = NULL;
	r->queue->waiter_count = 0;
}

void record_complete(struct rank *r, struct item *i)
{
	i->mark->complete = true;
	i->mark->time_ns = now_ns();
	mark_release(i->mark);
	waiters_answer(r);
}

bool record_awaited(const struct item *i) { return i->mark->loud; }

enum item_ready wait_ready(const struct item *i)
{
	return i->mark->complete ? ITEM_READY : ITEM_LATER;
}

void wait_complete(struct rank *r, struct item *i)
{
	(void)r;
	mark_release(i->mark);
}

void event_drop(struct item *i) { mark_release(i->mark); }
