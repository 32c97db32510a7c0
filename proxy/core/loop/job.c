/* job.c: one job epoch on this device: connects the barrier, the collectives and the peers.
 *
 * The barrier decides which records may be consumed; the collective engine calls the functions of
 * job_io.c. A job with an error fails closed: its ranks' rings are not consumed any more, and
 * Python gets the reason.
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "codes.h"
#include "invariant.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "loop/state.h"
#include "queue/pump.h"
#include "rank/rank.h"

struct job *job_find(struct proxy *p, uint64_t id)
{
	for (struct job *j = p->jobs; j; j = j->next)
		if (j->id == id)
			return j;
	return NULL;
}

void job_fail(struct job *j, const char *text)
{
	if (j->world.state == PROXY_JOB_FAILED)
		return;
	j->world.state = PROXY_JOB_FAILED;
	if (j->world.coll)
		coll_links_end(j->world.coll);
	if (j->goal != GOAL_DISCARD)
		j->goal = GOAL_RUN;
	snprintf(j->reason, sizeof j->reason, "%s", text);
	turn_progress(&j->proxy->device.turn);
}

/* ---- life ---- */

static void job_free(struct job *j)
{
	if (j->world.coll)
		coll_free(j->world.coll);
	if (j->world.barrier)
		barrier_free(j->world.barrier);
	outboxes_close(j);
	if (j->peer)
		peer_free(j->peer);
	crosscheck_close(j);
	free(j);
}

static bool job_connect(struct job *j, int segment_fd, char *error, uint32_t error_bytes)
{
	const struct coll_io io = job_io(j);
	if (j->device_count > 1) {
		j->peer = peer_new(segment_fd, j->device, j->device_count, error, error_bytes);
		if (!j->peer)
			return false;
	}
	j->world.barrier = barrier_new(j->device, j->device_count, j->world.size, j->rank_device);
	j->world.coll = coll_new(&io, j->device, j->device_count, j->world.size, j->rank_device);
	if (!j->world.barrier || !j->world.coll)
		snprintf(error, error_bytes, "the proxy is out of host memory");
	return j->world.barrier && j->world.coll;
}

int job_open(struct proxy *p, const struct job *wanted, int segment_fd, char *error,
	     uint32_t error_bytes)
{
	struct job *j = malloc(sizeof *j);
	if (!j) {
		snprintf(error, error_bytes, "the proxy is out of host memory");
		return -1;
	}
	*j = *wanted;
	j->proxy = p;
	j->world.state = PROXY_JOB_RUNNING;
	j->opened_ns = now_ns();
	if (!job_connect(j, segment_fd, error, error_bytes)) {
		job_free(j);
		return -1;
	}
	j->next = p->jobs;
	p->jobs = j;
	return 0;
}

void job_close(struct proxy *p, struct job *j)
{
	struct job **at = &p->jobs;
	while (*at && *at != j)
		at = &(*at)->next;
	INVARIANT(*at && !j->world.attached, "a job that is closed is listed and has no ranks");
	*at = j->next;
	overhead_forget(j);
	job_free(j);
}

void job_attached(struct rank *r)
{
	INVARIANT(r->rank < r->job->world.size && !r->job->world.ranks[r->rank],
		  "a rank takes a place of its job that is free");
	r->job->world.ranks[r->rank] = r;
	r->job->world.attached++;
}

void job_detached(struct rank *r)
{
	INVARIANT(r->job->world.ranks[r->rank] == r && r->job->world.attached,
		  "a rank that leaves has its place in its job");
	r->job->world.ranks[r->rank] = NULL;
	r->job->world.attached--;
}

void job_rank_exited(struct job *j, uint32_t rank, int how)
{
	struct rank *r = j->world.ranks[rank];
	if (r) {
		r->end.exited = true;
		r->end.crashed = how != PROXY_EXIT_CLEAN;
		r->end.replaced = how == PROXY_EXIT_REPLACED;
	} else if (how != PROXY_EXIT_REPLACED) {
		barrier_exited(j->world.barrier, rank);
		coll_ended(j->world.coll, rank);
	}
}

void job_rank_broken(struct rank *r, const char *text)
{
	r->end.closing = true;
	job_fail(r->job, text);
}

static bool job_in_flight(const struct job *j)
{
	return transfer_pending_for(&j->proxy->transfers, j);
}

#define MESSAGES_PER_TURN 8192 /* a faulty peer may send forever */

static void receive_messages(struct job *j)
{
	struct peer_message m;
	uint32_t from, tag;
	for (int n = 0; n < MESSAGES_PER_TURN && j->peer; n++) {
		if (!peer_receive(j->peer, &from, &tag, &m))
			break;
		turn_progress(&j->proxy->device.turn);
		if (tag == PEER_BARRIER) {
			struct barrier_message b;
			memcpy(&b, m.bytes, sizeof b);
			b.from = from;
			barrier_receive(j->world.barrier, &b);
		} else if (tag == PEER_READS) {
			peer_outbox_opened(j->peer, from);
		} else if (tag == PEER_CROSSCHECK) {
			crosscheck_receive(j, from, &m);
		} else {
			coll_receive(j->world.coll, from, &m);
		}
	}
	if (j->peer && peer_broken(j->peer))
		job_fail(j, "a peer's messages are damaged");
}

static void send_barrier(struct job *j)
{
	struct barrier_message b;
	while (barrier_next_message(j->world.barrier, &b)) {
		struct peer_message m = {0};
		turn_progress(&j->proxy->device.turn);
		if (b.to == j->device) {
			barrier_receive(j->world.barrier, &b);
			continue;
		}
		memcpy(m.bytes, &b, sizeof b);
		if (j->peer)
			peer_send(j->peer, b.to, PEER_BARRIER, &m);
	}
}

static void report_idle(struct job *j)
{
	if (j->goal != GOAL_RUN)
		return; /* the proxy moves memory now, not the rank */
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		if (!r)
			continue;
		bool idle = rank_drained(r);
		if (r->end.idle_reported && idle == r->end.idle)
			continue;
		r->end.idle_reported = true;
		r->end.idle = idle;
		barrier_idle(j->world.barrier, n, idle);
	}
}

void job_hurry(struct job *j)
{
	uint64_t activity = 0;
	for (uint32_t n = 0; n < j->world.size; n++)
		if (j->world.ranks[n])
			activity += j->world.ranks[n]->intake.records -
				    j->world.ranks[n]->intake.queries +
				    j->world.ranks[n]->counters.collectives +
				    j->world.ranks[n]->counters.kernels;
	if (activity == j->activity && j->world.state < PROXY_JOB_CUT)
		barrier_hurry(j->world.barrier);
	j->activity = activity;
}

/* The requested save has ended; `why`: the reason for its failure, or NULL. */
static void finish_save(struct job *j, const char *why)
{
	struct proxy_event e = {.kind = PROXY_EVENT_SAVED, .job = j->id, .bytes = j->saved_bytes};
	if (j->goal != GOAL_SAVE && j->world.state != PROXY_JOB_FAILED)
		j->world.state = PROXY_JOB_SAVED;
	j->goal = GOAL_RUN;
	e.state = j->world.state;
	snprintf(e.text, sizeof e.text, "%s", why ? why : "");
	post_event(j->proxy, &e);
	turn_progress(&j->proxy->device.turn);
}

/* After a failed save, a job that was to stay continues without it; a job that was to leave
 * fails. */
static void save_failed(struct job *j, const char *why)
{
	if (j->goal == GOAL_SAVE)
		finish_save(j, why);
	else
		job_fail(j, why);
}

/* The job runs again: its images become outdated. */
static void ranks_continue(struct job *j)
{
	for (uint32_t n = 0; n < j->world.size; n++) {
		if (!j->world.ranks[n])
			continue;
		state_void(j->world.ranks[n]);
		memory_alone(&j->world.ranks[n]->memory, j->world.attached == 1);
		memory_changes(&j->world.ranks[n]->memory);
	}
}

/* Applies the barrier's state to the job. */
static void follow_barrier(struct job *j)
{
	if (j->world.state > PROXY_JOB_CUT)
		return;
	const char *error = barrier_error(j->world.barrier);
	if (error) {
		job_fail(j, error);
		return;
	}
	enum barrier_state now = barrier_state(j->world.barrier);
	enum proxy_job_state state = now == BARRIER_CUT        ? PROXY_JOB_CUT
				     : now == BARRIER_STOPPING ? PROXY_JOB_STOPPING
							       : PROXY_JOB_RUNNING;
	if (state == j->world.state)
		return;
	if (j->goal == GOAL_SAVE || j->goal == GOAL_LEAVE) {
		/* Its ranks would continue while older state is saved. */
		save_failed(j, "the cut was released while the job was being saved");
		if (j->world.state == PROXY_JOB_FAILED)
			return;
	}
	if (state == PROXY_JOB_CUT && barrier_round(j->world.barrier) != j->cut) {
		j->cut = barrier_round(
			j->world.barrier); /* if requested again at the cut, the barrier
						     * reports the same cut twice */
		j->cut_at = (double)now_ns() / 1e9;
	}
	for (uint32_t n = 0; n < j->world.size && state == PROXY_JOB_CUT; n++)
		if (j->world.ranks[n])
			j->world.ranks[n]->failed_before = j->world.ranks[n]->async_error != CU_OK;
	if (j->world.state == PROXY_JOB_CUT) {
		j->released_at = (double)now_ns() / 1e9;
		ranks_continue(j);
	}
	j->world.state = state;
	turn_progress(&j->proxy->device.turn);
}

void job_barrier(struct job *j, bool request)
{
	if (request)
		barrier_request(j->world.barrier);
	else
		barrier_withdraw(j->world.barrier);
	/* At once: the caller may continue with another device, or with this one in the same
	 * turn. */
	send_barrier(j);
	follow_barrier(j);
}

/* A rank that ended cleanly is served until nothing of it is left, then detached. */
static void detach_exited(struct job *j)
{
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		if (!r || !r->end.exited || j->goal != GOAL_RUN)
			continue;
		if (!r->end.crashed && rank_unserved(r) && j->world.state < PROXY_JOB_CUT &&
		    !r->async_error)
			continue;
		r->end.closing = true;
		memory_cancel(&r->memory);
		if (r->end.crashed && r->memory.inflight && !rank_runs_for_others(r) &&
		    !transfer_pending(&j->proxy->transfers, &r->memory))
			j->proxy->device.hal->space_cancel(
				r->memory.space); /* a kernel may never end */
		if (!rank_quiet(r))
			continue;
		if (!r->end.replaced) {
			barrier_exited(j->world.barrier, n);
			coll_ended(j->world.coll, n);
		}
		rank_detach(r);
	}
}

/* A saved state cannot contain a send; and at the cut the receiver, which is on this device, waits
 * for none. */
static bool refuse_unreceived(struct job *j)
{
	char text[160];
	uint32_t from, to;
	if (!coll_unreceived(j->world.coll, &from, &to))
		return false;
	snprintf(text, sizeof text,
		 "rank %u has sent data that rank %u has not received: collectives are in "
		 "progress, the job cannot be saved",
		 from, to);
	save_failed(j, text);
	return true;
}

/* True if the device has failed work of the rank since the cut, usually a copy of its memory. The
 * content of its image is unknown then. */
static bool failed_since(const struct rank *r, char *text, uint32_t bytes)
{
	if (r->async_error) {
		snprintf(text, bytes, "%s", r->error_text);
		return !r->failed_before;
	}
	return r->memory.space && r->proxy->device.hal->space_error(r->memory.space, text, bytes);
}

/* Writes every rank's state to its image, after its memory. False: a state does not fit, or a
 * rank's memory is not valid. */
static bool save_states(struct job *j)
{
	bool stay = j->goal == GOAL_SAVE;
	j->saved_bytes = 0;
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		char error[RF_FAULT_TEXT_BYTES] = "";
		if (!r)
			continue;
		if (!r->end.replaced && failed_since(r, error, sizeof error)) {
			save_failed(j, error);
			return false;
		}
		/* Replaced meanwhile: its new process begins without state. */
		uint64_t bytes = r->end.replaced ? 0 : state_save(r, error, sizeof error);
		if (!bytes && !r->end.replaced) {
			save_failed(j, error);
			return false;
		}
		if (bytes)
			j->saved_bytes += bytes + r->memory.live_count * RF_CHUNK_BYTES;
		if (!stay)
			rank_detach(r);
	}
	return true;
}

/* A step towards SAVE or LEAVE. It takes several turns, in which nothing of the job may move. */
static void save_step(struct job *j)
{
	bool stay = j->goal == GOAL_SAVE, all = true;
	if (refuse_unreceived(j))
		return;
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		if (!r)
			continue;
		/* A collective may still need a message of a peer. Without peers nothing more can
		 * arrive: then state_save reports that. */
		if (!rank_quiet(r) || (coll_busy(j->world.coll) && (j->peer || job_in_flight(j))))
			return;
		if (r->end.replaced)
			memory_stop(&r->memory); /* others must not rely on memory in its image */
		else
			all &= memory_saved(&r->memory, stay);
	}
	const struct memory_request save = {.purpose = PURPOSE_SAVE, .stay = stay};
	for (uint32_t n = 0; n < j->world.size && !all; n++)
		if (j->world.ranks[n] && !j->world.ranks[n]->end.replaced)
			memory_request(&j->world.ranks[n]->memory, &save);
	if (!all)
		return;
	core_check(j->proxy);
	if (save_states(j))
		finish_save(j, NULL);
}

static void discard_step(struct job *j)
{
	for (uint32_t n = 0; n < j->world.size; n++) {
		struct rank *r = j->world.ranks[n];
		if (!r)
			continue;
		r->end.closing = true;
		memory_cancel(&r->memory);
		if (r->memory.inflight)
			j->proxy->device.hal->space_cancel(r->memory.space);
		if (rank_quiet(r))
			rank_detach(r);
	}
	if (!j->world.attached && !job_in_flight(j))
		finish_save(j, NULL);
}

int job_aim(struct job *j, enum job_goal goal)
{
	if (goal < j->goal || (goal < GOAL_DISCARD && j->world.state != PROXY_JOB_CUT))
		return -1;
	j->goal = goal;
	return 0;
}

void job_check_order(struct job *j, int races) { j->check_order = races; }

void job_turn(struct job *j)
{
	receive_messages(j);
	if (coll_links_turn(j->world.coll))
		turn_progress(&j->proxy->device.turn);
	detach_exited(j);
	report_idle(j);
	send_barrier(j);
	follow_barrier(j);
	switch (j->goal) {
	case GOAL_RUN: break;
	case GOAL_SAVE:
	case GOAL_LEAVE: save_step(j); break;
	case GOAL_DISCARD: discard_step(j); break;
	}
	if (j->world.state == j->reported_state)
		return;
	struct proxy_event e = {.kind = PROXY_EVENT_JOB, .job = j->id, .state = j->world.state};
	snprintf(e.text, sizeof e.text, "%s", j->reason);
	j->reported_state = j->world.state;
	post_event(j->proxy, &e);
}
