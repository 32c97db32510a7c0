/* sharing.c: chunks that several ranks of a group refer to (memory.h): how pages of equal content
 * come to share a chunk, which ranks refer to it, and what a rank may write.
 *
 * All ranks that refer to a chunk have it at the same page. Pages are compared by their digests,
 * for ranks whose memory no submitted work uses, because only then do versions match bytes. A rank
 * that has failed does not take part: some of the writes recorded for it never happened.
 */
#include <string.h>

#include "memory_parts.h"

#define BACKOFF_MAX 63u /* rounds of the device; every rank has one turn in a round */

/* ---- what a rank may write ---- */

static bool has_no_work_in_flight(const struct rank_memory *m)
{
	return !m->inflight && !memory_moving(m);
}

/* True if the work in flight writes only what it declares, write-protected or not, and nothing that
 * is shared. */
static bool writes_only_declared(const struct rank_memory *m)
{
	return memory_only_exact(m) && !memory_moving(m) && m->device->hal->space_own;
}

static bool page_refers_to(const struct rank_memory *m, uint64_t page, const struct chunk *c)
{
	return c && m->pages[page].chunk == c;
}

static bool page_owned(const struct page *page)
{
	return !page->chunk || (!page->write_protected && (!page->open || page->chunk->refs == 1));
}

/* The pages of a range, clipped to the heap. */
static void pages_of(uint64_t addr, uint64_t bytes, uint64_t *from, uint64_t *to)
{
	uint64_t end = RF_DEV_BASE + RF_HEAP_BYTES;
	*from = *to = 0;
	if (!bytes || addr < RF_DEV_BASE || addr >= end)
		return;
	*from = page_at(addr);
	*to = page_at((bytes < end - addr ? addr + bytes : end) - 1) + 1;
}

bool sharing_owns(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	uint64_t from, to;
	pages_of(addr, bytes, &from, &to);
	if (to - from > m->live_count) { /* much of it is not live */
		for (uint32_t i = 0; i < m->live_count; i++)
			if (m->live[i] >= from && m->live[i] < to &&
			    !page_owned(&m->pages[m->live[i]]))
				return false;
		return true;
	}
	for (; from < to; from++)
		if (!page_owned(&m->pages[from]))
			return false;
	return true;
}

void sharing_copied(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	uint64_t addr;
	uint32_t number;
	bool any = false;
	while (d->hal->space_copied(m->space, &addr, &number)) {
		page_copied(m, (uint32_t)page_at(addr), number);
		if (m->stray_count < STRAYS_MAX)
			m->strays[m->stray_count++] = (uint32_t)page_at(addr);
		d->unforeseen++;
		m->counted.unforeseen++;
		any = true;
	}
	m->surprised |= any && !m->fenced;
	if (any) /* what ran behind it may have read it */
		content_all_unknown(m);
}

uint32_t memory_strays(struct rank_memory *m, uint32_t pages[STRAYS_MAX])
{
	uint32_t count = m->stray_count;
	memcpy(pages, m->strays, count * sizeof *pages);
	m->stray_count = 0;
	return count;
}

static bool opened_by(const struct rank_memory *o, const struct rank_memory *m, uint32_t page)
{
	return o != m && o->pages[page].open && o->pages[page].chunk == m->pages[page].chunk;
}

/* Write-protects a page again in the other ranks that have it open, if that is possible now. */
static int protect_where_open(const struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	int error = CU_OK;
	for (uint32_t i = 0; i < d->count && !error; i++) {
		struct rank_memory *o = d->all[i];
		if (opened_by(o, m, page))
			error = has_no_work_in_flight(o) ? page_write_protect(o, page)
							 : CU_NOT_READY;
	}
	return error;
}

static void forget_backoff(const struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	for (uint32_t i = 0; i < d->count; i++)
		if (page_refers_to(d->all[i], page, m->pages[page].chunk))
			d->all[i]->pages[page].backoff = 0;
}

static bool page_shared(const struct page *page) { return page->chunk && page->chunk->refs > 1; }

/* The number of pages from this one on that have the same state: write-protected or not, shared or
 * not. A page that is shared and not write-protected is open. Each change of a mapping is a system
 * call, for any number of neighbouring pages. */
static uint32_t pages_in_same_state(const struct rank_memory *m, uint64_t from, uint64_t to)
{
	const struct page *first = &m->pages[from], *page = first + 1;
	while (page < &m->pages[to] && page->write_protected == first->write_protected &&
	       page_shared(page) == page_shared(first))
		page++;
	return (uint32_t)(page - first);
}

bool memory_may_open(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	const struct device_memory *d = m->device;
	uint64_t from, to;
	for (pages_of(addr, bytes, &from, &to); from < to; from++) {
		if (!m->pages[from].write_protected)
			continue;
		if (!has_no_work_in_flight(m) && !writes_only_declared(m))
			return false;
		for (uint32_t i = 0; i < d->count; i++)
			if (opened_by(d->all[i], m, (uint32_t)from) &&
			    !has_no_work_in_flight(d->all[i]))
				return false;
	}
	return true;
}

int memory_open_shared(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	uint64_t from, to;
	uint32_t count;
	int error = CU_OK;
	for (pages_of(addr, bytes, &from, &to); from < to && !error; from += count) {
		count = pages_in_same_state(m, from, to);
		if (!m->pages[from].write_protected)
			continue;
		error = has_no_work_in_flight(m) || writes_only_declared(m) ? CU_OK : CU_NOT_READY;
		for (uint32_t i = 0; i < count && !error; i++)
			error = protect_where_open(m, (uint32_t)from + i);
		if (!error)
			error = pages_open(m, (uint32_t)from, count, page_shared(&m->pages[from]));
		m->device->opened_early += !error && m->inflight ? count : 0;
		for (uint32_t i = 0; i < count; i++)
			forget_backoff(m, (uint32_t)from + i);
	}
	return error;
}

bool memory_close_shared(struct rank_memory *m, uint32_t most)
{
	for (uint32_t i = 0; i < m->live_count && m->write_protected; i++) {
		const struct page *page = &m->pages[m->live[i]];
		if (!page->open)
			continue;
		if (!most-- || !(has_no_work_in_flight(m) || writes_only_declared(m)))
			return false;
		if (!page_shared(page)) /* no other rank shares it any more: it is the rank's own */
			page_open(m, m->live[i], false);
		else /* a page that could not be write-protected stays open and not owned */
			pages_write_protect(m, m->live[i],
					    pages_in_same_state(m, m->live[i], HEAP_PAGES));
	}
	return true;
}

static bool in_some_range(const struct memory_range *ranges, uint32_t count, uint64_t page)
{
	uint64_t from, to;
	for (uint32_t i = 0; i < count; i++) {
		pages_of(ranges[i].addr, ranges[i].bytes, &from, &to);
		if (page >= from && page < to)
			return true;
	}
	return false;
}

int memory_fence(struct rank_memory *m, const struct memory_range *ranges, uint32_t count,
		 bool trusted)
{
	int error = CU_OK;
	if (!has_no_work_in_flight(m))
		return CU_NOT_READY;
	for (uint32_t i = 0; i < m->live_count && !error; i++) {
		uint32_t index = m->live[i];
		const struct page *page = &m->pages[index];
		if (!page->chunk || page->write_protected || in_some_range(ranges, count, index))
			continue;
		if (!page->write_pending) /* a kept page is about to be written by another work */
			error = page_write_protect(m, index);
		else if (!trusted)
			content_distrust(m, index);
	}
	m->fenced = !error;
	return error;
}

/* ---- which ranks share ---- */

static bool page_exists(const struct page *page) { return page->buffers || page->chunk; }

/* True if `o` refers to the chunk of any of the pages; `all`: of each page that is live or resident
 * in either rank. Neither rank can write the other pages. */
static bool shares_pages(const struct rank_memory *m, const struct rank_memory *o,
			 const struct memory_range *ranges, uint32_t count, bool *all)
{
	bool any = false;
	uint64_t from, to;
	*all = true;
	for (uint32_t i = 0; i < count; i++)
		for (pages_of(ranges[i].addr, ranges[i].bytes, &from, &to); from < to; from++) {
			const struct page *page = &m->pages[from];
			bool it = page_refers_to(o, from, page->chunk);
			any |= it;
			*all &= it || !(page_exists(page) || page_exists(&o->pages[from]));
		}
	return any;
}

uint32_t memory_sharers(const struct rank_memory *m, const struct memory_range *ranges,
			uint32_t count, struct rank_memory **sharers, uint32_t capacity,
			bool *exactly)
{
	const struct device_memory *d = m->device;
	uint32_t found = 0;
	*exactly = true;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		bool all = true;
		if (o != m && !(o->group == m->group && shares_pages(m, o, ranges, count, &all)))
			continue;
		*exactly &= all && found < capacity;
		if (found < capacity)
			sharers[found++] = o;
	}
	*exactly &= found > 1;
	return found;
}

static bool shared_before(const struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	uint32_t i = 0;
	while (d->all[i] != m && !page_refers_to(d->all[i], page, m->pages[page].chunk))
		i++;
	return d->all[i] != m;
}

uint64_t memory_shared(const struct rank_memory *m, bool once)
{
	uint64_t found = 0;
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct chunk *c = m->pages[m->live[i]].chunk;
		found += c && c->refs > 1 && !(once && shared_before(m, m->live[i]));
	}
	return found;
}

/* ---- sharing of pages ---- */

/* A rank that is being swapped out can share the pages that are not leaving. */
static bool may_share(const struct rank_memory *m)
{
	const struct hal *hal = m->device->hal;
	return m->device->shares && !m->inflight && !m->distrusted && !m->stopped &&
	       (!memory_moving(m) || m->moves->kind == MOVE_OUT) &&
	       !hal->space_error(m->space, NULL, 0);
}

static bool page_may_be_shared(const struct rank_memory *m, uint32_t index)
{
	const struct page *page = &m->pages[index];
	return page->buffers && page->chunk && !page->leaving && !page->write_pending &&
	       !page->chunk->unusable;
}

static struct rank_memory *find_holder(struct rank_memory *m, uint32_t page, bool now)
{
	struct device_memory *d = m->device;
	for (uint32_t i = 0; d->shares && !m->distrusted && i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		if (o != m && o->group == m->group && page_may_be_shared(o, page) &&
		    (!now || may_share(o)) && content_same(m, o, page))
			return o;
	}
	return NULL;
}

struct rank_memory *sharing_giver(struct rank_memory *m, uint32_t page)
{
	return find_holder(m, page, true);
}

bool sharing_soon(struct rank_memory *m, uint32_t page)
{
	return find_holder(m, page, false) && !find_holder(m, page, true);
}

bool sharing_alike(struct rank_memory *m, uint32_t index)
{
	const struct device_memory *d = m->device;
	const struct chunk *c = m->pages[index].chunk;
	bool alike = c && c->refs > 1;
	for (uint32_t i = 0; i < d->count && !alike; i++) {
		struct rank_memory *o = d->all[i];
		alike = o != m && o->group == m->group && o->pages[index].buffers &&
			!page_blank(o, index) && content_same(m, o, index);
	}
	return alike;
}

int sharing_take(struct rank_memory *to, struct rank_memory *from, uint32_t page)
{
	bool content = to->pages[page].in_image || to->pages[page].common;
	INVARIANT(from->group == to->group && from->pages[page].chunk,
		  "a page is taken from a rank of the group that has it");
	int error = page_write_protect(from, page);
	copies_named(to, page);
	if (!error)
		error = page_map(to, page, from->pages[page].chunk);
	if (!error && content) {
		to->device->not_swapped += RF_CHUNK_BYTES;
		to->counted.not_swapped += RF_CHUNK_BYTES;
	}
	return error;
}

/* Other ranks will probably also write what one rank had to copy, so all of them stop sharing it
 * for the same period. A rank that still shares the page copies it next, which does not extend the
 * period. */
void sharing_saved_nothing(struct rank_memory *m, uint32_t index)
{
	const struct device_memory *d = m->device;
	const struct page *page = &m->pages[index];
	if (page->backoff_by_other && d->turns < page->backoff_until)
		return;
	uint32_t backoff = 2u * page->backoff + 1;
	backoff = backoff < BACKOFF_MAX ? backoff : BACKOFF_MAX;
	/* Each rank skips this many chances, and one more if its turn is still to come. */
	uint64_t until = d->turns + (backoff + 1ull) * d->count - 1;
	for (uint32_t i = 0; i < d->count; i++) {
		struct page *its = &d->all[i]->pages[index];
		if (d->all[i]->group != m->group || !its->buffers)
			continue;
		its->backoff = (uint8_t)backoff;
		its->backoff_until = until;
		its->backoff_by_other = its != page;
	}
}

bool sharing_ample(const struct device_memory *d)
{
	uint64_t pages = d->unusable;
	for (uint32_t i = 0; i < d->count; i++)
		pages += d->all[i]->live_count;
	return pages <= d->total;
}

bool sharing_backs_off(const struct rank_memory *m, uint32_t page)
{
	return m->device->turns < m->pages[page].backoff_until && sharing_ample(m->device);
}

/* A rank with the same content in another chunk that has at least as many references, preferably
 * the most, so that one chunk remains in the end. */
static struct rank_memory *find_preferred_holder(struct rank_memory *m, uint32_t page)
{
	const struct device_memory *d = m->device;
	const struct chunk *best = m->pages[page].chunk;
	struct rank_memory *found = NULL;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		const struct chunk *c = o->gives ? o->pages[page].chunk : NULL;
		if (!c || c == m->pages[page].chunk || c->refs < best->refs ||
		    (found && c->refs == best->refs) || !page_may_be_shared(o, page) ||
		    sharing_backs_off(o, page) || !content_same(m, o, page))
			continue;
		found = o;
		best = c;
	}
	return found;
}

int memory_merge(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	bool any = false;
	if (memory_moving(m) || !may_share(m))
		return CU_OK;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *o = d->all[i];
		o->gives = o != m && o->group == m->group && may_share(o);
		any |= o->gives;
	}
	for (uint32_t i = 0; i < m->live_count && any; i++) {
		uint32_t page = m->live[i];
		if (m->pages[page].chunk && !copies_has(m, page))
			copy_forget(m, page);
		bool may = page_may_be_shared(m, page) && !sharing_backs_off(m, page);
		struct rank_memory *o = may ? find_preferred_holder(m, page) : NULL;
		if (!o || page_write_protect(o, page))
			continue;
		int error = page_remap(m, page, o->pages[page].chunk);
		if (!m->pages[page].chunk)
			return error;
	}
	return CU_OK;
}

/* ---- one result for several ranks ---- */

/* Rates how suitable the rank is as the receiver: write-protected pages have to be copied before
 * they are written. A failed rank may not receive anything. 0: unsuitable. */
uint64_t sharing_fitness(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	const struct device_memory *d = m->device;
	uint64_t from, to, sum = 1 + has_no_work_in_flight(m);
	if (!d->shares || m->stopped || d->hal->space_error(m->space, NULL, 0))
		return 0;
	for (pages_of(addr, bytes, &from, &to); from < to; from++)
		if (m->pages[from].chunk)
			sum += m->pages[from].write_protected ? 2 : 4;
	return sum;
}

uint32_t memory_receiver(const struct rank_memory *const *memories, uint32_t count, uint64_t addr,
			 uint64_t bytes)
{
	uint32_t best = UINT32_MAX;
	uint64_t most = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t its = sharing_fitness(memories[i], addr, bytes);
		if (its > most)
			best = i;
		most = its > most ? its : most;
	}
	return best;
}

static int hand_page(struct rank_memory *from, struct rank_memory *to, uint32_t index)
{
	struct page *page = &to->pages[index];
	struct chunk *c = from->pages[index].chunk;
	bool missing = !page->chunk;
	if (sharing_backs_off(from, index) || sharing_backs_off(to, index))
		return CU_OK;
	if (!page_may_be_shared(from, index) || !page->buffers || page->chunk == c ||
	    page_write_protect(from, index))
		return CU_OK;
	int error = missing ? page_map(to, index, c) : page_remap(to, index, c);
	if (page->chunk != c)
		return missing || page->chunk ? CU_OK : error;
	content_unknown(to, page_addr(index), RF_CHUNK_BYTES);
	page->saved = false;
	to->device->not_swapped += missing ? RF_CHUNK_BYTES : 0;
	to->counted.not_swapped += missing ? RF_CHUNK_BYTES : 0;
	return CU_OK;
}

int memory_hand(struct rank_memory *from, struct rank_memory *to, uint64_t addr, uint64_t bytes)
{
	uint64_t page = page_at(addr + RF_CHUNK_BYTES - 1), end = page_at(addr + bytes);
	int error = CU_OK;
	if (from->group != to->group || !has_no_work_in_flight(from) || !may_share(from) ||
	    !has_no_work_in_flight(to) || !may_share(to))
		return CU_OK;
	for (; page < end && !error; page++)
		error = hand_page(from, to, (uint32_t)page);
	return error;
}
