/* hidden.h: kernels of which nothing says what they read and write (hidden.c, opaque/opaque.h). */
#ifndef RANKFOLD_QUEUE_HIDDEN_H
#define RANKFOLD_QUEUE_HIDDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "versions/digest.h"

struct foreseen;
struct item;
struct rank;

struct hidden_place {           /* of a launch in its rank's program */
	struct version context; /* the last collective before it, */
	uint64_t comm;          /* its communicator, a handle; 0: there was none since it came */
	uint64_t number;        /* its number there since then, */
	uint64_t index;         /* and launches since it */
};

/* In the order of the program: a collective; a kernel, which gets its place. */
void hidden_collective(struct rank *, struct item *);
void hidden_launch(struct rank *, struct item *);

/* Is anything measured or trusted here? */
bool hidden_folded(const struct rank *);
void hidden_foresee(struct rank *, const struct item *, struct foreseen *);
/* Everything else is there: has it to be measured first? Then again later. */
bool hidden_first(struct rank *, const struct item *);
/* Is it to be measured? */
bool hidden_measured(struct rank *, const struct item *);
/* Is it held up until collectives of its rank are over? */
bool hidden_waits(const struct rank *, const struct item *);
void hidden_done(struct rank *, const struct item *); /* submitted, or it need not be */
void hidden_complete(struct rank *, const struct item *);
bool hidden_still(const struct rank *); /* no collective of the rank is under way */

#endif
