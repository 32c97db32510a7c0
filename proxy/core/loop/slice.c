/* slice.c: time-slicing (Singularity §5.1): which rank may run kernels on this device now.
 *
 * Only kernels need a resident rank; everything else is served for every rank at any time. The
 * active rank keeps the device until it is *stuck*: none of its kernels can run, nothing of it is
 * in flight or has just completed, and nothing that it waits for will happen without other ranks of
 * this device. It may happen without them when
 *  - all local ranks have called a collective that it waits for. The collective then completes, and
 *    the rank continues: another rank could do no more than get stuck in the next one. Other
 *    devices may need time for it, or need another rank of this device first: the rank waits for
 *    them as long as it has had the device, and OTHERS_NS at most;
 *  - its client is not blocked (by an unanswered request, a next record that is held, or full
 *    queues). It then has SILENT_NS to send something, from its last record or from when the device
 *    had nothing to do for it, whichever is later. Queries do not count, because programs poll
 *    without end.
 * So a rank computes until it is stuck in a collective that others have yet to call, and each rank
 * has the device once per step. After a quantum another rank with work gets its turn at the next
 * kernel boundary anyway: nothing more of the active rank is submitted, and when nothing of it runs
 * its turn is over. A rank that could run a kernel has run one by then, however short the quantum
 * is.
 *
 * But a running kernel may wait for what another stream of its rank does. So if the running work
 * does not end in time, the rank *relents*: the first item of each stream is submitted anyway until
 * all that ran at that moment is complete, and if the next rank waits for free capacity, its
 * request is cancelled. Within a turn, the time until this happens doubles each time. So kernels
 * that do end will eventually end in time, however many there are, and the next rank gets its turn.
 *
 * The next rank is the one that meets the active rank first in the tree of a sum: the contributions
 * of both to an all-reduce are summed then before a third rank computes its own
 * (collective/early_sum.c).
 *
 * The next rank's memory is prefetched once a turn, as far as there is free capacity, while the
 * active rank computes. This begins when the active rank has called a collective that others have
 * yet to call, or only works on the device remain before one in its stream, or its quantum is over.
 *
 * A rank that waits for other ranks (queue/squash.c) cannot run. If nothing else of the job can run
 * either, nothing is in progress and nothing will happen by itself, one such rank continues alone:
 * at once if all clients are blocked; otherwise after ALONE_NS without any event, or after
 * OTHERS_NS if other devices may have to call a collective.
 */
#include "clock.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "queue/ready.h"
#include "rank/fault.h"
#include "rank/rank.h"

#define SILENT_NS 200000ull
#define OTHERS_NS 20000000ull
#define ALONE_NS 1000000ull
#define BLOCKED_NS 250000000ull

void slice_open(struct proxy *p, uint64_t quantum_ns) { p->slice.quantum_ns = quantum_ns; }

void slice_forget(struct rank *r)
{
	if (r->proxy->slice.next == r)
		r->proxy->slice.next = NULL;
	if (r->proxy->device.active == r)
		r->proxy->device.active = NULL;
}

static bool could_run(const struct proxy *p, struct rank *r)
{
	return r && r != p->device.active && !r->end.closing && rank_work(r) == WORK_KERNEL;
}

/* Returns the rank that has waited longest, if that is more than two rounds. */
static struct rank *overdue_rank(const struct proxy *p)
{
	struct rank *found = NULL;
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		struct rank *r = p->device.ranks[i];
		uint64_t since = r->memory.last_active;
		if (p->device.memory.turns - since > 2ull * p->device.rank_count &&
		    (!found || since < found->memory.last_active) && could_run(p, r))
			found = r;
	}
	return found;
}

/* Returns the rank that meets the active rank first in the tree of a sum, which splits at powers of
 * two (collective/tree.h). */
static struct rank *nearest_in_tree(const struct proxy *p)
{
	const struct rank *active = p->device.active;
	const struct job *j = active->job;
	uint32_t places = 1;
	while (places < j->world.size)
		places *= 2;
	for (uint32_t apart = 1; apart < places; apart++) {
		uint32_t n = active->rank ^ apart;
		if (n < j->world.size && could_run(p, j->world.ranks[n]))
			return j->world.ranks[n];
	}
	return NULL;
}

/* Returns the rank that has waited longest: of other jobs than the active rank's, or of all jobs if
 * no rank is active. */
static struct rank *longest_waiting(const struct proxy *p)
{
	const struct rank *active = p->device.active;
	struct rank *found = NULL;
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		struct rank *r = p->device.ranks[i];
		if ((!active || r->job != active->job) &&
		    (!found || r->memory.last_active < found->memory.last_active) &&
		    could_run(p, r))
			found = r;
	}
	return found;
}

/* Determining a rank's work takes long where much is shared: the search ends at the first rank that
 * has some, and examines few ranks twice. */
static struct rank *next_with_kernel(const struct proxy *p)
{
	struct rank *found = overdue_rank(p);
	if (!found && p->device.active)
		found = nearest_in_tree(p);
	return found ? found : longest_waiting(p);
}

static bool is_blocked(const struct rank *r)
{
	return r->ring.replies || r->intake.record_waits || r->intake.full || r->end.exited ||
	       r->async_error;
}

static void activate_rank(struct proxy *p, struct rank *r)
{
	if (p->device.active != r) {
		overhead_switches(r);
		rank_count_switch(r);
		p->slice.active_since_ns = now_ns();
		p->slice.kernels_before = r->counters.kernels;
		p->slice.idle_since_ns = p->slice.announced = 0;
		p->slice.patience_ns = BLOCKED_NS;
		int error = memory_merge(&r->memory);
		if (error)
			rank_fail(r, error, "its memory could not be mapped");
	}
	memory_activated(&r->memory);
	p->device.active = r;
	p->device.yielding = p->device.yield_relaxed = false;
	p->slice.blocked_since_ns = 0;
	turn_progress(&p->device.turn);
}

/* The requested activation has ended. */
static void activation_ended(void *rank, enum memory_purpose purpose, int result)
{
	struct rank *r = rank;
	(void)purpose;
	r->proxy->slice.target = NULL;
	if (!result)
		activate_rank(r->proxy, r);
	else if (result != MEMORY_CANCELLED)
		rank_fail(r, result, "the device has no space for its memory");
}

/* Makes the rank resident, and then active. */
static void bring_to_active(struct proxy *p, struct rank *r)
{
	memory_alone(&r->memory, r->job->world.attached == 1);
	if (memory_request(&r->memory, &(struct memory_request){.purpose = PURPOSE_ACTIVATE,
								.on_end = activation_ended,
								.arg = r}))
		p->slice.target = r;
}

static void switch_to(struct proxy *p, struct rank *r)
{
	if (memory_resident(&r->memory) && !memory_moving(&r->memory))
		activate_rank(p, r);
	else
		bring_to_active(p, r);
}

static bool quantum_expired(const struct proxy *p)
{
	struct rank *r = p->device.active;
	return r && now_ns() - p->slice.active_since_ns > p->slice.quantum_ns &&
	       (r->counters.kernels != p->slice.kernels_before || rank_work(r) != WORK_KERNEL);
}

/* True if the active rank has nothing on the device, and nothing can be submitted now. */
static bool is_idle(struct proxy *p, bool kernel)
{
	struct slice *s = &p->slice;
	const struct rank *r = p->device.active;
	bool busy = kernel || r->memory.inflight || r->queue->moves != s->moves;
	s->moves = r->queue->moves;
	if (busy)
		s->idle_since_ns = 0;
	else if (!s->idle_since_ns)
		s->idle_since_ns = now_ns();
	return !busy;
}

static uint64_t earlier_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The active rank is idle: returns until when it may continue by itself. */
static uint64_t patience_ns(const struct proxy *p)
{
	const struct slice *s = &p->slice;
	const struct rank *r = p->device.active;
	uint64_t until = 0;
	switch (coll_lacks(r->job->world.coll, r->rank)) {
	case COLL_LACKS_NO_RANK: return UINT64_MAX;
	case COLL_LACKS_OTHERS:
		until = s->idle_since_ns +
			earlier_of(s->idle_since_ns - s->active_since_ns, OTHERS_NS);
		break;
	default: break;
	}
	if (!is_blocked(r))
		until = later_of(until,
				 later_of(s->idle_since_ns, r->intake.silent_since_ns) + SILENT_NS);
	return until;
}

/* ---- ranks that wait for others without success ---- */

/* True if some rank of the job waits for others and nothing of the job can happen by itself. Sets
 * `moves` to what has happened so far, and `patience` to how long the others may take. */
static bool is_stuck(const struct job *j, uint64_t *moves, uint64_t *patience)
{
	bool waits = false;
	*moves = *patience = 0;
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		if (!r)
			continue;
		enum rank_work work = rank_work(r);
		enum coll_lack lack = coll_lacks(j->world.coll, n);
		if (work == WORK_KERNEL || r->memory.inflight || memory_moving(&r->memory) ||
		    memory_waits(&r->memory) || lack == COLL_LACKS_NO_RANK)
			return false;
		waits |= work == WORK_WAITS;
		if (!is_blocked(r) || r->pending)
			*patience = later_of(*patience, ALONE_NS);
		if (lack == COLL_LACKS_OTHERS)
			*patience = OTHERS_NS;
		*moves += r->queue->moves + r->intake.records - r->intake.queries;
	}
	return waits && !transfer_pending_for(&j->proxy->transfers, j);
}

/* Lets one of the waiting ranks continue alone; the others may follow. */
static void continue_alone(const struct job *j)
{
	for (uint32_t n = 0; n < j->world.size; n++) {
		if (!j->world.ranks[n] || rank_work(j->world.ranks[n]) != WORK_WAITS)
			continue;
		rank_continues_alone(j->world.ranks[n]);
		j->proxy->slice.lone_continuations++;
		turn_progress(&j->proxy->device.turn);
		return;
	}
}

static void find_stuck_job(struct proxy *p, const struct job *last)
{
	struct slice *s = &p->slice;
	uint64_t moves, patience;
	struct job *j = p->jobs;
	while (j && !is_stuck(j, &moves, &patience))
		j = j->next;
	if (j && (last != j || s->stuck_moves != moves)) {
		s->stuck_moves = moves;
		s->stuck_since_ns = now_ns();
	}
	s->stuck = j;
	if (!j)
		return;
	s->stuck_until_ns = s->stuck_since_ns + patience;
	if (now_ns() >= s->stuck_until_ns)
		continue_alone(j);
}

/* ---- running work that may wait for work that is not submitted ---- */

static void relax_yield(struct proxy *p)
{
	struct slice *s = &p->slice;
	p->device.yield_relaxed = true;
	s->patience_ns *= 2;
	rank_mark_running(p->device.active);
	if (s->target && s->target->memory.request.state == REQUEST_WAITING)
		memory_cancel(&s->target->memory);
	turn_progress(&p->device.turn);
}

static void set_yielding(struct proxy *p, bool yields)
{
	struct slice *s = &p->slice;
	bool holds = p->device.active && (yields || (s->target && s->target != p->device.active)) &&
		     p->device.active->memory.inflight;
	p->device.yielding = p->device.active && yields;
	if (p->device.yield_relaxed && holds && rank_runs_marked(p->device.active))
		return;
	if (!holds || p->device.yield_relaxed || !s->blocked_since_ns)
		s->blocked_since_ns = holds ? now_ns() : 0;
	p->device.yield_relaxed = false;
	if (holds && now_ns() >= s->blocked_since_ns + s->patience_ns)
		relax_yield(p);
}

/* ---- turns ---- */

/* True if some other local rank has no collective in progress. */
static bool others_to_call(const struct rank *active)
{
	const struct job *j = active->job;
	bool found = false;
	for (uint32_t n = 0; n < j->world.size && !found; n++)
		found = j->world.ranks[n] && j->world.ranks[n] != active &&
			coll_lacks(j->world.coll, n) == COLL_LACKS_NONE;
	return found;
}

/* True if the active rank has called a collective that others of this device have yet to call, or
 * will call one when the works of one of its streams on the device are complete. The latter is
 * reported once per collective, so that the next rank is not determined every turn. */
static bool ends_soon(struct proxy *p)
{
	const struct rank *active = p->device.active;
	enum coll_lack lack = coll_lacks(active->job->world.coll, active->rank);
	uint64_t before = lack == COLL_LACKS_NONE ? ready_before_collective(active) : 0;
	bool newly_announced = before && before != p->slice.announced && others_to_call(active);
	if (newly_announced)
		p->slice.announced = before;
	return newly_announced || lack == COLL_LACKS_LOCAL;
}

/* Prefetches `r`, which is next, as the active rank's turn is about to end. NULL: no rank is
 * next. */
static void prefetch(struct proxy *p, struct rank *r)
{
	if (!r)
		return;
	p->slice.prepared = p->device.memory.turns;
	if (memory_resident(&r->memory) || r->job->world.state != PROXY_JOB_RUNNING)
		return;
	memory_alone(&r->memory, r->job->world.attached == 1);
	memory_request(&r->memory, &(struct memory_request){.purpose = PURPOSE_PREFETCH});
}

void slice_turn(struct proxy *p)
{
	const struct job *stuck = p->slice.stuck;
	p->slice.stuck = NULL;
	p->slice.next = NULL;
	if (p->slice.target) { /* it may wait for memory of the active rank */
		set_yielding(p, p->device.yielding || (p->device.active != p->slice.target &&
						       quantum_expired(p)));
		return;
	}
	struct rank *active = p->device.active, *other;
	if (active && !active->end.closing) {
		bool kernel = rank_work(active) == WORK_KERNEL, over = quantum_expired(p);
		bool busy = !is_idle(p, kernel), leaves = !busy || over;
		bool prefetches = !p->no_prefetch && p->slice.prepared != p->device.memory.turns &&
				  (over || ends_soon(p));
		other = leaves || prefetches ? next_with_kernel(p) : NULL;
		if (prefetches)
			prefetch(p, other);
		other = leaves ? other : NULL;
		/* The rank that waited may be gone (NULL); then the active rank's time slice
		 * continues. */
		set_yielding(p, other && over);
		if (p->device.yielding && !active->memory.inflight) {
			switch_to(p, other);
			return;
		}
		if (kernel && !memory_resident(&active->memory) &&
		    (!active->memory.inflight || memory_grows(&active->memory)))
			bring_to_active(p, active);
		if (!busy || over)
			find_stuck_job(p, stuck);
		if (busy || !other)
			return;
		if (now_ns() < patience_ns(p)) {
			p->slice.next = other;
			return;
		}
	} else {
		p->slice.blocked_since_ns = 0;
		other = next_with_kernel(p);
		find_stuck_job(p, stuck);
	}
	if (other)
		switch_to(p, other);
}

/* Returns when the active rank's patience or quantum ends, if another rank waits for that; or when
 * the patience of stuck ranks ends. */
uint64_t slice_deadline_ns(const struct proxy *p)
{
	const struct slice *s = &p->slice;
	uint64_t stuck = s->stuck ? s->stuck_until_ns : UINT64_MAX, until = UINT64_MAX;
	bool idles = p->device.active && !s->target && s->idle_since_ns;
	bool runs = p->device.active && p->device.active != s->target && !p->device.yielding;
	if ((idles || runs) && next_with_kernel(p)) {
		until = idles ? patience_ns(p) : until;
		until = runs ? earlier_of(until, s->active_since_ns + s->quantum_ns + 1) : until;
	}
	until = earlier_of(until, stuck);
	if (s->blocked_since_ns && !p->device.yield_relaxed)
		until = earlier_of(until, s->blocked_since_ns + s->patience_ns);
	return until == UINT64_MAX ? 0 : until;
}
