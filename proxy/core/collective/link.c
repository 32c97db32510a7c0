/* link.c: sums between the devices of a communicator by a library of their type (a link, hal.h).
 * See engine.h.
 *
 * An all-reduce that a link carries is executed in pieces, in which all devices take part. Each one
 * sums its members' inputs into memory of the link (local_sum.c); the library adds what all devices
 * have there (STEP_EXCHANGE), and each delivers the result to its members. No piece has an owner,
 * and nothing of it is in an outbox.
 *
 * Rules: a piece starts only after the referee has said that all devices have called the operation
 * (GO). So a library's call waits for no rank, and calls that do not match are found before. Pieces
 * start, and exchanges begin, in the same order on all devices, and each that has started has its
 * memory, so bounded memory cannot cause a deadlock. An exchange uses no rank's memory: a member
 * that aborts, and a job that is discarded, need not wait for it.
 */
#include "engine.h"

_Static_assert(COLL_PIECE_BYTES <= HAL_LINK_SLOT_BYTES, "a piece fits into memory of a link");

void link_end(struct coll *c, struct coll_comm *m, bool now)
{
	if (m->link.at)
		c->io.link_close(c->io.arg, m->link.at, now);
	m->link.at = NULL;
}

bool link_concerns(const struct coll *c, const struct op *op)
{
	return c->links_allowed && op->comm->device_count > 1 &&
	       op->shape.kind == RF_COLL_ALLREDUCE && op->shape.count;
}

bool link_carries(const struct coll *c, const struct op *op)
{
	return link_concerns(c, op) && op->comm->link.phase == LINK_USED;
}

bool link_ready(const struct coll *c, const struct op *op)
{
	const struct coll_comm *m = op->comm;

	if (!link_carries(c, op))
		return true;
	if (!op->agreed || comm_abandoned(m, op->seq) ||
	    m->link.slots == (1u << HAL_LINK_SLOTS) - 1)
		return false;
	for (const struct op *before = m->ops; before != op; before = before->next)
		if (link_carries(c, before) && !before->finished &&
		    (!before->begun || before->next_piece < before->pieces))
			return false;
	return true;
}

void link_take(struct coll_piece *p, uint64_t bytes)
{
	struct coll_link *l = &p->comm->link;
	uint32_t slot = (uint32_t)__builtin_ctz(~l->slots);

	l->slots |= 1u << slot;
	p->turn = ++l->turns;
	p->result = (struct coll_block){
		.at.addr = l->memory + slot * HAL_LINK_SLOT_BYTES, .bytes = bytes, .lent = true};
}

void link_give_back(struct coll_piece *p)
{
	struct coll_link *l = &p->comm->link;

	l->slots &= ~(1u << (p->result.at.addr - l->memory) / HAL_LINK_SLOT_BYTES);
}

static struct coll_piece *next_one(const struct coll *c, const struct coll_comm *m)
{
	struct coll_piece *p = c->pieces;

	while (p && !(p->comm == m && p->waits && p->turn == m->link.begun + 1))
		p = p->next;
	return p;
}

void link_exchange(struct coll *c, struct coll_piece *p)
{
	struct coll_comm *m = p->comm;

	p->waits = true;
	while (m->link.at && !c->links_ended && !m->stopped && (p = next_one(c, m))) {
		uint32_t op = p->shape.op == AVG || p->shape.op == PREMUL ? SUM : p->shape.op;

		p->waits = false;
		m->link.begun++;
		c->links_bytes += p->result.bytes;
		c->io.link_sum(c->io.arg, m->link.at, p->result.at.addr, p->steps[p->step].count,
			       p->shape.dtype, op);
	}
}
