/* piece.c: pieces of work, step by step. See engine.h.
 *
 * A collective is worked off in pieces: a range of elements with its sources (all members for
 * reductions, one for what only moves) and its destinations. On every device that takes part:
 *
 *   CONTRIBUTING  read local sources, combine them at the tree's nodes that are wholly local
 *   COLLECTING    the partials lie in the outbox, READY has gone to the piece's owner, who waits
 *                 for all of them
 *   COMBINING     the owner combines the partials at the remaining nodes
 *   DELIVERING    RESULT: everyone reads the owner's outbox into its local destinations
 *   DRAINING      the owner waits until all have READ it
 *
 * Rules kept here: a piece's steps run one after the other, each is one asynchronous io call; what
 * peers read lies in the outbox until they have said that they have read it.
 */
#include "engine.h"

#include <stdlib.h>

struct coll_block block_new(struct coll *c, uint64_t bytes, bool outbox)
{
	struct coll_block b = {.bytes = bytes, .outbox = outbox};

	if (!bytes)
		return b;
	if (outbox) {
		b.at = c->io.outbox_alloc(c->io.arg, bytes, &b.offset);
	} else {
		b.at = malloc(bytes);
		b.offset = (uintptr_t)b.at;
	}
	if (!b.at)
		engine_fail(c, "host memory is short: no room for %llu bytes of a collective",
			    (unsigned long long)bytes);
	return b;
}

static void block_free(struct coll *c, struct coll_block *b)
{
	if (b->at && b->outbox)
		c->io.outbox_free(c->io.arg, b->offset, b->bytes);
	else
		free(b->at);
	b->at = NULL;
}

/* ---- steps ----------------------------------------------------------------------------- */

struct seat *seat_of(const struct coll_comm *m, uint32_t index)
{
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].index == index)
			return &m->seats[i];
	return NULL;
}

void step_add(struct coll *c, struct coll_piece *p, struct step step)
{
	if (p->step_count == p->step_room) {
		uint32_t room = p->step_room ? 2 * p->step_room : 8;
		struct step *steps = realloc(p->steps, room * sizeof *steps);

		if (!steps) {
			engine_fail(c, "the proxy is out of memory");
			return;
		}
		p->steps = steps;
		p->step_room = room;
	}
	p->steps[p->step_count++] = step;
}

static void steps_clear(struct coll_piece *p) { p->step = p->step_count = 0; }

static void step_start(struct coll *c, struct coll_piece *p)
{
	const struct step *s = &p->steps[p->step];
	const struct shape *shape = &p->shape;
	uint32_t op = shape->op == AVG || shape->op == PREMUL ? SUM : shape->op;
	uint32_t rank = s->kind == STEP_READ || s->kind == STEP_WRITE ? p->comm->seats[s->seat].rank
								      : 0;

	p->token = ++c->tokens;
	switch (s->kind) {
	case STEP_READ: c->io.read(c->io.arg, rank, s->addr, s->dst, s->count, p->token); break;
	case STEP_WRITE: c->io.write(c->io.arg, rank, s->addr, s->a, s->count, p->token); break;
	case STEP_REDUCE:
		c->io.reduce(c->io.arg, s->dst, s->a, s->b, s->count, shape->dtype, op, p->token);
		break;
	case STEP_SCALE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype,
			    p->op->calls[s->seat].scalar, 0, p->token);
		break;
	case STEP_DIVIDE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype, NULL, p->comm->nranks,
			    p->token);
		break;
	}
}

/* ---- pieces of operations -------------------------------------------------------------- */

/* How many buffers combining below this node takes, beside the one for its own sum. */
static uint32_t depth(struct tree_node n)
{
	uint32_t d = 0;

	while ((1u << d) < n.hi - n.lo)
		d++;
	return d;
}

/* Steps that bring the sum of a wholly local node to dst. scratch[level] and up are free. */
static void add_local(struct coll *c, struct coll_piece *p, const struct plan *plan,
		      struct tree_node n, uint8_t *dst, uint32_t level)
{
	uint64_t size = dtype_bytes(p->shape.dtype);

	if (n.hi - n.lo == 1) {
		uint32_t seat = (uint32_t)(seat_of(p->comm, n.lo) - p->comm->seats);

		step_add(c, p,
			 (struct step){.kind = STEP_READ,
				       .seat = seat,
				       .dst = dst,
				       .addr = p->op->calls[seat].send + plan->src_at * size,
				       .count = plan->count * size});
		if (p->shape.op == PREMUL)
			step_add(c, p,
				 (struct step){.kind = STEP_SCALE,
					       .seat = seat,
					       .dst = dst,
					       .a = dst,
					       .count = plan->count});
		return;
	}
	uint32_t split = tree_split(n);
	uint8_t *right = p->scratch.at + level * plan->count * size;

	add_local(c, p, plan, (struct tree_node){n.lo, split}, dst, level);
	add_local(c, p, plan, (struct tree_node){split, n.hi}, right, level + 1);
	step_add(c, p,
		 (struct step){.kind = STEP_REDUCE,
			       .dst = dst,
			       .a = dst,
			       .b = right,
			       .count = plan->count});
}

/* Where each device's partials lie, while the owner combines. */
struct sources {
	const uint8_t *at[DEVICES_MAX]; /* the next one of comm->devices[i] */
};

/* Steps that bring the sum of a node to dst, or where it lies already. */
static const uint8_t *add_remote(struct coll *c, struct coll_piece *p, const struct plan *plan,
				 struct sources *s, struct tree_node n, uint8_t *dst,
				 uint32_t level)
{
	const struct coll_comm *m = p->comm;
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);

	for (uint32_t i = 0; i < m->device_count; i++)
		if (tree_within(n, m->device, m->devices[i])) {
			const uint8_t *at = s->at[i];

			s->at[i] += bytes;
			return at;
		}
	uint32_t split = tree_split(n);
	const uint8_t *left = add_remote(c, p, plan, s, (struct tree_node){n.lo, split}, dst,
					 level);
	const uint8_t *right = add_remote(c, p, plan, s, (struct tree_node){split, n.hi},
					  p->scratch.at + level * bytes, level + 1);

	step_add(c, p,
		 (struct step){.kind = STEP_REDUCE,
			       .dst = dst,
			       .a = left,
			       .b = right,
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
	uint8_t *to;

	if (owner)
		p->result = block_new(c, bytes, plan_participants(m, plan) > 1);
	if (!alone)
		p->partials = block_new(c, n * bytes, !owner);
	p->scratch = block_new(c, depth(plan->sources) * bytes, false);
	if (c->failed)
		return;
	to = alone ? p->result.at : p->partials.at;
	for (uint32_t i = 0; i < n; i++)
		add_local(c, p, plan, nodes[i], to + i * bytes, 0);
}

void piece_start(struct coll *c, struct op *op, uint64_t number, const struct plan *plan)
{
	struct coll_piece *p = engine_new(c, sizeof *p);

	if (!p)
		return;
	p->phase = CONTRIBUTING;
	p->comm = op->comm;
	p->op = op;
	p->shape = op->shape;
	p->number = (uint32_t)number;
	p->owner = plan->owner;
	p->next = c->pieces;
	c->pieces = p;
	op->running++;
	piece_contribute(c, p, plan);
	if (!c->failed)
		piece_next(c, p);
}

/* Has the owner all partials? Then it combines them. */
static void piece_collect(struct coll *c, struct coll_piece *p)
{
	struct coll_comm *m = p->comm;
	struct plan plan = plan_make(p->op, p->number);
	uint64_t bytes = plan.count * dtype_bytes(p->shape.dtype);
	struct sources s = {{NULL}};
	uint32_t others = plan_participants(m, &plan) - 1, here = 0;
	const uint8_t *sum = p->result.at;

	for (const struct ready *r = p->op->ready; r; r = r->next)
		here += r->piece == p->number;
	if (here < others)
		return;
	for (uint32_t i = 0; i < m->device_count; i++) {
		uint64_t n = tree_partials(plan.sources, m->device, m->devices[i], NULL, 0);

		if (m->devices[i] == c->device)
			s.at[i] = p->partials.at;
		for (const struct ready *r = p->op->ready; r && n; r = r->next) {
			if (r->piece != p->number || r->from != m->devices[i])
				continue;
			s.at[i] = r->bytes == n * bytes ? c->io.peer_memory(c->io.arg, r->from,
									    r->offset, r->bytes)
							: NULL;
			if (!s.at[i]) {
				engine_fail(c, "device %u published memory that is not there",
					    r->from);
				return;
			}
		}
	}
	steps_clear(p);
	p->phase = COMBINING;
	if (p->partials.at)
		sum = add_remote(c, p, &plan, &s, plan.sources, p->result.at, 0);
	if (p->shape.op == AVG)
		step_add(c, p,
			 (struct step){.kind = STEP_DIVIDE,
				       .dst = p->result.at,
				       .a = sum,
				       .count = plan.count});
	piece_next(c, p);
}

static void piece_deliver(struct coll *c, struct coll_piece *p, const uint8_t *from)
{
	struct plan plan = plan_make(p->op, p->number);
	uint64_t size = dtype_bytes(p->shape.dtype);

	steps_clear(p);
	p->phase = DELIVERING;
	for (uint32_t i = 0; i < p->comm->seat_count; i++) {
		uint32_t index = p->comm->seats[i].index;
		const struct coll_call *call = &p->op->calls[i];
		bool own = plan.sources.lo == index && plan.sources.hi == index + 1;

		/* What a rank sends to its own place, in place, is there. */
		if (own && call->recv + plan.dst_at * size == call->send + plan.src_at * size)
			continue;
		if (index >= plan.dests.lo && index < plan.dests.hi)
			step_add(c, p,
				 (struct step){.kind = STEP_WRITE,
					       .seat = i,
					       .a = from,
					       .addr = call->recv + plan.dst_at * size,
					       .count = plan.count * size});
	}
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

void piece_free(struct coll *c, struct coll_piece *p)
{
	for (struct coll_piece **at = &c->pieces; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	block_free(c, &p->partials);
	block_free(c, &p->scratch);
	block_free(c, &p->result);
	free(p->steps);
	free(p);
}

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
	piece_free(c, p);
	op->running--;
	op_advance(c, op);
}

/* The next step, or what follows the last one. */
void piece_next(struct coll *c, struct coll_piece *p)
{
	if (p->step < p->step_count) {
		step_start(c, p);
		return;
	}
	p->token = 0;
	switch (p->phase) {
	case CONTRIBUTING:
		p->phase = COLLECTING;
		if (p->owner == c->device) {
			piece_collect(c, p);
		} else {
			struct coll_message m = op_message(p->op, MSG_READY);

			m.piece = p->number;
			m.offset = p->partials.offset;
			m.bytes = p->partials.bytes;
			engine_send(c, p->owner, &m);
		}
		break;
	case COMBINING: piece_publish(c, p); break;
	case DELIVERING:
		if (p->owner != c->device) {
			struct coll_message m = op_message(p->op, MSG_READ);

			m.piece = p->number;
			engine_send(c, p->owner, &m);
			piece_end(c, p);
			break;
		}
		p->phase = DRAINING;
		/* fall through */
	case DRAINING:
		if (!p->unread)
			piece_end(c, p);
		break;
	case SENDING: send_copied(c, p); break;
	case RECEIVING: receive_done(c, p); break;
	case COLLECTING:
	case SENT: break;
	}
}

void coll_io_done(struct coll *c, uint64_t token, int error)
{
	struct coll_piece *p = c->pieces;

	while (p && (!token || p->token != token))
		p = p->next;
	if (!p || c->failed)
		return;
	if (error) {
		const struct step *s = &p->steps[p->step];
		char text[96];

		engine_fail(c, "error %d of rank %u at address %#llx in %s", error,
			    p->comm->seats[s->seat].rank, (unsigned long long)s->addr,
			    shape_text(&p->shape, text, sizeof text));
		return;
	}
	p->step++;
	piece_next(c, p);
	engine_pump(c);
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
	const void *at = NULL;
	struct plan plan;

	if (!p || p->phase != COLLECTING || p->owner != from)
		return false;
	plan = plan_make(p->op, p->number);
	if (in->bytes == plan.count * dtype_bytes(p->shape.dtype))
		at = c->io.peer_memory(c->io.arg, from, in->offset, in->bytes);
	if (!at)
		return false;
	block_free(c, &p->partials);
	piece_deliver(c, p, at);
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
