/* effects.c: tracks how the content of a rank's memory came about, item by item
 * (versions/versions.h): computes an item's footprint before submission, and records its effect
 * after it.
 *
 * Rules: everything that decides which bytes are written goes into the digest, and nothing that
 * differs between ranks without deciding that: an address counts by the content there. Anything
 * that is not certainly described becomes private.
 */
#include "queue/effects.h"

#include <string.h>

#include "queue/queue_parts.h"
#include "proxy.h"
#include "queue/product.h"
#include "rank/bounds.h"

#define ROWS_MAX 256 /* recorded one by one */
#define REACHES_MAX 1024
#define AUX_TYPE 1 /* a type whose elements are at least as large as those of any aux */

/* The first word of a digest: what it describes. */
enum { OF_KERNEL = OF_QUEUE, OF_PRODUCT, OF_COLLECTIVE, OF_COPIED, OF_FILLED };

/* ---- copies and fills ---- */

/* Adds the range from the first row to the end of the last one. */
static void add_rows(struct footprint *f, uint64_t addr, uint64_t pitch, uint64_t width,
		     uint64_t rows, uint32_t use)
{
	if (width && rows)
		footprint_add(f, addr, (rows - 1) * pitch + width, use);
}

/* Begins a digest with where in the range is written: rows of this form. */
static void begin_rows(struct digest *d, uint32_t what, uint64_t pitch, uint64_t width,
		       uint64_t rows)
{
	digest_begin(d);
	digest_word(d, what);
	digest_word(d, pitch);
	digest_word(d, width);
	digest_word(d, rows);
}

static void end_rows(struct footprint *f, struct digest *d)
{
	f->key = digest_end(d);
	f->keyed = true;
}

static bool ranges_disjoint(const struct range *x, const struct range *y)
{
	return x->addr + x->bytes <= y->addr || y->addr + y->bytes <= x->addr;
}

/* A copy within the device has a key. A copy from the host has none: its bytes would be read again
 * and again while it waits. */
void copy_footprint(struct rank *r, const struct item *i, struct footprint *f)
{
	const struct rf_copy *c = &i->copy.copy;
	struct digest d;
	footprint_none(f);
	if (c->src_place == RF_AT_ADDRESS)
		add_rows(f, c->src, c->src_pitch, c->width, c->height, REACH_READ);
	if (c->dst_place == RF_AT_ADDRESS)
		add_rows(f, c->dst, c->dst_pitch, c->width, c->height, REACH_WRITTEN);
	if (!r->memory.write_protected || f->count < 2 || c->height > ROWS_MAX ||
	    !ranges_disjoint(&f->ranges[0], &f->ranges[1]))
		return;
	begin_rows(&d, OF_COPIED, c->dst_pitch, c->width, c->height);
	bool known = true;
	for (uint64_t row = 0; row < c->height && known; row++)
		known = content_absorb(&r->memory, c->src + row * c->src_pitch, c->width, &d);
	if (known)
		end_rows(f, &d);
}

void fill_footprint(struct rank *r, const struct item *i, struct footprint *f)
{
	const struct rf_fill *a = &i->fill.fill;
	struct digest d;
	footprint_none(f);
	add_rows(f, a->dst, a->pitch, a->width * a->element, a->height, REACH_WRITTEN);
	if (!r->memory.write_protected || !f->count || a->height > ROWS_MAX)
		return;
	begin_rows(&d, OF_FILLED, a->pitch, a->width, a->height);
	digest_word(&d, (uint64_t)a->value << 32 | a->element);
	end_rows(f, &d);
}

void copy_effect(struct rank *r, const struct item *i, const struct footprint *f)
{
	const struct rf_copy *c = &i->copy.copy;
	const uint8_t *host = c->src_place == RF_AT_BULK ? r->ring.map + RF_OFF_BULK : i->data;
	uint64_t rows = c->height, width = c->width;
	(void)f;
	if (c->dst_place != RF_AT_ADDRESS || !width || !rows)
		return;
	if (rows > 1 && c->dst_pitch == width && c->src_pitch == width) {
		width *= rows; /* on_copy has checked for overflow */
		rows = 1;
	}
	if (rows > ROWS_MAX) {
		content_unknown(&r->memory, c->dst, (rows - 1) * c->dst_pitch + width);
		return;
	}
	for (uint64_t row = 0; row < rows; row++) {
		uint64_t to = c->dst + row * c->dst_pitch, from = c->src + row * c->src_pitch;
		if (c->src_place == RF_AT_ADDRESS)
			content_copied(&r->memory, to, from, width);
		else
			content_is(&r->memory, to, width, content_of_bytes(host + from, width));
	}
}

void fill_effect(struct rank *r, const struct item *i, const struct footprint *footprint)
{
	const struct rf_fill *f = &i->fill.fill;
	uint64_t rows = f->height, width = f->width * f->element;
	(void)footprint;
	if (!width || !rows)
		return;
	if (rows > 1 && f->pitch == width) {
		width *= rows;
		rows = 1;
	}
	if (rows > ROWS_MAX) {
		content_unknown(&r->memory, f->dst, (rows - 1) * f->pitch + width);
		return;
	}
	struct content content = versions_fill(f->value, f->element);
	for (uint64_t row = 0; row < rows; row++)
		content_is(&r->memory, f->dst + row * f->pitch, width, content);
}

/* Compares the content row by row. */
bool copy_there(struct rank *r, const struct item *i)
{
	const struct rf_copy *c = &i->copy.copy;
	bool same = c->src_place == RF_AT_ADDRESS && c->dst_place == RF_AT_ADDRESS &&
		    c->height <= ROWS_MAX;
	for (uint64_t row = 0; row < c->height && same; row++) {
		struct digest d[2];
		digest_begin(&d[0]);
		digest_begin(&d[1]);
		same = content_absorb(&r->memory, c->src + row * c->src_pitch, c->width, &d[0]) &&
		       content_absorb(&r->memory, c->dst + row * c->dst_pitch, c->width, &d[1]);
		if (!same)
			break;
		struct version x = digest_end(&d[0]), y = digest_end(&d[1]);
		same = x.a == y.a && x.b == y.b;
	}
	return same;
}

bool fill_there(struct rank *r, const struct item *i)
{
	const struct rf_fill *f = &i->fill.fill;
	struct content content = versions_fill(f->value, f->element);
	bool same = f->height <= ROWS_MAX;
	for (uint64_t row = 0; row < f->height && same; row++)
		same = content_holds(&r->memory, f->dst + row * f->pitch, f->width * f->element,
				     content);
	return same;
}

/* ---- kernels ---- */

static uint32_t reach_of(uint32_t use)
{
	return (use & PROXY_READ ? REACH_READ : 0) |
	       (use & (PROXY_WRITTEN | PROXY_ATOMIC) ? REACH_WRITTEN : 0) |
	       (use & PROXY_ATOMIC ? REACH_UNORDERED : 0);
}

/* Collects the addresses among the parameters that the kernel reaches memory through, and removes
 * them from `params` unless their values matter. Other words stay there as numbers. */
static uint32_t take_words(const struct bound_launch *launch, const uint8_t *given, uint8_t *params,
			   struct reach *reaches)
{
	uint32_t count = 0;
	for (uint32_t n = 0; n < launch->word_count; n++) {
		const struct bound_word *w = &launch->words[n];
		uint64_t word, kept;
		if (!reach_of(w->use))
			continue;
		memcpy(&word, given + w->at, sizeof word);
		reaches[count++] = (struct reach){word, reach_of(w->use), w->bounds.known,
						  w->bounds.read, w->bounds.written};
		kept = w->use & PROXY_VALUE ? word : w->use & PROXY_LOW_BITS ? word & 0xff : 0;
		memcpy(params + w->at, &kept, sizeof kept);
	}
	return count;
}

/* Bytes that no thread reads may differ: the padding of structures, the unused part of a list. */
static void digest_read(struct digest *d, const struct bound_launch *launch, const uint8_t *params)
{
	for (uint32_t n = 0; n < launch->read_count; n++) {
		const struct bound_part *part = &launch->read[n];
		digest_word(d, part->at);
		digest_bytes(d, params + part->at, part->bytes);
	}
}

static struct reach variable_reach(const struct function *f, const struct proxy_access *a)
{
	struct bound all = {0, (int64_t)a->bytes};
	return (struct reach){f->module->globals_addr + a->at, reach_of(a->use), a->bounded, all,
			      all};
}

/* Begins a digest of a kernel or product: devices may differ in their arithmetic. */
static void begin_computed(const struct rank *r, struct digest *d, uint32_t what)
{
	digest_begin(d);
	digest_word(d, what);
	digest_word(d, r->device->arithmetic.a);
	digest_word(d, r->device->arithmetic.b);
}

/* The effect of kernels and products follows from their key. */
void run_effect(struct rank *r, const struct item *i, const struct footprint *f)
{
	(void)i;
	content_commit(&r->memory, f, content_version(&r->memory, f));
}

void kernel_effect(struct rank *r, const struct item *i, const struct footprint *f)
{
	opaque_done(r, i);
	run_effect(r, i, f);
}

static void footprint_anything(struct footprint *f)
{
	footprint_none(f);
	f->known = false;
}

void kernel_footprint(struct rank *r, const struct item *i, struct footprint *footprint)
{
	const struct function *f = i->kernel.function;
	const struct rf_launch *l = &i->kernel.launch;
	struct reach reaches[REACHES_MAX];
	struct bound_launch launch;
	struct bound_shape shape;
	uint8_t params[RF_RECORD_MAX];
	struct digest d;
	if (f->opaque) {
		opaque_footprint(r, i, footprint);
		return;
	}
	if (!f->closed || l->param_bytes > sizeof params) {
		footprint_anything(footprint);
		return;
	}
	memcpy(shape.grid, l->grid, sizeof shape.grid);
	memcpy(shape.block, l->block, sizeof shape.block);
	if (!bounds_of(f->reaches, &shape, i->data, &launch) ||
	    launch.word_count + f->variable_count > REACHES_MAX) {
		footprint_anything(footprint);
		return;
	}
	memcpy(params, i->data, l->param_bytes);
	uint32_t count = take_words(&launch, i->data, params, reaches);
	for (uint32_t n = 0; n < f->variable_count; n++)
		reaches[count++] = variable_reach(f, &f->variables[n]);
	begin_computed(r, &d, OF_KERNEL);
	digest_word(&d, f->identity.a);
	digest_word(&d, f->identity.b);
	for (uint32_t n = 0; n < 3; n++)
		digest_word(&d, (uint64_t)l->grid[n] << 32 | l->block[n]);
	digest_word(&d, (uint64_t)l->shared_bytes << 32 | (uint64_t)l->cluster << 8 | l->flags);
	digest_read(&d, &launch, params);
	content_footprint(&r->memory, &d, reaches, count, footprint);
}

/* ---- matrix products ---- */

/* Moves an address from the record to the reaches. Its alignment counts, because the library may
 * choose its algorithm by that. */
static struct reach *take_address(struct digest *d, uint64_t *addr, uint32_t use,
				  struct reach *reaches, uint32_t *count)
{
	struct reach *reach = &reaches[(*count)++];
	*reach = (struct reach){.addr = *addr, .use = use};
	digest_word(d, *addr & 0xff);
	*addr = 0;
	return reach;
}

/* Limits the reach to what matrices of this form span. */
static void limit_to_matrices(struct reach *reach, const struct rf_matrix *x, uint64_t rows,
			      uint64_t columns, uint64_t count, uint8_t type)
{
	uint64_t bytes;
	if (!matrix_bytes(x, rows, columns, count, type, &bytes))
		return;
	reach->bounded = REACH_READ | REACH_WRITTEN;
	reach->read = reach->written = (struct bound){0, (int64_t)bytes};
}

/* Ranges of a product in addition to its matrices. A bias is a result if it is a sum. */
static void take_others(struct digest *d, struct rf_gemm_call *a, struct reach *reaches,
			uint32_t *count)
{
	struct rf_gemm *g = &a->g;
	bool sums = g->flags & (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B);
	const struct rf_matrix column = {.row = 1, .batch = g->bias_batch};
	struct reach *bias = take_address(d, &g->bias, REACH_READ | (sums ? REACH_WRITTEN : 0),
					  reaches, count);
	limit_to_matrices(bias, &column, g->flags & RF_GEMM_SUM_B ? g->n : g->m, 1, g->count,
			  g->type_bias);
	limit_to_matrices(take_address(d, &a->aux.addr, REACH_READ | REACH_WRITTEN, reaches, count),
			  &a->aux, g->m, g->n, g->count, AUX_TYPE);
	if (!(g->flags & RF_GEMM_SCALARS))
		return;
	for (uint32_t n = 0; n < 2; n++) {
		struct reach *scalar = take_address(d, n ? &g->beta : &g->alpha, REACH_READ,
						    reaches, count);
		limit_to_matrices(scalar, &column, 1, 1, 1, g->type_scale);
	}
}

/* A library may write to a part of its workspace: the content then depends on the old one. */
static void take_workspace(struct digest *d, struct rf_gemm_how *how, struct reach *reaches,
			   uint32_t *count)
{
	struct reach *reach;
	if (!how->workspace || !how->workspace_bytes)
		return;
	reach = take_address(d, &how->workspace, REACH_READ | REACH_WRITTEN, reaches, count);
	if (how->workspace_bytes > INT64_MAX)
		return;
	reach->bounded = REACH_READ | REACH_WRITTEN;
	reach->read = reach->written = (struct bound){0, (int64_t)how->workspace_bytes};
}

void product_footprint(struct rank *r, const struct item *i, struct footprint *footprint)
{
	struct rf_gemm_call a = {0};
	struct rf_gemm *g = &a.g;
	struct reach reaches[9];
	struct digest d;
	uint32_t count = 0, bytes;
	memcpy(g, i->data, sizeof *g);
	bytes = g->r.opcode == RF_OP_GEMM       ? sizeof *g
		: g->r.opcode == RF_OP_GEMM_AUX ? offsetof(struct rf_gemm_call, how)
						: sizeof a;
	memcpy(&a, i->data, bytes);
	if (g->flags & RF_GEMM_POINTERS) {
		footprint_anything(footprint);
		return;
	}
	memset(&g->r, 0, sizeof g->r);
	g->stream = 0;
	begin_computed(r, &d, OF_PRODUCT);
	if (r->device->hal->product_library)
		digest_word(&d, r->device->hal->product_library(&a));
	limit_to_matrices(take_address(&d, &g->a.addr, REACH_READ, reaches, &count), &g->a, g->m,
			  g->k, g->count, g->type_ab);
	limit_to_matrices(take_address(&d, &g->b.addr, REACH_READ, reaches, &count), &g->b, g->k,
			  g->n, g->count, g->type_ab);
	limit_to_matrices(take_address(&d, &g->c.addr, REACH_READ, reaches, &count), &g->c, g->m,
			  g->n, g->count, g->type_cd);
	limit_to_matrices(take_address(&d, &g->d.addr, REACH_WRITTEN, reaches, &count), &g->d, g->m,
			  g->n, g->count, g->type_cd);
	take_others(&d, &a, reaches, &count);
	take_workspace(&d, &a.how, reaches, &count);
	digest_bytes(&d, &a, bytes);
	content_footprint(&r->memory, &d, reaches, count, footprint);
}

/* ---- collectives ---- */

/* Returns the number of elements of the result that this rank gets, beginning at element *from; 0:
 * none, or elements that no other rank can have. */
static uint64_t received_elements(const struct rf_collective *o, const struct coll_place *p,
				  uint64_t *from)
{
	bool root = o->root >= 0 && (uint32_t)o->root == p->index;
	*from = 0;
	switch (o->kind) {
	case RF_COLL_ALLREDUCE:
	case RF_COLL_BROADCAST: return o->count;
	case RF_COLL_REDUCE: return root ? o->count : 0;
	case RF_COLL_ALLGATHER: return o->count * p->nranks;
	case RF_COLL_GATHER: return root ? o->count * p->nranks : 0;
	case RF_COLL_REDUCESCATTER:
	case RF_COLL_SCATTER: *from = o->count * p->index; return o->count;
	default: return 0;
	}
}

void collective_effect(struct rank *r, struct item *i, const struct coll_place *first)
{
	struct coll_place p = *first;
	for (uint32_t k = 0; k < i->coll.count; k++) {
		const struct rf_collective *o = &item_ops(i)[k];
		if (o->kind == RF_COLL_SEND || o->kind == RF_COLL_RECV)
			continue;
		uint64_t size = dtype_bytes(o->dtype), from,
			 count = received_elements(o, &p, &from);
		struct digest d;
		digest_begin(&d);
		digest_word(&d, OF_COLLECTIVE);
		digest_word(&d, p.key);
		digest_word(&d, p.number++);
		struct content content = {digest_end(&d), from * size, 0};
		content_is(&r->memory, o->recv, count * size, content);
	}
}
