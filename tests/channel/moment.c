/* A thread holds a lock that another one waits for with spin_moment: for ARGUMENT naps of the
 * waiter, or forever if that is 0. Prints how often the waiter checked. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define MOMENT_NAPS 200u
#include "spin.h"

static atomic_flag held = ATOMIC_FLAG_INIT;
static _Atomic uint32_t seen;
static uint32_t releases_at;

static void *holder(void *unused)
{
	while (!releases_at || atomic_load(&seen) < releases_at)
		sched_yield();
	atomic_flag_clear(&held);
	return unused;
}

int main(int count, char **arguments)
{
	pthread_t thread;
	uint32_t checks = 0;
	long naps = count > 1 ? atol(arguments[1]) : 0;
	releases_at = naps ? MOMENT_YIELDS + (uint32_t)naps : 0;
	(void)atomic_flag_test_and_set(&held);
	pthread_create(&thread, NULL, holder, NULL);
	while (atomic_flag_test_and_set(&held)) {
		spin_moment(&checks, "the test's lock is released");
		atomic_store(&seen, checks);
	}
	pthread_join(thread, NULL);
	printf("%u\n", checks);
	return 0;
}
