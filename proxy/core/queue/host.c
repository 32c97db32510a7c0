/* host.c: host functions: the client calls them for the proxy, one after another. */
#include "queue/queue_parts.h"
#include "queue/kinds.h"

void host_open(struct rank *r)
{
	r->queue->host_place = atomic_load(&r->ring.header->hostfunc_head);
}

bool host_submit(struct rank *r, struct stream *s, struct item *i)
{
	(void)s;
	struct execution *e = i->execution;
	e->place = EXECUTION_CLIENT;
	e->number = r->queue->host_place;
	if (!ring_host_function(r, i->token, r->queue->host_place))
		/* no space; or the client's count is wrong */
		return !ring_host_sound(r, r->queue->host_place);
	r->queue->host_place++;
	return true;
}

static bool host_function_returned(struct rank *r, struct item *i)
{
	return i->execution->place == EXECUTION_CLIENT && execution_done(r, i->execution);
}

/* Returns the oldest host function that never returns, because the rank has exited. */
static uint64_t broken_off(struct rank *r)
{
	uint64_t first = UINT64_MAX;
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		for (struct item *i = r->queue->streams[n]->head; i; i = i->next)
			if (i->kind == ITEM_HOST && i->seq < first && !host_function_returned(r, i))
				first = i->seq;
	return first;
}

bool host_lets_run(struct rank *r, const struct item *i)
{
	return !r->end.exited || i->seq < broken_off(r);
}

bool host_lets_consume(struct rank *r) { return !r->end.exited || broken_off(r) == UINT64_MAX; }

bool rank_unserved(struct rank *r)
{
	if (host_lets_consume(r))
		return !ring_empty(r) || r->queue->items || r->queue->frees;
	uint64_t end = broken_off(r);
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if (r->queue->streams[n]->head && r->queue->streams[n]->head->seq < end)
			return true;
	return false;
}
