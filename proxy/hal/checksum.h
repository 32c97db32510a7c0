/* checksum.h: a checksum that does not depend on the order in which the bytes are processed, so
 * that a device may compute it in pieces and in parallel. It is the same on every kind of
 * device. */
#ifndef RANKFOLD_CHECKSUM_H
#define RANKFOLD_CHECKSUM_H

#include <stdint.h>

#include "number.h"

/* Adds `bytes` to the sum; the first of them is the first byte of word `word` of the whole (words
 * have 8 bytes). All pieces of a whole except the last are multiples of 8 bytes. Two contents of
 * equal length that differ in one word never have equal sums; other pairs do with probability 1 in
 * 2^128. */
void hal_checksum(uint64_t sum[2], const void *from, uint64_t bytes, uint64_t word);

/* Adds one complete word; missing bytes of the last word are zero. The mixing is invertible:
 * multiplications by odd numbers, and shifts as in MurmurHash3's finalizer. */
INLINE void checksum_word(uint64_t sum[2], uint64_t value, uint64_t word)
{
	uint64_t x = (value ^ (word * 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;

	x ^= x >> 32;
	sum[0] += x;
	x *= 0xc4ceb9fe1a85ec53ull;
	x ^= x >> 29;
	sum[1] += x;
}

#endif
