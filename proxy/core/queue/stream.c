/* stream.c: a rank's streams: real queues, so that one that waits never holds up another.
 *
 * A stream keeps its items from the oldest incomplete to the newest. Items are submitted in
 * order, as soon as their dependencies allow, to the device (kernels, gemms, copies, fills), to the
 * collective engine, or to the client (host functions); they complete in order.
 *
 * Ordering between streams: an item of the legacy stream waits for everything older in the blocking
 * streams, an item of a blocking stream for everything older in the legacy stream; "older" is the
 * record's number (CUDA programming guide, "Default stream").
 *
 * After a sticky error items complete without doing anything, and replies carry the error.
 */
#include <stdlib.h>
#include <string.h>

#include "loop/internal.h"

#define REFILL_WORKS 32u /* a full device queue (64 works or more) is filled up after so many */

struct stream *stream_new(struct rank *r, uint64_t id, uint32_t flags, int32_t priority)
{
	if (r->stream_count >= STREAMS_MAX)
		return NULL;
	struct stream *s = calloc(1, sizeof *s);
	struct stream **all = realloc(r->streams, (r->stream_count + 1) * sizeof *all);
	if (all)
		r->streams = all;
	if (!s || !all || r->proxy->hal->stream_create(r->proxy->device, &s->hal)) {
		free(s);
		return NULL;
	}
	s->o = (struct object){OBJ_STREAM, id};
	s->flags = flags;
	s->priority = priority;
	if (!table_put(&r->objects, &s->o)) {
		r->proxy->hal->stream_destroy(s->hal);
		free(s);
		return NULL;
	}
	r->streams[r->stream_count++] = s;
	if (id == RF_STREAM_LEGACY)
		r->legacy = s;
	return s;
}

static void stream_free(struct rank *r, uint32_t index)
{
	struct stream *s = r->streams[index];
	table_remove(&r->objects, s->o.id);
	r->proxy->hal->stream_destroy(s->hal);
	free(s);
	r->streams[index] = r->streams[--r->stream_count];
}

struct item *item_new(struct rank *r, enum item_kind kind, uint64_t seq, uint64_t data_bytes)
{
	struct item *i = calloc(1, sizeof *i + data_bytes);
	if (!i) {
		rank_fail(r, CU_OUT_OF_MEMORY, "the proxy is out of host memory");
		return NULL;
	}
	i->kind = kind;
	i->seq = seq;
	i->weight = 1 + (uint32_t)(data_bytes >> 13);
	return i;
}

void stream_push(struct rank *r, struct stream *s, struct item *i)
{
	if (s->tail)
		s->tail->next = i;
	else
		s->head = i;
	s->tail = i;
	if (!s->next)
		s->next = i;
	r->items += i->weight;
}

/* `f` is over when every stream has done all that is older. f->left counts them. */
void stream_fence(struct rank *r, uint64_t seq, struct fence *f)
{
	f->left = 1; /* ours, until all are pushed */
	for (uint32_t n = 0; n < r->stream_count; n++) {
		if (!r->streams[n]->head)
			continue;
		struct item *i = item_new(r, ITEM_FENCE, seq, 0);
		if (!i)
			break;
		i->fence = f;
		f->left++;
		stream_push(r, r->streams[n], i);
	}
	f->left--;
}

struct mark *mark_new(void)
{
	struct mark *m = calloc(1, sizeof *m);
	if (m)
		m->refs = 1;
	return m;
}

void mark_release(struct mark *m)
{
	if (m && --m->refs == 0)
		free(m);
}

void event_free(struct event *e)
{
	mark_release(e->last);
	free(e);
}

bool event_over(const struct event *e) { return !e->last || e->last->over; }

/* ---- completion ---- */

static void fence_reached(struct rank *r, struct fence *f)
{
	if (f->left)
		f->left--;
	if (f->left || f->free_addr)
		return; /* frees retire in their order, see retire() */
	ring_reply(r, f->slot, r->async_error, NULL, 0);
	free(f);
}

static void retire(struct rank *r)
{
	while (r->frees && !r->frees->left && !memory_moving(&r->memory)) {
		struct fence *f = r->frees;
		memory_free(&r->memory, f->free_addr);
		ring_retired(r, f->free_seq);
		r->frees = f->next;
		if (!r->frees)
			r->frees_tail = NULL;
		ring_reply(r, f->slot, r->async_error, NULL, 0);
		free(f);
		r->proxy->progress = true;
	}
}

static void answer_waiters(struct rank *r)
{
	for (uint32_t i = 0; i < r->waiter_count;) {
		struct waiter *w = &r->waiters[i];
		if (!w->mark->over && !r->async_error) {
			i++;
			continue;
		}
		ring_reply(r, w->slot, r->async_error, NULL, 0);
		mark_release(w->mark);
		*w = r->waiters[--r->waiter_count];
	}
}

static bool uses_memory(const struct item *i)
{
	return i->kind == ITEM_KERNEL || i->kind == ITEM_GEMM || i->kind == ITEM_COPY ||
	       i->kind == ITEM_FILL;
}

/* Does nobody hear of its completion but the items behind it? */
static bool quiet(const struct item *i)
{
	switch (i->kind) {
	case ITEM_KERNEL:
	case ITEM_GEMM:
	case ITEM_FILL:
	case ITEM_WAIT: /* it was over when it was submitted */ return !i->slot;
	case ITEM_COPY: return !i->slot && !i->copy.copy.release_bulk;
	case ITEM_RECORD: return !i->mark->loud;
	case ITEM_COLLECTIVE: return i->coll.done;
	default: return false;
	}
}

static void complete(struct rank *r, struct item *i)
{
	bool heard = !quiet(i);
	if (uses_memory(i) && i->hal_seq)
		memory_used(&r->memory);
	switch (i->kind) {
	case ITEM_KERNEL: module_release(r, i->kernel.function->module); break;
	case ITEM_COPY:
		if (i->copy.copy.release_bulk && i->copy.copy.src_place == RF_AT_BULK)
			ring_release_bulk(r, (uint32_t)(i->copy.copy.src / RF_BULK_BYTES));
		break;
	case ITEM_RECORD:
		i->mark->over = true;
		i->mark->time_ns = now_ns();
		mark_release(i->mark);
		answer_waiters(r);
		break;
	case ITEM_WAIT: mark_release(i->mark); break;
	case ITEM_FENCE: fence_reached(r, i->fence); break;
	default: break;
	}
	ring_reply(r, i->slot, r->async_error, NULL, 0);
	r->items -= i->weight;
	r->proxy->progress |= heard;
	r->proxy->settled |= !heard;
	free(i);
}

static bool is_over(struct rank *r, const struct stream *s, const struct item *i)
{
	if (i->hal_seq && r->proxy->hal->completed(s->hal) < i->hal_seq)
		return false;
	if (i->kind == ITEM_COLLECTIVE)
		return i->coll.done || (r->async_error && !i->hal_seq);
	if (i->kind == ITEM_HOST && (r->exited || !ring_host_sound(r)))
		return true; /* nobody is there to call it, or nobody knows how many were called */
	if (i->kind == ITEM_HOST)
		return (int32_t)(atomic_load(&r->header->hostfunc_tail) - i->host.place) > 0;
	return true;
}

/* A kernel's fault becomes the rank's sticky error. */
static void note_fault(struct rank *r)
{
	const struct hal *hal = r->proxy->hal;
	char text[256] = "";
	if (r->async_error || !r->memory.space || !hal->space_error(r->memory.space, NULL, 0))
		return;
	int error = hal->space_error(r->memory.space, text, sizeof text);
	rank_fail(r, error, text);
}

static void complete_stream(struct rank *r, struct stream *s)
{
	while (s->head && s->head->submitted && is_over(r, s, s->head)) {
		struct item *i = s->head;
		if (uses_memory(i))
			note_fault(r); /* before whoever waits for it hears that it is over */
		s->head = i->next;
		if (!s->head)
			s->tail = NULL;
		complete(r, i);
	}
}

/* ---- submission ---- */

static bool ordered(const struct rank *r, const struct stream *s, const struct item *i)
{
	if (s->flags & RF_STREAM_NON_BLOCKING)
		return true;
	if (s != r->legacy)
		return !r->legacy->head || r->legacy->head->seq >= i->seq;
	for (uint32_t n = 0; n < r->stream_count; n++) {
		const struct stream *o = r->streams[n];
		if (o != s && !(o->flags & RF_STREAM_NON_BLOCKING) && o->head &&
		    o->head->seq < i->seq)
			return false;
	}
	return true;
}

/* Is it one that only the active rank may run, and is it known to the device? */
static bool kernel_ready(const struct item *i)
{
	const struct function *f = i->kernel.function;
	return i->kind == ITEM_GEMM || (i->kind == ITEM_KERNEL && f->hal && f->module->loaded);
}

static bool may_run(const struct rank *r)
{
	return r->proxy->active == r && !r->proxy->yielding && memory_resident(&r->memory);
}

static bool submitted(struct rank *r, struct item *i, uint64_t hal_seq)
{
	i->hal_seq = hal_seq;
	if (!hal_seq)
		return false;
	memory_use(&r->memory);
	r->kernels++;
	r->proxy->kernels++;
	return true;
}

static bool submit_kernel(struct rank *r, struct stream *s, struct item *i)
{
	struct proxy *p = r->proxy;
	const struct rf_launch *l = &i->kernel.launch;
	if (i->kernel.function->error) {
		rank_fail(r, i->kernel.function->error, i->kernel.function->name);
		return true;
	}
	if (!may_run(r) || !kernel_ready(i))
		return false;
	struct hal_work w = {.kind = HAL_KERNEL};
	w.kernel.space = r->memory.space;
	w.kernel.function = i->kernel.function->hal;
	memcpy(w.kernel.grid, l->grid, sizeof l->grid);
	memcpy(w.kernel.block, l->block, sizeof l->block);
	w.kernel.shared_bytes = l->shared_bytes;
	w.kernel.params = i->data;
	w.kernel.param_bytes = l->param_bytes;
	w.kernel.globals_addr = i->kernel.function->module->globals_addr;
	w.kernel.cooperative = l->flags & RF_LAUNCH_COOPERATIVE;
	if (!submitted(r, i, p->hal->submit(s->hal, &w)))
		rank_fail(r, CU_LAUNCH_OUT_OF_RESOURCES, i->kernel.function->name);
	return true;
}

static bool submit_gemm(struct rank *r, struct stream *s, struct item *i)
{
	struct hal_work w = {.kind = HAL_GEMM};
	if (!may_run(r))
		return false;
	w.gemm.space = r->memory.space;
	w.gemm.call = (const void *)i->data;
	if (!submitted(r, i, r->proxy->hal->submit(s->hal, &w)))
		rank_fail(r, CU_NOT_SUPPORTED, "a matrix product of types that this device lacks");
	return true;
}

/* One side of a copy at (row, column): as much of the row as lies together. */
static uint64_t side(struct rank *r, struct item *i, bool destination, uint64_t bytes,
		     struct hal_ref *ref)
{
	const struct rf_copy *c = &i->copy.copy;
	uint64_t at = (destination ? c->dst : c->src) +
		      i->copy.row * (destination ? c->dst_pitch : c->src_pitch) + i->copy.column;
	switch (destination ? c->dst_place : c->src_place) {
	case RF_AT_BULK:
		*ref = (struct hal_ref){NULL, (uint64_t)(uintptr_t)(r->map + RF_OFF_BULK + at)};
		return bytes;
	case RF_AT_INLINE:
		*ref = (struct hal_ref){NULL, (uint64_t)(uintptr_t)(i->data + at)};
		return bytes;
	default: return memory_resolve(&r->memory, at, bytes, destination, ref);
	}
}

/* How many whole rows go at once; 0: the next row is not in one place, or too long. */
static uint64_t whole_rows(const struct rank *r, uint64_t width, uint64_t left, uint64_t column)
{
	uint64_t rows = PIECE_BYTES / width;
	if (!memory_resident(&r->memory) || column)
		return 0;
	rows = rows < PIECE_ROWS ? rows : PIECE_ROWS;
	return rows < left ? rows : left;
}

/* As many rows at once as make a piece where the rank is resident, else chunk by chunk. */
static bool submit_copy(struct rank *r, struct stream *s, struct item *i)
{
	const struct hal *hal = r->proxy->hal;
	const struct rf_copy *c = &i->copy.copy;
	while (i->copy.row < c->height && c->width) {
		if (memory_moving(&r->memory) || !hal->room(s->hal))
			return false;
		struct hal_work w = {.kind = HAL_COPY};
		uint64_t n = side(r, i, true, c->width - i->copy.column, &w.copy.dst);
		n = side(r, i, false, n, &w.copy.src);
		uint64_t rows = whole_rows(r, c->width, c->height - i->copy.row, i->copy.column);
		w.copy.width = n;
		w.copy.height = rows ? rows : 1;
		w.copy.dst_pitch = c->dst_pitch;
		w.copy.src_pitch = c->src_pitch;
		if (!i->hal_seq)
			memory_use(&r->memory);
		i->hal_seq = hal->submit(s->hal, &w);
		i->copy.column += n;
		if (i->copy.column >= c->width) {
			i->copy.row += w.copy.height;
			i->copy.column = 0;
		}
	}
	return true;
}

static bool submit_fill(struct rank *r, struct stream *s, struct item *i)
{
	const struct hal *hal = r->proxy->hal;
	const struct rf_fill *f = &i->fill.fill;
	uint64_t row_bytes = f->width * f->element;
	while (i->fill.row < f->height && row_bytes) {
		if (memory_moving(&r->memory) || !hal->room(s->hal))
			return false;
		struct hal_work w = {.kind = HAL_FILL};
		uint64_t at = f->dst + i->fill.row * f->pitch + i->fill.column;
		uint64_t rows = whole_rows(r, row_bytes, f->height - i->fill.row, i->fill.column);
		uint64_t n = memory_resolve(&r->memory, at, row_bytes - i->fill.column, true,
					    &w.fill.dst);
		w.fill.width = n / f->element;
		w.fill.height = rows ? rows : 1;
		w.fill.pitch = f->pitch;
		w.fill.value = f->value;
		w.fill.element = f->element;
		if (!i->hal_seq)
			memory_use(&r->memory);
		i->hal_seq = hal->submit(s->hal, &w);
		i->fill.column += n;
		if (i->fill.column >= row_bytes) {
			i->fill.row += w.fill.height;
			i->fill.column = 0;
		}
	}
	return true;
}

static void collective_done(struct rank *r, struct item *i, int error)
{
	i->coll.done = true;
	i->coll.error = error;
	if (error)
		atomic_store(&r->header->comm_error, (uint32_t)error);
	for (uint32_t k = 0; k < i->coll.rounds; k++)
		barrier_complete(r->job->barrier, r->rank, item_rounds(i)[k].key);
	r->collectives++;
	r->proxy->progress = true;
}

static bool submit(struct rank *r, struct stream *s, struct item *i)
{
	if (r->async_error && i->kind != ITEM_HOST)
		return true; /* nothing runs any more, everything completes */
	switch (i->kind) {
	case ITEM_KERNEL:
		return !memory_moving(&r->memory) && r->proxy->hal->room(s->hal) &&
		       submit_kernel(r, s, i);
	case ITEM_GEMM:
		return !memory_moving(&r->memory) && r->proxy->hal->room(s->hal) &&
		       submit_gemm(r, s, i);
	case ITEM_COPY: return submit_copy(r, s, i);
	case ITEM_FILL: return submit_fill(r, s, i);
	case ITEM_WAIT: return i->mark->over;
	case ITEM_COLLECTIVE: {
		if (i->coll.comm->submitted != i->coll.turn)
			return false; /* an older group goes first */
		bool nothing = coll_nothing_to_do(r->job->coll, r->rank, i->coll.comm->o.id,
						  item_ops(i), i->coll.count);
		if (!nothing && s->head != i)
			return false; /* its inputs are not ready */
		i->coll.comm->submitted++;
		if (nothing) {
			collective_done(r, i, 0);
			return true;
		}
		int error = coll_submit(r->job->coll, r->rank, i->coll.comm->o.id, item_ops(i),
					i->coll.count, (uint64_t)(uintptr_t)i);
		if (error)
			stream_collective_done(r, (uint64_t)(uintptr_t)i, error);
		return true;
	}
	case ITEM_HOST:
		if (s->head != i)
			return false;
		i->host.place = r->host_place;
		if (!ring_host_function(r, i->host.token, r->host_place))
			return !ring_host_sound(r);
		r->host_place++;
		return true;
	default: return true;
	}
}

/* May its next item be looked at? Not behind a collective or a host function that is not over. */
static bool open_for_next(const struct rank *r, const struct stream *s)
{
	if (!s->next || !ordered(r, s, s->next))
		return false;
	return s->head == s->next || (s->head->kind != ITEM_HOST &&
				      (s->head->kind != ITEM_COLLECTIVE || s->head->coll.done));
}

static void submit_stream(struct rank *r, struct stream *s)
{
	while (open_for_next(r, s)) {
		struct item *i = s->next;
		if (!submit(r, s, i))
			break;
		i->submitted = true;
		s->next = i->next;
		r->proxy->progress = true;
	}
}

void rank_pump(struct rank *r)
{
	note_fault(r);
	if (!ring_host_sound(r))
		rank_fail(r, CU_INVALID_VALUE,
			  "more host functions have returned than were called");
	for (uint32_t n = 0; n < r->stream_count; n++) {
		struct stream *s = r->streams[n];
		complete_stream(r, s);
		submit_stream(r, s);
		complete_stream(r, s);
		if (s->doomed && !s->head)
			stream_free(r, n--);
	}
	if (r->async_error)
		answer_waiters(r);
	retire(r);
	memory_sweep(&r->memory);
}

/* The first work of the stream whose completion lets anything happen. */
static uint64_t wake_at(const struct rank *r, const struct stream *s)
{
	const struct hal *hal = r->proxy->hal;
	uint64_t last = 0;
	for (const struct item *i = s->head; i && i != s->next; i = i->next) {
		if (i->hal_seq)
			last = i->hal_seq;
		if (!quiet(i))
			return last;
	}
	return s->next && !hal->room(s->hal) ? hal->completed(s->hal) + REFILL_WORKS : last;
}

/* A stream that is held up by another one's middle makes each completion count. */
void rank_sleep(struct rank *r)
{
	bool each = false;
	for (uint32_t n = 0; n < r->stream_count; n++)
		each |= r->streams[n]->next && !ordered(r, r->streams[n], r->streams[n]->next);
	for (uint32_t n = 0; n < r->stream_count; n++) {
		struct stream *s = r->streams[n];
		r->proxy->hal->notify_at(s->hal, each ? 0 : wake_at(r, s));
	}
}

/* Could this rank run a kernel now, were it active? */
bool rank_has_kernel(const struct rank *r)
{
	for (uint32_t n = 0; n < r->stream_count; n++) {
		const struct stream *s = r->streams[n];
		if (open_for_next(r, s) && kernel_ready(s->next) && !r->async_error)
			return true;
	}
	return false;
}

/* A collective of this rank is over. */
void stream_collective_done(struct rank *r, uint64_t ticket, int error)
{
	for (uint32_t n = 0; n < r->stream_count; n++) {
		struct item *i = r->streams[n]->head;
		if (!i || (uint64_t)(uintptr_t)i != ticket || i->kind != ITEM_COLLECTIVE)
			continue;
		collective_done(r, i, error);
		return;
	}
}

/* Forget everything queued; nothing of it is in flight. */
void rank_drop_streams(struct rank *r)
{
	while (r->stream_count) {
		struct stream *s = r->streams[r->stream_count - 1];
		for (struct item *i = s->head, *next; i; i = next) {
			next = i->next;
			if (i->kind == ITEM_RECORD || i->kind == ITEM_WAIT)
				mark_release(i->mark);
			if (i->kind == ITEM_FENCE && --i->fence->left == 0 && !i->fence->free_addr)
				free(i->fence);
			free(i);
		}
		stream_free(r, r->stream_count - 1);
	}
	for (struct fence *f = r->frees, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	for (uint32_t i = 0; i < r->waiter_count; i++)
		mark_release(r->waiters[i].mark);
	free(r->waiters);
	free(r->streams);
	r->frees = r->frees_tail = NULL;
	r->waiters = NULL;
	r->streams = NULL;
	r->waiter_count = 0;
}
