/* pump.c: submits and completes the items of a rank's streams. It handles order only: what an item
 * needs, does and leaves is defined by its kind (kinds.c).
 *
 * Items are submitted in order, as soon as their dependencies allow, and complete in order.
 *
 * After a sticky error, items complete without doing anything, and replies carry the error.
 */
#include "queue/queue_parts.h"
#include "queue/ready.h"
#include "queue/reuse.h"
#include "queue/squash.h"

#define NEAR_WORKS 2u    /* works before the awaited one at which the loop wakes up */
#define REFILL_WORKS 32u /* completions before a full device queue (64 works or more) is refilled */

/* ---- completion ---- */

/* A kernel's fault becomes the rank's sticky error. */
static void note_fault(struct rank *r)
{
	const struct hal *hal = r->device->hal;
	char text[RF_FAULT_TEXT_BYTES] = "";
	if (r->async_error || !r->memory.space || !hal->space_error(r->memory.space, NULL, 0))
		return;
	int error = hal->space_error(r->memory.space, text, sizeof text);
	rank_fail(r, error, text);
}

static void complete_item(struct rank *r, struct item *i)
{
	const struct item_row *row = item_row(i);
	bool awaited = !row->awaited || row->awaited(i);
	if (i->execution->place == EXECUTION_DEVICE)
		memory_used(&r->memory);
	if (row->complete)
		row->complete(r, i);
	ring_reply(r, i->slot, r->async_error, NULL, 0);
	if (awaited)
		turn_progress(&r->device->turn);
	else
		turn_completed(&r->device->turn);
	item_moved(r);
	item_free(i);
}

static void complete_stream(struct rank *r, struct stream *s)
{
	while (s->head && s->head->submitted && execution_done(r, s->head->execution)) {
		const struct execution *e = s->head->execution;
		if (e->place == EXECUTION_DEVICE)
			note_fault(r); /* before a waiting request learns of the completion */
		if (e->place == EXECUTION_DEVICE && e->error)
			rank_fail(r, e->error,
				  e->why ? e->why : "work that ran once for several ranks failed");
		complete_item(r, stream_pop(r, s));
	}
}

/* ---- submission ---- */

/* Submits an item with a footprint. If part of it is submitted already, it continues. */
static bool submit_footprint(struct rank *r, struct stream *s, struct item *i)
{
	const struct item_row *row = item_row(i);
	struct footprint footprint;
	struct team team;
	team.count = 0;
	row->find_footprint(r, i, &footprint);
	if (i->execution->place == EXECUTION_NONE) {
		enum result_mapping found = reuse(r, s, i, &footprint);
		if (found == MAPPED_DONE)
			opaque_done(r, i);
		if (found != MAPPED_NONE)
			return squash_skips(r, s, i, found == MAPPED_DONE);
		if (!squash_may(r, s, i, &footprint, &team) || opaque_first(r, i))
			return false;
	}
	if (!row->submit(r, s, i))
		return false;
	if (team.count)
		squash_join(r, i, &footprint, &team);
	row->effect(r, i, &footprint);
	return true;
}

static bool submit_item(struct rank *r, struct stream *s, struct item *i)
{
	const struct item_row *row = item_row(i);
	if (r->async_error && !(row->needs & EVEN_FAILED))
		return true; /* nothing runs any more, everything completes */
	enum item_ready there = ready_item(i);
	if (there == ITEM_LATER || (there == ITEM_READY && !item_may(r, s, i, row->needs)))
		return false;
	bool begins = i->execution->place == EXECUTION_NONE;
	if (row->submit && (stream_on_other_queue(s) || squash_must_wait(r, s, i) ||
			    (begins && (check_holds(&r->check) || measure_holds(&r->measure, i)))))
		return false;
	if (row->find_footprint && there == ITEM_READY)
		return submit_footprint(r, s, i);
	return !row->submit || row->submit(r, s, i);
}

static void submit_stream(struct rank *r, struct stream *s)
{
	while (ready_open(r, s)) {
		if (!host_lets_run(r, s->next) || !submit_item(r, s, s->next))
			break;
		squash_not_first(r, s->next); /* a failed rank's item was not judged */
		stream_submitted(s);
		item_moved(r);
		turn_progress(&r->device->turn);
	}
}

void rank_pump(struct rank *r)
{
	note_fault(r);
	if (!ring_host_sound(r, r->queue->host_place))
		rank_fail(r, CU_INVALID_VALUE, "more host functions returned than were called");
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		struct stream *s = r->queue->streams[n];
		complete_stream(r, s);
		submit_stream(r, s);
		complete_stream(r, s);
		if (s->doomed && !s->head)
			stream_free(r, n--);
	}
	if (r->async_error)
		waiters_answer(r);
	squash_turn(r);
	fence_retire(r);
	memory_sweep(&r->memory);
}

static bool is_awaited(const struct item *i)
{
	const struct item_row *row = item_row(i);
	return !row->awaited || row->awaited(i) || i->execution->refs > 1;
}

/* Returns the first work of the stream whose completion has a consequence, or the last one. */
static uint64_t awaited_work(const struct rank *r, const struct stream *s, bool *awaited)
{
	const struct hal *hal = r->device->hal;
	uint64_t last = 0;
	*awaited = true;
	for (const struct item *i = s->head; i && i != s->next; i = i->next) {
		const struct execution *e = i->execution;
		if (e->place == EXECUTION_DEVICE && e->queue == s->hal)
			last = e->number;
		if (is_awaited(i))
			return last;
	}
	if (s->next && !hal->available(s->hal))
		return hal->completed(s->hal) + REFILL_WORKS;
	*awaited = false;
	return last;
}

static uint64_t wake_at(const struct rank *r, const struct stream *s)
{
	bool awaited;
	return awaited_work(r, s, &awaited);
}

bool rank_near(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *s = r->queue->streams[n];
		uint64_t done = r->device->hal->completed(s->hal), last = wake_at(r, s);
		if (last > done && last - done <= NEAR_WORKS)
			return true;
	}
	return false;
}

uint64_t rank_done(const struct rank *r)
{
	uint64_t works = 0;
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		works += r->device->hal->completed(r->queue->streams[n]->hal);
	return works;
}

static uint64_t woken_at(const struct rank *r, const struct stream *s)
{
	uint64_t last = wake_at(r, s);
	if (last <= r->device->hal->completed(s->hal) + NEAR_WORKS)
		return last;
	return last - NEAR_WORKS;
}

/* If another stream's items hold up a stream, each completion counts. */
static bool each_counts(const struct rank *r)
{
	bool each = check_holds(&r->check) || measure_holds(&r->measure, NULL);
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		each |= ready_waits_for_older(r, r->queue->streams[n]);
	return each;
}

/* If there are other ranks, they may wait for all works of this one. */
void rank_await(struct rank *r)
{
	const struct hal *hal = r->device->hal;
	bool each = each_counts(r), others = r->device->rank_count > 1;
	for (uint32_t n = 0; hal->await_works && n < r->queue->stream_count; n++) {
		struct stream *s = r->queue->streams[n];
		bool awaited;
		uint64_t last = awaited_work(r, s, &awaited);
		if (each || (last && (awaited || others)))
			hal->await_works(s->hal, woken_at(r, s), each ? 0 : last);
	}
}

void rank_sleep(struct rank *r)
{
	bool each = each_counts(r);
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		struct stream *s = r->queue->streams[n];
		r->device->hal->notify_at(s->hal, each ? 0 : woken_at(r, s));
	}
}

/* Judges the stream's next item. Returns false if it is not one that may wait for other ranks, or
 * may not be next. */
static bool judge_next(struct rank *r, const struct stream *s, struct footprint *f,
		       enum verdict *verdict)
{
	struct team team;
	const struct item *i = s->next;
	if (r->async_error || !ready_open(r, s) || !item_row(i)->find_footprint ||
	    i->execution->place != EXECUTION_NONE || ready_item(i) != ITEM_READY ||
	    opaque_waits(r, i))
		return false;
	*verdict = VERDICT_OWNED;
	if (r->memory.write_protected) {
		item_row(i)->find_footprint(r, i, f);
		*verdict = squash_judge(r, s, i, f, &team);
	}
	return true;
}

enum rank_work rank_work(struct rank *r)
{
	struct footprint f;
	enum verdict verdict;
	enum rank_work work = WORK_NONE;
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		if (!judge_next(r, r->queue->streams[n], &f, &verdict))
			continue;
		if (verdict == VERDICT_WAITS)
			work = WORK_WAITS;
		else if (item_row(r->queue->streams[n]->next)->needs & NEEDS_ACTIVE)
			return WORK_KERNEL;
	}
	return work;
}

void rank_continues_alone(struct rank *r)
{
	struct footprint f;
	enum verdict verdict;
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if (judge_next(r, r->queue->streams[n], &f, &verdict) && verdict == VERDICT_WAITS)
			squash_stop_waiting(r, r->queue->streams[n]->next, &f, verdict);
}

bool rank_runs_for_others(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *s = r->queue->streams[n];
		for (const struct item *i = s->head; i && i != s->next; i = i->next)
			if (i->execution == &i->own && i->own.refs > 1)
				return true;
	}
	return false;
}

static bool is_running(const struct item *i)
{
	return i && i->submitted && i->execution->place == EXECUTION_DEVICE;
}

void rank_mark_running(struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if (is_running(r->queue->streams[n]->head))
			r->queue->streams[n]->head->marked = true;
}

bool rank_runs_marked(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if (is_running(r->queue->streams[n]->head) && r->queue->streams[n]->head->marked)
			return true;
	return false;
}

/* Drops everything queued; none of it is in flight. */
void rank_drop_streams(struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		while (r->queue->streams[n]->head) {
			struct item *i = stream_pop(r, r->queue->streams[n]);
			if (item_row(i)->drop)
				item_row(i)->drop(i);
			item_free(i);
		}
	streams_close(r);
	fence_drop_frees(r);
	waiters_drop(r);
}
