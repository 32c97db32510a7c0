/* map_result.c: if another rank of the group has already computed, from the same inputs and at the
 * same addresses, what a rank is about to compute, the rank's pages refer to the other rank's
 * chunks instead.
 *
 * The comparison is exact: a page is mapped if its whole future content equals that of the other
 * rank's page, by the digest that sharing.c also compares. Either all pages that the work writes
 * are mapped, or none.
 */
#include "memory_parts.h"

static bool done_elsewhere(const struct rank_memory *m, const struct footprint *f)
{
	const struct device_memory *d = m->device;
	for (uint32_t i = 0; i < d->count; i++) {
		const struct rank_memory *o = d->all[i];
		if (o != m && o->group == m->group && !o->inflight && content_committed(o, f))
			return true;
	}
	return false;
}

typedef bool each_page(struct rank_memory *, uint32_t page);

/* True if `holds` is true for all pages that the work writes to. */
static bool all_written(struct rank_memory *m, const struct footprint *f, each_page *holds)
{
	for (uint32_t i = 0; i < f->count; i++) {
		const struct range *range = &f->ranges[i];
		if (!(range->use & REACH_WRITTEN) || !range->bytes)
			continue;
		uint64_t last = page_at(range->addr + range->bytes - 1);
		for (uint64_t page = page_at(range->addr); page <= last; page++)
			if (!holds(m, (uint32_t)page))
				return false;
	}
	return true;
}

/* A kept page was copied because its rank is about to write it. A page that the rank has had to
 * copy each time would be copied again. */
static bool can_be_released(struct rank_memory *m, uint32_t index)
{
	const struct page *page = &m->pages[index];
	return page->chunk && !page->write_pending &&
	       (page->backoff_by_other || !sharing_backs_off(m, index));
}

static bool has_source(struct rank_memory *m, uint32_t page)
{
	return sharing_giver(m, page) != NULL;
}

static bool forget_digest(struct rank_memory *m, uint32_t page)
{
	m->pages[page].digested = 0;
	return true;
}

static bool take_page(struct rank_memory *m, uint32_t page)
{
	const struct rank_memory *o = sharing_giver(m, page);
	m->pages[page].backoff_by_other = false;          /* its own copies decide from now on */
	if (o->pages[page].chunk == m->pages[page].chunk) /* already mapped for another range */
		return true;
	return !page_write_protect(sharing_giver(m, page), page) &&
	       !page_remap(m, page, o->pages[page].chunk);
}

enum result_mapping memory_map_result(struct rank_memory *m, const struct footprint *f)
{
	struct versions before;
	if (!m->device->shares || m->stopped || m->distrusted || !done_elsewhere(m, f) ||
	    !all_written(m, f, can_be_released))
		return MAPPED_NONE;
	if (m->inflight || memory_moving(m))
		return MAPPED_LATER;
	if (versions_keep(&m->versions, &before))
		return MAPPED_NONE;
	content_commit(m, f, f->key);
	if (all_written(m, f, has_source)) {
		versions_close(&before);
		return all_written(m, f, take_page) ? MAPPED_DONE : MAPPED_FAILED;
	}
	versions_back(&m->versions, &before);
	all_written(m, f, forget_digest);
	return MAPPED_NONE;
}
