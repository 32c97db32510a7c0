/* sends.c: sends and receives. See engine.h.
 *
 * A send is split into parts. Each is copied to the outbox at its place in the stream, and the
 * receive that matches the part (by number, per ordered pair of members) reads it there. A send may
 * therefore complete before it is received, within the capacity of its pair; beyond that, its parts
 * wait until earlier ones are taken.
 *
 * Rules: one part of each pair always has capacity, so a program that makes progress without
 * buffered sends makes progress here. No send overtakes another of its pair. Parts for a rank that
 * has ended are taken and dropped.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#ifndef SENT_MAX                  /* tests reduce these three */
#define SENT_MAX (64ull << 20)    /* bytes of one pair that are sent and not received */
#define SENT_ALL_MAX (1ull << 30) /* the same, of all pairs that send from here */
#define SENT_LEAST 16384ull       /* minimum that a part counts, for its bookkeeping */
#endif

/* A send and its receive have the same shape, so both count the same parts. */
static uint64_t shape_bytes(const struct shape *s) { return s->count * dtype_bytes(s->dtype); }

static uint64_t shape_parts(const struct shape *s)
{
	uint64_t bytes = shape_bytes(s);

	return bytes ? (bytes + COLL_PIECE_BYTES - 1) / COLL_PIECE_BYTES : 1;
}

static uint64_t part_bytes(const struct shape *s, uint64_t part)
{
	uint64_t left = shape_bytes(s) - part * COLL_PIECE_BYTES;

	return left < COLL_PIECE_BYTES ? left : COLL_PIECE_BYTES;
}

static void part_advance(struct coll *, struct coll_piece *);

static struct coll_piece *part_new(struct coll *c, struct coll_comm *m, enum phase phase,
				   struct coll_group *g, uint32_t src, uint32_t dst, uint64_t seq,
				   const struct shape *shape)
{
	struct coll_piece *p = piece_new(c, m, shape, phase, part_advance);

	if (!p)
		return NULL;
	p->group = g;
	p->src = src;
	p->dst = dst;
	p->seq = seq;
	return p;
}

static uint64_t counted_bytes(uint64_t bytes) { return bytes > SENT_LEAST ? bytes : SENT_LEAST; }

/* The condition is the same for all sends of a pair, whatever their sizes, so none overtakes
 * another. */
static bool has_capacity(const struct coll *c, const struct sending *o)
{
	uint64_t unreceived = o->comm->seats[o->seat].unreceived[o->peer];

	return !unreceived || (unreceived < SENT_MAX && c->unreceived < SENT_ALL_MAX);
}

static void send_part(struct coll *c, struct sending *o)
{
	struct seat *s = &o->comm->seats[o->seat];
	uint64_t part = o->part++, bytes = part_bytes(&o->shape, part);
	struct coll_piece *p = part_new(c, o->comm, SENDING, o->group, s->index, o->peer,
					s->sent[o->peer]++, &o->shape);

	if (!p)
		return;
	p->partials = block_new(c, bytes,
				device_bit(o->comm->device[o->peer]) & ~device_bit(c->device));
	if (c->failed)
		return;
	s->unreceived[o->peer] += counted_bytes(bytes);
	c->unreceived += counted_bytes(bytes);
	if (bytes)
		step_add(c, p,
			 (struct step){.kind = STEP_READ,
				       .seat = o->seat,
				       .addr = o->addr + part * COLL_PIECE_BYTES,
				       .dst = p->partials.at,
				       .count = bytes});
	piece_next(c, p);
}

/* Sends every part that has capacity, the oldest send first. */
static void sends_run(struct coll *c)
{
	for (struct sending **at = &c->sendings; *at && !c->failed;) {
		struct sending *o = *at;

		while (!c->failed && o->part < shape_parts(&o->shape) && has_capacity(c, o))
			send_part(c, o);
		if (o->part < shape_parts(&o->shape)) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		free(o);
	}
}

void send_start(struct coll *c, struct coll_comm *m, uint32_t seat, uint32_t peer, uint64_t addr,
		const struct shape *shape, struct coll_group *g)
{
	struct sending **end = &c->sendings, *o;

	if (m->aborted[peer]) { /* it is taken and dropped */
		group_part_done(c, g);
		return;
	}
	o = engine_new(c, sizeof *o);
	if (!o)
		return;
	*o = (struct sending){
		.comm = m, .seat = seat, .peer = peer, .addr = addr, .shape = *shape, .group = g};
	g->pending += (uint32_t)shape_parts(shape) - 1;
	while (*end)
		end = &(*end)->next;
	*end = o;
	sends_run(c);
}

/* Frees the copy of a part, so that other parts may use its capacity. */
static void send_end(struct coll *c, struct coll_piece *p)
{
	uint64_t *unreceived = &seat_of(p->comm, p->src)->unreceived[p->dst];

	INVARIANT(c->unreceived >= *unreceived && *unreceived >= counted_bytes(p->partials.bytes),
		  "bytes that are taken were counted as not received");
	*unreceived -= counted_bytes(p->partials.bytes);
	c->unreceived -= counted_bytes(p->partials.bytes);
	piece_free(c, p);
	sends_run(c);
}

/* A part is complete for the program once it is copied; the copy stays until it is taken. */
static void send_copied(struct coll *c, struct coll_piece *p)
{
	if (p->dropped) {
		send_end(c, p);
		return;
	}
	p->phase = SENT;
	engine_send(c, p->comm->device[p->dst],
		    &(struct coll_message){.kind = MSG_SENT,
					   .from_rank = p->comm->member[p->src],
					   .key = p->comm->key,
					   .seq = p->seq,
					   .a = p->src,
					   .b = p->dst,
					   .c = p->comm->member[p->dst],
					   .offset = p->partials.offset,
					   .bytes = p->partials.bytes,
					   .shape = p->shape});
	group_part_done(c, p->group);
}

static bool is_part(const struct receive *posted, const struct receive *arrived)
{
	return posted->src == arrived->src && posted->dst == arrived->dst &&
	       arrived->seq - posted->seq < shape_parts(&posted->shape);
}

static void receive_write(struct coll *c, struct coll_piece *p, struct hal_ref from)
{
	steps_clear(p);
	p->phase = RECEIVING;
	if (p->bytes && !p->dropped)
		step_add(c, p,
			 (struct step){.kind = STEP_WRITE,
				       .seat = p->seat,
				       .a = from,
				       .addr = p->addr,
				       .count = p->bytes});
	piece_next(c, p);
}

/* Writes a part that has arrived to the posted destination. */
static void receive_start(struct coll *c, struct coll_comm *m, struct receive *posted,
			  const struct receive *arrived)
{
	uint64_t part = arrived->seq - posted->seq, bytes = part_bytes(&posted->shape, part);
	struct shape want = posted->shape;
	struct coll_piece *p;

	want.kind = arrived->shape.kind;
	if (memcmp(&want, &arrived->shape, sizeof want)) {
		shape_fail(c, m->member[posted->src], &arrived->shape, m->member[posted->dst],
			   &posted->shape);
		return;
	}
	if (arrived->bytes != bytes) {
		engine_fail(c, "device %u sent memory that does not exist", arrived->from);
		return;
	}
	p = part_new(c, m, TAKING, posted->group, posted->src, posted->dst, arrived->seq,
		     &posted->shape);
	if (!p)
		return;
	posted->started++;
	p->seat = posted->seat;
	p->addr = posted->addr + part * COLL_PIECE_BYTES;
	p->bytes = bytes;
	if (arrived->from == c->device) {
		receive_write(c, p, (struct hal_ref){NULL, arrived->offset});
		return;
	}
	if (bytes)
		step_add(c, p,
			 (struct step){.kind = STEP_FETCH,
				       .device = arrived->from,
				       .addr = arrived->offset,
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

void receive_post(struct coll *c, struct coll_comm *m, struct receive posted)
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

static void receive_arrived(struct coll *c, struct coll_comm *m, const struct receive *arrived)
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

static void receive_done(struct coll *c, struct coll_piece *p)
{
	piece_release(c, p);
	engine_send(c, p->comm->device[p->src],
		    &(struct coll_message){.kind = MSG_RECEIVED,
					   .from_rank = p->comm->member[p->dst],
					   .key = p->comm->key,
					   .seq = p->seq,
					   .a = p->src,
					   .b = p->dst});
	group_part_done(c, p->group);
	piece_free(c, p);
}

static void part_advance(struct coll *c, struct coll_piece *p)
{
	switch (p->phase) {
	case SENDING: send_copied(c, p); break;
	case TAKING:
		receive_write(c, p, p->fetched_count ? p->fetched[0].at : (struct hal_ref){0});
		break;
	case RECEIVING: receive_done(c, p); break;
	default: break; /* SENT: it waits until the part is taken */
	}
}

bool sends_on_sent(struct coll *c, uint32_t from, struct coll_comm *m,
		   const struct coll_message *in)
{
	if (in->a >= m->nranks || in->b >= m->nranks || m->device[in->a] != from ||
	    m->device[in->b] != c->device || !dtype_bytes(in->shape.dtype) ||
	    in->shape.count > BYTES_MAX || in->bytes > COLL_PIECE_BYTES ||
	    in->c != m->member[in->b])
		return false;
	if (m->aborted[in->b]) {
		sends_to_ended(c, from, in);
		return true;
	}
	receive_arrived(c, m,
			&(struct receive){.src = in->a,
					  .dst = in->b,
					  .from = from,
					  .seq = in->seq,
					  .offset = in->offset,
					  .bytes = in->bytes,
					  .shape = in->shape});
	return true;
}

bool sends_on_received(struct coll *c, uint32_t from, struct coll_comm *m,
		       const struct coll_message *in)
{
	struct coll_piece *p = c->pieces;

	while (p && !(p->comm == m && p->phase == SENT && p->src == in->a && p->dst == in->b &&
		      p->seq == in->seq))
		p = p->next;
	if (!p || m->device[p->dst] != from)
		return false;
	send_end(c, p);
	return true;
}

/* The receiving rank has ended: the part is taken and dropped. */
void sends_to_ended(struct coll *c, uint32_t from, const struct coll_message *in)
{
	engine_send(c, from,
		    &(struct coll_message){.kind = MSG_RECEIVED,
					   .from_rank = in->c,
					   .key = in->key,
					   .seq = in->seq,
					   .a = in->a,
					   .b = in->b});
}

/* Takes and drops all parts that have arrived for the rank. */
void arrived_discard(struct coll *c, struct coll_comm *m, uint32_t rank)
{
	for (struct receive **at = &m->arrived; *at;) {
		struct receive *r = *at;

		if (m->member[r->dst] != rank) {
			at = &r->next;
			continue;
		}
		sends_to_ended(
			c, r->from,
			&(struct coll_message){
				.key = m->key, .seq = r->seq, .a = r->src, .b = r->dst, .c = rank});
		*at = r->next;
		free(r);
	}
}

void sends_abort(struct coll *c, struct coll_comm *m, uint32_t seat)
{
	for (struct sending **at = &c->sendings; *at;) {
		struct sending *o = *at;

		if (o->comm != m || o->seat != seat) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		free(o);
	}
	for (struct receive **at = &m->posted; *at;) {
		struct receive *r = *at;

		if (r->seat != seat) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		free(r);
	}
	for (struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m && !p->op &&
		    (p->phase == SENDING ? p->src == m->seats[seat].index
					 : p->phase != SENT && p->seat == seat)) {
			p->dropped = true;
			p->group = NULL;
		}
	arrived_discard(c, m, m->seats[seat].rank);
}

void sends_ended(struct coll *c, uint32_t rank)
{
	if (rank >= c->world_size || c->ended[rank])
		return;
	c->ended[rank] = true;
	for (struct coll_comm *m = c->comms; m; m = m->next)
		arrived_discard(c, m, rank);
	for (struct inbound **at = &c->early; *at;) {
		struct inbound *in = *at;

		if (in->m.kind != MSG_SENT || in->m.c != rank) {
			at = &in->next;
			continue;
		}
		sends_to_ended(c, in->from, &in->m);
		*at = in->next;
		c->early_count--;
		free(in);
	}
}

bool coll_unreceived(const struct coll *c, uint32_t *from, uint32_t *to)
{
	for (const struct coll_comm *m = c->comms; m; m = m->next)
		if (m->arrived) {
			*from = m->member[m->arrived->src];
			*to = m->member[m->arrived->dst];
			return true;
		}
	return false;
}

void receives_free(struct receive *r)
{
	while (r) {
		struct receive *next = r->next;

		free(r);
		r = next;
	}
}
