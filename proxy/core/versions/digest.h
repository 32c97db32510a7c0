/* digest.h: 128-bit digests of how content came about: SipHash-2-4 with 128 bits of output, key 0
 * (Aumasson and Bernstein, "SipHash: a fast short-input PRF"; the reference code's vectors are in
 * tests/versions). All of a job's devices digest alike, whatever program or process they are in.
 *
 * Rules: what is absorbed is words and runs of bytes, each run with its length, so that two lists
 * never look alike; addresses of the host and padding do not get in. Devices of one job have one
 * byte order.
 * Whoever could find two inputs with one digest would deceive ranks of their own job only. */
#ifndef RANKFOLD_DIGEST_H
#define RANKFOLD_DIGEST_H

#include <stdint.h>

struct version { /* of content: equal versions are equal bytes */
	uint64_t a, b;
};

/* What a digest is of comes first in it: nothing of one kind looks like another. */
enum digest_of {
	OF_FILL = 1,
	OF_PRIVATE,
	OF_BYTES,
	OF_REST,
	OF_SUM,
	OF_QUEUE = 16 /* and on: effects.c */
};

struct digest {
	uint64_t v0, v1, v2, v3, bytes;
};

void digest_begin(struct digest *);
void digest_word(struct digest *, uint64_t);
void digest_bytes(struct digest *, const void *, uint64_t bytes);
struct version digest_end(struct digest *);

#endif
