/* chunk.c: physical chunks as objects: references from pages, and the numbers of used, reserved and
 * leaving chunks (memory.h). A chunk that several pages refer to counts once, and is read-only in
 * all. */
#include "memory_parts.h"

int64_t chunks_available(const struct device_memory *d)
{
	return (int64_t)(d->total + d->leaving) - (int64_t)(d->used + d->reserved);
}

bool memory_has_chunks(const struct rank_memory *m, uint64_t chunks)
{
	return chunks_available(m->device) >= (int64_t)chunks;
}

uint32_t chunk_number(const struct device_memory *d, const struct chunk *c)
{
	return (uint32_t)(c - d->chunks);
}

int chunk_new(struct device_memory *d, bool blank, struct chunk **out)
{
	uint32_t number;
	int error = blank || !d->hal->chunk_create_unclean
			    ? d->hal->chunk_create(d->device, &number)
			    : d->hal->chunk_create_unclean(d->device, &number);
	if (error)
		return error;
	INVARIANT(number < HAL_CHUNK_NUMBERS(d->total * RF_CHUNK_BYTES) && !d->chunks[number].held,
		  "a new chunk has a number that no other chunk has");
	*out = &d->chunks[number];
	**out = (struct chunk){.held = true};
	d->used++;
	return CU_OK;
}

void chunk_release(struct device_memory *d, struct chunk *c)
{
	INVARIANT(c->held && !c->refs && d->used, "a chunk that is given back has no pages");
	if (c->unusable) {
		d->unusable++;
		return;
	}
	d->hal->chunk_destroy(d->device, chunk_number(d, c));
	c->held = false;
	d->used--;
}

/* The only function that changes these counts, and so the only place where a chunk becomes or
 * ceases to be leaving or shared. */
static void set_counts(struct device_memory *d, struct chunk *c, uint32_t refs, uint32_t leaving)
{
	INVARIANT(c->held && leaving <= refs && refs <= d->count,
		  "a chunk has at most one page of each rank, and no more leave than there are");
	d->leaving -= c->refs && c->leaving == c->refs;
	d->shared -= c->refs > 1;
	c->refs = refs;
	c->leaving = leaving;
	d->leaving += c->refs && c->leaving == c->refs;
	d->shared += c->refs > 1;
}

/* With a count of 0, the rank would write to any page (memory_owns). */
static void write_protected_less(struct rank_memory *m, uint32_t count)
{
	INVARIANT(m->write_protected >= count, "a rank counts its write-protected pages");
	m->write_protected -= count;
}

static bool map_chunk(struct rank_memory *m, uint32_t index, struct chunk *c, int *error)
{
	struct device_memory *d = m->device;
	struct page *page = &m->pages[index];
	INVARIANT(index < HEAP_PAGES && !page->chunk, "a page that is mapped has no chunk yet");
	*error = d->hal->space_map(m->space, page_addr(index), chunk_number(d, c), !c->refs);
	if (*error)
		return false;
	page->chunk = c;
	page->common = false;
	page->write_protected = c->refs;
	m->write_protected += page->write_protected;
	set_counts(d, c, c->refs + 1, c->leaving);
	return true;
}

/* Unmaps a page; returns the chunk that it had. */
static struct chunk *unmap_chunk(struct rank_memory *m, uint32_t index)
{
	struct device_memory *d = m->device;
	struct page *page = &m->pages[index];
	struct chunk *c = page->chunk;
	INVARIANT(c && c->refs && c->leaving >= page->leaving,
		  "a page that is unmapped is one of its chunk's pages");
	c->unusable |= d->hal->space_unmap(m->space, page_addr(index)) != 0;
	set_counts(d, c, c->refs - 1, c->leaving - page->leaving);
	write_protected_less(m, page->write_protected || page->open);
	page->chunk = NULL;
	page->leaving = page->write_protected = page->open = page->write_pending = false;
	return c;
}

int page_map(struct rank_memory *m, uint32_t page, struct chunk *c)
{
	int error;
	INVARIANT(m->missing, "a page that comes in was missing");
	m->missing -= map_chunk(m, page, c, &error);
	return error;
}

void page_unmap(struct rank_memory *m, uint32_t page)
{
	struct chunk *c = unmap_chunk(m, page);
	m->pages[page].saved = m->pages[page].keyed = false;
	m->missing++;
	if (!c->refs)
		chunk_release(m->device, c);
}

int page_remap(struct rank_memory *m, uint32_t page, struct chunk *c)
{
	struct chunk *old = unmap_chunk(m, page);
	int error, again;
	if (!map_chunk(m, page, c, &error) && !map_chunk(m, page, old, &again)) {
		m->pages[page].saved = false;
		m->missing++;
	}
	if (!old->refs)
		chunk_release(m->device, old);
	return error;
}

/* The device has mapped the page to another chunk, which no other page refers to. */
static void replace_chunk(struct rank_memory *m, uint32_t index, struct chunk *c)
{
	struct device_memory *d = m->device;
	struct page *page = &m->pages[index];
	struct chunk *old = page->chunk;
	INVARIANT(old && old->refs && !c->refs, "a page that is replaced has a chunk");
	set_counts(d, old, old->refs - 1, old->leaving);
	set_counts(d, c, 1, 0);
	write_protected_less(m, page->write_protected || page->open);
	page->chunk = c;
	page->write_protected = page->open = page->write_pending = false;
	if (!old->refs)
		chunk_release(d, old);
}

void page_copied(struct rank_memory *m, uint32_t index, uint32_t number)
{
	struct device_memory *d = m->device;
	INVARIANT(number < HAL_CHUNK_NUMBERS(d->total * RF_CHUNK_BYTES) && !d->chunks[number].held,
		  "a chunk that the device copied to has a number that no other chunk has");
	d->chunks[number] = (struct chunk){.held = true};
	d->used++;
	m->pages[index].saved = false;
	replace_chunk(m, index, &d->chunks[number]);
}

int page_own(struct rank_memory *m, uint32_t index, struct chunk *c)
{
	struct device_memory *d = m->device;
	int error = d->hal->space_own(m->space, page_addr(index), chunk_number(d, c));
	if (!error)
		replace_chunk(m, index, c);
	return error;
}

void page_leaves(struct rank_memory *m, uint32_t index)
{
	struct chunk *c = m->pages[index].chunk;
	INVARIANT(c && !m->pages[index].leaving, "a page leaves once, and was resident");
	m->pages[index].leaving = true;
	set_counts(m->device, c, c->refs, c->leaving + 1);
}

int pages_write_protect(struct rank_memory *m, uint32_t index, uint32_t count)
{
	for (uint32_t i = index; i < index + count; i++) {
		INVARIANT(m->pages[i].chunk && !m->pages[i].write_protected,
			  "a page that becomes read-only is resident and can be written");
		m->write_protected += !m->pages[i].open;
		m->pages[i].write_protected = true;
		m->pages[i].open = false;
	}
	return m->device->hal->space_protect(m->space, page_addr(index), count, false);
}

int page_write_protect(struct rank_memory *m, uint32_t index)
{
	return m->pages[index].write_protected ? CU_OK : pages_write_protect(m, index, 1);
}

/* Makes pages writable: because only this rank refers to them, or (`shared`) on behalf of all
 * sharers. */
int pages_open(struct rank_memory *m, uint32_t index, uint32_t count, bool shared)
{
	for (uint32_t i = index; i < index + count; i++)
		INVARIANT(m->pages[i].write_protected && (shared || m->pages[i].chunk->refs == 1),
			  "a page becomes writable for its rank alone if no other refers to it");
	int error = m->device->hal->space_protect(m->space, page_addr(index), count, true);
	for (uint32_t i = index; i < index + count && !error; i++) {
		write_protected_less(m, !shared);
		m->pages[i].write_protected = false;
		m->pages[i].open = shared;
	}
	return error;
}

int page_open(struct rank_memory *m, uint32_t index, bool shared)
{
	struct page *page = &m->pages[index];
	if (page->write_protected)
		return pages_open(m, index, 1, shared);
	write_protected_less(m, page->open && !shared);
	page->open = shared;
	return CU_OK;
}
