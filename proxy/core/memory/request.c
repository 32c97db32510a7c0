/* request.c: requests for a rank's memory, the order in which they are served, and which ranks
 * release chunks. memory.h states the rules and why they cannot deadlock. */
#include "memory_parts.h"

static void finish_request(struct memory_request *q, int result)
{
	struct device_memory *d = q->memory->device;
	struct memory_request **at = &d->requests;
	while (*at && *at != q)
		at = &(*at)->next;
	INVARIANT(*at, "a request that ends is listed");
	*at = q->next;
	q->state = REQUEST_NONE;
	d->progress = true;
	if (q->on_end)
		q->on_end(q->arg, q->purpose, result);
}

static void enqueue_request(struct memory_request *q)
{
	struct memory_request **at = &q->memory->device->requests;
	INVARIANT(*at != q, "a request is listed once");
	while (*at && (*at)->purpose <= q->purpose)
		at = &(*at)->next;
	q->next = *at;
	*at = q;
}

bool memory_request(struct rank_memory *m, const struct memory_request *wanted)
{
	struct memory_request *q = &m->request;
	if (m->stopped && wanted->purpose != PURPOSE_SAVE)
		return false;
	if (q->state && !q->result && q->purpose == wanted->purpose && q->stay == wanted->stay &&
	    q->addr == wanted->addr && q->bytes == wanted->bytes)
		return true;
	if (q->state && wanted->purpose > q->purpose)
		return false;
	memory_cancel(m);
	if (q->state)
		return false; /* its moves are still in progress */
	*q = *wanted;
	q->state = REQUEST_WAITING;
	q->result = CU_OK;
	q->memory = m;
	m->whole = q->purpose == PURPOSE_SAVE || (m->whole && q->purpose == PURPOSE_COPY);
	enqueue_request(q);
	m->device->progress = true;
	return true;
}

void memory_cancel(struct rank_memory *m)
{
	struct memory_request *q = &m->request;
	if (!q->state)
		return;
	if (q->state == REQUEST_ACTIVE) {
		q->result = MEMORY_CANCELLED;
		moves_drop(m);
		if (memory_moving(m))
			return;
	}
	finish_request(q, MEMORY_CANCELLED);
}

void memory_changes(struct rank_memory *m)
{
	if (m->request.state && m->request.purpose == PURPOSE_SAVE && m->request.stay)
		memory_cancel(m);
	m->whole = m->request.state && m->request.purpose == PURPOSE_SAVE;
	moves_are_of_before(m);
}

void memory_stop(struct rank_memory *m)
{
	m->stopped = true;
	if (m->request.state && m->request.purpose != PURPOSE_SAVE)
		memory_cancel(m);
}

void memory_activated(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	m->last_active = ++d->turns;
	d->active = m;
	for (uint32_t i = 0; i < d->count; i++) {
		d->all[i]->writes_page = HEAP_PAGES;
		d->fresh |= d->all[i]->fresh_count != 0;
	}
}

/* ---- what a request needs ---- */

static bool makes_resident(const struct memory_request *q)
{
	return q->purpose == PURPOSE_ACTIVATE || q->purpose == PURPOSE_PREFETCH;
}

static bool in_range(const struct memory_request *q, uint32_t page)
{
	return q->bytes && page >= page_at(q->addr) && page <= page_at(q->addr + q->bytes - 1);
}

/* True if the request needs a move of this live page; `kind` is the move. */
static bool needs_move(const struct memory_request *q, uint32_t index, enum move_kind *kind)
{
	const struct page *page = &q->memory->pages[index];
	switch (q->purpose) {
	case PURPOSE_SAVE: return move_saves(q->memory, index, q->stay, kind);
	case PURPOSE_COPY:
		*kind = MOVE_OWN;
		return in_range(q, index) &&
		       !memory_owns(q->memory, page_addr(index), RF_CHUNK_BYTES);
	case PURPOSE_PREFETCH:
		*kind = MOVE_IN;
		return !page->chunk && !sharing_soon(q->memory, index);
	default: *kind = MOVE_IN; return !page->chunk;
	}
}

static bool request_fulfilled(const struct memory_request *q)
{
	const struct rank_memory *m = q->memory;
	enum move_kind kind;
	if (makes_resident(q))
		return !m->missing; /* checked in each turn, so no search */
	if (q->purpose == PURPOSE_COPY)
		return !q->bytes || memory_owns(m, q->addr, q->bytes);
	for (uint32_t i = 0; i < m->live_count; i++)
		if (needs_move(q, m->live[i], &kind))
			return false;
	return true;
}

/* Counts the request's pages that need a chunk: not those that another rank can share, and not
 * those that all other ranks release. */
static int64_t chunks_needed(const struct memory_request *q)
{
	struct rank_memory *m = q->memory;
	enum move_kind kind;
	int64_t count = 0;
	if (q->purpose == PURPOSE_SAVE)
		return 0;
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct chunk *c = m->pages[m->live[i]].chunk;
		if (needs_move(q, m->live[i], &kind))
			count += c ? c->refs - c->leaving > 1 : !sharing_giver(m, m->live[i]);
	}
	return count;
}

/* ---- capacity ---- */

static bool can_yield(const struct memory_request *q, const struct rank_memory *m)
{
	const struct device_memory *d = q->memory->device;
	if (m == q->memory || m->inflight || memory_moving(m) || m->live_count == m->missing)
		return false;
	return q->purpose != PURPOSE_PREFETCH || (m != d->active && !m->request.state);
}

/* The least recently active of the ranks that can release chunks and were not chosen yet. */
static struct rank_memory *choose_victim(const struct device_memory *d)
{
	struct rank_memory *oldest = NULL;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *m = d->all[i];
		if (m->gives && !m->chosen && (!oldest || m->last_active < oldest->last_active))
			oldest = m;
	}
	if (oldest)
		oldest->chosen = true;
	return oldest;
}

static void forget_chosen(const struct device_memory *d)
{
	for (uint32_t i = 0; i < d->count; i++)
		d->all[i]->chosen = false;
}

/* True if releasing the page would free nothing, because the requester refers to its chunk or can
 * share it. */
static bool would_free_nothing(const struct memory_request *q, const struct rank_memory *m,
			       uint32_t page)
{
	struct rank_memory *r = q->memory;
	if (r->pages[page].chunk || !r->pages[page].buffers || !makes_resident(q))
		return r->pages[page].chunk == m->pages[page].chunk;
	const struct rank_memory *giver = sharing_giver(r, page);
	return giver && giver->pages[page].chunk == m->pages[page].chunk;
}

/* True if all other ranks that refer to the chunk can release it. */
static bool all_give(const struct memory_request *q, const struct chunk *c, uint32_t page)
{
	const struct device_memory *d = q->memory->device;
	for (uint32_t i = 0; i < d->count; i++) {
		const struct rank_memory *m = d->all[i];
		if (m != q->memory && m->pages[page].chunk == c && !m->gives &&
		    !m->pages[page].leaving)
			return false;
	}
	return true;
}

/* All ranks that can release the chunk do so. */
static void move_out(const struct device_memory *d, const struct chunk *c, uint32_t page)
{
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *m = d->all[i];
		if (m->gives && m->pages[page].chunk == c && !m->pages[page].leaving)
			move_add(m, page, MOVE_OUT);
	}
}

/* Swaps out pages whose chunk then becomes free: chunks with one remaining reference, or
 * (`several`) chunks that several ranks refer to. */
static void take_chunks(const struct memory_request *q, int64_t needed, bool several)
{
	struct device_memory *d = q->memory->device;
	struct rank_memory *m;
	forget_chosen(d);
	while (chunks_available(d) < needed && (m = choose_victim(d)))
		for (uint32_t i = 0; i < m->live_count && chunks_available(d) < needed; i++) {
			uint32_t page = m->live[i];
			const struct chunk *c = m->pages[page].chunk;
			if (!c || m->pages[page].leaving || would_free_nothing(q, m, page) ||
			    (c->refs - c->leaving > 1) != several || !all_give(q, c, page))
				continue;
			move_out(d, c, page);
		}
}

/* If there are too few chunks for copies, the other ranks release pages that the requester wants to
 * own. */
static void take_references(const struct memory_request *q)
{
	struct rank_memory *m = q->memory;
	enum move_kind kind;
	for (uint32_t i = 0; i < m->live_count; i++) {
		uint32_t page = m->live[i];
		if (chunks_available(m->device) >= chunks_needed(q))
			return;
		const struct chunk *c = m->pages[page].chunk;
		if (needs_move(q, page, &kind) && all_give(q, c, page))
			move_out(m->device, c, page);
	}
}

/* Cancels all prefetches that have begun: their promised chunks are free again. */
static void stop_prefetching(const struct device_memory *d)
{
	for (uint32_t i = 0; i < d->count; i++)
		if (d->all[i]->request.state == REQUEST_ACTIVE && is_prefetching(d->all[i]))
			memory_cancel(d->all[i]);
}

/* True if the request can begin. If false, pages that were found for it are leaving
 * nevertheless. */
static bool make_chunks(struct memory_request *q)
{
	struct device_memory *d = q->memory->device;
	bool spare = q->purpose == PURPOSE_PREFETCH;
	int64_t needed = chunks_needed(q);
	if (chunks_available(d) >= needed)
		return true;
	if (!spare)
		stop_prefetching(d);
	if (makes_resident(q) && (q->result = memory_merge(q->memory)))
		return true; /* it has failed */
	for (uint32_t i = 0; i < d->count; i++) {
		memory_sweep(d->all[i]);
		if (d->all[i] != q->memory && !(spare && d->all[i] == d->active))
			blank_release(d->all[i]);
		d->all[i]->gives = can_yield(q, d->all[i]);
	}
	take_chunks(q, needed, false);
	take_chunks(q, needed, true);
	if (q->purpose == PURPOSE_COPY && chunks_available(d) < needed)
		take_references(q);
	return spare || chunks_available(d) >= chunks_needed(q);
}

/* ---- service ---- */

/* For a request without moves in progress: finishes it if it is complete or impossible. */
static bool finish_if_over(struct memory_request *q)
{
	const struct device_memory *d = q->memory->device;
	if (q->result)
		finish_request(q, q->result);
	else if (request_fulfilled(q))
		finish_request(q, CU_OK);
	else if (q->purpose != PURPOSE_SAVE &&
		 q->memory->live_count - q->memory->dying > d->total - d->unusable)
		finish_request(q, CU_OUT_OF_MEMORY);
	return !q->state;
}

/* Does what needs no move: shares another rank's page, or opens a page of the rank's own. */
static bool serve_without_move(struct memory_request *q, uint32_t index)
{
	struct rank_memory *m = q->memory, *giver = NULL;
	struct page *page = &m->pages[index];
	if (makes_resident(q)) {
		giver = sharing_giver(m, index);
		if (giver)
			q->result = sharing_take(m, giver, index);
		if (giver && is_prefetching(m))
			count_prefetched(m);
		return giver;
	}
	if (q->purpose != PURPOSE_COPY || page->chunk->refs > 1)
		return false;
	q->result = page_open(m, index, false);
	sharing_copied(m); /* a kernel may have written there first */
	page->write_pending = !q->result;
	return true;
}

/* A copy need not wait for submitted work if the device can replace a mapping beneath it, because
 * that work only reads write-protected pages. It does wait if a rank has the page open, because the
 * page is then being written for this rank too, and if a work may write anywhere, because its
 * writes must be detected. */
static bool copies_while_running(const struct memory_request *q)
{
	const struct rank_memory *m = q->memory;
	const struct device_memory *d = m->device;
	enum move_kind kind;
	if (q->purpose != PURPOSE_COPY || !d->hal->space_own || m->fenced)
		return false;
	for (uint32_t i = 0; i < m->live_count; i++)
		for (uint32_t n = 0; needs_move(q, m->live[i], &kind) && n < d->count; n++) {
			const struct page *page = &d->all[n]->pages[m->live[i]];
			if (page->open && page->chunk == m->pages[m->live[i]].chunk)
				return false;
		}
	return true;
}

bool memory_copies_while_running(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	return copies_while_running(&(struct memory_request){
		.purpose = PURPOSE_COPY, .addr = addr, .bytes = bytes, .memory = m});
}

/* Work that runs was submitted before, and does not know the new pages. There is a chunk for each,
 * so no other rank has to give any. */
bool memory_grows(const struct rank_memory *m)
{
	if (!m->device->hal->maps_beneath || m->device->shares || !memory_has_chunks(m, m->missing))
		return false;
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct page *page = &m->pages[m->live[i]];
		if (!page->chunk && (page->common || page->in_image))
			return false;
	}
	return m->missing != 0;
}

static bool maps_while_running(const struct memory_request *q)
{
	return q->purpose == PURPOSE_ACTIVATE && memory_grows(q->memory);
}

/* False: no part of it could be done. */
static bool begin_request(struct memory_request *q)
{
	struct rank_memory *m = q->memory;
	enum move_kind kind;
	bool any = false;
	for (uint32_t i = 0; i < m->live_count && !q->result; i++)
		if (needs_move(q, m->live[i], &kind))
			any |= serve_without_move(q, m->live[i]);
	for (uint32_t i = 0; i < m->live_count && !q->result; i++)
		if (needs_move(q, m->live[i], &kind) &&
		    ((is_prefetching(m) && chunks_available(m->device) < 1) ||
		     !move_add(m, m->live[i], kind)))
			break; /* no free capacity, or host memory is short */
	if (memory_moving(m))
		q->state = REQUEST_ACTIVE;
	return any || memory_moving(m) || q->result;
}

static bool saves_and_stays(const struct memory_request *q)
{
	return q->state && q->purpose == PURPOSE_SAVE && q->stay;
}

/* True while another rank of the group is being saved: afterwards this rank may need nothing. */
static bool comes_later(const struct memory_request *q)
{
	const struct device_memory *d = q->memory->device;
	for (uint32_t i = 0; i < d->count && saves_and_stays(q); i++) {
		const struct rank_memory *m = d->all[i];
		if (m != q->memory && m->group == q->memory->group &&
		    saves_and_stays(&m->request) && memory_moving(m))
			return true;
	}
	return false;
}

/* Ends or begins the first possible request; one at a time, because its callback may make a new
 * request. False: there was none. */
static bool serve_one(struct device_memory *d)
{
	bool chunks_are_short = false;
	for (struct memory_request *q = d->requests; q; q = q->next) {
		if (q->state == REQUEST_ACTIVE && !memory_moving(q->memory)) {
			q->state = REQUEST_WAITING;
			if (is_prefetching(q->memory)) {
				finish_request(q, q->result); /* with the pages that have come in */
				return true;
			}
			if (finish_if_over(q))
				return true;
		}
	}
	for (struct memory_request *q = d->requests; q; q = q->next) {
		struct rank_memory *m = q->memory;
		if (memory_moving(m) || comes_later(q) ||
		    (q->purpose == PURPOSE_SAVE && m->inflight))
			continue;
		memory_sweep(m);
		if (finish_if_over(q))
			return true;
		if (m->inflight && !copies_while_running(q) && !maps_while_running(q))
			continue;
		bool takes = q->purpose != PURPOSE_SAVE;
		if (takes && chunks_are_short)
			continue;
		if (takes && !make_chunks(q)) {
			chunks_are_short = true;
			continue;
		}
		if (begin_request(q))
			return true;
		if (is_prefetching(m)) {
			finish_request(q, CU_OK);
			return true;
		}
	}
	return false;
}

bool memory_turn(struct device_memory *d)
{
	if (d->fresh)
		d->progress |= copies_turn(d);
	if (d->requests || d->moving)
		do
			d->progress |= moves_pump(d);
		while (serve_one(d));
	for (uint32_t i = 0; i < d->count; i++)
		d->progress |= moves_forget_saved(d->all[i]);
	bool changed = d->progress;
	d->progress = false;
	return changed;
}
