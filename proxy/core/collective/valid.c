/* valid.c: checks that the engine's counts and links agree. Called before each save, as
 * core_invalid. See engine.h. */
#include "engine.h"
#include "invariant.h"

#include <stddef.h>

static uint32_t groups_of(const struct coll *c, const struct seat *s)
{
	uint32_t count = 0;

	for (const struct coll_group *g = c->groups; g; g = g->all)
		count += g->seat == s;
	return count;
}

static const char *link_invalid(const struct coll *c, const struct coll_comm *m)
{
	const struct coll_link *l = &m->link;
	uint32_t slots = 0, waiting = 0;

	WRONG(l->phase != LINK_UNDECIDED && (!c->links_allowed || m->device_count < 2),
	      "a link is between several devices, where it is allowed");
	WRONG(l->done > l->begun || l->begun > l->turns,
	      "an exchange that is done has begun, and has its turn");
	WRONG(l->turns && l->phase != LINK_USED, "exchanges are of a communicator that has a link");
	for (const struct coll_piece *p = c->pieces; p; p = p->next) {
		if (p->comm != m)
			continue;
		slots += p->result.lent;
		waiting += p->waits;
		WRONG(p->result.lent != (p->turn > 0), "a piece with a turn has memory of a link");
		WRONG(p->waits && p->turn <= l->begun, "an exchange that waits has not begun");
	}
	WRONG(slots != (uint32_t)__builtin_popcount(l->slots),
	      "memory of a link that no piece has");
	WRONG(waiting > l->turns - l->begun, "exchanges wait for their turn");
	return NULL;
}

static const char *comm_invalid(const struct coll *c, const struct coll_comm *m)
{
	WRONG(m->stopped && !m->broken, "a communicator that is stopped is broken");
	for (uint32_t i = 0; i < m->seat_count; i++) {
		const struct seat *s = &m->seats[i];

		WRONG(s->index >= m->nranks || m->member[s->index] != s->rank ||
			      m->device[s->index] != c->device,
		      "a seat is that of a member who is here");
		WRONG(s->closing && !s->in_use, "a seat that closes is taken");
		WRONG(s->aborted && s->in_use && !s->closing, "a seat that was aborted closes");
		WRONG(s->aborted && !m->aborted[s->index], "a member that has aborted is gone");
		WRONG(s->groups != groups_of(c, s), "groups of a seat that are not complete");
	}
	for (const struct op *op = m->ops; op; op = op->next) {
		WRONG(op->comm != m, "an operation is of the communicator that lists it");
		WRONG(op->next && op->next->seq <= op->seq, "operations are in their order");
	}
	return link_invalid(c, m);
}

static bool is_listed(const struct coll *c, const struct coll_comm *comm)
{
	for (const struct coll_comm *m = c->comms; m; m = m->next)
		if (m == comm)
			return true;
	return false;
}

const char *coll_invalid(const struct coll *c)
{
	const char *wrong = NULL;

	if (c->failed)
		return NULL; /* it stopped midway */
	for (const struct coll_comm *m = c->comms; m && !wrong; m = m->next)
		wrong = comm_invalid(c, m);
	for (const struct coll_piece *p = c->pieces; p && !wrong; p = p->next)
		WRONG(!is_listed(c, p->comm), "a piece is of a communicator that is here");
	return wrong;
}
