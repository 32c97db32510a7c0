/* spans.h: the numbers that a register can hold, from one to another (spans.c).
 *
 * A span holds whole numbers, each of them added to the word `base` of the parameters if that is an
 * address. A register of n bits holds one of them, modulo 2^n. An empty one says that no thread
 * comes where the register would be computed. */
#ifndef RANKFOLD_SPANS_H
#define RANKFOLD_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct proxy_step;

#define SPAN_OFFSET_MAX (1ll << 44) /* below it, addresses cannot wrap around */
#define SPAN_ZEROS_MAX 62

struct span {
	int64_t low, high; /* not low <= high: empty */
	uint32_t base;     /* 0, or one more than the offset of a word that is an address */
	uint32_t zeros;    /* all are multiples of 2^zeros */
};

static inline bool span_empty(struct span r) { return r.low > r.high; }

struct span span_anything(uint32_t bits); /* that a register of so many can hold */

/* What a step gives that has operands; it uses those that its kind has. */
struct span span_of(const struct proxy_step *, struct span a, struct span b, struct span c);

#endif
