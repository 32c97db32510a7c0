/* saved.c: the contents of a rank's saved state: one row for each kind of record.
 *
 * A row specifies the minimum size of a record and how to write and restore it. Kinds are written
 * in the order of the rows, and read in the order in which the state has them: so a row comes after
 * those that it refers to.
 *
 * The state comes from an image that other processes have held: each record is checked before use.
 * Objects that a restore creates are either in the rank's tables or freed: after a failure the rank
 * is detached, which frees the rest.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "codes.h"
#include "loop/intake.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "loop/saved.h"
#include "loop/state.h"
#include "queue/event.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/comm.h"
#include "rank/fault.h"
#include "rank/module.h"
#include "rank/rank.h"

#define COMMS_BYTES_MAX (64ull << 20)

/* Puts the object into the rank's table. On failure it frees the object and returns the error. */
static int keep_object(struct rank *r, struct object *o)
{
	if (table_put(&r->objects, o))
		return CU_OK;
	bool twice = table_has(&r->objects, o->id);
	object_free(o);
	return twice ? CU_INVALID_VALUE : CU_OUT_OF_MEMORY;
}

/* ---- the rank itself ---- */

static bool save_rank(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	const struct rank *r = w->rank;
	struct state_rank *s = saved_put(w, kind, 0);
	(void)none;
	if (!s)
		return false;
	s->capacity_chunks = r->proxy->device.memory.total;
	s->kernels = r->counters.kernels;
	s->collectives = r->counters.collectives;
	s->records = r->intake.records;
	s->switches = r->counters.switches;
	s->squashed = r->counters.squashed;
	s->not_swapped = r->memory.counted.not_swapped;
	s->copies = r->memory.counted.copies;
	s->unforeseen = r->memory.counted.unforeseen;
	s->prepared = (uint32_t)r->memory.counted.prepared;
	s->tail = r->ring.tail.bytes;
	s->seq = r->ring.tail.seq;
	s->rank = r->rank;
	s->world_size = r->job->world.size;
	s->async_error = r->async_error;
	snprintf(s->error_text, sizeof s->error_text, "%.*s", RF_FAULT_BYTES - 1, r->error_text);
	return true;
}

static int restore_rank(struct rank *r, const void *record, uint64_t now)
{
	const struct state_rank *s = record;
	(void)now;
	if (s->rank != r->rank || s->world_size != r->job->world.size ||
	    s->tail != r->ring.tail.bytes)
		return CU_INVALID_VALUE;
	ring_from(r, s->seq);
	intake_from(r, s->records);
	fault_from(r, s->async_error, s->error_text);
	rank_count_from(r, (struct rank_counters){.kernels = s->kernels,
						  .collectives = s->collectives,
						  .switches = s->switches,
						  .squashed = s->squashed});
	memory_counts_from(&r->memory, (struct memory_counters){.not_swapped = s->not_swapped,
								.copies = s->copies,
								.unforeseen = s->unforeseen,
								.prepared = s->prepared});
	return CU_OK;
}

/* ---- memory ---- */

static bool save_buffers(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	(void)none;
	for (uint32_t i = 0; i < w->rank->memory.buffer_count; i++) {
		const struct buffer *b = &w->rank->memory.buffers[i];
		struct state_buffer *s = saved_put(w, kind, 0);
		if (!s)
			return false;
		s->addr = b->addr;
		s->bytes = b->bytes;
		s->call_site = b->call_site;
		s->stable = b->stable;
		s->flags = b->joined ? RF_ALLOC_JOINED : 0;
	}
	return true;
}

static int restore_buffer(struct rank *r, const void *record, uint64_t now)
{
	const struct state_buffer *s = record;
	struct rf_alloc a = {.addr = s->addr,
			     .bytes = s->bytes,
			     .call_site = s->call_site,
			     .stable = s->stable,
			     .flags = s->flags};
	(void)now;
	return memory_alloc(&r->memory, &a);
}

static bool save_chunks(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	struct rank_memory *m = &w->rank->memory;
	(void)none;
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct rank_memory *other = memory_image_owner(m, m->live[i]);
		if (!other && !m->pages[m->live[i]].in_image)
			continue;
		struct state_chunk *s = saved_put(w, kind, 0);
		if (!s)
			return false;
		s->chunk = m->live[i];
		s->image_owner = other ? other->rank : m->rank;
		struct version key = memory_key(m, m->live[i]);
		s->key[0] = key.a;
		s->key[1] = key.b;
		w->elsewhere += other != NULL;
	}
	return true;
}

static int restore_chunk(struct rank *r, const void *record, uint64_t now)
{
	const struct state_chunk *s = record;
	(void)now;
	if (s->chunk >= HEAP_PAGES || !r->memory.pages[s->chunk].buffers ||
	    s->image_owner >= r->job->world.size)
		return CU_INVALID_VALUE;
	memory_image_holds(&r->memory, (uint32_t)s->chunk);
	/* Unknown until restore_versions sets it; in any case not zeros. */
	content_unknown(&r->memory, RF_DEV_BASE + s->chunk * RF_CHUNK_BYTES, RF_CHUNK_BYTES);
	return CU_OK;
}

static bool save_versions(struct writer *w, const struct saved_kind *kind,
			  const struct object *none)
{
	const struct versions *v = &w->rank->memory.versions;
	struct state_bytes *s = saved_put(w, kind, versions_size(v));
	(void)none;
	if (s) {
		s->bytes = versions_size(v);
		versions_save(v, s + 1);
	}
	return s;
}

/* Runs after the buffers, whose content begins as zeros. */
static int restore_versions(struct rank *r, const void *record, uint64_t now)
{
	const struct state_bytes *s = record;
	(void)now;
	if (s->bytes > s->r.bytes - sizeof *s)
		return CU_INVALID_VALUE;
	int error = versions_load(&r->memory.versions, s + 1, s->bytes);
	return error == ENOMEM ? CU_OUT_OF_MEMORY : error ? CU_INVALID_VALUE : CU_OK;
}

/* ---- streams and events ---- */

static bool save_stream(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	const struct stream *from = (const void *)o;
	if (o->id < RF_HANDLE_FIRST)
		return true; /* every rank has it */
	struct state_stream *s = saved_put(w, kind, 0);
	if (!s)
		return false;
	s->id = o->id;
	s->flags = from->flags;
	s->priority = from->priority;
	return true;
}

static int restore_stream(struct rank *r, const void *record, uint64_t now)
{
	const struct state_stream *s = record;
	(void)now;
	if (r->queue->stream_count >= STREAMS_MAX || table_has(&r->objects, s->id))
		return CU_INVALID_VALUE;
	return stream_new(r, s->id, s->flags, s->priority) ? CU_OK : CU_OUT_OF_MEMORY;
}

static bool save_event(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	const struct event *from = (const void *)o;
	struct state_event *s = saved_put(w, kind, 0);
	if (!s)
		return false;
	s->id = o->id;
	s->recorded = from->last != NULL; /* at a cut every event record is complete */
	s->age_ns = from->last ? w->now_ns - from->last->time_ns : 0;
	s->flags = from->flags;
	return true;
}

static int restore_event(struct rank *r, const void *record, uint64_t now)
{
	const struct state_event *s = record;
	struct event *e = event_new(s->id, s->flags);
	if (!e)
		return CU_OUT_OF_MEMORY;
	if (s->recorded && !event_from(e, now - s->age_ns)) {
		object_free(&e->o);
		return CU_OUT_OF_MEMORY;
	}
	return keep_object(r, &e->o);
}

/* ---- modules and functions ---- */

static bool save_module(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	const struct module *m = (const void *)o;
	uint64_t extra = m->loaded ? 0 : m->image_bytes;
	if (m->doomed)
		return true; /* unloaded, and kept only for an open request */
	struct state_module *s = saved_put(w, kind, extra);
	if (!s)
		return false;
	s->id = o->id;
	s->globals_addr = m->globals_addr;
	s->image_bytes = extra;
	memcpy(s->hash, m->hash, sizeof m->hash);
	if (extra)
		memcpy(s + 1, m->image, extra);
	return true;
}

static int restore_module(struct rank *r, const void *record, uint64_t now)
{
	const struct state_module *s = record;
	(void)now;
	if (s->image_bytes > s->r.bytes - sizeof *s || s->hash[64])
		return CU_INVALID_VALUE;
	struct module *m = module_restored(s->id, s->hash, s->globals_addr, s + 1, s->image_bytes);
	if (!m)
		return CU_OUT_OF_MEMORY;
	int error = keep_object(r, &m->o);
	if (error)
		return error;
	module_arrives(r, m);
	if (!m->hash[0])
		return CU_OK; /* it is still arriving */
	return python_request_module(r, m, 0, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;
}

static bool save_function(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	const struct function *from = (const void *)o;
	uint32_t bytes = (uint32_t)strlen(from->name);
	if (from->module->doomed)
		return true;
	struct state_function *s = saved_put(w, kind, bytes);
	if (!s)
		return false;
	s->id = o->id;
	s->module = from->module->o.id;
	s->name_bytes = bytes;
	s->param_bytes = from->param_bytes;
	s->max_threads = from->max_threads;
	s->static_shared_bytes = from->static_shared_bytes;
	memcpy(s + 1, from->name, bytes);
	return true;
}

static int restore_function(struct rank *r, const void *record, uint64_t now)
{
	const struct state_function *s = record;
	struct module *m = (struct module *)table_get(&r->objects, s->module, OBJ_MODULE);
	(void)now;
	if (!m || s->name_bytes > s->r.bytes - sizeof *s)
		return CU_INVALID_VALUE;
	struct function *f = function_new(s->id, m, (const char *)(s + 1), s->name_bytes);
	if (!f)
		return CU_OUT_OF_MEMORY;
	function_from(f, s->param_bytes, s->max_threads, s->static_shared_bytes);
	int error = keep_object(r, &f->o);
	if (error)
		return error;
	return python_request_function(r, f, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;
}

/* ---- communicators ---- */

#define COMM_ABORTED UINT64_MAX /* instead of the number of rounds, with key 0 */

/* Saves the engine's communicators, before the handles. Fails if collectives are in progress, which
 * no state can contain. */
static bool save_comms(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	struct rank *r = w->rank;
	uint64_t bytes = 0;
	uint8_t *saved = NULL;
	(void)none;
	for (uint64_t capacity = 4096; !bytes && capacity <= COMMS_BYTES_MAX; capacity *= 4) {
		free(saved);
		saved = malloc(capacity);
		bytes = saved ? coll_save(r->job->world.coll, r->rank, saved, capacity) : 0;
	}
	struct state_bytes *s = bytes ? saved_put(w, kind, bytes) : NULL;
	if (s) {
		s->bytes = bytes;
		memcpy(s + 1, saved, bytes);
	}
	free(saved);
	return s;
}

static int restore_comms(struct rank *r, const void *record, uint64_t now)
{
	const struct state_bytes *s = record;
	(void)now;
	if (s->bytes > s->r.bytes - sizeof *s)
		return CU_INVALID_VALUE;
	if (!coll_restore(r->job->world.coll, r->rank, (const uint8_t *)(s + 1), s->bytes))
		return CU_OK;
	return r->job->world.state == PROXY_JOB_FAILED ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
}

static bool save_comm(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	const struct comm *from = (const void *)o;
	struct state_comm *s = saved_put(w, kind, 0);
	if (!s)
		return false;
	s->id = o->id;
	s->key = from->key;
	s->issued = from->issued;
	if (from->aborted) {
		s->key = 0;
		s->issued = COMM_ABORTED;
	}
	return true;
}

static int restore_comm(struct rank *r, const void *record, uint64_t now)
{
	const struct state_comm *s = record;
	uint32_t members[RANKS_MAX];
	uint64_t key = 0;
	uint32_t n = coll_members(r->job->world.coll, r->rank, s->id, members, RANKS_MAX, &key);
	(void)now;
	bool aborted = !n && !s->key && s->issued == COMM_ABORTED;
	if (!aborted)
		if (!n || key != s->key)
			return CU_INVALID_VALUE;
	struct comm *c = comm_restored(s->id, s->key, s->issued);
	if (!c)
		return CU_OUT_OF_MEMORY;
	int error = keep_object(r, &c->o);
	if (error)
		return error;
	if (aborted)
		return CU_OK; /* requests that name it may still arrive */
	barrier_comm(r->job->world.barrier, r->rank, s->key, members, n, s->issued);
	comm_break(r, c);
	return CU_OK;
}

static bool save_redop(struct writer *w, const struct saved_kind *kind, const struct object *o)
{
	struct state_redop *s = saved_put(w, kind, 0);
	if (s)
		s->id = o->id;
	return s;
}

static int restore_redop(struct rank *r, const void *record, uint64_t now)
{
	const struct state_redop *s = record;
	struct object *o = calloc(1, sizeof *o);
	(void)now;
	if (!o)
		return CU_OUT_OF_MEMORY;
	*o = (struct object){OBJ_REDOP, s->id};
	return keep_object(r, o);
}

/* ---- alarms ---- */

static bool save_alarms(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	const struct job_crosscheck *g = &w->rank->job->crosscheck;
	(void)none;
	for (uint32_t i = 0; i < g->count; i++) {
		struct state_alarm *s = saved_put(w, kind, 0);
		if (!s)
			return false;
		memcpy(s->text, g->alarms[i], sizeof s->text);
	}
	return true;
}

static int restore_alarm(struct rank *r, const void *record, uint64_t now)
{
	const struct state_alarm *s = record;
	(void)now;
	if (s->text[sizeof s->text - 1])
		return CU_INVALID_VALUE;
	crosscheck_restore_alarm(r->job, s->text);
	return CU_OK;
}

/* ---- the end ---- */

static bool save_end(struct writer *w, const struct saved_kind *kind, const struct object *none)
{
	(void)none;
	return saved_put(w, kind, 0);
}

static int restore_end(struct rank *r, const void *record, uint64_t now)
{
	(void)r, (void)record, (void)now;
	return CU_OK;
}

#define ROW(name, type, object, save, restore)                                                     \
	{STATE_##name, sizeof(struct type), object, save, restore}
const struct saved_kind saved_kinds[] = {
	ROW(RANK, state_rank, 0, save_rank, restore_rank),
	ROW(BUFFER, state_buffer, 0, save_buffers, restore_buffer),
	ROW(CHUNK, state_chunk, 0, save_chunks, restore_chunk),
	ROW(VERSIONS, state_bytes, 0, save_versions, restore_versions),
	ROW(COMMS, state_bytes, 0, save_comms, restore_comms),
	ROW(STREAM, state_stream, OBJ_STREAM, save_stream, restore_stream),
	ROW(EVENT, state_event, OBJ_EVENT, save_event, restore_event),
	ROW(MODULE, state_module, OBJ_MODULE, save_module, restore_module),
	ROW(FUNCTION, state_function, OBJ_FUNCTION, save_function, restore_function),
	ROW(COMM, state_comm, OBJ_COMM, save_comm, restore_comm),
	ROW(REDOP, state_redop, OBJ_REDOP, save_redop, restore_redop),
	ROW(ALARM, state_alarm, 0, save_alarms, restore_alarm),
	ROW(END, rf_record, 0, save_end, restore_end),
};
#undef ROW
const uint32_t saved_kind_count = sizeof saved_kinds / sizeof *saved_kinds;

#define SAVED(name, number, type, size) +1
_Static_assert(sizeof saved_kinds / sizeof *saved_kinds == 0
#include "saved.def"
	       ,
	       "a row for each record of saved.def");
#undef SAVED
