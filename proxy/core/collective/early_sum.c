/* early_sum.c: early sums: sums of some local members' inputs, before the other members call. See
 * engine.h.
 *
 * The buffer of an in-place all-reduce is not read by the program between the call and its end. So
 * two local members that have called, and whose inputs meet at a node of the tree, are added at
 * once. The sum is written to the buffer of one of them, which holds it from then on; the other
 * one's content is dropped (io.forget). A held sum can be extended in the same way. When members
 * take turns on a device, therefore, few inputs exist at one time, and a rank that is switched out
 * need not keep its own.
 *
 * Rules: a sum is that of a tree node, lower ranks plus higher ranks, and is rounded there, so the
 * bits are the same as if all inputs were added at the end. Each operation has at most one early
 * sum in progress; the operation itself begins after it (comm_run). A member that must not be
 * written to, or would gain nothing, keeps its own input (io.keeper).
 */
#include "engine.h"

#define EARLY_RUNNING 4u /* pieces, over all communicators */

static bool in_place(const struct coll_call *call) { return call->send == call->recv; }

/* Finds two seats that hold the two halves of a node; false: there are none, at this node or
 * below. */
static bool find_halves(const struct op *op, struct tree_node n, uint32_t *seats)
{
	if (n.hi - n.lo < 2)
		return false;
	struct tree_node low = {n.lo, tree_split(n)}, high = {tree_split(n), n.hi};

	seats[0] = op_holder(op, low);
	seats[1] = op_holder(op, high);
	if (seats[0] != NONE && seats[1] != NONE)
		return in_place(&op->calls[seats[0]]) && in_place(&op->calls[seats[1]]);
	return find_halves(op, low, seats) || find_halves(op, high, seats);
}

static uint64_t piece_elements(const struct op *op)
{
	return COLL_PIECE_BYTES / dtype_bytes(op->shape.dtype);
}

static bool begin_sum(struct coll *c, struct op *op)
{
	const struct coll_comm *m = op->comm;
	uint32_t seats[2], ranks[2], keeper;
	uint64_t addrs[2];

	if (op->early.looked || op->arrived == m->seat_count || early_under_way(op) ||
	    op->shape.kind != RF_COLL_ALLREDUCE || !op->shape.count)
		return false;
	op->early.looked = true;
	if (!find_halves(op, (struct tree_node){0, m->nranks}, seats))
		return false;
	for (uint32_t i = 0; i < 2; i++) {
		ranks[i] = m->seats[seats[i]].rank;
		addrs[i] = op->calls[seats[i]].recv;
	}
	keeper = c->io.keeper(c->io.arg, ranks, addrs,
			      op->shape.count * dtype_bytes(op->shape.dtype));
	if (keeper > 1)
		return false;
	op->early = (struct early){.seats = {seats[0], seats[1]},
				   .keeper = keeper,
				   .pieces = (op->shape.count + piece_elements(op) - 1) /
					     piece_elements(op)};
	return true;
}

/* Afterwards one of the two seats holds the sum, the other nothing. */
static void end_sum(struct coll *c, struct op *op)
{
	struct coll_call *keeper = &op->calls[op->early.seats[op->early.keeper]];
	uint32_t seat = op->early.seats[!op->early.keeper];
	struct coll_call *other = &op->calls[seat];

	keeper->holds = (struct tree_node){op->calls[op->early.seats[0]].holds.lo,
					   op->calls[op->early.seats[1]].holds.hi};
	other->holds = (struct tree_node){0, 0};
	c->io.forget(c->io.arg, op->comm->seats[seat].rank, other->recv,
		     op->shape.count * dtype_bytes(op->shape.dtype));
}

/* Called after the last step; comm_run begins the next work. */
static void sum_added(struct coll *c, struct coll_piece *p)
{
	struct op *op = p->op;

	piece_free(c, p);
	op->running--;
	c->early_running--;
	if (++op->early.ended == op->early.pieces)
		end_sum(c, op);
}

static void start_piece(struct coll *c, struct op *op)
{
	const struct early *e = &op->early;
	uint64_t size = dtype_bytes(op->shape.dtype), at = op->early.next++ * piece_elements(op);
	uint64_t left = op->shape.count - at,
		 count = left < piece_elements(op) ? left : piece_elements(op);
	struct coll_piece *p = piece_new(c, op->comm, &op->shape, ADDING, sum_added);

	if (!p)
		return;
	p->op = op;
	p->number = NONE;
	op->running++;
	c->early_running++;
	p->scratch = block_new(c, 2 * count * size, 0);
	if (c->failed)
		return;
	struct hal_ref low = p->scratch.at, high = ref_plus(low, count * size);
	uint32_t keeper = e->seats[e->keeper];
	struct step add = {.kind = STEP_REDUCE, .dst = low, .count = count};

	add.left = op_operand(c, p, e->seats[0], at, count, low);
	add.right = op_operand(c, p, e->seats[1], at, count, high);
	step_add(c, p, add);
	step_add(c, p,
		 (struct step){.kind = STEP_WRITE,
			       .seat = keeper,
			       .a = low,
			       .addr = op->calls[keeper].recv + at * size,
			       .count = count * size});
	piece_next(c, p);
}

void early_run(struct coll *c, struct op *op)
{
	while (!c->failed && c->early_running < EARLY_RUNNING &&
	       (op->early.next < op->early.pieces || begin_sum(c, op)))
		start_piece(c, op);
}
