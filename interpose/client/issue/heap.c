/* heap.c: an address-ordered list of extents. See heap.h.
 *
 * In the worst case an operation is linear in the number of extents, which is some thousands:
 * programs that allocate a lot use a caching allocator. Extents that were freed but are not retired
 * remain separate (each records its free), and a run of neighbours counts as one hole. So the time
 * of retirement changes the list's shape but never a placement.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "placement.h"

#define CHUNKS (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define MERGE_EVERY 64u

bool heap_init(struct heap *h, uint64_t capacity_bytes)
{
	*h = (struct heap){.capacity_chunks = capacity_bytes / RF_CHUNK_BYTES, .capacity = 64};
	h->extents = calloc(h->capacity, sizeof *h->extents);
	h->live = calloc(CHUNKS, sizeof *h->live);
	h->held = calloc(CHUNKS, sizeof *h->held);
	if (!h->extents || !h->live || !h->held) {
		heap_destroy(h);
		return false;
	}
	h->extents[h->count++] = (struct heap_extent){.addr = RF_DEV_BASE, .bytes = RF_HEAP_BYTES};
	return true;
}

void heap_destroy(struct heap *h)
{
	free(h->extents);
	free(h->live);
	free(h->held);
	free(h->freed);
	free(h->origins);
	*h = (struct heap){0};
}

const struct heap_extent *heap_find(const struct heap *h, uint64_t addr)
{
	if (!h->count || addr < RF_DEV_BASE || addr - RF_DEV_BASE >= RF_HEAP_BYTES)
		return NULL;
	const struct heap_extent *e = &h->extents[index_of(h, addr)];
	return e->state == HEAP_LIVE ? e : NULL;
}

static void count_up(uint32_t *counts, uint64_t *total, uint64_t addr, uint64_t bytes)
{
	for (uint64_t c = first_chunk(addr); c <= first_chunk(addr + bytes - 1); c++)
		*total += counts[c]++ == 0;
}

static void count_down(uint32_t *counts, uint64_t *total, uint64_t addr, uint64_t bytes)
{
	for (uint64_t c = first_chunk(addr); c <= first_chunk(addr + bytes - 1); c++) {
		INVARIANT(counts[c] && *total, "a chunk counts the allocations in it");
		*total -= --counts[c] == 0;
	}
}

static void free_retired(struct heap *h, uint64_t upto)
{
	for (; h->promoted < upto; h->promoted++)
		if (h->freed[h->promoted].addresses)
			h->extents[index_of(h, h->freed[h->promoted].addr)].state = HEAP_FREE;
}

/* Replaces the extents under the new one; none of them is live. *after: their last free that is not
 * retired; 0: none. */
static bool carve_extent(struct heap *h, struct heap_extent new, uint64_t *after)
{
	uint64_t addr = new.addr, bytes = new.bytes;
	uint32_t first = index_of(h, addr), last = index_of(h, addr + bytes - 1);
	struct heap_extent parts[3], head = h->extents[first], tail = h->extents[last];
	uint32_t n = 0;
	*after = 0;
	for (uint32_t i = first; i <= last; i++) {
		INVARIANT(h->extents[i].state != HEAP_LIVE, "memory that is given out is free");
		if (h->extents[i].seq > *after)
			*after = h->extents[i].seq;
	}
	if (new.state != HEAP_LIVE)
		new.seq = *after;
	if (*after <= h->retired_seq)
		*after = 0;
	if (head.addr < addr) {
		head.bytes = addr - head.addr;
		parts[n++] = head;
	}
	parts[n++] = new;
	if (tail.addr + tail.bytes > addr + bytes) {
		tail.bytes = tail.addr + tail.bytes - (addr + bytes);
		tail.addr = addr + bytes;
		parts[n++] = tail;
	}
	uint32_t count = h->count - (last - first + 1) + n;
	if (count > h->capacity) {
		struct heap_extent *more = realloc(h->extents, 2 * count * sizeof *more);
		if (!more)
			return false;
		h->extents = more;
		h->capacity = 2 * count;
	}
	memmove(h->extents + first + n, h->extents + last + 1,
		(h->count - last - 1) * sizeof *h->extents);
	memcpy(h->extents + first, parts, n * sizeof *parts);
	h->count = count;
	return true;
}

static void count_live(struct heap *h, uint64_t addr, uint64_t bytes)
{
	count_up(h->live, &h->live_chunks, addr, bytes);
	count_up(h->held, &h->held_chunks, addr, bytes);
	h->live_bytes += bytes;
	INVARIANT(h->live_chunks + h->promised_chunks <= h->capacity_chunks,
		  "no more memory is given out than the device has");
}

bool heap_alloc(struct heap *h, const struct heap_request *r, struct heap_placed *out)
{
	uint64_t whole = round_up(r->bytes, RF_ALLOC_ALIGN);
	if (!r->bytes || r->bytes > RF_HEAP_BYTES || !h->count)
		return false;
	if (!choose_place(h, r, whole, out)) {
		free_retired(h, h->freed_count);
		if (!choose_place(h, r, whole, out) && !place_anywhere(h, whole, out))
			return false;
	}
	struct heap_extent live = {.addr = out->addr,
				   .bytes = whole,
				   .requested = r->bytes,
				   .state = HEAP_LIVE,
				   .site = r->site};
	if (!carve_extent(h, live, &out->after))
		return false;
	place_note(h, r, whole, out);
	count_live(h, out->addr, whole);
	return true;
}

void heap_own(struct heap *h, uint64_t addr, uint64_t owner)
{
	INVARIANT(heap_find(h, addr), "memory that gets an owner was allocated");
	h->extents[index_of(h, addr)].owner = owner;
}

/* Provides space for one more free: drops those that are both retired and out of quarantine. */
static bool freed_capacity(struct heap *h)
{
	if (h->freed_count < h->freed_capacity)
		return true;
	uint64_t done = h->retired < h->promoted ? h->retired : h->promoted;
	if (done > h->freed_capacity / 2) {
		memmove(h->freed, h->freed + done, (h->freed_count - done) * sizeof *h->freed);
		h->freed_count -= done;
		h->promoted -= done;
		h->retired -= done;
		h->merge_at = h->merge_at > done ? h->merge_at - done : 0;
		return true;
	}
	uint64_t capacity = h->freed_capacity ? h->freed_capacity * 2 : 4 * HEAP_QUARANTINE;
	struct heap_freed *more = realloc(h->freed, capacity * sizeof *more);
	if (!more)
		return false;
	h->freed = more;
	h->freed_capacity = capacity;
	return true;
}

/* There is space for it. */
static void note_freed(struct heap *h, struct heap_freed freed)
{
	h->freed[h->freed_count++] = freed;
	if (h->freed_count - h->promoted > HEAP_QUARANTINE)
		free_retired(h, h->freed_count - HEAP_QUARANTINE);
}

void heap_free(struct heap *h, uint64_t addr, uint64_t seq, bool learn)
{
	struct heap_extent *e = &h->extents[index_of(h, addr)];
	INVARIANT(e->addr == addr && e->state == HEAP_LIVE, "memory that is freed was allocated");
	if (!freed_capacity(h))
		return; /* no memory for the note: the range remains in use, which is safe */
	e->state = e->reservation ? HEAP_RESERVED : HEAP_QUARANTINED;
	e->seq = seq;
	e->requested = 0;
	count_down(h->live, &h->live_chunks, addr, e->bytes);
	INVARIANT(h->live_bytes >= e->bytes, "the heap counts the bytes that it gave out");
	h->live_bytes -= e->bytes;
	if (learn && !e->reservation)
		place_freed(h, e->site, e->bytes);
	note_freed(h, (struct heap_freed){addr, e->bytes, seq, true, !e->reservation});
}

/* ---- reserved addresses ---- */

bool heap_reserve(struct heap *h, const struct heap_request *r, uint64_t *addr)
{
	struct heap_placed placed;
	uint64_t whole = round_up(r->bytes, RF_CHUNK_BYTES), after;
	if (!r->bytes || r->bytes > RF_HEAP_BYTES || !h->count)
		return false;
	if (!place_reservation(h, r, whole, &placed)) {
		free_retired(h, h->freed_count);
		if (!place_reservation(h, r, whole, &placed))
			return false;
	}
	*addr = placed.addr;
	struct heap_extent reserved = {.addr = *addr,
				       .bytes = whole,
				       .state = HEAP_RESERVED,
				       .site = r->site,
				       .reservation = *addr};
	if (!carve_extent(h, reserved, &after))
		return false;
	place_note(h, r, whole, &placed);
	return true;
}

/* The extents of the reservation that contains addr are [*first, the result); 0: there is none. */
static uint32_t extents_reserved(const struct heap *h, uint64_t addr, uint32_t *first)
{
	if (!h->count || addr < RF_DEV_BASE || addr - RF_DEV_BASE >= RF_HEAP_BYTES)
		return 0;
	uint64_t reservation = h->extents[index_of(h, addr)].reservation;
	if (!reservation)
		return 0;
	uint32_t end = *first = index_of(h, reservation);
	while (end < h->count && h->extents[end].reservation == reservation)
		end++;
	return end;
}

bool heap_reservation(const struct heap *h, uint64_t addr, uint64_t *first, uint64_t *bytes)
{
	uint32_t from, end = extents_reserved(h, addr, &from);
	if (!end)
		return false;
	*first = h->extents[from].addr;
	*bytes = h->extents[end - 1].addr + h->extents[end - 1].bytes - *first;
	return true;
}

bool heap_unreserve(struct heap *h, uint64_t addr)
{
	uint64_t bytes, first, after;
	uint32_t from, end = extents_reserved(h, addr, &from);
	if (!end || h->extents[from].addr != addr || !freed_capacity(h))
		return false;
	for (uint32_t i = from; i < end; i++)
		if (h->extents[i].state != HEAP_RESERVED)
			return false;
	heap_reservation(h, addr, &first, &bytes);
	uint64_t site = h->extents[from].site;
	struct heap_extent gone = {.addr = addr, .bytes = bytes, .state = HEAP_QUARANTINED};
	if (!carve_extent(h, gone, &after))
		return false;
	place_freed(h, site, bytes);
	/* with the number of the last free, so that the list stays in order */
	uint64_t seq = h->freed_count ? h->freed[h->freed_count - 1].seq : 0;
	note_freed(h, (struct heap_freed){addr, bytes, seq, .addresses = true});
	return true;
}

bool heap_promise(struct heap *h, uint64_t chunks)
{
	if (chunks > unused_chunks(h))
		return false;
	h->promised_chunks += chunks;
	return true;
}

void heap_unpromise(struct heap *h, uint64_t chunks)
{
	INVARIANT(h->promised_chunks >= chunks, "memory without an address is counted");
	h->promised_chunks -= chunks;
}

bool heap_map(struct heap *h, uint64_t addr, uint64_t bytes, struct heap_placed *out)
{
	uint64_t first, whole;
	INVARIANT(bytes && !(addr % RF_CHUNK_BYTES) && !(bytes % RF_CHUNK_BYTES),
		  "memory is mapped in whole chunks");
	if (!heap_reservation(h, addr, &first, &whole) || bytes > first + whole - addr)
		return false;
	for (uint32_t i = index_of(h, addr); i <= index_of(h, addr + bytes - 1); i++)
		if (h->extents[i].state != HEAP_RESERVED)
			return false;
	struct heap_extent live = {.addr = addr,
				   .bytes = bytes,
				   .requested = bytes,
				   .state = HEAP_LIVE,
				   .site = h->extents[index_of(h, addr)].site,
				   .reservation = first};
	*out = (struct heap_placed){.addr = addr, .stable = true};
	if (!carve_extent(h, live, &out->after))
		return false;
	heap_unpromise(h, bytes / RF_CHUNK_BYTES);
	count_live(h, addr, bytes);
	return true;
}

void heap_unmap(struct heap *h, uint64_t addr, uint64_t seq)
{
	uint64_t live = h->live_chunks;
	heap_free(h, addr, seq, false);
	h->promised_chunks += live - h->live_chunks;
}

static void merge_extents(struct heap *h)
{
	uint32_t n = 0;
	for (uint32_t i = 1; i < h->count; i++) {
		struct heap_extent *a = &h->extents[n], *b = &h->extents[i];
		bool alike = a->state == b->state && a->reservation == b->reservation &&
			     (a->state == HEAP_FREE || a->state == HEAP_RESERVED);
		if (alike && a->seq <= h->retired_seq && b->seq <= h->retired_seq) {
			a->bytes += b->bytes;
			a->seq = 0;
		} else {
			h->extents[++n] = *b;
		}
	}
	h->count = n + 1;
}

void heap_retire(struct heap *h, uint64_t seq)
{
	if (seq < h->retired_seq)
		return;
	h->retired_seq = seq;
	for (; h->retired < h->freed_count && h->freed[h->retired].seq <= seq; h->retired++) {
		const struct heap_freed *f = &h->freed[h->retired];
		if (f->memory)
			count_down(h->held, &h->held_chunks, f->addr, f->bytes);
	}
	if (h->retired >= h->merge_at) {
		merge_extents(h);
		h->merge_at = h->retired + MERGE_EVERY;
	}
}

const char *heap_invalid(const struct heap *h)
{
	uint64_t next = RF_DEV_BASE, live = 0, held = 0, bytes = 0;
	for (uint32_t i = 0; i < h->count; i++) {
		const struct heap_extent *e = &h->extents[i];
		if (e->addr != next || !e->bytes || e->bytes % RF_ALLOC_ALIGN)
			return "the extents do not cover the heap in order";
		if (e->state == HEAP_LIVE && (!e->requested || e->requested > e->bytes))
			return "a live extent is smaller than its allocation";
		if (e->state == HEAP_RESERVED && !e->reservation)
			return "reserved addresses are in no reservation";
		if (e->state <= HEAP_QUARANTINED && e->reservation)
			return "free addresses are in a reservation";
		bytes += e->state == HEAP_LIVE ? e->bytes : 0;
		next = e->addr + e->bytes;
	}
	if (next != RF_DEV_BASE + RF_HEAP_BYTES)
		return "the extents do not cover the heap";
	for (uint64_t c = 0; c < CHUNKS; c++) {
		live += h->live[c] != 0;
		held += h->held[c] != 0;
		if (h->held[c] < h->live[c])
			return "a chunk is live but not held";
	}
	if (live != h->live_chunks || held != h->held_chunks || bytes != h->live_bytes)
		return "the totals are wrong";
	return h->live_chunks + h->promised_chunks <= h->capacity_chunks
		       ? NULL
		       : "more chunks than the device has";
}
