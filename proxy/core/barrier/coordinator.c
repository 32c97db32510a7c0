/* coordinator.c: device 0's half of the barrier. See barrier.c for the protocol.
 *
 * Rules: every decision that all devices must share is made here, and reaches a device in order.
 * Messages about a stop carry its generation and are ignored when that is over; requests,
 * withdrawals and exits always count.
 */
#include "barrier_parts.h"

#include <string.h>

static void lead_freeze(struct barrier *b)
{
	struct coordinator *c = &b->lead;

	if (c->stage != RUNNING)
		return;
	c->stage = FROZEN;
	c->level = CATCH_UP;
	c->version = c->reported = c->drained_count = 0;
	c->hurried = false;
	rounds_clear(&c->reports);
	rounds_clear(&c->targets);
	barrier_send_all(b, (struct barrier_message){.kind = FREEZE});
}

static void lead_steady(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	struct barrier_message m = {.kind = STEADY, .a = ++c->generation};

	c->stage = RUNNING;
	c->wanted = c->spread = false;
	c->need = c->ack = 0; /* of the round in progress: sent in the generation that has ended */
	for (m.to = 0; m.to < b->device_count; m.to++) {
		m.b = c->requests[m.to];
		barrier_send(b, m);
	}
}

/* True if the tandem can decide when to stop: it has run, in one order, and no rank has exited. */
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
		barrier_send_all(b, (struct barrier_message){.kind = OFF});
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
	/* Before the verdict: a device that knows it must not take it as permission to continue. */
	if (c->need > 0 && c->ack >= living)
		lead_freeze(b);
	barrier_send_all(b, (struct barrier_message){.kind = VERDICT,
						     .a = c->verdict,
						     .b = c->need,
						     .c = c->ack,
						     .d = c->generation});
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
		barrier_fail(b, "a meta-allreduce out of turn", m->from, m->comm);
		return;
	}
	c->offered[m->from] = true;
	c->offers++;
	c->mismatch |= !m->comm || (c->comm && c->comm != m->comm);
	c->comm = m->comm;
	/* After a request right after a withdrawal, a device may not know the new generation
	 * yet. */
	if (m->d == c->generation || c->wanted)
		c->need += m->b;
	if (m->d == c->generation)
		c->ack += m->c;
	lead_verdict(b);
}

/* Returns the level that follows from all reports. */
static uint32_t lead_survey(struct barrier *b)
{
	struct coordinator *c = &b->lead;
	bool owing = false, let_go = false;

	for (uint32_t i = 0; i < c->targets.count; i++)
		c->targets.entry[i].joining = c->targets.entry[i].joined = 0;
	for (uint32_t i = 0; i < c->reports.count; i++) {
		const struct entry *m = &c->reports.entry[i];
		struct entry *t = rounds_get(&c->targets, 0, m->comm);

		if (m->ended || b->ranks[m->rank].exited || !t)
			continue;
		t->nranks = m->nranks;
		t->joining += m->joining;
		t->joined += !m->joining;
		if (m->joining)
			continue;
		owing |= !t->broken && m->issued < t->issued;
		let_go |= t->broken && m->complete < m->issued;
	}
	for (uint32_t i = 0; i < c->targets.count; i++) {
		const struct entry *t = &c->targets.entry[i];

		let_go |= t->joining && !t->joined && t->joining < t->nranks;
	}
	c->hurried &= owing || let_go;
	if (let_go || (owing && c->hurried))
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
	c->drained_count = 0;
	barrier_send_all(b, (struct barrier_message){.kind = LEVEL, .a = level, .b = ++c->version});
}

static void lead_raise(struct barrier *b, uint64_t comm, uint64_t to)
{
	struct entry *t = rounds_put(b, &b->lead.targets, 0, comm);

	if (!t || t->issued >= to)
		return;
	t->issued = to;
	barrier_send_all(b,
			 (struct barrier_message){
				 .kind = TARGET, .comm = comm, .a = to, .b = t->src, .c = t->dst});
}

static void lead_broken(struct barrier *b, uint64_t comm)
{
	struct entry *t = rounds_put(b, &b->lead.targets, 0, comm);

	if (!t || t->broken)
		return;
	t->broken = true;
	barrier_send_all(b, (struct barrier_message){.kind = BROKEN, .comm = comm});
}

/* Both sides of a pair count, including one that has not used it yet. */
static bool lead_pair(struct barrier *b, const struct barrier_message *m)
{
	uint32_t src = (m->c >> 16) & 0xffff, dst = (m->c >> 32) & 0xffff;
	struct entry *t;

	if (src == dst)
		return true;
	if (src >= b->world_size || dst >= b->world_size ||
	    !rounds_put(b, &b->lead.reports, src, m->comm) ||
	    !rounds_put(b, &b->lead.reports, dst, m->comm) ||
	    !(t = rounds_put(b, &b->lead.targets, 0, m->comm)))
		return false;
	t->src = src;
	t->dst = dst;
	return true;
}

static void lead_count(struct barrier *b, const struct barrier_message *m)
{
	struct entry *e = NULL;

	if (lead_pair(b, m))
		e = rounds_put(b, &b->lead.reports, m->rank, m->comm);
	if (!e) {
		barrier_fail(b, "an invalid count", m->rank, m->comm);
		return;
	}
	e->issued = m->a;
	e->nranks = (uint32_t)m->b;
	e->joining = m->c & 1;
	e->ended = m->c & 2;
	e->complete = m->a - (m->c & 8 ? 1 : 0);
	lead_raise(b, m->comm, m->a);
	if (m->c & 4)
		lead_broken(b, m->comm);
	lead_level(b);
}

static void lead_cut(struct barrier *b, uint32_t to)
{
	const struct coordinator *c = &b->lead;

	barrier_send(b, (struct barrier_message){.kind = CUT,
						 .to = to,
						 .a = c->cuts,
						 .b = c->withdrawals[to],
						 .c = !c->wanted});
}

static void lead_stand(struct barrier *b, const struct barrier_message *m)
{
	struct coordinator *c = &b->lead;

	if (m->a != c->version || c->level != DRAIN || ++c->drained_count < b->device_count)
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

void coordinator_receive(struct barrier *b, const struct barrier_message *m)
{
	struct coordinator *c = &b->lead;
	bool vector = c->stage == FROZEN && m->d == c->generation;

	switch (m->kind) {
	case REQUEST:
		c->requests[m->from]++;
		c->wanted = true;
		if (c->stage == STOPPED)
			lead_cut(b, m->from);
		/* The device has no rank whose need would spread; or no round is in progress that
		 * could spread it: then the ranks' present rounds are as good as those after the
		 * next one. */
		if (!c->living[m->from] || !c->offers)
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
	default: barrier_fail(b, "a message that only device 0 may send", m->from, m->comm);
	}
}
