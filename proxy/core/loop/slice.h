/* slice.h: which rank may run kernels now (slice.c). */
#ifndef RANKFOLD_SLICE_H
#define RANKFOLD_SLICE_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;
struct rank;

struct slice {
	uint64_t active_since_ns, quantum_ns, kernels_before;
	uint64_t idle_since_ns;    /* since when it has had nothing on the device; 0: it has
				 * something */
	uint64_t moves;            /* of its items, at the last turn */
	uint64_t prepared;         /* memory.turns when a rank was last prefetched */
	uint64_t announced;        /* a collective of the active rank that was reported as next */
	uint64_t blocked_since_ns; /* since when running work may wait for work that is not
				 * submitted; 0: it does not */
	uint64_t patience_ns;      /* how long it may wait before the rank relents */
	struct rank *target;       /* becomes active when its memory is resident */
	struct rank *next;         /* waits until the idle active rank is stuck */

	struct job *stuck; /* none of its ranks can do anything, and some wait for others */
	uint64_t stuck_moves, stuck_since_ns, stuck_until_ns;
	uint64_t lone_continuations; /* how often a waiting rank continued alone because of that */
};

void slice_open(struct proxy *, uint64_t quantum_ns);
void slice_forget(struct rank *); /* the rank is being detached */
void slice_turn(struct proxy *);
uint64_t slice_deadline_ns(const struct proxy *); /* when to check again; 0: never */

#endif
