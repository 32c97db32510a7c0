/* item.c: what all kinds of items have in common. */
#include <stddef.h>
#include <stdlib.h>

#include "invariant.h"
#include "queue/queue_parts.h"

struct item *item_new(struct rank *r, enum item_kind kind, uint64_t seq, uint64_t data_bytes)
{
	struct item *i = calloc(1, sizeof *i + data_bytes);
	if (!i) {
		rank_fail(r, CU_OUT_OF_MEMORY, "the proxy is out of host memory");
		return NULL;
	}
	i->kind = kind;
	i->seq = seq;
	i->weight = 1 + (uint32_t)(data_bytes >> 13);
	i->own.refs = 1;
	i->execution = &i->own;
	return i;
}

static struct item *item_of(struct execution *e)
{
	return (struct item *)(void *)((uint8_t *)e - offsetof(struct item, own));
}

void item_free(struct item *i)
{
	struct execution *e = i->execution;
	INVARIANT(e->refs, "an execution counts the items that complete on it");
	if (e != &i->own)
		free(i);
	if (--e->refs)
		return;
	free(e->why);
	free(item_of(e));
}

void item_share(struct item *i, struct execution *e)
{
	INVARIANT(e->refs && i->execution == &i->own && i->own.refs == 1,
		  "an item that joins an execution had only its own");
	e->refs++;
	i->own.refs--;
	i->execution = e;
}

void item_on_device(struct rank *r, const struct stream *s, struct item *i, uint64_t number)
{
	struct execution *e = i->execution;
	if (!number)
		return;
	if (e->place == EXECUTION_NONE)
		memory_use(&r->memory);
	INVARIANT(e->queue != s->hal || number > e->number,
		  "the works of a queue are numbered upwards");
	e->place = EXECUTION_DEVICE;
	e->queue = s->hal;
	e->number = number;
}

void item_moved(struct rank *r) { r->queue->moves++; }

static bool has_begun(const struct item *i) { return i->execution->place != EXECUTION_NONE; }

bool item_may(const struct rank *r, const struct stream *s, const struct item *i, uint32_t needs)
{
	const struct device *d = r->device;
	if (needs & NEEDS_HEAD && s->head != i)
		return false;
	if (needs & NEEDS_STILL &&
	    (memory_moving(&r->memory) || (!has_begun(i) && memory_waits(&r->memory))))
		return false;
	if (needs & NEEDS_SLOT && !d->hal->available(s->hal))
		return false;
	return !(needs & NEEDS_ACTIVE) ||
	       (d->active == r && device_submits(d, s->head == i) && memory_resident(&r->memory));
}
