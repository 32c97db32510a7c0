/* handle_stream.c: requests for streams, events and what streams contain (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/handlers.h"
#include "loop/internal.h"
#include "queue/accesses.h"
#include "queue/event.h"
#include "queue/fence.h"
#include "queue/item.h"
#include "queue/pump.h"
#include "queue/queue.h"

int on_stream_create(struct rank *r, const struct rf_stream_create *a, uint32_t extra)
{
	(void)extra;
	if (a->stream < RF_HANDLE_FIRST)
		return CU_INVALID_VALUE;
	return stream_new(r, a->stream, a->flags, a->priority) ? CU_OK : CU_OUT_OF_MEMORY;
}

int on_stream_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->handle);
	if (!s || a->handle < RF_HANDLE_FIRST)
		return CU_INVALID_HANDLE;
	stream_doom(r, s);
	return CU_OK;
}

int on_stream_sync(struct rank *r, const struct rf_handle *a, uint32_t extra)
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

int on_stream_query(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->handle);
	if (!s)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	bool busy = s->head;
	for (uint32_t n = 0; s == r->queue->legacy && n < r->queue->stream_count; n++)
		busy |= !(r->queue->streams[n]->flags & RF_STREAM_NON_BLOCKING) &&
			r->queue->streams[n]->head; /* the legacy stream waits for them */
	if (busy)
		return CU_NOT_READY;
	accesses_host_saw_stream(r, s);
	return r->async_error;
}

int on_device_sync(struct rank *r, const struct rf_record *a, uint32_t extra)
{
	(void)extra;
	struct fence *f = fence_new(a->slot);
	if (!f)
		return CU_OUT_OF_MEMORY;
	fence_push(r, a->seq, f);
	accesses_host_saw_all(r);
	if (!f->left) {
		free(f);
		rank_pump(r); /* retire earlier frees before the reply */
		return r->async_error;
	}
	return ANSWERED;
}

int on_event_create(struct rank *r, const struct rf_event_create *a, uint32_t extra)
{
	(void)extra;
	struct event *e = event_new(a->event, a->flags);
	if (!e)
		return CU_OUT_OF_MEMORY;
	if (a->event < RF_HANDLE_FIRST || !table_put(&r->objects, &e->o)) {
		event_free(e);
		return CU_INVALID_VALUE;
	}
	return CU_OK;
}

int on_event_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	table_remove(&r->objects, a->handle);
	event_free(e);
	return CU_OK;
}

static int on_event_item(struct rank *r, const struct rf_event *a, enum item_kind kind)
{
	struct event *e = GET(r, event, EVENT, a->event);
	struct stream *s = get_stream(r, a->stream);
	if (!e || !s)
		return CU_INVALID_HANDLE;
	if (kind == ITEM_WAIT) {
		accesses_wait(r, s, e);
		if (event_done(e))
			return CU_OK;
	}
	return event_queue(r, e, s, kind, a->r.seq);
}

int on_event_record(struct rank *r, const struct rf_event *a, uint32_t extra)
{
	(void)extra;
	return on_event_item(r, a, ITEM_RECORD);
}

int on_stream_wait(struct rank *r, const struct rf_event *a, uint32_t extra)
{
	(void)extra;
	return on_event_item(r, a, ITEM_WAIT);
}

int on_event_sync(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	accesses_host_saw(r, e);
	if (event_done(e) || !a->r.slot)
		return r->async_error;
	if (!event_await(r, e, a->r.slot))
		return CU_OUT_OF_MEMORY;
	return ANSWERED;
}

int on_event_query(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct event *e = GET(r, event, EVENT, a->handle);
	if (!e)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	if (!event_done(e))
		return CU_NOT_READY;
	accesses_host_saw(r, e);
	return r->async_error;
}

int events_elapsed(struct rank *r, struct rf_events events, float *milliseconds)
{
	struct event *start = GET(r, event, EVENT, events.start);
	struct event *end = GET(r, event, EVENT, events.end);
	if (!start || !end || !start->last || !end->last)
		return CU_INVALID_HANDLE;
	rank_pump(r);
	if (!event_done(start) || !event_done(end))
		return CU_NOT_READY;
	accesses_host_saw(r, start);
	accesses_host_saw(r, end);
	*milliseconds = (float)((double)(int64_t)(end->last->time_ns - start->last->time_ns) / 1e6);
	return r->async_error;
}

int on_event_elapsed(struct rank *r, const struct rf_elapsed *a, uint32_t extra)
{
	(void)extra;
	struct rf_elapsed_reply reply = {0};
	int error = events_elapsed(r, (struct rf_events){a->start, a->end}, &reply.milliseconds);
	if (error)
		return error;
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}

static bool cluster_valid(const struct rf_launch *l)
{
	uint32_t blocks = 1;
	for (uint32_t n = 0; n < 3; n++) {
		uint32_t side = l->cluster >> 8 * n & 0xff;
		if (!side || l->grid[n] % side)
			return false;
		blocks *= side;
	}
	return blocks <= 16 && l->cluster < 1u << 24;
}

int on_launch(struct rank *r, const struct rf_launch *l, uint32_t extra)
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
	if (l->cluster && !r->proxy->device.memory.hal->clusters)
		return CU_NOT_SUPPORTED;
	if (l->cluster && !cluster_valid(l))
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_KERNEL, l->r.seq, l->param_bytes);
	if (!i)
		return CU_OUT_OF_MEMORY;
	kernel_seen(r, l->function);
	i->kernel.function = f;
	module_use(f->module);
	i->kernel.launch = *l;
	memcpy(i->data, l->params, l->param_bytes);
	opaque_launch(r, i);
	stream_push(r, s, i);
	return CU_OK;
}

/* True if one of the strides is 1 and lines do not overlap, as in all matrices that BLAS
 * accepts. */
static bool matrix_valid(const struct rf_matrix *x, uint64_t rows, uint64_t columns)
{
	return (x->row == 1 && x->col >= rows) || (x->col == 1 && x->row >= columns);
}

/* Checks only the form. The device checks addresses, as it does for kernels: some are in device
 * memory, where the program may change them until the product runs. */
static int gemm(struct rank *r, const struct rf_gemm_call *call, uint32_t flags)
{
	const struct rf_gemm *g = &call->g;
	struct stream *s = get_stream(r, g->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	if (!g->m || !g->n || !g->count || g->m > INT32_MAX || g->n > INT32_MAX ||
	    g->k > INT32_MAX || g->count > INT32_MAX || g->flags & ~flags ||
	    !matrix_valid(&g->a, g->m, g->k) || !matrix_valid(&g->b, g->k, g->n) ||
	    !matrix_valid(&g->c, g->m, g->n) || !matrix_valid(&g->d, g->m, g->n))
		return CU_INVALID_VALUE;
	struct item *i = item_new(r, ITEM_PRODUCT, g->r.seq, sizeof *call);
	if (!i)
		return CU_OUT_OF_MEMORY;
	memcpy(i->data, call, sizeof *call);
	stream_push(r, s, i);
	return CU_OK;
}

#define GEMM_FLAGS (RF_GEMM_POINTERS | RF_GEMM_SCALARS | RF_GEMM_RELU | RF_GEMM_GELU)

int on_gemm(struct rank *r, const struct rf_gemm *g, uint32_t extra)
{
	struct rf_gemm_call call = {.g = *g};

	(void)extra;
	return gemm(r, &call, GEMM_FLAGS);
}

#define AUX_FLAGS                                                                                  \
	(GEMM_FLAGS | RF_GEMM_KEEP | RF_GEMM_DRELU | RF_GEMM_DGELU | RF_GEMM_SUM_D |               \
	 RF_GEMM_SUM_A | RF_GEMM_SUM_B)

int on_gemm_aux(struct rank *r, const struct rf_gemm_aux *a, uint32_t extra)
{
	struct rf_gemm_call call = {.g = a->g, .aux = a->aux};

	(void)extra;
	return gemm(r, &call, AUX_FLAGS);
}

static bool stored_as(const struct rf_matrix *x, uint64_t ld, bool turned)
{
	return turned ? x->col == 1 && x->row == ld : x->row == 1 && x->col == ld;
}

/* The program's call and the description say the same: the core goes by the description, and the
 * device makes the call. */
static bool how_valid(const struct rf_gemm_call *call)
{
	const struct rf_gemm *g = &call->g;
	const struct rf_gemm_how *how = &call->how;
	const struct rf_matrix *all[] = {&g->a, &g->b, &g->c, &g->d};
	bool listed = how->api == RF_GEMM_LISTED || how->api == RF_GEMM_LISTED_EX;

	if (!how->api || how->api >= RF_GEMM_APIS || how->op[0] > 2 || how->op[1] > 2 ||
	    listed != !!(g->flags & RF_GEMM_POINTERS) ||
	    (how->api != RF_GEMM_LT && (how->by_rows || memcmp(&g->c, &g->d, sizeof g->c) != 0)))
		return false;
	for (uint32_t i = 0; i < 4; i++) {
		bool turned = (i < 2 && how->op[i]) != (how->by_rows >> i & 1);
		if (!stored_as(all[i], how->ld[i], turned))
			return false;
	}
	return true;
}

int on_gemm_call(struct rank *r, const struct rf_gemm_call *call, uint32_t extra)
{
	(void)extra;
	if (!how_valid(call))
		return CU_INVALID_VALUE;
	return gemm(r, call, AUX_FLAGS);
}

int on_host_func(struct rank *r, const struct rf_host_func *a, uint32_t extra)
{
	(void)extra;
	struct stream *s = get_stream(r, a->stream);
	if (!s)
		return CU_INVALID_HANDLE;
	struct item *i = item_new(r, ITEM_HOST, a->r.seq, 0);
	if (!i)
		return CU_OUT_OF_MEMORY;
	i->token = a->token;
	stream_push(r, s, i);
	return CU_OK;
}

/* The record only wakes the loop. The header counts the host functions that have returned, because
 * a record may have to wait for the barrier while the stream must drain. */
int on_host_done(struct rank *r, const struct rf_host_func *a, uint32_t extra)
{
	(void)r;
	(void)a;
	(void)extra;
	return CU_OK;
}
