/* arena.h: the blocks of the pinned arena, for arena.c and for pinned.c, which keeps notes on
 * pages. */
#ifndef RANKFOLD_ARENA_H
#define RANKFOLD_ARENA_H

#include "issue.h"

#define PAGE 4096ull

struct notes;
/* A block of the arena. The blocks are in order and without gaps; sizes are whole pages. There are
 * few blocks, and they are large. */
struct block {
	uint64_t offset, bytes, requested, owner; /* requested 0: free */
	unsigned flags;
	struct notes *notes; /* managed memory: one per page; freed with the block */
};
uint8_t *arena_start(void); /* NULL before the channel is open */
/* Both under PINNED_LOCK: returns the block that contains an address, or NULL; frees a block. */
struct block *arena_block(const void *address);
void arena_drop(struct block *);

#endif
