/* spin.h: staying awake for a while before sleeping: to be woken takes longer than most waits.
 *
 * For threads that look for work again and again. Not where that takes a core from others: who was
 * away between two looks had to give up its core, and then does not spin for a while.
 */
#ifndef RANKFOLD_SPIN_H
#define RANKFOLD_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SPIN_PREEMPTED_NS 100000u /* between two looks: somebody else had this core */
#define SPIN_NO_SPARE_NS 10000000u
#define SPIN_PAUSES 16 /* between looks, some 0.3 µs: looking all the time slows down who writes */

struct spin { uint64_t since, looked, no_spare_until; }; /* all 0 at first */

static inline uint64_t spin_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void spin_pause(void)
{
	for (int n = 0; n < SPIN_PAUSES; n++)
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
}

/* After a look that found nothing: look once more? False: sleep. */
static inline bool spin_on(struct spin *s, uint64_t limit_ns)
{
	uint64_t now = spin_now_ns();
	if (!s->since)
		s->since = now;
	else if (now - s->looked > SPIN_PREEMPTED_NS)
		s->no_spare_until = now + SPIN_NO_SPARE_NS;
	s->looked = now;
	return now >= s->no_spare_until && now - s->since < limit_ns;
}

/* There was something, or it slept. */
static inline void spin_reset(struct spin *s)
{
	s->since = 0;
}

#endif
