/* handlers.h: one handler per opcode of the request ring, for dispatch.c's table.
 *
 * A record comes from a program that we do not trust. Each handler states what makes its record
 * valid, checks all of it on our own copy, and only then acts or queues. `extra`: the bytes behind
 * the record's fixed part. What a record names wrongly is that rank's error.
 *
 * Handlers return CU_OK when the record is done with (its reply given or queued), RETRY to see the
 * same record again later, ANSWERED, or the error to answer.
 */
#ifndef RANKFOLD_HANDLERS_H
#define RANKFOLD_HANDLERS_H

#include "internal.h"

#define RETRY (-1)
#define ANSWERED (-2) /* done, and the reply has been or will be given elsewhere */

#define GET(r, type, KIND, id) ((struct type *)table_get(&(r)->objects, (id), OBJ_##KIND))

static inline struct stream *get_stream(struct rank *r, uint64_t id)
{
	struct stream *s = (struct stream *)table_get(&r->objects, id, OBJ_STREAM);
	return s && !s->doomed ? s : NULL;
}

static inline struct module *get_module(struct rank *r, uint64_t id)
{
	struct module *m = (struct module *)table_get(&r->objects, id, OBJ_MODULE);
	return m && !m->doomed ? m : NULL;
}

static inline struct function *get_function(struct rank *r, uint64_t id)
{
	struct function *f = (struct function *)table_get(&r->objects, id, OBJ_FUNCTION);
	return f && !f->module->doomed ? f : NULL;
}

struct comm;
/* handle_comm.c: a communicator that the rank has aborted is its own no more: see coll_io.left. */
void comm_left(struct rank *, struct comm *);
void rank_aborts(struct rank *); /* those that the client asks for beside the ring */

/* handle_memory.c, handle_module.c, handle_stream.c, handle_comm.c; groups: dispatch.c itself */
#define RF_OPCODE(code, lower, number, type, size, field, what, whose)                             \
	int on_##lower(struct rank *, const struct type *, uint32_t extra);
#define RF_OPCODE_GROUP(code, lower, number, type, size, field, what, whose)
#include "opcodes.def"

#endif
