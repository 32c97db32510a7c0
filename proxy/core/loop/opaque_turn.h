/* opaque_turn.h: measures opaque kernels of ranks, and uses the results (opaque_turn.c). */
#ifndef RANKFOLD_OPAQUE_TURN_H
#define RANKFOLD_OPAQUE_TURN_H

#include <stdint.h>

struct proxy;

void opaque_turn(struct proxy *);
uint64_t opaque_deadline_ns(const struct proxy *); /* as slice_deadline_ns */

#endif
