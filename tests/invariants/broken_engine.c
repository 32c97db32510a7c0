/* broken_engine.c: the engine of collectives (broken.c). */
#include "collective/engine.c"

#include "broken.h"
#include "broken_inside.h"

#define BREAK(text, ...) BREAKS(text, check(), __VA_ARGS__)

static struct op *operation(struct coll_comm *m, uint64_t seq)
{
	struct op *op = calloc(1, sizeof *op);
	op->comm = m;
	op->seq = seq;
	op->calls = calloc(m->seat_count, sizeof *op->calls);
	op->next = m->ops;
	return m->ops = op;
}

void broken_collectives(struct coll *c, void (*check)(void))
{
	const struct shape shape = {.kind = RF_COLL_SEND, .dtype = 3, .count = 16};
	struct coll_comm *m = c->comms;
	struct seat *s = m->seats;
	struct coll_group group = {.seat = s};
	struct coll_piece *p = NULL;
	BREAK("a member aborts a communicator once", s->aborted = true; abort_seat(c, m, s));
	BREAK("a group counts its parts that are not done", group_part_done(c, &group));
	BREAK("a group that is done is listed", report_group(c, &group));
	BREAK("bytes that are taken were counted as not received",
	      p = piece_new(c, m, &shape, SENT, NULL);
	      p->partials.bytes = 64;
	      sends_on_received(c, 0, m, &(struct coll_message){.kind = MSG_RECEIVED}));
	BREAK("a communicator that is stopped is broken", m->stopped = true);
	BREAK("a seat is that of a member who is here", s->index = 1);
	BREAK("a seat that closes is taken", s->closing = true; s->in_use = false);
	BREAK("a seat that was aborted closes", s->aborted = true);
	BREAK("a member that has aborted is gone", s->aborted = s->closing = true);
	BREAK("groups of a seat that are not complete", s->groups++);
	BREAK("an operation is of the communicator that lists it", operation(m, 1)->comm = NULL);
	BREAK("operations are in their order", operation(m, 1); operation(m, 1));
	BREAK("a link is between several devices, where it is allowed", m->link.phase = LINK_ASKED);
	BREAK("an exchange that is done has begun, and has its turn", m->link.done = 1);
	BREAK("exchanges are of a communicator that has a link", m->link.turns = 1);
	BREAK("a piece with a turn has memory of a link",
	      piece_new(c, m, &shape, SENT, NULL)->turn = 1);
	BREAK("an exchange that waits has not begun",
	      piece_new(c, m, &shape, SENT, NULL)->waits = true);
	BREAK("memory of a link that no piece has", m->link.slots = 1);
	BREAK("exchanges wait for their turn", p = piece_new(c, m, &shape, SENT, NULL);
	      p->turn = p->result.lent = p->waits = m->link.slots = 1);
	BREAK("a piece is of a communicator that is here", piece_new(c, m, &shape, SENT, NULL);
	      c->pieces->comm = NULL);
}
