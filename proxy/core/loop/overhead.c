/* overhead.c: overhead: the time in which the device runs nothing because ranks share it, which is
 * what folding costs a job. At each moment the time counts for at most one cause (overhead.h); the
 * clock is read only when the cause changes. While another rank runs, the device is busy, so no
 * overhead is counted.
 */
#include "clock.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "rank/rank.h"

static void count_as(struct proxy *p, struct job *job, enum overhead_kind to)
{
	struct overhead *l = &p->overhead;
	if (l->job == job && (!job || l->to == to))
		return;
	uint64_t now = now_ns();
	if (l->job)
		l->job->overhead_ns[l->to] += now - l->since_ns;
	*l = (struct overhead){.job = job, .to = to, .since_ns = now};
}

static bool is_running(const struct proxy *p)
{
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		if (p->device.ranks[i]->memory.inflight)
			return true;
	return false;
}

static const struct rank *waits_for_memory(const struct proxy *p)
{
	for (uint32_t i = 0; i < p->device.rank_count && !p->slice.target; i++) {
		const struct memory_request *q = &p->device.ranks[i]->memory.request;
		if (q->state && q->purpose == PURPOSE_COPY)
			return p->device.ranks[i];
	}
	return p->slice.target;
}

void overhead_turn(struct proxy *p)
{
	const struct slice *s = &p->slice;
	const struct rank *waits;
	if (is_running(p))
		count_as(p, NULL, 0);
	else if ((waits = waits_for_memory(p)))
		count_as(p, waits->job, OVERHEAD_COPIES);
	else if (s->next)
		count_as(p, s->next->job, OVERHEAD_SWITCHES);
	else if (s->stuck)
		count_as(p, s->stuck, OVERHEAD_WAITING);
	else if (p->overhead.to != OVERHEAD_SWITCHES || !p->device.active || s->idle_since_ns)
		count_as(p, NULL, 0);
}

void overhead_switches(struct rank *r) { count_as(r->proxy, r->job, OVERHEAD_SWITCHES); }

void overhead_forget(const struct job *j)
{
	if (j->proxy->overhead.job == j)
		count_as(j->proxy, NULL, 0);
}

uint64_t overhead_ns(const struct job *j, enum overhead_kind to)
{
	const struct overhead *l = &j->proxy->overhead;
	uint64_t now = l->job == j && l->to == to ? now_ns() - l->since_ns : 0;
	return j->overhead_ns[to] + now;
}
