/* collective.c: one group's operations on one communicator, at their place in a stream.
 *
 * The engine receives the groups of a communicator in program order, including those of different
 * streams, as NCCL does. It reports a ticket when it has completed; the item may be freed by then,
 * together with its rank.
 */
#include "queue/queue_parts.h"
#include "queue/effects.h"
#include "queue/kinds.h"

static void complete_item(struct rank *r, struct item *i, int error)
{
	i->execution->reported = true;
	i->execution->error = error;
	if (i->coll.comm->aborted) {
		/* The content at its destination is unknown. */
	} else if (error) {
		char text[RF_FAULT_BYTES];
		snprintf(text, sizeof text,
			 "a group of %u operations on communicator %llu ended with NCCL error %d",
			 i->coll.count, (unsigned long long)i->coll.comm->o.id, error);
		rank_fail_comm(r, i->coll.comm->o.id, error, text);
	} else if (i->coll.place.key)
		collective_effect(r, i, &i->coll.place);
	for (uint32_t k = 0; k < i->coll.rounds; k++)
		barrier_complete(r->world->barrier, r->rank, item_rounds(i)[k].key);
	rank_count_collective(r);
	item_moved(r);
	turn_progress(&r->device->turn);
}

/* Before some collectives, the cross-check compares the rank's memory with its versions. */
static bool looked_at_first(struct rank *r, const struct item *i)
{
	struct coll_place p;
	return coll_place(r->world->coll, r->rank, i->coll.comm->o.id, &p) &&
	       check_first(&r->check, p.key, p.number, i->coll.count, now_ns());
}

bool collective_submit(struct rank *r, struct stream *s, struct item *i)
{
	struct coll *coll = r->world->coll;
	struct comm *c = i->coll.comm;
	if (c->aborted) {
		i->execution->place = EXECUTION_ENGINE;
		i->execution->reported = true;
		return true;
	}
	if (c->submitted != i->coll.turn)
		return false; /* an older group must be submitted first */
	bool nothing = coll_nothing_to_do(coll, r->rank, c->o.id, item_ops(i), i->coll.count);
	if (!nothing && s->head != i)
		return false; /* its inputs are not ready */
	if (!nothing && looked_at_first(r, i))
		return false;
	comm_submit(c);
	i->execution->place = EXECUTION_ENGINE;
	i->execution->number = ++r->queue->tickets;
	if (nothing) {
		complete_item(r, i, NCCL_OK);
		return true;
	}
	coll_place(coll, r->rank, c->o.id, &i->coll.place);
	int error = coll_submit(coll, r->rank, c->o.id, item_ops(i), i->coll.count,
				i->execution->number);
	if (error)
		complete_item(r, i, error);
	return true;
}

bool collective_awaited(const struct item *i) { return !i->execution->reported; }

/* The item is at the head of a stream, or freed. */
void collective_report(struct rank *r, uint64_t ticket, int error)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		struct item *i = r->queue->streams[n]->head;
		if (!i || i->kind != ITEM_COLLECTIVE || i->execution->number != ticket)
			continue;
		complete_item(r, i, error);
		return;
	}
}

bool collective_queued(const struct rank *r, const struct comm *c)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		for (const struct item *i = r->queue->streams[n]->head; i; i = i->next)
			if (i->kind == ITEM_COLLECTIVE && i->coll.comm == c)
				return true;
	return false;
}

void collective_settle(struct rank *r, struct comm *c)
{
	if ((!c->slot && !c->doomed) || collective_queued(r, c))
		return;
	if (!c->aborted) { /* otherwise the engine reports when (coll_io.abort_complete) */
		ring_reply(r, c->slot, NCCL_OK, NULL, 0);
		c->slot = 0;
	}
	if (c->doomed && !c->slot)
		comm_drop(r, c);
}

void collective_complete(struct rank *r, struct item *i) { collective_settle(r, i->coll.comm); }

bool collective_awaits(const struct rank *r, uint64_t redop)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		for (struct item *i = r->queue->streams[n]->next; i; i = i->next)
			for (uint32_t k = 0; i->kind == ITEM_COLLECTIVE && k < i->coll.count; k++)
				if (item_ops(i)[k].op == redop)
					return true;
	return false;
}
