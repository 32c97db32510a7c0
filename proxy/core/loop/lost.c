/* lost.c: overhead: the time in which the device runs nothing because ranks share it, which is what
 * folding costs a job. At each moment the time counts for at most one cause (lost.h); the clock is
 * read only when the cause changes. While another rank runs, the device is busy, so no overhead is
 * counted.
 */
#include "internal.h"

static void become(struct proxy *p, struct job *job, enum lost_to to)
{
	struct lost *l = &p->lost;
	if (l->job == job && (!job || l->to == to))
		return;
	uint64_t now = now_ns();
	if (l->job)
		l->job->lost_ns[l->to] += now - l->since_ns;
	*l = (struct lost){.job = job, .to = to, .since_ns = now};
}

static bool runs(const struct proxy *p)
{
	for (uint32_t i = 0; i < p->rank_count; i++)
		if (p->ranks[i]->memory.inflight)
			return true;
	return false;
}

static const struct rank *waits_for_memory(const struct proxy *p)
{
	for (uint32_t i = 0; i < p->rank_count && !p->slice.target; i++) {
		const struct memory_request *q = &p->ranks[i]->memory.request;
		if (q->state && q->purpose == PURPOSE_COPY)
			return p->ranks[i];
	}
	return p->slice.target;
}

void lost_turn(struct proxy *p)
{
	const struct slice *s = &p->slice;
	const struct rank *waits;
	if (runs(p))
		become(p, NULL, 0);
	else if ((waits = waits_for_memory(p)))
		become(p, waits->job, LOST_TO_COPIES);
	else if (s->next)
		become(p, s->next->job, LOST_TO_SWITCHES);
	else if (s->stuck)
		become(p, s->stuck, LOST_TO_WAITING);
	else if (p->lost.to != LOST_TO_SWITCHES || !s->active || s->idle_since_ns)
		become(p, NULL, 0);
}

void lost_switches(struct rank *r) { become(r->proxy, r->job, LOST_TO_SWITCHES); }

void lost_forget(const struct job *j)
{
	if (j->proxy->lost.job == j)
		become(j->proxy, NULL, 0);
}

uint64_t lost_ns(const struct job *j, enum lost_to to)
{
	const struct lost *l = &j->proxy->lost;
	uint64_t now = l->job == j && l->to == to ? now_ns() - l->since_ns : 0;
	return j->lost_ns[to] + now;
}
