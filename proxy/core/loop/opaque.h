/* opaque.h: measures opaque kernels of ranks, and uses the results (opaque.c). */
#ifndef RANKFOLD_LOOP_OPAQUE_H
#define RANKFOLD_LOOP_OPAQUE_H

#include <stdint.h>

struct proxy;

void opaque_turn(struct proxy *);
uint64_t opaque_deadline_ns(const struct proxy *); /* as slice_deadline_ns */

#endif
