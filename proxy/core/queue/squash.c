/* squash.c: squashing (Singularity §5.2.3): an item that would write memory that several ranks
 * share waits until all of them have reached the same, and then runs once, in place, for all; or
 * its rank first gets memory of its own and runs it alone.
 *
 * This concerns kernels, products, fills and copies within the device. Items are the same if they
 * have the same key (of everything that decides what is written, queue/effects.c) and write to the
 * same addresses. All ranks that share the written memory must take part, each with an item that
 * could be submitted now except that another rank is active.
 *
 * Rules:
 *  - nothing is ever rolled back: shared memory is unchanged until all take part, and a rank that
 *    runs alone writes to a copy;
 *  - correctness does not depend on which rank waits for which: the verdict ALONE is always right;
 *  - a rank waits for another only while that may still reach the same: slice.c lets it run alone
 *    when nothing else can happen. Waiting without success is followed by a backoff (backoff);
 *  - a fill does not wait while there is free capacity for all: a rank that waits gives up the
 *    device for work that costs less than that, and each rank is about to add to the filled memory
 *    (gradients) and would copy it then;
 *  - what runs for several ranks uses the memory of each (memory_use): meanwhile pages neither move
 *    nor become shared;
 *  - the device's queues are independent: an item after one that completes on another stream's work
 *    is submitted when that is complete (stream_on_other_queue), unless it goes to the same queue;
 *  - shared pages may be writable in one rank's space only while nothing runs there except squashed
 *    kernels, and sums, whose writes are known: a fault there is a fault of all who take part. The
 *    pages stay open for the next such kernel while nothing else runs, the rank is active and no
 *    rank requests memory. They are opened while the sum before it is computed. Both serve to save
 *    system calls: each opening and closing is one, and interrupts the device's workers;
 *  - an item with a key writes only to its ranges. If it writes elsewhere, that is a bug of
 *    rankfold, and an error of all who take part (execution.c);
 *  - an item that may write anywhere runs while nothing else of its rank is submitted, behind a
 *    fence (memory_fence): so the footprints of other items stay valid;
 *  - a kernel may wait for what another stream of its rank writes. So where a copy can be made
 *    under running work, the first item of a stream waits for running work no longer than
 *    CONCURRENT_NS. After that, until nothing runs, it runs alone, even if the running work was
 *    squashed: a fault of it is then a fault of all. Only items that may write anywhere continue to
 *    wait, and those that wait for them.
 */
#include "queue/squash.h"

#include <stddef.h>
#include <string.h>

#include "invariant.h"
#include "queue/queue_parts.h"
#include "queue/ready.h"

#define SKIP_MAX 63u
#define CONCURRENT_NS 250000000ull
#define WORKS_MAX 32u /* of one item, submitted at once: a device queue has space for them */

static struct rank *rank_of(struct rank_memory *m)
{
	return (struct rank *)(void *)((uint8_t *)m - offsetof(struct rank, memory));
}

/* ---- what is written ---- */

static bool is_written(const struct range *range) { return range->use & REACH_WRITTEN; }

static bool owns_written(const struct rank *r, const struct footprint *f)
{
	if (!f->known)
		return memory_owns(&r->memory, RF_DEV_BASE, RF_HEAP_BYTES);
	for (uint32_t n = 0; n < f->count; n++)
		if (is_written(&f->ranges[n]) &&
		    !memory_owns(&r->memory, f->ranges[n].addr, f->ranges[n].bytes))
			return false;
	return true;
}

static uint32_t all_written(const struct footprint *f, struct memory_range to[RANGES_MAX])
{
	uint32_t count = 0;
	for (uint32_t n = 0; n < f->count; n++)
		if (is_written(&f->ranges[n]))
			to[count++] = (struct memory_range){f->ranges[n].addr, f->ranges[n].bytes};
	return count;
}

static uint64_t chunks_of(const struct range *range)
{
	uint64_t first = range->addr / RF_CHUNK_BYTES;
	return (range->addr + range->bytes + RF_CHUNK_BYTES - 1) / RF_CHUNK_BYTES - first;
}

/* True if each of so many ranks could have its own copy of what is written. One of them keeps the
 * original. */
static bool chunks_for_all(const struct rank *r, const struct footprint *f, uint32_t sharers)
{
	uint64_t chunks = 0;
	for (uint32_t n = 0; n < f->count; n++)
		chunks += is_written(&f->ranges[n]) ? chunks_of(&f->ranges[n]) : 0;
	return memory_has_chunks(&r->memory, (sharers - 1) * chunks);
}

/* True if both write the same content to the same addresses. */
static bool same_writes(const struct footprint *f, const struct footprint *g)
{
	bool same = f->keyed && g->keyed && f->key.a == g->key.a && f->key.b == g->key.b &&
		    f->count == g->count;
	for (uint32_t n = 0; n < f->count && same; n++) {
		const struct range *x = &f->ranges[n], *y = &g->ranges[n];
		same = is_written(x) == is_written(y) &&
		       (!is_written(x) || (x->addr == y->addr && x->bytes == y->bytes));
	}
	return same;
}

static bool writes_overlap(const struct footprint *f, const struct footprint *g)
{
	if (!f->known || !g->known)
		return true;
	for (uint32_t n = 0; n < f->count; n++)
		for (uint32_t k = 0; k < g->count; k++) {
			const struct range *x = &f->ranges[n], *y = &g->ranges[k];
			if (is_written(x) && is_written(y) && x->addr < y->addr + y->bytes &&
			    y->addr < x->addr + x->bytes)
				return true;
		}
	return false;
}

/* ---- backoff ---- */

static struct backoff *backoff_of(struct rank *r, const struct item *i, const struct footprint *f,
				  uint64_t *what)
{
	uint64_t h = i->kind == ITEM_KERNEL ? i->kernel.function->o.id : i->kind;
	for (uint32_t n = 0; n < f->count; n++)
		if (is_written(&f->ranges[n]))
			h = (h ^ f->ranges[n].addr) * 0x9e3779b97f4a7c15ull;
	*what = h;
	return &r->queue->squashing.backoffs[h >> 59];
}

static bool must_not_wait(struct rank *r, const struct item *i, const struct footprint *f)
{
	uint64_t what;
	const struct backoff *backoff = backoff_of(r, i, f, &what);
	return backoff->what == what && backoff->skip;
}

/* True if it ran for all sharers the last time. */
static bool ran_together(struct rank *r, const struct item *i, const struct footprint *f)
{
	uint64_t what;
	const struct backoff *backoff = backoff_of(r, i, f, &what);
	return backoff->what == what && backoff->together;
}

static void not_together(struct rank *r, const struct item *i, const struct footprint *f)
{
	uint64_t what;
	struct backoff *backoff = backoff_of(r, i, f, &what);
	backoff->together &= backoff->what != what;
}

/* Records whether waiting for it was successful. */
static void record_outcome(struct rank *r, const struct item *i, const struct footprint *f,
			   enum verdict verdict)
{
	uint64_t what;
	struct backoff *backoff = backoff_of(r, i, f, &what);
	if (backoff->what != what)
		*backoff = (struct backoff){.what = what};
	backoff->together = verdict == VERDICT_TOGETHER;
	if (verdict == VERDICT_TOGETHER) {
		backoff->skip = backoff->next = 0;
	} else if (verdict == VERDICT_IMPATIENT) {
		backoff->skip--;
	} else {
		uint32_t next = 2u * backoff->next + 1;
		backoff->next = (uint8_t)(next < SKIP_MAX ? next : SKIP_MAX);
		backoff->skip = backoff->next;
	}
}

/* ---- participants ---- */

/* True if everything submitted of this stream is complete, or precedes whatever is added to that
 * queue. */
static bool queue_orders(struct rank *r, const struct stream *s, const struct hal_stream *queue)
{
	for (const struct item *i = s->head; i && i != s->next; i = i->next)
		if (!(i->execution->place == EXECUTION_DEVICE && !i->execution->reported &&
		      i->execution->queue == queue) &&
		    !execution_done(r, i->execution))
			return false;
	return true;
}

/* The rank has no such item now: returns whether it may reach one. At a cut nothing waits, and a
 * rank that ends is detached as soon as it has nothing left. */
static bool may_come(struct rank *o, const struct footprint *f)
{
	if (o->world->state != PROXY_JOB_RUNNING && o->intake.record_waits)
		return false; /* its ring is not read again before the cut is released */
	for (uint32_t n = 0; n < f->count; n++) {
		const struct buffer *b = memory_find(&o->memory, f->ranges[n].addr);
		if (is_written(&f->ranges[n]) && (!b || b->freed))
			return false;
	}
	return true;
}

/* Judges whether the rank has reached the same. TOGETHER: with the next item of *with. */
static enum verdict judge_partner(struct rank *o, const struct hal_stream *queue,
				  const struct footprint *f, struct stream **with)
{
	/* memory_may_open would refuse the item later while the page is copied */
	bool still = !memory_moving(&o->memory) && !memory_waits(&o->memory) && !o->memory.fenced;
	struct footprint g;
	if (o->async_error)
		return VERDICT_ALONE;
	for (uint32_t n = 0; n < o->queue->stream_count; n++) {
		struct stream *s = o->queue->streams[n];
		if (!ready_open(o, s) || !item_row(s->next)->find_footprint ||
		    ready_item(s->next) != ITEM_READY)
			continue; /* a begun item writes memory that its rank owns: none of these */
		item_row(s->next)->find_footprint(o, s->next, &g);
		*with = s;
		if (same_writes(f, &g))
			return still && queue_orders(o, s, queue) ? VERDICT_TOGETHER
								  : VERDICT_WAITS;
		if (writes_overlap(f, &g))
			return VERDICT_DIVERGES;
	}
	return may_come(o, f) ? VERDICT_WAITS : VERDICT_ALONE;
}

static uint64_t count_works(const struct item *i)
{
	return item_row(i)->works ? item_row(i)->works(i) : 1;
}

/* True if the item can run alone next to running work, without waiting for that. */
static bool runs_concurrently(struct rank *r, const struct footprint *f)
{
	bool beneath = r->queue->squashing.concurrent;
	for (uint32_t n = 0; n < f->count && beneath; n++) {
		const struct range *range = &f->ranges[n];
		beneath = !is_written(range) ||
			  memory_owns(&r->memory, range->addr, range->bytes) ||
			  memory_copies_while_running(&r->memory, range->addr, range->bytes);
	}
	return beneath;
}

/* True if all sharers could take part in the item. */
static bool may_squash(struct rank *r, const struct item *i, const struct footprint *f)
{
	return f->keyed && !i->own_run && !r->device->no_squash && !r->memory.distrusted &&
	       !runs_concurrently(r, f) && count_works(i) <= WORKS_MAX;
}

enum verdict squash_judge(struct rank *r, const struct stream *s, const struct item *i,
			  const struct footprint *f, struct team *team)
{
	struct memory_range ranges[RANGES_MAX];
	struct rank_memory *sharers[RANKS_MAX];
	enum verdict verdict = VERDICT_TOGETHER;
	bool exactly;
	team->count = 0;
	if (owns_written(r, f))
		return VERDICT_OWNED;
	if (!may_squash(r, i, f))
		return VERDICT_ALONE;
	uint32_t count = memory_sharers(&r->memory, ranges, all_written(f, ranges), sharers,
					RANKS_MAX, &exactly);
	if (!exactly)
		return VERDICT_ALONE;
	for (uint32_t n = 0; n < count; n++) {
		struct rank *o = rank_of(sharers[n]);
		if (o == r)
			continue;
		enum verdict its = judge_partner(o, s->hal, f, &team->streams[team->count]);
		if (its > VERDICT_WAITS)
			return its;
		team->members[team->count++] = o;
		verdict = its > verdict ? its : verdict;
	}
	if (verdict == VERDICT_TOGETHER && memory_resident(&r->memory))
		return verdict; /* otherwise another resident rank may submit it */
	if (i->kind == ITEM_FILL && chunks_for_all(r, f, count))
		return VERDICT_ALONE;
	return must_not_wait(r, i, f) ? VERDICT_IMPATIENT : VERDICT_WAITS;
}

/* Waiting without success counts for the other ranks, too: they run the same program and reach the
 * item next. */
void squash_stop_waiting(struct rank *r, struct item *i, const struct footprint *f,
			 enum verdict verdict)
{
	bool first = !i->own_run && verdict != VERDICT_ALONE;
	not_together(r, i, f);
	for (uint32_t n = 0; n < r->world->size && first && verdict != VERDICT_IMPATIENT; n++)
		if (r->world->ranks[n] && r->world->ranks[n] != r)
			record_outcome(r->world->ranks[n], i, f, verdict);
	if (first)
		record_outcome(r, i, f, verdict);
	i->own_run = true;
}

/* ---- running ---- */

/* Notes that the item waits for other ranks, or for running work. Only the first item of a stream
 * counts, which can wait for work of other streams only: running work of its own stream does not
 * wait for later items. */
static bool note_waiting(struct rank *r, const struct stream *own, const struct item *i)
{
	struct squashing *s = &r->queue->squashing;
	if (!s->waiting && own->head == i)
		s->waiting = i;
	return true;
}

void squash_not_first(struct rank *r, const struct item *i)
{
	if (r->queue->squashing.first == i)
		r->queue->squashing.first = NULL;
}

bool squash_must_wait(struct rank *r, const struct stream *own, const struct item *i)
{
	struct squashing *s = &r->queue->squashing;
	bool behind = s->first && s->first != i && r->device->active == r && !s->concurrent;
	s->fence_waits |= r->memory.fenced;
	return (r->memory.fenced || behind) && note_waiting(r, own, i);
}

/* True if nothing else of the rank runs, and memory where it may write unforeseen is
 * write-protected. */
static bool fence_set(struct rank *r, const struct footprint *f)
{
	struct memory_range ranges[RANGES_MAX];
	if (!f->known || !f->writes_outside || !memory_fences(&r->memory))
		return true;
	if (r->queue->squashing.fence_waits)
		return false;
	int error = memory_fence(&r->memory, ranges, all_written(f, ranges), f->trusted);
	if (error && error != CU_NOT_READY)
		rank_fail(r, error,
			  "memory that it may write outside its footprint could not be "
			  "write-protected");
	return !error;
}

static void close_all(struct rank *r)
{
	if (r->queue->squashing.open && memory_close_shared(&r->memory, UINT32_MAX))
		r->queue->squashing.open = false;
}

/* Opens the shared pages that the item writes. An item that may write anywhere must find none open.
 * Opens all or none: partly opened pages would be closed and opened again in each turn while the
 * item waits. */
static bool pages_opened(struct rank *r, const struct footprint *f)
{
	if (f->writes_outside)
		close_all(r);
	if (f->writes_outside && r->queue->squashing.open)
		return false;
	for (uint32_t n = 0; n < f->count; n++)
		if (is_written(&f->ranges[n]) &&
		    !memory_may_open(&r->memory, f->ranges[n].addr, f->ranges[n].bytes))
			return false;
	for (uint32_t n = 0; n < f->count; n++) {
		const struct range *range = &f->ranges[n];
		if (!is_written(range))
			continue;
		r->queue->squashing.open = true;
		int error = memory_open_shared(&r->memory, range->addr, range->bytes);
		if (error == CU_NOT_READY)
			return false;
		if (error)
			rank_fail(r, error, "memory that it shares could not be made writable");
	}
	return true;
}

static void copy_ended(void *rank, enum memory_purpose purpose, int result)
{
	(void)purpose;
	if (result && result != MEMORY_CANCELLED)
		rank_fail(rank, result,
			  "the device has no space for its own copy of the memory that the rank "
			  "writes");
}

/* Requests a copy of the first range that the rank will write and does not own. */
static void request_copy(struct rank *r, const struct item *i, const struct footprint *f)
{
	struct memory_request q = {.purpose = PURPOSE_COPY,
				   .addr = RF_DEV_BASE,
				   .bytes = RF_HEAP_BYTES,
				   .once = opaque_measured(r, i),
				   .on_end = copy_ended,
				   .arg = r};
	for (uint32_t n = 0; n < f->count && f->known; n++) {
		const struct range *range = &f->ranges[n];
		if (!is_written(range) || memory_owns(&r->memory, range->addr, range->bytes))
			continue;
		q.addr = range->addr;
		q.bytes = range->bytes;
		break;
	}
	memory_request(&r->memory, &q);
}

/* An item that runs for this rank alone is not squashed: no shared page may be open then. */
static bool pages_closed(struct rank *r, const struct item *i, const struct footprint *f)
{
	if (item_row(i)->needs & NEEDS_ACTIVE)
		close_all(r);
	return !(item_row(i)->needs & NEEDS_ACTIVE) || !r->queue->squashing.open ||
	       (r->queue->squashing.concurrent && f->known && !f->writes_outside);
}

bool squash_may(struct rank *r, const struct stream *s, struct item *i, const struct footprint *f,
		struct team *team)
{
	enum verdict verdict = squash_judge(r, s, i, f, team);
	bool may = (verdict == VERDICT_OWNED && pages_closed(r, i, f) && fence_set(r, f)) ||
		   (verdict == VERDICT_TOGETHER &&
		    count_works(i) <= r->device->hal->available(s->hal) && pages_opened(r, f));
	squash_not_first(r, i);
	if (verdict <= VERDICT_TOGETHER) {
		/* otherwise items that a fence held are first */
		if (!may && !r->queue->squashing.fence_waits)
			r->queue->squashing.first = i;
	} else if (verdict != VERDICT_WAITS) {
		squash_stop_waiting(r, i, f, verdict);
		request_copy(r, i, f);
	}
	return may ? !r->async_error : !note_waiting(r, s, i);
}

bool squash_skips(struct rank *r, const struct stream *s, const struct item *i, bool now)
{
	squash_not_first(r, i);
	if (!now)
		r->queue->squashing.first = i;
	return now || !note_waiting(r, s, i);
}

void squash_join(struct rank *r, struct item *i, struct footprint *f, const struct team *team)
{
	if (i->execution->place != EXECUTION_DEVICE)
		return;                          /* the device has refused it */
	f->key = content_version(&r->memory, f); /* the same for all, whatever the result */
	f->unordered = false;
	i->execution->memory = &r->memory;
	record_outcome(r, i, f, VERDICT_TOGETHER);
	for (uint32_t n = 0; n < team->count; n++) {
		struct rank *o = team->members[n];
		struct item *its = team->streams[n]->next;
		struct footprint g;
		INVARIANT(its && !its->submitted && o->memory.group == r->memory.group,
			  "a rank that takes part is of the group and has an item to submit");
		item_row(its)->find_footprint(o, its, &g);
		g.key = f->key;
		g.unordered = false;
		squash_not_first(o, its);
		item_share(its, i->execution);
		memory_use(&o->memory);
		item_row(its)->effect(o, its, &g);
		stream_submitted(team->streams[n]);
		if (item_row(its)->needs & NEEDS_ACTIVE)
			rank_count_kernel(o);
		rank_count_squashed(o);
	}
}

/* Returns the item right after a collective in progress; NULL if there is none, or if something
 * else may begin before it. */
static const struct item *behind_sum(const struct rank *r)
{
	const struct item *found = NULL;
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *s = r->queue->streams[n];
		const struct item *i = s->next;
		if (!i)
			continue;
		if (ready_open(r, s))
			return NULL;
		if (s->head->kind == ITEM_COLLECTIVE && s->head->next == i &&
		    item_row(i)->needs & NEEDS_ACTIVE && item_row(i)->find_footprint &&
		    ready_item(i) == ITEM_READY)
			found = i;
	}
	return found;
}

/* Between a sum and an update the device has nothing to run and would wait for system calls: so
 * they are made while it sums. If the update ran for all the last time but runs alone now, its
 * pages are closed again first. One range per turn: the sum's next part may have to be
 * submitted. */
static void open_early(struct rank *r)
{
	struct squashing *s = &r->queue->squashing;
	const struct device *d = r->device;
	bool adds = d->active == r && memory_only_exact(&r->memory) && !d->memory.requests &&
		    coll_lacks(r->world->coll, r->rank) != COLL_LACKS_LOCAL;
	const struct item *i = adds ? behind_sum(r) : NULL;
	struct footprint f;
	s->early = i ? s->early : 0;
	if (!i || s->early > RANGES_MAX)
		return;
	item_row(i)->find_footprint(r, i, &f);
	bool may = f.known && !f.writes_outside && !i->own_run && ran_together(r, i, &f);
	while (may && s->early < f.count) {
		const struct range *range = &f.ranges[s->early++];
		if (!is_written(range) || memory_owns(&r->memory, range->addr, range->bytes))
			continue;
		s->open = true;
		/* or later, for the item */
		memory_open_shared(&r->memory, range->addr, range->bytes);
		turn_progress(&r->device->turn);
		return;
	}
	s->early = RANGES_MAX + 1;
}

/* Closes one page per turn, so that new items are considered in between. */
static void close_some(struct rank *r)
{
	const struct device *d = r->device;
	struct squashing *s = &r->queue->squashing;
	bool stays = d->active == r && !d->memory.requests;
	if (!s->open || stays || r->memory.inflight || memory_moving(&r->memory))
		return;
	s->open = !memory_close_shared(&r->memory, 1);
	turn_progress(&r->device->turn);
}

/* Sets `concurrent` if an item has waited long while work ran that may wait for it. */
static void check_concurrent(struct rank *r)
{
	struct squashing *s = &r->queue->squashing;
	bool waits = s->waiting && r->memory.inflight && r->device->hal->space_own;
	s->concurrent &= r->memory.inflight != 0;
	if (!waits || s->waiting != s->fruitless)
		s->fruitless_since_ns = waits ? now_ns() : 0;
	s->fruitless = waits ? s->waiting : NULL;
	s->waiting = NULL;
	if (!waits || s->concurrent || now_ns() < s->fruitless_since_ns + CONCURRENT_NS)
		return;
	s->concurrent = true;
	turn_progress(&r->device->turn);
}

uint64_t squash_deadline_ns(const struct rank *r)
{
	const struct squashing *s = &r->queue->squashing;
	return s->fruitless && !s->concurrent ? s->fruitless_since_ns + CONCURRENT_NS : 0;
}

void squash_turn(struct rank *r)
{
	open_early(r);
	close_some(r);
	check_concurrent(r);
	if (!r->queue->squashing.fence_waits || r->memory.fenced)
		return;
	r->queue->squashing.fence_waits = false;
	turn_progress(&r->device->turn);
}

static bool is_next(const struct rank *r, const struct item *i)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		if (r->queue->streams[n]->next == i)
			return true;
	return false;
}

const char *squash_invalid(const struct rank *r)
{
	const struct squashing *s = &r->queue->squashing;
	bool open = false;
	WRONG(s->first && !is_next(r, s->first), "an item before which nothing begins is next");
	WRONG(s->early > RANGES_MAX + 1, "ranges that were considered for early opening");
	for (uint32_t n = 0; n < BACKOFFS; n++) {
		const struct backoff *backoff = &s->backoffs[n];
		WRONG(backoff->skip > backoff->next || backoff->next > SKIP_MAX,
		      "a rank skips no more waits than the last backoff says");
	}
	for (uint32_t i = 0; i < r->memory.live_count && r->memory.write_protected; i++)
		open |= r->memory.pages[r->memory.live[i]].open;
	WRONG(open && !s->open, "a rank knows that it has shared pages open");
	return NULL;
}
