/* dispatch.c: one handler per opcode of the request ring.
 *
 * A record comes from a program that we do not trust. Each handler states what makes its record
 * valid, checks all of it on our own copy, and only then acts or queues. What a record names
 * wrongly is that rank's error: in the reply if it wants one, else its sticky error. A broken ring
 * (a record that cannot be one) ends the rank's service, nobody else's.
 *
 * Handlers return CU_OK when the record is done with (its reply given or queued), RETRY to see the
 * same record again later, or the error to answer.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define EVENT_DISABLE_TIMING 2u
#define RETRY (-1)
#define ANSWERED (-2) /* done, and the reply has been or will be given elsewhere */

void rank_fail(struct rank *r, int error, const char *text)
{
	if (r->async_error)
		return;
	r->async_error = error;
	snprintf(r->error_text, sizeof r->error_text, "%s", text);
	if (r->header) {
		snprintf(r->header->fault, sizeof r->header->fault, "%s", text);
		atomic_store(&r->header->async_error, (uint32_t)error);
	}
	r->proxy->progress = true;
}

static struct stream *get_stream(struct rank *r, uint64_t id)
{
	struct stream *s = (struct stream *)table_get(&r->objects, id, OBJ_STREAM);
	return s && !s->doomed ? s : NULL;
}

static struct module *get_module(struct rank *r, uint64_t id)
{
	struct module *m = (struct module *)table_get(&r->objects, id, OBJ_MODULE);
	return m && !m->doomed ? m : NULL;
}

static struct function *get_function(struct rank *r, uint64_t id)
{
	struct function *f = (struct function *)table_get(&r->objects, id, OBJ_FUNCTION);
	return f && !f->module->doomed ? f : NULL;
}

#define GET(r, type, KIND, id) ((struct type *)table_get(&(r)->objects, (id), OBJ_##KIND))

/* ---- memory ---- */

static int on_alloc(struct rank *r, const struct rf_alloc *a, uint32_t extra)
{
	(void)extra;
	if (memory_dying(r, a->addr, a->bytes) && !r->async_error)
		return RETRY; /* what runs meanwhile may still reach it */
	int error = memory_alloc(r, a);
	/* The client counts what it freed as free; here it is when older work is done. */
	return error == CU_OUT_OF_MEMORY && r->frees && !r->async_error ? RETRY : error;
}

static int on_free(struct rank *r, const struct rf_free *a, uint32_t extra)
{
	(void)extra;
	struct buffer *b = memory_find(r, a->addr);
	if (!b || b->addr != a->addr || b->freed)
		return CU_INVALID_VALUE;
	struct fence *f = calloc(1, sizeof *f);
	if (!f)
		return CU_OUT_OF_MEMORY;
	b->freed = true;
	f->free_seq = a->r.seq;
	f->free_addr = a->addr;
	f->slot = a->r.slot;
	if (r->frees_tail)
		r->frees_tail->next = f;
	else
		r->frees = f;
	r->frees_tail = f;
	stream_fence(r, a->r.seq, f);
	return ANSWERED;
}

static int on_grant(struct rank *r, const struct rf_grant *a, uint32_t extra)
{
	(void)extra;
	struct rf_grant_reply reply = {r->proxy->chunks_total * RF_CHUNK_BYTES};
	if (a->want_bytes > reply.grant_bytes)
		return CU_OUT_OF_MEMORY;
	atomic_store(&r->header->grant_bytes, reply.grant_bytes);
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}

/* All rows of one side of a copy lie inside what it names. */
static bool side_valid(struct rank *r, uint8_t place, uint64_t at, uint64_t pitch,
		       const struct rf_copy *c, uint32_t inline_bytes)
{
	uint64_t rows = (c->height - 1) * pitch;
	if (c->height > 1 && (pitch < c->width || rows / pitch != c->height - 1))
		return false;
	uint64_t span = rows + c->width;
	if (span < rows)
		return false;
	switch (place) {
	case RF_AT_ADDRESS:
		return memory_valid(r, at, span);
	case RF_AT_BULK:
		return ring_bulk(r, at, span) != NULL;
	case RF_AT_INLINE:
		return at <= inline_bytes && span <= inline_bytes - at;
	default:
		return false;
	}
}

static int on_copy(struct rank *r, const struct rf_copy *c, uint32_t extra)
{
	struct stream *s = get_stream(r, c->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if (c->dst_place == RF_AT_INLINE)
		return CU_INVALID_VALUE;
	if (c->width && c->height &&
	    (!side_valid(r, c->dst_place, c->dst, c->dst_pitch, c, 0) ||
	     !side_valid(r, c->src_place, c->src, c->src_pitch, c, extra))) {
		if (c->release_bulk && c->src_place == RF_AT_BULK)
			ring_release_bulk(r, (uint32_t)(c->src / RF_BULK_BYTES));
		return CU_INVALID_VALUE;
	}
	struct item *i = item_new(r, ITEM_COPY, c->r.seq, c->src_place == RF_AT_INLINE ? extra : 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->copy.copy = *c;
	i->slot = c->r.slot;
	if (c->src_place == RF_AT_INLINE)
		memcpy(i->data, c->data, extra);
	stream_push(r, s, i);
	return ANSWERED;
}

static int on_fill(struct rank *r, const struct rf_fill *f, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, f->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if ((f->element != 1 && f->element != 2 && f->element != 4) ||
	    f->width > RF_HEAP_BYTES || f->dst % f->element || f->pitch % f->element)
		return CU_INVALID_VALUE;
	uint64_t row = f->width * f->element, rows = f->height ? (f->height - 1) * f->pitch : 0;
	if (row && f->height > 1 && (f->pitch < row || rows / f->pitch != f->height - 1))
		return CU_INVALID_VALUE;
	if (row && f->height && (rows > RF_HEAP_BYTES || !memory_valid(r, f->dst, rows + row)))
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_FILL, f->r.seq, 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->fill.fill = *f;
	i->slot = f->r.slot;
	stream_push(r, s, i);
	return ANSWERED;
}

/* ---- modules ---- */

static int on_module_data(struct rank *r, const struct rf_module_data *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	const uint8_t *from = ring_bulk(r, (uint64_t)a->bulk * RF_BULK_BYTES, a->bytes);
	int error = CU_OK;
	if (!m) {
		m = calloc(1, sizeof *m);
		if (m)
			m->o = (struct object){OBJ_MODULE, a->module};
		if (!m || !table_put(&r->objects, &m->o)) {
			free(m);
			m = NULL;
		}
	}
	if (!m || m->loaded || m->loading || !from || !a->bytes || a->bytes > RF_BULK_BYTES ||
	    a->offset != m->image_bytes || r->arriving + a->bytes > MODULE_BYTES_MAX) {
		error = CU_INVALID_VALUE;
	} else {
		if (a->offset + a->bytes > m->image_room) {
			uint64_t room = (a->offset + a->bytes) * 2;
			uint8_t *bigger = realloc(m->image, room);
			if (bigger) {
				m->image = bigger;
				m->image_room = room;
			} else {
				error = CU_OUT_OF_MEMORY;
			}
		}
		if (!error) {
			memcpy(m->image + a->offset, from, a->bytes);
			m->image_bytes += a->bytes;
			r->arriving += a->bytes;
		}
	}
	ring_release_bulk(r, a->bulk);
	return error;
}

static int on_module_load(struct rank *r, const struct rf_module_load *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (!m || m->loaded || m->loading || a->bytes != m->image_bytes || !a->r.slot)
		return CU_INVALID_VALUE;
	m->loading = true;
	ask_module(r, m, a->image, a->r.slot);
	return ANSWERED;
}

/* A module of a moved rank is being loaded again; its requests wait for that. */
static bool coming_back(const struct rank *r, const struct module *m)
{
	return m && !m->loaded && m->hash[0] && !r->async_error;
}

static int on_module_globals(struct rank *r, const struct rf_module_globals *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded || m->globals_addr)
		return CU_INVALID_VALUE;
	if (!m->globals_bytes)
		return CU_OK;
	if (!memory_valid(r, a->addr, m->globals_bytes))
		return CU_INVALID_VALUE;
	m->globals_addr = a->addr;
	struct transfer *t = calloc(1, sizeof *t);
	if (!t)
		return CU_OUT_OF_MEMORY;
	t->kind = TRANSFER_WRITE;
	t->rank = r;
	t->addr = a->addr;
	t->host = m->globals_image;
	t->bytes = m->globals_bytes;
	transfer_push(r->proxy, t);
	r->hold = true; /* until written: whatever comes next may read them */
	return CU_OK;
}

static int on_module_unload(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->handle);
	if (!m)
		return CU_INVALID_HANDLE;
	module_unload(r, m);
	return CU_OK;
}

static int on_function_get(struct rank *r, const struct rf_name *a, uint32_t extra)
{
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded || !a->r.slot)
		return CU_INVALID_HANDLE;
	if (!a->name_bytes || a->name_bytes > RF_NAME_MAX || a->name_bytes > extra ||
	    a->bulk >= RF_BULK_COUNT || memchr(a->name, 0, a->name_bytes))
		return CU_INVALID_VALUE;
	struct function *f = calloc(1, sizeof *f);
	if (f)
		f->name = strndup(a->name, a->name_bytes);
	if (!f || !f->name) {
		free(f);
		return CU_OUT_OF_MEMORY;
	}
	f->o = (struct object){OBJ_FUNCTION, a->handle};
	f->module = m;
	if (!table_put(&r->objects, &f->o)) {
		free(f->name);
		free(f);
		return CU_INVALID_HANDLE;
	}
	ask_function(r, f, a->r.slot, a->bulk);
	return ANSWERED;
}

static int on_global_get(struct rank *r, const struct rf_name *a, uint32_t extra)
{
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded)
		return CU_INVALID_HANDLE;
	if (a->name_bytes > extra)
		return CU_INVALID_VALUE;
	const char *name = m->global_names;
	for (uint32_t i = 0; i < m->global_count; i++, name += strlen(name) + 1) {
		if (strlen(name) != a->name_bytes || memcmp(name, a->name, a->name_bytes))
			continue;
		struct rf_global_reply reply = {m->globals_addr + m->global_offsets[i],
						m->global_sizes[i]};
		ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
		return ANSWERED;
	}
	return CU_NOT_FOUND;
}

static int on_function_names(struct rank *r, const struct rf_function_names *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded)
		return CU_INVALID_HANDLE;
	uint8_t *to = ring_bulk(r, (uint64_t)a->bulk * RF_BULK_BYTES, RF_BULK_BYTES);
	if (!to || a->first > m->function_count)
		return CU_INVALID_VALUE;
	const char *name = m->function_names;
	for (uint32_t i = 0; i < a->first; i++)
		name += strlen(name) + 1;
	struct rf_function_names_reply reply = {0};
	for (uint64_t left = RF_BULK_BYTES; a->first + reply.count < m->function_count; reply.count++) {
		uint64_t bytes = strlen(name) + 1;
		if (bytes > left)
			break;
		memcpy(to + RF_BULK_BYTES - left, name, bytes);
		name += bytes;
		left -= bytes;
	}
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}

/* ---- streams and events ---- */

static int on_stream_create(struct rank *r, const struct rf_stream_create *a, uint32_t extra)
{
	(void)extra;
	if (a->stream < RF_HANDLE_FIRST)
		return CU_INVALID_VALUE;
	return stream_new(r, a->stream, a->flags, a->priority) ? CU_OK : CU_OUT_OF_MEMORY;
}

static int on_stream_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->handle);
	if (!s || a->handle < RF_HANDLE_FIRST)
		return CU_INVALID_HANDLE;
	s->doomed = true;
	return CU_OK;
}

static int on_stream_sync(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->handle);
	if (!s)
		return CU_INVALID_HANDLE;
	struct item *i = item_new(r, ITEM_REPLY, a->r.seq, 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->slot = a->r.slot;
	stream_push(r, s, i);
	return ANSWERED;
}

static int on_stream_query(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->handle);
	if (!s)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	bool busy = s->head;
	for (uint32_t n = 0; s == r->legacy && n < r->stream_count; n++)
		busy |= !(r->streams[n]->flags & 1) && r->streams[n]->head; /* it waits for them */
	return busy ? CU_NOT_READY : r->async_error;
}

static int on_device_sync(struct rank *r, const struct rf_record *a, uint32_t extra)
{
	(void)extra;
	struct fence *f = calloc(1, sizeof *f);
	if (!f)
		return CU_OUT_OF_MEMORY;
	f->slot = a->slot;
	stream_fence(r, a->seq, f);
	if (!f->left) {
		free(f);
		rank_pump(r); /* frees of before are retired when this is answered */
		return r->async_error;
	}
	return ANSWERED;
}

static int on_event_create(struct rank *r, const struct rf_event_create *a, uint32_t extra)
{
	(void)extra;
	struct event *e = calloc(1, sizeof *e);
	if (!e)
		return CU_OUT_OF_MEMORY;
	e->o = (struct object){OBJ_EVENT, a->event};
	e->flags = a->flags;
	if (a->event < RF_HANDLE_FIRST || !table_put(&r->objects, &e->o)) {
		free(e);
		return CU_INVALID_VALUE;
	}
	return CU_OK;
}

static int on_event_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	table_remove(&r->objects, a->handle);
	event_free(e);
	return CU_OK;
}

/* EVENT_RECORD and STREAM_WAIT: an item that names the event's record of this moment. */
static int on_event_item(struct rank *r, const struct rf_event *a, enum item_kind kind)
{
	struct event *e = GET(r, event, EVENT, a->event);
	struct stream *s = get_stream(r, a->stream);
	if (!e || !s)
		return CU_INVALID_HANDLE;
	if (kind == ITEM_WAIT && event_over(e))
		return CU_OK;
	struct mark *mark = kind == ITEM_RECORD ? mark_new() : e->last;
	struct item *i = mark ? item_new(r, kind, a->r.seq, 0) : NULL;
	if (!i) {
		if (kind == ITEM_RECORD)
			mark_release(mark);
		return CU_OUT_OF_MEMORY;
	}
	if (kind == ITEM_RECORD) {
		mark->loud = !(e->flags & EVENT_DISABLE_TIMING);
		mark_release(e->last);
		e->last = mark;
	}
	mark->refs++;
	mark->loud |= kind == ITEM_WAIT;
	i->mark = mark;
	stream_push(r, s, i);
	return CU_OK;
}

static int on_event_record(struct rank *r, const struct rf_event *a, uint32_t extra)
{
	(void)extra;
	return on_event_item(r, a, ITEM_RECORD);
}

static int on_stream_wait(struct rank *r, const struct rf_event *a, uint32_t extra)
{
	(void)extra;
	return on_event_item(r, a, ITEM_WAIT);
}

static int on_event_sync(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	if (event_over(e) || !a->r.slot)
		return r->async_error;
	if (r->waiter_count == r->waiter_room) {
		uint32_t room = r->waiter_room ? r->waiter_room * 2 : 16;
		struct waiter *more = realloc(r->waiters, room * sizeof *more);
		if (!more)
			return CU_OUT_OF_MEMORY;
		r->waiters = more;
		r->waiter_room = room;
	}
	e->last->refs++;
	e->last->loud = true;
	r->waiters[r->waiter_count++] = (struct waiter){e->last, a->r.slot};
	return ANSWERED;
}

static int on_event_query(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	return event_over(e) ? r->async_error : CU_NOT_READY;
}

static int on_event_elapsed(struct rank *r, const struct rf_elapsed *a, uint32_t extra)
{
	(void)extra;
	struct event *start = GET(r, event, EVENT, a->start), *end = GET(r, event, EVENT, a->end);
	if (!start || !end || !start->last || !end->last)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	if (!event_over(start) || !event_over(end))
		return CU_NOT_READY;
	float ms = (float)((double)(int64_t)(end->last->time_ns - start->last->time_ns) /
			   1e6);
	ring_reply(r, a->r.slot, r->async_error, &ms, sizeof ms);
	return ANSWERED;
}

static int on_launch(struct rank *r, const struct rf_launch *l, uint32_t extra)
{
	struct stream *s = get_stream(r, l->stream);
	struct function *f = get_function(r, l->function);
	if (!s || !f)
		return CU_INVALID_HANDLE;
	uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
	uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1];
	if (!threads || l->block[0] > 1024 || l->block[1] > 1024 || l->block[2] > 64 ||
	    threads > f->max_threads || !blocks || !l->grid[2] || l->grid[0] > 0x7fffffff ||
	    l->grid[1] > 65535 || l->grid[2] > 65535 || l->shared_bytes > (228u << 10))
		return CU_INVALID_VALUE;
	if (l->param_bytes != f->param_bytes || l->param_bytes > extra)
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_KERNEL, l->r.seq, l->param_bytes);
	if (!i)
		return CU_OUT_OF_MEMORY;
	r->last_function = l->function;
	i->kernel.function = f;
	f->module->uses++;
	i->kernel.launch = *l;
	memcpy(i->data, l->params, l->param_bytes);
	stream_push(r, s, i);
	return CU_OK;
}

/* One of the strides is 1 and lines lie apart, as in all matrices that BLAS knows. */
static bool matrix_valid(const struct rf_matrix *x, uint64_t rows, uint64_t columns)
{
	return (x->row == 1 && x->col >= rows) || (x->col == 1 && x->row >= columns);
}

/* Its form only. Addresses are the device's business, as a kernel's are: some lie in device memory,
 * where the program may change them until the product runs. */
static int on_gemm(struct rank *r, const struct rf_gemm *g, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, g->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if (!g->m || !g->n || !g->count || g->m > INT32_MAX || g->n > INT32_MAX ||
	    g->k > INT32_MAX || g->count > INT32_MAX ||
	    g->flags & ~(uint32_t)(RF_GEMM_POINTERS | RF_GEMM_SCALARS | RF_GEMM_RELU | RF_GEMM_GELU) ||
	    !matrix_valid(&g->a, g->m, g->k) || !matrix_valid(&g->b, g->k, g->n) ||
	    !matrix_valid(&g->c, g->m, g->n) || !matrix_valid(&g->d, g->m, g->n))
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_GEMM, g->r.seq, sizeof *g);
	if (!i)
		return CU_OUT_OF_MEMORY;
	memcpy(i->data, g, sizeof *g);
	stream_push(r, s, i);
	return CU_OK;
}

static int on_host_func(struct rank *r, const struct rf_host_func *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	struct item *i = item_new(r, ITEM_HOST, a->r.seq, 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->host.token = a->token;
	stream_push(r, s, i);
	return CU_OK;
}

/* It only wakes the loop. What has returned is counted in the header: a record may have to wait
 * behind the barrier, and the stream must drain all the same. */
static int on_host_done(struct rank *r, const struct rf_host_func *a, uint32_t extra)
{
	(void)r;
	(void)a;
	(void)extra;
	return CU_OK;
}

/* ---- communicators ---- */

#define SIGNATURE_SPLIT 0x53504c4954ull /* a round's signature, any number of its own */

static struct comm *comm_new(struct rank *r, uint64_t id)
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

static int on_comm_init(struct rank *r, const struct rf_comm_init *a, uint32_t extra)
{
	(void)extra;
	if (!a->r.slot || !a->nranks || a->nranks > r->job->world_size || a->rank >= a->nranks)
		return NCCL_INVALID_ARGUMENT;
	if (!barrier_may_issue(r->job->barrier, r->rank, 0))
		return RETRY;
	if (!comm_new(r, a->comm))
		return NCCL_INVALID_ARGUMENT;
	struct ask *ask = ask_new(r, a->comm, a->r.slot, 0);
	if (!ask)
		return NCCL_SYSTEM_ERROR;
	barrier_joining(r->job->barrier, r->rank, coll_key(a->unique_id), a->nranks);
	coll_init(r->job->coll, r->rank, a->comm, a->unique_id, a->nranks, a->rank);
	return ANSWERED;
}

static int on_comm_split(struct rank *r, const struct rf_comm_split *a, uint32_t extra)
{
	(void)extra;
	struct comm *parent = GET(r, comm, COMM, a->parent);
	if (!a->r.slot || !parent || !parent->key)
		return NCCL_INVALID_ARGUMENT;
	if (!barrier_may_issue(r->job->barrier, r->rank, parent->key))
		return RETRY;
	struct comm *c = comm_new(r, a->comm);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	struct ask *ask = ask_new(r, a->comm, a->r.slot, 0);
	if (!ask)
		return NCCL_SYSTEM_ERROR;
	c->split_from = parent->key;
	parent->issued++;
	barrier_issue(r->job->barrier, r->rank, parent->key, SIGNATURE_SPLIT);
	coll_split(r->job->coll, r->rank, a->parent, a->comm, a->color, a->key);
	return ANSWERED;
}

static bool comm_busy(const struct rank *r, const struct comm *c)
{
	for (uint32_t n = 0; n < r->stream_count; n++)
		for (const struct item *i = r->streams[n]->head; i; i = i->next)
			if (i->kind == ITEM_COLLECTIVE && i->coll.comm == c)
				return true;
	return false;
}

static int on_comm_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (comm_busy(r, c))
		return RETRY; /* ncclCommDestroy comes after the last operation */
	coll_destroy(r->job->coll, r->rank, a->handle);
	barrier_comm_gone(r->job->barrier, r->rank, c->key);
	table_remove(&r->objects, a->handle);
	free(c);
	return CU_OK;
}

/* What other ranks have agreed to run cannot be taken back, so a rank that gives up operations of
 * its own loses its context: nothing of it waits any more, and it may say why before it ends. */
static int on_comm_abort(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c || !comm_busy(r, c))
		return on_comm_destroy(r, a, extra);
	rank_fail(r, CU_LAUNCH_FAILED, "a communicator was aborted with operations outstanding");
	return CU_OK;
}

static int on_redop(struct rank *r, const struct rf_redop *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->comm);
	struct object *o = calloc(1, sizeof *o);
	if (o)
		*o = (struct object){OBJ_REDOP, a->redop};
	if (!c || !o || a->redop < RF_HANDLE_FIRST || !table_put(&r->objects, o)) {
		free(o);
		return NCCL_INVALID_ARGUMENT;
	}
	coll_redop(r->job->coll, r->rank, a->comm, a->redop, a->dtype, a->scalar);
	return CU_OK;
}

/* A queued collective of this rank that the engine has not seen yet uses the operation. */
static bool redop_awaited(struct rank *r, uint64_t redop)
{
	for (uint32_t n = 0; n < r->stream_count; n++)
		for (struct item *i = r->streams[n]->next; i; i = i->next)
			for (uint32_t k = 0; i->kind == ITEM_COLLECTIVE && k < i->coll.count; k++)
				if (item_ops(i)[k].op == redop)
					return true;
	return false;
}

static int on_redop_gone(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct object *o = table_get(&r->objects, a->handle, OBJ_REDOP);
	if (!o)
		return NCCL_INVALID_ARGUMENT;
	if (redop_awaited(r, a->handle))
		return RETRY;
	coll_redop_gone(r->job->coll, r->rank, a->handle);
	table_remove(&r->objects, a->handle);
	free(o);
	return CU_OK;
}

/* ---- the table ---- */

typedef int (*handler)(struct rank *, const void *, uint32_t extra);
struct opcode {
	handler handle;
	uint32_t bytes; /* of the fixed part */
	bool nccl;      /* errors are ncclResult_t */
};
#define OP(code, function, type, nccl)                                                             \
	[RF_OP_##code] = {(handler)(void *)function, sizeof(struct type), nccl}
static const struct opcode opcodes[] = {
	OP(ALLOC, on_alloc, rf_alloc, false),
	OP(FREE, on_free, rf_free, false),
	OP(GRANT, on_grant, rf_grant, false),
	OP(COPY, on_copy, rf_copy, false),
	OP(FILL, on_fill, rf_fill, false),
	OP(MODULE_DATA, on_module_data, rf_module_data, false),
	OP(MODULE_LOAD, on_module_load, rf_module_load, false),
	OP(MODULE_GLOBALS, on_module_globals, rf_module_globals, false),
	OP(MODULE_UNLOAD, on_module_unload, rf_handle, false),
	OP(FUNCTION_GET, on_function_get, rf_name, false),
	OP(GLOBAL_GET, on_global_get, rf_name, false),
	OP(FUNCTION_NAMES, on_function_names, rf_function_names, false),
	OP(STREAM_CREATE, on_stream_create, rf_stream_create, false),
	OP(STREAM_DESTROY, on_stream_destroy, rf_handle, false),
	OP(STREAM_SYNC, on_stream_sync, rf_handle, false),
	OP(STREAM_QUERY, on_stream_query, rf_handle, false),
	OP(DEVICE_SYNC, on_device_sync, rf_record, false),
	OP(EVENT_CREATE, on_event_create, rf_event_create, false),
	OP(EVENT_DESTROY, on_event_destroy, rf_handle, false),
	OP(EVENT_RECORD, on_event_record, rf_event, false),
	OP(STREAM_WAIT, on_stream_wait, rf_event, false),
	OP(EVENT_SYNC, on_event_sync, rf_handle, false),
	OP(EVENT_QUERY, on_event_query, rf_handle, false),
	OP(EVENT_ELAPSED, on_event_elapsed, rf_elapsed, false),
	OP(LAUNCH, on_launch, rf_launch, false),
	OP(GEMM, on_gemm, rf_gemm, false),
	OP(HOST_FUNC, on_host_func, rf_host_func, false),
	OP(HOST_DONE, on_host_done, rf_host_func, false),
	OP(COMM_INIT, on_comm_init, rf_comm_init, true),
	OP(COMM_SPLIT, on_comm_split, rf_comm_split, true),
	OP(COMM_DESTROY, on_comm_destroy, rf_handle, true),
	OP(COMM_ABORT, on_comm_abort, rf_handle, true),
	OP(REDOP_CREATE, on_redop, rf_redop, true),
	OP(REDOP_DESTROY, on_redop_gone, rf_handle, true),
};

/* One record that is not a collective. False: it has to wait. */
static bool dispatch(struct rank *r, const struct rf_record *record)
{
	const struct opcode *op = record->opcode < sizeof opcodes / sizeof *opcodes
					  ? &opcodes[record->opcode] : NULL;
	int error = CU_NOT_SUPPORTED;
	if (record->slot > RF_SLOT_COUNT || (record->slot && r->replies >= RF_SLOT_COUNT)) {
		rank_fail(r, CU_INVALID_VALUE, "a request without a reply slot of its own");
		return true; /* what waits for replies is bounded by the slots */
	}
	if (record->slot)
		r->replies++;
	if (op && op->handle && record->bytes >= op->bytes)
		error = op->handle(r, record, record->bytes - op->bytes);
	if (error == RETRY) {
		if (record->slot)
			r->replies--;
		return false;
	}
	if (error == ANSWERED)
		return true;
	if (record->slot)
		ring_reply(r, record->slot, error ? error : op->nccl ? 0 : r->async_error, NULL, 0);
	else if (error && op && op->nccl)
		atomic_store(&r->header->comm_error, (uint32_t)error);
	else if (error)
		rank_fail(r, error, "an asynchronous request was invalid");
	return true;
}

/* An outermost group: all its records at once, or none yet. Bytes consumed in *at. */
static bool dispatch_group(struct rank *r, const struct rf_record *first, uint64_t *at)
{
	static struct rf_collective ops[GROUP_MAX]; /* the loop is one thread */
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	uint32_t count = 0;
	memcpy(record, first, first->bytes);
	for (;;) {
		const struct rf_collective *c = (const void *)record;
		if (c->r.opcode != RF_OP_COLLECTIVE || c->r.bytes < sizeof *c ||
		    count == GROUP_MAX) {
			rank_fail(r, CU_INVALID_VALUE, "a broken group of collectives");
			return true;
		}
		ops[count++] = *c;
		if (!c->group_left)
			break;
		int n = ring_peek(r, at, record);
		if (n <= 0)
			return n < 0;
	}
	if (!job_may_issue_group(r, ops, count))
		return false;
	int error = job_submit_group(r, ops, count);
	if (error)
		atomic_store(&r->header->comm_error, (uint32_t)error);
	return true;
}

/* Programs ask for ever: that is neither work nor a reason to keep the device. */
static bool only_asks(uint16_t opcode)
{
	return opcode == RF_OP_STREAM_QUERY || opcode == RF_OP_EVENT_QUERY ||
	       opcode == RF_OP_EVENT_ELAPSED;
}

#define RECORDS_PER_TURN 512

static void consume(struct rank *r)
{
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	r->held = r->full = false;
	if (r->hold && !transfer_pending(r->proxy, r))
		r->hold = false;
	for (int n = 0; n < RECORDS_PER_TURN; n++) {
		uint64_t at = r->tail;
		if (r->hold || r->closing || ring_empty(r))
			return;
		if (!barrier_may_consume(r->job->barrier, r->rank) || r->job->state >= PROXY_JOB_CUT) {
			r->held = true;
			return;
		}
		if (r->items >= STREAM_ITEMS_MAX) {
			r->full = true;
			return;
		}
		int bytes = ring_peek(r, &at, record);
		if (bytes < 0) {
			rank_fail(r, CU_INVALID_VALUE, "the request ring is broken");
			r->closing = true;
			job_fail(r->job, "a rank's request ring is broken"); /* it waits for ever */
			return;
		}
		if (!bytes)
			return;
		const struct rf_record *head = (const void *)record;
		bool done = head->opcode == RF_OP_COLLECTIVE ? dispatch_group(r, head, &at)
							     : dispatch(r, head);
		if (!done) {
			r->held = true;
			return;
		}
		ring_consume(r, at);
		r->records++;
		if (only_asks(head->opcode))
			r->queries++;
		r->proxy->progress = true;
	}
}

/* Once for all records of a turn: the time, and to the client that there is room. */
void rank_consume(struct rank *r)
{
	uint64_t before = r->tail, said = r->records - r->queries;
	consume(r);
	if (r->tail == before)
		return;
	if (r->records - r->queries != said)
		r->silent_since_ns = now_ns();
	ring_tell_room(r);
}
