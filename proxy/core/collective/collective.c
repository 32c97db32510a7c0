/* collective.c: checks calls by ranks, and computes their barrier rounds. collective.h describes
 * the interface, engine.h the other files.
 *
 * A collective starts on a device when all local members have called it. Until then their inputs
 * stay in their memory (their streams wait), and are summed as far as that is possible in place
 * (early_sum.c). It is executed in pieces (piece.c), sends and receives in parts (sends.c).
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

static const struct redop *redop_find(const struct coll *c, uint32_t rank, uint64_t handle)
{
	const struct redop *r = c->redops;

	while (r && (r->rank != rank || r->handle != handle))
		r = r->next;
	return r;
}

/* In an all-to-all, an arriving block could overwrite one that is not sent yet. */
static bool blocks_overlap(const struct rf_collective *o, uint64_t bytes)
{
	return o->kind == RF_COLL_ALLTOALL && o->send < o->recv + bytes &&
	       o->recv < o->send + bytes;
}

static int check_call(const struct coll *c, uint32_t rank, const struct coll_comm *m,
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
	if (blocks_overlap(o, o->count * size * m->nranks))
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

	check_call(c, s->rank, m, o, &shape, &call);
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

int op_submit(struct coll *c, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
	      uint32_t count, uint64_t ticket)
{
	struct coll_comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);
	struct coll_group *g;
	int error = s && count ? 0 : NCCL_INVALID_ARGUMENT;

	for (uint32_t i = 0; i < count && !error; i++) {
		struct shape shape;
		struct coll_call call;

		error = ops[i].comm == comm ? check_call(c, rank, m, &ops[i], &shape, &call)
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
	abort_notify_members(c, m);
	comm_run(c, m);
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
		    check_call(c, rank, m, &ops[i], &shape, &call) || shape.op == PREMUL)
			return false;
	}
	s->next_seq += count;
	return true;
}

static const struct seat *seat_of_rank(const struct coll_comm *m, uint32_t rank)
{
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].rank == rank && m->seats[i].in_use)
			return &m->seats[i];
	return NULL;
}

static bool has_called(const struct op *op, const struct seat *s)
{
	return op->calls[s - op->comm->seats].group && !op->finished;
}

enum coll_lack coll_lacks(const struct coll *c, uint32_t rank)
{
	enum coll_lack least = COLL_LACKS_NONE;

	for (const struct coll_comm *m = c->comms; m && !c->failed; m = m->next) {
		const struct seat *s = m->ops ? seat_of_rank(m, rank) : NULL;

		for (const struct op *op = m->ops; op && s; op = op->next) {
			enum coll_lack lack = op->arrived < m->seat_count ? COLL_LACKS_LOCAL
					      : m->device_count > 1       ? COLL_LACKS_OTHERS
									  : COLL_LACKS_NO_RANK;

			if (has_called(op, s) && lack > least && !m->stopped &&
			    !comm_abandoned(m, op->seq))
				least = lack;
		}
	}
	return least;
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
				.dst = m->member[dst],
				.broken = m->aborted[peer]};
	}
	written = n < max ? n : max;
	for (uint32_t i = 0; i < written; i++)
		out[i].signature = signature;
	if (written)
		qsort(out, written, sizeof *out, by_key);
	return n;
}
