/* loop.c: the proxy's one loop.
 *
 * A turn: run calls from Python, read the peers' messages, take records from every ring, complete
 * and submit work, swap pages, decide which rank runs. The loop owns all structures. It never
 * blocks except in sleep_until_called, and never takes Python's lock.
 *
 * It sleeps on the doorbells of all clients and all peers and on that of the mailbox, which device
 * workers and Python ring (doorbell.h).
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "doorbell.h"
#include "invariant.h"
#include "loop/intake.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "loop/opaque_turn.h"
#include "queue/pump.h"
#include "queue/squash.h"
#include "rank/rank.h"
#include "spin.h"

#define LOOP_SPIN_NS 50000u   /* spin without progress before sleeping */
#define LOOP_NEAR_NS 1000000u /* the same, if the device is about to complete something */
#define NEAR_LOOKS 8          /* checks of the device alone between two turns then */
#define WAIT_MAX 128          /* the kernel's limit for futex_waitv */

void core_check(const struct proxy *p)
{
	const char *wrong = core_invalid(p);
	if (wrong)
		invariant_broken(wrong, __FILE__, __LINE__);
}

static void look_at_device(struct proxy *p)
{
	const char *why = p->device.hal->device_lost ? p->device.hal->device_lost(p->device.opened)
						     : NULL;
	struct proxy_event e = {.kind = PROXY_EVENT_LOST};

	if (!why || p->lost_reported)
		return;
	p->lost_reported = true;
	snprintf(e.text, sizeof e.text, "%s", why);
	post_event(p, &e);
}

void loop_turn(struct proxy *p)
{
	mailbox_run_calls(p);
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		rank_consume(p->device.ranks[i]);
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		rank_pump(p->device.ranks[i]);
	crosscheck_turn(p);
	opaque_turn(p);
	bool moved = transfer_pump(&p->transfers);
	moved |= memory_turn(&p->device.memory);
	slice_turn(p);
	overhead_turn(p);
	look_at_device(p);
	for (struct job *j = p->jobs; j; j = j->next)
		job_turn(j);
	/* Requests to memory or transfers after their part of the turn need another turn. */
	if (moved || p->device.memory.progress || p->transfers.progress)
		turn_progress(&p->device.turn);
#ifdef SOFT_CHECKED
	core_check(p); /* detect a bug near its cause */
#endif
}

static void set_sleeping(struct proxy *p, bool sleeping)
{
	mailbox_sleep(p, sleeping);
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		struct rf_header *h = p->device.ranks[i]->ring.header;
		if (atomic_load_explicit(&h->epoch, memory_order_relaxed) ==
		    p->device.ranks[i]->job->world.epoch)
			doorbell_asleep(&h->server_sleeping, sleeping);
	}
	for (struct job *j = p->jobs; j; j = j->next)
		if (j->peer)
			peer_sleep(j->peer, sleeping);
	doorbell_fence();
}

static uint32_t add_waiter(struct futex_waitv *v, uint32_t n, void *word, uint32_t value)
{
	if (n < WAIT_MAX)
		v[n] = (struct futex_waitv){
			.val = value, .uaddr = (uintptr_t)word, .flags = FUTEX_32};
	return n < WAIT_MAX ? n + 1 : n;
}

static uint32_t collect_doorbells(struct proxy *p, struct futex_waitv *v)
{
	uint32_t *word, value, n = 0;
	memset(v, 0, WAIT_MAX * sizeof *v);
	mailbox_doorbell(p, &word, &value);
	n = add_waiter(v, n, word, value);
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		struct rf_header *h = p->device.ranks[i]->ring.header;
		n = add_waiter(v, n, &h->doorbell, doorbell_seen(&h->doorbell));
	}
	for (struct job *j = p->jobs; j; j = j->next)
		if (j->peer)
			n = add_waiter(v, n, peer_doorbell(j->peer),
				       doorbell_seen(peer_doorbell(j->peer)));
	return n;
}

/* Returns the earlier of two times; 0: no time. */
static uint64_t sooner_of(uint64_t a, uint64_t b) { return !a || (b && b < a) ? b : a; }

uint64_t loop_deadline_ns(const struct proxy *p)
{
	uint64_t first = sooner_of(slice_deadline_ns(p), crosscheck_deadline_ns(p));
	first = sooner_of(first, opaque_deadline_ns(p));
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		first = sooner_of(first, squash_deadline_ns(p->device.ranks[i]));
	return first;
}

/* Sleeps until something may have happened. The order is that of doorbell.h: read the doorbells,
 * announce the sleep, run one more turn, sleep. */
static void sleep_until_called(struct proxy *p)
{
	struct futex_waitv v[WAIT_MAX];
	struct timespec until;
	uint32_t n = collect_doorbells(p, v);
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		rank_sleep(p->device.ranks[i]);
	set_sleeping(p, true);
	turn_begin(&p->device.turn);
	loop_turn(p);
	uint64_t deadline = loop_deadline_ns(p);
	until.tv_sec = (time_t)(deadline / 1000000000ull);
	until.tv_nsec = (long)(deadline % 1000000000ull);
	if (!p->device.turn.progress && !p->device.turn.completed && !mailbox_stopping(p)) {
		/* More than WAIT_MAX words do not fit: check again every millisecond. */
		uint64_t all = 1 + p->device.rank_count;
		for (struct job *j = p->jobs; j; j = j->next)
			all += j->peer != NULL;
		if (all > WAIT_MAX && !deadline) {
			deadline = now_ns() + 1000000;
			until.tv_sec = (time_t)(deadline / 1000000000ull);
			until.tv_nsec = (long)(deadline % 1000000000ull);
		}
		syscall(SYS_futex_waitv, v, n, 0, deadline ? &until : NULL, CLOCK_MONOTONIC);
		p->wakeups++;
	}
	set_sleeping(p, false);
}

/* True if the device will soon complete what something waits for. More is needed there at once
 * then, and a wake-up takes longer than a submission. */
static bool completes_soon(const struct proxy *p)
{
	bool found = p->transfers.first != NULL;
	for (uint32_t i = 0; i < p->device.rank_count && !found; i++)
		found = rank_near(p->device.ranks[i]);
	return found;
}

static uint64_t completed_works(const struct proxy *p)
{
	uint64_t works = p->device.hal->completed(p->transfers.stream);
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		works += rank_done(p->device.ranks[i]);
	return works;
}

struct waiting {
	struct spin spin;
	bool said;   /* which works are awaited */
	bool wanted; /* others want its core; a thread that sleeps has precedence over them when
		      * it wakes */
};

/* Nothing has happened in a turn: spins or sleeps. True: it has slept. */
static bool wait_for_more(struct proxy *p, struct waiting *w)
{
	for (uint32_t i = 0; !w->said && i < p->device.rank_count; i++)
		rank_await(p->device.ranks[i]);
	w->said = true;
	if (spin_on(&w->spin, LOOP_SPIN_NS))
		return false;
	if (w->wanted || !spin_on(&w->spin, LOOP_NEAR_NS) || !completes_soon(p)) {
		sleep_until_called(p);
		return true;
	}
	uint64_t before = completed_works(p);
	for (int n = 0; n < NEAR_LOOKS && completed_works(p) == before; n++)
		w->wanted |= spin_give_way();
	return false;
}

void *loop_main(void *proxy)
{
	struct proxy *p = proxy;
	struct waiting w = {0};
	while (!mailbox_stopping(p)) {
		turn_begin(&p->device.turn);
		loop_turn(p);
		if (p->device.turn.progress || (!p->device.turn.completed && wait_for_more(p, &w)))
			w = (struct waiting){0};
		w.wanted |= spin_give_way();
	}
	return NULL;
}
