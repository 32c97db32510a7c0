/* comm.c: a rank's communicators come and go (comm.h). */
#include <stdlib.h>

#include "loop/internal.h"

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
		*c = (struct comm){.o = {OBJ_COMM, id}, .key = key, .issued = issued};
	return c;
}

void comm_drop(struct rank *r, struct comm *c)
{
	table_remove(&r->objects, c->o.id);
	free(c);
}
