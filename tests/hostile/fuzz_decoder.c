/* fuzz_decoder.c: feeds records that no library would send to the proxy's core, at a high rate.
 *
 * LLVMFuzzerTestOneInput takes one input: a sequence of steps (struct step below). It serves two
 * hostile ranks of one job and a good rank of another on one soft device, lets the loop turn, and
 * looks afterwards whether the good rank's memory is as it was, and whether the device is as empty
 * as before. A violation, or what a sanitizer finds, aborts the process.
 *
 * The loop runs in the caller's thread: in_loop, mailbox_start and mailbox_stop are
 * wrapped by the linker (-Wl,--wrap), so that an input always does the same. All else is the
 * product's own code. With -DWITH_MAIN this is a program of its own; see coverage.c for the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "fuzz.h"
#include "clock.h"
#include "loop/internal.h"
#include "rank/rank.h"
#include "spin.h"

#define DEVICE_BYTES (64ull << 20)
#define TURNS 3
#define HOSTILE_RANKS 2u
#define GOOD_BYTES 4096u
#define PATIENCE_NS 60000000000ull /* the workers are threads: the machine may be busy */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #condition);  \
			give_up();                                                                 \
		}                                                                                  \
	} while (0)

_Noreturn static void give_up(void);

/* ---- the loop, turned by hand ---- */

bool __wrap_mailbox_start(struct proxy *p) { return p != NULL; }
void __wrap_mailbox_stop(struct proxy *p) { (void)p; }
void __wrap_in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	run(p, arg);
}

static void turn(struct proxy *p, uint32_t count)
{
	for (uint32_t n = 0; n < count; n++) {
		loop_turn(p);
		spin_pause();
	}
}

/* ---- the scene: kept over inputs, attached anew for each ---- */

struct scene {
	struct proxy *proxy;
	struct client hostile[HOSTILE_RANKS], good;
	uint64_t hostile_job, good_job, next_job;
	uint32_t stuck; /* steps since the job failed or a rank got an error that stays */
};
static struct scene scene;
static struct fuzz_counters counters;

_Noreturn static void give_up(void)
{
	static char text[1 << 16];
	if (scene.proxy)
		proxy_debug_text(scene.proxy, text, sizeof text);
	fprintf(stderr, "%s\n", text);
	abort();
}

/* False: a rank is refused, since what it had is nowhere any more. */
static bool job_begin(struct scene *s, uint64_t job, struct client *clients, uint32_t world_size)
{
	static const uint32_t devices[HOSTILE_RANKS];
	char error[512];
	MUST(!proxy_job_open(s->proxy, job, job, 0, 1, world_size, devices, -1, error, 512));
	for (uint32_t r = 0; r < world_size; r++)
		if (proxy_rank_attach(s->proxy, job, r, clients[r].channel, clients[r].image, error,
				      512))
			return false;
	return true;
}

static void serve(struct scene *s, uint32_t count)
{
	struct proxy_event e;
	turn(s->proxy, count);
	while (proxy_next_event(s->proxy, &e))
		client_answer(s->proxy, &e);
}

static void job_end(struct scene *s, uint64_t job)
{
	struct proxy_rank_status rank;
	for (uint32_t r = 0; job != s->good_job && r < HOSTILE_RANKS; r++)
		if (!proxy_rank_status(s->proxy, job, r, &rank))
			counters.records += rank.records;
	proxy_job_discard(s->proxy, job);
	for (uint64_t end = now_ns() + PATIENCE_NS; proxy_job_close(s->proxy, job);) {
		MUST(now_ns() < end);
		serve(s, 1);
	}
}

static void good_write(struct scene *s, uint8_t value)
{
	struct {
		struct rf_copy c;
		uint8_t data[GOOD_BYTES];
	} copy = {.c = {.stream = 1,
			.dst = RF_DEV_BASE,
			.width = GOOD_BYTES,
			.height = 1,
			.src_place = RF_AT_INLINE}};
	memset(copy.data, value, GOOD_BYTES);
	client_post(&s->good, &copy, sizeof copy, RF_OP_COPY, 0);
}

/* Reads the good rank's memory; the loop must serve it, whatever the others do. */
static void good_check(struct scene *s, uint8_t value)
{
	struct rf_copy copy = {.stream = 1,
			       .src = RF_DEV_BASE,
			       .width = GOOD_BYTES,
			       .height = 1,
			       .dst_place = RF_AT_BULK};
	client_ask(&s->good, &copy, sizeof copy, RF_OP_COPY);
	for (uint64_t end = now_ns() + PATIENCE_NS; !client_answered(&s->good);) {
		MUST(now_ns() < end);
		serve(s, 1);
	}
	MUST(client_slot(&s->good)->error == 0);
	for (uint32_t i = 0; i < GOOD_BYTES; i++)
		MUST(s->good.map[RF_OFF_BULK + i] == value);
}

static void scene_open(struct scene *s)
{
	struct proxy_config config = {.hal = "soft",
				      .memory_bytes = DEVICE_BYTES,
				      .workers = 1,
				      .cc_major = 8,
				      .speed = 1.0};
	struct rf_alloc alloc = {.addr = RF_DEV_BASE, .bytes = GOOD_BYTES};
	char error[512];
	s->proxy = proxy_open(&config, error, sizeof error);
	MUST(s->proxy);
	s->next_job = 10;
	s->good_job = 1;
	client_open(&s->good, 0, 1);
	MUST(job_begin(s, s->good_job, &s->good, 1));
	client_post(&s->good, &alloc, sizeof alloc, RF_OP_ALLOC, 0);
}

static void hostile_begin(struct scene *s)
{
	s->hostile_job = ++s->next_job;
	for (uint32_t r = 0; r < HOSTILE_RANKS; r++)
		client_open(&s->hostile[r], r, HOSTILE_RANKS);
	MUST(job_begin(s, s->hostile_job, s->hostile, HOSTILE_RANKS));
	s->stuck = 0;
}

static void hostile_end(struct scene *s)
{
	job_end(s, s->hostile_job);
	for (uint32_t r = 0; r < HOSTILE_RANKS; r++)
		client_close(&s->hostile[r]);
}

/* A rank with an error, or a failed job, soon does nothing any more: then a new one begins. */
static void watch(struct scene *s)
{
	struct proxy_job_status status;
	bool bad = proxy_job_status(s->proxy, s->hostile_job, &status) ||
		   status.state == PROXY_JOB_FAILED;
	for (uint32_t r = 0; r < HOSTILE_RANKS; r++)
		bad |= atomic_load(&s->hostile[r].header->async_error) != 0 ||
		       atomic_load(&s->hostile[r].header->epoch) != s->hostile_job;
	s->stuck += bad;
	if (s->stuck < 8)
		return;
	hostile_end(s);
	hostile_begin(s);
	counters.restarts++;
}

/* ---- one input ---- */

/* Save at a cut, and attach again in the next epoch; also after a rank has ended. */
static void move(struct scene *s, bool exited)
{
	struct proxy_job_status status;
	if (proxy_job_status(s->proxy, s->hostile_job, &status) || status.state != PROXY_JOB_CUT ||
	    proxy_job_leave(s->proxy, s->hostile_job))
		return;
	if (exited)
		proxy_rank_exited(s->proxy, s->hostile_job, 0, PROXY_EXIT_CRASHED);
	for (uint64_t end = now_ns() + PATIENCE_NS; proxy_job_close(s->proxy, s->hostile_job);) {
		MUST(now_ns() < end);
		serve(s, 1);
		if (!proxy_job_status(s->proxy, s->hostile_job, &status) &&
		    status.state == PROXY_JOB_FAILED)
			return;
	}
	s->hostile_job = ++s->next_job;
	if (job_begin(s, s->hostile_job, s->hostile, HOSTILE_RANKS)) {
		counters.moves++;
		return;
	}
	hostile_end(s);
	hostile_begin(s);
	counters.restarts++;
}

static void control(struct scene *s, const struct fuzz_step *step)
{
	struct client *c = &s->hostile[step->rank % HOSTILE_RANKS];
	counters.controls++;
	switch (step->kind) {
	case FUZZ_TURN:
		serve(s, 1 + step->rank % 16);
		watch(s);
		break;
	case FUZZ_BARRIER: proxy_job_barrier(s->proxy, s->hostile_job, step->rank & 1); break;
	case FUZZ_HURRY: proxy_job_hurry(s->proxy, s->hostile_job); break;
	case FUZZ_EXIT:
		proxy_rank_exited(s->proxy, s->hostile_job, step->rank % HOSTILE_RANKS,
				  step->rank / 2 % 3);
		break;
	case FUZZ_HEAD: /* the ring's own words, spoilt */
		atomic_store(&c->header->head,
			     c->head + ((uint64_t)step->rank << step->bytes % 56));
		break;
	case FUZZ_HOST: /* all that are due return, or more than were requested */
		if (step->rank % 16)
			atomic_store(&c->header->hostfunc_tail,
				     atomic_load(&c->header->hostfunc_head));
		else
			atomic_fetch_add(&c->header->hostfunc_tail, 16u * step->rank);
		break;
	case FUZZ_MOVE: move(s, step->rank % 8 == 7); break;
	}
}

/* A product may run forever, as a kernel may; here neither does. */
static void shorten(struct rf_gemm *g)
{
	g->m %= 256;
	g->n %= 256;
	g->k %= 256;
	g->count %= 4;
}

/* Zero, the last one, the first one, far ahead, before it wraps. */
static uint64_t wrong_number(uint8_t which, uint64_t right)
{
	const uint64_t wrong[] = {0, right - 1, right == 1 ? 2 : 1, right + (1ull << 40),
				  UINT64_MAX};
	return wrong[which % (sizeof wrong / sizeof *wrong)];
}

static void record(struct scene *s, const struct fuzz_step *step, const uint8_t *body)
{
	struct client *c = &s->hostile[step->rank % HOSTILE_RANKS];
	_Alignas(64) uint8_t bytes[RF_RECORD_MAX];
	uint32_t size = sizeof(struct rf_record) + step->bytes;
	struct rf_record head = {.bytes = (size + 63) / 64 * 64,
				 .opcode = step->opcode,
				 .slot = step->slot,
				 .seq = ++c->seq};
	if (size > sizeof bytes)
		return;
	if (step->kind == FUZZ_RAW) /* the header's own size too */
		head.bytes = (uint32_t)step->rank << step->slot % 30;
	if (step->kind == FUZZ_NUMBER)
		head.seq = wrong_number(step->rank / HOSTILE_RANKS, c->seq);
	memcpy(bytes, &head, sizeof head);
	memcpy(bytes + sizeof head, body, step->bytes);
	if ((step->opcode == RF_OP_GEMM || step->opcode == RF_OP_GEMM_AUX ||
	     step->opcode == RF_OP_GEMM_CALL) &&
	    size >= sizeof(struct rf_gemm))
		shorten((void *)bytes);
	if (!client_room(c, 2 * RF_RECORD_MAX))
		serve(s, TURNS);
	if (client_room(c, 2 * RF_RECORD_MAX))
		client_raw(c, bytes, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct scene *s = &scene;
	struct proxy_status status;
	static uint8_t value;
	if (!s->proxy)
		scene_open(s);
	hostile_begin(s);
	good_write(s, ++value);
	while (size >= sizeof(struct fuzz_step)) {
		struct fuzz_step step;
		memcpy(&step, data, sizeof step);
		data += sizeof step;
		size -= sizeof step;
		if (step.bytes > size)
			step.bytes = (uint16_t)size;
		if (step.kind <= FUZZ_NUMBER)
			record(s, &step, data);
		else
			control(s, &step);
		data += step.bytes;
		size -= step.bytes;
	}
	serve(s, TURNS);
	good_check(s, value);
	hostile_end(s);
	proxy_status(s->proxy, &status);
	MUST(status.used_bytes <= RF_CHUNK_BYTES); /* the good rank's */
	MUST(!s->proxy->python_requests);
	counters.inputs++;
	return 0;
}

struct fuzz_counters fuzz_counters(void) { return counters; }

/* Frees everything, for the leak checker. */
void fuzz_end(void)
{
	struct scene *s = &scene;
	if (!s->proxy)
		return;
	job_end(s, s->good_job);
	client_close(&s->good);
	proxy_close(s->proxy);
	s->proxy = NULL;
}
