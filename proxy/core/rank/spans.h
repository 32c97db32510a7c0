/* spans.h: ranges of numbers that a register can hold (spans.c).
 *
 * A span contains whole numbers; if `base` names a parameter word that is an address, each is
 * relative to that address. A register of n bits holds one of them, modulo 2^n. An empty span means
 * that no thread computes the register. */
#ifndef RANKFOLD_SPANS_H
#define RANKFOLD_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct proxy_step;

#define SPAN_OFFSET_MAX (1ll << 44) /* below it, addresses cannot wrap around */
#define SPAN_ZEROS_MAX 62
#define SPAN_PARAMETERS UINT32_MAX /* the base of addresses of the parameters themselves */

struct span {
	int64_t low, high; /* not low <= high: empty */
	uint32_t base;     /* 0, or one more than the offset of a word that is an address */
	uint32_t zeros;    /* all are multiples of 2^zeros */
};

static inline bool span_empty(struct span r) { return r.low > r.high; }

struct span span_anything(uint32_t bits); /* all numbers that a register of this width can hold */

/* Computes a step that has operands; it uses as many as its kind has. */
struct span span_of(const struct proxy_step *, struct span a, struct span b, struct span c);

#endif
