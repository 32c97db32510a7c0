/* agree.c: whether the devices of a communicator use a library for sums between them (link.c). See
 * engine.h.
 *
 * The lowest device of the communicator decides, once in an epoch, before the first all-reduce
 * begins on any device. Each device opens a link when its members have called one:
 *
 *   OFFER    to the lowest device: the library's version here, and the GPU
 *   ID       from it, when all have offered: the id that its library has made
 *   READY    to it: connected
 *   USE      from it, when all are ready
 *   CANNOT   to it, instead of OFFER or READY, with the reason
 *   REFUSE   from it, then: all use the tree
 *
 * Rules: an all-reduce waits for the decision, so all devices execute it in the same way. Each
 * device gives each answer once, also after a REFUSE, and the lowest one keeps the communicator
 * until it has them: none arrives for a communicator that is gone. When a member has aborted the
 * communicator, no one asks or answers any more: what waits for the decision will not complete.
 */
#include "engine.h"

#include <stdio.h>
#include <string.h>

enum link_step { LINK_OFFER, LINK_ID, LINK_READY, LINK_CANNOT, LINK_USE, LINK_REFUSE };

static uint64_t all_devices(const struct coll_comm *m)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < m->device_count; i++)
		all |= device_bit(m->devices[i]);
	return all;
}

static struct coll_message message_of(const struct coll_comm *m, enum link_step step)
{
	return (struct coll_message){
		.kind = MSG_LINK, .from_rank = m->seats[0].rank, .key = m->key, .seq = step};
}

static void answer(struct coll *c, struct coll_comm *m, const struct coll_message *out)
{
	m->link.owes = false;
	engine_send(c, m->devices[0], out);
}

static void cannot(struct coll *c, struct coll_comm *m, const char *text)
{
	struct coll_message out = message_of(m, LINK_CANNOT);

	snprintf(out.link_text, sizeof out.link_text, "%s", text);
	answer(c, m, &out);
}

static void decide(struct coll *c, struct coll_comm *m, const struct coll_message *out)
{
	m->link.answered = true;
	for (uint32_t i = 0; i < m->device_count; i++)
		engine_send(c, m->devices[i], out);
}

static void refuse(struct coll *c, struct coll_comm *m, const char *text)
{
	struct coll_message out = message_of(m, LINK_REFUSE);

	snprintf(out.link_text, sizeof out.link_text, "%s", text);
	decide(c, m, &out);
}

void link_ask(struct coll *c, struct coll_comm *m)
{
	char text[HAL_LINK_TEXT_BYTES] = "a device's type has no library that joins devices";

	if (m->link.phase != LINK_UNDECIDED || m->broken || c->links_ended)
		return;
	m->link.phase = LINK_ASKED;
	m->link.owes = true;
	m->link.seen = HAL_LINK_BUSY;
	if (c->io.link_open)
		m->link.at = c->io.link_open(c->io.arg, text, sizeof text);
	if (!m->link.at)
		cannot(c, m, text);
}

bool link_open_questions(const struct coll *c, const struct coll_comm *m)
{
	const struct coll_link *l = &m->link;

	return l->phase == LINK_ASKED ||
	       (m->devices[0] == c->device && l->phase != LINK_UNDECIDED &&
		l->replied != all_devices(m));
}

/* ---- on the lowest device ---------------------------------------------------------------- */

/* Compares an offer with the earlier ones; returns why they do not fit, or NULL. */
static const char *compare(struct coll_comm *m, uint32_t from, const struct link_offer *offer)
{
	struct coll_link *l = &m->link;

	if (!(l->replied & ~device_bit(from)))
		l->offer = *offer;
	for (uint32_t i = 0; i < DEVICES_MAX; i++)
		if (i != from && l->replied >> i & 1 &&
		    !memcmp(l->gpus[i], offer->gpu, sizeof offer->gpu))
			return "two of its devices are one GPU";
	memcpy(l->gpus[from], offer->gpu, sizeof offer->gpu);
	return l->offer.version == offer->version ? NULL
						  : "its devices have different versions of NCCL";
}

/* All devices have given this answer. */
static void all_replied(struct coll *c, struct coll_comm *m, enum link_step step)
{
	struct coll_message use = message_of(m, LINK_USE);

	if (step == LINK_READY) {
		decide(c, m, &use);
		return;
	}
	m->link.naming = true;
	c->io.link_name(c->io.arg, m->link.at);
}

static bool on_answer(struct coll *c, uint32_t from, struct coll_comm *m,
		      const struct coll_message *in)
{
	struct coll_link *l = &m->link;
	enum link_step step = (enum link_step)in->seq;
	const char *why = NULL;

	if (m->devices[0] != c->device || !(all_devices(m) & device_bit(from)))
		return false;
	if (step != LINK_CANNOT && l->replied & device_bit(from))
		return false;
	l->replied |= device_bit(from);
	if (l->answered)
		return true;
	if (step == LINK_CANNOT)
		why = in->link_text;
	else if (step == LINK_OFFER)
		why = compare(m, from, &in->link_offer);
	if (why)
		refuse(c, m, why);
	else if (l->replied == all_devices(m))
		all_replied(c, m, step);
	return true;
}

/* The library has made the id: each device is to connect. */
static void send_id(struct coll *c, struct coll_comm *m, const uint8_t *id)
{
	struct coll_message out = message_of(m, LINK_ID);

	memcpy(out.link_id, id, sizeof out.link_id);
	m->link.naming = false;
	m->link.replied = 0;
	for (uint32_t i = 0; i < m->device_count; i++)
		engine_send(c, m->devices[i], &out);
}

/* ---- on every device --------------------------------------------------------------------- */

static uint32_t place_of(const struct coll *c, const struct coll_comm *m)
{
	uint32_t i = 0;

	while (m->devices[i] != c->device)
		i++;
	return i;
}

static void lost(struct coll *c, const char *text)
{
	engine_fail(c, "the library that sums between devices has failed: %s", text);
}

static bool on_use(struct coll *c, struct coll_comm *m)
{
	struct coll_link *l = &m->link;
	struct hal_link_facts facts;

	if (!l->at || c->io.link_state(c->io.arg, l->at, &facts, NULL) != HAL_LINK_CONNECTED) {
		lost(c, l->at ? facts.text : "it is not there");
		return true;
	}
	l->phase = LINK_USED;
	l->memory = facts.memory;
	c->io.link_decided(c->io.arg, m->nranks, facts.version, "");
	return true;
}

bool link_on_message(struct coll *c, uint32_t from, struct coll_comm *m,
		     const struct coll_message *in)
{
	struct coll_link *l = &m->link;
	char why[HAL_LINK_ID_BYTES];

	if (m->broken)
		return true;
	if (in->seq == LINK_OFFER || in->seq == LINK_READY || in->seq == LINK_CANNOT)
		return on_answer(c, from, m, in);
	if (from != m->devices[0] || l->phase > LINK_ASKED)
		return false;
	switch (in->seq) {
	case LINK_ID:
		if (!l->at)
			return false;
		if (l->seen == HAL_LINK_FAILED)
			return true; /* CANNOT was sent, and is the answer */
		l->owes = true;
		c->io.link_connect(c->io.arg, l->at, in->link_id, m->device_count, place_of(c, m));
		return true;
	case LINK_USE: return on_use(c, m);
	case LINK_REFUSE:
		snprintf(why, sizeof why, "%s", in->link_text);
		link_end(c, m, true);
		if (l->owes || l->phase == LINK_UNDECIDED)
			cannot(c, m, why);
		l->phase = LINK_REFUSED;
		c->io.link_decided(c->io.arg, m->nranks, 0, why);
		return true;
	default: return false;
	}
}

static void on_state(struct coll *c, struct coll_comm *m, const struct hal_link_facts *facts)
{
	struct coll_link *l = &m->link;
	struct coll_message out;

	switch (l->seen) {
	case HAL_LINK_BUSY: break;
	case HAL_LINK_OPENED:
		out = message_of(m, LINK_OFFER);
		out.link_offer.version = facts->version;
		memcpy(out.link_offer.gpu, facts->gpu, sizeof facts->gpu);
		answer(c, m, &out);
		break;
	case HAL_LINK_NAMED:
		if (l->naming && !l->answered)
			send_id(c, m, facts->id);
		break;
	case HAL_LINK_CONNECTED:
		out = message_of(m, LINK_READY);
		answer(c, m, &out);
		break;
	case HAL_LINK_FAILED:
		if (l->phase == LINK_USED)
			lost(c, facts->text);
		else
			cannot(c, m, facts->text);
		break;
	}
}

static struct coll_piece *piece_of_turn(const struct coll *c, const struct coll_comm *m,
					uint64_t turn)
{
	struct coll_piece *p = c->pieces;

	while (p && !(p->comm == m && p->turn == turn))
		p = p->next;
	return p;
}

bool link_turn(struct coll *c, struct coll_comm *m)
{
	struct coll_link *l = &m->link;
	struct hal_link_facts facts;
	enum hal_link_state state;
	uint64_t done = 0;
	bool moved = false;

	if (m->broken && l->phase == LINK_ASKED)
		link_end(c, m, true);
	if (!l->at || c->links_ended)
		return false;
	state = c->io.link_state(c->io.arg, l->at, NULL, &done);
	if (state != l->seen) {
		l->seen = c->io.link_state(c->io.arg, l->at, &facts, NULL);
		moved = true;
		on_state(c, m, &facts);
	}
	while (!c->failed && l->done < done) {
		struct coll_piece *p = piece_of_turn(c, m, ++l->done);

		moved = true;
		if (p)
			step_done(c, p->token, 0);
	}
	return moved;
}
