/* state.c: a rank's state, to its image and back: what makes it movable between proxies.
 *
 * Written only at a cut, when nothing of the rank is queued, in flight or unanswered; so the state
 * is: live buffers, which chunks have content, and the handles with what they hold. It is a
 * sequence of records in the ring's own framing, checked by the same rules when it comes back. The
 * memory itself lies in the same image by heap offset. All numbers little-endian.
 *
 * A clock does not travel: an event's time is saved as its age, and it is as old when the rank goes
 * on. So the time between two events leaves out how long the rank was nowhere.
 * The records are in saved.h.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "saved.h"

#define COMMS_BYTES_MAX (64ull << 20)

static uint64_t checksum(const uint8_t *data, uint64_t bytes)
{
	uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
	for (uint64_t i = 0; i < bytes; i++)
		h = (h ^ data[i]) * 0x100000001b3ull;
	return h;
}

/* ---- saving ---- */

struct writer {
	uint8_t *at, *end;
	uint64_t now_ns;
};

/* Room for a record and `extra` bytes behind it, zeroed; NULL when the image is full. */
static void *put(struct writer *w, uint16_t opcode, uint64_t bytes, uint64_t extra)
{
	uint64_t all = (bytes + extra + RF_RECORD_ALIGN - 1) & ~(uint64_t)(RF_RECORD_ALIGN - 1);
	if (all > UINT32_MAX || all > (uint64_t)(w->end - w->at))
		return NULL;
	struct rf_record *r = (void *)w->at;
	memset(r, 0, all);
	r->bytes = (uint32_t)all;
	r->opcode = opcode;
	w->at += all;
	return r;
}
#define PUT(w, code, type, extra)                                                                  \
	((struct type *)put((w), STATE_##code, sizeof(struct type), (extra)))

static bool put_memory(struct writer *w, struct rank *r)
{
	for (uint32_t i = 0; i < r->memory.buffer_count; i++) {
		const struct buffer *b = &r->memory.buffers[i];
		struct state_buffer *s = PUT(w, BUFFER, state_buffer, 0);
		if (!s)
			return false;
		s->addr = b->addr;
		s->bytes = b->bytes;
		s->call_site = b->call_site;
		s->stable = b->stable;
	}
	for (uint32_t i = 0; i < r->memory.live_count; i++) {
		if (!r->memory.pages[r->memory.live[i]].in_image)
			continue;
		struct state_chunk *s = PUT(w, CHUNK, state_chunk, 0);
		if (!s)
			return false;
		s->chunk = r->memory.live[i];
	}
	return true;
}

static bool put_module(struct writer *w, const struct module *m)
{
	uint64_t extra = m->loaded ? 0 : m->image_bytes;
	struct state_module *s = PUT(w, MODULE, state_module, extra);
	if (!s)
		return false;
	s->id = m->o.id;
	s->globals_addr = m->globals_addr;
	s->image_bytes = extra;
	memcpy(s->hash, m->hash, sizeof m->hash);
	if (extra)
		memcpy(s + 1, m->image, extra);
	return true;
}

/* Unloaded, and only kept for the answer to a question. */
static bool unloaded(const struct object *o)
{
	return (o->kind == OBJ_MODULE && ((const struct module *)o)->doomed) ||
	       (o->kind == OBJ_FUNCTION && ((const struct function *)o)->module->doomed);
}

static bool put_object(struct writer *w, const struct object *o)
{
	switch (o->kind) {
	case OBJ_STREAM: {
		const struct stream *from = (const void *)o;
		struct state_stream *s = o->id < RF_HANDLE_FIRST ? NULL
								 : PUT(w, STREAM, state_stream, 0);
		if (s) {
			s->id = o->id;
			s->flags = from->flags;
			s->priority = from->priority;
		}
		return s || o->id < RF_HANDLE_FIRST;
	}
	case OBJ_EVENT: {
		const struct event *from = (const void *)o;
		struct state_event *s = PUT(w, EVENT, state_event, 0);
		if (s) {
			s->id = o->id;
			s->recorded = from->last != NULL; /* at a cut every record is over */
			s->age_ns = from->last ? w->now_ns - from->last->time_ns : 0;
			s->flags = from->flags;
		}
		return s;
	}
	case OBJ_MODULE: return put_module(w, (const void *)o);
	case OBJ_FUNCTION: {
		const struct function *from = (const void *)o;
		uint32_t bytes = (uint32_t)strlen(from->name);
		struct state_function *s = PUT(w, FUNCTION, state_function, bytes);
		if (s) {
			s->id = o->id;
			s->module = from->module->o.id;
			s->name_bytes = bytes;
			s->param_bytes = from->param_bytes;
			s->max_threads = from->max_threads;
			s->static_shared_bytes = from->static_shared_bytes;
			memcpy(s + 1, from->name, bytes);
		}
		return s;
	}
	case OBJ_COMM: {
		const struct comm *from = (const void *)o;
		struct state_comm *s = PUT(w, COMM, state_comm, 0);
		if (s) {
			s->id = o->id;
			s->key = from->key;
			s->issued = from->issued;
		}
		return s;
	}
	case OBJ_REDOP: {
		struct state_redop *s = PUT(w, REDOP, state_redop, 0);
		if (s)
			s->id = o->id;
		return s;
	}
	}
	return false;
}

static bool put_objects(struct writer *w, struct rank *r)
{
	/* Modules before their functions, the engine's communicators before ours. */
	static const enum object_kind order[] = {OBJ_STREAM,   OBJ_EVENT, OBJ_MODULE,
						 OBJ_FUNCTION, OBJ_COMM,  OBJ_REDOP};
	uint32_t count;
	bool good = true;
	struct object **all = table_sorted(&r->objects, &count);
	for (size_t k = 0; all && k < sizeof order / sizeof *order; k++)
		for (uint32_t i = 0; i < count && good; i++)
			if (all[i]->kind == order[k] && !unloaded(all[i]))
				good = put_object(w, all[i]);
	free(all);
	return all && good;
}

/* None: collectives are under way, which no state can hold. */
static bool put_comms(struct writer *w, struct rank *r)
{
	uint64_t bytes = 0;
	uint8_t *saved = NULL;
	for (uint64_t room = 4096; !bytes && room <= COMMS_BYTES_MAX; room *= 4) {
		free(saved);
		saved = malloc(room);
		bytes = saved ? coll_save(r->job->coll, r->rank, saved, room) : 0;
	}
	struct state_bytes *s = bytes ? PUT(w, COMMS, state_bytes, bytes) : NULL;
	if (s) {
		s->bytes = bytes;
		memcpy(s + 1, saved, bytes);
	}
	free(saved);
	return s;
}

uint64_t state_save(struct rank *r, char *error, uint32_t error_bytes)
{
	struct state_header *h = (void *)(r->memory.image + STATE_OFFSET);
	uint8_t *first = (uint8_t *)(h + 1);
	struct writer w = {first, r->memory.image + STATE_OFFSET + STATE_BYTES_MAX, now_ns()};
	struct state_rank *s = PUT(&w, RANK, state_rank, 0);
	h->magic = 0; /* not valid until all is written */
	if (s) {
		s->capacity_chunks = r->proxy->memory.chunks_total;
		s->kernels = r->kernels;
		s->collectives = r->collectives;
		s->records = r->records;
		s->switches = r->switches;
		s->tail = r->tail.bytes;
		s->seq = r->tail.seq;
		s->rank = r->rank;
		s->world_size = r->job->world_size;
		s->async_error = r->async_error;
		memcpy(s->error_text, r->error_text, sizeof s->error_text);
	}
	if (!s || !put_memory(&w, r) || !put_comms(&w, r) || !put_objects(&w, r) ||
	    !put(&w, STATE_END, sizeof(struct rf_record), 0)) {
		snprintf(error, error_bytes, "rank %u: its state cannot be saved: %s", r->rank,
			 coll_busy(r->job->coll) ? "collectives are under way"
						 : "it does not fit the image");
		return 0;
	}
	h->version = STATE_VERSION;
	h->bytes = (uint64_t)(w.at - first);
	h->checksum = checksum(first, h->bytes);
	h->magic = STATE_MAGIC;
	return sizeof *h + h->bytes;
}

void state_void(struct rank *r)
{
	((struct state_header *)(void *)(r->memory.image + STATE_OFFSET))->magic = 0;
}

/* ---- restoring ---- */

static bool get_chunk(struct rank *r, const struct state_chunk *s)
{
	if (s->chunk >= HEAP_PAGES || !r->memory.pages[s->chunk].buffers)
		return false;
	r->memory.pages[s->chunk].in_image = true;
	return true;
}

static bool get_buffer(struct rank *r, const struct state_buffer *s)
{
	struct rf_alloc a = {
		.addr = s->addr, .bytes = s->bytes, .call_site = s->call_site, .stable = s->stable};
	return memory_alloc(&r->memory, &a) == CU_OK;
}

static bool get_event(struct rank *r, const struct state_event *s, uint64_t now)
{
	struct event *e = calloc(1, sizeof *e);
	if (!e)
		return false;
	e->o = (struct object){OBJ_EVENT, s->id};
	e->flags = s->flags;
	if (s->recorded && !(e->last = mark_new()))
		return false;
	if (e->last) {
		e->last->over = true;
		e->last->time_ns = now - s->age_ns;
	}
	return table_put(&r->objects, &e->o);
}

static bool get_module(struct rank *r, const struct state_module *s)
{
	struct module *m = calloc(1, sizeof *m);
	if (!m || s->image_bytes > s->r.bytes - sizeof *s || s->hash[64])
		return false;
	m->o = (struct object){OBJ_MODULE, s->id};
	m->globals_addr = s->globals_addr;
	memcpy(m->hash, s->hash, sizeof m->hash);
	if (!table_put(&r->objects, &m->o))
		return false;
	if (s->image_bytes) {
		m->image = malloc(s->image_bytes);
		if (!m->image)
			return false;
		memcpy(m->image, s + 1, s->image_bytes);
		m->image_bytes = m->image_room = s->image_bytes;
		r->arriving += s->image_bytes;
	} else if (m->hash[0]) {
		m->loading = ask_module(r, m, 0, 0);
		return m->loading;
	}
	return true;
}

static bool get_function(struct rank *r, const struct state_function *s)
{
	struct module *m = (struct module *)table_get(&r->objects, s->module, OBJ_MODULE);
	struct function *f = calloc(1, sizeof *f);
	if (!f || !m || s->name_bytes > s->r.bytes - sizeof *s)
		return false;
	f->o = (struct object){OBJ_FUNCTION, s->id};
	f->module = m;
	f->param_bytes = s->param_bytes; /* launches are checked before it is compiled again */
	f->max_threads = s->max_threads;
	f->static_shared_bytes = s->static_shared_bytes;
	f->name = strndup((const char *)(s + 1), s->name_bytes);
	if (!f->name || !table_put(&r->objects, &f->o))
		return false;
	return ask_function(r, f, 0, 0);
}

static bool get_comm(struct rank *r, const struct state_comm *s)
{
	uint32_t members[RANKS_MAX];
	uint64_t key = 0;
	uint32_t n = coll_members(r->job->coll, r->rank, s->id, members, RANKS_MAX, &key);
	struct comm *c = calloc(1, sizeof *c);
	if (!c || !n || key != s->key)
		return false;
	*c = (struct comm){.o = {OBJ_COMM, s->id}, .key = s->key, .issued = s->issued};
	if (!table_put(&r->objects, &c->o))
		return false;
	barrier_comm(r->job->barrier, r->rank, s->key, members, n, s->issued);
	return true;
}

static bool get_redop(struct rank *r, const struct state_redop *s)
{
	struct object *o = calloc(1, sizeof *o);
	if (!o)
		return false;
	*o = (struct object){OBJ_REDOP, s->id};
	return table_put(&r->objects, o);
}

static bool get_rank(struct rank *r, const struct state_rank *s)
{
	if (s->rank != r->rank || s->world_size != r->job->world_size || s->tail != r->tail.bytes)
		return false;
	r->tail.seq = s->seq;
	r->kernels = s->kernels;
	r->collectives = s->collectives;
	r->records = s->records;
	r->switches = s->switches;
	r->async_error = s->async_error;
	memcpy(r->error_text, s->error_text, sizeof r->error_text - 1);
	return true;
}

static bool get(struct rank *r, const struct rf_record *record, uint64_t now)
{
	const void *s = record;
	switch (record->opcode) {
	case STATE_RANK: return get_rank(r, s);
	case STATE_BUFFER: return get_buffer(r, s);
	case STATE_CHUNK: return get_chunk(r, s);
	case STATE_STREAM: {
		const struct state_stream *t = s;
		return stream_new(r, t->id, t->flags, t->priority) != NULL;
	}
	case STATE_EVENT: return get_event(r, s, now);
	case STATE_MODULE: return get_module(r, s);
	case STATE_FUNCTION: return get_function(r, s);
	case STATE_COMM: return get_comm(r, s);
	case STATE_COMMS: {
		const struct state_bytes *t = s;
		return t->bytes <= record->bytes - sizeof *t &&
		       !coll_restore(r->job->coll, r->rank, (const uint8_t *)(t + 1), t->bytes);
	}
	case STATE_REDOP: return get_redop(r, s);
	default: return false;
	}
}

static uint32_t least_bytes(uint16_t opcode)
{
	switch (opcode) {
#define SAVED(name, number, type, size)                                                            \
	case STATE_##name: return size;
#include "saved.def"
#undef SAVED
	default: return UINT32_MAX;
	}
}

/* Of an earlier process of the rank: this channel has never been served, that one had. */
static bool of_earlier_process(const struct rank *r, const uint8_t *first)
{
	const struct state_rank *s = (const void *)first;
	return !r->tail.bytes && s->r.opcode == STATE_RANK && s->tail;
}

/* 1: restored; 0: the image holds no state (a fresh rank); -1: it holds a broken one. */
int state_restore(struct rank *r, char *error, uint32_t error_bytes)
{
	struct state_header *h = (void *)(r->memory.image + STATE_OFFSET);
	const uint8_t *first = (const uint8_t *)(h + 1), *at = first;
	const uint64_t now = now_ns();
	if (!h->magic && r->tail.bytes) {
		snprintf(error, error_bytes, "rank %u: what it had on its device is lost", r->rank);
		return -1;
	}
	if (!h->magic && !memory_clear_image(&r->memory)) {
		snprintf(error, error_bytes, "rank %u: its image cannot be emptied", r->rank);
		return -1;
	}
	if (!h->magic)
		return 0;
	if (h->magic != STATE_MAGIC || h->version != STATE_VERSION || h->bytes > STATE_BYTES_MAX ||
	    checksum(first, h->bytes) != h->checksum) {
		snprintf(error, error_bytes, "rank %u: its saved state is damaged or of version %u",
			 r->rank, h->version);
		return -1;
	}
	if (h->bytes >= sizeof(struct state_rank) && of_earlier_process(r, first)) {
		h->magic = 0;
		return state_restore(r, error, error_bytes);
	}
	for (;;) {
		const struct rf_record *record = (const void *)at;
		uint64_t left = h->bytes - (uint64_t)(at - first);
		if (left < sizeof *record || record->bytes > left ||
		    record->bytes < least_bytes(record->opcode))
			break;
		if (record->opcode == STATE_END) {
			h->magic = 0; /* taken: the live rank is the truth from here on */
			return 1;
		}
		if (!get(r, record, now))
			break;
		at += record->bytes;
	}
	snprintf(error, error_bytes, "rank %u: its saved state has a record that cannot be",
		 r->rank);
	return -1;
}
