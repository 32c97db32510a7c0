/* placement.h: the place of the next allocation, for heap.c; and what both compute from the
 * extents.
 *
 * `whole` is an allocation's size in the heap: a multiple of RF_ALLOC_ALIGN.
 */
#ifndef RANKFOLD_PLACEMENT_H
#define RANKFOLD_PLACEMENT_H

#include "channel.h"
#include "heap.h"

/* Finds the preferred place, if the allocation fits there. */
bool choose_place(const struct heap *, const struct heap_request *, uint64_t whole,
		  struct heap_placed *);
/* Finds the place that needs the fewest new chunks, if there is one. */
bool place_anywhere(const struct heap *, uint64_t whole, struct heap_placed *);
/* Finds whole chunks of addresses without memory, if there are. */
bool place_reservation(const struct heap *, const struct heap_request *, uint64_t whole,
		       struct heap_placed *);
/* Records a placement. */
void place_note(struct heap *, const struct heap_request *, uint64_t whole,
		const struct heap_placed *);
/* Records that the program has freed an allocation. */
void place_freed(struct heap *, uint64_t site, uint64_t whole);

static inline uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static inline uint64_t first_chunk(uint64_t addr) { return (addr - RF_DEV_BASE) / RF_CHUNK_BYTES; }

/* The number of chunks of the device that are neither live nor promised. */
static inline uint64_t unused_chunks(const struct heap *h)
{
	return h->capacity_chunks - h->live_chunks - h->promised_chunks;
}

/* The number of chunks in which [addr, +bytes) would be the first live allocation. */
static inline uint64_t new_chunks(const struct heap *h, uint64_t addr, uint64_t bytes)
{
	uint64_t fresh = 0;
	for (uint64_t c = first_chunk(addr); c <= first_chunk(addr + bytes - 1); c++)
		fresh += h->live[c] == 0;
	return fresh;
}

/* Index of the extent that contains addr, which must be in the heap. */
static inline uint32_t index_of(const struct heap *h, uint64_t addr)
{
	uint32_t low = 0, high = h->count;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (h->extents[middle].addr <= addr)
			low = middle;
		else
			high = middle;
	}
	return low;
}

#endif
