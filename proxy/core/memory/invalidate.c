/* invalidate.c: invalidates content that nothing will read (memory.h): a rank's input of a
 * collective that will overwrite it, when a sum elsewhere already includes it.
 *
 * The mark of a page is a number that `contents` must still match, as for digests, so any write
 * there, footprint or not, makes the content valid again.
 */
#include "memory_parts.h"

/* The whole pages of a range in the heap. */
static void whole_pages(uint64_t addr, uint64_t bytes, uint64_t *from, uint64_t *to)
{
	*from = *to = 0;
	if (addr < RF_DEV_BASE || addr - RF_DEV_BASE > RF_HEAP_BYTES ||
	    bytes > RF_HEAP_BYTES - (addr - RF_DEV_BASE))
		return;
	*from = page_at(addr + RF_CHUNK_BYTES - 1);
	*to = page_at(addr + bytes);
}

void memory_forget(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	uint64_t page, end;
	for (whole_pages(addr, bytes, &page, &end); page < end; page++) {
		if (!m->pages[page].buffers)
			continue;
		content_unknown(m, page_addr((uint32_t)page), RF_CHUNK_BYTES);
		m->pages[page].blank = m->contents + 1;
		m->pages[page].common = false;
		if (m->pages[page].in_image && !m->pages[page].chunk && !memory_moving(m))
			image_punch(m, (uint32_t)page);
	}
}

void blank_release(struct rank_memory *m)
{
	for (uint32_t i = 0; i < m->live_count && !m->inflight && !memory_moving(m); i++) {
		uint32_t page = m->live[i];
		if (!page_blank(m, page) || !m->pages[page].chunk)
			continue;
		page_unmap(m, page);
		copy_forget(m, page);
		if (m->pages[page].in_image)
			image_punch(m, page);
	}
}

uint32_t memory_keeper(const struct rank_memory *const *memories, const uint64_t *addrs,
		       uint64_t bytes)
{
	uint64_t fitness[2], from, to;
	for (uint32_t i = 0; i < 2; i++) {
		whole_pages(addrs[i], bytes, &from, &to);
		fitness[i] = sharing_fitness(memories[i], addrs[i], bytes);
		if (from >= to || !fitness[i] || sharing_ample(memories[i]->device))
			return UINT32_MAX;
		fitness[i] += memories[i]->inflight ? 2 : 0; /* a busy rank cannot release pages */
	}
	return fitness[1] > fitness[0];
}
