/* bounds.h: how far from the words of its parameters a launch reads and writes (bounds.c). */
#ifndef RANKFOLD_BOUNDS_H
#define RANKFOLD_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"

struct proxy_function;

#define BOUND_STEPS_MAX 8192
#define BOUND_WORDS_MAX 2048 /* through which one launch reaches memory */

struct bounds { /* of one word */
	struct bound read, written;
	uint32_t known; /* mask of PROXY_READ and PROXY_WRITTEN: that bound is known; otherwise
			 * it may be anything */
};

struct bound_word { /* 8 bytes of the parameters at offset `at` */
	uint32_t at;
	uint32_t use; /* enum proxy_use */
	struct bounds bounds;
};

struct bound_part { /* of the parameters */
	uint32_t at, bytes;
};

/* A launch's use of its parameters. Valid until the next launch of the kernel. */
struct bound_launch {
	uint32_t word_count, read_count;
	const struct bound_word *words; /* memory is reached only through these */
	const struct bound_part *read;  /* only these are read */
};

/* The ranges that a kernel reaches, with the steps that compute them. Everything in it has been
 * checked. */
struct reaches;

/* Copies what the function specifies about its parameters. Returns NULL with `error`:
 * CU_INVALID_IMAGE or CU_OUT_OF_MEMORY. */
struct reaches *bounds_copy(const struct proxy_function *, int *error);
void bounds_free(struct reaches *);

struct bound_shape {
	uint32_t grid[3], block[3];
};
/* Computes the bounds of a launch with these parameters. False: there are too many words, or host
 * memory is short. */
bool bounds_of(struct reaches *, const struct bound_shape *, const uint8_t *params,
	       struct bound_launch *);

#endif
