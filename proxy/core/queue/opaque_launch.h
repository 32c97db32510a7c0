/* opaque_launch.h: kernels whose reads and writes nothing describes (opaque_launch.c,
 * opaque/opaque.h). */
#ifndef RANKFOLD_OPAQUE_LAUNCH_H
#define RANKFOLD_OPAQUE_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "versions/digest.h"

struct footprint;
struct item;
struct rank;

struct opaque_place {           /* of a launch in its rank's program */
	struct version context; /* the last collective before it */
	uint64_t comm;          /* its communicator, a handle; 0: none since the attach */
	uint64_t number;        /* its number on that communicator since then */
	uint64_t index;         /* launches since that collective */
};

/* Called in program order: for a collective; for a kernel, which gets its place. */
void opaque_collective(struct rank *, struct item *);
void opaque_launch(struct rank *, struct item *);

/* True if kernels of the rank are measured or trusted. */
bool opaque_folded(const struct rank *);
void opaque_footprint(struct rank *, const struct item *, struct footprint *);
/* Starts the measurement of an item that is otherwise ready. True: the item must wait for it. */
bool opaque_first(struct rank *, const struct item *);
/* True if the item is to be measured. */
bool opaque_measured(struct rank *, const struct item *);
/* True if the item waits until collectives of its rank are complete. */
bool opaque_waits(const struct rank *, const struct item *);
void opaque_done(struct rank *, const struct item *); /* submitted, or it need not run */
void opaque_complete(struct rank *, const struct item *);
bool opaque_still(const struct rank *); /* no collective of the rank is in progress */

#endif
