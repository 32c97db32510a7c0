/* submit.c: submits two works in turns, as fast as a proxy's loop does: each time at about the
 * moment when the worker finishes what it had. */
#include "hal.h"

/* The number of the last. */
uint64_t submit_many(const struct hal *hal, struct hal_stream *stream, const struct hal_work *works,
		     uint32_t count)
{
	uint64_t number = 0;
	for (uint32_t i = 0; i < count; i++) {
		while (!(number = hal->submit(stream, &works[i % 2])))
			;
		while (hal->completed(stream) + i % 3 < number)
			;
		for (uint32_t n = 0; n < i % 64; n++)
			__asm__ volatile("");
	}
	return number;
}
