/* heap.h: which device address belongs to which allocation. Pure: no channel, no lock, no clock.
 *
 * Where an allocation is placed, and whether it fits, depends only on the sequence of calls, never
 * on how far the server is: out-of-memory must not depend on where a rank runs. What does depend on
 * it, heap_alloc reports: the free that must have been retired before the range may be used again.
 *
 * heap.c keeps the ranges, placement.c decides where the next one goes.
 */
#ifndef RANKFOLD_HEAP_H
#define RANKFOLD_HEAP_H

#include <stdbool.h>
#include <stdint.h>

/* A freed range is not given out again before this many later frees, unless memory is short. */
#define HEAP_QUARANTINE 64u

enum heap_state { HEAP_FREE, HEAP_QUARANTINED, HEAP_LIVE };
struct heap_extent {
	uint64_t addr, bytes; /* the extents cover the heap without gaps, in order */
	uint64_t asked;       /* LIVE: bytes as requested by the program */
	uint64_t seq;         /* not LIVE: of the last free in it */
	enum heap_state state;
	uint64_t owner, site; /* LIVE: as given by the caller */
};
struct heap_freed {
	uint64_t addr, bytes, seq;
};

/* What became of the allocations of one call site, of one size from there, or of one group. */
struct heap_origin {
	uint64_t key; /* 0: none */
	uint64_t allocated, freed;
	uint64_t next; /* where its next one goes, if there is room; 0: not known yet */
};

struct heap {
	uint64_t capacity_chunks;
	struct heap_extent *extents;
	uint32_t count, room;
	uint32_t *live, *held; /* allocations per chunk: live; live or not retired yet */
	uint64_t live_chunks, held_chunks;
	uint64_t live_bytes; /* multiples of RF_ALLOC_ALIGN */
	/* Frees in order, [retired, freed_count) not retired, [promoted, …) in quarantine. */
	struct heap_freed *freed;
	uint64_t freed_count, freed_room, promoted, retired;
	uint64_t retired_seq;
	uint64_t merge_at;           /* merge when `retired` gets there */
	struct heap_origin *origins; /* hashed; a power of two of places */
	uint32_t origin_count, origin_room;
};

/* Where in the program the call is (call_site.h). Any numbers will do. */
struct heap_request {
	uint64_t bytes, site, path;
};
struct heap_placed {
	uint64_t addr;
	uint64_t after; /* the free that must be retired before the range is used, 0: none */
	bool stable;    /* predicted to live on */
	bool apart;     /* in chunks of its own, or of its group */
};

bool heap_init(struct heap *, uint64_t capacity_bytes);
void heap_destroy(struct heap *);
/* A range for bytes > 0. False: out of memory. Its owner is 0 until heap_own. */
bool heap_alloc(struct heap *, const struct heap_request *, struct heap_placed *);
/* The live allocation that holds addr, or NULL. */
const struct heap_extent *heap_find(const struct heap *, uint64_t addr);
void heap_own(struct heap *, uint64_t addr, uint64_t owner); /* of the live allocation at addr */
/* addr must be the start of a live allocation; seq is the number of its FREE record. `learn`: the
 * program has freed it, which says something about its like. */
void heap_free(struct heap *, uint64_t addr, uint64_t seq, bool learn);
/* The server has retired all frees up to seq. */
void heap_retire(struct heap *, uint64_t seq);
/* What is wrong with the structure, or NULL. For tests. */
const char *heap_invalid(const struct heap *);

#endif
