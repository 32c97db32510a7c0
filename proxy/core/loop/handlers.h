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

/* handle_memory.c */
int on_alloc(struct rank *, const struct rf_alloc *, uint32_t extra);
int on_free(struct rank *, const struct rf_free *, uint32_t extra);
int on_grant(struct rank *, const struct rf_grant *, uint32_t extra);
int on_copy(struct rank *, const struct rf_copy *, uint32_t extra);
int on_fill(struct rank *, const struct rf_fill *, uint32_t extra);

/* handle_module.c */
int on_module_data(struct rank *, const struct rf_module_data *, uint32_t extra);
int on_module_load(struct rank *, const struct rf_module_load *, uint32_t extra);
int on_module_globals(struct rank *, const struct rf_module_globals *, uint32_t extra);
int on_module_unload(struct rank *, const struct rf_handle *, uint32_t extra);
int on_function_get(struct rank *, const struct rf_name *, uint32_t extra);
int on_global_get(struct rank *, const struct rf_name *, uint32_t extra);
int on_function_names(struct rank *, const struct rf_function_names *, uint32_t extra);

/* handle_stream.c */
int on_stream_create(struct rank *, const struct rf_stream_create *, uint32_t extra);
int on_stream_destroy(struct rank *, const struct rf_handle *, uint32_t extra);
int on_stream_sync(struct rank *, const struct rf_handle *, uint32_t extra);
int on_stream_query(struct rank *, const struct rf_handle *, uint32_t extra);
int on_device_sync(struct rank *, const struct rf_record *, uint32_t extra);
int on_event_create(struct rank *, const struct rf_event_create *, uint32_t extra);
int on_event_destroy(struct rank *, const struct rf_handle *, uint32_t extra);
int on_event_record(struct rank *, const struct rf_event *, uint32_t extra);
int on_stream_wait(struct rank *, const struct rf_event *, uint32_t extra);
int on_event_sync(struct rank *, const struct rf_handle *, uint32_t extra);
int on_event_query(struct rank *, const struct rf_handle *, uint32_t extra);
int on_event_elapsed(struct rank *, const struct rf_elapsed *, uint32_t extra);
int on_launch(struct rank *, const struct rf_launch *, uint32_t extra);
int on_gemm(struct rank *, const struct rf_gemm *, uint32_t extra);
int on_gemm_aux(struct rank *, const struct rf_gemm_aux *, uint32_t extra);
int on_host_func(struct rank *, const struct rf_host_func *, uint32_t extra);
int on_host_done(struct rank *, const struct rf_host_func *, uint32_t extra);

/* handle_comm.c */
int on_comm_init(struct rank *, const struct rf_comm_init *, uint32_t extra);
int on_comm_split(struct rank *, const struct rf_comm_split *, uint32_t extra);
int on_comm_destroy(struct rank *, const struct rf_handle *, uint32_t extra);
int on_comm_abort(struct rank *, const struct rf_handle *, uint32_t extra);
int on_redop(struct rank *, const struct rf_redop *, uint32_t extra);
int on_redop_gone(struct rank *, const struct rf_handle *, uint32_t extra);

#endif
