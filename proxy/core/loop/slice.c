/* slice.c: time-slicing (Singularity §5.1): which rank may run kernels on this device now.
 *
 * Only kernels need a rank to be resident; everything else is served for every rank at any time.
 * The active rank keeps the device until it is *stuck*: no kernel of it can run, none is in
 * flight, and its client is blocked (a request unanswered, the next record held back, queues full)
 * or silent but for queries, since programs poll for ever, for SILENT_NS. After a quantum
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
	r->memory.last_active = ++p->turn;
	p->active = r;
	p->yielding = false;
	p->progress = true;
}

/* Makes it resident, and active when it is. */
static void bring(struct proxy *p, struct rank *r)
{
	r->memory.alone = r->job->attached == 1;
	p->move_target = r;
	memory_begin_activate(&r->memory);
}

static void switch_to(struct proxy *p, struct rank *r)
{
	if (memory_resident(&r->memory) && !memory_moving(&r->memory))
		activate(p, r);
	else
		bring(p, r);
}

void slice_turn(struct proxy *p)
{
	if (p->memory.move_count)
		return;
	if (p->move_target) {
		struct rank *r = p->move_target;
		p->move_target = NULL;
		if (r->memory.error)
			rank_fail(r, r->memory.error, "the device has no room for its memory");
		if (memory_resident(&r->memory))
			activate(p, r);
		else if (!r->async_error)
			bring(p, r); /* room has to be made in several steps */
		return;
	}
	struct rank *active = p->active, *other = next_with_kernel(p);
	if (active && !active->closing) {
		bool kernel = rank_has_kernel(active);
		uint64_t now = now_ns();
		/* Who waited for it may be gone, and the time go on. */
		p->yielding = other && now - p->active_since_ns > p->quantum_ns;
		if (p->yielding && !active->memory.inflight) {
			switch_to(p, other);
			return;
		}
		if (kernel && !memory_resident(&active->memory))
			bring(p, active);
		if (kernel || active->memory.inflight || !other)
			return;
		if (!blocked(active) && now - active->silent_since_ns < SILENT_NS)
			return;
	}
	if (other)
		switch_to(p, other);
}

/* When the active rank's silence is long enough to count, if somebody waits for that. */
uint64_t slice_deadline_ns(const struct proxy *p)
{
	if (!p->active || p->memory.move_count || p->active->memory.inflight ||
	    !next_with_kernel(p))
		return 0;
	return p->active->silent_since_ns + SILENT_NS;
}
