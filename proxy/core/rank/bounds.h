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
	uint32_t known; /* mask of PROXY_READ and PROXY_WRITTEN: that bound is known; otherwise
			 * it may be anything */
};

/* The ranges that a kernel reaches, with the steps that compute them. Everything in it has been
 * checked. */
struct reaches;

/* Copies what the function specifies about `words`. Returns NULL with `error`: CU_INVALID_IMAGE or
 * CU_OUT_OF_MEMORY. */
struct reaches *bounds_copy(const struct proxy_function *, int *error);
void bounds_free(struct reaches *);

struct bound_shape {
	uint32_t grid[3], block[3];
};
/* Computes the bounds of each word, for a launch with these parameters. */
void bounds_of(struct reaches *, const struct bound_shape *, const uint8_t *params,
	       struct bounds *words);

#endif
