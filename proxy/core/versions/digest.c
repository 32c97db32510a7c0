/* digest.c: SipHash-2-4, 128 bits (digest.h). */
#include "versions/digest.h"

#include <string.h>

static uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void mix_rounds(struct digest *d, int count)
{
	uint64_t v0 = d->v0, v1 = d->v1, v2 = d->v2, v3 = d->v3;
	while (count--) {
		v0 += v1, v2 += v3;
		v1 = rotated(v1, 13) ^ v0, v3 = rotated(v3, 16) ^ v2;
		v0 = rotated(v0, 32);
		v2 += v1, v0 += v3;
		v1 = rotated(v1, 17) ^ v2, v3 = rotated(v3, 21) ^ v0;
		v2 = rotated(v2, 32);
	}
	d->v0 = v0, d->v1 = v1, d->v2 = v2, d->v3 = v3;
}

static void absorb_word(struct digest *d, uint64_t word)
{
	d->v3 ^= word;
	mix_rounds(d, 2);
	d->v0 ^= word;
}

void digest_begin(struct digest *d)
{
	*d = (struct digest){0x736f6d6570736575, 0x646f72616e646f6d ^ 0xee, 0x6c7967656e657261,
			     0x7465646279746573, 0};
}

void digest_word(struct digest *d, uint64_t word)
{
	absorb_word(d, word);
	d->bytes += sizeof word;
}

void digest_bytes(struct digest *d, const void *from, uint64_t bytes)
{
	const uint8_t *at = from;
	uint64_t word, left = bytes;
	digest_word(d, bytes);
	for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
		memcpy(&word, at, sizeof word);
		digest_word(d, word);
	}
	if (left) {
		word = 0;
		memcpy(&word, at, left);
		digest_word(d, word);
	}
}

struct version digest_end(struct digest *d)
{
	struct version v;
	absorb_word(d, d->bytes << 56);
	d->v2 ^= 0xee;
	mix_rounds(d, 4);
	v.a = d->v0 ^ d->v1 ^ d->v2 ^ d->v3;
	d->v1 ^= 0xdd;
	mix_rounds(d, 4);
	v.b = d->v0 ^ d->v1 ^ d->v2 ^ d->v3;
	return v;
}
