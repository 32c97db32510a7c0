/* checksum.c: each word, with its place in the whole, is mixed (what is mixed can be told from the
 * result: multiplications by odd numbers, and shifts as in MurmurHash3's finalizer), and all of
 * that is added up.
 */
#include "checksum.h"

#include <string.h>

#define PLACE 0x9e3779b97f4a7c15ull
#define FIRST 0xff51afd7ed558ccdull
#define SECOND 0xc4ceb9fe1a85ec53ull

static inline void add(uint64_t sum[2], uint64_t value, uint64_t word)
{
	uint64_t x = (value ^ (word * PLACE)) * FIRST;

	x ^= x >> 32;
	sum[0] += x;
	x *= SECOND;
	x ^= x >> 29;
	sum[1] += x;
}

void hal_checksum(uint64_t sum[2], const void *from, uint64_t bytes, uint64_t word)
{
	const uint8_t *at = from;
	uint64_t both[2] = {sum[0], sum[1]}, value;

	for (; bytes >= sizeof value; bytes -= sizeof value, at += sizeof value) {
		memcpy(&value, at, sizeof value);
		add(both, value, word++);
	}
	if (bytes) {
		value = 0;
		memcpy(&value, at, bytes);
		add(both, value, word);
	}
	memcpy(sum, both, sizeof both);
}
