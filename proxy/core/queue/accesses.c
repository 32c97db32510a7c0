/* accesses.c: passes what a rank issues to the check of its order (order/order.h): the ranges of
 * each item, in program order, when it is added to its stream.
 *
 * Only device memory is checked: the host also uses pinned and managed memory, and orders that in
 * ways that are not visible here. Nothing is known of an open kernel, so nothing is reported. A
 * host function may signal anything to the host: what the program issues after it counts as ordered
 * after it.
 */
#include "queue/accesses.h"

#include <string.h>

#include "queue/queue_parts.h"
#include "queue/product.h"
#include "rank/bounds.h"

#define ROWS_MAX 256 /* of a copy or fill that are passed one by one */

bool accesses_open(struct rank *r, order_report *report, void *to)
{
	r->queue->order = order_open(report, to);
	return r->queue->order;
}

void accesses_close(struct rank *r)
{
	order_close(r->queue->order);
	r->queue->order = NULL;
}

/* ---- streams, events, the host ---- */

void accesses_stream(struct rank *r, const struct stream *s, bool gone)
{
	enum order_stream kind = s->o.id == RF_STREAM_LEGACY         ? ORDER_LEGACY
				 : s->flags & RF_STREAM_NON_BLOCKING ? ORDER_FREE
								     : ORDER_BLOCKING;
	if (!r->queue->order)
		return;
	if (gone)
		order_stream_destroyed(r->queue->order, s->o.id);
	else
		order_stream(r->queue->order, s->o.id, kind);
}

struct order_mark *accesses_record(struct rank *r, const struct stream *s)
{
	return r->queue->order ? order_mark(r->queue->order, s->o.id) : NULL;
}

void accesses_wait(struct rank *r, const struct stream *s, const struct event *e)
{
	if (r->queue->order && e->last)
		order_wait(r->queue->order, s->o.id, e->last->order);
}

void accesses_host_saw(struct rank *r, const struct event *e)
{
	if (r->queue->order && e->last)
		order_host_saw(r->queue->order, e->last->order);
}

void accesses_host_saw_stream(struct rank *r, const struct stream *s)
{
	if (r->queue->order)
		order_host_saw_stream(r->queue->order, s->o.id);
}

void accesses_host_saw_all(struct rank *r)
{
	if (r->queue->order)
		order_host_saw_all(r->queue->order);
}

void accesses_free(struct rank *r, const struct stream *s, uint64_t addr, uint64_t bytes,
		   uint64_t seq)
{
	struct order *o = r->queue->order;
	if (!o)
		return;
	if (s) {
		order_operation(o, s->o.id, "cudaFreeAsync", seq);
		order_access(o, addr, bytes, ORDER_WRITE, true);
	} else {
		order_host_saw_all(o);
	}
	order_forget(o, addr, bytes);
}

/* ---- ranges ---- */

static void add_access(struct order *o, uint64_t addr, uint64_t bytes, enum order_use use,
		       bool whole)
{
	uint64_t offset = addr - RF_DEV_BASE;
	if (addr >= RF_DEV_BASE && offset < RF_HEAP_BYTES && bytes <= RF_HEAP_BYTES - offset)
		order_access(o, addr, bytes, use, whole);
}

static void add_rows(struct order *o, uint64_t addr, uint64_t pitch, uint64_t width,
		     uint64_t height, enum order_use use)
{
	if (!width || !height)
		return;
	uint64_t all = (height - 1) * pitch + width;
	if (height == 1 || pitch == width || height > ROWS_MAX) {
		add_access(o, addr, all, use, height == 1 || pitch == width);
		return;
	}
	for (uint64_t n = 0; n < height; n++)
		add_access(o, addr + n * pitch, width, use, true);
}

static void add_copy(struct order *o, const struct rf_copy *c)
{
	if (c->src_place == RF_AT_ADDRESS)
		add_rows(o, c->src, c->src_pitch, c->width, c->height, ORDER_READ);
	if (c->dst_place == RF_AT_ADDRESS)
		add_rows(o, c->dst, c->dst_pitch, c->width, c->height, ORDER_WRITE);
}

/* ---- kernels ---- */

/* An access through an address: to the part of its buffer within its bounds, or to all of the
 * buffer. */
static void add_part(struct order *o, const struct memory_range *b, uint64_t word,
		     const struct bounds *x, const struct bound *bound, enum order_use use)
{
	int64_t at = (int64_t)(word - b->addr);
	bool known = x->known & (use == ORDER_READ ? PROXY_READ : PROXY_WRITTEN);
	if (known && bound->low >= bound->high)
		return; /* no thread executes it */
	if (known && at + bound->low >= 0 && at + bound->high <= (int64_t)b->bytes)
		add_access(o, word + (uint64_t)bound->low, (uint64_t)(bound->high - bound->low),
			   use, false);
	else
		add_access(o, b->addr, b->bytes, use, false);
}

static void add_reached(struct order *o, const struct memory_range *b, uint64_t word, uint32_t use,
			const struct bounds *x)
{
	if (use &
	    PROXY_ATOMIC) { /* covers its other accesses there, which are not known separately */
		add_part(o, b, word, x, &x->written, ORDER_ATOMIC);
		return;
	}
	if (use & PROXY_READ)
		add_part(o, b, word, x, &x->read, ORDER_READ);
	if (use & PROXY_WRITTEN)
		add_part(o, b, word, x, &x->written, ORDER_WRITE);
}

static void add_words(struct rank *r, const struct item *i)
{
	const struct function *f = i->kernel.function;
	const struct rf_launch *l = &i->kernel.launch;
	struct bound_launch launch;
	struct bound_shape shape;
	memcpy(shape.grid, l->grid, sizeof shape.grid);
	memcpy(shape.block, l->block, sizeof shape.block);
	if (!bounds_of(f->reaches, &shape, i->data, &launch))
		return;
	for (uint32_t n = 0; n < launch.word_count; n++) {
		const struct bound_word *w = &launch.words[n];
		uint64_t word;
		memcpy(&word, i->data + w->at, sizeof word);
		const struct memory_range *b = memory_whole(&r->memory, word);
		if (b)
			add_reached(r->queue->order, b, word, w->use, &w->bounds);
	}
}

static void add_variables(struct order *o, const struct function *f)
{
	for (uint32_t n = 0; n < f->variable_count; n++) {
		const struct proxy_access *v = &f->variables[n];
		uint64_t at = f->module->globals_addr + v->at;
		const struct memory_range b = {.addr = at, .bytes = v->bytes};
		add_reached(o, &b, at, v->use, &(struct bounds){0});
	}
}

static void add_kernel_accesses(struct rank *r, const struct stream *s, const struct item *i)
{
	const struct function *f = i->kernel.function;
	struct order *o = r->queue->order;
	char name[512];
	snprintf(name, sizeof name, "kernel %s", f->name);
	order_operation(o, s->o.id, name, i->seq);
	if (!f->closed)
		return;
	add_words(r, i);
	add_variables(o, f);
}

/* ---- matrix products ---- */

static void add_matrix(struct order *o, const struct rf_matrix *x, uint64_t rows, uint64_t columns,
		       uint64_t count, uint8_t type, enum order_use use)
{
	uint64_t bytes = element_bytes(type), line = x->row == 1 ? rows : columns;
	uint64_t lines = x->row == 1 ? columns : rows, stride = x->row == 1 ? x->col : x->row;
	if (!rows || !columns || !bytes)
		return;
	uint64_t one = (lines - 1) * stride + line;
	bool whole = (lines == 1 || stride == line) && (count == 1 || x->batch <= one);
	add_access(o, x->addr, ((count - 1) * x->batch + one) * bytes, use, whole);
}

static void add_product(struct order *o, const struct rf_gemm_call *a)
{
	const struct rf_gemm *g = &a->g;
	bool sums = g->flags & (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B);
	uint64_t bias = g->flags & RF_GEMM_SUM_B ? g->n : g->m;
	bool adds = g->flags & RF_GEMM_SCALARS || g->beta;
	if (g->flags & RF_GEMM_POINTERS)
		return;
	add_matrix(o, &g->a, g->m, g->k, g->count, g->type_ab, ORDER_READ);
	add_matrix(o, &g->b, g->k, g->n, g->count, g->type_ab, ORDER_READ);
	if (adds)
		add_matrix(o, &g->c, g->m, g->n, g->count, g->type_cd, ORDER_READ);
	if (g->bias && (g->count == 1 || g->bias_batch == bias))
		add_access(o, g->bias, bias * g->count * element_bytes(g->type_bias),
			   sums ? ORDER_WRITE : ORDER_READ, true);
	add_matrix(o, &g->d, g->m, g->n, g->count, g->type_cd, ORDER_WRITE);
}

/* ---- collectives ---- */

static const char *name_of(uint32_t kind)
{
	static const char *const names[] = {"ncclAllReduce", "ncclReduce",        "ncclBroadcast",
					    "ncclAllGather", "ncclReduceScatter", "ncclSend",
					    "ncclRecv",      "ncclAlltoAll",      "ncclGather",
					    "ncclScatter"};
	return kind < sizeof names / sizeof *names ? names[kind] : "a collective";
}

/* Writes everything except this rank's own part, if that is in place already. */
static void add_gathered(struct order *o, const struct rf_collective *c, uint64_t own, uint64_t at,
			 uint64_t all)
{
	if (c->send != c->recv + at) {
		add_access(o, c->recv, all, ORDER_WRITE, true);
		return;
	}
	add_access(o, c->recv, at, ORDER_WRITE, true);
	add_access(o, c->recv + at + own, all - at - own, ORDER_WRITE, true);
}

static void add_collective(struct order *o, const struct rf_collective *c,
			   const struct coll_place *p)
{
	uint64_t part = c->count * dtype_bytes(c->dtype), all = part * p->nranks;
	bool root = c->root >= 0 && (uint32_t)c->root == p->index;
	switch (c->kind) {
	case RF_COLL_ALLREDUCE:
		add_access(o, c->send, part, ORDER_READ, true);
		add_access(o, c->recv, part, ORDER_WRITE, true);
		break;
	case RF_COLL_REDUCE:
		add_access(o, c->send, part, ORDER_READ, true);
		if (root)
			add_access(o, c->recv, part, ORDER_WRITE, true);
		break;
	case RF_COLL_BROADCAST:
		if (root)
			add_access(o, c->send, part, ORDER_READ, true);
		if (!root || c->send != c->recv)
			add_access(o, c->recv, part, ORDER_WRITE, true);
		break;
	case RF_COLL_ALLGATHER:
		add_access(o, c->send, part, ORDER_READ, true);
		add_gathered(o, c, part, p->index * part, all);
		break;
	case RF_COLL_REDUCESCATTER:
		add_access(o, c->send, all, ORDER_READ, true);
		add_access(o, c->recv, part, ORDER_WRITE, true);
		break;
	case RF_COLL_SEND: add_access(o, c->send, part, ORDER_READ, true); break;
	case RF_COLL_RECV: add_access(o, c->recv, part, ORDER_WRITE, true); break;
	case RF_COLL_ALLTOALL:
		add_access(o, c->send, all, ORDER_READ, true);
		add_access(o, c->recv, all, ORDER_WRITE, true);
		break;
	case RF_COLL_GATHER:
		add_access(o, c->send, part, ORDER_READ, true);
		if (root)
			add_gathered(o, c, part, p->index * part, all);
		break;
	case RF_COLL_SCATTER:
		if (root)
			add_access(o, c->send, all, ORDER_READ, true);
		if (!root || c->recv != c->send + p->index * part)
			add_access(o, c->recv, part, ORDER_WRITE, true);
		break;
	}
}

static void add_collectives(struct rank *r, const struct stream *s, const struct item *i)
{
	struct order *o = r->queue->order;
	const struct rf_collective *ops = (const void *)i->data;
	struct coll_place place;
	if (!coll_place(r->world->coll, r->rank, i->coll.comm->o.id, &place) ||
	    coll_nothing_to_do(r->world->coll, r->rank, i->coll.comm->o.id, ops, i->coll.count))
		return;
	for (uint32_t n = 0; n < i->coll.count; n++) {
		order_operation(o, s->o.id, name_of(ops[n].kind), ops[n].r.seq);
		order_in_turn(o, s->o.id, i->coll.comm->o.id); /* as NCCL runs them */
		add_collective(o, &ops[n], &place);
	}
}

/* ---- items ---- */

void accesses_pushed(struct rank *r, const struct stream *s, const struct item *i)
{
	struct order *o = r->queue->order;
	switch (i->kind) {
	case ITEM_KERNEL: add_kernel_accesses(r, s, i); break;
	case ITEM_PRODUCT:
		order_operation(o, s->o.id, "a matrix product", i->seq);
		add_product(o, (const void *)i->data);
		break;
	case ITEM_COPY:
		order_operation(o, s->o.id, "a copy", i->seq);
		add_copy(o, &i->copy.copy);
		break;
	case ITEM_FILL:
		order_operation(o, s->o.id, "a fill", i->seq);
		add_rows(o, i->fill.fill.dst, i->fill.fill.pitch,
			 i->fill.fill.width * i->fill.fill.element, i->fill.fill.height,
			 ORDER_WRITE);
		break;
	case ITEM_COLLECTIVE: add_collectives(r, s, i); break;
	default: break;
	}
	if (i->slot || i->kind == ITEM_HOST || i->kind == ITEM_REPLY)
		order_host_saw_stream(o, s->o.id); /* the host waits for it, or may be notified */
}
