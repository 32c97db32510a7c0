/* checksum.h: a checksum of bytes that does not depend on the order in which they are gone through,
 * so that a device may compute it in pieces and in parallel. The same on every kind of device. */
#ifndef RANKFOLD_CHECKSUM_H
#define RANKFOLD_CHECKSUM_H

#include <stdint.h>

#include "number.h"

/* Adds `bytes` to the sum; the first byte is the first one of word `word` of the whole (8 bytes
 * each). All pieces but the last one of a whole are multiples of 8 bytes. Two contents of equal
 * length that differ in one word never have equal sums; others do by chance, 1 in 2^128. */
void hal_checksum(uint64_t sum[2], const void *from, uint64_t bytes, uint64_t word);

/* Adds one word, which is there in the whole; missing bytes of the last one are zero. Every
 * step of the mix is invertible: multiplications by odd numbers, and shifts as in
 * MurmurHash3's finalizer. */
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
