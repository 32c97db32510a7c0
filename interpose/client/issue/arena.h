/* arena.h: the blocks of the pinned arena, for arena.c and pinned.c, which keeps notes on pages. */
#ifndef RANKFOLD_ARENA_H
#define RANKFOLD_ARENA_H

#include "issue.h"

#define PAGE 4096ull

struct notes;
/* The arena's blocks in order, without gaps. Pages; few and large. */
struct block {
	uint64_t offset, bytes, asked, owner; /* asked 0: free */
	unsigned flags;
	struct notes *notes; /* of managed memory: one per page; freed with the block */
};
uint8_t *arena_start(void); /* NULL before the channel is open */
/* Both under PINNED_LOCK: the block that holds an address, or NULL; it is free again. */
struct block *arena_block(const void *address);
void arena_drop(struct block *);

#endif
