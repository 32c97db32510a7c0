/* doorbell.c: two threads hand items to each other and sleep in between; then many threads share
 * a few doorbells. Exits with 0 if no wake was lost; otherwise it hangs. */
#include <pthread.h>
#include <stdlib.h>

#include "doorbell.h"

#define THREADS 6

struct side {
	_Alignas(64) _Atomic uint64_t brought;
	_Alignas(64) _Atomic uint32_t bell, sleepers;
};
static struct side sides[2];
static uint64_t rounds, turns; /* from the command line */

static void await(struct side *s, uint64_t wanted)
{
	for (;;) {
		uint32_t seen = doorbell_seen(&s->bell);
		if (atomic_load_explicit(&s->brought, memory_order_acquire) >= wanted)
			return;
		doorbell_enter(&s->sleepers);
		if (atomic_load_explicit(&s->brought, memory_order_acquire) < wanted)
			doorbell_sleep(&s->bell, seen);
		doorbell_leave(&s->sleepers);
	}
}

static void *partner(void *arg)
{
	int me = arg == &sides[1];
	for (uint64_t n = 1; n <= rounds; n++) {
		if (me)
			await(&sides[0], n);
		doorbell_publish(&sides[me].brought, n);
		doorbell_ring(&sides[me].bell, &sides[me].sleepers);
		if (!me)
			await(&sides[1], n);
	}
	return NULL;
}

/* Two slots for all of them. */
static _Atomic uint64_t busy = ~3ull;
static _Atomic uint32_t let_go, waiters;

static uint64_t claim(void)
{
	uint64_t now = atomic_load(&busy);
	while (~now) {
		uint64_t bit = ~now & (now + 1);
		if (atomic_compare_exchange_weak(&busy, &now, now | bit))
			return bit;
	}
	return 0;
}

static void *sharer(void *arg)
{
	for (uint64_t n = 0; n < turns; n++) {
		for (;;) {
			uint32_t seen = doorbell_seen(&let_go);
			uint64_t bit = claim();
			if (bit) {
				atomic_fetch_and(&busy, ~bit);
				doorbell_ring(&let_go, &waiters);
				break;
			}
			doorbell_enter(&waiters);
			if (!~atomic_load(&busy))
				doorbell_sleep(&let_go, seen);
			doorbell_leave(&waiters);
		}
	}
	return arg;
}

int main(int argc, char **argv)
{
	rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	turns = rounds / 10;
	pthread_t threads[THREADS];
	for (int n = 0; n < 2; n++)
		pthread_create(&threads[n], NULL, partner, &sides[n]);
	for (int n = 0; n < 2; n++)
		pthread_join(threads[n], NULL);
	for (int n = 0; n < THREADS; n++)
		pthread_create(&threads[n], NULL, sharer, NULL);
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	return busy == ~3ull && sides[0].brought == rounds && !waiters ? 0 : 1;
}
