/* handlers.h: one handler per opcode of the request ring, for dispatch.c's table.
 *
 * A record comes from an untrusted program. Each handler defines when its record is valid, checks
 * all of it on the proxy's own copy, and only then acts or queues. `extra`: the number of bytes
 * after the record's fixed part. A wrong name in a record is an error of that rank.
 *
 * Handlers return CU_OK when the record is finished (its reply is sent or queued), RETRY to get the
 * same record again later, ANSWERED, or the error to reply.
 */
#ifndef RANKFOLD_HANDLERS_H
#define RANKFOLD_HANDLERS_H

#include <stdint.h>

#include "channel.h"
#include "queue/stream.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "rank/table.h"

#define RETRY (-1)
#define ANSWERED (-2) /* finished, and the reply is sent elsewhere, now or later */

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
/* handle_comm.c: the rank has left a communicator that it aborted: see coll_io.abort_complete. */
void comm_abort_complete(struct rank *, struct comm *);
/* An abort that the client requests outside of the ring. */
void comm_abort_now(struct rank *, uint64_t id, uint16_t slot);
/* handle_stream.c: the time between two events, or why there is none. */
int events_elapsed(struct rank *, struct rf_events, float *milliseconds);

/* handle_memory.c, handle_module.c, handle_driver.c, handle_stream.c, handle_comm.c;
 * dispatch.c handles groups itself */
#define RF_OPCODE(code, lower, number, type, size, field, what, whose)                             \
	int on_##lower(struct rank *, const struct type *, uint32_t extra);
#define RF_OPCODE_GROUP(code, lower, number, type, size, field, what, whose)
#include "opcodes.def"

#endif
