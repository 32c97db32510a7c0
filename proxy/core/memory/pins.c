/* pins.c: the parts of a rank's pinned arena that are in use, as its client writes them into the
 * channel (RF_OFF_PINS). The device reaches them directly, where it can. */
#include "memory_parts.h"

_Static_assert(PIN_WORDS == RF_PIN_WORDS, "a bit for each chunk of the arena");

static void pin(struct rank_memory *m, uint32_t chunk, uint32_t count, bool pinned)
{
	uint64_t addr = RF_PINNED_BASE(m->rank) + chunk * RF_CHUNK_BYTES;
	m->device->hal->space_pin(m->space, addr, count * RF_CHUNK_BYTES, pinned);
}

/* The bits that are to change from 1 to 0 or (`pinned`) from 0 to 1. */
static uint64_t changes_in(const struct rank_memory *m, uint32_t word, bool pinned)
{
	uint64_t wanted = atomic_load(&m->pins_wanted[word]);
	return pinned ? wanted & ~m->pins[word] : m->pins[word] & ~wanted;
}

static void follow(struct rank_memory *m, bool pinned)
{
	for (uint32_t word = 0; word < RF_PIN_WORDS; word++) {
		uint64_t left = changes_in(m, word, pinned);
		m->pins[word] ^= left;
		while (left) {
			uint32_t first = (uint32_t)__builtin_ctzll(left);
			uint64_t rest = ~(left >> first);
			uint32_t count = rest ? (uint32_t)__builtin_ctzll(rest) : 64;
			pin(m, word * 64 + first, count, pinned);
			left &= count == 64 ? 0 : ~(((1ull << count) - 1) << first);
		}
	}
}

bool memory_pins_follow(struct rank_memory *m)
{
	bool less = false;
	if (!m->pins_wanted)
		return true;
	for (uint32_t word = 0; word < RF_PIN_WORDS; word++)
		less |= changes_in(m, word, false) != 0;
	if (less && m->inflight)
		return false;
	if (less)
		follow(m, false);
	follow(m, true);
	return m->device->hal->space_pinned(m->space);
}

void memory_pins_are_at(struct rank_memory *m, const _Atomic uint64_t *wanted)
{
	if (!m->device->hal->space_pin)
		return;
	m->pins_wanted = wanted;
	memory_pins_follow(m);
}
