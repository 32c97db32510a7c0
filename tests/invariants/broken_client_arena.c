/* broken_client_arena.c: blocks of the pinned arena (broken_client.c). */
#include "issue/arena.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_arena(void)
{
	allocate_block(4096, 0, 0);
	BREAK("a block is in the pinned arena", blocks[1].offset = RF_PINNED_SLOT_BYTES;
	      allocate_block(4096, 0, 0));
	BREAK("pinned memory that is freed was allocated", drop_block(1));
	BREAK("blocks of the pinned arena have no gaps", blocks[1].offset += 4096; merge_block(0));
}
