/* collective.c: what ranks call, and when it runs. See collective.h for what, engine.h for who
 * else.
 *
 * A collective starts on a device when all local members have called it; until then their
 * inputs stay where they are (their streams stand still), so nothing is copied early. It is
 * worked off in pieces (piece.c), sends and receives in parts (sends.c).
 *
 * Rules kept here: pieces run in the same order everywhere, a bounded number at a time, and
 * operations of one communicator likewise; so the first unfinished piece is always among the
 * running ones of every device that takes part in it: bounded memory cannot make it stuck.
 *
 * All members must call the same thing. Each call's shape goes to one device (the referee, HELLO)
 * and with each READY; the first difference fails the job.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_RUNNING 4u /* per operation and device */
#define OPS_RUNNING 4u    /* per communicator */
#define OPS_AHEAD 65536u  /* how far a peer may be ahead of us */

/* ---- operations ------------------------------------------------------------------------ */

static uint32_t referee(const struct op *op)
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

/* The operation a peer speaks of: one that is known, or one that local ranks are yet to call. */
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

/* Starts what may run of an operation; and when all of it has, tells the local ranks. */
void op_advance(struct coll *c, struct op *op)
{
	struct coll_comm *m = op->comm;

	while (!c->failed && op->next_piece < op->pieces && op->running < PIECES_RUNNING) {
		uint64_t number = op->next_piece++;
		struct plan plan = plan_make(op, number);

		if (plan_takes_part(m, &plan, c->device))
			piece_start(c, op, number, &plan);
	}
	if (c->failed || op->finished || op->next_piece < op->pieces || op->running)
		return;
	op->finished = true;
	for (uint32_t i = 0; i < m->seat_count; i++)
		group_part_done(c, op->calls[i].group);
}

/* The first operations of the communicator run, if all local members have called them. */
void comm_run(struct coll *c, struct coll_comm *m)
{
	uint32_t running = 0;

	for (struct op *op = m->ops; op && running < OPS_RUNNING; op = op->next) {
		running += !op->finished;
		if (op->arrived == m->seat_count && !op->finished && !op->running)
			op_advance(c, op);
	}
}

/* Operations that are over here are forgotten; the referee waits for the last HELLO. */
void op_sweep(struct coll_comm *m, uint32_t device)
{
	for (struct op **at = &m->ops; *at;) {
		struct op *op = *at;

		if (!op->finished || (referee(op) == device && op->hellos < m->device_count)) {
			at = &op->next;
			continue;
		}
		*at = op->next;
		op_free(op);
	}
}

static void op_call(struct coll *c, struct coll_comm *m, uint32_t seat, const struct shape *shape,
		    struct coll_call call)
{
	struct op *op = op_get(c, m, m->seats[seat].next_seq++);

	if (!op || !op_shape(c, op, shape, m->seats[seat].rank))
		return;
	op->calls[seat] = call;
	if (++op->arrived < m->seat_count)
		return;
	op->pieces = shape->count ? shape_pieces(shape, m) : 0;
	struct coll_message hello = op_message(op, MSG_HELLO);

	engine_send(c, referee(op), &hello);
}

bool op_on_hello(struct coll *c, struct coll_comm *m, const struct coll_message *in)
{
	struct op *op = op_expected(c, m, in);

	if (!op || referee(op) != c->device || op->hellos >= m->device_count)
		return false;
	op->hellos++;
	return op_shape(c, op, &in->shape, in->from_rank);
}

/* ---- calls of the loop ----------------------------------------------------------------- */

static const struct redop *redop_find(const struct coll *c, uint32_t rank, uint64_t handle)
{
	const struct redop *r = c->redops;

	while (r && (r->rank != rank || r->handle != handle))
		r = r->next;
	return r;
}

/* In an all-to-all, a block that arrives could overwrite one that has not left yet. */
static bool overlaps(const struct rf_collective *o, uint64_t bytes)
{
	return o->kind == RF_COLL_ALLTOALL && o->send < o->recv + bytes &&
	       o->recv < o->send + bytes;
}

static int check(const struct coll *c, uint32_t rank, const struct coll_comm *m,
		 const struct rf_collective *o, struct shape *shape, struct coll_call *call)
{
	uint64_t size = dtype_bytes(o->dtype), blocks = o->kind < RF_COLL_SEND ? m->nranks : 1;
	const struct redop *redop = NULL;

	if (o->kind > RF_COLL_SCATTER || !size)
		return NCCL_INVALID_ARGUMENT;
	if (o->kind > RF_COLL_RECV)
		blocks = m->nranks;
	if (o->count > BYTES_MAX / size / blocks || o->count > SIZE_MAX / 2)
		return NCCL_INVALID_ARGUMENT;
	*shape = (struct shape){.kind = o->kind, .dtype = o->dtype, .count = o->count};
	*call = (struct coll_call){.send = o->send, .recv = o->recv};
	if (shape_has_root(o->kind) || o->kind == RF_COLL_SEND || o->kind == RF_COLL_RECV) {
		if (o->root < 0 || (uint32_t)o->root >= m->nranks)
			return NCCL_INVALID_ARGUMENT;
		shape->root = shape_has_root(o->kind) ? (uint32_t)o->root : 0;
	}
	if (overlaps(o, o->count * size * m->nranks))
		return NCCL_INVALID_USAGE;
	if (!shape_reduces(o->kind))
		return 0;
	if (o->dtype > 9)
		return NCCL_INVALID_ARGUMENT;
	shape->op = (uint32_t)o->op;
	if (o->op >= RF_HANDLE_FIRST) {
		redop = redop_find(c, rank, o->op);
		shape->op = PREMUL;
		if (redop)
			memcpy(call->scalar, redop->scalar, sizeof call->scalar);
	}
	if ((o->op > AVG && !redop) || (redop && redop->dtype != o->dtype))
		return NCCL_INVALID_ARGUMENT;
	return 0;
}

static void submit_one(struct coll *c, struct coll_comm *m, uint32_t seat,
		       const struct rf_collective *o, struct coll_group *g)
{
	struct seat *s = &m->seats[seat];
	uint32_t peer = (uint32_t)o->root;
	struct shape shape;
	struct coll_call call;

	check(c, s->rank, m, o, &shape, &call);
	call.group = g;
	if (o->kind == RF_COLL_SEND)
		send_start(c, m, seat, peer, o->send, &shape, g);
	else if (o->kind == RF_COLL_RECV)
		receive_post(c, m,
			     (struct receive){.src = peer,
					      .dst = s->index,
					      .seat = seat,
					      .seq = s->received[peer],
					      .shape = shape,
					      .addr = o->recv,
					      .group = g});
	else
		op_call(c, m, seat, &shape, call);
}

int coll_submit(struct coll *c, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
		uint32_t count, uint64_t ticket)
{
	struct coll_comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);
	struct coll_group *g;
	int error = s && count ? 0 : NCCL_INVALID_ARGUMENT;

	for (uint32_t i = 0; i < count && !error; i++) {
		struct shape shape;
		struct coll_call call;

		error = ops[i].comm == comm ? check(c, rank, m, &ops[i], &shape, &call)
					    : NCCL_INVALID_ARGUMENT;
	}
	if (error || c->failed)
		return error;
	g = engine_new(c, sizeof *g);
	if (!g)
		return 0;
	*g = (struct coll_group){
		.ticket = ticket, .comm = comm, .rank = rank, .pending = count, .seat = s};
	s->groups++;
	g->all = c->groups;
	c->groups = g;
	for (uint32_t i = 0; i < count && !c->failed; i++)
		submit_one(c, m, (uint32_t)(s - m->seats), &ops[i], g);
	comm_run(c, m);
	engine_pump(c);
	return 0;
}

bool coll_nothing_to_do(struct coll *c, uint32_t rank, uint64_t comm,
			const struct rf_collective *ops, uint32_t count)
{
	struct coll_comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);

	if (!s || m->nranks != 1 || s->groups)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		struct shape shape;
		struct coll_call call;

		if (ops[i].comm != comm || ops[i].kind == RF_COLL_SEND ||
		    ops[i].kind == RF_COLL_RECV || ops[i].send != ops[i].recv ||
		    check(c, rank, m, &ops[i], &shape, &call) || shape.op == PREMUL)
			return false;
	}
	s->next_seq += count;
	return true;
}

static int by_key(const void *a, const void *b)
{
	const struct coll_round *x = a, *y = b;

	return x->key < y->key ? -1 : x->key > y->key;
}

uint32_t coll_rounds(const struct coll *c, uint32_t rank, uint64_t comm,
		     const struct rf_collective *ops, uint32_t count, struct coll_round *out,
		     uint32_t max)
{
	struct coll_comm *m;
	const struct seat *s = comm_seat(c, rank, comm, &m);
	uint64_t signature = s ? m->key : 0;
	uint32_t n = 0, written;
	bool collective = false;

	for (uint32_t i = 0; i < count && s; i++) {
		const struct rf_collective *o = &ops[i];
		bool pair = o->kind == RF_COLL_SEND || o->kind == RF_COLL_RECV;
		uint32_t peer = (uint32_t)o->root, src = s->index, dst = peer;

		signature = engine_hash(signature,
					o->kind | (uint64_t)o->dtype << 8 | (uint64_t)peer << 32,
					o->count);
		if (!pair && collective)
			continue;
		collective |= !pair;
		if (pair && (peer >= m->nranks || peer == s->index))
			continue;
		if (o->kind == RF_COLL_RECV) {
			src = peer;
			dst = s->index;
		}
		if (n++ >= max)
			continue;
		out[n - 1] = (struct coll_round){.key = m->key};
		if (pair)
			out[n - 1] = (struct coll_round){
				.key = engine_hash(m->key, src + 1, dst + 1),
				.src = m->member[src],
				.dst = m->member[dst]};
	}
	written = n < max ? n : max;
	for (uint32_t i = 0; i < written; i++)
		out[i].signature = signature;
	if (written)
		qsort(out, written, sizeof *out, by_key);
	return n;
}
