/* valid.c: checks that the counters and lists of memory.h agree. For tests, and for builds that
 * check each turn. */
#include "memory_parts.h"
#include "invariant.h"

static uint64_t numbers(const struct device_memory *d)
{
	return HAL_CHUNK_NUMBERS(d->total * RF_CHUNK_BYTES);
}

struct sums {
	uint64_t refs, leaving, outwards, reserved, copies;
	uint32_t moving;
};

/* All ranks that refer to a chunk have it at the same page and are in one group. None of them can
 * write it, except one rank that writes it for all. */
static const char *sharing_invalid(const struct rank_memory *m, uint32_t index)
{
	const struct device_memory *d = m->device;
	const struct chunk *c = m->pages[index].chunk;
	uint32_t refs = 0, open = 0;
	for (uint32_t i = 0; i < d->count; i++) {
		const struct page *page = &d->all[i]->pages[index];
		if (page->chunk != c)
			continue;
		refs++;
		open += page->open;
		WRONG(d->all[i]->group != m->group, "ranks of two groups share");
		WRONG(c->refs > 1 && !page->write_protected && !page->open,
		      "what several have can be written by one");
	}
	WRONG(refs != c->refs, "who refers to a chunk");
	WRONG(open > 1, "what several have can be written by two");
	return NULL;
}

/* All ranks that refer to a copy have it at the same page and are in one group. */
static const char *copy_invalid(const struct rank_memory *m, uint32_t index, struct sums *sums)
{
	const struct device_memory *d = m->device;
	const struct page *page = &m->pages[index];
	const struct copy *c = page->copy;
	const struct rank_memory *first = NULL;
	uint32_t refs = 0;
	WRONG(page->common && (!c || page->chunk || page->in_image),
	      "content of a copy is here, or in the image");
	for (uint32_t i = 0; i < d->count && c; i++) {
		if (d->all[i]->pages[index].copy != c)
			continue;
		first = first ? first : d->all[i];
		refs++;
		WRONG(d->all[i]->group != m->group, "ranks of two groups refer to a copy");
	}
	WRONG(c && refs != c->refs, "who refers to a copy");
	sums->copies += c && first == m;
	return NULL;
}

static const char *fresh_invalid(const struct rank_memory *m)
{
	WRONG(m->fresh_count > 1 && !m->device->fresh, "new content is listed without a reader");
	for (uint32_t i = 0; i < m->fresh_count; i++)
		WRONG(!m->pages[m->fresh[i]].fresh, "what an image has got is listed twice");
	return NULL;
}

static const char *pages_invalid(const struct rank_memory *m, struct sums *sums)
{
	const struct device_memory *d = m->device;
	uint32_t missing = 0, dying = 0, write_protected = 0;
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct page *page = &m->pages[m->live[i]];
		missing += !page->chunk;
		dying += !page->buffers;
		sums->leaving += page->leaving;
		write_protected += page->write_protected || page->open;
		WRONG(!page->buffers && !page->chunk, "a page of nothing is live");
		WRONG(!page->chunk && (page->leaving || page->write_protected || page->open ||
				       page->write_pending),
		      "what is not here is leaving, write-protected, open or kept");
		WRONG(page->write_protected && page->open, "a page is write-protected and open");
		const char *copies = copy_invalid(m, m->live[i], sums);
		if (copies)
			return copies;
		if (!page->chunk)
			continue;
		sums->refs++;
		WRONG(page->chunk < d->chunks || page->chunk >= d->chunks + numbers(d),
		      "a page refers to no chunk of the device");
		WRONG(!page->chunk->held || !page->chunk->refs, "a page has an unheld chunk");
		const char *wrong = sharing_invalid(m, m->live[i]);
		if (wrong)
			return wrong;
	}
	WRONG(write_protected != m->write_protected, "write-protected pages");
	WRONG(missing != m->missing, "missing pages");
	WRONG(dying != m->dying, "dying pages");
	for (uint32_t i = 1; i < m->buffer_count; i++)
		WRONG(m->buffers[i - 1].addr + m->buffers[i - 1].bytes > m->buffers[i].addr,
		      "buffers overlap or are not sorted");
	for (uint32_t i = 0; i < m->buffer_count; i++) {
		const struct buffer *b = &m->buffers[i];
		uint64_t end = b->addr + b->bytes, far = b->whole.addr + b->whole.bytes;
		bool next = i + 1 < m->buffer_count && b->joined && b[1].joined && b[1].addr == end;
		WRONG(b->addr < b->whole.addr ||
			      (next ? far != b[1].whole.addr + b[1].whole.bytes : far != end),
		      "how far accesses reach");
		WRONG(!b->joined && b->whole.addr != b->addr, "a buffer is joined to another");
	}
	return NULL;
}

static const char *moves_invalid(const struct rank_memory *m, struct sums *sums)
{
	sums->moving += m->move_count != 0;
	WRONG(m->move_done > m->move_submitted || m->move_submitted > m->move_count ||
		      (m->move_count && m->move_done == m->move_count),
	      "the places in a list of moves");
	for (uint32_t i = 0; i < m->move_count; i++) {
		const struct move *v = &m->moves[i];
		const struct page *page = &m->pages[v->page];
		sums->reserved += v->promised && i >= m->move_submitted;
		sums->outwards += v->kind == MOVE_OUT && i >= m->move_done;
		WRONG(m->inflight && !(v->kind == MOVE_OWN && m->device->hal->space_own) &&
			      !(v->kind == MOVE_IN && m->device->hal->maps_beneath),
		      "pages move while work uses them");
		WRONG(v->kind == MOVE_OUT && i >= m->move_done && !page->leaving,
		      "a page on its way out is not leaving");
		WRONG(move_inwards(v) && m->request.state != REQUEST_ACTIVE,
		      "pages come in that no request needs");
	}
	return NULL;
}

static const char *chunks_invalid(const struct device_memory *d, const struct sums *sums)
{
	uint64_t used = 0, unusable = 0, leaving = 0, refs = 0, marked = 0, shared = 0;
	for (uint64_t i = 0; i < numbers(d); i++) {
		const struct chunk *c = &d->chunks[i];
		if (!c->held)
			continue;
		used++;
		refs += c->refs;
		marked += c->leaving;
		shared += c->refs > 1;
		unusable += c->unusable && !c->refs;
		leaving += c->refs && c->leaving == c->refs;
		WRONG(c->leaving > c->refs, "more pages of a chunk leave than it has");
	}
	WRONG(used != d->used, "used chunks");
	WRONG(refs != sums->refs, "references to chunks");
	WRONG(marked != sums->leaving || marked != sums->outwards, "pages that are leaving");
	WRONG(leaving != d->leaving, "chunks that are leaving");
	WRONG(sums->reserved != d->reserved, "reserved chunks");
	WRONG(d->unusable != unusable, "unusable chunks");
	WRONG(shared != d->shared, "shared chunks");
	WRONG(!unusable && !d->unforeseen && d->used - d->leaving + d->reserved > d->total,
	      "more is promised than there is");
	return NULL;
}

static const char *requests_invalid(const struct device_memory *d)
{
	uint32_t listed = 0, open = 0;
	for (uint32_t i = 0; i < d->count; i++)
		open += d->all[i]->request.state != REQUEST_NONE;
	for (const struct memory_request *q = d->requests; q; q = q->next, listed++) {
		WRONG(listed > d->count, "the list of requests has a loop");
		WRONG(q->state == REQUEST_NONE, "a request that has not begun is listed");
		WRONG(q->next && q->next->purpose < q->purpose, "the order of service");
	}
	WRONG(listed != open, "a request is not listed");
	return NULL;
}

const char *memory_invalid(const struct device_memory *d)
{
	struct sums sums = {0};
	const char *wrong = requests_invalid(d);
	for (uint32_t i = 0; i < d->count && !wrong; i++) {
		wrong = versions_invalid(&d->all[i]->versions);
		if (!wrong)
			wrong = pages_invalid(d->all[i], &sums);
		if (!wrong)
			wrong = fresh_invalid(d->all[i]);
		if (!wrong)
			wrong = moves_invalid(d->all[i], &sums);
	}
	WRONG(!wrong && sums.copies != d->copies_on_host, "copies that several ranks refer to");
	WRONG(!wrong && sums.moving != d->moving, "ranks whose pages move");
	return wrong ? wrong : chunks_invalid(d, &sums);
}
