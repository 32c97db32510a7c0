/* slice.c: time-slicing (Singularity §5.1): which rank may run kernels on this device now.
 *
 * Only kernels need a rank to be resident; everything else is served for every rank at any time.
 * The active rank keeps the device until it is *stuck*: no kernel of it can run, none is in
 * flight, and its client is blocked (a request unanswered, the next record held back, queues full)
 * or sent nothing but queries, since programs poll without end, for SILENT_NS. After a quantum
 * another rank with work gets its turn at the next kernel boundary anyway.
 */
#include "internal.h"

#define SILENT_NS 200000ull

static struct rank *next_with_kernel(const struct proxy *p)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < p->rank_count; i++)
		if (p->ranks[i] == p->active)
			at = i + 1;
	for (uint32_t n = 0; n < p->rank_count; n++) {
		struct rank *r = p->ranks[(at + n) % p->rank_count];
		if (r != p->active && !r->closing && rank_has_kernel(r))
			return r;
	}
	return NULL;
}

static bool blocked(const struct rank *r)
{
	return r->replies || r->held || r->full || r->exited || r->async_error;
}

static void activate(struct proxy *p, struct rank *r)
{
	if (p->active != r) {
		r->switches++;
		p->switches++;
		p->active_since_ns = now_ns();
	}
	memory_activated(&r->memory);
	p->active = r;
	p->yielding = false;
	p->progress = true;
}

/* The requested activation has ended. */
static void told(void *rank, enum memory_purpose purpose, int result)
{
	struct rank *r = rank;
	(void)purpose;
	r->proxy->target = NULL;
	if (!result)
		activate(r->proxy, r);
	else if (result != MEMORY_CANCELLED)
		rank_fail(r, result, "the device has no room for its memory");
}

/* Makes it resident, and active when it is. */
static void bring(struct proxy *p, struct rank *r)
{
	r->memory.alone = r->job->attached == 1;
	if (memory_ask(&r->memory, &(struct memory_request){
					   .purpose = PURPOSE_ACTIVATE, .over = told, .arg = r}))
		p->target = r;
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
	return now_ns() - p->active_since_ns > p->quantum_ns;
}

void slice_turn(struct proxy *p)
{
	if (p->target) { /* it may wait for what the active one has */
		p->yielding |= p->active && p->active != p->target && time_is_over(p);
		return;
	}
	struct rank *active = p->active, *other = next_with_kernel(p);
	if (active && !active->closing) {
		bool kernel = rank_has_kernel(active);
		/* Who waited for it may be freed; then the time slice goes on. */
		p->yielding = other && time_is_over(p);
		if (p->yielding && !active->memory.inflight) {
			switch_to(p, other);
			return;
		}
		if (kernel && !memory_resident(&active->memory) && !active->memory.inflight)
			bring(p, active);
		if (kernel || active->memory.inflight || !other)
			return;
		if (!blocked(active) && now_ns() - active->silent_since_ns < SILENT_NS)
			return;
	}
	if (other)
		switch_to(p, other);
}

/* When the active rank's silence is long enough to count, if somebody waits for that. */
uint64_t slice_deadline_ns(const struct proxy *p)
{
	if (!p->active || p->target || p->active->memory.inflight || !next_with_kernel(p))
		return 0;
	return p->active->silent_since_ns + SILENT_NS;
}
