/* checksum.h: a checksum of bytes that does not depend on the order in which they are gone through,
 * so that a device may compute it in pieces and in parallel. The same on every kind of device. */
#ifndef RANKFOLD_CHECKSUM_H
#define RANKFOLD_CHECKSUM_H

#include <stdint.h>

/* Adds `bytes` to the sum, of which the first is the first one of word `word` of the whole (8 bytes
 * each). All pieces but the last one of a whole are multiples of 8 bytes. Two contents of equal
 * length that differ in one word never have equal sums; others do by chance, 1 in 2^128. */
void hal_checksum(uint64_t sum[2], const void *from, uint64_t bytes, uint64_t word);

#endif
