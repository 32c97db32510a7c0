/* reuse.h: what need not be done, as its result is on the device already (reuse.c). */
#ifndef RANKFOLD_QUEUE_REUSE_H
#define RANKFOLD_QUEUE_REUSE_H

#include "memory/memory.h"

struct item;
struct rank;
struct stream;

/* The item is its stream's next one, and could be submitted now. DONE: it is complete, as soon as
 * what is before it; of its effect nothing is left to be noted. */
enum adoption reuse(struct rank *, const struct stream *, const struct item *,
		    const struct foreseen *);

#endif
