/* bounds.h: how far from the words of its parameters a launch reads and writes (bounds.c). */
#ifndef RANKFOLD_BOUNDS_H
#define RANKFOLD_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"

struct proxy_function;

#define BOUND_STEPS_MAX 1024

struct bounds { /* of one word */
	struct bound read, written;
	uint32_t known; /* of these: PROXY_READ, PROXY_WRITTEN; else it may be anything */
};

/* What a kernel reaches, by the steps that say where. Everything in it has been checked. */
struct reaches;

/* A copy of what the function says of `words`. NULL: `error` says why: it makes no sense, or host
 * memory is short. */
struct reaches *bounds_copy(const struct proxy_function *, int *error);
void bounds_free(struct reaches *);

struct bound_shape {
	uint32_t grid[3], block[3];
};
/* Of each word, for a launch with these parameters. */
void bounds_of(struct reaches *, const struct bound_shape *, const uint8_t *params,
	       struct bounds *words);

#endif
