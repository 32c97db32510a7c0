/* generate.c: inputs for fuzz_decoder.c from a seed: what a rank that has gone wrong might send.
 *
 * Most fields are what a library would send (live handles, addresses of the heap, right sizes),
 * so that records get past the first check; a few are not, and now and then bytes are flipped.
 */
#include <string.h>

#include "channel.h"
#include "fuzz.h"

struct random {
	uint64_t state;
	uint32_t group_left; /* collectives that still belong to the group of `group_rank` */
	uint8_t group_rank;
};

static uint64_t draw(struct random *r) /* splitmix64 */
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t below(struct random *r, uint64_t n) { return draw(r) % n; }
static int one_in(struct random *r, uint64_t n) { return below(r, n) == 0; }

static uint64_t wild(struct random *r)
{
	static const uint64_t edges[] = {0,
					 1,
					 0x7fffffff,
					 0x80000000,
					 0xffffffff,
					 1ull << 40,
					 1ull << 63,
					 UINT64_MAX,
					 UINT64_MAX - 511,
					 RF_DEV_BASE - 1,
					 RF_DEV_BASE + RF_HEAP_BYTES,
					 RF_DEV_BASE + RF_WINDOW_BYTES};
	return one_in(r, 2) ? draw(r) >> below(r, 64) : edges[below(r, sizeof edges / 8)];
}

/* Handles come from small pools by kind, so that they mostly name something, or not any more. */
static uint64_t stream(struct random *r)
{
	return one_in(r, 40) ? wild(r) : one_in(r, 2) ? 1 : 16 + below(r, 4);
}
static uint64_t event(struct random *r) { return one_in(r, 40) ? wild(r) : 32 + below(r, 6); }
static uint64_t module(struct random *r) { return one_in(r, 40) ? wild(r) : 48 + below(r, 3); }
static uint64_t function(struct random *r) { return one_in(r, 40) ? wild(r) : 64 + below(r, 4); }
/* Communicators of this rank alone; PAIR is the communicator of both. */
#define PAIR 90ull
static uint64_t comm(struct random *r)
{
	return one_in(r, 100) ? wild(r) : one_in(r, 5) ? PAIR : 80 + below(r, 3);
}
static uint64_t redop(struct random *r) { return one_in(r, 40) ? wild(r) : 96 + below(r, 3); }

static uint64_t address(struct random *r)
{
	if (one_in(r, 40))
		return wild(r);
	if (one_in(r, 10))
		return RF_PINNED_BASE(0) + below(r, 1 << 20);
	return RF_DEV_BASE + below(r, 64) * (RF_CHUNK_BYTES / 8) + below(r, 4) * 512;
}

static uint64_t amount(struct random *r)
{
	return one_in(r, 30) ? wild(r) : one_in(r, 6) ? below(r, 5 << 20) : below(r, 512);
}

static void fill_copy(struct random *r, struct rf_copy *c)
{
	c->stream = stream(r);
	c->dst_place = one_in(r, 4) ? RF_AT_BULK : one_in(r, 60) ? (uint8_t)below(r, 5) : 0;
	c->src_place = (uint8_t)below(r, one_in(r, 60) ? 6 : 3);
	c->dst = c->dst_place ? below(r, 70) * RF_BULK_BYTES / 2 : address(r);
	c->src = c->src_place == RF_AT_ADDRESS ? address(r)
		 : c->src_place == RF_AT_BULK  ? below(r, 70) * RF_BULK_BYTES / 2
					       : below(r, 3);
	c->width = amount(r);
	c->height = one_in(r, 4) ? amount(r) % 20 : one_in(r, 60) ? wild(r) : 1;
	c->dst_pitch = one_in(r, 20) ? wild(r) : c->width + below(r, 64);
	c->src_pitch = one_in(r, 20) ? wild(r) : c->width + below(r, 64);
	c->release_bulk = (uint8_t)below(r, 2);
}

static void fill_fill(struct random *r, struct rf_fill *f)
{
	f->stream = stream(r);
	f->element = one_in(r, 30) ? (uint32_t)wild(r) : 1u << below(r, 3);
	f->dst = address(r) & ~3ull;
	f->width = one_in(r, 20) ? 0 : amount(r);
	f->height = one_in(r, 4) ? amount(r) % 20 : one_in(r, 60) ? wild(r) : 1;
	f->pitch = one_in(r, 10)   ? 0
		   : one_in(r, 20) ? wild(r)
				   : f->width * f->element + 4 * below(r, 16);
	f->value = (uint32_t)draw(r);
}

static void fill_launch(struct random *r, struct rf_launch *l, uint8_t *params)
{
	uint64_t pointer = address(r);
	l->stream = stream(r);
	l->function = function(r);
	for (int i = 0; i < 3; i++) {
		l->grid[i] = one_in(r, 80) ? (uint32_t)below(r, 70000) % 64 : 1;
		l->block[i] = one_in(r, 80) ? (uint32_t)wild(r) : 1;
	}
	l->param_bytes = one_in(r, 40) ? (uint32_t)wild(r) : 8;
	l->shared_bytes = one_in(r, 40) ? (uint32_t)wild(r) : 0;
	memcpy(params, &pointer, sizeof pointer);
}

/* By columns or by rows, with right lines more often than not. */
static struct rf_matrix matrix(struct random *r, uint64_t rows, uint64_t columns)
{
	struct rf_matrix x = {address(r), 1, rows + below(r, 3), 0};
	if (one_in(r, 2))
		x = (struct rf_matrix){x.addr, columns + below(r, 3), 1, 0};
	if (one_in(r, 3))
		x.batch = one_in(r, 10) ? wild(r) : rows * columns;
	if (one_in(r, 20))
		*(one_in(r, 2) ? &x.row : &x.col) = wild(r);
	return x;
}

static void fill_gemm(struct random *r, struct rf_gemm *g)
{
	static const uint8_t types[] = {0, 0, 0, 1, 2, 3, 10, 14};
	g->stream = stream(r);
	g->m = one_in(r, 40) ? wild(r) : 1 + below(r, 40);
	g->n = one_in(r, 40) ? wild(r) : 1 + below(r, 40);
	g->k = one_in(r, 40) ? wild(r) : below(r, 40);
	g->count = one_in(r, 40) ? wild(r) : 1 + below(r, 3);
	g->a = matrix(r, g->m, g->k);
	g->b = matrix(r, g->k, g->n);
	g->c = matrix(r, g->m, g->n);
	g->d = matrix(r, g->m, g->n);
	g->type_ab = g->type_cd = g->type_scale = types[below(r, one_in(r, 4) ? 8 : 4)];
	if (one_in(r, 4))
		g->type_cd = one_in(r, 4) ? (uint8_t)draw(r) : types[below(r, 8)];
	g->bias = one_in(r, 3) ? address(r) : 0;
	g->bias_batch = one_in(r, 10) ? wild(r) : g->m;
	g->flags = one_in(r, 4) ? (uint32_t)below(r, one_in(r, 10) ? 32 : 16) : 0;
	g->alpha = g->flags & RF_GEMM_SCALARS ? address(r) : draw(r);
	g->beta = g->flags & RF_GEMM_SCALARS ? address(r) : one_in(r, 2) ? 0 : draw(r);
}

static void fill_gemm_aux(struct random *r, struct rf_gemm_aux *call)
{
	struct rf_gemm *g = &call->g;
	uint64_t unit = one_in(r, 10) ? 1 : 128;

	fill_gemm(r, g);
	call->aux = matrix(r, g->m, g->n);
	call->aux.col = one_in(r, 10) ? wild(r) : (g->m + unit - 1) / unit * unit;
	if (!one_in(r, 10)) {
		call->aux.row = 1;
		call->aux.batch = call->aux.col * g->n;
		g->flags &= ~(uint32_t)RF_GEMM_POINTERS;
	}
	g->flags = (g->flags & 3) | (uint32_t)below(r, one_in(r, 10) ? 2048 : 1024) << 2;
	if (!one_in(r, 5)) /* flags that go together */
		g->flags &= one_in(r, 2) ? 3 | RF_GEMM_RELU | RF_GEMM_KEEP | RF_GEMM_SUM_B
					 : 3 | RF_GEMM_DGELU | RF_GEMM_SUM_D;
}

static void fill_gemm_call(struct random *r, struct rf_gemm_call *call)
{
	struct rf_gemm_how *how = &call->how;

	fill_gemm_aux(r, (void *)call);
	how->api = one_in(r, 10) ? (uint8_t)draw(r) : (uint8_t)below(r, RF_GEMM_APIS);
	how->op[0] = (uint8_t)below(r, one_in(r, 10) ? 5 : 3);
	how->op[1] = (uint8_t)below(r, one_in(r, 10) ? 5 : 3);
	how->by_rows = (uint8_t)draw(r);
	how->algorithm = one_in(r, 2) ? -1 : (int32_t)draw(r);
	for (int i = 0; i < 4; i++)
		how->ld[i] = one_in(r, 10) ? wild(r) : call->g.m;
	if (one_in(r, 2)) {
		how->workspace = one_in(r, 10) ? wild(r) : address(r);
		how->workspace_bytes = one_in(r, 5) ? wild(r) : below(r, 4096);
	}
}

static void fill_collective(struct random *r, struct rf_collective *c)
{
	static const uint32_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	c->stream = stream(r);
	c->comm = comm(r);
	c->send = address(r);
	c->recv = address(r);
	c->kind = one_in(r, 40) ? (uint32_t)wild(r) : (uint32_t)below(r, 10);
	c->dtype = one_in(r, 40) ? (uint32_t)wild(r) : (uint32_t)below(r, 12);
	c->count = amount(r) / (c->dtype < 12 ? sizes[c->dtype] : 1);
	c->op = one_in(r, 6) ? redop(r) : below(r, 5);
	c->root = one_in(r, 30) ? (int32_t)wild(r) : 0;
	if (!r->group_left && one_in(r, 8))
		r->group_left = 1 + (uint32_t)below(r, 3);
	else if (r->group_left)
		r->group_left--;
	c->group_left = one_in(r, 200) ? (uint32_t)wild(r) : r->group_left;
	if (c->comm != PAIR || one_in(r, 40))
		return;
	c->kind = RF_COLL_ALLREDUCE; /* both call the same, or the job fails */
	c->dtype = 7;
	c->count = 1000;
	c->op = 0;
	c->root = 0;
	c->send = c->recv = RF_DEV_BASE;
}

static uint32_t fill_name(struct random *r, struct rf_name *n, char *name)
{
	static const char *const names[] = {"add_one", "x", "first", "second", "nothing"};
	const char *chosen = names[below(r, 5)];
	n->module = module(r);
	n->handle = function(r);
	n->bulk = (uint32_t)below(r, one_in(r, 30) ? 200 : 64);
	n->name_bytes = (uint32_t)strlen(chosen);
	memcpy(name, chosen, n->name_bytes);
	if (one_in(r, 30))
		n->name_bytes = (uint32_t)wild(r);
	return (uint32_t)strlen(chosen);
}

static uint32_t fill_clusters(struct random *r, struct rf_clusters *c)
{
	c->function = function(r);
	for (uint32_t n = 0; n < 3; n++) {
		c->grid[n] = (uint32_t)below(r, 5);
		c->block[n] = (uint32_t)below(r, 3);
	}
	c->cluster = (uint32_t)(one_in(r, 3) ? draw(r) : 1 + below(r, 4) + (1 << 8) + (1 << 16));
	c->kind = (uint32_t)below(r, 4);
	c->large = (uint32_t)below(r, 2);
	return sizeof *c;
}

static uint32_t fill_tensor_map(struct random *r, struct rf_tensor_map *m)
{
	uint8_t *byte = (uint8_t *)m + sizeof m->r;
	for (uint32_t i = 0; one_in(r, 2) && i < sizeof *m - sizeof m->r; i++)
		byte[i] = (uint8_t)draw(r);
	m->addr = address(r);
	m->kind = (uint32_t)below(r, 5);
	m->rank = (uint32_t)below(r, 7);
	return sizeof *m;
}

/* The body of a record about memory or modules; its bytes, 0: the opcode is of another kind. */
static uint32_t fill_memory(struct random *r, uint16_t opcode, uint8_t *record)
{
	struct rf_record *head = (void *)record;
	uint32_t extra = 0;
	switch (opcode) {
	case RF_OP_ALLOC: {
		struct rf_alloc *a = (void *)head;
		a->addr = one_in(r, 30) ? wild(r) : RF_DEV_BASE + below(r, 16) * RF_CHUNK_BYTES / 2;
		a->bytes = one_in(r, 3) ? below(r, 3 * RF_CHUNK_BYTES) : amount(r);
		a->flags = one_in(r, 8) ? (uint32_t)wild(r) : (uint32_t)below(r, 2);
		return sizeof *a;
	}
	case RF_OP_FREE:
		((struct rf_free *)head)->addr = RF_DEV_BASE + below(r, 16) * RF_CHUNK_BYTES / 2;
		return sizeof(struct rf_free);
	case RF_OP_FREE_ASYNC: {
		struct rf_free_async *f = (void *)head;
		f->addr = RF_DEV_BASE + below(r, 16) * RF_CHUNK_BYTES / 2;
		f->stream = stream(r);
		return sizeof *f;
	}
	case RF_OP_COPY:
		fill_copy(r, (void *)head);
		if (((struct rf_copy *)head)->src_place == RF_AT_INLINE)
			extra = (uint32_t)below(r, 600);
		for (uint32_t i = 0; i < extra; i++)
			record[sizeof(struct rf_copy) + i] = (uint8_t)i;
		return sizeof(struct rf_copy) + extra;
	case RF_OP_FILL: fill_fill(r, (void *)head); return sizeof(struct rf_fill);
	case RF_OP_MODULE_DATA: {
		struct rf_module_data *d = (void *)head;
		d->module = module(r);
		d->offset = one_in(r, 4) ? amount(r) : 0;
		d->bytes = (uint32_t)amount(r);
		d->bulk = (uint32_t)below(r, one_in(r, 30) ? 200 : 64);
		return sizeof *d;
	}
	case RF_OP_MODULE_LOAD: {
		struct rf_module_load *l = (void *)head;
		l->module = module(r);
		l->bytes = amount(r);
		l->image = (uint32_t)below(r, 3);
		return sizeof *l;
	}
	case RF_OP_MODULE_GLOBALS:
		((struct rf_module_globals *)head)->module = module(r);
		((struct rf_module_globals *)head)->addr = address(r);
		return sizeof(struct rf_module_globals);
	case RF_OP_TENSOR_MAP: return fill_tensor_map(r, (void *)head);
	case RF_OP_CLUSTERS: return fill_clusters(r, (void *)head);
	case RF_OP_FUNCTION_NAMES: {
		struct rf_function_names *n = (void *)head;
		n->module = module(r);
		n->first = (uint32_t)(one_in(r, 20) ? draw(r) : below(r, 3));
		n->bulk = (uint32_t)below(r, one_in(r, 30) ? 200 : 64);
		return sizeof *n;
	}
	case RF_OP_FUNCTION_GET:
	case RF_OP_GLOBAL_GET:
		return sizeof(struct rf_name) +
		       fill_name(r, (void *)head, (char *)record + sizeof(struct rf_name));
	default: return 0;
	}
}

/* The same for streams, events, launches and matrix products. */
static uint32_t fill_order(struct random *r, uint16_t opcode, uint8_t *record)
{
	struct rf_record *head = (void *)record;
	switch (opcode) {
	case RF_OP_STREAM_CREATE:
		((struct rf_stream_create *)head)->stream = stream(r);
		((struct rf_stream_create *)head)->flags = (uint32_t)below(r, 4);
		return sizeof(struct rf_stream_create);
	case RF_OP_EVENT_CREATE:
		((struct rf_event_create *)head)->event = event(r);
		return sizeof(struct rf_event_create);
	case RF_OP_EVENT_RECORD:
	case RF_OP_STREAM_WAIT:
		((struct rf_event *)head)->event = event(r);
		((struct rf_event *)head)->stream = stream(r);
		return sizeof(struct rf_event);
	case RF_OP_EVENT_ELAPSED:
		((struct rf_elapsed *)head)->start = event(r);
		((struct rf_elapsed *)head)->end = event(r);
		return sizeof(struct rf_elapsed);
	case RF_OP_LAUNCH:
		fill_launch(r, (void *)head, record + sizeof(struct rf_launch));
		return sizeof(struct rf_launch) + 8;
	case RF_OP_GEMM: fill_gemm(r, (void *)head); return sizeof(struct rf_gemm);
	case RF_OP_GEMM_AUX: fill_gemm_aux(r, (void *)head); return sizeof(struct rf_gemm_aux);
	case RF_OP_GEMM_CALL: fill_gemm_call(r, (void *)head); return sizeof(struct rf_gemm_call);
	case RF_OP_HOST_FUNC:
		((struct rf_host_func *)head)->stream = stream(r);
		((struct rf_host_func *)head)->token = draw(r);
		return sizeof(struct rf_host_func);
	default: return 0;
	}
}

/* The same for communicators. */
static uint32_t fill_comm(struct random *r, uint16_t opcode, uint8_t rank, uint8_t *record)
{
	struct rf_record *head = (void *)record;
	switch (opcode) {
	case RF_OP_COMM_INIT: {
		struct rf_comm_init *c = (void *)head;
		c->comm = comm(r);
		c->nranks = one_in(r, 100) ? (uint32_t)wild(r) : c->comm == PAIR ? 2 : 1;
		c->rank = one_in(r, 100) ? (uint32_t)wild(r) : c->comm == PAIR ? rank % 2 : 0;
		c->unique_id[0] = c->comm == PAIR; /* one's own is new each time */
		for (int i = 1; i < 8; i++)
			c->unique_id[i] = c->comm == PAIR ? 0 : (uint8_t)draw(r);
		return sizeof *c;
	}
	case RF_OP_COMM_SPLIT: {
		struct rf_comm_split *c = (void *)head;
		c->parent = comm(r);
		c->comm = comm(r);
		c->color = (int32_t)below(r, 3) - 1;
		c->key = (int32_t)draw(r);
		return sizeof *c;
	}
	case RF_OP_COLLECTIVE:
		fill_collective(r, (void *)head);
		return sizeof(struct rf_collective);
	case RF_OP_REDOP_CREATE:
		((struct rf_redop *)head)->redop = redop(r);
		((struct rf_redop *)head)->comm = comm(r);
		((struct rf_redop *)head)->dtype = (uint32_t)below(r, 12);
		return sizeof(struct rf_redop);
	default: return 0;
	}
}

/* The body of a record of this opcode; its bytes. `record` is zeroed. */
static uint32_t fill(struct random *r, uint16_t opcode, uint8_t rank, uint8_t *record)
{
	struct rf_record *head = (void *)record;
	uint32_t bytes = fill_memory(r, opcode, record);
	if (!bytes)
		bytes = fill_order(r, opcode, record);
	if (!bytes)
		bytes = fill_comm(r, opcode, rank, record);
	if (bytes)
		return bytes;
	switch (opcode) {
	case RF_OP_STREAM_DESTROY:
	case RF_OP_STREAM_SYNC:
	case RF_OP_STREAM_QUERY:
		((struct rf_handle *)head)->handle = stream(r);
		return sizeof(struct rf_handle);
	case RF_OP_COMM_DESTROY:
	case RF_OP_COMM_ABORT:
	case RF_OP_COMM_FINALIZE:
		((struct rf_handle *)head)->handle = comm(r);
		return sizeof(struct rf_handle);
	case RF_OP_REDOP_DESTROY:
		((struct rf_handle *)head)->handle = redop(r);
		return sizeof(struct rf_handle);
	case RF_OP_MODULE_UNLOAD:
		((struct rf_handle *)head)->handle = module(r);
		return sizeof(struct rf_handle);
	default: /* the rest names an event, or nothing */
		((struct rf_handle *)head)->handle = event(r);
		return sizeof(struct rf_handle);
	}
}

static uint16_t any_opcode(struct random *r)
{
	static const uint16_t opcodes[] = {
#define RF_OPCODE(name, ...) RF_OP_##name,
#include "opcodes.def"
		/* what says more, more often */
		RF_OP_ALLOC,  RF_OP_COPY,      RF_OP_COPY,       RF_OP_FILL,      RF_OP_LAUNCH,
		RF_OP_LAUNCH, RF_OP_COMM_INIT, RF_OP_COLLECTIVE, RF_OP_COLLECTIVE};
	uint16_t opcode = opcodes[below(r, sizeof opcodes / sizeof *opcodes)];
	return one_in(r, 200) ? (uint16_t)below(r, 64) : opcode;
}

/* Most records want an answer: a wrong one without a slot is an error that stays. */
static uint16_t any_slot(struct random *r)
{
	return one_in(r, 500)    ? 0
	       : one_in(r, 2000) ? (uint16_t)wild(r)
				 : 1 + (uint16_t)below(r, 64);
}

static void generate_step(struct random *r, struct fuzz_step *step, uint8_t *record)
{
	static const uint8_t rare[] = {FUZZ_HURRY,   FUZZ_HURRY,   FUZZ_HURRY, FUZZ_HOST, FUZZ_HOST,
				       FUZZ_BARRIER, FUZZ_BARRIER, FUZZ_MOVE,  FUZZ_MOVE};
	memset(record, 0, RF_RECORD_MAX);
	*step = (struct fuzz_step){.kind = FUZZ_RECORD, .rank = (uint8_t)draw(r)};
	if (r->group_left && !one_in(r, 100)) {
		step->rank = r->group_rank;
		step->opcode = RF_OP_COLLECTIVE;
		step->bytes = (uint16_t)(fill(r, step->opcode, step->rank, record) -
					 sizeof(struct rf_record));
	} else if (one_in(r, 24)) {
		step->kind = FUZZ_TURN;
	} else if (one_in(r, 40)) {
		step->kind = rare[below(r, sizeof rare)];
	} else if (one_in(r, 5000)) {
		step->kind = one_in(r, 2) ? FUZZ_EXIT : one_in(r, 2) ? FUZZ_HEAD : FUZZ_RAW;
		step->bytes = 0;
	} else {
		step->kind = one_in(r, 400) ? FUZZ_NUMBER : FUZZ_RECORD;
		step->opcode = step->kind == FUZZ_NUMBER && one_in(r, 2) ? RF_OP_FREE
									 : any_opcode(r);
		r->group_rank = step->rank;
		step->slot = any_slot(r);
		uint32_t size = fill(r, step->opcode, step->rank, record);
		size -= (uint32_t)sizeof(struct rf_record);
		while (one_in(r, 30) && size)
			record[sizeof(struct rf_record) + below(r, size)] ^= (uint8_t)draw(r);
		if (one_in(r, 100))
			size = (uint32_t)below(r, size + 1);
		step->bytes = (uint16_t)size;
	}
}

size_t fuzz_generate(uint64_t seed, uint8_t *out, size_t room)
{
	struct random r = {.state = seed};
	struct fuzz_step step;
	static _Alignas(64) uint8_t record[RF_RECORD_MAX];
	size_t at = 0;
	for (;;) {
		generate_step(&r, &step, record);
		if (at + sizeof step + step.bytes > room)
			return at;
		memcpy(out + at, &step, sizeof step);
		memcpy(out + at + sizeof step, record + sizeof(struct rf_record), step.bytes);
		at += sizeof step + step.bytes;
	}
}

/* Whole steps are moved about; inside a step, bytes change. Steps stay steps. */
size_t fuzz_mutate(uint64_t seed, uint8_t *data, size_t size, size_t room)
{
	struct random r = {.state = seed};
	struct fuzz_step step;
	static _Alignas(64) uint8_t record[RF_RECORD_MAX];
	static uint8_t out[1 << 20];
	size_t at = 0, from = 0;
	uint64_t rate = 2 + below(&r, 60);
	if (room > sizeof out)
		room = sizeof out;
	while (from + sizeof step <= size) {
		memcpy(&step, data + from, sizeof step);
		size_t all = sizeof step + step.bytes;
		if (all > size - from)
			break;
		if (at + 2 * all + sizeof step + RF_RECORD_MAX > room)
			break;
		if (!one_in(&r, rate * 4)) { /* else it is left out */
			memcpy(out + at, data + from, all);
			if (step.bytes && one_in(&r, rate))
				out[at + sizeof step + below(&r, step.bytes)] = (uint8_t)draw(&r);
			at += all;
		}
		if (one_in(&r, rate * 2)) { /* a new one behind it */
			generate_step(&r, &step, record);
			memcpy(out + at, &step, sizeof step);
			memcpy(out + at + sizeof step, record + sizeof(struct rf_record),
			       step.bytes);
			at += sizeof step + step.bytes;
		}
		from += all;
	}
	memcpy(data, out, at);
	return at;
}
