/* submit.c: submits two works in turns, as fast as a proxy's loop does: each time at about the
 * moment when the worker finishes what it had. */
#include <time.h>

#include "hal.h"

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* `count` works, an even number, or as many as the time allows: on a busy machine both threads wait
 * for a core each time. The number of the last. */
uint64_t submit_many(const struct hal *hal, struct hal_stream *stream, const struct hal_work *works,
		     uint32_t count, double seconds)
{
	uint64_t number = 0;
	double end = now_s() + seconds;
	for (uint32_t i = 0; i < count && (i % 2 || now_s() < end); i++) {
		while (!(number = hal->submit(stream, &works[i % 2])))
			;
		while (hal->completed(stream) + i % 3 < number)
			;
		for (uint32_t n = 0; n < i % 64; n++)
			__asm__ volatile("");
	}
	return number;
}
