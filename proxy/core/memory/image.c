/* image.c: a rank's image, the launcher's file that its memory is swapped out to; host copies that
 * several ranks refer to; and growing arrays.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory_parts.h"

/* Grows an array to hold `more` elements after the first `count`. */
bool grow_array(void **array, uint64_t count, uint64_t more, uint32_t *capacity, size_t size)
{
	uint32_t bigger = *capacity ? *capacity : 64;
	if (count + more <= *capacity)
		return true;
	while (bigger < count + more)
		bigger *= 2;
	void *grown = realloc(*array, bigger * size);
	if (!grown)
		return false;
	*array = grown;
	*capacity = bigger;
	return true;
}

uint8_t *image_at(const struct rank_memory *m, uint32_t page)
{
	return m->image + page * RF_CHUNK_BYTES;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Called before all of the page is written there: if it is not mapped yet, populates its 512
 * system pages at once, in half the time. Where the system cannot do that, they are populated
 * one by one. */
void image_ready(struct rank_memory *m, uint32_t page)
{
	if (!m->pages[page].image_used)
		madvise(image_at(m, page), RF_CHUNK_BYTES, MADV_POPULATE_WRITE);
	m->pages[page].image_used = true;
}

void image_punch(struct rank_memory *m, uint32_t page)
{
	image_changes(m, page);
	fallocate(m->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		  (off_t)(page * RF_CHUNK_BYTES), RF_CHUNK_BYTES);
	m->pages[page].in_image = false;
	m->pages[page].hole = true;
	m->pages[page].image_used = false;
	m->device->holes++;
}

void image_filled(struct rank_memory *m, uint32_t index)
{
	struct page *page = &m->pages[index];
	m->device->refilled += page->hole;
	page->hole = false;
	page->in_image = true;
	if (page->fresh || !grow_array((void **)&m->fresh, m->fresh_count, 1, &m->fresh_capacity,
				       sizeof *m->fresh))
		return;
	page->fresh = true;
	m->fresh[m->fresh_count++] = index;
	m->device->fresh = true;
}

void memory_image_holds(struct rank_memory *m, uint32_t page) { m->pages[page].in_image = true; }

bool memory_clear_image(struct rank_memory *m)
{
	image_hold_overflow(m);
	return !fallocate(m->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  (off_t)RF_HEAP_BYTES);
}

/* ---- host copies that several ranks refer to ---- */

struct copy *copy_new(struct device_memory *d, struct version key)
{
	struct copy *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->key = key;
	c->bytes = mmap(NULL, RF_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	if (c->bytes == MAP_FAILED) {
		free(c);
		return NULL;
	}
	madvise(c->bytes, RF_CHUNK_BYTES, MADV_HUGEPAGE); /* one huge page, if possible */
	d->copies_on_host++;
	return c;
}

void copy_forget(struct rank_memory *m, uint32_t page)
{
	struct copy *c = m->pages[page].copy;
	m->pages[page].copy = NULL;
	m->pages[page].common = false;
	if (!c)
		return;
	INVARIANT(c->refs, "a copy that a page refers to counts the page");
	if (--c->refs)
		return;
	munmap(c->bytes, RF_CHUNK_BYTES);
	free(c);
	m->device->copies_on_host--;
}

void copy_refer(struct rank_memory *m, uint32_t page, struct copy *c)
{
	c->refs++;
	copy_forget(m, page);
	m->pages[page].copy = c;
}

void page_common(struct rank_memory *m, uint32_t page)
{
	INVARIANT(m->pages[page].copy && !m->pages[page].chunk,
		  "a page that is left to a copy is missing");
	if (m->pages[page].in_image)
		image_punch(m, page);
	m->pages[page].common = true;
}

/* Copies the content back to the image. The host copy stays until no work can read it any more. */
static void take_home(struct rank_memory *m, uint32_t page)
{
	image_ready(m, page);
	memcpy(image_at(m, page), m->pages[page].copy->bytes, RF_CHUNK_BYTES);
	m->pages[page].common = false;
}

uint8_t *page_on_host(struct rank_memory *m, uint32_t index, bool write)
{
	struct page *page = &m->pages[index];
	if (write)
		image_changes(m, index);
	if (page->common && write)
		take_home(m, index);
	INVARIANT(!page->chunk && (!page->common || page->copy),
		  "a page on the host has no chunk, and a common one has a copy");
	if (page->common)
		return page->copy->bytes;
	if (write) {
		m->writes_page = index;
		image_filled(m, index);
	}
	page->image_used = true;
	return image_at(m, index);
}

static bool counted_before(const struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	uint32_t i = 0;
	while (d->all[i] != m && !(d->all[i]->pages[page].common &&
				   d->all[i]->pages[page].copy == m->pages[page].copy))
		i++;
	return d->all[i] != m;
}

struct memory_on_host memory_on_host(const struct rank_memory *m, bool once)
{
	struct memory_on_host found = {0};
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct page *page = &m->pages[m->live[i]];
		bool shared = page->common && page->copy->refs > 1;
		if (page->chunk)
			found.spare += page->in_image;
		else if (!shared || !once || !counted_before(m, m->live[i]))
			found.pages += (page->in_image || page->common) &&
				       !page_blank(m, m->live[i]);
		found.shared += shared;
	}
	return found;
}
