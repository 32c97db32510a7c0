/* adopt.c: what a rank is about to compute, another one of its group may have computed before, from
 * the same, at the same addresses: then the rank's pages refer to the other's chunks from now on.
 *
 * Exact: a page is taken if its whole content, as it will be, is that of the other's page, by the
 * digest that sharing.c compares, too. All pages that the work writes are taken, or none.
 */
#include "memory_parts.h"

static bool done_elsewhere(const struct rank_memory *m, const struct foreseen *f)
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

/* Does it hold for all pages that the work writes to? */
static bool all_written(struct rank_memory *m, const struct foreseen *f, each_page *holds)
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

/* What is kept was copied to be written: its rank is on its way to do so. What it has copied each
 * time it would again. */
static bool free_to_go(struct rank_memory *m, uint32_t index)
{
	const struct page *page = &m->pages[index];
	return page->chunk && !page->kept && (page->told || !sharing_stays_apart(m, index));
}

static bool given(struct rank_memory *m, uint32_t page) { return sharing_giver(m, page) != NULL; }

static bool forgotten(struct rank_memory *m, uint32_t page)
{
	m->pages[page].digested = 0;
	return true;
}

static bool taken(struct rank_memory *m, uint32_t page)
{
	const struct rank_memory *o = sharing_giver(m, page);
	m->pages[page].told = false;                      /* it tries for itself */
	if (o->pages[page].chunk == m->pages[page].chunk) /* a page of two ranges */
		return true;
	return !page_guard(sharing_giver(m, page), page) &&
	       !page_remap(m, page, o->pages[page].chunk);
}

enum adoption memory_adopt(struct rank_memory *m, const struct foreseen *f)
{
	struct versions before;
	if (!m->device->shares || m->stopped || m->doubted || !done_elsewhere(m, f) ||
	    !all_written(m, f, free_to_go))
		return ADOPTION_NONE;
	if (m->inflight || memory_moving(m))
		return ADOPTION_LATER;
	if (versions_keep(&m->versions, &before))
		return ADOPTION_NONE;
	content_commit(m, f, f->key);
	if (all_written(m, f, given)) {
		versions_close(&before);
		return all_written(m, f, taken) ? ADOPTION_DONE : ADOPTION_FAILED;
	}
	versions_back(&m->versions, &before);
	all_written(m, f, forgotten);
	return ADOPTION_NONE;
}
