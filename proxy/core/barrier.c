/* barrier.c: the protocol behind barrier.h (Singularity §4.3.1, and past it the cut vector).
 *
 * Rules kept here: no I/O, no clock, no thread, no lock; nothing blocks. Every decision that all
 * devices must share is taken by device 0 (the coordinator half below) and reaches a device in
 * order. Messages to oneself go through the caller like all others.
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
#include "barrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 128u       /* remembered rounds per rank; more unresolved ones turn the tandem off */
#define PATIENCE 30u    /* hurries in steady state, without a round resolved, before giving up */
#define WINDOW_MIN 2u
#define WINDOW_MAX 64u  /* also while no period is known */

enum kind {
	/* to the coordinator */
	REQUEST, WITHDRAW, RELEASE, HURRY, GIVE_UP, EXITED, TANDEM, COUNT, RAISE, REPORTED,
	STAND,
	/* from the coordinator */
	VERDICT, OFF, FREEZE, TARGET, LEVEL, CUT, STEADY,
	KINDS,
};

enum level { DRAIN = 0, CATCH_UP = 1, LET_GO = 2 };

/* What is known about one communicator, or about one rank on one communicator. */
struct entry {
	uint64_t comm;
	uint32_t rank;     /* in a table of targets: 0 */
	uint32_t nranks;
	uint64_t issued;   /* rounds; in a table of targets: the target */
	uint64_t complete;
	uint64_t raised;   /* RAISE was sent up to here */
	uint32_t joining;  /* waits for the others; in the coordinator's targets: how many do */
	uint32_t joined;   /* coordinator's targets: how many are past the joining */
	bool spans, gone;
	uint32_t src, dst; /* of a pair; else equal */
};

/* A hash table of entries by (rank, comm). Entries stay until the table is cleared. */
struct table {
	struct entry *entry;
	uint32_t *slot; /* entry number + 1, 0: free */
	uint32_t count, room; /* room: a power of two; at most half of the slots are used */
};

struct rank {
	uint32_t device;
	bool idle, exited;
	bool refused;        /* its next record may not be consumed: a round on refused_comm */
	uint64_t refused_comm;
	uint32_t joining;    /* joinings it waits in */
	uint64_t owed;       /* communicators on which it is below the target */
	/* the tandem's view: rounds on communicators that span the job */
	uint64_t round, complete;
	uint64_t keys[KEYS], signatures[KEYS];
	uint32_t matches[WINDOW_MAX + 1]; /* [p]: how long signatures have had period p */
	uint32_t period;     /* 0: not known */
	uint32_t longest;    /* matches of a period that proved wrong */
};

enum stage { RUNNING, FROZEN, STOPPED };

/* Device 0 only. */
struct coordinator {
	enum stage stage;
	uint64_t generation, cuts;
	bool wanted;         /* asked, and not withdrawn since */
	bool spread;         /* some verdict of this generation said need > 0 */
	bool off;            /* the tandem cannot decide any more */
	bool hurried;
	uint32_t exited;
	uint64_t requests[BARRIER_DEVICES_MAX], withdrawals[BARRIER_DEVICES_MAX];
	/* the meta-allreduce under way: round verdict + 1 */
	uint64_t verdict, need, ack, comm;
	uint32_t offers;
	bool offered[BARRIER_DEVICES_MAX], mismatch;
	uint32_t living[BARRIER_DEVICES_MAX];
	/* the cut vector */
	uint32_t level;
	uint64_t version;    /* of the last LEVEL */
	uint32_t reported, standing;
	struct table reports, targets;
};

struct barrier {
	uint32_t device, device_count, world_size;
	struct rank *ranks;
	struct table members; /* of local ranks */
	struct table targets;

	uint64_t generation, cuts;
	bool asked;          /* this device was, in this generation */
	uint64_t requests, withdrawals; /* sent; a release is a withdrawal */
	bool stopping;       /* phase 2 */
	bool off;
	uint64_t verdict;    /* the last round whose meta-allreduce is known */
	uint64_t offered;    /* the last round this device has added up */
	bool frozen, cut;
	bool leaving;        /* STEADY may be on its way: withdrawn, released, or asked at the cut */
	uint32_t level;
	uint64_t version, stood;
	uint64_t catch_up;
	uint32_t hurries;    /* in steady state, since a round was resolved */

	struct coordinator lead;

	struct barrier_message *queue; /* ring of queue_room, a power of two */
	uint32_t queue_room, queue_head, queue_count;
	char error[160];
};

/* ---- helpers --------------------------------------------------------------------------- */

static void fail(struct barrier *b, const char *what, uint32_t rank, uint64_t comm)
{
	if (!b->error[0])
		snprintf(b->error, sizeof b->error, "barrier: %s (rank %u, communicator %llx)",
			 what, rank, (unsigned long long)comm);
}

static uint32_t hash(uint32_t rank, uint64_t comm)
{
	uint64_t h = (comm ^ ((uint64_t)rank << 32)) * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(h >> 32);
}

static struct entry *table_get(const struct table *t, uint32_t rank, uint64_t comm)
{
	if (!t->room)
		return NULL;
	for (uint32_t i = hash(rank, comm);; i++) {
		uint32_t slot = t->slot[i & (t->room - 1)];

		if (!slot)
			return NULL;
		if (t->entry[slot - 1].rank == rank && t->entry[slot - 1].comm == comm)
			return &t->entry[slot - 1];
	}
}

static void table_place(struct table *t, uint32_t number)
{
	uint32_t i = hash(t->entry[number].rank, t->entry[number].comm) & (t->room - 1);

	while (t->slot[i])
		i = (i + 1) & (t->room - 1);
	t->slot[i] = number + 1;
}

/* Find or make. NULL, and an error: no memory. Pointers to other entries become invalid. */
static struct entry *table_put(struct barrier *b, struct table *t, uint32_t rank, uint64_t comm)
{
	struct entry *e = table_get(t, rank, comm);

	if (e)
		return e;
	if (2 * t->count >= t->room) {
		uint32_t room = t->room ? 2 * t->room : 32;
		uint32_t *slot = calloc(room, sizeof *slot);
		struct entry *entry = realloc(t->entry, room / 2 * sizeof *entry);

		if (entry)
			t->entry = entry;
		if (!slot || !entry) {
			free(slot);
			fail(b, "out of memory", rank, comm);
			return NULL;
		}
		free(t->slot);
		t->slot = slot;
		t->room = room;
		for (uint32_t i = 0; i < t->count; i++)
			table_place(t, i);
	}
	t->entry[t->count] = (struct entry){.rank = rank, .comm = comm};
	table_place(t, t->count);
	return &t->entry[t->count++];
}

static void table_clear(struct table *t)
{
	if (t->room)
		memset(t->slot, 0, t->room * sizeof *t->slot);
	t->count = 0;
}

static void table_free(struct table *t)
{
	free(t->entry);
	free(t->slot);
}

static void send(struct barrier *b, struct barrier_message m)
{
	if (b->queue_count == b->queue_room) {
		uint32_t room = b->queue_room ? 2 * b->queue_room : 64;
		struct barrier_message *queue = malloc(room * sizeof *queue);

		if (!queue) {
			fail(b, "out of memory", m.rank, m.comm);
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

static void send_all(struct barrier *b, struct barrier_message m)
{
	for (m.to = 0; m.to < b->device_count; m.to++)
		send(b, m);
}

static bool local(const struct barrier *b, uint32_t rank)
{
	return rank < b->world_size && b->ranks[rank].device == b->device;
}

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint32_t max32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

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
		const struct rank *r = &b->ranks[i];

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
	send(b, (struct barrier_message){.kind = TANDEM, .comm = mismatch ? 0 : comm, .a = n,
					 .b = b->asked ? living : 0, .c = ack,
					 .d = b->generation});
}

/* Keeps, for each possible period, how long the signatures have repeated with it. The period is
 * the smallest that explains a whole repetition, and more than any that has proved wrong: equal
 * buckets in a row do not make a mini-batch. */
static void learn(struct rank *r, uint64_t signature)
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

static uint32_t window(const struct rank *r)
{
	return r->period ? max32(r->period, WINDOW_MIN) : WINDOW_MAX;
}

static bool tandem_allows(const struct barrier *b, const struct rank *r)
{
	uint64_t resolved = min64(b->verdict, r->complete);

	if (b->off)
		return true;
	if (b->stopping)
		return r->round <= resolved;
	return r->round < resolved + window(r);
}

static void tandem_issue(struct barrier *b, struct rank *r, uint64_t comm, uint64_t signature)
{
	r->round++;
	r->keys[r->round % KEYS] = comm;
	learn(r, signature);
	if (r->round - b->verdict >= KEYS && !b->off) {
		b->off = true;
		send(b, (struct barrier_message){.kind = GIVE_UP});
	}
	tandem_offer(b);
}

/* ---- a device: the cut vector ---------------------------------------------------------- */

static uint64_t target(const struct barrier *b, uint64_t comm)
{
	const struct entry *t = table_get(&b->targets, 0, comm);

	return t ? t->issued : 0;
}

static bool owes(const struct barrier *b, const struct rank *r)
{
	return r->owed > 0 || b->level == LET_GO;
}

static void report(struct barrier *b, const struct entry *m)
{
	send(b, (struct barrier_message){.kind = COUNT, .rank = m->rank, .comm = m->comm,
					 .a = m->issued, .b = m->nranks,
					 .c = (m->joining ? 1 : 0) | (m->gone ? 2 : 0) |
					      (uint64_t)m->src << 16 | (uint64_t)m->dst << 32,
					 .d = b->generation});
}

/* A rank that owes, but stands before a round past its target, asks for a higher one. */
static void ask_raise(struct barrier *b, uint32_t rank)
{
	struct rank *r = &b->ranks[rank];
	struct entry *m;

	if (!b->frozen || !r->refused || !r->refused_comm || !owes(b, r))
		return;
	m = table_get(&b->members, rank, r->refused_comm);
	if (!m || m->issued < target(b, m->comm) || m->raised > m->issued)
		return;
	m->raised = m->issued + 1;
	send(b, (struct barrier_message){.kind = RAISE, .rank = rank, .comm = m->comm,
					 .a = m->raised, .d = b->generation});
}

static void stand(struct barrier *b)
{
	if (!b->frozen || b->cut || b->level != DRAIN || b->stood == b->version)
		return;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct rank *r = &b->ranks[i];

		if (local(b, i) && !r->exited && (!r->idle || r->joining || r->owed))
			return;
	}
	b->stood = b->version;
	send(b, (struct barrier_message){.kind = STAND, .a = b->version, .d = b->generation});
}

static void freeze(struct barrier *b)
{
	b->stopping = b->frozen = true;
	b->level = CATCH_UP;
	b->version = b->stood = 0;
	table_clear(&b->targets);
	for (uint32_t i = 0; i < b->world_size; i++)
		b->ranks[i].owed = 0;
	for (uint32_t i = 0; i < b->members.count; i++) {
		struct entry *m = &b->members.entry[i];

		m->raised = 0;
		/* What a rank has sent is to be received, also when it has exited since. */
		if (!m->gone && (!b->ranks[m->rank].exited ||
				 (m->src != m->dst && m->src == m->rank)))
			report(b, m);
	}
	send(b, (struct barrier_message){.kind = REPORTED, .d = b->generation});
}

static void on_target(struct barrier *b, uint64_t comm, uint64_t to, uint32_t src, uint32_t dst)
{
	struct entry *t = table_put(b, &b->targets, 0, comm);
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
		const struct entry *m = local(b, i) ? table_get(&b->members, i, comm) : NULL;

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

static struct rank *checked(struct barrier *b, uint32_t rank, const char *what)
{
	if (local(b, rank))
		return &b->ranks[rank];
	fail(b, what, rank, 0);
	return NULL;
}

static void member(struct barrier *b, struct entry new)
{
	struct rank *r = checked(b, new.rank, "communicator of a rank that is not here");
	struct entry *m = r ? table_put(b, &b->members, new.rank, new.comm) : NULL;

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
		fail(b, "a communicator without its own member", rank, comm);
	else
		member(b, (struct entry){.comm = comm, .rank = rank, .nranks = count,
					 .spans = count == b->world_size, .issued = issued,
					 .complete = issued});
}

void barrier_pair(struct barrier *b, uint32_t rank, uint64_t key, uint32_t src, uint32_t dst)
{
	if (!key || (rank != src && rank != dst) || src == dst)
		fail(b, "a pair without its own member", rank, key);
	else if (!table_get(&b->members, rank, key))
		member(b, (struct entry){.comm = key, .rank = rank, .nranks = 2, .src = src,
					 .dst = dst});
}

void barrier_joining(struct barrier *b, uint32_t rank, uint64_t comm, uint32_t nranks)
{
	struct rank *r = checked(b, rank, "joining of a rank that is not here");
	struct entry *m = r ? table_put(b, &b->members, rank, comm) : NULL;

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
	struct entry *m = local(b, rank) ? table_get(&b->members, rank, comm) : NULL;
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
	struct rank *r = checked(b, rank, "round of a rank that is not here");
	const struct entry *m = r && comm ? table_get(&b->members, rank, comm) : NULL;
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
	struct rank *r = checked(b, rank, "round of a rank that is not here");
	struct entry *m = r ? table_get(&b->members, rank, comm) : NULL;

	if (!m || m->gone || m->joining || b->cut) {
		fail(b, "a round that cannot be", rank, comm);
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
	struct entry *m = local(b, rank) ? table_get(&b->members, rank, comm) : NULL;

	if (!m || m->complete >= m->issued) {
		fail(b, "a round completes that was not issued", rank, comm);
		return;
	}
	m->complete++;
	b->hurries = 0;
	if (m->spans)
		b->ranks[rank].complete++;
}

bool barrier_may_consume(const struct barrier *b, uint32_t rank)
{
	return local(b, rank) && !b->cut && (!b->frozen || b->level != DRAIN ||
					     b->ranks[rank].owed);
}

void barrier_idle(struct barrier *b, uint32_t rank, bool idle)
{
	struct rank *r = checked(b, rank, "idleness of a rank that is not here");

	if (!r)
		return;
	if (!idle && b->cut)
		fail(b, "work at the cut", rank, 0);
	r->idle = idle;
}

void barrier_exited(struct barrier *b, uint32_t rank)
{
	struct rank *r = checked(b, rank, "exit of a rank that is not here");

	if (!r || r->exited)
		return;
	r->exited = true;
	send(b, (struct barrier_message){.kind = EXITED, .rank = rank});
	tandem_offer(b);
}

void barrier_request(struct barrier *b)
{
	/* At the cut it stands already, or the release is on its way: device 0 knows. */
	b->leaving |= b->cut;
	b->asked = b->stopping = true;
	b->requests++;
	send(b, (struct barrier_message){.kind = REQUEST});
}

void barrier_withdraw(struct barrier *b)
{
	if (b->cut) {
		barrier_release(b);
		return;
	}
	b->leaving = true;
	b->withdrawals++;
	send(b, (struct barrier_message){.kind = WITHDRAW});
}

void barrier_release(struct barrier *b)
{
	if (!b->cut)
		return;
	b->leaving = true;
	b->withdrawals++;
	send(b, (struct barrier_message){.kind = RELEASE, .d = b->generation});
}

void barrier_hurry(struct barrier *b)
{
	bool refused = false;

	for (uint32_t i = 0; i < b->world_size; i++)
		refused |= local(b, i) && b->ranks[i].refused;
	if (b->stopping)
		send(b, (struct barrier_message){.kind = HURRY, .d = b->generation});
	else if (refused && !b->off && ++b->hurries == PATIENCE)
		send(b, (struct barrier_message){.kind = GIVE_UP});
}

/* ---- the coordinator ------------------------------------------------------------------- */

static void lead_freeze(struct barrier *b)
{
	struct coordinator *c = &b->lead;

	if (c->stage != RUNNING)
		return;
	c->stage = FROZEN;
	c->level = CATCH_UP;
	c->version = c->reported = c->standing = 0;
	c->hurried = false;
	table_clear(&c->reports);
	table_clear(&c->targets);
	send_all(b, (struct barrier_message){.kind = FREEZE});
}

static void lead_steady(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	struct barrier_message m = {.kind = STEADY, .a = ++c->generation};

	c->stage = RUNNING;
	c->wanted = c->spread = false;
	c->need = c->ack = 0; /* of the round under way: said in the generation that is over */
	for (m.to = 0; m.to < b->device_count; m.to++) {
		m.b = c->requests[m.to];
		send(b, m);
	}
}

/* The tandem can say when to stop: it has run, in one order, and all who took part live. */
static bool lead_tandem_alive(const struct coordinator *c)
{
	return !c->off && !c->exited && c->verdict > 0;
}

static void lead_stop(struct barrier *b)
{
	struct coordinator *c = &b->lead;

	if ((c->wanted || c->spread) && !lead_tandem_alive(c))
		lead_freeze(b);
}

static void lead_off(struct barrier *b)
{
	if (!b->lead.off)
		send_all(b, (struct barrier_message){.kind = OFF});
	b->lead.off = true;
	lead_stop(b);
}

static void lead_verdict(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	uint32_t living = 0;

	for (uint32_t i = 0; i < b->device_count; i++) {
		if (c->living[i] && !c->offered[i])
			return;
		living += c->living[i];
	}
	if (c->mismatch) {
		lead_off(b);
		return;
	}
	c->verdict++;
	c->spread |= c->need > 0;
	/* Before the verdict: whoever knows it must not take it for leave to go on. */
	if (c->need > 0 && c->ack >= living)
		lead_freeze(b);
	send_all(b, (struct barrier_message){.kind = VERDICT, .a = c->verdict, .b = c->need,
					     .c = c->ack, .d = c->generation});
	c->need = c->ack = c->comm = 0;
	c->offers = 0;
	memset(c->offered, 0, sizeof c->offered);
}

static void lead_tandem(struct barrier *b, const struct barrier_message *m)
{
	struct coordinator *c = &b->lead;

	if (c->off)
		return;
	if (m->a != c->verdict + 1 || c->offered[m->from]) {
		fail(b, "a meta-allreduce out of turn", m->from, m->comm);
		return;
	}
	c->offered[m->from] = true;
	c->offers++;
	c->mismatch |= !m->comm || (c->comm && c->comm != m->comm);
	c->comm = m->comm;
	/* Asked again right after a withdrawal, a device may not know the new generation yet. */
	if (m->d == c->generation || c->wanted)
		c->need += m->b;
	if (m->d == c->generation)
		c->ack += m->c;
	lead_verdict(b);
}

/* Who owes, after all that was reported? */
static uint32_t lead_survey(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	bool owing = false, incomplete = false;

	for (uint32_t i = 0; i < c->targets.count; i++)
		c->targets.entry[i].joining = c->targets.entry[i].joined = 0;
	for (uint32_t i = 0; i < c->reports.count; i++) {
		const struct entry *m = &c->reports.entry[i];
		struct entry *t = table_get(&c->targets, 0, m->comm);

		if (m->gone || b->ranks[m->rank].exited || !t)
			continue;
		t->nranks = m->nranks;
		t->joining += m->joining;
		t->joined += !m->joining;
		owing |= !m->joining && m->issued < t->issued;
	}
	for (uint32_t i = 0; i < c->targets.count; i++) {
		const struct entry *t = &c->targets.entry[i];

		incomplete |= t->joining && !t->joined && t->joining < t->nranks;
	}
	c->hurried &= owing || incomplete;
	if (incomplete || (owing && c->hurried))
		return LET_GO;
	return owing ? CATCH_UP : DRAIN;
}

static void lead_level(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	uint32_t level;

	if (c->stage != FROZEN || c->reported < b->device_count)
		return;
	level = lead_survey(b);
	if (level == c->level)
		return;
	c->level = level;
	c->standing = 0;
	send_all(b, (struct barrier_message){.kind = LEVEL, .a = level, .b = ++c->version});
}

static void lead_raise(struct barrier *b, uint64_t comm, uint64_t to)
{
	struct entry *t = table_put(b, &b->lead.targets, 0, comm);

	if (!t || t->issued >= to)
		return;
	t->issued = to;
	send_all(b, (struct barrier_message){.kind = TARGET, .comm = comm, .a = to, .b = t->src,
					     .c = t->dst});
}

/* Both sides of a pair count, also the one that has not used it yet. */
static bool lead_pair(struct barrier *b, const struct barrier_message *m)
{
	uint32_t src = (m->c >> 16) & 0xffff, dst = (m->c >> 32) & 0xffff;
	struct entry *t;

	if (src == dst)
		return true;
	if (src >= b->world_size || dst >= b->world_size ||
	    !table_put(b, &b->lead.reports, src, m->comm) ||
	    !table_put(b, &b->lead.reports, dst, m->comm) ||
	    !(t = table_put(b, &b->lead.targets, 0, m->comm)))
		return false;
	t->src = src;
	t->dst = dst;
	return true;
}

static void lead_count(struct barrier *b, const struct barrier_message *m)
{
	struct entry *e = lead_pair(b, m) ? table_put(b, &b->lead.reports, m->rank, m->comm) : NULL;

	if (!e) {
		fail(b, "a count that cannot be", m->rank, m->comm);
		return;
	}
	e->issued = m->a;
	e->nranks = (uint32_t)m->b;
	e->joining = m->c & 1;
	e->gone = m->c & 2;
	lead_raise(b, m->comm, m->a);
	lead_level(b);
}

static void lead_cut(struct barrier *b, uint32_t to)
{
	const struct coordinator *c = &b->lead;

	send(b, (struct barrier_message){.kind = CUT, .to = to, .a = c->cuts,
					 .b = c->withdrawals[to], .c = !c->wanted});
}

static void lead_stand(struct barrier *b, const struct barrier_message *m)
{
	struct coordinator *c = &b->lead;

	if (m->a != c->version || c->level != DRAIN || ++c->standing < b->device_count)
		return;
	c->stage = STOPPED;
	c->cuts++;
	for (uint32_t to = 0; to < b->device_count; to++)
		lead_cut(b, to);
	if (!c->wanted)
		lead_steady(b);
}

static void lead_exited(struct barrier *b, const struct barrier_message *m)
{
	b->ranks[m->rank].exited = true;
	b->lead.exited++;
	b->lead.living[m->from]--;
	if (!b->lead.off && b->lead.offers)
		lead_verdict(b);
	lead_stop(b);
	lead_level(b);
}

static void lead_withdraw(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	bool pending = c->wanted;

	c->wanted = false;
	if (c->stage == STOPPED || (pending && c->stage == RUNNING && !c->spread))
		lead_steady(b);
}

static void lead_hurry(struct barrier *b)
{
	struct coordinator *c = &b->lead;

	if (c->stage == RUNNING && (c->wanted || c->spread))
		lead_freeze(b);
	else if (c->stage == FROZEN)
		c->hurried = true;
	lead_level(b);
}

static void lead_receive(struct barrier *b, const struct barrier_message *m)
{
	struct coordinator *c = &b->lead;
	bool vector = c->stage == FROZEN && m->d == c->generation;

	switch (m->kind) {
	case REQUEST:
		c->requests[m->from]++;
		c->wanted = true;
		if (c->stage == STOPPED)
			lead_cut(b, m->from);
		if (!c->living[m->from]) /* it has no rank whose need would spread */
			lead_freeze(b);
		lead_stop(b);
		break;
	case WITHDRAW:
		c->withdrawals[m->from]++;
		lead_withdraw(b);
		break;
	case RELEASE:
		c->withdrawals[m->from]++;
		if (c->stage == STOPPED && m->d == c->generation)
			lead_steady(b);
		break;
	case HURRY:
		if (m->d == c->generation)
			lead_hurry(b);
		break;
	case GIVE_UP: lead_off(b); break;
	case EXITED: lead_exited(b, m); break;
	case TANDEM: lead_tandem(b, m); break;
	case COUNT:
		if (vector)
			lead_count(b, m);
		break;
	case RAISE:
		if (vector)
			lead_raise(b, m->comm, m->a);
		lead_level(b);
		break;
	case REPORTED:
		c->reported += vector;
		lead_level(b);
		break;
	case STAND:
		if (vector)
			lead_stand(b, m);
		break;
	default: fail(b, "a message that only device 0 may send", m->from, m->comm);
	}
}

/* ---- the whole ------------------------------------------------------------------------- */

static bool about_rank(uint32_t kind)
{
	return kind == EXITED || kind == COUNT || kind == RAISE;
}

static void device_receive(struct barrier *b, const struct barrier_message *m)
{
	switch (m->kind) {
	case VERDICT:
		if (m->a != b->verdict + 1)
			fail(b, "a verdict out of turn", m->from, m->comm);
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
	default: fail(b, "an unknown message", m->from, m->comm);
	}
}

void barrier_receive(struct barrier *b, const struct barrier_message *m)
{
	bool answer = m->from == 0 && m->kind >= VERDICT;

	if (m->to != b->device || m->from >= b->device_count || m->kind >= KINDS ||
	    (about_rank(m->kind) &&
	     (m->rank >= b->world_size || b->ranks[m->rank].device != m->from)))
		fail(b, "a message that cannot be", m->rank, m->comm);
	else if (answer)
		device_receive(b, m);
	else if (b->device == 0 && m->kind < VERDICT)
		lead_receive(b, m);
	else
		fail(b, "a message for device 0", m->from, m->comm);
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

	if (!b || device >= device_count || device_count > BARRIER_DEVICES_MAX ||
	    !world_size || world_size > BARRIER_RANKS_MAX ||
	    !(b->ranks = calloc(world_size, sizeof *b->ranks))) {
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
	table_free(&b->members);
	table_free(&b->targets);
	table_free(&b->lead.reports);
	table_free(&b->lead.targets);
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

uint64_t barrier_round(const struct barrier *b)
{
	return b->cuts;
}

uint64_t barrier_catch_up(const struct barrier *b)
{
	return b->catch_up;
}

uint32_t barrier_window(const struct barrier *b, uint32_t rank)
{
	return local(b, rank) ? window(&b->ranks[rank]) : 0;
}

const char *barrier_error(const struct barrier *b)
{
	return b->error[0] ? b->error : NULL;
}
