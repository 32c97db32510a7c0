/* device.h: the device under the ranks, as far as rank/ and queue/ need to know it. The loop owns
 * it (struct proxy in loop/internal.h); turn.h and the functions of memory/ and rank.h write
 * their parts. */
#ifndef RANKFOLD_DEVICE_H
#define RANKFOLD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "hal.h"
#include "memory/memory.h"
#include "turn.h"
#include "versions/digest.h"

struct rank;

struct rank_counters {
	uint64_t kernels, collectives, switches;
	uint64_t squashed; /* works not run because another rank's execution served both */
};

struct device {
	const struct hal *hal;
	struct hal_device *opened;
	struct version arithmetic; /* identifies its arithmetic; part of the versions of results */
	struct device_memory memory;

	struct rank **ranks; /* loop/rank.c: all attached ones */
	uint32_t rank_count;
	struct rank *active; /* loop/slice.c: the rank that may run kernels, or NULL */
	bool yielding;       /* its quantum is over: nothing more of it is submitted */
	bool yield_relaxed;  /* then: except the first item of each stream */

	bool no_squash;    /* loop/api.c: nothing is squashed */
	uint64_t validate; /* loop/api.c: the cross-check runs at every so many collectives; 0:
			    * never */
	struct turn turn;
	struct rank_counters counters; /* of all ranks that were ever here */
};

/* True if the active rank's kernel may be submitted; `first`: it is the first of its stream. */
static inline bool device_submits(const struct device *d, bool first)
{
	return !d->yielding || (d->yield_relaxed && first);
}

#endif
