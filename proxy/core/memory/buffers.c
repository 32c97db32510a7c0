/* buffers.c: a rank's buffers, the pages they touch, and where the bytes of a range are
 * (memory.h). */
#include <stdlib.h>
#include <string.h>

#include "memory_parts.h"

static uint32_t buffer_place(const struct rank_memory *m, uint64_t addr)
{
	uint32_t low = 0, high = m->buffer_count;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (m->buffers[middle].addr < addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The live buffer that contains `addr`, or NULL. */
struct buffer *memory_find(struct rank_memory *m, uint64_t addr)
{
	uint32_t i = buffer_place(m, addr + 1);
	if (!i)
		return NULL;
	struct buffer *b = &m->buffers[i - 1];
	return addr - b->addr < b->bytes ? b : NULL;
}

const struct memory_range *memory_whole(struct rank_memory *m, uint64_t addr)
{
	const struct buffer *b = memory_find(m, addr);
	return b ? &b->whole : NULL;
}

static bool is_joint(const struct rank_memory *m, uint32_t at)
{
	const struct buffer *b = m->buffers;
	return at > 0 && at < m->buffer_count && b[at].joined && b[at - 1].joined &&
	       b[at - 1].addr + b[at - 1].bytes == b[at].addr;
}

/* Finds how far accesses may reach from the buffer at this place, and from those joined to it. */
static void set_whole(struct rank_memory *m, uint32_t at)
{
	uint32_t first = at, end = at + 1;
	if (at >= m->buffer_count)
		return;
	while (is_joint(m, first))
		first--;
	while (is_joint(m, end))
		end++;
	uint64_t low = m->buffers[first].addr,
		 high = m->buffers[end - 1].addr + m->buffers[end - 1].bytes;
	for (uint32_t i = first; i < end; i++)
		m->buffers[i].whole = (struct memory_range){low, high - low};
}

int memory_alloc(struct rank_memory *m, const struct rf_alloc *a)
{
	uint64_t offset = a->addr - RF_DEV_BASE;
	uint64_t bytes = a->bytes ? a->bytes : 1;
	if (a->addr < RF_DEV_BASE || a->addr % RF_ALLOC_ALIGN || offset >= RF_HEAP_BYTES ||
	    bytes > RF_HEAP_BYTES - offset)
		return CU_INVALID_VALUE;
	uint32_t at = buffer_place(m, a->addr);
	if ((at < m->buffer_count && m->buffers[at].addr < a->addr + bytes) ||
	    (at > 0 && m->buffers[at - 1].addr + m->buffers[at - 1].bytes > a->addr))
		return CU_INVALID_VALUE; /* overlaps a live buffer */
	uint32_t first = (uint32_t)(offset / RF_CHUNK_BYTES);
	uint32_t last = (uint32_t)((offset + bytes - 1) / RF_CHUNK_BYTES);
	uint64_t fresh = 0;
	for (uint32_t c = first; c <= last; c++)
		fresh += m->pages[c].buffers == 0;
	if (m->live_count - m->dying + fresh > m->device->total)
		return CU_OUT_OF_MEMORY;
	if (!grow_array((void **)&m->buffers, m->buffer_count, 1, &m->buffer_capacity,
			sizeof *m->buffers) ||
	    !grow_array((void **)&m->live, m->live_count, fresh, &m->live_capacity,
			sizeof *m->live))
		return CU_OUT_OF_MEMORY; /* before anything has changed */
	for (uint32_t c = first; c <= last; c++) {
		struct page *page = &m->pages[c];
		if (page->buffers++)
			continue;
		page->blank = 0;
		/* freed and not swept yet; happens only after the rank has failed */
		if (page->chunk) {
			m->dying--;
			continue;
		}
		m->live[m->live_count++] = c;
		m->missing++;
		versions_set(&m->versions, page_addr(c), RF_CHUNK_BYTES, versions_fill(0, 1));
		page->digested = 0;
		page->hole = false;
	}
	memmove(&m->buffers[at + 1], &m->buffers[at], (m->buffer_count - at) * sizeof *m->buffers);
	m->buffers[at] = (struct buffer){.addr = a->addr,
					 .bytes = bytes,
					 .call_site = a->call_site,
					 .stable = a->stable,
					 .joined = a->flags & RF_ALLOC_JOINED};
	m->buffer_count++;
	set_whole(m, at);
	return CU_OK;
}

/* True if a chunk of this range is still mapped for work that began before the range was freed. */
bool memory_dying(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE, end = offset + (bytes ? bytes : 1);
	if (!m->dying || offset >= RF_HEAP_BYTES || end > RF_HEAP_BYTES || end < offset)
		return false;
	for (uint64_t c = offset / RF_CHUNK_BYTES; c <= (end - 1) / RF_CHUNK_BYTES; c++)
		if (!m->pages[c].buffers && m->pages[c].chunk)
			return true;
	return false;
}

/* Releases the page at live[i]. */
static void page_forget(struct rank_memory *m, uint32_t i)
{
	uint32_t c = m->live[i];
	INVARIANT(i < m->live_count && !m->pages[c].buffers,
		  "a page that is forgotten belongs to no buffer");
	if (m->pages[c].chunk)
		page_unmap(m, c);
	INVARIANT(m->missing, "a page that is forgotten was missing");
	m->missing--;
	copy_forget(m, c);
	if (m->pages[c].in_image)
		image_punch(m, c);
	m->live[i] = m->live[--m->live_count];
}

void memory_sweep(struct rank_memory *m)
{
	if (!m->dying || m->inflight || memory_moving(m))
		return;
	for (uint32_t i = m->live_count; i > 0; i--)
		if (!m->pages[m->live[i - 1]].buffers)
			page_forget(m, i - 1);
	m->dying = 0;
	m->device->progress = true;
}

/* The content between two buffers is never needed: it becomes one range, however many parts it
 * had. */
static void forget_content(struct rank_memory *m, uint32_t next)
{
	uint64_t begin = RF_DEV_BASE, end = RF_DEV_BASE + RF_HEAP_BYTES;
	if (next > 0)
		begin = m->buffers[next - 1].addr + m->buffers[next - 1].bytes;
	if (next < m->buffer_count)
		end = m->buffers[next].addr;
	begin = (begin + RF_ALLOC_ALIGN - 1) / RF_ALLOC_ALIGN * RF_ALLOC_ALIGN;
	versions_private(&m->versions, begin, end - begin);
}

/* Called only when all work that may use the buffer has completed, and not while pages of the rank
 * move. */
void memory_free(struct rank_memory *m, uint64_t addr)
{
	uint32_t at = buffer_place(m, addr);
	if (at >= m->buffer_count || m->buffers[at].addr != addr)
		return;
	uint64_t offset = addr - RF_DEV_BASE, bytes = m->buffers[at].bytes;
	m->buffer_count--;
	memmove(&m->buffers[at], &m->buffers[at + 1], (m->buffer_count - at) * sizeof *m->buffers);
	if (at > 0)
		set_whole(m, at - 1);
	set_whole(m, at);
	forget_content(m, at);
	uint32_t last = (uint32_t)((offset + bytes - 1) / RF_CHUNK_BYTES);
	for (uint32_t c = (uint32_t)(offset / RF_CHUNK_BYTES); c <= last; c++) {
		INVARIANT(m->pages[c].buffers, "each page of a buffer counts it");
		if (--m->pages[c].buffers)
			continue;
		if (m->pages[c].chunk) {
			m->dying++;
			continue;
		}
		for (uint32_t i = 0; i < m->live_count; i++)
			if (m->live[i] == c)
				page_forget(m, i);
	}
	memory_sweep(m);
}

static bool pinned(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	uint64_t base = RF_PINNED_BASE(m->rank);
	return addr >= base && addr - base <= RF_PINNED_SLOT_BYTES &&
	       bytes <= RF_PINNED_SLOT_BYTES - (addr - base);
}

bool memory_pinned(const struct rank_memory *m, uint64_t addr) { return pinned(m, addr, 0); }

/* True if [addr, addr + bytes) consists of live pages or pinned memory. It checks chunks and not
 * buffers, as real devices do. */
bool memory_valid(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	if (pinned(m, addr, bytes))
		return true;
	uint64_t offset = addr - RF_DEV_BASE;
	if (addr < RF_DEV_BASE || offset >= RF_HEAP_BYTES || bytes > RF_HEAP_BYTES - offset)
		return false;
	if (!bytes)
		return true;
	for (uint64_t c = offset / RF_CHUNK_BYTES; c <= (offset + bytes - 1) / RF_CHUNK_BYTES; c++)
		if (!m->pages[c].buffers)
			return false;
	return true;
}

/* Finds where a valid range is now; returns the number of contiguous bytes, at most `bytes` and
 * PIECE_BYTES. */
uint64_t memory_resolve(struct rank_memory *m, uint64_t addr, uint64_t bytes, bool write,
			struct hal_ref *ref)
{
	*ref = (struct hal_ref){m->space, addr};
	if (bytes > PIECE_BYTES)
		bytes = PIECE_BYTES;
	if (pinned(m, addr, bytes) || !m->missing)
		return bytes;
	uint64_t offset = addr - RF_DEV_BASE, left = RF_CHUNK_BYTES - offset % RF_CHUNK_BYTES;
	uint32_t page = (uint32_t)page_at(addr);
	if (!m->pages[page].chunk)
		*ref = (struct hal_ref){NULL, (uint64_t)(uintptr_t)page_on_host(m, page, write) +
						      offset % RF_CHUNK_BYTES};
	return bytes < left ? bytes : left;
}
