/* spin.h: spins for a while before sleeping, because waking takes longer than most waits.
 *
 * Ranks, a proxy's loop and its workers wait for one another, and there are often more of them than
 * cores: a spinning thread yields after each check. Where no other thread wants the core, that
 * costs 0.2 µs.
 */
#ifndef RANKFOLD_SPIN_H
#define RANKFOLD_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "invariant.h"

#define SPIN_PAUSES 16 /* between checks, about 0.3 µs: constant checking slows down the writer */
#define SPIN_TAKEN_NS 5000u
#define MOMENT_YIELDS (1u << 16)
#define MOMENT_NAP_NS 1000000
#ifndef MOMENT_NAPS /* tests need fewer */
#define MOMENT_NAPS 60000u
#endif

struct spin {
	uint64_t since;
}; /* initially 0 */

static inline uint64_t spin_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Lets a sibling hyperthread of the core run faster meanwhile. */
static inline void spin_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void spin_pause(void)
{
	(void)sched_yield();
	for (int n = 0; n < SPIN_PAUSES; n++)
		spin_relax();
}

/* The same; true if another thread had the core meanwhile. */
static inline bool spin_give_way(void)
{
	uint64_t since = spin_now_ns();
	spin_pause();
	return spin_now_ns() - since > SPIN_TAKEN_NS;
}

/* After a check that found nothing: true to check again, false to sleep. */
static inline bool spin_on(struct spin *s, uint64_t limit_ns)
{
	uint64_t now = spin_now_ns();
	if (!s->since)
		s->since = now;
	return now - s->since < limit_ns;
}

/* After a check that found something, or after a sleep. */
static inline void spin_reset(struct spin *s) { s->since = 0; }

/* After a check for something that another thread of this process does within moments. `checks` is
 * 0 before the first one. Aborts after a minute, because only a bug of ours takes that long; time
 * in which the process is stopped does not count, and no clock is read. `what`: as in INVARIANT. */
static inline void spin_moment(uint32_t *checks, const char *what)
{
	if (++*checks < MOMENT_YIELDS) {
		(void)sched_yield();
		return;
	}
	INVARIANT(*checks < MOMENT_YIELDS + MOMENT_NAPS, what);
	(void)nanosleep(&(struct timespec){.tv_nsec = MOMENT_NAP_NS}, NULL);
}

#endif
