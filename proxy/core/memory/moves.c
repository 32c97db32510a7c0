/* moves.c: pages on their way between the device and the images: room, victims, swap (memory.h).
 * Moves are one list at a time, in order, on a queue of their own. */
#include "memory.h"

static bool move_add(struct device_memory *d, struct rank_memory *m, uint32_t page, bool out,
		     bool stay)
{
	if (!make_room((void **)&d->moves, d->move_count, 1, &d->move_room, sizeof *d->moves))
		return false;
	d->moves[d->move_count++] = (struct move){m, page, out, stay, false, 0};
	m->moving = true;
	return true;
}

static struct rank_memory *victim(const struct rank_memory *target)
{
	const struct device_memory *d = target->device;
	struct rank_memory *oldest = NULL;
	for (uint32_t i = 0; i < d->count; i++) {
		struct rank_memory *m = d->all[i];
		if (m == target || m->inflight || m->moving || m->live_count == m->missing)
			continue;
		if (!oldest || m->last_active < oldest->last_active)
			oldest = m;
	}
	return oldest;
}

/* Make it resident. Does nothing if room cannot be made yet: ask again. */
void memory_begin_activate(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	if (d->move_count || m->inflight)
		return;
	for (uint32_t i = 0; i < d->count; i++)
		memory_sweep(d->all[i]);
	uint64_t room = d->chunks_total - d->chunks_used;
	while (room < m->missing) {
		struct rank_memory *v = victim(m);
		if (!v)
			break;
		for (uint32_t i = 0; i < v->live_count && room < m->missing; i++)
			if (v->pages[v->live[i]].hal && move_add(d, v, v->live[i], true, false))
				room++;
		if (!v->moving)
			break; /* host memory is short: nothing could be listed */
	}
	/* What was listed goes out even if it is not enough yet; the next try finds the rest. */
	if (room >= m->missing)
		for (uint32_t i = 0; i < m->live_count; i++)
			if (!m->pages[m->live[i]].hal)
				move_add(d, m, m->live[i], false, false);
	memory_move(d);
}

bool memory_saved(const struct rank_memory *m)
{
	for (uint32_t i = 0; i < m->live_count; i++)
		if (m->pages[m->live[i]].hal && !m->pages[m->live[i]].saved)
			return false;
	return true;
}

void memory_changes(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	for (uint32_t i = 0; i < m->live_count; i++) {
		struct page *page = &m->pages[m->live[i]];
		if (page->saved && m->alone) /* nobody to make room for: no second copy */
			image_punch(m, m->live[i]);
		page->saved = false;
	}
	for (uint32_t i = 0; i < d->move_count; i++)
		d->moves[i].changes |= d->moves[i].memory == m;
}

void memory_begin_save(struct rank_memory *m, bool stay)
{
	memory_sweep(m);
	for (uint32_t i = 0; i < m->live_count; i++) {
		const struct page *page = &m->pages[m->live[i]];
		if (page->hal && !(stay && page->saved))
			move_add(m->device, m, m->live[i], true, stay);
	}
}

void memory_stop(struct rank_memory *m) { m->stopped = true; }

/* False when it has to wait: for room in the queue, or for a chunk that is on its way out. */
static bool move_submit(struct device_memory *d, struct move *v)
{
	struct rank_memory *m = v->memory;
	struct page *page = &m->pages[v->page];
	uint8_t *host = m->image + v->page * RF_CHUNK_BYTES;
	struct hal_ref device = {m->space, page_addr(v->page)};
	struct hal_ref image = {NULL, (uint64_t)(uintptr_t)host};
	if (v->out && page->saved)
		return true; /* it is there already */
	if (!d->hal->room(d->swap_stream))
		return false;
	if (!v->out) {
		int error = m->stopped ? 0 : page_map_fresh(m, v->page);
		if (error && d->move_done < d->move_submitted)
			return false;
		if (error) {
			m->error = error;
			m->stopped = true;
		}
		if (!page->hal || !page->in_image)
			return true; /* nothing of a rank with an error runs: it stays where it is */
	}
	struct hal_work work = {.kind = HAL_COPY};
	work.copy.dst = v->out ? image : device;
	work.copy.src = v->out ? device : image;
	work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = RF_CHUNK_BYTES;
	work.copy.height = 1;
	v->hal_seq = d->hal->submit(d->swap_stream, &work);
	return true;
}

static void move_complete(struct device_memory *d, struct move *v)
{
	struct rank_memory *m = v->memory;
	if (v->out && v->stay) {
		m->pages[v->page].in_image = true;
		m->pages[v->page].saved = !v->changes;
	} else if (v->out) {
		page_give_back(m, v->page);
		m->pages[v->page].in_image = true;
		m->missing++;
		d->swapped_out += RF_CHUNK_BYTES;
	} else if (v->hal_seq) {
		d->swapped_in += RF_CHUNK_BYTES;
		if (m->alone) /* nobody to make room for: no second copy */
			image_punch(m, v->page);
	}
}

void memory_move(struct device_memory *d)
{
	if (!d->move_count)
		return;
	uint64_t completed = d->hal->completed(d->swap_stream);
	for (;;) {
		while (d->move_done < d->move_submitted &&
		       d->moves[d->move_done].hal_seq <= completed) {
			move_complete(d, &d->moves[d->move_done++]);
			d->progress = true;
		}
		if (d->move_submitted == d->move_count ||
		    !move_submit(d, &d->moves[d->move_submitted]))
			break;
		d->move_submitted++;
	}
	if (d->move_done < d->move_count)
		return;
	for (uint32_t i = 0; i < d->count; i++)
		d->all[i]->moving = false;
	d->move_count = d->move_submitted = d->move_done = 0;
	d->progress = true;
}
