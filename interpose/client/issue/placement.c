/* placement.c: chooses the place of the next allocation. See heap.h.
 *
 * Ranks with equal content can share a chunk only as a whole. So allocations that may be
 * long-lived, like parameters and optimizer state, and short-lived ones, like activations, must not
 * be in one chunk:
 *
 *   low half   allocations known to be short-lived: in the lowest hole. Also all others, where
 *              separate chunks would cost more than the reserve.
 *   high half  all others. Smaller than a chunk: with its group, in chunks of the group's own.
 *              From a chunk on: at the beginning of a chunk, in chunks of its own.
 *
 * Places in the high half are a hash of the requester: an allocation that only one rank makes does
 * not shift those that it has in common with the others, unless two hashes lead to the same chunk
 * (then the second goes to the next free one). The requester is the call site, which distinguishes
 * parameters from gradients that the same function allocates. For less than an eighth of a chunk it
 * is the path of functions: each line of a long list of allocations is a call site, and separate
 * chunks for each would be expensive.
 *
 * Lifetimes are learned from frees of the same size from the same call site or, if that size is
 * new, from frees of all sizes from there. Without data, an allocation may be long-lived.
 *
 * Chunks beyond the need of the live bytes are limited to a small share of the device
 * (reserve_chunks), half of them for small buffers. Where one more would exceed it, allocations are
 * packed; and before memory is exhausted (heap_alloc), any hole is used.
 *
 * A wrong guess costs only speed.
 */
#include <stdlib.h>

#include "placement.h"

#define OWN_SITE_BYTES (RF_CHUNK_BYTES / 8)
#define ORIGINS_MAX (1u << 16)

#define HEAP_END (RF_DEV_BASE + RF_HEAP_BYTES)
#define MIDDLE (RF_DEV_BASE + RF_HEAP_BYTES / 2)
#define LARGE (MIDDLE + RF_HEAP_BYTES / 8) /* from here on: allocations with chunks of their own */

/* ---- statistics of allocations ---- */

static uint64_t mix_bits(uint64_t x) /* the finaliser of MurmurHash3 */
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

static uint64_t key_of(uint64_t a, uint64_t b) { return mix_bits(mix_bits(a) + b) | 1; }

static uint64_t site_key(uint64_t site) { return key_of(site, 1); }
static uint64_t size_key(uint64_t site, uint64_t whole) { return key_of(site, whole); }

static uint64_t group_key(const struct heap_request *r, uint64_t whole)
{
	return whole < OWN_SITE_BYTES ? key_of(r->path, 2) : key_of(r->site, 3);
}

/* The origin with this key, or the empty place for it; the table is never full. */
static struct heap_origin *origin_slot(struct heap_origin *table, uint32_t capacity, uint64_t key)
{
	uint32_t at = (uint32_t)(key >> 32) & (capacity - 1);
	while (table[at].key && table[at].key != key)
		at = (at + 1) & (capacity - 1);
	return &table[at];
}

static struct heap_origin *find_origin(const struct heap *h, uint64_t key)
{
	struct heap_origin *o = h->origin_capacity
					? origin_slot(h->origins, h->origin_capacity, key)
					: NULL;
	return o && o->key ? o : NULL;
}

static bool grow_origins(struct heap *h)
{
	uint32_t capacity = h->origin_capacity ? 2 * h->origin_capacity : 256;
	struct heap_origin *more = capacity <= ORIGINS_MAX ? calloc(capacity, sizeof *more) : NULL;
	if (!more)
		return false;
	for (uint32_t i = 0; i < h->origin_capacity; i++)
		if (h->origins[i].key)
			*origin_slot(more, capacity, h->origins[i].key) = h->origins[i];
	free(h->origins);
	h->origins = more;
	h->origin_capacity = capacity;
	return true;
}

static bool statistics_full(const struct heap *h) { return 2 * h->origin_count >= ORIGINS_MAX; }

/* NULL if the table is too large: nothing is learned of this key. */
static struct heap_origin *find_or_add_origin(struct heap *h, uint64_t key)
{
	struct heap_origin *o = find_origin(h, key);
	if (o)
		return o;
	if (2 * h->origin_count >= h->origin_capacity && !grow_origins(h))
		return NULL;
	o = origin_slot(h->origins, h->origin_capacity, key);
	o->key = key;
	h->origin_count++;
	return o;
}

/* True if most allocations have been freed. */
static bool is_short_lived(const struct heap_origin *o) { return 2 * o->freed > o->allocated; }

static bool predict_stable(const struct heap *h, const struct heap_request *r, uint64_t whole)
{
	const struct heap_origin *o = find_origin(h, size_key(r->site, whole));
	if (!o)
		o = find_origin(h, site_key(r->site));
	return o ? !is_short_lived(o) : !statistics_full(h);
}

void place_freed(struct heap *h, uint64_t site, uint64_t whole)
{
	struct heap_origin *of_size = find_origin(h, size_key(site, whole)),
			   *of_site = find_origin(h, site_key(site));
	if (of_size)
		of_size->freed++;
	if (of_site)
		of_site->freed++;
}

/* ---- holes ---- */

/* The lowest hole in [from, to) that has `bytes` from the start of a chunk. */
static bool find_aligned(const struct heap *h, uint64_t from, uint64_t to, uint64_t bytes,
			 uint64_t *addr)
{
	for (uint32_t i = index_of(h, from); i < h->count && bytes <= to - from; i++) {
		const struct heap_extent *e = &h->extents[i];
		uint64_t end = e->addr + e->bytes;
		if (e->state != HEAP_FREE) {
			from = round_up(end, RF_CHUNK_BYTES);
			if (from >= to)
				return false;
		} else if (end >= from + bytes) {
			*addr = from;
			return true;
		}
	}
	return false;
}

static bool find_lowest(const struct heap *h, uint64_t bytes, uint64_t *addr)
{
	uint64_t start = 0, run = 0;
	for (uint32_t i = 0; i < h->count; i++) {
		const struct heap_extent *e = &h->extents[i];
		if (e->state != HEAP_FREE) {
			run = 0;
			continue;
		}
		if (!run)
			start = e->addr;
		run += e->bytes;
		if (run >= bytes) {
			*addr = start;
			return true;
		}
	}
	return false;
}

static bool all_free(const struct heap *h, uint64_t from, uint64_t to)
{
	uint32_t i = index_of(h, from);
	while (i < h->count && h->extents[i].addr < to)
		if (h->extents[i++].state != HEAP_FREE)
			return false;
	return to <= HEAP_END;
}

/* A chunk is live only if an allocation is in it: in a hole, at most the first and the last one. So
 * no place in a hole needs fewer new chunks than its two ends. */
bool place_anywhere(const struct heap *h, uint64_t whole, struct heap_placed *out)
{
	uint64_t start = 0, run = 0, fewest = UINT64_MAX;
	out->apart = false;
	for (uint32_t i = 0; i < h->count; i++) {
		const struct heap_extent *e = &h->extents[i];
		bool hole = e->state == HEAP_FREE;
		start = run ? start : e->addr;
		run = hole ? run + e->bytes : 0;
		bool ends = i + 1 == h->count || h->extents[i + 1].state != HEAP_FREE;
		if (!hole || !ends || run < whole)
			continue;
		uint64_t places[] = {start, start + run - whole};
		for (int k = 0; k < 2; k++) {
			uint64_t needed = new_chunks(h, places[k], whole);
			if (needed < fewest) {
				fewest = needed;
				out->addr = places[k];
			}
		}
	}
	return fewest <= unused_chunks(h);
}

/* ---- places ---- */

/* In the group's last chunk, or else in a chunk without allocations. */
static bool place_with_group(const struct heap *h, uint64_t key, uint64_t whole, uint64_t *addr)
{
	const struct heap_origin *group = find_origin(h, key);
	uint64_t home = MIDDLE + (key >> 1) % ((LARGE - MIDDLE) / RF_CHUNK_BYTES) * RF_CHUNK_BYTES;
	uint64_t next = group ? group->next : 0, end = next + whole;
	uint64_t border = round_up(next, RF_CHUNK_BYTES);
	if (end > border)
		end = round_up(end, RF_CHUNK_BYTES); /* the next chunk must be empty */
	*addr = next;
	if (next != border && all_free(h, next, end) && end <= LARGE)
		return true;
	uint64_t from = next && border < LARGE ? border : home;
	return find_aligned(h, from, LARGE, RF_CHUNK_BYTES, addr) ||
	       find_aligned(h, MIDDLE, LARGE, RF_CHUNK_BYTES, addr);
}

static bool place_apart(const struct heap *h, uint64_t key, uint64_t whole, uint64_t *addr)
{
	const struct heap_origin *of_size = find_origin(h, key);
	uint64_t bytes = round_up(whole, RF_CHUNK_BYTES);
	uint64_t home = LARGE + (key >> 1) % ((HEAP_END - LARGE) / RF_CHUNK_BYTES) * RF_CHUNK_BYTES;
	uint64_t next = of_size ? round_up(of_size->next, RF_CHUNK_BYTES) : 0;
	return find_aligned(h, next && next < HEAP_END ? next : home, HEAP_END, bytes, addr) ||
	       find_aligned(h, LARGE, HEAP_END, bytes, addr);
}

/* The number of chunks that separation may cost. Free space in the tails of many chunks does not
 * serve a large buffer: the reserve is small on a large device, which a job may want to fill, and
 * sufficient on a small one. */
static uint64_t reserve_chunks(const struct heap *h)
{
	uint64_t least = h->capacity_chunks / 64 + 16, most = h->capacity_chunks / 3;
	return least < most ? least : most;
}

/* Within the device's memory, and within the reserve beyond what packing would need. */
static bool is_affordable(const struct heap *h, uint64_t addr, uint64_t whole)
{
	uint64_t chunks = h->live_chunks + new_chunks(h, addr, whole);
	uint64_t packed = round_up(h->live_bytes + whole, RF_CHUNK_BYTES) / RF_CHUNK_BYTES;
	uint64_t reserve = reserve_chunks(h) / (whole < OWN_SITE_BYTES ? 2 : 1);
	return new_chunks(h, addr, whole) <= unused_chunks(h) && chunks <= packed + reserve;
}

bool choose_place(const struct heap *h, const struct heap_request *r, uint64_t whole,
		  struct heap_placed *out)
{
	bool large = whole >= RF_CHUNK_BYTES, found = false;
	out->stable = predict_stable(h, r, whole);
	if (large)
		found = out->stable ? place_apart(h, size_key(r->site, whole), whole, &out->addr)
				    : find_aligned(h, RF_DEV_BASE, MIDDLE, whole, &out->addr);
	else if (out->stable)
		found = place_with_group(h, group_key(r, whole), whole, &out->addr);
	out->apart = found && is_affordable(h, out->addr, whole);
	if (out->apart)
		return true;
	return find_lowest(h, whole, &out->addr) &&
	       new_chunks(h, out->addr, whole) <= unused_chunks(h);
}

/* Addresses cost no memory, but a range may take a large part of them: where its place among
 * long-lived memory is taken, it gets the lowest hole. */
bool place_reservation(const struct heap *h, const struct heap_request *r, uint64_t whole,
		       struct heap_placed *out)
{
	*out = (struct heap_placed){.stable = predict_stable(h, r, whole)};
	out->apart = out->stable && place_apart(h, size_key(r->site, whole), whole, &out->addr);
	return out->apart || find_aligned(h, RF_DEV_BASE, HEAP_END, whole, &out->addr);
}

void place_note(struct heap *h, const struct heap_request *r, uint64_t whole,
		const struct heap_placed *placed)
{
	struct heap_origin *o = find_or_add_origin(h, site_key(r->site));
	if (o)
		o->allocated++;
	o = find_or_add_origin(h, size_key(r->site, whole));
	if (o)
		o->allocated++;
	if (!placed->apart || !placed->stable)
		return;
	if (whole < RF_CHUNK_BYTES)
		o = find_or_add_origin(h, group_key(r, whole));
	if (o)
		o->next = placed->addr + whole;
}
