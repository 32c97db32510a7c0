/* comm.c: creates and removes the handles of a rank's communicators (comm.h). */
#include <stdlib.h>

#include "rank/rank_parts.h"

struct comm *comm_new(struct rank *r, uint64_t id)
{
	struct comm *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->o = (struct object){OBJ_COMM, id};
	if (id < RF_HANDLE_FIRST || !table_put(&r->objects, &c->o)) {
		free(c);
		return NULL;
	}
	return c;
}

struct comm *comm_restored(uint64_t id, uint64_t key, uint64_t issued)
{
	struct comm *c = calloc(1, sizeof *c);
	if (c)
		*c = (struct comm){
			.o = {OBJ_COMM, id}, .key = key, .issued = issued, .aborted = !key};
	return c;
}

void comm_drop(struct rank *r, struct comm *c)
{
	ring_comm_error(r, c->o.id, 0);
	table_remove(&r->objects, c->o.id);
	free(c);
}

void comm_break(struct rank *r, const struct comm *c)
{
	uint64_t keys[COLL_KEYS_MAX];
	uint32_t n = coll_keys(r->world->coll, r->rank, c->o.id, true, keys);
	for (uint32_t i = 0; i < n; i++)
		barrier_broken(r->world->barrier, r->rank, keys[i]);
}
