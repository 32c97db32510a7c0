/* image_hold.c: image holds. The launcher copies an image for a snapshot while the rank runs. A
 * page that is about to change there is first copied aside, so neither the launcher nor the rank
 * waits.
 *
 * The launcher clears the table and sets `holds` while nothing changes; it copies all pages; then
 * it reads which pages were copied aside, and takes those from there. A page is copied aside before
 * it changes, so the table lists every page that the launcher may have copied as a mixture of old
 * and new content. If either process ends midway, the other is unaffected: a page is copied aside
 * at most once.
 */
#include <unistd.h>

#include "image_hold.h"
#include "memory_parts.h"

_Static_assert(sizeof(struct image_hold) <= ASIDE_OFFSET - HOLD_OFFSET, "the table has space");
_Static_assert(ASIDE_PAGES < ASIDE_NOTHING, "each number is one of a page");

static struct image_hold *hold_of(const struct rank_memory *m)
{
	return (void *)(m->image + HOLD_OFFSET);
}

bool image_hold_active(const struct rank_memory *m) { return atomic_load(&hold_of(m)->holds); }

void image_hold_overflow(struct rank_memory *m) { atomic_store(&hold_of(m)->overflowed, 1); }

/* Uses a system call, which reports an error when there is no memory. */
static bool write_page(const struct rank_memory *m, uint32_t page, uint64_t to)
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
	if (!image_hold_active(m) || atomic_load(&h->aside[page]))
		return;
	if (m->pages[page].in_image) {
		if (h->pages >= ASIDE_PAGES ||
		    !write_page(m, page, ASIDE_OFFSET + h->pages * RF_CHUNK_BYTES)) {
			image_hold_overflow(m);
			return;
		}
		number = ++h->pages;
	}
	atomic_store(&h->aside[page], number);
}
