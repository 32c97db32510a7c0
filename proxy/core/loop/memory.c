/* memory.c: a rank's device memory: buffers, chunks, residency and swap; and the transfers of
 * collectives, which reach any rank's memory, resident or not.
 *
 * A rank's heap is cut into chunks of RF_CHUNK_BYTES. A live chunk (some buffer touches it) is
 * resident (mapped in the rank's space) or not; what is not resident lies in the rank's image at
 * the same offset, or reads as zero. Only kernels need residency. The image belongs to the
 * launcher: so swapping out all that is left, and handing the rank over, are the same act.
 *
 * Rules:
 *  - chunks of a rank move only while no submitted work uses its memory (rank.inflight == 0), and
 *    nothing is submitted while they move (rank.moving);
 *  - moves are one list at a time, in order, on a queue of their own;
 *  - a chunk that nobody needs any more stays mapped until no submitted work uses the rank's memory
 *    (rank.dying counts those); nobody gets it anew before: it would not read as zero;
 *  - nothing here blocks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static uint64_t chunk_addr(uint32_t chunk) { return RF_DEV_BASE + chunk * RF_CHUNK_BYTES; }

int memory_open(struct rank *r, int image_fd)
{
	struct stat info;
	if (fstat(image_fd, &info) || (uint64_t)info.st_size < RF_WINDOW_BYTES)
		return CU_INVALID_VALUE;
	r->image_fd = fcntl(image_fd, F_DUPFD_CLOEXEC, 3);
	r->image = mmap(NULL, RF_WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			r->image_fd, 0);
	r->chunks = mmap(NULL, HEAP_CHUNKS * sizeof *r->chunks, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->image_fd < 0 || r->image == MAP_FAILED || r->chunks == MAP_FAILED) {
		r->image = r->image == MAP_FAILED ? NULL : r->image;
		r->chunks = r->chunks == MAP_FAILED ? NULL : r->chunks;
		return CU_OUT_OF_MEMORY;
	}
	int error = r->proxy->hal->space_create(r->proxy->device, &r->space);
	if (error)
		return error;
	return r->proxy->hal->space_map_host(r->space, RF_PINNED_BASE(r->rank), r->channel_fd,
					     RF_OFF_PINNED, RF_PINNED_SLOT_BYTES);
}

static void chunk_give_back(struct rank *r, uint32_t index)
{
	struct proxy *p = r->proxy;
	struct chunk *c = &r->chunks[index];
	uint32_t physical = c->hal - 1;
	c->hal = 0;
	c->saved = false;
	if (p->hal->space_unmap(r->space, chunk_addr(index)))
		return; /* it is still mapped: nobody else may ever have it */
	p->hal->chunk_destroy(p->device, physical);
	p->chunks_used--;
}

static void image_punch(struct rank *r, uint32_t index)
{
	fallocate(r->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		  (off_t)(index * RF_CHUNK_BYTES), RF_CHUNK_BYTES);
	r->chunks[index].in_image = false;
}

bool memory_clear_image(struct rank *r)
{
	return !fallocate(r->image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  (off_t)RF_HEAP_BYTES);
}

void memory_close(struct rank *r)
{
	for (uint32_t i = 0; r->space && i < r->live_count; i++)
		if (r->chunks[r->live[i]].hal)
			chunk_give_back(r, r->live[i]);
	if (r->space)
		r->proxy->hal->space_destroy(r->space);
	if (r->image)
		munmap(r->image, RF_WINDOW_BYTES);
	if (r->chunks)
		munmap(r->chunks, HEAP_CHUNKS * sizeof *r->chunks);
	if (r->image_fd >= 0)
		close(r->image_fd);
	free(r->buffers);
	free(r->live);
	r->image_fd = -1;
}

/* ---- buffers ---- */

static uint32_t buffer_place(const struct rank *r, uint64_t addr)
{
	uint32_t low = 0, high = r->buffer_count;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (r->buffers[middle].addr < addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The live buffer that holds `addr`, or NULL. */
struct buffer *memory_find(struct rank *r, uint64_t addr)
{
	uint32_t i = buffer_place(r, addr + 1);
	if (!i)
		return NULL;
	struct buffer *b = &r->buffers[i - 1];
	return addr - b->addr < b->bytes ? b : NULL;
}

/* For `more` behind the `count` that are there. */
static bool make_room(void **array, uint64_t count, uint64_t more, uint32_t *room, size_t size)
{
	uint32_t bigger = *room ? *room : 64;
	if (count + more <= *room)
		return true;
	while (bigger < count + more)
		bigger *= 2;
	void *grown = realloc(*array, bigger * size);
	if (!grown)
		return false;
	*array = grown;
	*room = bigger;
	return true;
}

int memory_alloc(struct rank *r, const struct rf_alloc *a)
{
	uint64_t offset = a->addr - RF_DEV_BASE;
	uint64_t bytes = a->bytes ? a->bytes : 1;
	if (a->addr < RF_DEV_BASE || a->addr % RF_ALLOC_ALIGN || offset >= RF_HEAP_BYTES ||
	    bytes > RF_HEAP_BYTES - offset)
		return CU_INVALID_VALUE;
	uint32_t at = buffer_place(r, a->addr);
	if ((at < r->buffer_count && r->buffers[at].addr < a->addr + bytes) ||
	    (at > 0 && r->buffers[at - 1].addr + r->buffers[at - 1].bytes > a->addr))
		return CU_INVALID_VALUE; /* overlaps a live buffer */
	uint32_t first = (uint32_t)(offset / RF_CHUNK_BYTES);
	uint32_t last = (uint32_t)((offset + bytes - 1) / RF_CHUNK_BYTES);
	uint64_t fresh = 0;
	for (uint32_t c = first; c <= last; c++)
		fresh += r->chunks[c].refs == 0;
	if (r->live_count - r->dying + fresh > r->proxy->chunks_total)
		return CU_OUT_OF_MEMORY;
	if (!make_room((void **)&r->buffers, r->buffer_count, 1, &r->buffer_room,
		       sizeof *r->buffers) ||
	    !make_room((void **)&r->live, r->live_count, fresh, &r->live_room, sizeof *r->live))
		return CU_OUT_OF_MEMORY; /* before anything has changed */
	for (uint32_t c = first; c <= last; c++) {
		if (r->chunks[c].refs++)
			continue;
		r->live[r->live_count++] = c;
		r->missing++;
	}
	memmove(&r->buffers[at + 1], &r->buffers[at], (r->buffer_count - at) * sizeof *r->buffers);
	r->buffers[at] = (struct buffer){a->addr, bytes, a->call_site, a->stable, false};
	r->buffer_count++;
	return CU_OK;
}

/* Is a chunk of this range still mapped for work that began before it was freed? */
bool memory_dying(const struct rank *r, uint64_t addr, uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE, end = offset + (bytes ? bytes : 1);
	if (!r->dying || offset >= RF_HEAP_BYTES || end > RF_HEAP_BYTES || end < offset)
		return false;
	for (uint64_t c = offset / RF_CHUNK_BYTES; c <= (end - 1) / RF_CHUNK_BYTES; c++)
		if (!r->chunks[c].refs && r->chunks[c].hal)
			return true;
	return false;
}

/* The chunk at live[i] goes. */
static void chunk_forget(struct rank *r, uint32_t i)
{
	uint32_t c = r->live[i];
	if (r->chunks[c].hal)
		chunk_give_back(r, c);
	else
		r->missing--;
	if (r->chunks[c].in_image)
		image_punch(r, c);
	r->live[i] = r->live[--r->live_count];
}

void memory_sweep(struct rank *r)
{
	if (!r->dying || r->inflight || r->moving)
		return;
	for (uint32_t i = r->live_count; i > 0; i--)
		if (!r->chunks[r->live[i - 1]].refs)
			chunk_forget(r, i - 1);
	r->dying = 0;
	r->proxy->progress = true;
}

/* Only when all work that may use the buffer is over, and not while the rank moves. */
void memory_free(struct rank *r, uint64_t addr)
{
	uint32_t at = buffer_place(r, addr);
	if (at >= r->buffer_count || r->buffers[at].addr != addr)
		return;
	uint64_t offset = addr - RF_DEV_BASE, bytes = r->buffers[at].bytes;
	r->buffer_count--;
	memmove(&r->buffers[at], &r->buffers[at + 1], (r->buffer_count - at) * sizeof *r->buffers);
	uint32_t last = (uint32_t)((offset + bytes - 1) / RF_CHUNK_BYTES);
	for (uint32_t c = (uint32_t)(offset / RF_CHUNK_BYTES); c <= last; c++) {
		if (--r->chunks[c].refs)
			continue;
		if (r->chunks[c].hal) {
			r->dying++;
			continue;
		}
		for (uint32_t i = 0; i < r->live_count; i++)
			if (r->live[i] == c)
				chunk_forget(r, i);
	}
	memory_sweep(r);
}

static bool pinned(const struct rank *r, uint64_t addr, uint64_t bytes)
{
	uint64_t base = RF_PINNED_BASE(r->rank);
	return addr >= base && addr - base <= RF_PINNED_SLOT_BYTES &&
	       bytes <= RF_PINNED_SLOT_BYTES - (addr - base);
}

/* Does the rank own all of [addr, addr + bytes)? Chunks, not buffers: as real devices do. */
bool memory_valid(const struct rank *r, uint64_t addr, uint64_t bytes)
{
	if (pinned(r, addr, bytes))
		return true;
	uint64_t offset = addr - RF_DEV_BASE;
	if (addr < RF_DEV_BASE || offset >= RF_HEAP_BYTES || bytes > RF_HEAP_BYTES - offset)
		return false;
	if (!bytes)
		return true;
	for (uint64_t c = offset / RF_CHUNK_BYTES; c <= (offset + bytes - 1) / RF_CHUNK_BYTES; c++)
		if (!r->chunks[c].refs)
			return false;
	return true;
}

/* Where a valid range lies now: as many bytes as lie together, at most `bytes` and PIECE_BYTES. */
uint64_t memory_resolve(struct rank *r, uint64_t addr, uint64_t bytes, bool write,
			struct hal_ref *ref)
{
	*ref = (struct hal_ref){r->space, addr};
	if (bytes > PIECE_BYTES)
		bytes = PIECE_BYTES;
	if (pinned(r, addr, bytes) || !r->missing)
		return bytes;
	uint64_t offset = addr - RF_DEV_BASE, left = RF_CHUNK_BYTES - offset % RF_CHUNK_BYTES;
	struct chunk *c = &r->chunks[offset / RF_CHUNK_BYTES];
	if (!c->hal) {
		*ref = (struct hal_ref){NULL, (uint64_t)(uintptr_t)(r->image + offset)};
		c->in_image |= write;
	}
	return bytes < left ? bytes : left;
}

/* ---- moving chunks ---- */

static bool move_add(struct proxy *p, struct rank *r, uint32_t chunk, bool out, bool stay)
{
	if (!make_room((void **)&p->moves, p->move_count, 1, &p->move_room, sizeof *p->moves))
		return false;
	p->moves[p->move_count++] = (struct move){r, chunk, out, stay, 0};
	r->moving = true;
	return true;
}

static struct rank *victim(const struct proxy *p, const struct rank *target)
{
	struct rank *oldest = NULL;
	for (uint32_t i = 0; i < p->rank_count; i++) {
		struct rank *r = p->ranks[i];
		if (r == target || r->inflight || r->moving || r->live_count == r->missing)
			continue;
		if (!oldest || r->last_active < oldest->last_active)
			oldest = r;
	}
	return oldest;
}

/* Make `r` resident and then active. Does nothing if room cannot be made yet: ask again. */
void memory_begin_activate(struct proxy *p, struct rank *r)
{
	if (p->move_count || r->inflight)
		return;
	for (uint32_t i = 0; i < p->rank_count; i++)
		memory_sweep(p->ranks[i]);
	uint64_t room = p->chunks_total - p->chunks_used;
	while (room < r->missing) {
		struct rank *v = victim(p, r);
		if (!v)
			break;
		for (uint32_t i = 0; i < v->live_count && room < r->missing; i++)
			if (v->chunks[v->live[i]].hal && move_add(p, v, v->live[i], true, false))
				room++;
		if (!v->moving)
			break; /* host memory is short: nothing could be listed */
	}
	/* What was listed goes out even if it is not enough yet; the next try finds the rest. */
	if (room >= r->missing)
		for (uint32_t i = 0; i < r->live_count; i++)
			if (!r->chunks[r->live[i]].hal)
				move_add(p, r, r->live[i], false, false);
	p->move_target = r;
	memory_move(p);
}

bool memory_saved(const struct rank *r)
{
	for (uint32_t i = 0; i < r->live_count; i++)
		if (r->chunks[r->live[i]].hal && !r->chunks[r->live[i]].saved)
			return false;
	return true;
}

void memory_changes(struct rank *r)
{
	for (uint32_t i = 0; i < r->live_count; i++) {
		struct chunk *c = &r->chunks[r->live[i]];
		if (c->saved && r->job->attached == 1) /* nobody to make room for: no second copy */
			image_punch(r, r->live[i]);
		c->saved = false;
	}
}

void memory_begin_save(struct proxy *p, struct job *job, bool stay)
{
	if (p->move_count)
		return;
	p->move_target = NULL;
	for (uint32_t n = 0; n < job->world_size; n++)
		if (job->ranks[n])
			memory_sweep(job->ranks[n]);
	for (uint32_t n = 0; n < job->world_size; n++)
		for (uint32_t i = 0; job->ranks[n] && i < job->ranks[n]->live_count; i++) {
			const struct chunk *c = &job->ranks[n]->chunks[job->ranks[n]->live[i]];
			if (c->hal && !(stay && c->saved))
				move_add(p, job->ranks[n], job->ranks[n]->live[i], true, stay);
		}
	memory_move(p);
}

/* A chunk of the device at the rank's address. RETRY_LATER: one comes free soon. */
#define RETRY_LATER (-1)
static int chunk_bring(struct proxy *p, struct rank *r, uint32_t index)
{
	uint32_t physical;
	int error = p->hal->chunk_create(p->device, &physical);
	if (error)
		return p->move_done < p->move_submitted ? RETRY_LATER : error;
	error = p->hal->space_map(r->space, chunk_addr(index), physical);
	if (error) {
		p->hal->chunk_destroy(p->device, physical);
		return error;
	}
	r->chunks[index].hal = physical + 1;
	r->missing--;
	p->chunks_used++;
	return 0;
}

/* False when it has to wait: for room in the queue, or for a chunk that is on its way out. */
static bool move_submit(struct proxy *p, struct move *m)
{
	struct rank *r = m->rank;
	struct chunk *c = &r->chunks[m->chunk];
	uint8_t *host = r->image + m->chunk * RF_CHUNK_BYTES;
	struct hal_ref device = {r->space, chunk_addr(m->chunk)};
	struct hal_ref image = {NULL, (uint64_t)(uintptr_t)host};
	if (m->out && c->saved)
		return true; /* it is there already */
	if (!p->hal->room(p->swap_stream))
		return false;
	if (!m->out) {
		int error = r->async_error ? 0 : chunk_bring(p, r, m->chunk);
		if (error == RETRY_LATER)
			return false;
		if (error)
			rank_fail(r, error, "the device has no room for its memory");
		if (!c->hal || !c->in_image)
			return true; /* nothing of a rank with an error runs: it stays where it is */
	}
	struct hal_work work = {.kind = HAL_COPY};
	work.copy.dst = m->out ? image : device;
	work.copy.src = m->out ? device : image;
	work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = RF_CHUNK_BYTES;
	work.copy.height = 1;
	m->hal_seq = p->hal->submit(p->swap_stream, &work);
	return true;
}

static void move_complete(struct proxy *p, struct move *m)
{
	struct rank *r = m->rank;
	if (m->out && m->stay) {
		r->chunks[m->chunk].in_image = true;
		r->chunks[m->chunk].saved = r->job->state == PROXY_JOB_CUT; /* else it runs on */
	} else if (m->out) {
		chunk_give_back(r, m->chunk);
		r->chunks[m->chunk].in_image = true;
		r->missing++;
		p->swapped_out += RF_CHUNK_BYTES;
	} else if (m->hal_seq) {
		p->swapped_in += RF_CHUNK_BYTES;
		if (r->job->attached == 1) /* nobody to make room for: no second copy */
			image_punch(r, m->chunk);
	}
}

void memory_move(struct proxy *p)
{
	if (!p->move_count)
		return;
	uint64_t completed = p->hal->completed(p->swap_stream);
	for (;;) {
		while (p->move_done < p->move_submitted &&
		       p->moves[p->move_done].hal_seq <= completed) {
			move_complete(p, &p->moves[p->move_done++]);
			p->progress = true;
		}
		if (p->move_submitted == p->move_count ||
		    !move_submit(p, &p->moves[p->move_submitted]))
			break;
		p->move_submitted++;
	}
	if (p->move_done < p->move_count)
		return;
	for (uint32_t i = 0; i < p->rank_count; i++)
		p->ranks[i]->moving = false;
	p->move_count = p->move_submitted = p->move_done = 0;
	p->progress = true;
}

/* ---- transfers ---- */

void transfer_push(struct proxy *p, struct transfer *t)
{
	t->next = NULL;
	if (p->transfers_tail)
		p->transfers_tail->next = t;
	else
		p->transfers = t;
	p->transfers_tail = t;
	if (!p->transfers_next)
		p->transfers_next = t;
	p->progress = true;
}

/* True when all of it has been submitted. */
static bool transfer_submit(struct proxy *p, struct transfer *t)
{
	if (t->kind == TRANSFER_WORK) {
		if (!p->hal->room(p->transfer_stream))
			return false;
		t->hal_seq = p->hal->submit(p->transfer_stream, &t->work);
		t->error = t->hal_seq ? 0 : NCCL_SYSTEM_ERROR;
		return true;
	}
	struct rank *r = t->rank;
	if (!r || t->error)
		return true;
	if (!memory_valid(r, t->addr, t->bytes)) {
		t->error = NCCL_INVALID_ARGUMENT;
		return true;
	}
	while (t->done < t->bytes) {
		if (r->moving || !p->hal->room(p->transfer_stream))
			return false;
		struct hal_ref ref, host = {NULL, (uint64_t)(uintptr_t)(t->host + t->done)};
		bool write = t->kind == TRANSFER_WRITE;
		uint64_t n = memory_resolve(r, t->addr + t->done, t->bytes - t->done, write, &ref);
		struct hal_work work = {.kind = HAL_COPY};
		work.copy.dst = write ? ref : host;
		work.copy.src = write ? host : ref;
		work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = n;
		work.copy.height = 1;
		if (!t->hal_seq)
			r->inflight++;
		t->hal_seq = p->hal->submit(p->transfer_stream, &work);
		t->done += n;
	}
	return true;
}

void transfer_pump(struct proxy *p)
{
	while (p->transfers_next && transfer_submit(p, p->transfers_next)) {
		p->transfers_next = p->transfers_next->next;
		p->progress = true;
	}
	uint64_t completed = p->hal->completed(p->transfer_stream);
	while (p->transfers && p->transfers != p->transfers_next &&
	       p->transfers->hal_seq <= completed) {
		struct transfer *t = p->transfers;
		p->transfers = t->next;
		if (!p->transfers)
			p->transfers_tail = NULL;
		if (t->kind != TRANSFER_WORK && t->rank && t->hal_seq)
			t->rank->inflight--;
		/* The device skips the work of a failed rank: what was not read goes to nobody. */
		if (t->kind == TRANSFER_READ && t->rank &&
		    p->hal->space_error(t->rank->space, NULL, 0))
			t->error = NCCL_SYSTEM_ERROR;
		if (t->job && t->job->coll)
			coll_io_done(t->job->coll, t->token, t->error);
		p->progress = true;
		free(t);
	}
}

/* Is anything on its way for this rank, or (rank NULL) at all? */
bool transfer_pending(const struct proxy *p, const struct rank *r)
{
	for (const struct transfer *t = p->transfers; t; t = t->next)
		if (!r || t->rank == r)
			return true;
	return false;
}
