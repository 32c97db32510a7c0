/* pump.c: the items of a rank's streams are submitted and complete. Order, and nothing else: what
 * an item needs, does and leaves is its kind's (kinds.c).
 *
 * Items are submitted in order, as soon as their dependencies allow, and complete in order.
 *
 * Ordering between streams: an item of the legacy stream waits for everything older in the blocking
 * streams, an item of a blocking stream for everything older in the legacy stream; "older" is the
 * record's number (CUDA programming guide, "Default stream").
 *
 * After a sticky error items complete without doing anything, and replies carry the error.
 */
#include "loop/internal.h"

#define REFILL_WORKS 32u /* a full device queue (64 works or more) is filled up after so many */

/* ---- completion ---- */

/* A kernel's fault becomes the rank's sticky error. */
static void note_fault(struct rank *r)
{
	const struct hal *hal = r->proxy->hal;
	char text[256] = "";
	if (r->async_error || !r->memory.space || !hal->space_error(r->memory.space, NULL, 0))
		return;
	int error = hal->space_error(r->memory.space, text, sizeof text);
	rank_fail(r, error, text);
}

static void complete(struct rank *r, struct item *i)
{
	const struct item_row *row = item_row(i);
	bool heard = !row->heard || row->heard(i);
	if (i->execution->place == EXECUTION_DEVICE)
		memory_used(&r->memory);
	if (row->complete)
		row->complete(r, i);
	ring_reply(r, i->slot, r->async_error, NULL, 0);
	if (heard)
		turn_progress(&r->proxy->turn);
	else
		turn_settled(&r->proxy->turn);
	item_moved(r);
	item_free(i);
}

static void complete_stream(struct rank *r, struct stream *s)
{
	while (s->head && s->head->submitted && execution_over(r, s->head->execution)) {
		if (s->head->execution->place == EXECUTION_DEVICE)
			note_fault(r); /* before whoever waits for it learns of that */
		complete(r, stream_pop(r, s));
	}
}

/* ---- submission ---- */

static bool ordered(const struct rank *r, const struct stream *s, const struct item *i)
{
	if (s->flags & RF_STREAM_NON_BLOCKING)
		return true;
	if (s != r->queue.legacy)
		return !r->queue.legacy->head || r->queue.legacy->head->seq >= i->seq;
	for (uint32_t n = 0; n < r->queue.stream_count; n++) {
		const struct stream *o = r->queue.streams[n];
		if (o != s && !(o->flags & RF_STREAM_NON_BLOCKING) && o->head &&
		    o->head->seq < i->seq)
			return false;
	}
	return true;
}

static enum item_ready ready(const struct item *i)
{
	const struct item_row *row = item_row(i);
	return row->ready ? row->ready(i) : ITEM_READY;
}

static void copied(void *rank, enum memory_purpose purpose, int result)
{
	(void)purpose;
	if (result && result != MEMORY_CANCELLED)
		rank_fail(rank, result,
			  "the device has no room for memory of its own where the rank writes");
}

/* May all of it be written now? If not, that is asked for. */
static bool may_write(struct rank *r, uint64_t addr, uint64_t bytes)
{
	if (memory_owns(&r->memory, addr, bytes))
		return true;
	memory_ask(&r->memory, &(struct memory_request){.purpose = PURPOSE_COPY,
							.addr = addr,
							.bytes = bytes,
							.over = copied,
							.arg = r});
	return false;
}

/* No work that writes is given away before the rank owns all that it will write. */
static bool owned(struct rank *r, const struct foreseen *f)
{
	if (!f->known)
		return may_write(r, RF_DEV_BASE, RF_HEAP_BYTES);
	for (uint32_t n = 0; n < f->count; n++)
		if (f->ranges[n].use & REACH_WRITTEN &&
		    !may_write(r, f->ranges[n].addr, f->ranges[n].bytes))
			return false;
	return true;
}

static bool submit(struct rank *r, struct stream *s, struct item *i)
{
	const struct item_row *row = item_row(i);
	if (r->async_error && !(row->needs & EVEN_FAILED))
		return true; /* nothing runs any more, everything completes */
	enum item_ready there = ready(i);
	if (there == ITEM_LATER || (there == ITEM_READY && !item_may(r, s, i, row->needs)))
		return false;
	struct foreseen foreseen;
	if (row->foresee)
		row->foresee(r, i, &foreseen);
	if (row->foresee && !owned(r, &foreseen))
		return false;
	if (row->submit && !row->submit(r, s, i))
		return false;
	if (row->effect)
		row->effect(r, i, &foreseen);
	return true;
}

/* May its next item be looked at? */
static bool open_for_next(const struct rank *r, const struct stream *s)
{
	if (!s->next || !ordered(r, s, s->next))
		return false;
	return s->head == s->next || !(item_row(s->head)->needs & HOLDS_NEXT) ||
	       s->head->execution->told;
}

static void submit_stream(struct rank *r, struct stream *s)
{
	while (open_for_next(r, s)) {
		if (!submit(r, s, s->next))
			break;
		stream_submitted(s);
		item_moved(r);
		turn_progress(&r->proxy->turn);
	}
}

void rank_pump(struct rank *r)
{
	note_fault(r);
	if (!ring_host_sound(r))
		rank_fail(r, CU_INVALID_VALUE,
			  "more host functions have returned than were called");
	for (uint32_t n = 0; n < r->queue.stream_count; n++) {
		struct stream *s = r->queue.streams[n];
		complete_stream(r, s);
		submit_stream(r, s);
		complete_stream(r, s);
		if (s->doomed && !s->head)
			stream_free(r, n--);
	}
	if (r->async_error)
		waiters_answer(r);
	fence_retire(r);
	memory_sweep(&r->memory);
}

/* The first work of the stream whose completion lets anything happen. */
static uint64_t wake_at(const struct rank *r, const struct stream *s)
{
	const struct hal *hal = r->proxy->hal;
	uint64_t last = 0;
	for (const struct item *i = s->head; i && i != s->next; i = i->next) {
		const struct item_row *row = item_row(i);
		if (i->execution->place == EXECUTION_DEVICE)
			last = i->execution->number;
		if (!row->heard || row->heard(i))
			return last;
	}
	return s->next && !hal->room(s->hal) ? hal->completed(s->hal) + REFILL_WORKS : last;
}

/* A stream that is held up by another one's middle makes each completion count. */
void rank_sleep(struct rank *r)
{
	bool each = false;
	for (uint32_t n = 0; n < r->queue.stream_count; n++)
		each |= r->queue.streams[n]->next &&
			!ordered(r, r->queue.streams[n], r->queue.streams[n]->next);
	for (uint32_t n = 0; n < r->queue.stream_count; n++) {
		struct stream *s = r->queue.streams[n];
		r->proxy->hal->notify_at(s->hal, each ? 0 : wake_at(r, s));
	}
}

/* Could this rank run a kernel now, were it active? */
bool rank_has_kernel(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue.stream_count; n++) {
		const struct stream *s = r->queue.streams[n];
		if (open_for_next(r, s) && item_row(s->next)->needs & NEEDS_ACTIVE &&
		    ready(s->next) == ITEM_READY && !r->async_error)
			return true;
	}
	return false;
}

/* Forget everything queued; nothing of it is in flight. */
void rank_drop_streams(struct rank *r)
{
	for (uint32_t n = 0; n < r->queue.stream_count; n++)
		while (r->queue.streams[n]->head) {
			struct item *i = stream_pop(r, r->queue.streams[n]);
			if (item_row(i)->drop)
				item_row(i)->drop(i);
			item_free(i);
		}
	streams_close(r);
	fence_drop_frees(r);
	waiters_drop(r);
}
