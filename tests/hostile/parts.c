/* parts.c: structures of the proxy's core that no channel shows, looked at from inside: what a
 * function keeps, and items that complete on one execution. Run with sanitizers; exit status 0.
 */
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "clock.h"
#include "codes.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "queue/item.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/fault.h"
#include "rank/module.h"
#include "rank/rank.h"

#define MUST(truth)                                                                                \
	do {                                                                                       \
		if (!(truth)) {                                                                    \
			fprintf(stderr, "parts.c:%d: %s\n", __LINE__, #truth);                     \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

void __sanitizer_cov_trace_pc(void) {} /* the core is compiled for coverage.c */

/* ---- the loop, turned by hand ---- */

bool __wrap_mailbox_start(struct proxy *p) { return p != NULL; }
void __wrap_mailbox_stop(struct proxy *p) { (void)p; }
void __wrap_in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	run(p, arg);
}

static struct proxy *proxy;

static void serve(void)
{
	struct proxy_event e;
	loop_turn(proxy);
	while (proxy_next_event(proxy, &e))
		client_answer(proxy, &e);
}

static int ask(struct client *c, void *record, uint32_t bytes, uint16_t opcode)
{
	client_ask(c, record, bytes, opcode);
	for (uint64_t end = now_ns() + 20000000000ull; !client_answered(c);) {
		MUST(now_ns() < end);
		serve();
	}
	return client_slot(c)->error;
}

/* ---- what is looked at ---- */

static void a_function_keeps_its_layout(struct client *c, struct rank *r)
{
	struct rf_module_data data = {.module = 50, .bytes = 64};
	struct rf_module_load load = {.module = 50, .bytes = 64, .image = RF_IMAGE_PTX};
	struct {
		struct rf_name n;
		char text[8];
	} name = {.n = {.module = 50, .handle = 60, .bulk = 1, .name_bytes = 7}, .text = "add_one"};
	client_post(c, &data, sizeof data, RF_OP_MODULE_DATA, 0);
	MUST(ask(c, &load, sizeof load, RF_OP_MODULE_LOAD) == CU_OK);
	MUST(ask(c, &name, sizeof name, RF_OP_FUNCTION_GET) == CU_OK);
	const struct function *f = (void *)table_get(&r->objects, 60, OBJ_FUNCTION);
	MUST(f && f->param_bytes == 8 && f->param_count == 1);
	MUST(f->params[0].offset == 0 && f->params[0].bytes == 8);
	MUST(f->closed && f->word_count == 1 && f->variable_count == 1);
	MUST(f->words[0].at == 0 && f->words[0].use == PROXY_READ);
	MUST(f->variables[0].at == 64 && f->variables[0].use == (PROXY_READ | PROXY_WRITTEN));
}

/* Accesses beyond the end of the parameters or the globals are refused, and change nothing. */
static void a_function_reaches_what_there_is(struct rank *r)
{
	struct function *f = (void *)table_get(&r->objects, 60, OBJ_FUNCTION);
	const uint32_t params[] = {0, 8};
	const struct proxy_access within = {0, 8, PROXY_WRITTEN}, at_the_end = {1, 8, PROXY_READ};
	const struct proxy_access beyond = {65, 36, PROXY_READ}, far = {~0ull, 8, PROXY_READ};
	struct proxy_function from = {
		.param_count = 1, .param_bytes = 8, .word_count = 1, .words = &at_the_end};
	MUST(function_fill(f, &from, params) == CU_INVALID_IMAGE);
	from.words = &far;
	MUST(function_fill(f, &from, params) == CU_INVALID_IMAGE);
	from.words = &within;
	from.variable_count = 1;
	from.variables = &beyond;
	MUST(function_fill(f, &from, params) == CU_INVALID_IMAGE);
	MUST(f->closed && f->words[0].use == PROXY_READ);
	from.variable_count = 0;
	from.why_open = "it prints";
	from.address = (uintptr_t)f->hal;
	MUST(function_fill(f, &from, params) == CU_OK && !f->closed && f->why_open[3] == 'p');
	MUST(f->words[0].use == PROXY_WRITTEN && !f->variable_count);
}

/* The item whose execution it is goes first, or last. */
static void items_share_an_execution(struct rank *r, uint32_t owner)
{
	struct item *a = item_new(r, ITEM_REPLY, 1000, 0), *b = item_new(r, ITEM_REPLY, 1000, 0);
	struct execution *e = a->execution;
	item_share(b, e);
	MUST(e->refs == 2 && b->execution == e);
	e->place = EXECUTION_ENGINE;
	stream_push(r, r->queue->streams[owner], a);
	stream_push(r, r->queue->streams[!owner], b);
	rank_pump(r);
	MUST(r->queue->items == 2 && r->queue->streams[0]->head && r->queue->streams[1]->head);
	e->reported = true;
	rank_pump(r);
	MUST(r->queue->items == 0 && !r->queue->streams[0]->head && !r->queue->streams[1]->head);
}

static void a_rank_that_leaves_drops_a_shared_execution(struct rank *r)
{
	struct item *a = item_new(r, ITEM_REPLY, 1000, 0), *b = item_new(r, ITEM_REPLY, 1000, 0);
	item_share(b, a->execution);
	a->execution->place = EXECUTION_ENGINE;
	stream_push(r, r->queue->streams[0], a);
	stream_push(r, r->queue->streams[1], b);
	rank_pump(r);
	MUST(r->queue->items == 2);
}

/* An item before which nothing began is not judged again: it completes without running. */
static void a_failed_rank_calls_its_host_functions(struct rank *r)
{
	struct item *first = item_new(r, ITEM_FILL, 1000, 0),
		    *host = item_new(r, ITEM_HOST, 1000, 0);
	stream_push(r, r->queue->streams[0], first);
	stream_push(r, r->queue->streams[1], host);
	proxy->device.active = r;
	r->queue->squashing.first = first;
	rank_fail(r, CU_ILLEGAL_ADDRESS, "a kernel that ran meanwhile has failed");
	rank_pump(r);
	MUST(!r->queue->squashing.first && host->submitted);
}

int main(void)
{
	const struct proxy_config config = {.hal = "soft",
					    .memory_bytes = 8 * RF_CHUNK_BYTES,
					    .workers = 1,
					    .cc_major = 8,
					    .speed = 1.0};
	const uint32_t here = 0;
	char error[512];
	struct client c;
	client_open(&c, 0, 1);
	proxy = proxy_open(&config, error, sizeof error);
	MUST(proxy && !proxy_job_open(proxy, 1, 1, 0, 1, 1, &here, -1, error, sizeof error));
	MUST(!proxy_rank_attach(proxy, 1, 0, c.channel, c.image, error, sizeof error));
	struct rank *r = proxy->jobs->world.ranks[0];
	a_function_keeps_its_layout(&c, r);
	a_function_reaches_what_there_is(r);
	items_share_an_execution(r, 0);
	items_share_an_execution(r, 1);
	a_failed_rank_calls_its_host_functions(r);
	a_rank_that_leaves_drops_a_shared_execution(r);
	MUST(!proxy_job_discard(proxy, 1));
	while (proxy->jobs->world.attached)
		serve();
	serve();
	MUST(!proxy_job_close(proxy, 1));
	proxy_close(proxy);
	client_close(&c);
	return 0;
}
