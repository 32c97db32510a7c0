/* event.c: events: their records, what waits for these in streams, and the replies that are due. */
#include <stdlib.h>

#include "loop/internal.h"
#include "queue/kinds.h"

struct mark *mark_new(void)
{
	struct mark *m = calloc(1, sizeof *m);
	if (m)
		m->refs = 1;
	return m;
}

void mark_release(struct mark *m)
{
	if (m && --m->refs == 0)
		free(m);
}

void event_free(struct event *e)
{
	mark_release(e->last);
	free(e);
}

bool event_over(const struct event *e) { return !e->last || e->last->over; }

void waiters_answer(struct rank *r)
{
	for (uint32_t i = 0; i < r->waiter_count;) {
		struct waiter *w = &r->waiters[i];
		if (!w->mark->over && !r->async_error) {
			i++;
			continue;
		}
		ring_reply(r, w->slot, r->async_error, NULL, 0);
		mark_release(w->mark);
		*w = r->waiters[--r->waiter_count];
	}
}

void waiters_drop(struct rank *r)
{
	for (uint32_t i = 0; i < r->waiter_count; i++)
		mark_release(r->waiters[i].mark);
	free(r->waiters);
	r->waiters = NULL;
	r->waiter_count = 0;
}

void record_complete(struct rank *r, struct item *i)
{
	i->mark->over = true;
	i->mark->time_ns = now_ns();
	mark_release(i->mark);
	waiters_answer(r);
}

bool record_heard(const struct item *i) { return i->mark->loud; }

enum item_ready wait_ready(const struct item *i) { return i->mark->over ? ITEM_READY : ITEM_LATER; }

void wait_complete(struct rank *r, struct item *i)
{
	(void)r;
	mark_release(i->mark);
}

void event_drop(struct item *i) { mark_release(i->mark); }
