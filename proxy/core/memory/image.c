/* image.c: a rank's image, the launcher's file that its memory goes to; and arrays that grow. */
#include <fcntl.h>
#include <stdlib.h>

#include "memory.h"

/* For `more` behind the `count` that are there. */
bool make_room(void **array, uint64_t count, uint64_t more, uint32_t *room, size_t size)
{
	uint32_t bigger = *room ? *room : 64;
	if (count + more <= *room)
		return true;
	while (bigger < count + more)
		bigger *= 2;
	void *grown = realloc(*array, bigger * size);
	if (!grown)
		return false;
	*array = grown;
	*room = bigger;
	return true;
}

void image_punch(struct rank_memory *m, uint32_t page)
{
	fallocate(m->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		  (off_t)(page * RF_CHUNK_BYTES), RF_CHUNK_BYTES);
	m->pages[page].in_image = false;
}

void memory_image_holds(struct rank_memory *m, uint32_t page) { m->pages[page].in_image = true; }

bool memory_clear_image(struct rank_memory *m)
{
	return !fallocate(m->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  (off_t)RF_HEAP_BYTES);
}
