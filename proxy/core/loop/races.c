/* races.c: reports what the check of a rank's order finds as an event, as text for people.
 *
 * A merely possible race is reported only on request: a kernel's bounds may be a hull with gaps,
 * and a program without races must not get reports.
 */
#include "loop/races.h"

#include <string.h>

#include "loop/job.h"
#include "loop/mailbox.h"
#include "queue/accesses.h"
#include "rank/rank.h"

static void stream_text(char *out, size_t bytes, uint64_t stream)
{
	if (stream == RF_STREAM_LEGACY)
		snprintf(out, bytes, "the legacy stream");
	else if (stream == RF_STREAM_PER_THREAD)
		snprintf(out, bytes, "the first thread's stream");
	else
		snprintf(out, bytes, "stream %#llx", (unsigned long long)stream);
}

static void side_text(char *out, size_t bytes, const struct order_side *s)
{
	static const char *const uses[] = {
		[ORDER_READ] = "reads", [ORDER_ATOMIC] = "adds to", [ORDER_WRITE] = "writes"};
	char stream[64];
	stream_text(stream, sizeof stream, s->stream);
	snprintf(out, bytes, "%s (request %llu, %s) %s %#llx to %#llx", s->operation,
		 (unsigned long long)s->number, stream, uses[s->use], (unsigned long long)s->addr,
		 (unsigned long long)(s->addr + s->bytes));
}

static void on_race(void *to, const struct order_race *race)
{
	const struct rank *r = to;
	char text[2048], first[768], second[768];
	if (!race->certain && r->job->check_order != PROXY_RACES_POSSIBLE)
		return;
	side_text(first, sizeof first, &race->first);
	side_text(second, sizeof second, &race->second);
	int used = snprintf(text, sizeof text,
			    "%s, %s: no event, stream or synchronisation orders them%s", first,
			    second, race->certain ? "" : "; they may not overlap");
	struct proxy_event e = {.kind = PROXY_EVENT_RACE,
				.job = r->job->id,
				.rank = r->rank,
				.data = (const uint8_t *)text,
				.bytes = (uint64_t)used};
	post_event(r->proxy, &e);
}

struct order_request {
	uint64_t job;
	int races, result;
};

static void run(struct proxy *p, void *arg)
{
	struct order_request *q = arg;
	struct job *j = job_find(p, q->job);
	if (j)
		job_check_order(j, q->races);
	q->result = j ? 0 : -1;
}

int proxy_job_check_order(struct proxy *p, uint64_t job, int races)
{
	struct order_request q = {job, races, -1};
	in_loop(p, run, &q);
	return q.result;
}

bool races_open(struct rank *r) { return !r->job->check_order || accesses_open(r, on_race, r); }
