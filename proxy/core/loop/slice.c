/* slice.c: time-slicing (Singularity §5.1): which rank may run kernels on this device now.
 *
 * Only kernels need a rank to be resident; everything else is served for every rank at any time.
 * The active rank keeps the device until it is *stuck*: no kernel of it can run, nothing of it is
 * in flight or has just been over, and nothing that it waits for will come without other ranks of
 * this device. It may come by itself when
 *  - all local ranks have called a collective that it waits for, which therefore completes, and
 *    the rank goes on: the others could do no more than be stuck in the next one. Other devices may
 *    need time for it, or need another rank of this one first: they are waited for as long as the
 *    rank has had the device, and OTHERS_NS at most;
 *  - its client is not blocked (a request unanswered, the next record held back, queues full): it
 *    has SILENT_NS to send something, since it has last or since the device had nothing to do for
 *    it. Queries do not count, since programs poll without end.
 * So a rank that goes on computes until it is stuck in a collective that others have yet to call,
 * and each rank has the device once for each step. After a quantum another rank with work gets its
 * turn at the next kernel boundary anyway.
 */
#include "internal.h"

#define SILENT_NS 200000ull
#define OTHERS_NS 20000000ull

void slice_open(struct proxy *p, uint64_t quantum_ns) { p->slice.quantum_ns = quantum_ns; }

void slice_forget(struct rank *r)
{
	if (r->proxy->slice.active == r)
		r->proxy->slice.active = NULL;
}

static struct rank *next_with_kernel(const struct proxy *p)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < p->rank_count; i++)
		if (p->ranks[i] == p->slice.active)
			at = i + 1;
	for (uint32_t n = 0; n < p->rank_count; n++) {
		struct rank *r = p->ranks[(at + n) % p->rank_count];
		if (r != p->slice.active && !r->end.closing && rank_has_kernel(r))
			return r;
	}
	return NULL;
}

static bool blocked(const struct rank *r)
{
	return r->ring.replies || r->intake.held || r->intake.full || r->end.exited ||
	       r->async_error;
}

static void activate(struct proxy *p, struct rank *r)
{
	if (p->slice.active != r) {
		rank_count_switch(r);
		p->slice.active_since_ns = now_ns();
		p->slice.idle_since_ns = 0;
	}
	memory_activated(&r->memory);
	p->slice.active = r;
	p->slice.yielding = false;
	turn_progress(&p->turn);
}

/* The requested activation has ended. */
static void told(void *rank, enum memory_purpose purpose, int result)
{
	struct rank *r = rank;
	(void)purpose;
	r->proxy->slice.target = NULL;
	if (!result)
		activate(r->proxy, r);
	else if (result != MEMORY_CANCELLED)
		rank_fail(r, result, "the device has no room for its memory");
}

/* Makes it resident, and active when it is. */
static void bring(struct proxy *p, struct rank *r)
{
	memory_alone(&r->memory, r->job->attached == 1);
	if (memory_ask(&r->memory, &(struct memory_request){
					   .purpose = PURPOSE_ACTIVATE, .over = told, .arg = r}))
		p->slice.target = r;
}

static void switch_to(struct proxy *p, struct rank *r)
{
	if (memory_resident(&r->memory) && !memory_moving(&r->memory))
		activate(p, r);
	else
		bring(p, r);
}

static bool time_is_over(const struct proxy *p)
{
	return now_ns() - p->slice.active_since_ns > p->slice.quantum_ns;
}

/* Has the active rank nothing on the device, and can nothing go there now? */
static bool idle(struct slice *s, bool kernel)
{
	const struct rank *r = s->active;
	bool busy = kernel || r->memory.inflight || r->queue.moves != s->moves;
	s->moves = r->queue.moves;
	if (busy)
		s->idle_since_ns = 0;
	else if (!s->idle_since_ns)
		s->idle_since_ns = now_ns();
	return !busy;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The active rank is idle: until when may it go on by itself? */
static uint64_t patience_ns(const struct slice *s)
{
	const struct rank *r = s->active;
	uint64_t until = 0;
	switch (coll_lacks(r->job->coll, r->rank)) {
	case COLL_LACKS_NOBODY: return UINT64_MAX;
	case COLL_LACKS_OTHERS:
		until = s->idle_since_ns +
			earlier(s->idle_since_ns - s->active_since_ns, OTHERS_NS);
		break;
	default: break;
	}
	if (!blocked(r))
		until = later(until,
			      later(s->idle_since_ns, r->intake.silent_since_ns) + SILENT_NS);
	return until;
}

void slice_turn(struct proxy *p)
{
	if (p->slice.target) { /* it may wait for what the active one has */
		p->slice.yielding |= p->slice.active && p->slice.active != p->slice.target &&
				     time_is_over(p);
		return;
	}
	struct rank *active = p->slice.active, *other = next_with_kernel(p);
	if (active && !active->end.closing) {
		bool kernel = rank_has_kernel(active);
		/* Who waited for it may be freed; then the time slice goes on. */
		p->slice.yielding = other && time_is_over(p);
		if (p->slice.yielding && !active->memory.inflight) {
			switch_to(p, other);
			return;
		}
		if (kernel && !memory_resident(&active->memory) && !active->memory.inflight)
			bring(p, active);
		if (!idle(&p->slice, kernel) || !other || now_ns() < patience_ns(&p->slice))
			return;
	}
	if (other)
		switch_to(p, other);
}

/* When the active rank's patience ends, if somebody waits for that. */
uint64_t slice_deadline_ns(const struct proxy *p)
{
	const struct slice *s = &p->slice;
	if (!s->active || s->target || !s->idle_since_ns || !next_with_kernel(p))
		return 0;
	uint64_t until = patience_ns(s);
	return until == UINT64_MAX ? 0 : until;
}
