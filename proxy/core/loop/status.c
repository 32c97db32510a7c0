/* status.c: the functions of proxy.h that report the state of a proxy, its jobs and its ranks.
 *
 * Functions named run_… run in the loop's thread and may access everything; the others run in the
 * caller's thread and access only their arguments.
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "loop/python_request.h"
#include "plural.h"
#include "queue/item.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/rank.h"

struct query { /* arguments of all calls */
	uint64_t job;
	uint32_t rank;
	void *out; /* a struct proxy_status, proxy_job_status or proxy_rank_status */
	char *text;
	uint32_t text_bytes;
	int result;
};

static void run_status(struct proxy *p, void *arg)
{
	struct proxy_status *s = ((struct query *)arg)->out;
	*s = (struct proxy_status){.used_bytes = p->device.memory.used * RF_CHUNK_BYTES,
				   .switches = p->device.counters.switches,
				   .swapped_in = p->device.memory.swapped_in,
				   .swapped_out = p->device.memory.swapped_out,
				   .swapped_alike = p->device.memory.swapped_alike,
				   .kernels = p->device.counters.kernels,
				   .shared_bytes = p->device.memory.shared * RF_CHUNK_BYTES,
				   .not_swapped_bytes = p->device.memory.not_swapped,
				   .copies = p->device.memory.copies,
				   .unforeseen = p->device.memory.unforeseen,
				   .prepared = p->device.memory.prepared,
				   .shares = p->device.memory.shares,
				   .checked = p->checks.parts,
				   .wakeups = p->wakeups,
				   .squashed = p->device.counters.squashed};
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		s->swap_bytes += memory_on_host(&p->device.ranks[i]->memory, true).pages *
				 RF_CHUNK_BYTES;
}

void proxy_status(struct proxy *p, struct proxy_status *status)
{
	struct query a = {.out = status};
	in_loop(p, run_status, &a);
}

static double overhead_s(const struct job *j, enum overhead_kind to)
{
	return (double)overhead_ns(j, to) / 1e9;
}

static void run_job_status(struct proxy *p, void *arg)
{
	struct query *a = arg;
	struct job *j = job_find(p, a->job);
	struct proxy_job_status *s = a->out;
	if (!j)
		return;
	*s = (struct proxy_job_status){.state = j->world.state,
				       .cut_at = j->cut_at,
				       .released_at = j->released_at,
				       .round = barrier_round(j->world.barrier),
				       .seconds = (double)(now_ns() - j->opened_ns) / 1e9,
				       .switches_s = overhead_s(j, OVERHEAD_SWITCHES),
				       .copies_s = overhead_s(j, OVERHEAD_COPIES),
				       .waiting_s = overhead_s(j, OVERHEAD_WAITING),
				       .validate = crosscheck_every(j),
				       .checked = j->crosscheck.checked,
				       .measured = j->world.launches.measured,
				       .alike = j->world.launches.alike};
	for (uint32_t n = 0; n < j->world.size; n++) {
		if (!j->world.ranks[n])
			continue;
		s->shared_bytes += memory_shared(&j->world.ranks[n]->memory, true) * RF_CHUNK_BYTES;
		s->unwatched += check_gave_up(&j->world.ranks[n]->check);
	}
	if (j->peer) {
		s->readers = peer_outbox_readers(j->peer);
		peer_outbox_counts(j->peer, &s->through_host, &s->direct);
	}
	s->links_used = j->links.used;
	s->links_refused = j->links.refused;
	s->links_bytes = coll_links_bytes(j->world.coll);
	memcpy(s->links_why_not, j->links.why_not, sizeof s->links_why_not);
	memcpy(s->reason, j->reason, sizeof s->reason);
	a->result = 0;
}

int proxy_job_status(struct proxy *p, uint64_t job, struct proxy_job_status *status)
{
	struct query a = {.job = job, .out = status, .result = -1};
	in_loop(p, run_job_status, &a);
	return a.result;
}

/* Counts the rank's requests that are not answered yet: to other ranks, to join a communicator; or
 * for modules and functions. */
static uint32_t open_requests(const struct rank *r, bool joining)
{
	uint32_t count = 0;
	for (const struct python_request *a = r->proxy->python_requests; a; a = a->next)
		count += a->rank == r &&
			 joining == (table_get(&r->objects, a->object, OBJ_COMM) != NULL);
	return count;
}

static enum proxy_rank_at waits_at(struct rank *r)
{
	enum coll_lack lack = coll_lacks(r->job->world.coll, r->rank);
	if (memory_moving(&r->memory) || memory_waits(&r->memory) ||
	    transfer_pending_for(&r->proxy->transfers, r->job))
		return PROXY_AT_TURN;
	if (lack == COLL_LACKS_LOCAL || lack == COLL_LACKS_OTHERS || open_requests(r, true))
		return PROXY_AT_OTHERS;
	bool host = !r->queue->items && !r->pending && !r->intake.record_waits;
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct item *head = r->queue->streams[n]->head;
		if (!head || !head->submitted)
			continue;
		if (head->kind == ITEM_COLLECTIVE && lack != COLL_LACKS_NO_RANK)
			return PROXY_AT_OTHERS; /* a send or a receive */
		host |= head->kind == ITEM_HOST;
	}
	if (r->memory.inflight)
		return PROXY_AT_DEVICE;
	if (open_requests(r, false))
		return PROXY_AT_CODE;
	return host ? PROXY_AT_HOST : PROXY_AT_TURN;
}

static void run_rank_status(struct proxy *p, void *arg)
{
	struct query *a = arg;
	struct job *j = job_find(p, a->job);
	struct rank *r = j && a->rank < j->world.size ? j->world.ranks[a->rank] : NULL;
	struct proxy_rank_status *s = a->out;
	if (!r)
		return;
	*s = (struct proxy_rank_status){
		.attached = 1,
		.exited = r->end.exited,
		.resident = memory_resident(&r->memory),
		.error = (uint32_t)r->async_error,
		.at = waits_at(r),
		.moves = r->queue->moves + r->intake.records - r->intake.queries,
		.used_bytes = (r->memory.live_count - r->memory.missing) * RF_CHUNK_BYTES,
		.kernels = r->counters.kernels,
		.collectives = r->counters.collectives,
		.records = r->intake.records,
		.reads = r->ring.reads,
		.switches = r->counters.switches,
		.squashed = r->counters.squashed,
		.shared_bytes = memory_shared(&r->memory, false) * RF_CHUNK_BYTES,
		.not_swapped_bytes = r->memory.counted.not_swapped,
		.copies = r->memory.counted.copies,
		.unforeseen = r->memory.counted.unforeseen,
		.prepared = r->memory.counted.prepared};
	memcpy(s->error_text, r->error_text, sizeof s->error_text);
	a->result = 0;
}

int proxy_rank_status(struct proxy *p, uint64_t job, uint32_t rank,
		      struct proxy_rank_status *status)
{
	struct query a = {.job = job, .rank = rank, .out = status, .result = -1};
	in_loop(p, run_rank_status, &a);
	return a.result;
}

static void run_debug_text(struct proxy *p, void *arg)
{
	struct query *a = arg;
	FILE *f = fmemopen(a->text, a->text_bytes, "w");
	if (!f)
		return;
	fprintf(f,
		"active %d, next %d, %u rank%s moving, transfers %s, chunks %llu of %llu, "
		"%llu let go, %llu pages opened early\n",
		p->device.active ? (int)p->device.active->rank : -1,
		p->slice.target ? (int)p->slice.target->rank : -1, p->device.memory.moving,
		plural(p->device.memory.moving), p->transfers.first ? "pending" : "none",
		(unsigned long long)p->device.memory.used,
		(unsigned long long)p->device.memory.total,
		(unsigned long long)p->slice.lone_continuations,
		(unsigned long long)p->device.memory.opened_early);
	for (struct job *j = p->jobs; j; j = j->next)
		fprintf(f,
			"job %llu epoch %llu state %d goal %d barrier %d round %llu "
			"collectives %s\n",
			(unsigned long long)j->id, (unsigned long long)j->world.epoch,
			j->world.state, j->goal, barrier_state(j->world.barrier),
			(unsigned long long)barrier_round(j->world.barrier),
			coll_busy(j->world.coll) ? "busy" : "quiet");
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		const struct rank *r = p->device.ranks[i];
		fprintf(f,
			"rank %u: ring %s%s%s%s, items %u, replies %u, pending %u, inflight %u, "
			"missing %u and write-protected %u of %u, request %d (%d), frees %s, "
			"joining %u, collectives %llu, records %llu, "
			"error %d %s\n",
			r->rank, ring_empty(r) ? "empty" : "waiting",
			r->intake.record_waits ? " held" : "", r->intake.full ? " full" : "",
			r->end.exited ? " exited" : "", r->queue->items, r->ring.replies,
			r->pending, r->memory.inflight, r->memory.missing,
			r->memory.write_protected, r->memory.live_count, r->memory.request.state,
			r->memory.request.purpose, r->queue->frees ? "some" : "none",
			open_requests(r, true), (unsigned long long)r->counters.collectives,
			(unsigned long long)r->intake.records, r->async_error, r->error_text);
		for (uint32_t n = 0; n < r->queue->stream_count; n++)
			if (r->queue->streams[n]->head)
				fprintf(f, "  stream %llu: head is a %s, %s\n",
					(unsigned long long)r->queue->streams[n]->o.id,
					item_row(r->queue->streams[n]->head)->name,
					r->queue->streams[n]->head->submitted ? "submitted"
									      : "queued");
	}
	fclose(f);
}

void proxy_debug_text(struct proxy *p, char *text, uint32_t text_bytes)
{
	struct query a = {.text = text, .text_bytes = text_bytes};
	in_loop(p, run_debug_text, &a);
}
