/* digest.h: 128-bit digests of how content came about: SipHash-2-4 with 128 bits of output, key 0
 * (Aumasson and Bernstein, "SipHash: a fast short-input PRF"; the reference code's vectors are in
 * tests/versions). All devices of a job compute the same digests, in whatever program or process.
 *
 * Rules: the input consists of words and runs of bytes, each run with its length, so that two
 * different lists never produce the same input; host addresses and padding are never part of it.
 * Devices of one job have one byte order. A rank that finds two inputs with one digest can deceive
 * only ranks of its own job. */
#ifndef RANKFOLD_DIGEST_H
#define RANKFOLD_DIGEST_H

#include <stdint.h>

struct version { /* of content: equal versions mean equal bytes */
	uint64_t a, b;
};

/* The kind of input, which comes first in a digest, so that inputs of different kinds differ. */
enum digest_of {
	OF_FILL = 1,
	OF_PRIVATE,
	OF_BYTES,
	OF_REST,
	OF_SUM,
	OF_QUEUE = 16 /* and higher: effects.c */
};

struct digest {
	uint64_t v0, v1, v2, v3, bytes;
};

void digest_begin(struct digest *);
void digest_word(struct digest *, uint64_t);
void digest_bytes(struct digest *, const void *, uint64_t bytes);
struct version digest_end(struct digest *);

#endif
