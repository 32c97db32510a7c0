/* valid.c: checks that the counters of a rank's streams agree with their contents, for builds that
 * check each turn of the loop (core_invalid). Allocates nothing: host memory may be short.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "queue/queue_parts.h"

/* References to things: one entry per reference. If they do not fit, nothing is compared. */
#define TALLY_MAX 16384u
struct tally {
	const void *what[TALLY_MAX];
	uint32_t count;
};
/* One per loop: a process may have several devices. */
static _Thread_local struct tally marks, fences, executions;

static void count_reference(struct tally *t, const void *what)
{
	if (t->count < TALLY_MAX)
		t->what[t->count] = what;
	t->count++;
}

static int by_address(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;
	return (*x > *y) - (*x < *y);
}

/* Sets *what to the next thing and returns how many references it has; 0: no more things. */
static uint32_t next_of(const struct tally *t, uint32_t *at, const void **what)
{
	uint32_t first = *at;
	if (first >= t->count || t->count > TALLY_MAX)
		return 0;
	for (*what = t->what[first]; *at < t->count && t->what[*at] == *what; ++*at)
		;
	return *at - first;
}

static const char *stream_invalid(const struct rank *r, const struct stream *s, uint32_t *weight,
				  uint32_t *slots)
{
	uint32_t on_other_queue = 0;
	bool behind = false; /* reached the first that is not completely submitted */
	const struct item *last = NULL;
	WRONG(table_get(&r->objects, s->o.id, OBJ_STREAM) != &s->o, "a stream has another handle");
	for (const struct item *i = s->head; i; last = i, i = i->next) {
		behind |= i == s->next;
		WRONG(i->submitted == behind, "submitted items do not come first");
		WRONG(last && last->seq > i->seq, "items are not in program order");
		*weight += i->weight;
		*slots += i->slot != 0;
		on_other_queue += i->submitted && i->execution->place == EXECUTION_DEVICE &&
				  i->execution->queue != s->hal;
		count_reference(&executions, i->execution);
		WRONG(i->execution != &i->own && i->own.refs,
		      "an item that shares an execution has one of its own");
		if (i->kind == ITEM_RECORD || i->kind == ITEM_WAIT)
			count_reference(&marks, i->mark);
		if (i->kind == ITEM_FENCE)
			count_reference(&fences, i->fence);
	}
	WRONG(on_other_queue != s->on_other_queue, "items that complete on another stream's work");
	WRONG(last != s->tail, "the tail of a stream is not its last item");
	WRONG(s->next && !behind, "the next item of a stream is not in it");
	return NULL;
}

/* Counts works that use the rank's memory. */
static void count_inflight(uint32_t *inflight)
{
	const void *what;
	if (executions.count > TALLY_MAX)
		return;
	qsort(executions.what, executions.count, sizeof *executions.what, by_address);
	for (uint32_t at = 0; next_of(&executions, &at, &what);)
		*inflight += ((const struct execution *)what)->place == EXECUTION_DEVICE;
}

static bool is_attached(const struct device *d, const struct rank_memory *m)
{
	for (uint32_t i = 0; i < d->rank_count; i++)
		if (&d->ranks[i]->memory == m)
			return true;
	return false;
}

const char *executions_invalid(const struct device *d)
{
	const void *what;
	executions.count = 0;
	for (uint32_t k = 0; k < d->rank_count; k++)
		for (uint32_t n = 0; n < d->ranks[k]->queue->stream_count; n++)
			for (const struct item *i = d->ranks[k]->queue->streams[n]->head; i;
			     i = i->next)
				count_reference(&executions, i->execution);
	if (executions.count > TALLY_MAX)
		return NULL;
	qsort(executions.what, executions.count, sizeof *executions.what, by_address);
	for (uint32_t at = 0, count; (count = next_of(&executions, &at, &what));) {
		const struct execution *e = what;
		WRONG(e->refs != count, "items that complete on an execution");
		WRONG(e->memory && (e->place != EXECUTION_DEVICE || !is_attached(d, e->memory)),
		      "what runs for several ranks uses the memory of a rank that is here");
	}
	return NULL;
}

static const char *marks_invalid(const struct rank *r)
{
	const void *what;
	uint32_t at = 0, count = 0, events = 0;
	const struct object *o;
	while ((o = table_next(&r->objects, &at)))
		if (o->kind == OBJ_EVENT && ((const struct event *)o)->last)
			count_reference(&marks, ((const struct event *)o)->last), events++;
	for (uint32_t i = 0; i < r->queue->waiter_count; i++)
		count_reference(&marks, r->queue->waiters[i].mark);
	if (marks.count <= TALLY_MAX)
		qsort(marks.what, marks.count, sizeof *marks.what, by_address);
	for (at = 0; (count = next_of(&marks, &at, &what));)
		WRONG(((const struct mark *)what)->refs != count, "references to a mark");
	return NULL;
}

static const char *fences_invalid(const struct rank *r, uint32_t *slots)
{
	const void *what;
	uint32_t at = 0, count = 0, waiting = 0, listed = 0;
	const struct fence *last = NULL;
	if (fences.count > TALLY_MAX)
		return NULL;
	qsort(fences.what, fences.count, sizeof *fences.what, by_address);
	while ((count = next_of(&fences, &at, &what))) {
		const struct fence *f = what;
		WRONG(f->left != count, "streams that a fence waits for");
		*slots += !f->free_addr && f->slot;
		waiting += f->free_addr != 0;
	}
	for (const struct fence *f = r->queue->frees; f; last = f, f = f->next) {
		WRONG(last && last->free_seq >= f->free_seq, "frees are not in their order");
		*slots += f->slot != 0;
		listed += f->left != 0;
	}
	WRONG(last != r->queue->frees_tail, "the tail of the frees is not the last one");
	WRONG(waiting != listed, "a free that waits is not listed");
	return NULL;
}

const char *queue_invalid(const struct rank *r, uint32_t *inflight, uint32_t *slots)
{
	uint32_t weight = 0, at = 0, streams = 0;
	const struct object *o;
	const char *wrong;
	marks.count = fences.count = executions.count = 0;
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if ((wrong = stream_invalid(r, r->queue->streams[n], &weight, slots)))
			return wrong;
	WRONG(weight != r->queue->items, "the weight of a rank's items");
	while ((o = table_next(&r->objects, &at)))
		streams += o->kind == OBJ_STREAM;
	WRONG(streams != r->queue->stream_count, "streams");
	*slots += r->queue->waiter_count;
	count_inflight(inflight);
	if ((wrong = marks_invalid(r)) || (wrong = squash_invalid(r)))
		return wrong;
	return fences_invalid(r, slots);
}
