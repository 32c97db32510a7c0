/* held.c: an image that its launcher copies for a snapshot while the rank goes on. What is about to
 * change there is set aside first, so that nobody waits: neither who copies nor who computes.
 *
 * The launcher empties the table and says that it holds, while nothing changes; copies all pages;
 * then looks which have been set aside, and takes these from there. A page is set aside before it
 * changes, so one that the launcher has copied half old, half new is in the table when it looks.
 * Who ends in the middle harms nobody: a page is set aside once at most.
 */
#include <unistd.h>

#include "held.h"
#include "memory_parts.h"

_Static_assert(sizeof(struct image_hold) <= ASIDE_OFFSET - HOLD_OFFSET, "the table has room");
_Static_assert(ASIDE_PAGES < ASIDE_NOTHING, "each number is one of a page");

static struct image_hold *hold_of(const struct rank_memory *m)
{
	return (void *)(m->image + HOLD_OFFSET);
}

bool image_held(const struct rank_memory *m) { return atomic_load(&hold_of(m)->holds); }

void image_hold_lost(struct rank_memory *m) { atomic_store(&hold_of(m)->lost, 1); }

/* By a call, which says so where there is no memory. */
static bool written(const struct rank_memory *m, uint32_t page, uint64_t to)
{
	const uint8_t *from = m->image + page * RF_CHUNK_BYTES;
	for (uint64_t done = 0; done < RF_CHUNK_BYTES;) {
		ssize_t n = pwrite(m->image_fd, from + done, RF_CHUNK_BYTES - done,
				   (off_t)(to + done));
		if (n <= 0)
			return false;
		done += (uint64_t)n;
	}
	return true;
}

void image_changes(struct rank_memory *m, uint32_t page)
{
	struct image_hold *h = hold_of(m);
	uint32_t number = ASIDE_NOTHING;
	if (!image_held(m) || atomic_load(&h->aside[page]))
		return;
	if (m->pages[page].in_image) {
		if (h->pages >= ASIDE_PAGES ||
		    !written(m, page, ASIDE_OFFSET + h->pages * RF_CHUNK_BYTES)) {
			image_hold_lost(m);
			return;
		}
		number = ++h->pages;
	}
	atomic_store(&h->aside[page], number);
}
