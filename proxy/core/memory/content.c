/* content.c: records what a rank's memory holds, by versions (versions/versions.h). The caller that
 * submits a work that writes records it here, in the order of submission. Pinned memory is also the
 * host's, so its content is never known.
 */
#include "memory_parts.h"

/* of writes beyond a buffer's ends; with more, the work may write anywhere */
#define AROUND_MAX RF_CHUNK_BYTES

/* The class of a reach, which precedes it in the key. */
enum { A_NUMBER, A_BUFFER };

static bool in_heap(uint64_t addr, uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE;
	return addr >= RF_DEV_BASE && offset < RF_HEAP_BYTES && bytes <= RF_HEAP_BYTES - offset;
}

struct content content_of_bytes(const void *from, uint64_t bytes)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_BYTES);
	digest_bytes(&d, from, bytes);
	return (struct content){digest_end(&d), 0, 0};
}

/* Results cached for these pages are outdated. They stay valid where versions become private
 * without a write (versions.h). */
static void drop_cached(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	for (uint64_t p = page_at(addr); bytes && p <= page_at(addr + bytes - 1); p++) {
		m->pages[p].digested = 0;
		m->pages[p].blank = 0;
		m->pages[p].write_pending = false;
	}
}

void content_is(struct rank_memory *m, uint64_t addr, uint64_t bytes, struct content content)
{
	if (!in_heap(addr, bytes))
		return;
	versions_set(&m->versions, addr, bytes, content);
	drop_cached(m, addr, bytes);
}

void content_unknown(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	if (!in_heap(addr, bytes))
		return;
	versions_private(&m->versions, addr, bytes);
	drop_cached(m, addr, bytes);
}

void content_distrust(struct rank_memory *m, uint32_t page)
{
	versions_private(&m->versions, page_addr(page), RF_CHUNK_BYTES);
	m->pages[page].digested = m->pages[page].blank = 0;
}

void content_all_unknown(struct rank_memory *m)
{
	versions_private(&m->versions, RF_DEV_BASE, RF_HEAP_BYTES);
	m->contents++;
}

void content_copied(struct rank_memory *m, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (!in_heap(to, bytes) || !in_heap(from, bytes)) {
		content_unknown(m, to, bytes);
		return;
	}
	versions_copy(&m->versions, to, &m->versions, from, bytes);
	drop_cached(m, to, bytes);
}

bool content_absorb(const struct rank_memory *m, uint64_t addr, uint64_t bytes, struct digest *d)
{
	if (!in_heap(addr, bytes))
		return false;
	versions_absorb(&m->versions, addr, bytes, d);
	return true;
}

bool content_holds(const struct rank_memory *m, uint64_t addr, uint64_t bytes,
		   struct content content)
{
	return in_heap(addr, bytes) && versions_equal(&m->versions, addr, bytes, content);
}

bool content_same(struct rank_memory *m, struct rank_memory *o, uint32_t page)
{
	const struct version *x = content_digest(m, page), *y = content_digest(o, page);
	return x->a == y->a && x->b == y->b;
}

const struct version *content_digest(struct rank_memory *m, uint32_t index)
{
	struct page *page = &m->pages[index];
	struct digest d;
	if (page->digested != m->contents + 1) {
		digest_begin(&d);
		versions_absorb(&m->versions, page_addr(index), RF_CHUNK_BYTES, &d);
		page->digest = digest_end(&d);
		page->digested = m->contents + 1;
	}
	return &page->digest;
}

void footprint_add(struct footprint *f, uint64_t addr, uint64_t bytes, uint32_t use)
{
	if (f->count < RANGES_MAX)
		f->ranges[f->count++] = (struct range){addr, bytes, use};
	else
		f->known = f->keyed = false;
}

/* The buffers that a work reaches, in the order in which it reaches them. */
struct met {
	uint32_t count;
	const struct memory_range *buffers[RANGES_MAX]; /* each with what is joined to it */
};

/* The buffer's index among those; RANGES_MAX: there are too many. */
static uint32_t place_of(struct met *met, const struct memory_range *b)
{
	uint32_t place = 0;
	while (place < met->count && met->buffers[place]->addr != b->addr)
		place++;
	if (place == met->count && place < RANGES_MAX)
		met->buffers[met->count++] = b;
	return place;
}

/* Adds a part of a buffer to the footprint. Its content enters the digest the first time, unless it
 * is within a part that is already described. */
static void footprint_part(struct rank_memory *m, struct digest *d, struct range part,
			   struct footprint *f)
{
	bool described = false;
	for (uint32_t i = 0; i < f->count; i++) {
		struct range *r = &f->ranges[i];
		if (part.addr < r->addr || part.addr + part.bytes > r->addr + r->bytes)
			continue;
		if (part.bytes == r->bytes || !(part.use & ~r->use)) {
			r->use |= part.use;
			return;
		}
		described = true;
	}
	if (!described)
		versions_absorb(&m->versions, part.addr, part.bytes, d);
	footprint_add(f, part.addr, part.bytes, part.use);
}

/* The part of the buffer that a reach is bounded by; the whole buffer if the bounds exceed it. */
static struct range part_of(const struct reach *reach, struct bound bound,
			    const struct memory_range *b, uint32_t use)
{
	int64_t at = (int64_t)(reach->addr - b->addr), low, high;
	if (reach->bounded & use && !__builtin_add_overflow(at, bound.low, &low) &&
	    !__builtin_add_overflow(at, bound.high, &high) && low >= 0 && high <= (int64_t)b->bytes)
		return (struct range){b->addr + (uint64_t)low, (uint64_t)(high - low), use};
	return (struct range){b->addr, b->bytes, use};
}

/* True if the bounds are wholly outside the buffer that the address points into: the reach then
 * concerns another buffer's content. */
static bool reaches_other_buffer(const struct reach *reach, struct bound bound,
				 const struct memory_range *b)
{
	int64_t at = (int64_t)(reach->addr - b->addr), low, high;
	return __builtin_add_overflow(at, bound.low, &low) ||
	       __builtin_add_overflow(at, bound.high, &high) || high <= 0 ||
	       low >= (int64_t)b->bytes;
}

/* Adds what a bounded reach may write before and after the buffer. */
static void footprint_around(const struct reach *reach, const struct memory_range *b,
			     struct footprint *f)
{
	const uint64_t heap_end = RF_DEV_BASE + RF_HEAP_BYTES, end = b->addr + b->bytes;
	int64_t at = (int64_t)(reach->addr - b->addr);
	int64_t before = -(at + reach->written.low);
	int64_t after = at + reach->written.high - (int64_t)b->bytes;
	if (before > (int64_t)AROUND_MAX || after > (int64_t)AROUND_MAX) {
		f->writes_outside = true;
		return;
	}
	if (before > (int64_t)(b->addr - RF_DEV_BASE))
		before = (int64_t)(b->addr - RF_DEV_BASE);
	if (after > (int64_t)(heap_end - end))
		after = (int64_t)(heap_end - end);
	if (before > 0)
		footprint_add(f, b->addr - (uint64_t)before, (uint64_t)before,
			      REACH_WRITTEN | REACH_PERHAPS);
	if (after > 0)
		footprint_add(f, end, (uint64_t)after, REACH_WRITTEN | REACH_PERHAPS);
}

/* Adds one reach. The buffer's index enters the digest, because two addresses in one buffer differ
 * from two addresses in two buffers of equal content. */
static void footprint_buffer(struct rank_memory *m, struct digest *d, const struct reach *reach,
			     const struct memory_range *b, struct met *met, struct footprint *f)
{
	static const uint32_t uses[] = {REACH_READ, REACH_WRITTEN};
	uint32_t place = place_of(met, b);
	f->known = place < RANGES_MAX;
	digest_word(d, A_BUFFER);
	digest_word(d, place);
	digest_word(d, reach->addr - b->addr);
	digest_word(d, reach->use);
	for (uint32_t n = 0; n < 2; n++) {
		struct bound bound = n ? reach->written : reach->read;
		bool bounded = reach->bounded & uses[n];
		if (!(reach->use & uses[n]) || (bounded && bound.low >= bound.high))
			continue;
		f->known &= !(bounded && reaches_other_buffer(reach, bound, b));
		struct range part = part_of(reach, bound, b, uses[n]);
		digest_word(d, uses[n]);
		digest_word(d, part.addr - b->addr);
		digest_word(d, part.bytes);
		footprint_part(m, d, part, f);
		if (uses[n] == REACH_WRITTEN && !bounded)
			f->writes_outside = true;
		else if (uses[n] == REACH_WRITTEN && f->known)
			footprint_around(reach, b, f);
	}
	f->unordered |= reach->use & REACH_UNORDERED;
}

void content_footprint(struct rank_memory *m, struct digest *d, const struct reach *reaches,
		       uint32_t count, struct footprint *f)
{
	struct met met = {0};
	footprint_none(f);
	for (uint32_t i = 0; i < count && f->known; i++) {
		const struct reach *reach = &reaches[i];
		if (!in_heap(reach->addr, 0) && !memory_pinned(m, reach->addr)) {
			digest_word(d, A_NUMBER); /* or NULL */
			digest_word(d, reach->addr);
			continue;
		}
		const struct memory_range *b = memory_whole(m, reach->addr);
		f->known = b != NULL;
		if (b)
			footprint_buffer(m, d, reach, b, &met, f);
	}
	f->keyed = f->known && !f->writes_outside;
	f->key = digest_end(d);
}

struct version content_version(struct rank_memory *m, const struct footprint *f)
{
	return f->unordered || !f->keyed ? versions_new(&m->versions) : f->key;
}

/* The version of content that also depends on the previous content. */
static struct version mixed_version(const struct rank_memory *m, const struct range *range,
				    uint32_t number, struct version version)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_REST);
	digest_word(&d, version.a);
	digest_word(&d, version.b);
	digest_word(&d, number);
	versions_absorb(&m->versions, range->addr, range->bytes, &d);
	return digest_end(&d);
}

/* For a work that may write anywhere: the content of all pages with a written part becomes unknown,
 * because these pages are not write-protected. */
static void pages_unknown(struct rank_memory *m, const struct range *range)
{
	uint64_t first = page_at(range->addr), last = page_at(range->addr + range->bytes - 1);
	if (range->bytes)
		content_unknown(m, page_addr((uint32_t)first), (last - first + 1) * RF_CHUNK_BYTES);
}

/* Each written range has its own part of what the version names. */
static struct content content_part(uint32_t range, struct version version)
{
	return (struct content){version, range * RF_HEAP_BYTES, 0};
}

bool content_committed(const struct rank_memory *m, const struct footprint *f)
{
	bool any = false;
	for (uint32_t i = 0; i < f->count; i++) {
		const struct range *range = &f->ranges[i];
		if (!(range->use & REACH_WRITTEN) || range->use & REACH_PERHAPS)
			continue;
		any = true;
		if (!content_holds(m, range->addr, range->bytes, content_part(i, f->key)))
			return false;
	}
	return any && f->keyed && !f->unordered;
}

void content_commit(struct rank_memory *m, const struct footprint *f, struct version version)
{
	if (!f->known || (f->writes_outside && !memory_fences(m))) {
		content_all_unknown(m);
		return;
	}
	for (uint32_t i = 0; i < f->count; i++) {
		const struct range *range = &f->ranges[i];
		if (!(range->use & REACH_WRITTEN))
			continue;
		if (f->writes_outside && !f->trusted)
			pages_unknown(m, range);
		else if (range->use & REACH_PERHAPS)
			content_is(m, range->addr, range->bytes,
				   (struct content){mixed_version(m, range, i, version), 0, 0});
		else
			content_is(m, range->addr, range->bytes, content_part(i, version));
	}
}
