/* checksum.c: see checksum.h. */
#include "checksum.h"

#include <string.h>

void hal_checksum(uint64_t sum[2], const void *from, uint64_t bytes, uint64_t word)
{
	const uint8_t *at = from;
	uint64_t both[2] = {sum[0], sum[1]}, value;

	for (; bytes >= sizeof value; bytes -= sizeof value, at += sizeof value) {
		memcpy(&value, at, sizeof value);
		checksum_word(both, value, word++);
	}
	if (bytes) {
		value = 0;
		memcpy(&value, at, bytes);
		checksum_word(both, value, word);
	}
	memcpy(sum, both, sizeof both);
}
