/* reuse.h: skips work whose result is on the device already (reuse.c). */
#ifndef RANKFOLD_QUEUE_REUSE_H
#define RANKFOLD_QUEUE_REUSE_H

#include "memory/memory.h"

struct item;
struct rank;
struct stream;

/* The item is next in its stream, and could be submitted now. DONE: it completes as soon as earlier
 * items have, and its effect is recorded. */
enum result_mapping reuse(struct rank *, const struct stream *, const struct item *,
			  const struct footprint *);

#endif
