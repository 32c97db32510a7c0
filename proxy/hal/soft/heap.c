/* heap.c: malloc and free of kernels.
 *
 * All state is in the heap itself, in the rank's device memory (struct rf_heap), so it is swapped
 * and moved with it. The address that a kernel gets depends only on the earlier calls. Blocks are
 * contiguous; each has a header with its own size and that of the block before it. Free blocks are
 * in lists by size. Sizes are in units of 16 bytes, which is also the alignment of addresses;
 * places are in units from the heap's beginning.
 *
 * Kernels can write anywhere in the heap, so nothing that is read from it is trusted: a place is
 * checked before it is used, and an impossible value ends the launch. Runs in a fault scope
 * (fault.c).
 *
 * Locks: hal_space.allocating, held for one call. A worker that waits for it gives up when the
 * space has failed, because a fault in that call leaves it locked.
 */
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "kernel.h"
#include "soft.h"

#define UNIT 16u
#define CLASSES 160u       /* four per doubling of the size */
#define BLOCK_UNITS_MIN 2u /* a header, and the links of a free block */
#define UNITS_MAX UINT32_MAX
#define SCAN_MAX 64u /* blocks inspected in a list where not all are large enough */

struct heap {
	struct rf_heap about;
	uint64_t units; /* of the heap; after the last block there is a header of size 0 */
	uint64_t filled[CLASSES / 64 + 1]; /* bit c: class c has a free block */
	uint64_t first[CLASSES];           /* places of headers; 0: none */
};

struct header {
	uint32_t units;  /* of the block, including this header */
	uint32_t before; /* units of the block before it; 0: none */
	uint32_t state, reserved;
};

#define HEADER_UNITS 1u
#define FREE 0u
#define USED 0x6b656570u /* any other value is not a header */
_Static_assert(sizeof(struct header) == HEADER_UNITS * UNIT, "a header is whole units");
_Static_assert(sizeof(struct heap) % UNIT == 0, "blocks begin at a unit");

/* In a free block, after its header. */
struct links {
	uint64_t next, last;
};

#define DAMAGED "the heap of kernels is damaged: one wrote beyond what it had allocated"
#define NOT_ALLOCATED "free of memory that malloc has not returned, or that is already free"

struct view {
	struct heap *heap; /* host address */
	uint64_t address;  /* device address */
	uint64_t units;    /* read once, because a kernel may change it; 0: too small */
};

static _Noreturn void heap_damaged(struct hal_space *space, const char *what)
{
	atomic_flag_clear(&space->allocating);
	soft_abort_with_text(SOFT_LAUNCH_FAILED, what);
	__builtin_unreachable();
}

static uint64_t first_block(void) { return sizeof(struct heap) / UNIT; }

/* The header at a place, if the place is valid. */
static struct header *header_at(struct hal_space *space, const struct view *v, uint64_t place)
{
	if (place < first_block() || place > v->units - HEADER_UNITS)
		heap_damaged(space, DAMAGED);
	return (struct header *)((uint8_t *)v->heap + place * UNIT);
}

static struct links *links_of(struct header *h) { return (struct links *)(h + 1); }

/* The size class: blocks of a class have at least its size; exact below 4 units. */
static uint32_t class_of(uint32_t units)
{
	uint32_t log = 31u - (uint32_t)__builtin_clz(units | 1);

	return units < 4 ? units : 4 * (log - 1) + (units >> (log - 2) & 3);
}

static void insert_free(struct hal_space *space, const struct view *v, uint64_t place)
{
	struct header *h = header_at(space, v, place);
	uint32_t c = class_of(h->units);

	*links_of(h) = (struct links){v->heap->first[c], 0};
	if (links_of(h)->next)
		links_of(header_at(space, v, links_of(h)->next))->last = place;
	v->heap->first[c] = place;
	v->heap->filled[c / 64] |= 1ull << c % 64;
}

static void unlink_block(struct hal_space *space, const struct view *v, uint64_t place)
{
	struct header *h = header_at(space, v, place);
	uint32_t c = class_of(h->units);
	uint64_t next = links_of(h)->next, last = links_of(h)->last;

	if (next)
		links_of(header_at(space, v, next))->last = last;
	if (last)
		links_of(header_at(space, v, last))->next = next;
	else
		v->heap->first[c] = next;
	if (!v->heap->first[c])
		v->heap->filled[c / 64] &= ~(1ull << c % 64);
}

/* Writes the size of the block at `place` into the next one's header. */
static void write_size_to_next(struct hal_space *space, const struct view *v, uint64_t place)
{
	struct header *h = header_at(space, v, place);

	header_at(space, v, place + h->units)->before = h->units;
}

static void make_heap(struct hal_space *space, struct view *v)
{
	uint64_t units = v->heap->about.bytes / UNIT, start = first_block();

	memset((uint8_t *)v->heap + sizeof v->heap->about, 0,
	       sizeof *v->heap - sizeof v->heap->about);
	v->heap->about.made = 1;
	units = units < UNITS_MAX ? units : UNITS_MAX;
	if (units < start + HEADER_UNITS + BLOCK_UNITS_MIN)
		return; /* too small for any block */
	v->heap->units = v->units = units;
	*header_at(space, v,
		   start) = (struct header){.units = (uint32_t)(units - start - HEADER_UNITS)};
	*header_at(space, v, units - HEADER_UNITS) = (struct header){.state = USED};
	write_size_to_next(space, v, start);
	insert_free(space, v, start);
}

/* The place of a free block of at least `units`, or 0. */
static uint64_t find_free(struct hal_space *space, const struct view *v, uint32_t units)
{
	uint32_t c = class_of(units);
	uint64_t place = v->heap->first[c];

	for (uint32_t i = 0; place && i < SCAN_MAX; i++) {
		struct header *h = header_at(space, v, place);

		if (h->units >= units)
			return place;
		place = links_of(h)->next;
	}
	for (c++; c < CLASSES; c++) {
		uint64_t there = v->heap->filled[c / 64] >> c % 64;

		if (!there) {
			c |= 63; /* the next word */
			continue;
		}
		c += (uint32_t)__builtin_ctzll(there);
		return c < CLASSES ? v->heap->first[c] : 0;
	}
	return 0;
}

static uint64_t heap_allocate_block(struct hal_space *space, const struct view *v, uint64_t bytes)
{
	uint64_t place;
	uint32_t units;
	struct header *h;

	if (!v->units || bytes / UNIT >= v->units)
		return 0;
	units = HEADER_UNITS + (uint32_t)((bytes + UNIT - 1) / UNIT);
	if (units < BLOCK_UNITS_MIN)
		units = BLOCK_UNITS_MIN;
	place = find_free(space, v, units);
	if (!place)
		return 0;
	h = header_at(space, v, place);
	unlink_block(space, v, place);
	if (h->units < units)
		heap_damaged(space, DAMAGED);
	if (h->units - units >= BLOCK_UNITS_MIN) {
		*header_at(space, v, place + units) = (struct header){.units = h->units - units,
								      .before = units};
		h->units = units;
		write_size_to_next(space, v, place + units);
		insert_free(space, v, place + units);
	}
	h->state = USED;
	return v->address + (place + HEADER_UNITS) * UNIT;
}

static void free_block(struct hal_space *space, const struct view *v, uint64_t address)
{
	uint64_t offset = address - v->address, place = offset / UNIT - HEADER_UNITS;
	struct header *h, *next;

	if (!v->units || offset % UNIT || offset / UNIT < first_block() + HEADER_UNITS ||
	    offset / UNIT >= v->units)
		heap_damaged(space, NOT_ALLOCATED);
	h = header_at(space, v, place);
	if (h->state != USED || h->units >= v->units - place ||
	    header_at(space, v, place + h->units)->before != h->units)
		heap_damaged(space, NOT_ALLOCATED);
	h->state = FREE;
	next = header_at(space, v, place + h->units);
	if (next->state == FREE) {
		unlink_block(space, v, place + h->units);
		h->units += next->units;
	}
	if (h->before && header_at(space, v, place - h->before)->state == FREE) {
		place -= h->before;
		unlink_block(space, v, place);
		header_at(space, v, place)->units += h->units;
	}
	write_size_to_next(space, v, place);
	insert_free(space, v, place);
}

/* Locks the heap that the module's struct rf_setup points to. False: there is none. */
static bool lock_heap(const struct soft_block *block, struct hal_space *space, uint64_t setup,
		      struct view *v)
{
	uint64_t offset = setup - RF_DEV_BASE, heap;

	memcpy(&heap,
	       block->base + (offset < RF_WINDOW_BYTES ? offset : SOFT_NOWHERE) +
		       offsetof(struct rf_setup, heap),
	       sizeof heap);
	offset = heap - RF_DEV_BASE;
	if (offset >= RF_WINDOW_BYTES || heap % UNIT)
		return false;
	*v = (struct view){.heap = (struct heap *)(block->base + offset), .address = heap};
	while (atomic_flag_test_and_set(&space->allocating)) {
		if (atomic_load(&space->error))
			soft_abort(SOFT_LAUNCH_FAILED);
		sched_yield();
	}
	if (!v->heap->about.made)
		make_heap(space, v);
	v->units = v->heap->units;
	if (v->units && (v->units <= first_block() + HEADER_UNITS || v->units > UNITS_MAX))
		heap_damaged(space, DAMAGED);
	return true;
}

__attribute__((visibility("default"))) uint64_t rankfold_soft_malloc(const struct soft_block *block,
								     uint64_t setup, uint64_t bytes)
{
	struct hal_space *space = soft_current_space();
	struct view v;
	uint64_t address;

	if (!lock_heap(block, space, setup, &v))
		return 0;
	address = heap_allocate_block(space, &v, bytes);
	atomic_flag_clear(&space->allocating);
	return address;
}

__attribute__((visibility("default"))) void rankfold_soft_free(const struct soft_block *block,
							       uint64_t setup, uint64_t address)
{
	struct hal_space *space = soft_current_space();
	struct view v;

	if (!address || !lock_heap(block, space, setup, &v))
		return;
	free_block(space, &v, address);
	atomic_flag_clear(&space->allocating);
}
