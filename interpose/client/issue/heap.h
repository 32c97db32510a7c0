/* heap.h: which device address belongs to which allocation. Pure: no channel, no lock, no clock.
 *
 * The place of an allocation, and whether it fits, depend only on the sequence of calls, never on
 * the server's progress: out-of-memory must not depend on where a rank runs. heap_alloc reports the
 * one thing that does depend on it: the free that must be retired before the range may be used
 * again.
 *
 * Addresses can also be reserved without memory, and memory be mapped there later, in parts
 * (virtual_memory.c). Memory that exists and has no address is promised: it counts, too.
 *
 * heap.c keeps the ranges, placement.c chooses the place of the next one.
 */
#ifndef RANKFOLD_HEAP_H
#define RANKFOLD_HEAP_H

#include <stdbool.h>
#include <stdint.h>

/* A freed range is not reused before this many later frees, unless memory is short. */
#define HEAP_QUARANTINE 64u

enum heap_state { HEAP_FREE, HEAP_QUARANTINED, HEAP_LIVE, HEAP_RESERVED };
struct heap_extent {
	uint64_t addr, bytes; /* the extents cover the heap without gaps, in order */
	uint64_t requested;   /* LIVE: bytes as requested by the program */
	uint64_t seq;         /* not LIVE: the last free in it */
	enum heap_state state;
	uint64_t owner, site; /* LIVE: as given by the caller */
	uint64_t reservation; /* LIVE, RESERVED: where its reservation begins; 0: it has none */
};
struct heap_freed {
	uint64_t addr, bytes, seq;
	bool memory, addresses; /* what was freed */
};

/* Statistics of the allocations of one call site, of one size from it, or of one group. */
struct heap_origin {
	uint64_t key; /* 0: none */
	uint64_t allocated, freed;
	uint64_t next; /* place of its next one, if it is free; 0: unknown */
};

struct heap {
	uint64_t capacity_chunks;
	struct heap_extent *extents;
	uint32_t count, capacity;
	uint32_t *live, *held; /* allocations per chunk: live ones; live or not retired ones */
	uint64_t live_chunks, held_chunks;
	uint64_t promised_chunks; /* of memory without an address */
	uint64_t live_bytes;      /* multiples of RF_ALLOC_ALIGN */
	/* Frees in order; [retired, …) are not retired, [promoted, …) in quarantine. */
	struct heap_freed *freed;
	uint64_t freed_count, freed_capacity, promoted, retired;
	uint64_t retired_seq;
	uint64_t merge_at;           /* merge when `retired` reaches this */
	struct heap_origin *origins; /* hash table; a power of two of places */
	uint32_t origin_count, origin_capacity;
};

/* The call's place in the program (call_site.h). Any numbers are valid. */
struct heap_request {
	uint64_t bytes, site, path;
};
struct heap_placed {
	uint64_t addr;
	uint64_t after; /* the free that must be retired before use; 0: none */
	bool stable;    /* predicted to be long-lived */
	bool apart;     /* in chunks of its own, or of its group */
};

bool heap_init(struct heap *, uint64_t capacity_bytes);
void heap_destroy(struct heap *);
/* Allocates a range for bytes > 0. False: out of memory. The owner is 0 until heap_own. */
bool heap_alloc(struct heap *, const struct heap_request *, struct heap_placed *);
/* The live allocation that contains addr, or NULL. */
const struct heap_extent *heap_find(const struct heap *, uint64_t addr);
void heap_own(struct heap *, uint64_t addr, uint64_t owner); /* of the live allocation at addr */
/* addr must be the start of a live allocation; seq is the number of its FREE record. `learn`: the
 * program has freed it, so predictions take the free into account. Reserved addresses stay
 * reserved. */
void heap_free(struct heap *, uint64_t addr, uint64_t seq, bool learn);

/* Reserves addresses: whole chunks, for as many bytes as the request has. */
bool heap_reserve(struct heap *, const struct heap_request *, uint64_t *addr);
/* The reservation that contains addr: its first address and its size. False: there is none. */
bool heap_reservation(const struct heap *, uint64_t addr, uint64_t *first, uint64_t *bytes);
/* The reservation at addr becomes free, if nothing is mapped in it. */
bool heap_unreserve(struct heap *, uint64_t addr);
/* Promises memory that will get an address. False: out of memory. */
bool heap_promise(struct heap *, uint64_t chunks);
void heap_unpromise(struct heap *, uint64_t chunks);
/* Makes promised memory live at reserved addresses, in whole chunks. False: something is mapped
 * there, or the addresses are not in one reservation. */
bool heap_map(struct heap *, uint64_t addr, uint64_t bytes, struct heap_placed *);
/* Frees what was mapped there, and promises it again. */
void heap_unmap(struct heap *, uint64_t addr, uint64_t seq);

/* The server has retired all frees up to seq. */
void heap_retire(struct heap *, uint64_t seq);
/* Describes what is wrong with the structure; NULL: nothing. For tests. */
const char *heap_invalid(const struct heap *);

#endif
