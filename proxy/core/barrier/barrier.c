/* barrier.c: the protocol of barrier.h (Singularity §4.3.1; the cut vector goes beyond it).
 *
 * Rules for all files here: no I/O, no clock, no thread, no lock; nothing blocks. Device 0 makes
 * every decision that all devices must share (coordinator.c); decisions reach each device in order.
 * Messages to oneself go through the caller like all others.
 *
 * Stage one: the tandem meta-allreduce. Each rank numbers its rounds on communicators that span the
 * job: 1, 2, … For round n each device sums (need, ack) over its ranks when all of them have issued
 * it and the result of n - 1 is known, and device 0 replies with the total (VERDICT).
 *   need  the device was requested to stop
 *   ack   ranks in phase 2 that have issued n and nothing after it
 * Phase 1 (steady) is asynchronous: a rank may have `window` unresolved rounds; a round is
 * unresolved until it is complete on the rank and its verdict is known. The window is the length of
 * a mini-batch in rounds, learnt as the period of the rank's signatures. Phase 2 begins when the
 * device is requested to stop or a verdict says need > 0: a rank issues nothing after n until n is
 * resolved. When ack equals the number of living ranks, all have stopped after the same round. That
 * takes at most `window` rounds after the highest one issued when the request arrived: the verdict
 * of the next round spreads the need, by then no rank is more than `window` - 1 rounds past that
 * one, and from there on all are synchronous.
 *
 * Stage two, the cut vector, completes stage one (for rounds of other communicators, and sends). It
 * replaces stage one where that cannot decide: no communicator spans the job, ranks use them in
 * different orders (OFF), a rank has exited, or the caller hurries; and where stage one is not
 * needed: no device has offered a round when the request arrives, so waiting for the next one would
 * gain nothing.
 *   FREEZE    rounds are held; devices report how many each rank has issued (COUNT, REPORTED)
 *   TARGET    per communicator the maximum over its members; a rank runs up to it
 *   RAISE     a rank that owes a round, but whose next record is one past another target, needs
 *             that target raised: a monotone fixpoint
 *   LEVEL     1 while a rank owes a round: every rank's records may be consumed, rounds past their
 *             target are held. 2 while a joining is incomplete (the other members are unknown),
 *             while a rank waits for a round of a broken communicator, or hurried: every rank
 *             counts as owing. 0 when no rank owes: nothing is consumed, streams drain.
 *   BROKEN    a member has aborted the communicator: no rank owes a round of it any more. A rank
 *             that waits for one may have to abort it, too, and need the others before: level 2
 *   STAND     all ranks of a device are idle at level 0. It carries the number of the LEVEL
 *             message that it answers, so a report from before a change never counts.
 *   CUT       all devices have reported STAND.
 * At level 0 all members of each communicator have issued equally many rounds, so everything in
 * flight completes; and a rank stays idle, because nothing of it is consumed.
 *
 * Each stop has a generation number; STEADY ends it and begins the next. Messages about a stop are
 * ignored when its generation is over. Requests are never lost: STEADY informs each device how many
 * of its requests it answers.
 */
#include "barrier_parts.h"

#include <stdlib.h>

/* ---- a device: the caller's reports ---------------------------------------------------- */

void barrier_comm(struct barrier *b, uint32_t rank, uint64_t comm, const uint32_t *members,
		  uint32_t count, uint64_t issued)
{
	bool found = false;

	for (uint32_t i = 0; i < count; i++)
		found |= members[i] == rank;
	if (!comm || !found || count > b->world_size)
		barrier_fail(b, "a communicator without its own member", rank, comm);
	else
		vector_member(b, (struct entry){.comm = comm,
						.rank = rank,
						.nranks = count,
						.spans = count == b->world_size,
						.issued = issued,
						.complete = issued});
}

void barrier_joining(struct barrier *b, uint32_t rank, uint64_t comm, uint32_t nranks)
{
	struct barrier_rank *r = barrier_checked(b, rank, "joining of a rank that is not here");
	struct entry *m = r ? vector_replace(b, r, rank, comm) : NULL;

	if (!m)
		return;
	*m = (struct entry){.comm = comm, .rank = rank, .nranks = nranks, .joining = 1};
	r->joining++;
	r->refused = false;
	if (b->frozen)
		vector_report(b, m);
}

void barrier_comm_end(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = barrier_local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;
	bool joining = m && m->joining, was_behind;

	if (!m || m->ended)
		return;
	was_behind = vector_behind_on(b, m);
	INVARIANT(b->ranks[rank].joining >= m->joining, "a rank counts what it joins");
	b->ranks[rank].joining -= m->joining;
	m->joining = 0;
	/* Issued rounds count until they are complete; a failed joining never happened. */
	m->ended = joining || m->complete == m->issued;
	if (b->frozen && m->ended) {
		INVARIANT(b->ranks[rank].behind_count >= was_behind, "a rank counts what it owes");
		b->ranks[rank].behind_count -= was_behind;
		vector_report(b, m);
	}
}

void barrier_abort(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = barrier_local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;
	bool was_behind;

	if (!m || m->ended || m->joining) {
		barrier_comm_end(b, rank, comm);
		return;
	}
	was_behind = vector_behind_on(b, m);
	if (m->spans)
		tandem_give_up(b);
	m->complete = m->issued;
	m->ended = true;
	if (b->frozen) {
		INVARIANT(b->ranks[rank].behind_count >= was_behind, "a rank counts what it owes");
		b->ranks[rank].behind_count -= was_behind;
		vector_report(b, m);
	}
}

bool barrier_may_issue(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct barrier_rank *r = barrier_checked(b, rank, "round of a rank that is not here");
	const struct entry *m = r && comm ? rounds_get(&b->members, rank, comm) : NULL;
	bool may;

	if (!r || b->cut)
		return false;
	if (b->frozen)
		may = comm ? m && m->issued < vector_target(b, comm) : vector_behind(b, r);
	else
		may = !m || !m->spans || tandem_allows(b, r);
	r->refused = !may;
	r->refused_comm = comm;
	vector_request_raise(b, rank);
	return may;
}

void barrier_issue(struct barrier *b, uint32_t rank, uint64_t comm, uint64_t signature)
{
	struct barrier_rank *r = barrier_checked(b, rank, "round of a rank that is not here");
	struct entry *m = r ? rounds_get(&b->members, rank, comm) : NULL;
	bool was_behind;

	if (!m || m->ended || m->joining || b->cut) {
		barrier_fail(b, "an invalid round", rank, comm);
		return;
	}
	r->refused = false;
	was_behind = vector_behind_on(b, m);
	m->issued++;
	if (m->spans)
		tandem_issue(b, r, comm, signature);
	if (!b->frozen)
		return;
	b->catch_up++;
	r->behind_count += vector_behind_on(b, m) - was_behind;
	vector_report(b, m);
}

void barrier_complete(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = barrier_local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;

	bool was_behind;

	if (m && m->ended)
		return; /* aborted meanwhile */
	if (!m || m->complete >= m->issued) {
		barrier_fail(b, "a round completes that was not issued", rank, comm);
		return;
	}
	was_behind = vector_behind_on(b, m);
	m->complete++;
	b->hurries = 0;
	if (m->spans)
		b->ranks[rank].complete++;
	if (b->frozen && was_behind != vector_behind_on(b, m)) {
		INVARIANT(was_behind && b->ranks[rank].behind_count, "a rank counts what it owes");
		b->ranks[rank].behind_count--;
		vector_report(b, m);
	}
}

bool barrier_may_consume(const struct barrier *b, uint32_t rank)
{
	return barrier_local(b, rank) && !b->cut &&
	       (!b->frozen || b->level != DRAIN || b->ranks[rank].behind_count);
}

void barrier_idle(struct barrier *b, uint32_t rank, bool idle)
{
	struct barrier_rank *r = barrier_checked(b, rank, "idleness of a rank that is not here");

	if (!r)
		return;
	if (!idle && b->cut)
		barrier_fail(b, "work at the cut", rank, 0);
	r->idle = idle;
}

void barrier_exited(struct barrier *b, uint32_t rank)
{
	struct barrier_rank *r = barrier_checked(b, rank, "exit of a rank that is not here");

	if (!r || r->exited)
		return;
	r->exited = true;
	barrier_send(b, (struct barrier_message){.kind = EXITED, .rank = rank});
	tandem_offer(b);
}

void barrier_request(struct barrier *b)
{
	/* If at the cut, the device has stopped already, or the release is on its way: device 0
	 * knows. */
	b->leaving |= b->cut;
	b->requested = b->stopping = true;
	b->requests++;
	barrier_send(b, (struct barrier_message){.kind = REQUEST});
}

void barrier_withdraw(struct barrier *b)
{
	if (b->cut) {
		barrier_release(b);
		return;
	}
	b->leaving = true;
	b->withdrawals++;
	barrier_send(b, (struct barrier_message){.kind = WITHDRAW});
}

void barrier_release(struct barrier *b)
{
	if (!b->cut)
		return;
	b->leaving = true;
	b->withdrawals++;
	barrier_send(b, (struct barrier_message){.kind = RELEASE, .d = b->generation});
}

void barrier_hurry(struct barrier *b)
{
	bool refused = false;

	for (uint32_t i = 0; i < b->world_size; i++)
		refused |= barrier_local(b, i) && b->ranks[i].refused;
	if (b->stopping)
		barrier_send(b, (struct barrier_message){.kind = HURRY, .d = b->generation});
	else if (refused && !b->off && ++b->hurries == PATIENCE)
		barrier_send(b, (struct barrier_message){.kind = GIVE_UP});
}

/* ---- messages, creation, queries -------------------------------------------------------- */

static void on_steady(struct barrier *b, const struct barrier_message *m)
{
	b->generation = m->a;
	b->frozen = b->cut = b->leaving = false;
	b->level = CATCH_UP;
	b->requested = b->stopping = b->requests > m->b; /* requested again meanwhile */
}

static bool about_rank(uint32_t kind) { return kind == EXITED || kind == COUNT || kind == RAISE; }

static void device_receive(struct barrier *b, const struct barrier_message *m)
{
	switch (m->kind) {
	case VERDICT:
		if (m->a != b->verdict + 1)
			barrier_fail(b, "a verdict out of turn", m->from, m->comm);
		b->verdict = m->a;
		b->hurries = 0;
		b->stopping |= m->b > 0;
		tandem_offer(b);
		break;
	case OFF: b->off = true; break;
	case FREEZE: vector_freeze(b); break;
	case TARGET: vector_on_target(b, m->comm, m->a, (uint32_t)m->b, (uint32_t)m->c); break;
	case LEVEL: vector_on_level(b, (uint32_t)m->a, m->b); break;
	case CUT:
		b->cut = true;
		b->cuts = m->a;
		/* Withdrawn on the way: STEADY follows. */
		b->leaving = m->c || m->b < b->withdrawals;
		break;
	case STEADY: on_steady(b, m); break;
	case BROKEN: vector_on_broken(b, m->comm); break;
	default: barrier_fail(b, "an unknown message", m->from, m->comm);
	}
}

void barrier_receive(struct barrier *b, const struct barrier_message *m)
{
	bool answer = m->from == 0 && m->kind >= VERDICT;

	if (m->to != b->device || m->from >= b->device_count || m->kind >= KINDS ||
	    (about_rank(m->kind) &&
	     (m->rank >= b->world_size || b->ranks[m->rank].device != m->from)))
		barrier_fail(b, "an invalid message", m->rank, m->comm);
	else if (answer)
		device_receive(b, m);
	else if (b->device == 0 && m->kind < VERDICT)
		coordinator_receive(b, m);
	else
		barrier_fail(b, "a message for device 0", m->from, m->comm);
}

bool barrier_next_message(struct barrier *b, struct barrier_message *m)
{
	vector_stand(b);
	if (!b->queue_count)
		return false;
	*m = b->queue[b->queue_head];
	b->queue_head = (b->queue_head + 1) & (b->queue_capacity - 1);
	b->queue_count--;
	return true;
}

struct barrier *barrier_new(uint32_t device, uint32_t device_count, uint32_t world_size,
			    const uint32_t *rank_device)
{
	struct barrier *b = calloc(1, sizeof *b);

	if (!b || device >= device_count || device_count > DEVICES_MAX || !world_size ||
	    world_size > RANKS_MAX || !(b->ranks = calloc(world_size, sizeof *b->ranks))) {
		free(b);
		return NULL;
	}
	b->device = device;
	b->device_count = device_count;
	b->world_size = world_size;
	b->generation = b->lead.generation = 1;
	for (uint32_t i = 0; i < world_size; i++) {
		if (rank_device[i] >= device_count) {
			barrier_free(b);
			return NULL;
		}
		b->ranks[i].device = rank_device[i];
		b->ranks[i].idle = true;
		b->lead.living[rank_device[i]]++;
	}
	return b;
}

void barrier_free(struct barrier *b)
{
	if (!b)
		return;
	rounds_free(&b->members);
	rounds_free(&b->targets);
	rounds_free(&b->lead.reports);
	rounds_free(&b->lead.targets);
	free(b->queue);
	free(b->ranks);
	free(b);
}

enum barrier_state barrier_state(const struct barrier *b)
{
	if (b->cut && !b->leaving)
		return BARRIER_CUT;
	return b->cut || b->stopping ? BARRIER_STOPPING : BARRIER_STEADY;
}

uint64_t barrier_round(const struct barrier *b) { return b->cuts; }

uint64_t barrier_catch_up(const struct barrier *b) { return b->catch_up; }

uint32_t barrier_window(const struct barrier *b, uint32_t rank)
{
	return barrier_local(b, rank) ? tandem_window(&b->ranks[rank]) : 0;
}

const char *barrier_error(const struct barrier *b) { return b->error[0] ? b->error : NULL; }
