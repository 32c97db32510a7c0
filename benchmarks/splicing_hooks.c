/* splicing_hooks.c: how long does a proxy spend in functions that -finstrument-functions marks?
 *
 * Preloaded into the proxy. Only the outermost of nested calls counts, with what it calls; what it
 * takes at least to read the clock is taken off. $SPLICING_HOOKS: a file of 16 bytes, to which the
 * sums are added: nanoseconds and calls. All calls are the loop's thread's.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define HOOK __attribute__((visibility("default"), no_instrument_function))

static _Atomic uint64_t unseen[2], *sums = unseen;
static uint64_t reading = UINT64_MAX; /* the clock, in nanoseconds */
static _Thread_local uint32_t depth;
static _Thread_local uint64_t since;

HOOK void __cyg_profile_func_enter(void *function, void *caller);
HOOK void __cyg_profile_func_exit(void *function, void *caller);

static __attribute__((no_instrument_function)) uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static __attribute__((constructor, no_instrument_function)) void map_sums(void)
{
	const char *path = getenv("SPLICING_HOOKS");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		sums = map;
	for (uint32_t i = 0; i < 10000; i++) {
		uint64_t before = now(), between = now() - before;
		reading = between < reading ? between : reading;
	}
}

void __cyg_profile_func_enter(void *function, void *caller)
{
	(void)function, (void)caller;
	if (!depth++)
		since = now();
}

void __cyg_profile_func_exit(void *function, void *caller)
{
	(void)function, (void)caller;
	if (--depth)
		return;
	uint64_t between = now() - since;
	atomic_fetch_add_explicit(&sums[0], between > reading ? between - reading : 0,
				  memory_order_relaxed);
	atomic_fetch_add_explicit(&sums[1], 1, memory_order_relaxed);
}
