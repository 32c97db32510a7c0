/* piece.c: executes pieces of work, step by step. See engine.h.
 *
 * A collective is executed in pieces: a range of elements with its sources (all members for
 * reductions, one for pure movement) and its destinations. On every device that takes part:
 *
 *   CONTRIBUTING  combines local sources, read in place, at the tree nodes that are wholly local,
 *                 unless an early sum has done so (early_sum.c)
 *   COLLECTING    the partials are in the outbox, and READY was sent to the piece's owner, which
 *                 waits for all of them
 *   GATHERING     the owner fetches the partials
 *   COMBINING     the owner combines the partials at the remaining nodes
 *   FETCHING      RESULT was received: the others fetch the result from the owner's outbox
 *   DELIVERING    each device writes the result to its local destinations
 *   DRAINING      the owner waits until all others have sent READ
 *
 * A piece of an operation that a link carries (link.c) is EXCHANGING, then DELIVERING.
 *
 * If local members receive the same content at the same address, one of them may receive it for the
 * others (io.receiver). When all pieces are complete the content is handed to the others (HANDING),
 * and only then has the operation completed for any of them. Until then the memory of the others is
 * unchanged.
 *
 * Rules: pieces start in the same order everywhere, a bounded number at a time, and so do the
 * operations of one communicator. The first unfinished piece is therefore always among the running
 * ones on every device that takes part in it, so bounded memory cannot cause a deadlock. Data that
 * peers fetch stays in the outbox until they have reported that they have it; fetched data is
 * released as soon as no step refers to it.
 */
#include "engine.h"

#include <stdlib.h>

#define PIECES_RUNNING 4u /* per operation and device */
#define OPS_RUNNING 4u    /* per communicator */

/* ---- pieces of operations -------------------------------------------------------------- */

/* Where each device's partials are while the owner combines them. */
struct sources {
	struct hal_ref at[DEVICES_MAX]; /* the next partial of comm->devices[i] */
};

/* Adds steps that compute the sum of a node into dst, and returns dst; or returns where it is
 * already. */
static struct hal_ref add_remote(struct coll *c, struct coll_piece *p, const struct plan *plan,
				 struct sources *s, struct tree_node n, struct hal_ref dst,
				 uint32_t level)
{
	const struct coll_comm *m = p->comm;
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);

	for (uint32_t i = 0; i < m->device_count; i++)
		if (tree_within(n, m->device, m->devices[i])) {
			struct hal_ref at = s->at[i];

			s->at[i] = ref_plus(at, bytes);
			return at;
		}
	uint32_t split = tree_split(n);
	struct hal_ref left = add_remote(c, p, plan, s, (struct tree_node){n.lo, split}, dst,
					 level);
	struct hal_ref right = add_remote(c, p, plan, s, (struct tree_node){split, n.hi},
					  ref_plus(p->scratch.at, level * bytes), level + 1);

	step_add(c, p,
		 (struct step){.kind = STEP_REDUCE,
			       .dst = dst,
			       .left = {.at = left},
			       .right = {.at = right},
			       .count = plan->count});
	return dst;
}

static void piece_contribute(struct coll *c, struct coll_piece *p, const struct plan *plan)
{
	struct tree_node nodes[2 * TREE_DEPTH_MAX + RANKS_MAX];
	const struct coll_comm *m = p->comm;
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);
	uint32_t n = tree_partials(plan->sources, m->device, c->device, nodes,
				   sizeof nodes / sizeof *nodes);
	bool owner = plan->owner == c->device, alone = owner && n == 1 &&
						       nodes[0].lo == plan->sources.lo &&
						       nodes[0].hi == plan->sources.hi;
	struct hal_ref to;

	if (owner)
		p->result = block_new(c, bytes,
				      plan_participants(m, plan) & ~device_bit(c->device));
	if (!alone)
		p->partials = block_new(c, n * bytes, owner ? 0 : device_bit(plan->owner));
	p->scratch = block_new(c, local_sum_blocks(plan) * bytes, 0);
	if (c->failed)
		return;
	to = alone ? p->result.at : p->partials.at;
	for (uint32_t i = 0; i < n; i++)
		local_sum_node(c, p, plan, nodes[i], ref_plus(to, i * bytes));
}

/* All of it until the result is in memory of the link. */
static void piece_exchange(struct coll *c, struct coll_piece *p, const struct plan *plan)
{
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);

	p->phase = EXCHANGING;
	p->owner = c->device;
	link_take(p, bytes);
	p->scratch = block_new(c, (local_sum_blocks(plan) + 1) * bytes, 0);
	if (c->failed)
		return;
	local_sum_all(c, p, plan, p->result.at);
	step_add(c, p,
		 (struct step){.kind = STEP_EXCHANGE, .dst = p->result.at, .count = plan->count});
	if (p->shape.op == AVG)
		step_add(c, p,
			 (struct step){.kind = STEP_DIVIDE,
				       .dst = p->result.at,
				       .a = p->result.at,
				       .count = plan->count});
}

static void piece_advance(struct coll *, struct coll_piece *);

static void piece_start(struct coll *c, struct op *op, uint64_t number, const struct plan *plan)
{
	struct coll_piece *p = piece_new(c, op->comm, &op->shape, CONTRIBUTING, piece_advance);

	if (!p)
		return;
	p->op = op;
	p->number = (uint32_t)number;
	p->owner = plan->owner;
	op->running++;
	if (link_carries(c, op))
		piece_exchange(c, p, plan);
	else
		piece_contribute(c, p, plan);
	piece_next(c, p);
}

/* If the owner has all partials, fetches those of other devices. */
static void piece_collect(struct coll *c, struct coll_piece *p)
{
	struct coll_comm *m = p->comm;
	struct plan plan = plan_make(p->op, p->number);
	uint64_t bytes = plan.count * dtype_bytes(p->shape.dtype);
	uint32_t others = (uint32_t)__builtin_popcountll(plan_participants(m, &plan)) - 1;
	uint32_t here = 0;

	for (const struct ready *r = p->op->ready; r; r = r->next)
		here += r->piece == p->number;
	if (here < others)
		return;
	steps_clear(p);
	p->phase = GATHERING;
	for (const struct ready *r = p->op->ready; r; r = r->next) {
		uint64_t n = tree_partials(plan.sources, m->device, r->from, NULL, 0);

		if (r->piece != p->number || !n)
			continue;
		if (r->bytes != n * bytes) {
			engine_fail(c, "device %u published memory that does not exist", r->from);
			return;
		}
		step_add(c, p,
			 (struct step){.kind = STEP_FETCH,
				       .device = r->from,
				       .addr = r->offset,
				       .count = r->bytes});
	}
	piece_next(c, p);
}

static void piece_combine(struct coll *c, struct coll_piece *p)
{
	struct plan plan = plan_make(p->op, p->number);
	struct sources s = {{{0}}};
	struct hal_ref sum = p->result.at;

	for (uint32_t i = 0; i < p->comm->device_count; i++) {
		if (p->comm->devices[i] == c->device)
			s.at[i] = p->partials.at;
		for (uint32_t k = 0; k < p->fetched_count; k++)
			if (p->fetched[k].device == p->comm->devices[i])
				s.at[i] = p->fetched[k].at;
	}
	steps_clear(p);
	p->phase = COMBINING;
	if (p->partials.at.addr)
		sum = add_remote(c, p, &plan, &s, plan.sources, p->result.at, 0);
	if (p->shape.op == AVG)
		step_add(c, p,
			 (struct step){.kind = STEP_DIVIDE,
				       .dst = p->result.at,
				       .a = sum,
				       .count = plan.count});
	piece_next(c, p);
}

/* True if the piece writes content to this local seat that is not there already. */
static bool delivers_to(const struct coll_piece *p, const struct plan *plan, uint32_t seat)
{
	const struct coll_call *call = &p->op->calls[seat];
	uint32_t index = p->comm->seats[seat].index;
	uint64_t size = dtype_bytes(p->shape.dtype);
	bool own = plan->sources.lo == index && plan->sources.hi == index + 1;

	if (call->receiver != seat)
		return false;
	/* In place, a rank's own contribution is already at its destination, unless it is
	 * multiplied. */
	if (own && p->shape.op != PREMUL &&
	    call->recv + plan->dst_at * size == call->send + plan->src_at * size)
		return false;
	return index >= plan->dests.lo && index < plan->dests.hi;
}

static bool delivers_here(const struct coll_piece *p, const struct plan *plan)
{
	for (uint32_t i = 0; i < p->comm->seat_count; i++)
		if (delivers_to(p, plan, i))
			return true;
	return false;
}

static void piece_deliver(struct coll *c, struct coll_piece *p, struct hal_ref from)
{
	struct plan plan = plan_make(p->op, p->number);
	uint64_t size = dtype_bytes(p->shape.dtype);

	steps_clear(p);
	p->phase = DELIVERING;
	for (uint32_t i = 0; i < p->comm->seat_count; i++)
		if (delivers_to(p, &plan, i))
			step_add(c, p,
				 (struct step){.kind = STEP_WRITE,
					       .seat = i,
					       .a = from,
					       .addr = p->op->calls[i].recv + plan.dst_at * size,
					       .count = plan.count * size});
	piece_next(c, p);
}

static void piece_publish(struct coll *c, struct coll_piece *p)
{
	struct plan plan = plan_make(p->op, p->number);
	struct coll_message m = op_message(p->op, MSG_RESULT);

	m.piece = p->number;
	m.offset = p->result.offset;
	m.bytes = p->result.bytes;
	for (uint32_t i = 0; i < p->comm->device_count; i++) {
		uint32_t to = p->comm->devices[i];

		if (to != c->device && plan_takes_part(p->comm, &plan, to)) {
			engine_send(c, to, &m);
			p->unread++;
		}
	}
	piece_deliver(c, p, p->result.at);
}

static void op_advance(struct coll *, struct op *);

static void piece_end(struct coll *c, struct coll_piece *p)
{
	struct op *op = p->op;

	for (struct ready **at = &op->ready; *at;) {
		struct ready *r = *at;

		if (r->piece != p->number) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		free(r);
	}
	if (p->result.lent)
		link_give_back(p);
	piece_free(c, p);
	op->running--;
	op_advance(c, op);
}

static void notify_owner(struct coll *c, const struct coll_piece *p, uint32_t kind)
{
	struct coll_message m = op_message(p->op, kind);

	m.piece = p->number;
	if (kind == MSG_READY) {
		m.offset = p->partials.offset;
		m.bytes = p->partials.bytes;
	}
	engine_send(c, p->owner, &m);
}

/* Called after the last step of a phase. */
static void piece_advance(struct coll *c, struct coll_piece *p)
{
	bool owner = p->owner == c->device;

	switch (p->phase) {
	case CONTRIBUTING:
		p->phase = COLLECTING;
		if (owner)
			piece_collect(c, p);
		else
			notify_owner(c, p, MSG_READY);
		break;
	case GATHERING: piece_combine(c, p); break;
	case COMBINING:
		piece_release(c, p);
		piece_publish(c, p);
		break;
	case EXCHANGING: piece_deliver(c, p, p->result.at); break;
	case FETCHING:
		piece_deliver(c, p, p->fetched_count ? p->fetched[0].at : (struct hal_ref){0});
		break;
	case DELIVERING:
		piece_release(c, p);
		p->phase = DRAINING;
		if (!owner)
			notify_owner(c, p, MSG_READ);
		/* fall through */
	case DRAINING:
		if (!p->unread)
			piece_end(c, p);
		break;
	default: break; /* COLLECTING: a message continues it */
	}
}

/* ---- scheduling ------------------------------------------------------------------------- */

static void hand_ended(struct coll *c, struct coll_piece *p)
{
	struct op *op = p->op;

	piece_free(c, p);
	op->running--;
	op_advance(c, op);
}

/* Called when all pieces are complete; false: no member has received for another. */
static bool op_hand(struct coll *c, struct op *op)
{
	uint64_t bytes = shape_common(&op->shape, op->comm->nranks);
	struct coll_piece *p = NULL;

	op->handed = true;
	for (uint32_t i = 0; bytes && i < op->comm->seat_count && !c->failed; i++) {
		const struct coll_call *call = &op->calls[i];

		if (call->receiver == i)
			continue;
		if (!p)
			p = piece_new(c, op->comm, &op->shape, HANDING, hand_ended);
		if (p)
			step_add(c, p,
				 (struct step){.kind = STEP_HAND,
					       .seat = i,
					       .from = call->receiver,
					       .addr = call->recv,
					       .count = bytes});
	}
	if (!p || c->failed)
		return false;
	p->op = op;
	p->number = NONE;
	op->running++;
	piece_next(c, p);
	return true;
}

/* Starts the pieces of an operation that may run; when all have completed, informs the local
 * ranks. */
static void op_advance(struct coll *c, struct op *op)
{
	struct coll_comm *m = op->comm;

	if (!op->begun) {
		op->pieces = op->shape.count ? shape_pieces(&op->shape, m) : 0;
		op_choose_receivers(c, op);
	}
	op->begun = true;
	while (!c->failed && op->next_piece < op->pieces && op->running < PIECES_RUNNING &&
	       link_ready(c, op)) {
		uint64_t number = op->next_piece++;
		struct plan plan = plan_make(op, number);

		if (plan_takes_part(m, &plan, c->device))
			piece_start(c, op, number, &plan);
	}
	if (c->failed || op->finished || op->next_piece < op->pieces || op->running)
		return;
	if ((!op->handed && op_hand(c, op)) || c->failed)
		return;
	op->finished = true;
	for (uint32_t i = 0; i < m->seat_count; i++)
		group_part_done(c, op->calls[i].group);
}

/* Whether it is known how this operation is executed; if not, the devices are asked. */
static bool is_decided(struct coll *c, const struct op *op)
{
	if (!link_concerns(c, op))
		return true;
	link_ask(c, op->comm);
	return op->comm->link.phase >= LINK_USED;
}

/* Runs the communicator's first operations that all local members have called; of every operation,
 * computes early sums. */
void comm_run(struct coll *c, struct coll_comm *m)
{
	uint32_t running = 0;

	for (struct op *op = m->stopped ? NULL : m->ops; op; op = op->next) {
		early_run(c, op);
		running += !op->finished;
		if (running <= OPS_RUNNING && op->arrived == m->seat_count && !op->finished &&
		    !op->running && !early_under_way(op) && is_decided(c, op))
			op_advance(c, op);
	}
}

/* ---- messages -------------------------------------------------------------------------- */

static struct coll_piece *piece_find(const struct coll *c, const struct coll_comm *m,
				     const struct coll_message *in)
{
	struct coll_piece *p = c->pieces;

	while (p && !(p->comm == m && p->op && p->op->seq == in->seq && p->number == in->piece))
		p = p->next;
	return p;
}

bool piece_on_ready(struct coll *c, uint32_t from, struct coll_comm *m,
		    const struct coll_message *in)
{
	struct op *op = op_expected(c, m, in);
	struct plan plan;
	struct ready *r;
	struct coll_piece *p;

	if (!op || op->finished || !op_shape(c, op, &in->shape, in->from_rank) ||
	    !op->shape.count || in->piece >= shape_pieces(&op->shape, m))
		return false;
	plan = plan_make(op, in->piece);
	if (plan.owner != c->device || from == c->device || !plan_takes_part(m, &plan, from))
		return false;
	for (r = op->ready; r; r = r->next)
		if (r->piece == in->piece && r->from == from)
			return false;
	r = engine_new(c, sizeof *r);
	if (!r)
		return true;
	*r = (struct ready){op->ready, in->piece, from, in->offset, in->bytes};
	op->ready = r;
	p = piece_find(c, m, in);
	if (p && p->phase == COLLECTING)
		piece_collect(c, p);
	return true;
}

bool piece_on_result(struct coll *c, uint32_t from, struct coll_comm *m,
		     const struct coll_message *in)
{
	struct coll_piece *p = piece_find(c, m, in);
	struct plan plan;

	if (!p || p->phase != COLLECTING || p->owner != from)
		return false;
	plan = plan_make(p->op, p->number);
	if (in->bytes != plan.count * dtype_bytes(p->shape.dtype))
		return false;
	block_free(c, &p->partials);
	steps_clear(p);
	p->phase = FETCHING;
	if (delivers_here(p, &plan))
		step_add(c, p,
			 (struct step){.kind = STEP_FETCH,
				       .device = from,
				       .addr = in->offset,
				       .count = in->bytes});
	piece_next(c, p);
	return true;
}

bool piece_on_read(struct coll *c, uint32_t from, struct coll_comm *m,
		   const struct coll_message *in)
{
	struct coll_piece *p = piece_find(c, m, in);

	if (!p || p->owner != c->device || from == c->device || !p->unread)
		return false;
	p->unread--;
	if (p->phase == DRAINING)
		piece_next(c, p);
	return true;
}
