/* collective.c: how data move. See collective.h for what, engine.h for who else.
 *
 * A collective starts on a device when all local members have called it; until then their
 * inputs stay where they are (their streams stand still), so nothing is copied early. It is
 * worked off in pieces: a range of elements with its sources (all members for reductions, one
 * for what only moves) and its destinations. On every device that takes part in a piece:
 *
 *   CONTRIBUTING  read local sources, combine them at the tree's nodes that are wholly local
 *   COLLECTING    the partials lie in the outbox, READY has gone to the piece's owner, who waits
 *                 for all of them
 *   COMBINING     the owner combines the partials at the remaining nodes
 *   DELIVERING    RESULT: everyone reads the owner's outbox into its local destinations
 *   DRAINING      the owner waits until all have READ it
 *
 * Rules kept here: pieces run in the same order everywhere, a bounded number at a time, and
 * operations of one communicator likewise; so the first unfinished piece is always among the
 * running ones of every device that takes part in it: bounded memory cannot make it stuck.
 * Owners of pieces rotate over the devices: each reads and writes its share of the data.
 *
 * All members must call the same thing. Each call's shape goes to one device (the referee, HELLO)
 * and with each READY; the first difference fails the job.
 *
 * A send goes in parts, each copied to the outbox at its place in the stream; the receive that
 * matches the part (by number, per ordered pair of members) reads it from there. So a send may be
 * complete before it is received, as far as its pair has room; past that its parts wait for those
 * before them to be taken. One part of each pair always has room: whatever gets on where sends are
 * not buffered at all, gets on here. To a rank that has ended all is taken, and goes nowhere.
 */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef PIECE_BYTES                /* tests make these four small */
#define PIECE_BYTES (4ull << 20)   /* at most, of one piece */
#define SENT_MAX (64ull << 20)     /* bytes of one pair that are sent and not received */
#define SENT_ALL_MAX (1ull << 30)  /* of all pairs that send from here */
#define SENT_LEAST 16384ull        /* so much a part counts at least, for what is kept of it */
#endif
#define PIECE_BYTES_MIN 16384ull   /* smaller data are not divided among devices */
#define PIECES_RUNNING 4u          /* per operation and device */
#define OPS_RUNNING 4u             /* per communicator */
#define OPS_AHEAD 65536u           /* how far a peer may be ahead of us */
#define EARLY_MAX 65536u           /* messages kept for communicators to come */
#define BYTES_MAX (1ull << 40)     /* of one rank's buffer: its whole window */

/* ---- the engine's own ------------------------------------------------------------------- */

void engine_fail(struct coll *c, const char *format, ...)
{
	char text[400];
	va_list args;

	if (c->failed)
		return;
	c->failed = true;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	c->io.failed(c->io.arg, text);
}

void *engine_new(struct coll *c, size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		engine_fail(c, "the proxy is out of memory");
	return p;
}

uint64_t engine_hash(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t h = 0x9e3779b97f4a7c15ull, words[3] = {a, b, c};

	for (int i = 0; i < 3; i++) {
		h = (h ^ words[i]) * 0xbf58476d1ce4e5b9ull;
		h ^= h >> 29;
		h *= 0x94d049bb133111ebull;
		h ^= h >> 32;
	}
	return h ? h : 1;
}

void engine_send(struct coll *c, uint32_t to, const struct message *m)
{
	if (to != c->device) {
		struct peer_message out = {{0}};

		memcpy(out.bytes, m, sizeof *m);
		c->io.send(c->io.arg, to, &out);
		return;
	}
	struct inbound *in = engine_new(c, sizeof *in);

	if (!in)
		return;
	in->from = to;
	in->m = *m;
	*c->inbox_end = in;
	c->inbox_end = &in->next;
}

static struct block block_new(struct coll *c, uint64_t bytes, bool outbox)
{
	struct block b = {.bytes = bytes, .outbox = outbox};

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

static void block_free(struct coll *c, struct block *b)
{
	if (b->at && b->outbox)
		c->io.outbox_free(c->io.arg, b->offset, b->bytes);
	else
		free(b->at);
	b->at = NULL;
}

static uint32_t dtype_bytes(uint32_t dtype)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

	return dtype < sizeof bytes ? bytes[dtype] : 0;
}

static const char *shape_text(const struct shape *s, char *out, size_t bytes)
{
	static const char *const kinds[] = {"AllReduce", "Reduce", "Broadcast", "AllGather",
					    "ReduceScatter", "Send", "Recv", "AlltoAll",
					    "Gather", "Scatter"};
	static const char *const types[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64",
					    "float16", "float32", "float64", "bfloat16",
					    "float8e4m3", "float8e5m2"};
	static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "premulsum"};

	snprintf(out, bytes, "%s of %llu %s (op %s, root %u)",
		 s->kind < 10 ? kinds[s->kind] : "?", (unsigned long long)s->count,
		 s->dtype < 12 ? types[s->dtype] : "?", s->op < 6 ? ops[s->op] : "?", s->root);
	return out;
}

static void fail_shapes(struct coll *c, uint32_t rank_a, const struct shape *a, uint32_t rank_b,
			const struct shape *b)
{
	char text_a[96], text_b[96];

	engine_fail(c, "ranks differ in a collective: rank %u calls %s, rank %u calls %s", rank_a,
		    shape_text(a, text_a, sizeof text_a), rank_b,
		    shape_text(b, text_b, sizeof text_b));
}

/* ---- what an operation consists of ------------------------------------------------------ */

/* One piece: elements [0, count) from `sources` at src_at to `dests` at dst_at. */
struct plan {
	struct tree_node sources, dests; /* communicator ranks */
	uint64_t src_at, dst_at, count;  /* in elements */
	uint32_t owner;                  /* device */
};

static bool reduces(uint32_t kind)
{
	return kind == RF_COLL_ALLREDUCE || kind == RF_COLL_REDUCE ||
	       kind == RF_COLL_REDUCESCATTER;
}

static bool has_root(uint32_t kind)
{
	return kind == RF_COLL_REDUCE || kind == RF_COLL_BROADCAST || kind == RF_COLL_GATHER ||
	       kind == RF_COLL_SCATTER;
}

/* Blocks of `count` elements that travel on their own. */
static uint64_t shape_blocks(const struct shape *s, uint64_t nranks)
{
	switch (s->kind) {
	case RF_COLL_ALLREDUCE:
	case RF_COLL_REDUCE:
	case RF_COLL_BROADCAST: return 1;
	case RF_COLL_ALLTOALL: return nranks * nranks;
	default: return nranks;
	}
}

/* Elements of one piece: an even share for each device, within bounds. */
static uint64_t shape_range(const struct shape *s, const struct comm *m)
{
	uint64_t size = dtype_bytes(s->dtype), range = s->count, least = PIECE_BYTES_MIN / size;

	if (shape_blocks(s, m->nranks) == 1)
		range = (range + m->device_count - 1) / m->device_count;
	range = (range + 63) / 64 * 64;
	if (range < least)
		range = least;
	return range < PIECE_BYTES / size ? range : PIECE_BYTES / size;
}

static uint64_t shape_pieces(const struct shape *s, const struct comm *m)
{
	uint64_t range = shape_range(s, m);

	return shape_blocks(s, m->nranks) * ((s->count + range - 1) / range);
}

static struct tree_node one(uint64_t rank)
{
	return (struct tree_node){(uint32_t)rank, (uint32_t)rank + 1};
}

static struct plan plan_make(const struct op *op, uint64_t number)
{
	const struct comm *m = op->comm;
	const struct shape *s = &op->shape;
	uint64_t range = shape_range(s, m), per_block = (s->count + range - 1) / range;
	uint64_t block = number / per_block, at = number % per_block * range, n = m->nranks;
	struct tree_node all = {0, m->nranks};
	struct plan p = {.sources = all, .dests = all, .src_at = at, .dst_at = at,
			 .count = s->count - at < range ? s->count - at : range};

	switch (s->kind) {
	case RF_COLL_REDUCE: p.dests = one(s->root); break;
	case RF_COLL_BROADCAST: p.sources = one(s->root); break;
	case RF_COLL_REDUCESCATTER:
		p.dests = one(block);
		p.src_at += block * s->count;
		break;
	case RF_COLL_ALLGATHER:
		p.sources = one(block);
		p.dst_at += block * s->count;
		break;
	case RF_COLL_GATHER:
		p.sources = one(block);
		p.dests = one(s->root);
		p.dst_at += block * s->count;
		break;
	case RF_COLL_SCATTER:
		p.sources = one(s->root);
		p.dests = one(block);
		p.src_at += block * s->count;
		break;
	case RF_COLL_ALLTOALL: /* block / n sends to block % n */
		p.sources = one(block / n);
		p.dests = one(block % n);
		p.src_at += block % n * s->count;
		p.dst_at += block / n * s->count;
		break;
	}
	if (s->kind == RF_COLL_ALLREDUCE)
		p.owner = m->devices[(op->seq + number) % m->device_count];
	else
		p.owner = m->device[reduces(s->kind) ? p.dests.lo : p.sources.lo];
	return p;
}

static bool present(const struct comm *m, struct tree_node ranks, uint32_t device)
{
	for (uint32_t i = ranks.lo; i < ranks.hi; i++)
		if (m->device[i] == device)
			return true;
	return false;
}

static bool takes_part(const struct comm *m, const struct plan *p, uint32_t device)
{
	return p->owner == device || present(m, p->sources, device) ||
	       present(m, p->dests, device);
}

static uint32_t participants(const struct comm *m, const struct plan *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->device_count; i++)
		n += takes_part(m, p, m->devices[i]);
	return n;
}

/* ---- steps ------------------------------------------------------------------------------ */

static struct seat *seat_of(const struct comm *m, uint32_t index)
{
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].index == index)
			return &m->seats[i];
	return NULL;
}

static void step_add(struct coll *c, struct piece *p, struct step step)
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

static void steps_clear(struct piece *p)
{
	p->step = p->step_count = 0;
}

static void step_start(struct coll *c, struct piece *p)
{
	const struct step *s = &p->steps[p->step];
	const struct shape *shape = &p->shape;
	uint32_t op = shape->op == AVG || shape->op == PREMUL ? SUM : shape->op;
	uint32_t rank = s->kind == STEP_READ || s->kind == STEP_WRITE
				? p->comm->seats[s->seat].rank : 0;

	p->token = ++c->tokens;
	switch (s->kind) {
	case STEP_READ:
		c->io.read(c->io.arg, rank, s->addr, s->dst, s->count, p->token);
		break;
	case STEP_WRITE:
		c->io.write(c->io.arg, rank, s->addr, s->a, s->count, p->token);
		break;
	case STEP_REDUCE:
		c->io.reduce(c->io.arg, s->dst, s->a, s->b, s->count, shape->dtype, op, p->token);
		break;
	case STEP_SCALE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype,
			    p->op->calls[s->seat].scalar, 0, p->token);
		break;
	case STEP_DIVIDE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype, NULL,
			    p->comm->nranks, p->token);
		break;
	}
}

/* ---- pieces of operations --------------------------------------------------------------- */

static void piece_next(struct coll *c, struct piece *p);

/* How many buffers combining below this node takes, beside the one for its own sum. */
static uint32_t depth(struct tree_node n)
{
	uint32_t d = 0;

	while ((1u << d) < n.hi - n.lo)
		d++;
	return d;
}

/* Steps that bring the sum of a wholly local node to dst. scratch[level] and up are free. */
static void add_local(struct coll *c, struct piece *p, const struct plan *plan,
		      struct tree_node n, uint8_t *dst, uint32_t level)
{
	uint64_t size = dtype_bytes(p->shape.dtype);

	if (n.hi - n.lo == 1) {
		uint32_t seat = (uint32_t)(seat_of(p->comm, n.lo) - p->comm->seats);

		step_add(c, p, (struct step){.kind = STEP_READ, .seat = seat, .dst = dst,
					     .addr = p->op->calls[seat].send + plan->src_at * size,
					     .count = plan->count * size});
		if (p->shape.op == PREMUL)
			step_add(c, p, (struct step){.kind = STEP_SCALE, .seat = seat, .dst = dst,
						     .a = dst, .count = plan->count});
		return;
	}
	uint32_t split = tree_split(n);
	uint8_t *right = p->scratch.at + level * plan->count * size;

	add_local(c, p, plan, (struct tree_node){n.lo, split}, dst, level);
	add_local(c, p, plan, (struct tree_node){split, n.hi}, right, level + 1);
	step_add(c, p, (struct step){.kind = STEP_REDUCE, .dst = dst, .a = dst, .b = right,
				     .count = plan->count});
}

/* Where each device's partials lie, while the owner combines. */
struct sources {
	const uint8_t *at[DEVICES_MAX]; /* the next one of comm->devices[i] */
};

/* Steps that bring the sum of a node to dst, or where it lies already. */
static const uint8_t *add_remote(struct coll *c, struct piece *p, const struct plan *plan,
				 struct sources *s, struct tree_node n, uint8_t *dst,
				 uint32_t level)
{
	const struct comm *m = p->comm;
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);

	for (uint32_t i = 0; i < m->device_count; i++)
		if (tree_within(n, m->device, m->devices[i])) {
			const uint8_t *at = s->at[i];

			s->at[i] += bytes;
			return at;
		}
	uint32_t split = tree_split(n);
	const uint8_t *left = add_remote(c, p, plan, s, (struct tree_node){n.lo, split}, dst, level);
	const uint8_t *right = add_remote(c, p, plan, s, (struct tree_node){split, n.hi},
					  p->scratch.at + level * bytes, level + 1);

	step_add(c, p, (struct step){.kind = STEP_REDUCE, .dst = dst, .a = left, .b = right,
				     .count = plan->count});
	return dst;
}

static void piece_contribute(struct coll *c, struct piece *p, const struct plan *plan)
{
	struct tree_node nodes[2 * TREE_DEPTH_MAX + RANKS_MAX];
	const struct comm *m = p->comm;
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);
	uint32_t n = tree_partials(plan->sources, m->device, c->device, nodes,
				   sizeof nodes / sizeof *nodes);
	bool owner = plan->owner == c->device, alone = owner && n == 1 &&
		     nodes[0].lo == plan->sources.lo && nodes[0].hi == plan->sources.hi;
	uint8_t *to;

	if (owner)
		p->result = block_new(c, bytes, participants(m, plan) > 1);
	if (!alone)
		p->partials = block_new(c, n * bytes, !owner);
	p->scratch = block_new(c, depth(plan->sources) * bytes, false);
	if (c->failed)
		return;
	to = alone ? p->result.at : p->partials.at;
	for (uint32_t i = 0; i < n; i++)
		add_local(c, p, plan, nodes[i], to + i * bytes, 0);
}

static void piece_start(struct coll *c, struct op *op, uint64_t number, const struct plan *plan)
{
	struct piece *p = engine_new(c, sizeof *p);

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
static void piece_collect(struct coll *c, struct piece *p)
{
	struct comm *m = p->comm;
	struct plan plan = plan_make(p->op, p->number);
	uint64_t bytes = plan.count * dtype_bytes(p->shape.dtype);
	struct sources s = {{NULL}};
	uint32_t others = participants(m, &plan) - 1, here = 0;
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
						r->offset, r->bytes) : NULL;
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
		step_add(c, p, (struct step){.kind = STEP_DIVIDE, .dst = p->result.at, .a = sum,
					     .count = plan.count});
	piece_next(c, p);
}

static void piece_deliver(struct coll *c, struct piece *p, const uint8_t *from)
{
	struct plan plan = plan_make(p->op, p->number);
	uint64_t size = dtype_bytes(p->shape.dtype);

	steps_clear(p);
	p->phase = DELIVERING;
	for (uint32_t i = 0; i < p->comm->seat_count; i++) {
		uint32_t index = p->comm->seats[i].index;
		const struct call *call = &p->op->calls[i];
		bool own = plan.sources.lo == index && plan.sources.hi == index + 1;

		/* What a rank sends to its own place, in place, is there. */
		if (own && call->recv + plan.dst_at * size == call->send + plan.src_at * size)
			continue;
		if (index >= plan.dests.lo && index < plan.dests.hi)
			step_add(c, p, (struct step){.kind = STEP_WRITE, .seat = i, .a = from,
						     .addr = call->recv + plan.dst_at * size,
						     .count = plan.count * size});
	}
	piece_next(c, p);
}

static struct message op_message(const struct op *op, uint32_t kind)
{
	return (struct message){.kind = kind, .key = op->comm->key, .seq = op->seq,
				.shape = op->shape, .from_rank = op->comm->seats[0].rank};
}

static void piece_publish(struct coll *c, struct piece *p)
{
	struct plan plan = plan_make(p->op, p->number);
	struct message m = op_message(p->op, MSG_RESULT);

	m.piece = p->number;
	m.offset = p->result.offset;
	m.bytes = p->result.bytes;
	for (uint32_t i = 0; i < p->comm->device_count; i++) {
		uint32_t to = p->comm->devices[i];

		if (to != c->device && takes_part(p->comm, &plan, to)) {
			engine_send(c, to, &m);
			p->unread++;
		}
	}
	piece_deliver(c, p, p->result.at);
}

static void piece_free(struct coll *c, struct piece *p)
{
	for (struct piece **at = &c->pieces; *at; at = &(*at)->next)
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

static void op_advance(struct coll *c, struct op *op);

static void piece_end(struct coll *c, struct piece *p)
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

/* ---- sends and receives ----------------------------------------------------------------- */

static void group_part_done(struct coll *c, struct group *g)
{
	if (--g->pending)
		return;
	g->next = c->done;
	c->done = g;
}

/* A send and its receive have the same shape, so both count the same parts. */
static uint64_t shape_bytes(const struct shape *s)
{
	return s->count * dtype_bytes(s->dtype);
}

static uint64_t shape_parts(const struct shape *s)
{
	uint64_t bytes = shape_bytes(s);

	return bytes ? (bytes + PIECE_BYTES - 1) / PIECE_BYTES : 1;
}

static uint64_t part_bytes(const struct shape *s, uint64_t part)
{
	uint64_t left = shape_bytes(s) - part * PIECE_BYTES;

	return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static struct piece *transfer_new(struct coll *c, struct comm *m, enum phase phase,
				  struct group *g, uint32_t src, uint32_t dst, uint64_t seq,
				  const struct shape *shape)
{
	struct piece *p = engine_new(c, sizeof *p);

	if (!p)
		return NULL;
	p->phase = phase;
	p->comm = m;
	p->group = g;
	p->src = src;
	p->dst = dst;
	p->seq = seq;
	p->shape = *shape;
	p->next = c->pieces;
	c->pieces = p;
	return p;
}

static uint64_t counted(uint64_t bytes)
{
	return bytes > SENT_LEAST ? bytes : SENT_LEAST;
}

/* The same for all sends of a pair, whatever their sizes: so none overtakes another. */
static bool has_room(const struct coll *c, const struct sending *o)
{
	uint64_t unreceived = o->comm->seats[o->seat].unreceived[o->peer];

	return !unreceived || (unreceived < SENT_MAX && c->unreceived < SENT_ALL_MAX);
}

static void send_part(struct coll *c, struct sending *o)
{
	struct seat *s = &o->comm->seats[o->seat];
	uint64_t part = o->part++, bytes = part_bytes(&o->shape, part);
	struct piece *p = transfer_new(c, o->comm, SENDING, o->group, s->index, o->peer,
				       s->sent[o->peer]++, &o->shape);

	if (!p)
		return;
	p->partials = block_new(c, bytes, o->comm->device[o->peer] != c->device);
	if (c->failed)
		return;
	s->unreceived[o->peer] += counted(bytes);
	c->unreceived += counted(bytes);
	if (bytes)
		step_add(c, p, (struct step){.kind = STEP_READ, .seat = o->seat,
					     .addr = o->addr + part * PIECE_BYTES,
					     .dst = p->partials.at, .count = bytes});
	piece_next(c, p);
}

/* Every part that has room goes, the oldest send first. */
static void sends_run(struct coll *c)
{
	for (struct sending **at = &c->sendings; *at && !c->failed;) {
		struct sending *o = *at;

		while (!c->failed && o->part < shape_parts(&o->shape) && has_room(c, o))
			send_part(c, o);
		if (o->part < shape_parts(&o->shape)) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		free(o);
	}
}

static void send_start(struct coll *c, struct comm *m, uint32_t seat, uint32_t peer, uint64_t addr,
		       const struct shape *shape, struct group *g)
{
	struct sending **end = &c->sendings, *o = engine_new(c, sizeof *o);

	if (!o)
		return;
	*o = (struct sending){.comm = m, .seat = seat, .peer = peer, .addr = addr, .shape = *shape,
			      .group = g};
	g->pending += (uint32_t)shape_parts(shape) - 1;
	while (*end)
		end = &(*end)->next;
	*end = o;
	sends_run(c);
}

/* A part is complete for the program when it is copied; the copy stays until it is taken. */
static void send_copied(struct coll *c, struct piece *p)
{
	p->phase = SENT;
	engine_send(c, p->comm->device[p->dst],
		    &(struct message){.kind = MSG_SENT, .from_rank = p->comm->member[p->src],
				      .key = p->comm->key, .seq = p->seq, .a = p->src, .b = p->dst,
				      .c = p->comm->member[p->dst], .offset = p->partials.offset,
				      .bytes = p->partials.bytes, .shape = p->shape});
	group_part_done(c, p->group);
}

static bool is_part(const struct receive *posted, const struct receive *arrived)
{
	return posted->src == arrived->src && posted->dst == arrived->dst &&
	       arrived->seq - posted->seq < shape_parts(&posted->shape);
}

/* A part that has arrived goes to where it was posted. */
static void receive_start(struct coll *c, struct comm *m, struct receive *posted,
			  const struct receive *arrived)
{
	uint64_t part = arrived->seq - posted->seq, bytes = part_bytes(&posted->shape, part);
	struct shape want = posted->shape;
	const void *from = NULL;
	struct piece *p;

	want.kind = arrived->shape.kind;
	if (memcmp(&want, &arrived->shape, sizeof want)) {
		fail_shapes(c, m->member[posted->src], &arrived->shape, m->member[posted->dst],
			    &posted->shape);
		return;
	}
	if (arrived->from == c->device)
		from = (const void *)(uintptr_t)arrived->offset;
	else if (bytes)
		from = c->io.peer_memory(c->io.arg, arrived->from, arrived->offset, bytes);
	if (arrived->bytes != bytes || (bytes && !from)) {
		engine_fail(c, "device %u sent memory that is not there", arrived->from);
		return;
	}
	p = transfer_new(c, m, RECEIVING, posted->group, posted->src, posted->dst, arrived->seq,
			 &posted->shape);
	if (!p)
		return;
	posted->started++;
	if (bytes)
		step_add(c, p, (struct step){.kind = STEP_WRITE, .seat = posted->seat, .a = from,
					     .addr = posted->addr + part * PIECE_BYTES,
					     .count = bytes});
	piece_next(c, p);
}

static void receive_push(struct coll *c, struct receive **list, const struct receive *like)
{
	struct receive *r = engine_new(c, sizeof *r);

	if (!r)
		return;
	*r = *like;
	r->next = *list;
	*list = r;
}

static void receive_post(struct coll *c, struct comm *m, struct receive posted)
{
	uint64_t parts = shape_parts(&posted.shape);

	m->seats[posted.seat].received[posted.src] += parts;
	posted.group->pending += (uint32_t)parts - 1;
	for (struct receive **at = &m->arrived; *at && !c->failed;) {
		struct receive *arrived = *at;

		if (!is_part(&posted, arrived)) {
			at = &arrived->next;
			continue;
		}
		receive_start(c, m, &posted, arrived);
		*at = arrived->next;
		free(arrived);
	}
	if (posted.started < parts)
		receive_push(c, &m->posted, &posted);
}

static void receive_arrived(struct coll *c, struct comm *m, const struct receive *arrived)
{
	for (struct receive **at = &m->posted; *at; at = &(*at)->next) {
		struct receive *posted = *at;

		if (!is_part(posted, arrived))
			continue;
		receive_start(c, m, posted, arrived);
		if (posted->started == shape_parts(&posted->shape)) {
			*at = posted->next;
			free(posted);
		}
		return;
	}
	receive_push(c, &m->arrived, arrived);
}

static void receive_done(struct coll *c, struct piece *p)
{
	engine_send(c, p->comm->device[p->src],
		    &(struct message){.kind = MSG_TAKEN, .from_rank = p->comm->member[p->dst],
				      .key = p->comm->key, .seq = p->seq, .a = p->src,
				      .b = p->dst});
	group_part_done(c, p->group);
	piece_free(c, p);
}

/* The next step, or what follows the last one. */
static void piece_next(struct coll *c, struct piece *p)
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
			struct message m = op_message(p->op, MSG_READY);

			m.piece = p->number;
			m.offset = p->partials.offset;
			m.bytes = p->partials.bytes;
			engine_send(c, p->owner, &m);
		}
		break;
	case COMBINING: piece_publish(c, p); break;
	case DELIVERING:
		if (p->owner != c->device) {
			struct message m = op_message(p->op, MSG_READ);

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

/* ---- operations ------------------------------------------------------------------------- */

static uint32_t referee(const struct op *op)
{
	return op->comm->devices[op->seq % op->comm->device_count];
}

static struct op *op_get(struct coll *c, struct comm *m, uint64_t seq)
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
static struct op *op_expected(struct coll *c, struct comm *m, const struct message *in)
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

static bool op_shape(struct coll *c, struct op *op, const struct shape *s, uint32_t rank)
{
	if (op->shape_rank == NONE) {
		op->shape = *s;
		op->shape_rank = rank;
	}
	if (memcmp(&op->shape, s, sizeof *s)) {
		fail_shapes(c, op->shape_rank, &op->shape, rank, s);
		return false;
	}
	return true;
}

static void op_free(struct op *op)
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
static void op_advance(struct coll *c, struct op *op)
{
	struct comm *m = op->comm;

	while (!c->failed && op->next_piece < op->pieces && op->running < PIECES_RUNNING) {
		uint64_t number = op->next_piece++;
		struct plan plan = plan_make(op, number);

		if (takes_part(m, &plan, c->device))
			piece_start(c, op, number, &plan);
	}
	if (c->failed || op->finished || op->next_piece < op->pieces || op->running)
		return;
	op->finished = true;
	for (uint32_t i = 0; i < m->seat_count; i++)
		group_part_done(c, op->calls[i].group);
}

/* The first operations of the communicator run, if all local members have called them. */
static void comm_run(struct coll *c, struct comm *m)
{
	uint32_t running = 0;

	for (struct op *op = m->ops; op && running < OPS_RUNNING; op = op->next) {
		running += !op->finished;
		if (op->arrived == m->seat_count && !op->finished && !op->running)
			op_advance(c, op);
	}
}

/* Operations that are over here are forgotten; the referee waits for the last HELLO. */
static void op_sweep(struct comm *m, uint32_t device)
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

static void op_call(struct coll *c, struct comm *m, uint32_t seat, const struct shape *shape,
		    struct call call)
{
	struct op *op = op_get(c, m, m->seats[seat].next_seq++);

	if (!op || !op_shape(c, op, shape, m->seats[seat].rank))
		return;
	op->calls[seat] = call;
	if (++op->arrived < m->seat_count)
		return;
	op->pieces = shape->count ? shape_pieces(shape, m) : 0;
	struct message hello = op_message(op, MSG_HELLO);

	engine_send(c, referee(op), &hello);
}

/* ---- calls of the loop ------------------------------------------------------------------ */

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
	return o->kind == RF_COLL_ALLTOALL && o->send < o->recv + bytes && o->recv < o->send + bytes;
}

static int check(const struct coll *c, uint32_t rank, const struct comm *m,
		 const struct rf_collective *o, struct shape *shape, struct call *call)
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
	*call = (struct call){.send = o->send, .recv = o->recv};
	if (has_root(o->kind) || o->kind == RF_COLL_SEND || o->kind == RF_COLL_RECV) {
		if (o->root < 0 || (uint32_t)o->root >= m->nranks)
			return NCCL_INVALID_ARGUMENT;
		shape->root = has_root(o->kind) ? (uint32_t)o->root : 0;
	}
	if (overlaps(o, o->count * size * m->nranks))
		return NCCL_INVALID_USAGE;
	if (!reduces(o->kind))
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

static void submit_one(struct coll *c, struct comm *m, uint32_t seat, const struct rf_collective *o,
		       struct group *g)
{
	struct seat *s = &m->seats[seat];
	uint32_t peer = (uint32_t)o->root;
	struct shape shape;
	struct call call;

	check(c, s->rank, m, o, &shape, &call);
	call.group = g;
	if (o->kind == RF_COLL_SEND)
		send_start(c, m, seat, peer, o->send, &shape, g);
	else if (o->kind == RF_COLL_RECV)
		receive_post(c, m, (struct receive){.src = peer, .dst = s->index, .seat = seat,
						    .seq = s->received[peer], .shape = shape,
						    .addr = o->recv, .group = g});
	else
		op_call(c, m, seat, &shape, call);
}

int coll_submit(struct coll *c, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
		uint32_t count, uint64_t ticket)
{
	struct comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);
	struct group *g;
	int error = s && count ? 0 : NCCL_INVALID_ARGUMENT;

	for (uint32_t i = 0; i < count && !error; i++) {
		struct shape shape;
		struct call call;

		error = ops[i].comm == comm ? check(c, rank, m, &ops[i], &shape, &call)
					    : NCCL_INVALID_ARGUMENT;
	}
	if (error || c->failed)
		return error;
	g = engine_new(c, sizeof *g);
	if (!g)
		return 0;
	*g = (struct group){.ticket = ticket, .comm = comm, .rank = rank, .pending = count,
			    .seat = s};
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
	struct comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);

	if (!s || m->nranks != 1 || s->groups)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		struct shape shape;
		struct call call;

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
	struct comm *m;
	const struct seat *s = comm_seat(c, rank, comm, &m);
	uint64_t signature = s ? m->key : 0;
	uint32_t n = 0, written;
	bool collective = false;

	for (uint32_t i = 0; i < count && s; i++) {
		const struct rf_collective *o = &ops[i];
		bool pair = o->kind == RF_COLL_SEND || o->kind == RF_COLL_RECV;
		uint32_t peer = (uint32_t)o->root, src = s->index, dst = peer;

		signature = engine_hash(signature, o->kind | (uint64_t)o->dtype << 8 |
					(uint64_t)peer << 32, o->count);
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
				.src = m->member[src], .dst = m->member[dst]};
	}
	written = n < max ? n : max;
	for (uint32_t i = 0; i < written; i++)
		out[i].signature = signature;
	if (written)
		qsort(out, written, sizeof *out, by_key);
	return n;
}

void coll_io_done(struct coll *c, uint64_t token, int error)
{
	struct piece *p = c->pieces;

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

/* ---- messages --------------------------------------------------------------------------- */

static struct piece *piece_find(const struct coll *c, const struct comm *m,
				const struct message *in)
{
	struct piece *p = c->pieces;

	while (p && !(p->comm == m && p->op && p->op->seq == in->seq && p->number == in->piece))
		p = p->next;
	return p;
}

static bool on_ready(struct coll *c, uint32_t from, struct comm *m, const struct message *in)
{
	struct op *op = op_expected(c, m, in);
	struct plan plan;
	struct ready *r;
	struct piece *p;

	if (!op || op->finished || !op_shape(c, op, &in->shape, in->from_rank) ||
	    !op->shape.count || in->piece >= shape_pieces(&op->shape, m))
		return false;
	plan = plan_make(op, in->piece);
	if (plan.owner != c->device || from == c->device || !takes_part(m, &plan, from))
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

static bool on_result(struct coll *c, uint32_t from, struct comm *m, const struct message *in)
{
	struct piece *p = piece_find(c, m, in);
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

static bool on_read(struct coll *c, uint32_t from, struct comm *m, const struct message *in)
{
	struct piece *p = piece_find(c, m, in);

	if (!p || p->owner != c->device || from == c->device || !p->unread)
		return false;
	p->unread--;
	if (p->phase == DRAINING)
		piece_next(c, p);
	return true;
}

static bool on_hello(struct coll *c, struct comm *m, const struct message *in)
{
	struct op *op = op_expected(c, m, in);

	if (!op || referee(op) != c->device || op->hellos >= m->device_count)
		return false;
	op->hellos++;
	return op_shape(c, op, &in->shape, in->from_rank);
}

static bool on_sent(struct coll *c, uint32_t from, struct comm *m, const struct message *in)
{
	if (in->a >= m->nranks || in->b >= m->nranks || m->device[in->a] != from ||
	    m->device[in->b] != c->device || !dtype_bytes(in->shape.dtype) ||
	    in->shape.count > BYTES_MAX || in->bytes > PIECE_BYTES || in->c != m->member[in->b])
		return false;
	receive_arrived(c, m, &(struct receive){.src = in->a, .dst = in->b, .from = from,
						.seq = in->seq, .offset = in->offset,
						.bytes = in->bytes, .shape = in->shape});
	return true;
}

static bool on_taken(struct coll *c, uint32_t from, struct comm *m, const struct message *in)
{
	struct piece *p = c->pieces;

	while (p && !(p->comm == m && p->phase == SENT && p->src == in->a && p->dst == in->b &&
		      p->seq == in->seq))
		p = p->next;
	if (!p || m->device[p->dst] != from)
		return false;
	seat_of(m, p->src)->unreceived[p->dst] -= counted(p->partials.bytes);
	c->unreceived -= counted(p->partials.bytes);
	piece_free(c, p);
	sends_run(c);
	return true;
}

/* Who would receive it has ended: it is taken, by nobody. */
static void sent_to_ended(struct coll *c, uint32_t from, const struct message *in)
{
	engine_send(c, from, &(struct message){.kind = MSG_TAKEN, .from_rank = in->c,
					       .key = in->key, .seq = in->seq, .a = in->a,
					       .b = in->b});
}

void coll_ended(struct coll *c, uint32_t rank)
{
	if (rank >= c->world_size || c->ended[rank])
		return;
	c->ended[rank] = true;
	for (struct comm *m = c->comms; m; m = m->next)
		for (struct receive **at = &m->arrived; *at;) {
			struct receive *r = *at;

			if (m->member[r->dst] != rank) {
				at = &r->next;
				continue;
			}
			sent_to_ended(c, r->from,
				      &(struct message){.key = m->key, .seq = r->seq, .a = r->src,
							.b = r->dst, .c = rank});
			*at = r->next;
			free(r);
		}
	for (struct inbound **at = &c->early; *at;) {
		struct inbound *in = *at;

		if (in->m.kind != MSG_SENT || in->m.c != rank) {
			at = &in->next;
			continue;
		}
		sent_to_ended(c, in->from, &in->m);
		*at = in->next;
		c->early_count--;
		free(in);
	}
	engine_pump(c);
}

/* A message for a communicator that is not known here yet is kept. */
static bool keep_early(struct coll *c, uint32_t from, const struct message *m)
{
	struct inbound **end = &c->early, *in;

	if ((m->kind != MSG_HELLO && m->kind != MSG_READY && m->kind != MSG_SENT) ||
	    c->early_count >= EARLY_MAX)
		return false;
	in = engine_new(c, sizeof *in);
	if (!in)
		return true;
	in->from = from;
	in->m = *m;
	while (*end)
		end = &(*end)->next;
	*end = in;
	c->early_count++;
	return true;
}

static void dispatch(struct coll *c, uint32_t from, const struct message *m)
{
	struct comm *comm = comm_by_key(c, m->key);
	bool good = false;

	if (m->kind == MSG_JOIN) {
		comm_on_join(c, from, m);
		return;
	}
	if (m->kind == MSG_MADE) {
		comm_on_made(c, from, m);
		return;
	}
	if (m->kind == MSG_SENT && m->c < c->world_size && c->ended[m->c]) {
		sent_to_ended(c, from, m); /* where the communicator may have gone as well */
		return;
	}
	if (!comm) {
		good = keep_early(c, from, m);
	} else {
		switch (m->kind) {
		case MSG_HELLO: good = on_hello(c, comm, m); break;
		case MSG_READY: good = on_ready(c, from, comm, m); break;
		case MSG_RESULT: good = on_result(c, from, comm, m); break;
		case MSG_READ: good = on_read(c, from, comm, m); break;
		case MSG_SENT: good = on_sent(c, from, comm, m); break;
		case MSG_TAKEN: good = on_taken(c, from, comm, m); break;
		}
	}
	if (!good)
		engine_fail(c, "device %u sent a message that cannot be (kind %u, sequence %llu)",
			    from, m->kind, (unsigned long long)m->seq);
	else if (comm)
		comm_run(c, comm);
}

void coll_receive(struct coll *c, uint32_t from, const struct peer_message *bytes)
{
	struct message m;

	if (c->failed)
		return;
	memcpy(&m, bytes->bytes, sizeof m);
	if (from >= c->device_count || from == c->device) {
		engine_fail(c, "a message from device %u, which is no peer", from);
		return;
	}
	dispatch(c, from, &m);
	engine_pump(c);
}

static void group_tell(struct coll *c, struct group *g)
{
	struct group **at = &c->groups;

	while (*at != g)
		at = &(*at)->all;
	*at = g->all;
	c->done = g->next;
	g->seat->groups--;
	c->io.completed(c->io.arg, g->rank, g->comm, g->ticket, 0);
	free(g);
}

/* Works off messages to oneself and tells what is over, until nothing is left. The only place
 * that calls completed, and never inside itself. */
void engine_pump(struct coll *c)
{
	if (c->pumping)
		return;
	c->pumping = true;
	while (!c->failed && (c->inbox || c->done)) {
		struct inbound *in = c->inbox;
		struct group *g = c->done;

		if (in) {
			c->inbox = in->next;
			if (!c->inbox)
				c->inbox_end = &c->inbox;
			dispatch(c, in->from, &in->m);
			free(in);
			continue;
		}
		group_tell(c, g);
	}
	for (struct comm *m = c->comms; m && !c->failed; m = m->next) {
		op_sweep(m, c->device);
		comm_run(c, m);
	}
	c->pumping = false;
	if (!c->failed && (c->inbox || c->done))
		engine_pump(c);
	else
		comm_sweep(c);
}

bool coll_busy(const struct coll *c)
{
	if (c->groups || c->joins || c->gatherings || c->pieces || c->sendings || c->inbox || c->done)
		return true;
	for (const struct comm *m = c->comms; m; m = m->next)
		if (m->ops || m->posted || m->arrived)
			return true;
	return false;
}

bool coll_unreceived(const struct coll *c, uint32_t *from, uint32_t *to)
{
	for (const struct comm *m = c->comms; m; m = m->next)
		if (m->arrived) {
			*from = m->member[m->arrived->src];
			*to = m->member[m->arrived->dst];
			return true;
		}
	return false;
}

struct coll *coll_new(const struct coll_io *io, uint32_t device, uint32_t device_count,
		      uint32_t world_size, const uint32_t *rank_device)
{
	struct coll *c;

	if (!world_size || world_size > RANKS_MAX || device >= device_count ||
	    device_count > DEVICES_MAX)
		return NULL;
	for (uint32_t i = 0; i < world_size; i++)
		if (rank_device[i] >= device_count)
			return NULL;
	c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->io = *io;
	c->device = device;
	c->device_count = device_count;
	c->world_size = world_size;
	memcpy(c->rank_device, rank_device, world_size * sizeof *rank_device);
	c->inbox_end = &c->inbox;
	return c;
}

static void free_inbound(struct inbound *in)
{
	while (in) {
		struct inbound *next = in->next;

		free(in);
		in = next;
	}
}

static void free_receives(struct receive *r)
{
	while (r) {
		struct receive *next = r->next;

		free(r);
		r = next;
	}
}

void coll_free(struct coll *c)
{
	while (c->pieces)
		piece_free(c, c->pieces);
	for (struct comm *m = c->comms; m; m = m->next) {
		while (m->ops) {
			struct op *op = m->ops;

			m->ops = op->next;
			op_free(op);
		}
		free_receives(m->posted);
		free_receives(m->arrived);
	}
	while (c->sendings) {
		struct sending *o = c->sendings;

		c->sendings = o->next;
		free(o);
	}
	free_inbound(c->inbox);
	free_inbound(c->early);
	while (c->groups) {
		struct group *g = c->groups;

		c->groups = g->all;
		free(g);
	}
	comm_free_all(c);
	free(c);
}
