/* op.c: operations: their state, from the first call or message to the end. See engine.h.
 *
 * All members must call the same operation. The shape of each call is sent to one device (the
 * referee, HELLO) and with each READY; the first difference fails the job. If the operation may be
 * carried by a link, the referee informs all devices when it has their calls (GO).
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define OPS_AHEAD 65536u /* maximum number of operations by which a peer may be ahead */

static uint32_t agreeing_device(const struct op *op)
{
	return op->comm->devices[op->seq % op->comm->device_count];
}

static struct op *op_get(struct coll *c, struct coll_comm *m, uint64_t seq)
{
	struct op **at = &m->ops, *op;

	while (*at && (*at)->seq < seq)
		at = &(*at)->next;
	if (*at && (*at)->seq == seq)
		return *at;
	op = engine_new(c, sizeof *op);
	if (!op)
		return NULL;
	op->calls = engine_new(c, m->seat_count * sizeof *op->calls);
	if (!op->calls) {
		free(op);
		return NULL;
	}
	op->comm = m;
	op->seq = seq;
	op->shape_rank = NONE;
	op->next = *at;
	*at = op;
	return op;
}

/* The operation that a peer's message names: a known one, or one that local ranks have yet to
 * call. */
struct op *op_expected(struct coll *c, struct coll_comm *m, const struct coll_message *in)
{
	const struct shape *s = &in->shape;
	uint64_t size = dtype_bytes(s->dtype);
	bool expected = false;

	if (!size || s->kind > RF_COLL_SCATTER || s->kind == RF_COLL_SEND ||
	    s->kind == RF_COLL_RECV || s->op > PREMUL || s->root >= m->nranks ||
	    s->count > BYTES_MAX / size / m->nranks)
		return NULL;
	for (const struct op *op = m->ops; op; op = op->next)
		expected |= op->seq == in->seq;
	for (uint32_t i = 0; i < m->seat_count; i++)
		expected |= m->seats[i].next_seq <= in->seq &&
			    in->seq < m->seats[i].next_seq + OPS_AHEAD;
	return expected ? op_get(c, m, in->seq) : NULL;
}

struct coll_message op_message(const struct op *op, uint32_t kind)
{
	return (struct coll_message){.kind = kind,
				     .key = op->comm->key,
				     .seq = op->seq,
				     .shape = op->shape,
				     .from_rank = op->comm->seats[0].rank};
}

bool op_shape(struct coll *c, struct op *op, const struct shape *s, uint32_t rank)
{
	if (op->shape_rank == NONE) {
		op->shape = *s;
		op->shape_rank = rank;
	}
	if (memcmp(&op->shape, s, sizeof *s)) {
		shape_fail(c, op->shape_rank, &op->shape, rank, s);
		return false;
	}
	return true;
}

void op_free(struct op *op)
{
	while (op->ready) {
		struct ready *r = op->ready;

		op->ready = r->next;
		free(r);
	}
	free(op->calls);
	free(op);
}

/* Frees operations that have completed here; the referee first waits for the last HELLO. */
void op_sweep(struct coll_comm *m, uint32_t device)
{
	for (struct op **at = &m->ops; *at;) {
		struct op *op = *at;

		if (!op->finished ||
		    (agreeing_device(op) == device && op->hellos < m->device_count)) {
			at = &op->next;
			continue;
		}
		*at = op->next;
		op_free(op);
	}
}

static bool first_at_its_address(const struct op *op, uint32_t seat)
{
	for (uint32_t k = 0; k < seat; k++)
		if (op->calls[k].recv == op->calls[seat].recv)
			return false;
	return true;
}

/* Chooses the seat that is written to, among those that receive at this seat's address: the one
 * that io.receiver names, or the root of an in-place broadcast if it is among them. */
static void choose_receiver(struct coll *c, struct op *op, uint32_t seat, uint64_t bytes)
{
	const struct coll_comm *m = op->comm;
	uint32_t ranks[RANKS_MAX], seats[RANKS_MAX], count = 0, chosen;

	for (uint32_t k = seat; k < m->seat_count; k++)
		if (op->calls[k].recv == op->calls[seat].recv) {
			ranks[count] = m->seats[k].rank;
			seats[count++] = k;
		}
	if (count < 2)
		return;
	chosen = c->io.receiver(c->io.arg, ranks, count, op->calls[seat].recv, bytes);
	if (chosen >= count)
		return;
	for (uint32_t k = 0; k < count && op->shape.kind == RF_COLL_BROADCAST; k++)
		if (m->seats[seats[k]].index == op->shape.root &&
		    op->calls[seats[k]].send == op->calls[seats[k]].recv)
			chosen = k;
	for (uint32_t k = 0; k < count; k++)
		op->calls[seats[k]].receiver = seats[chosen];
}

void op_choose_receivers(struct coll *c, struct op *op)
{
	uint64_t bytes = shape_common(&op->shape, op->comm->nranks);

	for (uint32_t i = 0; i < op->comm->seat_count; i++)
		op->calls[i].receiver = i;
	for (uint32_t i = 0; bytes && i < op->comm->seat_count; i++)
		if (first_at_its_address(op, i))
			choose_receiver(c, op, i, bytes);
}

uint32_t op_holder(const struct op *op, struct tree_node n)
{
	for (uint32_t i = 0; i < op->comm->seat_count; i++)
		if (op->calls[i].holds.lo == n.lo && op->calls[i].holds.hi == n.hi)
			return i;
	return NONE;
}

static bool is_scaled(const struct op *op, uint32_t seat)
{
	const struct tree_node *n = &op->calls[seat].holds;

	return op->shape.op == PREMUL && n->hi - n->lo == 1;
}

void op_copy_input(struct coll *c, struct coll_piece *p, uint32_t seat, uint64_t at, uint64_t count,
		   struct hal_ref dst)
{
	uint64_t size = dtype_bytes(p->shape.dtype);

	step_add(c, p,
		 (struct step){.kind = STEP_READ,
			       .seat = seat,
			       .dst = dst,
			       .addr = p->op->calls[seat].send + at * size,
			       .count = count * size});
	if (is_scaled(p->op, seat))
		step_add(c, p,
			 (struct step){.kind = STEP_SCALE,
				       .seat = seat,
				       .dst = dst,
				       .a = dst,
				       .count = count});
}

struct coll_operand op_operand(struct coll *c, struct coll_piece *p, uint32_t seat, uint64_t at,
			       uint64_t count, struct hal_ref dst)
{
	uint64_t send = p->op->calls[seat].send, size = dtype_bytes(p->shape.dtype);

	if (!is_scaled(p->op, seat) && send % size == 0)
		return (struct coll_operand){.at = {.addr = send + at * size},
					     .window = true,
					     .rank = p->comm->seats[seat].rank};
	op_copy_input(c, p, seat, at, count, dst);
	return (struct coll_operand){.at = dst};
}

void op_call(struct coll *c, struct coll_comm *m, uint32_t seat, const struct shape *shape,
	     struct coll_call call)
{
	uint64_t seq = m->seats[seat].next_seq++;
	struct op *op;

	m->seats[seat].abandoned |= comm_abandoned(m, seq);
	if (comm_abandoned(m, seq))
		return; /* it waits until its rank aborts the communicator */
	op = op_get(c, m, seq);
	if (!op || !op_shape(c, op, shape, m->seats[seat].rank))
		return;
	op->calls[seat] = call;
	op->calls[seat].holds = (struct tree_node){m->seats[seat].index, m->seats[seat].index + 1};
	op->early.looked = false;
	if (++op->arrived < m->seat_count)
		return;
	struct coll_message hello = op_message(op, MSG_HELLO);

	engine_send(c, agreeing_device(op), &hello);
}

bool op_on_hello(struct coll *c, struct coll_comm *m, const struct coll_message *in)
{
	struct op *op = op_expected(c, m, in);

	if (!op || agreeing_device(op) != c->device || op->hellos >= m->device_count)
		return false;
	if (!op_shape(c, op, &in->shape, in->from_rank))
		return false;
	if (++op->hellos < m->device_count || !link_concerns(c, op) ||
	    m->link.phase == LINK_REFUSED)
		return true;
	struct coll_message go = op_message(op, MSG_GO);

	for (uint32_t i = 0; i < m->device_count; i++)
		engine_send(c, m->devices[i], &go);
	return true;
}

bool op_on_go(uint32_t from, struct coll_comm *m, const struct coll_message *in)
{
	struct op *op = m->ops;

	while (op && op->seq != in->seq)
		op = op->next;
	if (!op || op->agreed || agreeing_device(op) != from)
		return false;
	op->agreed = true;
	return true;
}
