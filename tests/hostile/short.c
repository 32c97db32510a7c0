/* short.c: the proxy's core when host memory, or the device, has no room.
 *
 * A rank does some of everything again and again, and each time another allocation of the core
 * fails (the n-th; the linker wraps calloc, malloc, realloc). Whatever fails, the rank gets
 * an answer, a permanent error or its job's end; what was refused may be asked for again, unless
 * it is over with the rank; and afterwards the device is as empty as before. The address sanitizer
 * finds what is left behind. The same for a save, in place or on leaving, and for a restore of one
 * of everything. Then mapping a chunk fails: a HAL function in place of the real one.
 *
 * The loop runs in the caller's thread, as in fuzz_decoder.c. post_event may not fail (mailbox.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "codes.h"
#include "loop/internal.h"
#include "rank/rank.h"

#define DEVICE_CHUNKS 256u
#define MANY_CHUNKS 150u           /* more than an array begins with */
#define PATIENCE_NS 60000000000ull /* the workers are threads: the machine may be busy */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: with allocation %u failing: %s\n", __FILE__,       \
				__LINE__, fail_at, #condition);                                    \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* ---- what fails ---- */

static _Thread_local bool armed;      /* not in the device's workers */
static uint32_t fail_at, allocations; /* the one that fails; so many were asked for */
static bool failed;

static bool fails(void)
{
	bool now = armed && ++allocations == fail_at;
	failed |= now;
	return now;
}

void *__real_calloc(size_t, size_t);
void *__real_malloc(size_t);
void *__real_realloc(void *, size_t);
void __real_post_event(struct proxy *, const struct proxy_event *);

void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_realloc(void *old, size_t size) { return fails() ? NULL : __real_realloc(old, size); }

void __wrap_post_event(struct proxy *p, const struct proxy_event *e)
{
	bool before = armed;
	armed = false;
	__real_post_event(p, e);
	armed = before;
}

static void arm(uint32_t n)
{
	fail_at = n;
	allocations = 0;
	failed = false;
	armed = n != 0;
}

void __sanitizer_cov_trace_pc(void) {} /* the core is compiled for coverage.c */

/* ---- the loop, turned by hand ---- */

bool __wrap_mailbox_start(struct proxy *p) { return p != NULL; }
void __wrap_mailbox_stop(struct proxy *p) { (void)p; }
void __wrap_in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	run(p, arg);
}

static struct proxy *proxy;

static uint32_t saves; /* that are over, one way or the other */
static char save_text[512];

static void serve(void)
{
	struct proxy_event e;
	loop_turn(proxy);
	while (proxy_next_event(proxy, &e)) {
		client_answer(proxy, &e);
		if (e.kind != PROXY_EVENT_SAVED)
			continue;
		saves++;
		memcpy(save_text, e.text, sizeof save_text);
	}
}

static struct proxy *open_proxy(char *error, uint32_t bytes)
{
	struct proxy_config config = {.hal = "soft",
				      .memory_bytes = DEVICE_CHUNKS * RF_CHUNK_BYTES,
				      .workers = 1,
				      .cc_major = 8,
				      .speed = 1.0};
	return proxy_open(&config, error, bytes);
}

/* ---- one rank ---- */

static bool over(const struct client *c, uint64_t job)
{
	struct proxy_job_status status;
	return proxy_job_status(proxy, job, &status) || status.state == PROXY_JOB_FAILED ||
	       atomic_load(&c->header->async_error);
}

/* The record's answer, or -1: the rank has an error that stays, or its job has ended. */
static int ask(struct client *c, uint64_t job, void *record, uint32_t bytes, uint16_t opcode)
{
	client_ask(c, record, bytes, opcode);
	for (uint64_t end = now_ns() + PATIENCE_NS; !client_answered(c) && !over(c, job);) {
		MUST(now_ns() < end);
		serve();
	}
	return over(c, job) ? -1 : client_slot(c)->error;
}

/* Repeats a request that failed for lack of host memory; the failed one must have no effect. */
static bool done(struct client *c, uint64_t job, void *record, uint32_t bytes, uint16_t opcode)
{
	int error = ask(c, job, record, bytes, opcode);
	if (error && failed)
		error = ask(c, job, record, bytes, opcode);
	MUST(error == 0 || (error == -1 && failed));
	return !error;
}
#define DO(record, OPCODE)                                                                         \
	do {                                                                                       \
		if (!done(c, job, &(record), sizeof(record), RF_OP_##OPCODE))                      \
			return;                                                                    \
	} while (0)

/* A module refused for want of memory is sent again under another number, as the library does. */
static bool load(struct client *c, uint64_t job)
{
	for (uint64_t number = 50; number < 52; number++) {
		struct rf_module_data data = {.module = number, .bytes = 64};
		struct rf_module_load module = {
			.module = number, .bytes = 64, .image = RF_IMAGE_PTX};
		struct {
			struct rf_name n;
			char text[8];
		} name = {.n = {.module = number, .handle = 60, .bulk = 1, .name_bytes = 7},
			  .text = "add_one"};
		if (ask(c, job, &data, sizeof data, RF_OP_MODULE_DATA) ||
		    ask(c, job, &module, sizeof module, RF_OP_MODULE_LOAD)) {
			MUST(failed);
			if (over(c, job))
				return false;
			continue;
		}
		return done(c, job, &name, sizeof name, RF_OP_FUNCTION_GET);
	}
	MUST(false && "a module is refused twice");
	return false;
}

static void program(struct client *c, uint64_t job)
{
	struct rf_alloc one = {.addr = RF_DEV_BASE, .bytes = 4096};
	struct rf_alloc many = {.addr = RF_DEV_BASE + RF_CHUNK_BYTES,
				.bytes = MANY_CHUNKS * RF_CHUNK_BYTES};
	struct rf_stream_create stream = {.stream = 20, .flags = 1};
	struct rf_event_create event = {.event = 21};
	struct rf_event record = {.event = 21, .stream = 20};
	struct rf_handle wait = {.handle = 21};
	struct rf_fill fill = {
		.stream = 1, .dst = RF_DEV_BASE, .width = 64, .height = 1, .element = 4};
	struct {
		struct rf_copy copy;
		uint8_t data[64];
	} copy = {.copy = {.stream = 1,
			   .dst = RF_DEV_BASE,
			   .width = 64,
			   .height = 1,
			   .src_place = RF_AT_INLINE}};
	struct {
		struct rf_launch l;
		uint64_t address;
	} launch = {.l = {.stream = 1,
			  .function = 60,
			  .grid = {1, 1, 1},
			  .block = {1, 1, 1},
			  .param_bytes = 8},
		    .address = RF_DEV_BASE};
	struct rf_comm_init init = {.comm = 22, .nranks = 1};
	struct rf_comm_split split = {.parent = 22, .comm = 23};
	struct rf_redop redop = {.redop = 24, .comm = 22, .dtype = 3};
	struct rf_collective sum = {.stream = 1,
				    .comm = 22,
				    .send = RF_DEV_BASE,
				    .recv = RF_DEV_BASE,
				    .count = 16,
				    .dtype = 3,
				    .op = 24};
	struct rf_free gone = {.addr = one.addr}, gone_too = {.addr = many.addr};
	struct rf_record sync;
	DO(one, ALLOC);
	DO(many, ALLOC);
	DO(stream, STREAM_CREATE);
	DO(event, EVENT_CREATE);
	DO(fill, FILL);
	DO(copy, COPY);
	if (!load(c, job))
		return;
	DO(launch, LAUNCH);
	DO(record, EVENT_RECORD);
	DO(wait, EVENT_SYNC);
	DO(init, COMM_INIT);
	DO(split, COMM_SPLIT);
	DO(redop, REDOP_CREATE);
	client_post(c, &sum, sizeof sum, RF_OP_COLLECTIVE, 0);
	DO(sync, DEVICE_SYNC);
	DO(gone, FREE);
	DO(gone_too, FREE);
	DO(sync, DEVICE_SYNC);
	MUST(proxy->device.ranks[0]->memory.live_count == 0 && proxy->device.memory.used == 0);
}

static void end(uint64_t job)
{
	armed = false;
	proxy_job_discard(proxy, job);
	for (uint64_t until = now_ns() + PATIENCE_NS; proxy_job_close(proxy, job);) {
		MUST(now_ns() < until);
		serve();
	}
	MUST(proxy->device.memory.used == 0 && !proxy->python_requests &&
	     !proxy->device.rank_count);
}

/* False: it needed fewer than n allocations. */
static bool fail_one(uint32_t n, uint64_t job)
{
	static const uint32_t devices[1];
	struct client c;
	char error[512] = "";
	client_open(&c, 0, 1);
	arm(n);
	if (proxy_job_open(proxy, job, job, 0, 1, 1, devices, -1, error, sizeof error)) {
		MUST(failed && error[0]);
		armed = false;
		client_close(&c);
		return true;
	}
	if (proxy_rank_attach(proxy, job, 0, c.channel, c.image, error, sizeof error))
		MUST(failed && error[0]);
	else
		program(&c, job);
	end(job);
	client_close(&c);
	return failed;
}

/* ---- saved and restored ---- */

static uint64_t next_job = 2000;

static uint32_t job_state(uint64_t job)
{
	struct proxy_job_status status;
	return proxy_job_status(proxy, job, &status) ? 0 : status.state;
}

/* One of everything that a saved state can hold, and more than a table begins with. */
static void furnish(struct client *c, uint64_t job)
{
	struct rf_alloc heap = {.addr = RF_DEV_BASE, .bytes = 3 * RF_CHUNK_BYTES};
	struct rf_fill fill = {.stream = 1,
			       .dst = RF_DEV_BASE,
			       .width = 64,
			       .height = 1,
			       .value = 7,
			       .element = 4};
	struct rf_event record = {.event = 100, .stream = 1};
	struct rf_module_data part = {.module = 70, .bytes = 64, .offset = 0};
	struct rf_comm_init init = {.comm = 22, .nranks = 1};
	struct rf_comm_split split = {.parent = 22, .comm = 23};
	struct rf_redop redop = {.redop = 24, .comm = 22, .dtype = 3};
	DO(heap, ALLOC);
	DO(fill, FILL);
	for (uint64_t n = 0; n < 10; n++) {
		struct rf_stream_create stream = {.stream = 80 + n, .flags = 1};
		struct rf_event_create event = {.event = 100 + n};
		DO(stream, STREAM_CREATE);
		DO(event, EVENT_CREATE);
	}
	DO(record, EVENT_RECORD);
	MUST(load(c, job));
	DO(part, MODULE_DATA);
	DO(init, COMM_INIT);
	DO(split, COMM_SPLIT);
	DO(redop, REDOP_CREATE);
}

/* Uses some of it. */
static void use(struct client *c, uint64_t job)
{
	struct {
		struct rf_launch l;
		uint64_t address;
	} launch = {.l = {.stream = 80,
			  .function = 60,
			  .grid = {1, 1, 1},
			  .block = {1, 1, 1},
			  .param_bytes = 8},
		    .address = RF_DEV_BASE};
	struct rf_collective sum = {.stream = 81,
				    .comm = 23,
				    .send = RF_DEV_BASE,
				    .recv = RF_DEV_BASE + RF_CHUNK_BYTES,
				    .count = 16,
				    .dtype = 3,
				    .op = 24};
	struct rf_handle event = {.handle = 100};
	struct rf_copy read = {
		.stream = 1, .src = RF_DEV_BASE, .width = 64, .height = 1, .dst_place = RF_AT_BULK};
	struct rf_record sync;
	uint32_t first;
	DO(launch, LAUNCH);
	client_post(c, &sum, sizeof sum, RF_OP_COLLECTIVE, 0);
	DO(event, EVENT_SYNC);
	DO(sync, DEVICE_SYNC);
	DO(read, COPY);
	memcpy(&first, c->map + RF_OFF_BULK, sizeof first);
	MUST(first == 8);
}

static void attach(struct client *c, uint64_t job)
{
	static const uint32_t devices[1];
	char error[512];
	MUST(!proxy_job_open(proxy, job, job, 0, 1, 1, devices, -1, error, sizeof error));
	MUST(!proxy_rank_attach(proxy, job, 0, c->channel, c->image, error, sizeof error));
}

/* A rank that has everything, at a cut. */
static void stand(struct client *c, uint64_t job)
{
	armed = false;
	client_open(c, 0, 1);
	attach(c, job);
	furnish(c, job);
	MUST(!over(c, job));
	for (uint64_t until = now_ns() + PATIENCE_NS; job_state(job) != PROXY_JOB_CUT; serve()) {
		MUST(now_ns() < until);
		proxy_job_barrier(proxy, job, true);
		proxy_job_hurry(proxy, job);
	}
}

/* Until it is over, armed for the n-th allocation; false: it failed. */
static bool save(uint64_t job, uint32_t n, int (*how)(struct proxy *, uint64_t))
{
	uint32_t before = saves;
	arm(n);
	MUST(!how(proxy, job));
	for (uint64_t until = now_ns() + PATIENCE_NS;
	     saves == before && job_state(job) != PROXY_JOB_FAILED; serve())
		MUST(now_ns() < until);
	armed = false;
	bool good = saves != before && !save_text[0];
	MUST(good || failed);
	return good;
}

/* A save in place may be asked for again; one on leaving ends the job. False: fewer allocations. */
static bool fail_save(uint32_t n, bool leave)
{
	struct client c;
	uint64_t job = next_job++;
	stand(&c, job);
	bool good = save(job, n, leave ? proxy_job_leave : proxy_job_save), struck = failed;
	if (leave) {
		MUST(good == (job_state(job) == PROXY_JOB_SAVED));
	} else {
		MUST(job_state(job) == PROXY_JOB_CUT);
		MUST(save(job, 0, proxy_job_save));
		proxy_job_barrier(proxy, job, false);
		use(&c, job);
		MUST(!over(&c, job));
	}
	end(job);
	client_close(&c);
	return struck;
}

/* A restore that is refused may be tried again, elsewhere or here. */
static bool fail_restore(uint32_t n)
{
	static const uint32_t devices[1];
	char error[512] = "";
	struct client c;
	uint64_t job = next_job++;
	stand(&c, job);
	MUST(save(job, 0, proxy_job_leave));
	end(job);
	job = next_job++;
	MUST(!proxy_job_open(proxy, job, job, 0, 1, 1, devices, -1, error, sizeof error));
	arm(n);
	if (proxy_rank_attach(proxy, job, 0, c.channel, c.image, error, sizeof error)) {
		MUST(failed && strstr(error, "memory"));
		end(job);
		job = next_job++;
		attach(&c, job);
		failed = false;
	}
	bool struck = failed || strlen(error);
	use(&c, job); /* still armed where nothing has failed yet */
	struck |= failed;
	MUST(!over(&c, job) || failed);
	end(job);
	client_close(&c);
	return struck;
}

static uint32_t until_nothing_fails(bool (*fail)(uint32_t))
{
	uint32_t n = 1;
	while (fail(n))
		n++;
	return n;
}

static bool fail_staying(uint32_t n) { return fail_save(n, false); }
static bool fail_leaving(uint32_t n) { return fail_save(n, true); }

static void host_memory(void)
{
	char error[512];
	uint32_t n = 1;
	do { /* the proxy itself */
		strcpy(error, "");
		arm(n++);
		proxy = open_proxy(error, sizeof error);
		armed = false;
		MUST(proxy ? !failed : failed && error[0]);
	} while (!proxy);
	printf("{\"open\": %u, ", n);
	for (n = 1; fail_one(n, n);)
		n++;
	printf("\"serve\": %u, \"save\": %u, ", n, until_nothing_fails(fail_staying));
	printf("\"leave\": %u, ", until_nothing_fails(fail_leaving));
	printf("\"restore\": %u}\n", until_nothing_fails(fail_restore));
	proxy_close(proxy);
}

/* ---- the device ---- */

static uint32_t map_fails_at, maps;

static int failing_map(struct hal_space *space, uint64_t addr, uint32_t chunk, bool writable)
{
	return ++maps == map_fails_at ? CU_OUT_OF_MEMORY
				      : hal_soft.space_map(space, addr, chunk, writable);
}

/* A chunk cannot be mapped: the rank gets the error, and another one runs afterwards. */
static void device_memory(void)
{
	struct hal failing = hal_soft;
	char error[512];
	fail_at = 0;
	proxy = open_proxy(error, sizeof error);
	MUST(proxy);
	failing.space_map = failing_map;
	proxy->device.hal = &failing;
	for (map_fails_at = 1; map_fails_at <= MANY_CHUNKS + 2; map_fails_at += MANY_CHUNKS / 2) {
		static const uint32_t devices[1];
		struct proxy_rank_status status;
		struct client c;
		uint64_t job = map_fails_at;
		client_open(&c, 0, 1);
		MUST(!proxy_job_open(proxy, job, job, 0, 1, 1, devices, -1, error, sizeof error));
		MUST(!proxy_rank_attach(proxy, job, 0, c.channel, c.image, error, sizeof error));
		maps = 0;
		failed = true; /* so that `program` may end early */
		program(&c, job);
		MUST(!proxy_rank_status(proxy, job, 0, &status));
		MUST((status.error == CU_OUT_OF_MEMORY) == (maps >= map_fails_at));
		MUST(!status.error || strstr(status.error_text, "no space for its memory"));
		end(job);
		client_close(&c);
	}
	proxy->device.hal = &hal_soft;
	MUST(!fail_one(0, 1000));
	proxy_close(proxy);
}

int main(void)
{
	host_memory();
	device_memory();
	return 0;
}
