/* engine.c: the highest file of the engine: dispatches messages, handles the loop's calls, and
 * reports completions. See engine.h.
 *
 * Rules: an impossible message fails the job; completions are reported only from engine_pump.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define EARLY_MAX 65536u /* messages kept for communicators that are not known yet */

/* ---- messages -------------------------------------------------------------------------- */

/* Keeps a message for a communicator that is not known here yet. */
static bool keep_early(struct coll *c, uint32_t from, const struct coll_message *m)
{
	struct inbound **end = &c->early, *in;

	if ((m->kind != MSG_HELLO && m->kind != MSG_READY && m->kind != MSG_SENT &&
	     m->kind != MSG_ABORT && m->kind != MSG_NO_MEMBERS && m->kind != MSG_LINK) ||
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

static void dispatch_message(struct coll *c, uint32_t from, const struct coll_message *m)
{
	struct coll_comm *comm = comm_by_key(c, m->key);
	bool good = false;

	if (m->kind == MSG_JOIN) {
		comm_on_join(c, from, m);
		return;
	}
	if (m->kind == MSG_MADE) {
		comm_on_made(c, from, m);
		return;
	}
	if (m->kind == MSG_UNJOIN) {
		comm_on_unjoin(c, from, m);
		return;
	}
	if (m->kind == MSG_SENT && m->c < c->world_size && c->ended[m->c]) {
		sends_to_ended(c, from, m); /* its communicator may have been destroyed too */
		return;
	}
	if (!comm) {
		good = abort_unknown(c, from, m) || keep_early(c, from, m);
	} else if (!(good = abort_on_message(c, from, comm, m))) {
		switch (m->kind) {
		case MSG_HELLO: good = op_on_hello(c, comm, m); break;
		case MSG_READY: good = piece_on_ready(c, from, comm, m); break;
		case MSG_RESULT: good = piece_on_result(c, from, comm, m); break;
		case MSG_READ: good = piece_on_read(c, from, comm, m); break;
		case MSG_SENT: good = sends_on_sent(c, from, comm, m); break;
		case MSG_RECEIVED: good = sends_on_received(c, from, comm, m); break;
		case MSG_GO: good = op_on_go(from, comm, m); break;
		case MSG_LINK: good = c->links_allowed && link_on_message(c, from, comm, m); break;
		}
	}
	if (!good)
		engine_fail(c, "device %u sent an invalid message (kind %u, sequence %llu)", from,
			    m->kind, (unsigned long long)m->seq);
	else if (comm)
		comm_run(c, comm);
}

static void report_group(struct coll *c, struct coll_group *g)
{
	struct coll_group **at = &c->groups;

	while (*at && *at != g)
		at = &(*at)->all;
	INVARIANT(*at && g->seat->groups, "a group that is done is listed");
	*at = g->all;
	c->done = g->next;
	g->seat->groups--;
	c->io.completed(c->io.arg, g->rank, g->comm, g->ticket, g->error);
	free(g);
}

/* Dispatches messages to the own device and reports completions, until none is left. It is the only
 * caller of io.completed, and never runs inside itself. */
static void engine_pump(struct coll *c)
{
	if (c->pumping)
		return;
	c->pumping = true;
	while (!c->failed && (c->inbox || c->done)) {
		struct inbound *in = c->inbox;
		struct coll_group *g = c->done;

		if (in) {
			c->inbox = in->next;
			if (!c->inbox)
				c->inbox_end = &c->inbox;
			dispatch_message(c, in->from, &in->m);
			free(in);
			continue;
		}
		report_group(c, g);
	}
	for (struct coll_comm *m = c->comms; m && !c->failed; m = m->next) {
		op_sweep(m, c->device);
		comm_run(c, m);
	}
	if (!c->failed)
		abort_turn(c);
	c->pumping = false;
	if (!c->failed && (c->inbox || c->done)) {
		engine_pump(c);
		return;
	}
	comm_sweep(c);
	if (!c->failed)
		abort_sweep(c);
}

void coll_receive(struct coll *c, uint32_t from, const struct peer_message *bytes)
{
	struct coll_message m;

	if (c->failed)
		return;
	memcpy(&m, bytes->bytes, sizeof m);
	if (from >= c->device_count || from == c->device) {
		engine_fail(c, "a message from device %u, which is not a peer", from);
		return;
	}
	dispatch_message(c, from, &m);
	engine_pump(c);
}

/* ---- calls by the loop ---------------------------------------------------------------------- */

void coll_init(struct coll *c, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
	       uint32_t nranks, uint32_t comm_rank)
{
	comm_init(c, rank, comm, unique_id, nranks, comm_rank);
	engine_pump(c);
}

void coll_split(struct coll *c, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
		int32_t key)
{
	comm_split(c, rank, parent, comm, color, key);
	engine_pump(c);
}

void coll_destroy(struct coll *c, uint32_t rank, uint64_t comm)
{
	comm_close(c, rank, comm);
	engine_pump(c);
}

void coll_abort(struct coll *c, uint32_t rank, uint64_t comm)
{
	struct coll_comm *m;
	struct seat *s = comm_seat(c, rank, comm, &m);

	if (s)
		abort_seat(c, m, s);
	else
		comm_unjoin(c, rank, comm);
	engine_pump(c);
}

int coll_restore(struct coll *c, uint32_t rank, const uint8_t *in, uint64_t bytes)
{
	int error = comm_restore(c, rank, in, bytes);

	if (!error)
		engine_pump(c);
	return error;
}

int coll_submit(struct coll *c, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
		uint32_t count, uint64_t ticket)
{
	int error = op_submit(c, rank, comm, ops, count, ticket);

	if (!error)
		engine_pump(c);
	return error;
}

void coll_io_done(struct coll *c, uint64_t token, int error)
{
	step_done(c, token, error);
	engine_pump(c);
}

void coll_fetched(struct coll *c, uint64_t token, struct hal_ref place, int error)
{
	step_fetched(c, token, place, error);
	engine_pump(c);
}

bool coll_links_turn(struct coll *c)
{
	bool moved = false;

	for (struct coll_comm *m = c->comms; m && !c->failed; m = m->next)
		moved |= link_turn(c, m);
	if (moved)
		engine_pump(c);
	return moved;
}

void coll_links_end(struct coll *c)
{
	c->links_ended = true;
	for (struct coll_comm *m = c->comms; m; m = m->next)
		if (m->link.at)
			c->io.link_cancel(c->io.arg, m->link.at);
}

void coll_allow_links(struct coll *c) { c->links_allowed = true; }

uint64_t coll_links_bytes(const struct coll *c) { return c->links_bytes; }

void coll_ended(struct coll *c, uint32_t rank)
{
	sends_ended(c, rank);
	engine_pump(c);
}

/* ---- beginning and end ----------------------------------------------------------------- */

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

void coll_free(struct coll *c)
{
	while (c->pieces)
		piece_free(c, c->pieces);
	while (c->sendings) {
		struct sending *o = c->sendings;

		c->sendings = o->next;
		free(o);
	}
	free_inbound(c->inbox);
	free_inbound(c->early);
	while (c->groups) {
		struct coll_group *g = c->groups;

		c->groups = g->all;
		free(g);
	}
	comm_free_all(c);
	blocks_release(c);
	free(c);
}
