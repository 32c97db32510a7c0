/* request.c: requests for a rank's memory; the order in which they are served; who makes room.
 * The rule and why it cannot lock up stand in memory.h. */
#include "memory.h"

static void finish(struct memory_request *q, int result)
{
	struct device_memory *d = q->memory->device;
	struct memory_request **at = &d->requests;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	q->state = REQUEST_NONE;
	d->progress = true;
	if (q->over)
		q->over(q->arg, q->purpose, result);
}

static void enqueue(struct memory_request *q)
{
	struct memory_request **at = &q->memory->device->requests;
	while (*at && (*at)->purpose <= q->purpose)
		at = &(*at)->next;
	q->next = *at;
	*at = q;
}

bool memory_ask(struct rank_memory *m, const struct memory_request *wanted)
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
		return false; /* something of it is under way */
	*q = *wanted;
	q->state = REQUEST_WAITING;
	q->result = CU_OK;
	q->memory = m;
	enqueue(q);
	m->device->progress = true;
	return true;
}

void memory_cancel(struct rank_memory *m)
{
	struct memory_request *q = &m->request;
	if (!q->state)
		return;
	if (q->state == REQUEST_BEGUN) {
		q->result = MEMORY_CANCELLED;
		moves_drop(m);
		if (memory_moving(m))
			return;
	}
	finish(q, MEMORY_CANCELLED);
}

void memory_changes(struct rank_memory *m)
{
	if (m->request.state && m->request.purpose == PURPOSE_SAVE && m->request.stay)
		memory_cancel(m);
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
	m->last_active = ++m->device->turns;
	m->device->active = m;
}

/* ---- what it takes ---- */

/* Of the pages that a COPY is about, does this one need a chunk? */
static bool shared(const struct memory_request *q, uint32_t page)
{
	uint64_t first = (q->addr - RF_DEV_BASE) / RF_CHUNK_BYTES;
	uint64_t last = (q->addr + q->bytes - 1 - RF_DEV_BASE) / RF_CHUNK_BYTES;
	const struct chunk *c = q->memory->pages[page].chunk;
	return q->bytes && page >= first && page <= last && c && c->refs > 1;
}

/* The move that a live page needs for the request. */
static bool needs(const struct memory_request *q, uint32_t index, enum move_kind *kind)
{
	const struct page *page = &q->memory->pages[index];
	switch (q->purpose) {
	case PURPOSE_SAVE:
		*kind = q->stay ? MOVE_SAVE : MOVE_OUT;
		return page->chunk && !(q->stay && page->saved);
	case PURPOSE_COPY: *kind = MOVE_OWN; return shared(q, index);
	default: *kind = MOVE_IN; return !page->chunk;
	}
}

static int64_t moves_needed(const struct memory_request *q)
{
	const struct rank_memory *m = q->memory;
	enum move_kind kind;
	int64_t count = 0;
	if (q->purpose == PURPOSE_ACTIVATE || q->purpose == PURPOSE_PREFETCH)
		return m->missing; /* looked at in each turn */
	for (uint32_t i = 0; i < m->live_count; i++)
		count += needs(q, m->live[i], &kind);
	return count;
}

/* ---- room ---- */

static struct rank_memory *victim(const struct memory_request *q)
{
	const struct device_memory *d = q->memory->device;
	struct rank_memory *oldest = NULL;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *m = d->all[i];
		if (m == q->memory || m->inflight || memory_moving(m) ||
		    m->live_count == m->missing)
			continue;
		if (q->purpose == PURPOSE_PREFETCH && (m == d->active || m->request.state))
			continue;
		if (!oldest || m->last_active < oldest->last_active)
			oldest = m;
	}
	return oldest;
}

/* False: not yet. What was found on the way is leaving all the same. */
static bool make_chunks(const struct memory_request *q, int64_t needed)
{
	struct device_memory *d = q->memory->device;
	if (chunk_room(d) >= needed)
		return true;
	for (uint32_t i = 0; i < d->count; i++)
		memory_sweep(d->all[i]);
	while (chunk_room(d) < needed) {
		struct rank_memory *m = victim(q);
		if (!m)
			return false;
		for (uint32_t i = 0; i < m->live_count && chunk_room(d) < needed; i++)
			if (m->pages[m->live[i]].chunk)
				move_add(m, m->live[i], MOVE_OUT);
		if (!memory_moving(m))
			return false; /* host memory is short: nothing could be listed */
	}
	return true;
}

/* ---- service ---- */

/* A request of which nothing moves: is it over? */
static bool over(struct memory_request *q, int64_t needed)
{
	const struct device_memory *d = q->memory->device;
	if (q->result)
		finish(q, q->result);
	else if (!needed)
		finish(q, CU_OK);
	else if (q->purpose != PURPOSE_SAVE && q->memory->live_count > d->total - d->lost)
		finish(q, CU_OUT_OF_MEMORY);
	return !q->state;
}

static bool begin(struct memory_request *q)
{
	struct rank_memory *m = q->memory;
	enum move_kind kind;
	for (uint32_t i = 0; i < m->live_count; i++)
		if (needs(q, m->live[i], &kind) && !move_add(m, m->live[i], kind))
			break; /* host memory is short: the rest another time */
	if (memory_moving(m))
		q->state = REQUEST_BEGUN;
	return memory_moving(m);
}

/* The first that can be ended or begun, so that its callback may request anew. False: none. */
static bool serve_one(struct device_memory *d)
{
	bool room_is_short = false;
	for (struct memory_request *q = d->requests; q; q = q->next) {
		if (q->state == REQUEST_BEGUN && !memory_moving(q->memory)) {
			q->state = REQUEST_WAITING;
			if (over(q, moves_needed(q)))
				return true;
		}
	}
	for (struct memory_request *q = d->requests; q; q = q->next) {
		struct rank_memory *m = q->memory;
		if (memory_moving(m) || (q->purpose == PURPOSE_SAVE && m->inflight))
			continue;
		memory_sweep(m);
		int64_t needed = moves_needed(q);
		if (over(q, needed))
			return true;
		if (m->inflight)
			continue;
		bool takes = q->purpose != PURPOSE_SAVE;
		if (takes && room_is_short)
			continue;
		if (takes && !make_chunks(q, needed)) {
			room_is_short = true;
			continue;
		}
		if (begin(q))
			return true;
	}
	return false;
}

bool memory_turn(struct device_memory *d)
{
	if (d->requests || d->moving)
		do
			d->progress |= moves_pump(d);
		while (serve_one(d));
	bool changed = d->progress;
	d->progress = false;
	return changed;
}
