/* threads.c: the proxy's threads under the thread sanitizer: two ranks that work, are cut, let go
 * and handed over all the time while calls come from several threads at once; and a device with
 * several workers that is fed and drained.
 *
 * Built with smaller windows of addresses (build.mk): the sanitizer has no room for real ones.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "queue/stream.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "soft.h"

#define CALLERS 3
#define CALLS 600u
#define RANKS 2u
#define CUTS 30u
#define NUMBERS 1024u
#define STREAMS 8u
#define ROUNDS 2000u
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The sanitizer has 1.5 TiB for what is mapped; the kernel begins up to 1 TiB below their end. */
_Static_assert(RANKS *(SOFT_SPAN_BYTES + RF_WINDOW_BYTES) < 1ull << 38, "all ranks fit anywhere");

static struct proxy *proxy;
static _Atomic bool over;                       /* the proxy has stopped */
static _Atomic uint32_t steps[RANKS];           /* that each rank's program has begun */
static _Atomic uint32_t last_step = UINT32_MAX; /* the programs end after it */

/* ---- calls from many threads ---- */

static void *caller(void *arg)
{
	static _Atomic uint64_t next_job = 1000000;
	static const uint32_t devices[1];
	static char text[CALLERS][4096];
	struct proxy_status status;
	struct proxy_job_status job_status;
	struct proxy_rank_status rank;
	char error[512];
	for (uint32_t i = 0; i < CALLS; i++) {
		uint64_t job = next_job++;
		MUST(!proxy_job_open(proxy, job, 1, 0, 1, 1, devices, -1, error, sizeof error));
		proxy_job_barrier(proxy, job, 1);
		proxy_job_fail(proxy, job, "ends");
		MUST(!proxy_job_status(proxy, job, &job_status));
		proxy_status(proxy, &status);
		proxy_rank_status(proxy, 1 + i % CUTS, i % RANKS, &rank);
		proxy_debug_text(proxy, text[(uintptr_t)arg], sizeof text[0]);
		MUST(!proxy_job_close(proxy, job));
	}
	return NULL;
}

static void *answerer(void *arg)
{
	static struct proxy_event event;
	(void)arg;
	while (!atomic_load(&over))
		if (proxy_next_event(proxy, &event))
			client_answer(proxy, &event);
		else
			sched_yield();
	return NULL;
}

/* ---- a rank's program ---- */

static void ask(struct client *c, void *record, uint32_t bytes, uint16_t opcode)
{
	client_ask(c, record, bytes, opcode);
	while (!client_answered(c))
		sched_yield();
	MUST(client_slot(c)->error == 0);
}

static void load(struct client *c, uint32_t rank)
{
	struct rf_alloc alloc = {.addr = RF_DEV_BASE, .bytes = 4 * NUMBERS};
	struct rf_module_data data = {.module = 16, .bytes = 64};
	struct rf_module_load module = {.module = 16, .bytes = 64, .image = RF_IMAGE_PTX};
	struct {
		struct rf_name n;
		char text[8];
	} name = {.n = {.module = 16, .handle = 17, .bulk = 1, .name_bytes = 7}, .text = "add_one"};
	struct rf_comm_init init = {
		.comm = 18, .nranks = RANKS, .rank = rank, .unique_id = "two ranks"};
	client_post(c, &alloc, sizeof alloc, RF_OP_ALLOC, 0);
	client_post(c, &data, sizeof data, RF_OP_MODULE_DATA, 0);
	ask(c, &module, sizeof module, RF_OP_MODULE_LOAD);
	ask(c, &name, sizeof name, RF_OP_FUNCTION_GET);
	ask(c, &init, sizeof init, RF_OP_COMM_INIT);
}

/* Adds one to the first number, sums all numbers over the ranks in place, and reads the first. */
static uint32_t step(struct client *c)
{
	struct {
		struct rf_launch l;
		uint64_t address;
	} launch = {.l = {.stream = 1,
			  .function = 17,
			  .grid = {1, 1, 1},
			  .block = {1, 1, 1},
			  .param_bytes = 8},
		    .address = RF_DEV_BASE};
	struct rf_collective sum = {.stream = 1,
				    .comm = 18,
				    .send = RF_DEV_BASE,
				    .recv = RF_DEV_BASE,
				    .count = NUMBERS,
				    .kind = RF_COLL_ALLREDUCE,
				    .dtype = 3 /* uint32 */};
	struct rf_copy copy = {
		.stream = 1, .src = RF_DEV_BASE, .width = 4, .height = 1, .dst_place = RF_AT_BULK};
	uint32_t first;
	client_post(c, &launch, sizeof launch, RF_OP_LAUNCH, 0);
	client_post(c, &sum, sizeof sum, RF_OP_COLLECTIVE, 0);
	ask(c, &copy, sizeof copy, RF_OP_COPY);
	memcpy(&first, c->map + RF_OFF_BULK, sizeof first);
	return first;
}

static void *program(void *arg)
{
	struct rf_fill zero = {
		.stream = 1, .dst = RF_DEV_BASE, .width = NUMBERS, .height = 1, .element = 4};
	struct client *c = arg;
	uint32_t rank = c->header->rank, expected = 0;
	load(c, rank);
	for (uint32_t i = 0; i <= atomic_load(&last_step); i++) {
		atomic_store(&steps[rank], i);
		if (i % 6 == 0) { /* the kernel adds to a byte: before it overflows */
			client_post(c, &zero, sizeof zero, RF_OP_FILL, 0);
			expected = 0;
		}
		expected = (expected + 1) * RANKS;
		MUST(step(c) == expected);
	}
	return NULL;
}

/* ---- cuts ---- */

static void attach(uint64_t job, struct client *clients)
{
	static const uint32_t devices[RANKS];
	char error[512];
	MUST(!proxy_job_open(proxy, job, job, 0, 1, RANKS, devices, -1, error, sizeof error));
	for (uint32_t r = 0; r < RANKS; r++)
		MUST(!proxy_rank_attach(proxy, job, r, clients[r].channel, clients[r].image, error,
					sizeof error));
}

static void reach(uint64_t job, uint32_t state)
{
	struct proxy_job_status status;
	do {
		MUST(!proxy_job_status(proxy, job, &status));
		MUST(status.state != PROXY_JOB_FAILED);
		proxy_job_hurry(proxy, job);
		sched_yield();
	} while (status.state != state);
}

/* Every other cut is a hand-over. The next epoch's number is the job's; the last one's is given. */
static uint64_t cut_again_and_again(struct client *clients)
{
	uint64_t job = 1;
	attach(job, clients);
	for (uint32_t i = 0; i < CUTS; i++) {
		MUST(!proxy_job_barrier(proxy, job, 1));
		reach(job, PROXY_JOB_CUT);
		if (i % 2) {
			MUST(!proxy_job_barrier(proxy, job, 0));
			continue;
		}
		MUST(!proxy_job_leave(proxy, job));
		reach(job, PROXY_JOB_SAVED);
		MUST(!proxy_job_close(proxy, job));
		attach(++job, clients);
	}
	return job;
}

static void serve(void)
{
	struct proxy_config config = {
		.hal = "soft", .memory_bytes = 4 << 20, .workers = 2, .cc_major = 8, .speed = 1.0};
	struct client clients[RANKS];
	pthread_t callers[CALLERS], programs[RANKS], answers;
	char error[512];
	proxy = proxy_open(&config, error, sizeof error);
	MUST(proxy);
	for (uint32_t r = 0; r < RANKS; r++)
		client_open(&clients[r], r, RANKS);
	pthread_create(&answers, NULL, answerer, NULL);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_create(&programs[r], NULL, program, &clients[r]);
	for (uintptr_t i = 0; i < CALLERS; i++)
		pthread_create(&callers[i], NULL, caller, (void *)i);
	uint64_t job = cut_again_and_again(clients);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(callers[i], NULL);
	/* Each step has a collective: no rank is two steps ahead of the other. */
	atomic_store(&last_step, atomic_load(&steps[0]) + 4);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(programs[r], NULL);
	atomic_store(&over, true);
	pthread_join(answers, NULL);
	proxy_job_discard(proxy, job);
	while (proxy_job_close(proxy, job))
		sched_yield();
	for (uint32_t r = 0; r < RANKS; r++)
		client_close(&clients[r]);
	proxy_close(proxy);
}

static void nothing(void *arg) { (void)arg; }

static void feed(void)
{
	struct hal_config config = {.memory_bytes = 4 << 20,
				    .workers = 3,
				    .cc_major = 8,
				    .speed = 1.0,
				    .ring = nothing};
	struct hal_device *device;
	struct hal_stream *streams[STREAMS];
	static uint32_t numbers[STREAMS][64];
	MUST(!hal_soft.device_open(&config, &device));
	for (uint32_t s = 0; s < STREAMS; s++)
		hal_soft.stream_create(device, &streams[s]);
	for (uint32_t i = 0; i < ROUNDS; i++)
		for (uint32_t s = 0; s < STREAMS; s++) {
			struct hal_work w = {.kind = HAL_REDUCE};
			w.reduce.dst = (struct hal_ref){NULL, (uintptr_t)numbers[s]};
			w.reduce.a = w.reduce.b = w.reduce.dst;
			w.reduce.count = 64;
			w.reduce.dtype = 3; /* uint32 */
			while (!hal_soft.available(streams[s]))
				;
			MUST(hal_soft.submit(streams[s], &w));
		}
	for (uint32_t s = 0; s < STREAMS; s++) {
		while (hal_soft.completed(streams[s]) < ROUNDS)
			;
		hal_soft.stream_destroy(streams[s]);
	}
	hal_soft.device_close(device);
}

int main(void)
{
	serve();
	feed();
	return 0;
}
