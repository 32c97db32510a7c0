/* opaque_turn.c: measures opaque kernels of ranks (opaque/opaque.h); the ranks of a device vote on
 * what they did. If ranks whose launches did the same begin to differ, the job gets an alarm on all
 * its devices (alarm.c).
 */
#include "loop/opaque_turn.h"

#include "clock.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "queue/opaque_launch.h"
#include "rank/rank.h"

static void vote_on_measured(struct rank *r)
{
	struct dissent dissent;
	if (launches_vote(&r->job->world.launches, &r->measure.it, &dissent))
		crosscheck_dissent(r->job, r->measure.name, &dissent);
}

static bool measuring_turn(struct rank *r)
{
	bool gives_up = r->async_error || r->end.closing || !opaque_folded(r);
	enum measure_is is = measure_turn(&r->measure, &r->memory, &r->proxy->checks,
					  opaque_still(r), gives_up, now_ns());
	if (is == MEASURE_DONE)
		vote_on_measured(r);
	if (is == MEASURE_FAILED)
		launches_blind(&r->job->world.launches, r->measure.it.id, r->rank);
	if (is >= MEASURE_DONE)
		measure_end(&r->measure);
	return is != MEASURE_CONTINUES;
}

void opaque_turn(struct proxy *p)
{
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		if (measure_holds(&p->device.ranks[i]->measure, NULL) &&
		    measuring_turn(p->device.ranks[i]))
			turn_progress(&p->device.turn);
}

uint64_t opaque_deadline_ns(const struct proxy *p)
{
	uint64_t first = 0;
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		uint64_t its = measure_deadline_ns(&p->device.ranks[i]->measure);
		if (its && (!first || its < first))
			first = its;
	}
	return first;
}
