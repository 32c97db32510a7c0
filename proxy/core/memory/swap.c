/* swap.c: pages that are moving between the device and the images (memory.h).
 *
 * Each rank's moves are a list in one direction, in order. The lists of all ranks take turns on two
 * queues of the device, one per direction. A chunk for a move inwards is promised when the move is
 * listed. It is taken from the device when the move is submitted, which may have to wait for a
 * chunk that is leaving. If a promised chunk becomes unusable meanwhile, the rest of the list is
 * dropped, and the request begins again with the chunks that remain.
 *
 * A page that is on the host already is not copied out, and a chunk that several ranks release is
 * copied once. The outward queue is in order, so a copy that is still in progress is as good as a
 * complete one for every move that waits for the same place in the queue.
 */
#include <inttypes.h>
#include <stdio.h>

#include "memory_parts.h"

static struct hal_ref in_space(struct hal_space *space, uint64_t addr)
{
	return (struct hal_ref){space, addr};
}

static struct hal_ref on_host(const uint8_t *bytes)
{
	return (struct hal_ref){NULL, (uint64_t)(uintptr_t)bytes};
}

static uint64_t submit_copy(struct device_memory *d, struct hal_stream *queue, struct hal_ref dst,
			    struct hal_ref src)
{
	struct hal_work work = {.kind = HAL_COPY};
	work.copy.dst = dst;
	work.copy.src = src;
	work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = RF_CHUNK_BYTES;
	work.copy.height = 1;
	return d->hal->submit(queue, &work);
}

/* A rank that wants its own chunk for a page needs no new one if all other ranks release theirs. */
static bool needs_chunk(const struct page *page, enum move_kind kind)
{
	return kind == MOVE_IN ||
	       (kind == MOVE_OWN && page->chunk->refs - page->chunk->leaving > 1);
}

bool move_add(struct rank_memory *m, uint32_t page, enum move_kind kind)
{
	struct device_memory *d = m->device;
	INVARIANT(page < HEAP_PAGES, "a page that moves is in the heap");
	if (!grow_array((void **)&m->moves, m->move_count, 1, &m->move_capacity, sizeof *m->moves))
		return false;
	bool promised = needs_chunk(&m->pages[page], kind);
	d->moving += m->move_count == 0;
	m->moves[m->move_count] = (struct move){.page = page, .kind = kind, .promised = promised};
	d->reserved += promised;
	if (kind == MOVE_OUT)
		page_leaves(m, page);
	m->move_count++;
	return true;
}

static void finish_moves(struct rank_memory *m)
{
	if (!m->move_count || m->move_done < m->move_count)
		return;
	INVARIANT(m->move_submitted == m->move_count && m->device->moving,
		  "moves that are done were submitted");
	m->move_count = m->move_submitted = m->move_done = 0;
	m->device->moving--;
}

/* Moves outwards stay in the list, because other requests may count on the capacity that they
 * free. */
void moves_drop(struct rank_memory *m)
{
	if (!m->move_count)
		return;
	for (; m->move_count > m->move_submitted; m->move_count--) {
		if (m->moves[m->move_count - 1].kind == MOVE_OUT)
			break;
		INVARIANT(m->device->reserved >= m->moves[m->move_count - 1].promised,
			  "a chunk that was promised to a move is reserved");
		m->device->reserved -= m->moves[m->move_count - 1].promised;
	}
	if (!m->move_count)
		m->device->moving--;
	finish_moves(m);
}

/* ---- submission ---- */

/* Maximum per turn of submitted moves, or of pages dropped from an image: each may take the system
 * as long as a kernel. */
#define IN_A_TURN 8u
/* concurrent moves of a prefetch: a request that needs capacity waits for these */
#define PREFETCHING 2u

enum outcome { WAITS, SUBMITTED, ENDED }; /* ENDED: the rest of the list is dropped */

static enum outcome fail_move(struct rank_memory *m, int error)
{
	if (!m->request.result)
		m->request.result = error;
	moves_drop(m);
	return ENDED;
}

/* Takes one of the promised chunks; not blank: all of it will be overwritten. */
static enum outcome take_chunk(struct rank_memory *m, bool blank, struct chunk **c)
{
	struct device_memory *d = m->device;
	int error = d->used < d->total ? chunk_new(d, blank, c) : CU_OUT_OF_MEMORY;
	if (!error) {
		INVARIANT(d->reserved, "a chunk that a move takes was reserved");
		d->reserved--;
		return SUBMITTED;
	}
	for (uint32_t i = 0; i < d->count; i++) /* the device may have taken chunks meanwhile */
		sharing_copied(d->all[i]);
	if (d->leaving || (d->used < d->total && error == CU_NOT_READY))
		return WAITS;
	return fail_move(m, d->used < d->total ? error : CU_OK);
}

static enum outcome submit_in(struct rank_memory *m, struct move *v)
{
	struct device_memory *d = m->device;
	const struct page *page = &m->pages[v->page];
	const bool blank = !page->common && !page->in_image;
	struct chunk *c;
	enum outcome taken = take_chunk(m, blank, &c);
	if (taken != SUBMITTED)
		return taken;
	m->move_submitted++;
	copies_named(m, v->page);
	const uint8_t *from = blank ? NULL : page_on_host(m, v->page, false);
	int error = page_map(m, v->page, c);
	if (error) {
		chunk_release(d, c);
		return fail_move(m, error);
	}
	if (from)
		v->hal_seq = submit_copy(d, d->in, in_space(m->space, page_addr(v->page)),
					 on_host(from));
	return SUBMITTED;
}

/* Opens a page that the other ranks have released or are about to release. */
static enum outcome submit_open(struct rank_memory *m, struct move *v)
{
	if (m->pages[v->page].chunk->refs > 1)
		return WAITS;
	INVARIANT(m->device->reserved >= v->promised,
		  "a chunk that is not needed any more was reserved");
	m->device->reserved -= v->promised;
	m->move_submitted++;
	int error = page_open(m, v->page, false);
	sharing_copied(m); /* a kernel may have written there first */
	return error ? fail_move(m, error) : SUBMITTED;
}

/* The new chunk is filled through a space that no rank sees; zeros need not be written. */
static enum outcome submit_own(struct rank_memory *m, struct move *v)
{
	struct device_memory *d = m->device;
	if (!v->promised || m->pages[v->page].chunk->refs == 1)
		return submit_open(m, v);
	bool zeros = versions_zeros(&m->versions, page_addr(v->page), RF_CHUNK_BYTES);
	int error = d->scratch || zeros ? CU_OK : d->hal->space_create(d->device, &d->scratch);
	if (error)
		return fail_move(m, error);
	struct chunk *c;
	enum outcome taken = take_chunk(m, zeros, &c);
	if (taken != SUBMITTED)
		return taken;
	m->move_submitted++;
	d->copies++;
	m->counted.copies++;
	if (!m->request.once)
		sharing_saved_nothing(m, v->page);
	v->chunk = c;
	v->from = m->pages[v->page].chunk;
	if (zeros)
		return SUBMITTED;
	uint64_t at = page_addr(chunk_number(d, c));
	error = d->hal->space_map(d->scratch, at, chunk_number(d, c), true);
	if (error) {
		v->chunk = NULL;
		chunk_release(d, c);
		return fail_move(m, error);
	}
	v->hal_seq = submit_copy(d, d->in, in_space(d->scratch, at),
				 in_space(m->space, page_addr(v->page)));
	return SUBMITTED;
}

/* Finds the copy that others refer to, or makes one if other ranks are releasing the chunk too. */
static struct copy *common_copy(struct rank_memory *m, uint32_t index, bool *made)
{
	struct copy *c = NULL;
	*made = false;
	if (m->whole || !copies_trusted(m))
		return NULL;
	c = copies_find(m, index);
	if (!c && m->pages[index].chunk->leaving > 1) {
		c = copy_new(m->device, *content_digest(m, index));
		*made = c != NULL;
	}
	return c;
}

static enum outcome submit_out(struct rank_memory *m, struct move *v)
{
	struct device_memory *d = m->device;
	const struct page *page = &m->pages[v->page];
	struct hal_ref from = in_space(m->space, page_addr(v->page));
	struct copy *c = NULL;
	bool made;
	if (v->kind == MOVE_HOME)
		from = on_host(page->copy->bytes);
	else if (copies_image_has(m, v->page) || page_blank(m, v->page)) {
		m->move_submitted++;
		return SUBMITTED;
	}
	if (!d->hal->available(d->out))
		return WAITS;
	m->move_submitted++;
	v->copied = true;
	if (v->kind == MOVE_OUT && (c = common_copy(m, v->page, &made))) {
		v->common = true;
		v->copied = made;
		copy_refer(m, v->page, c);
	}
	if (v->copied && !c) {
		image_changes(m, v->page);
		image_ready(m, v->page);
	}
	if (v->copied)
		v->hal_seq = submit_copy(d, d->out, on_host(c ? c->bytes : image_at(m, v->page)),
					 from);
	if (c && v->copied)
		c->hal_seq = v->hal_seq;
	else if (c)
		v->hal_seq = c->hal_seq;
	return SUBMITTED;
}

static enum outcome submit_move(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	struct move *v = &m->moves[m->move_submitted];
	INVARIANT(m->move_submitted < m->move_count && m->move_done <= m->move_submitted,
		  "moves are submitted and completed in their order");
	if (!move_inwards(v))
		return submit_out(m, v);
	if (!d->hal->available(d->in) ||
	    (is_prefetching(m) && m->move_submitted - m->move_done >= PREFETCHING))
		return WAITS;
	return v->kind == MOVE_IN ? submit_in(m, v) : submit_own(m, v);
}

/* ---- completion ---- */

static void count_swapped(struct rank_memory *m, uint32_t page, bool in)
{
	struct device_memory *d = m->device;
	*(in ? &d->swapped_in : &d->swapped_out) += RF_CHUNK_BYTES;
	if (sharing_alike(m, page))
		d->swapped_alike += RF_CHUNK_BYTES;
	if (d->moves_fd)
		dprintf(d->moves_fd, "%s %" PRIu32 " %#" PRIx64 "\n", in ? "in" : "out", m->rank,
			page_addr(page));
}

static void complete_in(struct rank_memory *m, const struct move *v)
{
	if (is_prefetching(m))
		count_prefetched(m);
	if (!v->hal_seq)
		return;
	count_swapped(m, v->page, true);
	if (!m->alone)
		return;
	copy_forget(m, v->page); /* nothing needs the chunk: no second copy */
	if (m->pages[v->page].in_image)
		image_punch(m, v->page);
}

static void complete_out(struct rank_memory *m, const struct move *v)
{
	struct device_memory *d = m->device;
	const struct page *page = &m->pages[v->page];
	if (page_blank(m, v->page)) { /* it may have been invalidated during the move */
		page_unmap(m, v->page);
		copy_forget(m, v->page);
		if (v->copied || page->in_image)
			image_punch(m, v->page);
		return;
	}
	if (v->copied)
		count_swapped(m, v->page, false);
	else if (!m->whole) {
		d->not_swapped += RF_CHUNK_BYTES;
		m->counted.not_swapped += RF_CHUNK_BYTES;
	}
	page_unmap(m, v->page);
	if (v->common) {
		page_common(m, v->page);
		return;
	}
	copy_forget(m, v->page);
	if (v->copied)
		image_filled(m, v->page);
}

static void complete_save(struct rank_memory *m, const struct move *v)
{
	struct page *page = &m->pages[v->page];
	if (v->copied)
		image_filled(m, v->page);
	page->saved = !v->changes;
	copies_named(m, v->page);
}

static void complete_home(struct rank_memory *m, const struct move *v)
{
	copy_forget(m, v->page);
	image_filled(m, v->page);
}

/* CU_NOT_READY: a kernel has written there meanwhile, so the page has its own chunk, and what was
 * copied is outdated. */
static int replace_mapping(struct rank_memory *m, const struct move *v)
{
	if (m->pages[v->page].chunk != v->from)
		return CU_NOT_READY;
	if (!m->inflight)
		return page_remap(m, v->page, v->chunk);
	int error = page_own(m, v->page, v->chunk);
	if (error == CU_NOT_READY)
		sharing_copied(m);
	return error;
}

static void complete_own(struct rank_memory *m, const struct move *v)
{
	struct device_memory *d = m->device;
	if (v->chunk && v->hal_seq)
		v->chunk->unusable |= d->hal->space_unmap(d->scratch,
							  page_addr(chunk_number(d, v->chunk))) !=
				      0;
	int error = v->chunk ? replace_mapping(m, v) : CU_OK;
	if (error) {
		chunk_release(d, v->chunk);
		if (error != CU_NOT_READY)
			fail_move(m, error);
	}
	m->pages[v->page].write_pending = m->pages[v->page].chunk &&
					  !m->pages[v->page].write_protected;
}

static void complete_move(struct rank_memory *m, const struct move *v)
{
	switch (v->kind) {
	case MOVE_OUT: complete_out(m, v); break;
	case MOVE_SAVE: complete_save(m, v); break;
	case MOVE_HOME: complete_home(m, v); break;
	case MOVE_IN: complete_in(m, v); break;
	case MOVE_OWN: complete_own(m, v); break;
	}
}

static bool complete_all(struct device_memory *d)
{
	uint64_t in = d->hal->completed(d->in), out = d->hal->completed(d->out);
	bool any = false;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *m = d->all[i];
		while (m->move_done < m->move_submitted) {
			struct move *v = &m->moves[m->move_done];
			if (v->hal_seq > (move_inwards(v) ? in : out))
				break;
			m->move_done++;
			complete_move(m, v);
			any = true;
		}
		finish_moves(m);
	}
	return any;
}

bool moves_pump(struct device_memory *d)
{
	uint32_t submitted = 0;
	bool any = complete_all(d), more = true;
	while (more && submitted < IN_A_TURN) {
		more = false;
		for (uint32_t i = 0; i < d->count; i++)
			if (d->all[i]->move_submitted < d->all[i]->move_count &&
			    submit_move(d->all[i]) != WAITS) {
				more = true;
				submitted++;
			}
	}
	return complete_all(d) || any || submitted;
}

/* ---- saved content ---- */

bool move_saves(struct rank_memory *m, uint32_t index, bool stay, enum move_kind *kind)
{
	const struct page *page = &m->pages[index];
	*kind = page->common ? MOVE_HOME : stay ? MOVE_SAVE : MOVE_OUT;
	if (!stay)
		return page->common || page->chunk;
	return (page->common || (page->chunk && !page->saved)) && !memory_image_owner(m, index);
}

bool memory_saved(struct rank_memory *m, bool stay)
{
	enum move_kind kind;
	for (uint32_t i = 0; i < m->live_count; i++)
		if (move_saves(m, m->live[i], stay, &kind))
			return false;
	return true;
}

void moves_are_of_before(struct rank_memory *m)
{
	for (uint32_t i = 0; i < m->live_count; i++)
		m->pages[m->live[i]].saved = false;
	m->unlooked = m->live_count;
	for (uint32_t i = 0; i < m->move_count; i++)
		m->moves[i].changes = true;
}

/* If the rank is alone on its device, drops the image's second copy of pages that have changed
 * since they were saved. A few pages per turn, because each may take the system as long as a
 * kernel. */
bool moves_forget_saved(struct rank_memory *m)
{
	uint32_t most = IN_A_TURN;
	if (!m->alone)
		m->unlooked = 0;
	if (!m->unlooked || m->request.state || memory_moving(m) || image_hold_active(m))
		return false; /* the image is being saved or copied for a snapshot */
	while (m->unlooked && most) {
		if (--m->unlooked >= m->live_count)
			continue; /* freed since */
		uint32_t index = m->live[m->unlooked];
		const struct page *page = &m->pages[index];
		if (!page->chunk || !page->in_image || page->saved)
			continue;
		image_punch(m, index);
		most--;
	}
	return true;
}
