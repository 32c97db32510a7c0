/* item.c: the kinds of items, and what is the same for all. */
#include <stddef.h>
#include <stdlib.h>

#include "loop/internal.h"
#include "queue/kinds.h"

static bool heard_if_asked(const struct item *i) { return i->slot; }

const struct item_row item_rows[ITEM_KINDS] = {
	[ITEM_KERNEL] = {.name = "kernel",
			 .needs = NEEDS_ACTIVE | NEEDS_STILL | NEEDS_ROOM,
			 .ready = kernel_ready,
			 .submit = kernel_submit,
			 .complete = kernel_complete,
			 .heard = heard_if_asked},
	[ITEM_PRODUCT] = {.name = "matrix product",
			  .needs = NEEDS_ACTIVE | NEEDS_STILL | NEEDS_ROOM,
			  .submit = product_submit,
			  .heard = heard_if_asked},
	[ITEM_COPY] = {.name = "copy",
		       .needs = NEEDS_STILL | NEEDS_ROOM,
		       .submit = copy_submit,
		       .complete = copy_complete,
		       .heard = copy_heard},
	[ITEM_FILL] = {.name = "fill",
		       .needs = NEEDS_STILL | NEEDS_ROOM,
		       .submit = fill_submit,
		       .heard = heard_if_asked},
	[ITEM_RECORD] = {.name = "event record",
			 .complete = record_complete,
			 .drop = event_drop,
			 .heard = record_heard},
	[ITEM_WAIT] = {.name = "event wait",
		       .ready = wait_ready,
		       .complete = wait_complete,
		       .drop = event_drop,
		       .heard = heard_if_asked},
	/* It needs the head of its stream, too, unless it changes nothing. */
	[ITEM_COLLECTIVE] = {.name = "collective",
			     .needs = HOLDS_NEXT,
			     .submit = collective_submit,
			     .heard = collective_heard},
	[ITEM_HOST] = {.name = "host function",
		       .needs = NEEDS_HEAD | HOLDS_NEXT | EVEN_FAILED,
		       .submit = host_submit},
	[ITEM_FENCE] = {.name = "fence", .complete = fence_complete, .drop = fence_drop},
	[ITEM_REPLY] = {.name = "reply"},
};

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

static struct item *home(struct execution *e)
{
	return (struct item *)(void *)((uint8_t *)e - offsetof(struct item, own));
}

void item_free(struct item *i)
{
	struct execution *e = i->execution;
	if (e != &i->own)
		free(i);
	if (--e->refs == 0)
		free(home(e));
}

void item_share(struct item *i, struct execution *e)
{
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
	e->place = EXECUTION_DEVICE;
	e->queue = s->hal;
	e->number = number;
}

bool item_may(const struct rank *r, const struct stream *s, const struct item *i)
{
	const struct proxy *p = r->proxy;
	uint32_t needs = item_row(i)->needs;
	if (needs & NEEDS_HEAD && s->head != i)
		return false;
	if (needs & NEEDS_STILL && memory_moving(&r->memory))
		return false;
	if (needs & NEEDS_ROOM && !p->hal->room(s->hal))
		return false;
	return !(needs & NEEDS_ACTIVE) ||
	       (p->active == r && !p->yielding && memory_resident(&r->memory));
}
