/* barrier.c: the protocol behind barrier.h (Singularity §4.3.1, and past it the cut vector).
 *
 * Rules kept here: no I/O, no clock, no thread, no lock; nothing blocks. Every decision that all
 * devices must share is taken by device 0 (coordinator.c) and reaches a device in order. Messages
 * to oneself go through the caller like all others.
 *
 * Stage one, the tandem meta-allreduce. Rounds on communicators that span the job are numbered
 * 1, 2, … per rank. For round n each device adds up (need, ack) of its ranks when all of them
 * have issued it and the result of n - 1 is known, and device 0 answers with the sum (VERDICT).
 *   need  the device was asked to stop
 *   ack   ranks in phase 2 that have issued n and nothing after it
 * Phase 1 (steady) is asynchronous: a rank may have `window` unresolved rounds; a round is
 * unresolved until it is complete on the rank and its verdict is known. The window is the length
 * of a mini-batch in rounds, learnt as the period of the rank's signatures. Phase 2 begins when
 * the device is asked or a verdict says need > 0: a rank issues nothing past n until n is
 * resolved. When ack sums to all living ranks, all stand after the same round. That takes at
 * most `window` rounds past the highest one issued when the request came: the verdict of the
 * next round spreads the need, by then nobody is more than `window` - 1 rounds past that one, and
 * from there on all are synchronous.
 *
 * Stage two, the cut vector, completes the first (rounds of other communicators, sends) and
 * stands in for it where it cannot decide: no communicator spans the job, ranks use them in
 * different orders (OFF), a rank has exited, or the caller hurries.
 *   FREEZE    rounds are held; devices report how many each rank has issued (COUNT, REPORTED)
 *   TARGET    per communicator the maximum over its members; a rank runs up to it
 *   RAISE     a rank that owes a round, but whose next record is one past another target, needs
 *             that target raised: a monotone fixpoint
 *   LEVEL     1 while someone owes: all may be consumed, rounds past their target held.
 *             2 while a joining is incomplete (who the others are is not known), or hurried:
 *             every rank counts as owing. 0 when nobody owes: nothing is consumed, streams drain.
 *   STAND     all ranks of a device are idle at level 0. It carries the number of the LEVEL
 *             message it answers, so a report from before a change never counts.
 *   CUT       all devices stand.
 * At level 0 all members of each communicator have issued equally many rounds, so everything in
 * flight completes; and a rank's idleness lasts, because nothing of it is consumed.
 *
 * Each stop has a generation number; STEADY ends it and begins the next. What a device says of an
 * older generation is ignored, except requests, which are never lost: STEADY tells each device
 * how many of its requests it answers.
 */
#include "barrier_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- helpers --------------------------------------------------------------------------- */

void barrier_fail(struct barrier *b, const char *what, uint32_t rank, uint64_t comm)
{
	if (!b->error[0])
		snprintf(b->error, sizeof b->error, "barrier: %s (rank %u, communicator %llx)",
			 what, rank, (unsigned long long)comm);
}

void barrier_send(struct barrier *b, struct barrier_message m)
{
	if (b->queue_count == b->queue_room) {
		uint32_t room = b->queue_room ? 2 * b->queue_room : 64;
		struct barrier_message *queue = malloc(room * sizeof *queue);

		if (!queue) {
			barrier_fail(b, "out of memory", m.rank, m.comm);
			return;
		}
		for (uint32_t i = 0; i < b->queue_count; i++)
			queue[i] = b->queue[(b->queue_head + i) & (b->queue_room - 1)];
		free(b->queue);
		b->queue = queue;
		b->queue_room = room;
		b->queue_head = 0;
	}
	m.from = b->device;
	b->queue[(b->queue_head + b->queue_count++) & (b->queue_room - 1)] = m;
}

void barrier_send_all(struct barrier *b, struct barrier_message m)
{
	for (m.to = 0; m.to < b->device_count; m.to++)
		barrier_send(b, m);
}

static bool local(const struct barrier *b, uint32_t rank)
{
	return rank < b->world_size && b->ranks[rank].device == b->device;
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint32_t max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* ---- a device: the tandem -------------------------------------------------------------- */

/* Adds up this device's part of the meta-allreduce of the next round, if it is due. */
static void tandem_offer(struct barrier *b)
{
	uint64_t n = b->verdict + 1, ack = 0, comm = 0;
	uint32_t living = 0;
	bool mismatch = false;

	if (b->off || b->offered == n)
		return;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct barrier_rank *r = &b->ranks[i];

		if (!local(b, i) || r->exited)
			continue;
		if (r->round < n)
			return;
		living++;
		mismatch |= comm && comm != r->keys[n % KEYS];
		comm = r->keys[n % KEYS];
		if (b->stopping && r->round == n)
			ack++;
	}
	if (!living)
		return;
	b->offered = n;
	barrier_send(b, (struct barrier_message){.kind = TANDEM,
						 .comm = mismatch ? 0 : comm,
						 .a = n,
						 .b = b->asked ? living : 0,
						 .c = ack,
						 .d = b->generation});
}

/* Keeps, for each possible period, how long the signatures have repeated with it. The period is
 * the smallest that explains a whole repetition, and more than any that has proved wrong: equal
 * buckets in a row do not make a mini-batch. */
static void learn(struct barrier_rank *r, uint64_t signature)
{
	r->signatures[r->round % KEYS] = signature;
	for (uint32_t p = 1; p <= WINDOW_MAX; p++) {
		bool match = r->round > p && r->signatures[(r->round - p) % KEYS] == signature;

		if (!match && p == r->period) {
			r->period = 0;
			r->longest = max32(r->longest, r->matches[p]);
		}
		r->matches[p] = match ? r->matches[p] + (r->matches[p] < WINDOW_MAX) : 0;
	}
	for (uint32_t p = 1; p <= WINDOW_MAX && !r->period; p++)
		if (r->matches[p] >= max32(p, r->longest))
			r->period = p;
}

static uint32_t window(const struct barrier_rank *r)
{
	return r->period ? max32(r->period, WINDOW_MIN) : WINDOW_MAX;
}

static bool tandem_allows(const struct barrier *b, const struct barrier_rank *r)
{
	uint64_t resolved = min64(b->verdict, r->complete);

	if (b->off)
		return true;
	if (b->stopping)
		return r->round <= resolved;
	return r->round < resolved + window(r);
}

static void tandem_issue(struct barrier *b, struct barrier_rank *r, uint64_t comm,
			 uint64_t signature)
{
	r->round++;
	r->keys[r->round % KEYS] = comm;
	learn(r, signature);
	if (r->round - b->verdict >= KEYS && !b->off) {
		b->off = true;
		barrier_send(b, (struct barrier_message){.kind = GIVE_UP});
	}
	tandem_offer(b);
}

/* ---- a device: the cut vector ---------------------------------------------------------- */

static uint64_t target(const struct barrier *b, uint64_t comm)
{
	const struct entry *t = rounds_get(&b->targets, 0, comm);

	return t ? t->issued : 0;
}

static bool owes(const struct barrier *b, const struct barrier_rank *r)
{
	return r->owed > 0 || b->level == LET_GO;
}

static void report(struct barrier *b, const struct entry *m)
{
	barrier_send(b,
		     (struct barrier_message){.kind = COUNT,
					      .rank = m->rank,
					      .comm = m->comm,
					      .a = m->issued,
					      .b = m->nranks,
					      .c = (m->joining ? 1 : 0) | (m->gone ? 2 : 0) |
						   (uint64_t)m->src << 16 | (uint64_t)m->dst << 32,
					      .d = b->generation});
}

/* A rank that owes, but stands before a round past its target, asks for a higher one. */
static void ask_raise(struct barrier *b, uint32_t rank)
{
	struct barrier_rank *r = &b->ranks[rank];
	struct entry *m;

	if (!b->frozen || !r->refused || !r->refused_comm || !owes(b, r))
		return;
	m = rounds_get(&b->members, rank, r->refused_comm);
	if (!m || m->issued < target(b, m->comm) || m->raised > m->issued)
		return;
	m->raised = m->issued + 1;
	barrier_send(b, (struct barrier_message){.kind = RAISE,
						 .rank = rank,
						 .comm = m->comm,
						 .a = m->raised,
						 .d = b->generation});
}

static void stand(struct barrier *b)
{
	if (!b->frozen || b->cut || b->level != DRAIN || b->stood == b->version)
		return;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct barrier_rank *r = &b->ranks[i];

		if (local(b, i) && !r->exited && (!r->idle || r->joining || r->owed))
			return;
	}
	b->stood = b->version;
	barrier_send(b,
		     (struct barrier_message){.kind = STAND, .a = b->version, .d = b->generation});
}

static void freeze(struct barrier *b)
{
	b->stopping = b->frozen = true;
	b->level = CATCH_UP;
	b->version = b->stood = 0;
	rounds_clear(&b->targets);
	for (uint32_t i = 0; i < b->world_size; i++)
		b->ranks[i].owed = 0;
	for (uint32_t i = 0; i < b->members.count; i++) {
		struct entry *m = &b->members.entry[i];

		m->raised = 0;
		/* What a rank has sent is to be received, also when it has exited since. */
		if (!m->gone &&
		    (!b->ranks[m->rank].exited || (m->src != m->dst && m->src == m->rank)))
			report(b, m);
	}
	barrier_send(b, (struct barrier_message){.kind = REPORTED, .d = b->generation});
}

static void on_target(struct barrier *b, uint64_t comm, uint64_t to, uint32_t src, uint32_t dst)
{
	struct entry *t = rounds_put(b, &b->targets, 0, comm);
	uint64_t before;

	if (!t)
		return;
	if (src != dst) { /* one side may not have used the channel yet */
		if (local(b, src))
			barrier_pair(b, src, comm, src, dst);
		if (local(b, dst))
			barrier_pair(b, dst, comm, src, dst);
	}
	before = t->issued;
	t->issued = to;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct entry *m = local(b, i) ? rounds_get(&b->members, i, comm) : NULL;

		if (m && !m->gone && !m->joining && m->issued >= before && m->issued < to)
			b->ranks[i].owed++;
		if (local(b, i))
			ask_raise(b, i);
	}
}

static void on_level(struct barrier *b, uint32_t level, uint64_t version)
{
	b->level = level;
	b->version = version;
	for (uint32_t i = 0; i < b->world_size; i++)
		if (local(b, i))
			ask_raise(b, i);
}

static void on_steady(struct barrier *b, const struct barrier_message *m)
{
	b->generation = m->a;
	b->frozen = b->cut = b->leaving = false;
	b->level = CATCH_UP;
	b->asked = b->stopping = b->requests > m->b; /* asked again meanwhile */
}

/* ---- a device: what the caller tells --------------------------------------------------- */

static struct barrier_rank *checked(struct barrier *b, uint32_t rank, const char *what)
{
	if (local(b, rank))
		return &b->ranks[rank];
	barrier_fail(b, what, rank, 0);
	return NULL;
}

static void member(struct barrier *b, struct entry new)
{
	struct barrier_rank *r = checked(b, new.rank, "communicator of a rank that is not here");
	struct entry *m = r ? rounds_put(b, &b->members, new.rank, new.comm) : NULL;

	if (!m)
		return;
	r->joining -= m->joining;
	*m = new;
	if (b->frozen) {
		r->owed += m->issued < target(b, m->comm);
		report(b, m);
	}
}

void barrier_comm(struct barrier *b, uint32_t rank, uint64_t comm, const uint32_t *members,
		  uint32_t count, uint64_t issued)
{
	bool found = false;

	for (uint32_t i = 0; i < count; i++)
		found |= members[i] == rank;
	if (!comm || !found || count > b->world_size)
		barrier_fail(b, "a communicator without its own member", rank, comm);
	else
		member(b, (struct entry){.comm = comm,
					 .rank = rank,
					 .nranks = count,
					 .spans = count == b->world_size,
					 .issued = issued,
					 .complete = issued});
}

void barrier_pair(struct barrier *b, uint32_t rank, uint64_t key, uint32_t src, uint32_t dst)
{
	if (!key || (rank != src && rank != dst) || src == dst)
		barrier_fail(b, "a pair without its own member", rank, key);
	else if (!rounds_get(&b->members, rank, key))
		member(b, (struct entry){
				  .comm = key, .rank = rank, .nranks = 2, .src = src, .dst = dst});
}

void barrier_joining(struct barrier *b, uint32_t rank, uint64_t comm, uint32_t nranks)
{
	struct barrier_rank *r = checked(b, rank, "joining of a rank that is not here");
	struct entry *m = r ? rounds_put(b, &b->members, rank, comm) : NULL;

	if (!m)
		return;
	*m = (struct entry){.comm = comm, .rank = rank, .nranks = nranks, .joining = 1};
	r->joining++;
	r->refused = false;
	if (b->frozen)
		report(b, m);
}

void barrier_comm_gone(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;
	bool joining = m && m->joining;

	if (!m || m->gone)
		return;
	b->ranks[rank].joining -= m->joining;
	m->joining = 0;
	/* What was issued still counts until it is complete; a failed joining never happened. */
	m->gone = joining || m->complete == m->issued;
	if (b->frozen && m->gone) {
		b->ranks[rank].owed -= !joining && m->issued < target(b, comm);
		report(b, m);
	}
}

bool barrier_may_issue(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct barrier_rank *r = checked(b, rank, "round of a rank that is not here");
	const struct entry *m = r && comm ? rounds_get(&b->members, rank, comm) : NULL;
	bool may;

	if (!r || b->cut)
		return false;
	if (b->frozen)
		may = comm ? m && m->issued < target(b, comm) : owes(b, r);
	else
		may = !m || !m->spans || tandem_allows(b, r);
	r->refused = !may;
	r->refused_comm = comm;
	ask_raise(b, rank);
	return may;
}

void barrier_issue(struct barrier *b, uint32_t rank, uint64_t comm, uint64_t signature)
{
	struct barrier_rank *r = checked(b, rank, "round of a rank that is not here");
	struct entry *m = r ? rounds_get(&b->members, rank, comm) : NULL;

	if (!m || m->gone || m->joining || b->cut) {
		barrier_fail(b, "a round that cannot be", rank, comm);
		return;
	}
	r->refused = false;
	m->issued++;
	if (m->spans)
		tandem_issue(b, r, comm, signature);
	if (!b->frozen)
		return;
	b->catch_up++;
	r->owed -= m->issued == target(b, comm);
	report(b, m);
}

void barrier_complete(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;

	if (!m || m->complete >= m->issued) {
		barrier_fail(b, "a round completes that was not issued", rank, comm);
		return;
	}
	m->complete++;
	b->hurries = 0;
	if (m->spans)
		b->ranks[rank].complete++;
}

bool barrier_may_consume(const struct barrier *b, uint32_t rank)
{
	return local(b, rank) && !b->cut &&
	       (!b->frozen || b->level != DRAIN || b->ranks[rank].owed);
}

void barrier_idle(struct barrier *b, uint32_t rank, bool idle)
{
	struct barrier_rank *r = checked(b, rank, "idleness of a rank that is not here");

	if (!r)
		return;
	if (!idle && b->cut)
		barrier_fail(b, "work at the cut", rank, 0);
	r->idle = idle;
}

void barrier_exited(struct barrier *b, uint32_t rank)
{
	struct barrier_rank *r = checked(b, rank, "exit of a rank that is not here");

	if (!r || r->exited)
		return;
	r->exited = true;
	barrier_send(b, (struct barrier_message){.kind = EXITED, .rank = rank});
	tandem_offer(b);
}

void barrier_request(struct barrier *b)
{
	/* At the cut it stands already, or the release is on its way: device 0 knows. */
	b->leaving |= b->cut;
	b->asked = b->stopping = true;
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
		refused |= local(b, i) && b->ranks[i].refused;
	if (b->stopping)
		barrier_send(b, (struct barrier_message){.kind = HURRY, .d = b->generation});
	else if (refused && !b->off && ++b->hurries == PATIENCE)
		barrier_send(b, (struct barrier_message){.kind = GIVE_UP});
}

/* ---- the whole ------------------------------------------------------------------------- */

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
	case FREEZE: freeze(b); break;
	case TARGET: on_target(b, m->comm, m->a, (uint32_t)m->b, (uint32_t)m->c); break;
	case LEVEL: on_level(b, (uint32_t)m->a, m->b); break;
	case CUT:
		b->cut = true;
		b->cuts = m->a;
		/* Withdrawn on the way: STEADY follows. */
		b->leaving = m->c || m->b < b->withdrawals;
		break;
	case STEADY: on_steady(b, m); break;
	default: barrier_fail(b, "an unknown message", m->from, m->comm);
	}
}

void barrier_receive(struct barrier *b, const struct barrier_message *m)
{
	bool answer = m->from == 0 && m->kind >= VERDICT;

	if (m->to != b->device || m->from >= b->device_count || m->kind >= KINDS ||
	    (about_rank(m->kind) &&
	     (m->rank >= b->world_size || b->ranks[m->rank].device != m->from)))
		barrier_fail(b, "a message that cannot be", m->rank, m->comm);
	else if (answer)
		device_receive(b, m);
	else if (b->device == 0 && m->kind < VERDICT)
		coordinator_receive(b, m);
	else
		barrier_fail(b, "a message for device 0", m->from, m->comm);
}

bool barrier_next_message(struct barrier *b, struct barrier_message *m)
{
	stand(b);
	if (!b->queue_count)
		return false;
	*m = b->queue[b->queue_head];
	b->queue_head = (b->queue_head + 1) & (b->queue_room - 1);
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
	return local(b, rank) ? window(&b->ranks[rank]) : 0;
}

const char *barrier_error(const struct barrier *b) { return b->error[0] ? b->error : NULL; }
