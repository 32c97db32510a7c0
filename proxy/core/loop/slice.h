/* slice.h: which rank may run kernels now (slice.c). */
#ifndef RANKFOLD_SLICE_H
#define RANKFOLD_SLICE_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;
struct rank;

struct slice {
	struct rank *active; /* or NULL */
	uint64_t active_since_ns, quantum_ns, kernels_before;
	uint64_t idle_since_ns; /* it has nothing on the device; 0: it has */
	uint64_t moves;         /* of its items, when it was looked at last */
	uint64_t prepared;      /* in this turn of the device's somebody was, for the next one */
	uint64_t foretold;      /* a collective of the active rank's: nothing is left before it */
	bool yielding;          /* its time slice has ended: nothing more is submitted, */
	bool relents;           /* but for the first item of each stream */
	uint64_t held_since_ns; /* what runs may wait for what is not submitted; 0: it does not */
	uint64_t patience_ns;   /* with that */
	struct rank *target;    /* becomes active when its memory is here */
	struct rank *next;      /* waits until the active one, which is idle, is stuck */

	struct job *stuck; /* no rank of it can do anything, and some wait for others */
	uint64_t stuck_moves, stuck_since_ns, stuck_until_ns;
	uint64_t let_go; /* how often one of them went alone for that */
};

void slice_open(struct proxy *, uint64_t quantum_ns);
void slice_forget(struct rank *); /* it goes */
void slice_turn(struct proxy *);
/* May the active rank's kernel be submitted, the `first` of its stream or not? */
static inline bool slice_submits(const struct slice *s, bool first)
{
	return !s->yielding || (s->relents && first);
}
uint64_t slice_deadline_ns(const struct proxy *); /* when to look again; 0: never */

#endif
