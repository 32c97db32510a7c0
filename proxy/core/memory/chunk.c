/* chunk.c: physical chunks as objects: which pages refer to them, how many are used, reserved and
 * leaving (memory.h). A chunk that several pages refer to counts once. */
#include "memory.h"

int64_t chunk_room(const struct device_memory *d)
{
	return (int64_t)(d->total + d->leaving) - (int64_t)(d->used + d->reserved);
}

uint32_t chunk_number(const struct device_memory *d, const struct chunk *c)
{
	return (uint32_t)(c - d->chunks);
}

int chunk_new(struct device_memory *d, struct chunk **out)
{
	uint32_t number;
	int error = d->hal->chunk_create(d->device, &number);
	if (error)
		return error;
	*out = &d->chunks[number];
	**out = (struct chunk){.held = true};
	d->used++;
	return CU_OK;
}

void chunk_let_go(struct device_memory *d, struct chunk *c)
{
	if (c->lost) {
		d->lost++;
		return;
	}
	d->hal->chunk_destroy(d->device, chunk_number(d, c));
	c->held = false;
	d->used--;
}

/* The only place where these change, and so where a chunk begins or ceases to be leaving. */
static void count(struct device_memory *d, struct chunk *c, uint32_t refs, uint32_t leaving)
{
	d->leaving -= c->refs && c->leaving == c->refs;
	c->refs = refs;
	c->leaving = leaving;
	d->leaving += c->refs && c->leaving == c->refs;
}

int page_map(struct rank_memory *m, uint32_t page, struct chunk *c)
{
	struct device_memory *d = m->device;
	int error = d->hal->space_map(m->space, page_addr(page), chunk_number(d, c), true);
	if (error)
		return error;
	m->pages[page].chunk = c;
	m->missing--;
	count(d, c, c->refs + 1, c->leaving);
	return CU_OK;
}

void page_unmap(struct rank_memory *m, uint32_t index)
{
	struct device_memory *d = m->device;
	struct page *page = &m->pages[index];
	struct chunk *c = page->chunk;
	c->lost |= d->hal->space_unmap(m->space, page_addr(index)) != 0;
	count(d, c, c->refs - 1, c->leaving - page->leaving);
	page->chunk = NULL;
	page->saved = page->leaving = false;
	m->missing++;
	if (!c->refs)
		chunk_let_go(d, c);
}

void page_leaves(struct rank_memory *m, uint32_t index)
{
	struct chunk *c = m->pages[index].chunk;
	m->pages[index].leaving = true;
	count(m->device, c, c->refs, c->leaving + 1);
}

int memory_share(struct rank_memory *from, struct rank_memory *to, uint32_t page)
{
	struct chunk *c = from->pages[page].chunk;
	if (from->device != to->device || !c || c->leaving || !to->pages[page].buffers ||
	    to->pages[page].chunk || to->inflight || memory_moving(to))
		return CU_INVALID_VALUE;
	return page_map(to, page, c);
}
