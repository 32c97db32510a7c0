/* copies.c: finds content that is on the host already. Such a page is swapped out without a copy,
 * and equal content of several ranks of a group is stored there once (memory.h).
 *
 * A copy is valid for a page whose digest equals the copy's key. Keys are computed while no
 * submitted work uses the rank's memory, because only then do versions match bytes. A rank that has
 * failed, or whose versions are doubted, gets no keys and its keys are not trusted: some of the
 * writes recorded for it never happened.
 */
#include <string.h>

#include "memory_parts.h"

bool copies_trusted(const struct rank_memory *m)
{
	const struct device_memory *d = m->device;
	return d->shares && !m->single && !m->stopped && !m->distrusted &&
	       !d->hal->space_error(m->space, NULL, 0);
}

static bool is_copy_of(struct rank_memory *m, uint32_t page, const struct version *key)
{
	const struct version *digest = content_digest(m, page);
	return digest->a == key->a && digest->b == key->b;
}

void copies_named(struct rank_memory *m, uint32_t index)
{
	struct page *page = &m->pages[index];
	page->keyed = page->in_image && copies_trusted(m);
	if (page->keyed)
		page->key = *content_digest(m, index);
}

bool copies_image_has(struct rank_memory *m, uint32_t index)
{
	struct page *page = &m->pages[index];
	return page->saved || (page->in_image && page->keyed && copies_trusted(m) &&
			       is_copy_of(m, index, &page->key));
}

bool copies_has(struct rank_memory *m, uint32_t page)
{
	const struct copy *c = m->pages[page].copy;
	return c && copies_trusted(m) && is_copy_of(m, page, &c->key);
}

struct copy *copies_find(struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	for (uint32_t i = 0; i < d->count; i++) {
		struct copy *c = d->all[i]->pages[page].copy;
		if (d->all[i]->group == m->group && c && is_copy_of(m, page, &c->key))
			return c;
	}
	return NULL;
}

static bool only_in_image(const struct page *page)
{
	return page->buffers && !page->chunk && page->in_image;
}

/* True if the image has the page's content. The image of a failed rank does not count, because it
 * may soon disappear. */
static bool in_own_image(const struct rank_memory *m, uint32_t index)
{
	const struct page *page = &m->pages[index];
	return !m->stopped && !page_blank(m, index) && (page->saved || only_in_image(page));
}

struct version memory_key(struct rank_memory *m, uint32_t page)
{
	bool known = !m->inflight && copies_trusted(m);
	return known ? *content_digest(m, page) : (struct version){0, 0};
}

/* True if both hold equal content; no work uses the memory of either. */
static bool equal_at_rest(struct rank_memory *m, struct rank_memory *o, uint32_t page)
{
	return o->group == m->group && !m->inflight && !o->inflight && copies_trusted(m) &&
	       copies_trusted(o) && content_same(m, o, page);
}

const struct rank_memory *memory_image_owner(struct rank_memory *m, uint32_t index)
{
	const struct device_memory *d = m->device;
	const struct page *page = &m->pages[index];
	if (page->saved || page_blank(m, index) || (!page->chunk && !page->common))
		return NULL;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		if (!in_own_image(o, index))
			continue;
		if ((page->chunk && page->chunk == o->pages[index].chunk) ||
		    equal_at_rest(m, o, index))
			return o;
	}
	return NULL;
}

/* ---- equal content in several images becomes one copy ---- */

static bool at_rest(const struct rank_memory *m)
{
	return !m->inflight && !memory_moving(m) && !m->whole && copies_trusted(m);
}

static struct rank_memory *has_the_same(struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		if (o != m && o->group == m->group && only_in_image(&o->pages[page]) &&
		    at_rest(o) && content_same(m, o, page))
			return o;
	}
	return NULL;
}

/* True if bytes were copied. */
static bool merge_page(struct rank_memory *m, uint32_t page)
{
	struct copy *c = copies_find(m, page);
	struct rank_memory *other = c ? NULL : has_the_same(m, page);
	if (other && (c = copy_new(m->device, *content_digest(m, page)))) {
		memcpy(c->bytes, image_at(m, page), RF_CHUNK_BYTES);
		copy_refer(other, page, c);
		page_common(other, page);
	}
	if (c) {
		copy_refer(m, page, c);
		page_common(m, page);
	}
	return other && c;
}

/* True while the program may still be writing the page, or while a copy with its content is being
 * filled. */
static bool too_early(struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	const struct copy *c = copies_find(m, page);
	return page == m->writes_page || (c && c->hal_seq > d->hal->completed(d->out));
}

static bool merge_fresh(struct rank_memory *m)
{
	uint32_t kept = 0, i = 0;
	bool copied = false;
	for (; i < m->fresh_count && !copied; i++) {
		uint32_t index = m->fresh[i];
		struct page *page = &m->pages[index];
		INVARIANT(page->fresh, "a page that is looked at is marked");
		if (only_in_image(page) && too_early(m, index)) {
			m->fresh[kept++] = index;
			continue;
		}
		page->fresh = false;
		if (!only_in_image(page))
			continue;
		copy_forget(m, index); /* of what it held before it was written there */
		copied = merge_page(m, index);
	}
	memmove(&m->fresh[kept], &m->fresh[i], (m->fresh_count - i) * sizeof *m->fresh);
	m->fresh_count -= i - kept;
	return copied;
}

/* Handles one page at a time, because the copy is synchronous. */
bool copies_turn(struct device_memory *d)
{
	bool copied = false;
	d->fresh = false;
	for (uint32_t i = 0; i < d->count && !copied; i++) {
		struct rank_memory *m = d->all[i];
		if (m->fresh_count && at_rest(m))
			copied = merge_fresh(m);
	}
	for (uint32_t i = 0; i < d->count; i++)
		d->fresh |= d->all[i]->fresh_count > 1;
	return copied;
}
