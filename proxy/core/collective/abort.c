/* abort.c: a member leaves a communicator during its operations (ncclCommAbort). See engine.h.
 *
 * On the member's device the communicator is stopped: no step of an operation begins any more. When
 * the current steps have ended, the member's operations end (COLL_ABORTED), and its memory is no
 * longer used. The other devices are informed (ABORT) with the number of the first operation that
 * the member has not completed. Their members complete the operations that can still complete. A
 * member that waits for a later operation, or calls one, is informed (io.broken) and waits until it
 * aborts too, as in NCCL.
 *
 * Peers may read partial sums, results and sends of a stopped communicator for as long as they have
 * members in it. All of these therefore stay until every peer has reported that it has none
 * (NO_MEMBERS), and until then messages are answered. A device sends NO_MEMBERS when no peer owes
 * it an answer, so a later answer still finds the communicator at the other end.
 */
#include "engine.h"

#include <stdlib.h>

static void send_to_all(struct coll *c, const struct coll_comm *m, struct coll_message in)
{
	in.key = m->key;
	for (uint32_t i = 0; i < m->device_count; i++)
		if (m->devices[i] != c->device)
			engine_send(c, m->devices[i], &in);
}

/* True if the member waits for something that will never complete. */
static bool waits_forever(const struct coll *c, const struct coll_comm *m, const struct seat *s)
{
	for (const struct join *j = c->joins; j; j = j->next)
		if (j->rank == s->rank && j->seq && j->key == m->key && !j->aborted)
			return true; /* a split, which not all members will call */
	for (const struct op *op = m->ops; op; op = op->next)
		if (op->calls[s - m->seats].group && !op->finished && comm_abandoned(m, op->seq))
			return true;
	for (const struct receive *r = m->posted; r; r = r->next)
		if (&m->seats[r->seat] == s && m->aborted[r->src])
			return true;
	return s->abandoned;
}

void abort_notify_members(struct coll *c, struct coll_comm *m)
{
	for (uint32_t i = 0; i < m->seat_count && m->broken; i++) {
		const struct seat *s = &m->seats[i];

		if (s->in_use && !s->closing)
			c->io.broken(c->io.arg, s->rank, s->handle, waits_forever(c, m, s));
	}
}

static void member_aborted(struct coll *c, struct coll_comm *m, uint32_t index, uint64_t limit)
{
	m->limit = m->broken && m->limit < limit ? m->limit : limit;
	m->broken = m->aborted[index] = true;
	abort_notify_members(c, m);
}

void abort_seat(struct coll *c, struct coll_comm *m, struct seat *s)
{
	uint32_t seat = (uint32_t)(s - m->seats);
	uint64_t limit = s->next_seq;

	INVARIANT(s->in_use && !s->aborted, "a member aborts a communicator once");
	for (const struct op *op = m->ops; op; op = op->next)
		if (op->calls[seat].group && !op->finished && op->seq < limit)
			limit = op->seq;
	s->closing = s->aborted = m->stopped = true;
	sends_abort(c, m, seat);
	member_aborted(c, m, s->index, limit);
	send_to_all(c, m, (struct coll_message){.kind = MSG_ABORT, .a = s->index, .value = limit});
}

/* ---- operations that have come to rest --------------------------------------------------- */

/* True if a step in progress may read or write the memory of a member that has aborted. */
static bool uses_memory(const struct coll *c, const struct coll_comm *m)
{
	for (const struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m && (p->op || p->dropped) && p->token && !piece_exchanges(p))
			return true;
	return false;
}

/* For a broken communicator: true if the piece is still in use. */
static bool abort_busy(const struct coll_piece *p)
{
	return !p->op || (p->token && !piece_exchanges(p)) || p->awaited || p->unread;
}

static void end_groups(struct coll *c, const struct coll_comm *m)
{
	for (struct coll_group *g = c->groups; g; g = g->all) {
		if (g->seat < m->seats || g->seat >= m->seats + m->seat_count ||
		    !g->seat->aborted || !g->pending)
			continue;
		g->pending = 0;
		g->error = COLL_ABORTED;
		g->next = c->done;
		c->done = g;
	}
}

static void read_nothing(struct coll *c, struct coll_piece *p)
{
	struct coll_message m = op_message(p->op, MSG_READ);

	m.piece = p->number;
	p->phase = DRAINING;
	engine_send(c, p->owner, &m);
}

void abort_turn(struct coll *c)
{
	for (struct coll_comm *m = c->comms; m; m = m->next) {
		if (!m->stopped)
			continue;
		for (struct coll_piece *p = c->pieces; p; p = p->next)
			if (p->comm == m && p->op && p->owner != c->device && !p->token &&
			    !p->awaited && (p->phase == FETCHING || p->phase == DELIVERING))
				read_nothing(c, p);
		if (!uses_memory(c, m))
			end_groups(c, m);
	}
}

/* ---- end of the communicator ------------------------------------------------------------ */

static bool has_member(const struct coll_comm *m)
{
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].in_use)
			return true;
	return false;
}

static bool has_open_pieces(const struct coll *c, const struct coll_comm *m)
{
	for (const struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m && abort_busy(p))
			return true;
	return false;
}

static bool all_without_members(const struct coll_comm *m)
{
	for (uint32_t i = 0; i < m->device_count; i++)
		if (!m->no_members[m->devices[i]])
			return false;
	return true;
}

static void drop_communicator(struct coll *c, struct coll_comm *m)
{
	for (struct coll_piece *p = c->pieces, *next; p; p = next) {
		next = p->next;
		if (p->comm == m)
			piece_free(c, p);
	}
	comm_remove(c, m);
}

void abort_sweep(struct coll *c)
{
	for (struct coll_comm *m = c->comms, *next; m; m = next) {
		next = m->next;
		if (!m->broken || has_member(m))
			continue;
		for (uint32_t i = 0; i < m->seat_count; i++)
			arrived_discard(c, m, m->seats[i].rank);
		if (!m->no_members[c->device] && !has_open_pieces(c, m)) {
			m->no_members[c->device] = true;
			send_to_all(c, m, (struct coll_message){.kind = MSG_NO_MEMBERS});
		}
		if (all_without_members(m))
			drop_communicator(c, m);
	}
}

/* ---- unfinished work --------------------------------------------------------------------- */

static bool comm_busy(const struct coll *c, const struct coll_comm *m)
{
	for (const struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m && (!m->broken || abort_busy(p)))
			return true;
	/* On a broken one nothing more is called, and what was called belongs to a group. */
	return m->arrived || (!m->broken && (m->ops || m->posted));
}

bool coll_busy(const struct coll *c)
{
	if (c->groups || c->joins || c->sendings || c->inbox || c->done)
		return true;
	for (const struct gathering *g = c->gatherings; g; g = g->next)
		if (!g->refused)
			return true;
	for (const struct coll_comm *m = c->comms; m; m = m->next)
		if (comm_busy(c, m))
			return true;
	return false;
}

/* ---- messages -------------------------------------------------------------------------- */

/* The owner has published its result, and waits until this device has read it: report it as
 * read. */
static void pass_by(struct coll *c, struct coll_comm *m, const struct coll_message *in)
{
	for (struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m && p->op && p->op->seq == in->seq && p->number == in->piece &&
		    p->phase == COLLECTING)
			read_nothing(c, p);
}

/* True if the operation was lost before the local members called it; the sender did not know
 * yet. */
static bool for_nothing(const struct coll_comm *m, uint64_t seq)
{
	for (const struct op *op = m->ops; op; op = op->next)
		if (op->seq == seq)
			return false;
	return comm_abandoned(m, seq);
}

bool abort_on_message(struct coll *c, uint32_t from, struct coll_comm *m,
		      const struct coll_message *in)
{
	switch (in->kind) {
	case MSG_ABORT:
		if (in->a >= m->nranks || m->device[in->a] != from)
			return false;
		member_aborted(c, m, in->a, in->value);
		return true;
	case MSG_NO_MEMBERS: m->no_members[from] = true; return true;
	case MSG_HELLO:
	case MSG_GO:
	case MSG_READY: return m->stopped || for_nothing(m, in->seq);
	case MSG_RESULT:
		if (m->stopped)
			pass_by(c, m, in);
		return m->stopped;
	default: return false;
	}
}

bool abort_unknown(struct coll *c, uint32_t from, const struct coll_message *in)
{
	if ((in->kind != MSG_ABORT && in->kind != MSG_NO_MEMBERS) || comm_joining(c, in->key))
		return false;
	/* This device has already left it. b: the message is itself such an answer. */
	if (!in->b)
		engine_send(c, from,
			    &(struct coll_message){.kind = MSG_NO_MEMBERS, .key = in->key, .b = 1});
	return true;
}
