/* peer.c: see peer.h.
 *
 * Layout of the segment: a header; one line per device (doorbell, sleeping); device_count² rings,
 * the one from i to j at i * device_count + j; the outboxes, PEER_OUTBOX_BYTES each.
 *
 * Rules:
 *  - a ring has one writer, which publishes with `head`, and one reader, with `tail`;
 *  - the other side is another process, which may be faulty: indices are checked before use, and
 *    the code that interprets a message checks its contents;
 *  - the segment is sealed against shrinking, so no access faults.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doorbell.h"
#include "codes.h"
#include "invariant.h"
#include "job_limits.h"
#include "peer/peer.h"
#include "plural.h"

#define PEER_MAGIC 0x3150454552465200ull
#define PEER_RING_SLOTS 512u /* power of two */
#define PEER_OUTBOX_BYTES (1ull << 36)
#define PEER_ALIGN 4096ull
#define PEER_PUNCH_BYTES (16ull << 20) /* freed ranges of at least this size return their memory */

struct segment_header {
	uint64_t magic;
	uint32_t device_count, ring_slots;
};
struct device_line {
	_Alignas(64) _Atomic uint32_t doorbell; /* futex */
	_Atomic uint32_t sleeping;
};
struct peer_slot {
	uint32_t tag, reserved;
	struct peer_message message;
};
struct ring {
	_Alignas(64) _Atomic uint64_t head; /* written by the sender */
	_Atomic uint32_t waiting;           /* set by the sender: it has more than fits */
	_Alignas(64) _Atomic uint64_t tail; /* written by the receiver */
	_Alignas(64) struct peer_slot slot[PEER_RING_SLOTS];
};

struct overflow {
	struct overflow *next;
	struct peer_slot slot;
};
struct outbox_range {
	uint64_t offset, bytes;
};
struct outbox_ranges { /* of free outbox memory, ascending, never adjacent */
	struct outbox_range *pieces;
	uint32_t count, space;
	uint64_t bytes; /* of the outbox */
};

struct peer {
	uint32_t device, count, next_from;
	int fd;
	uint8_t *map;
	uint64_t map_bytes;
	uint8_t *outbox[DEVICES_MAX]; /* mapped at first use */
	struct overflow *first[DEVICES_MAX], **last[DEVICES_MAX];
	struct outbox_ranges host, direct;
	struct hal_outbox second[DEVICES_MAX];
	uint64_t readers; /* of our second outbox */
	uint64_t host_bytes, direct_bytes;
	bool broken;
};

static uint64_t rings_offset(uint32_t count)
{
	return 4096 + ((uint64_t)count * sizeof(struct device_line) + 4095) / 4096 * 4096;
}

static uint64_t outbox_offset(uint32_t count)
{
	uint64_t end = rings_offset(count) + (uint64_t)count * count * sizeof(struct ring);
	return (end + 4095) / 4096 * 4096;
}

static uint64_t segment_bytes(uint32_t count)
{
	return outbox_offset(count) + count * PEER_OUTBOX_BYTES;
}

int peer_segment_create(uint32_t device_count)
{
	struct segment_header h = {PEER_MAGIC, device_count, PEER_RING_SLOTS};
	if (device_count < 2 || device_count > DEVICES_MAX)
		return -EINVAL;
	int fd = memfd_create("rankfold-peers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)segment_bytes(device_count)) ||
	    pwrite(fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

static bool ranges_start(struct outbox_ranges *r, uint64_t bytes)
{
	r->pieces = malloc(16 * sizeof *r->pieces);
	if (!r->pieces)
		return false;
	r->pieces[0] = (struct outbox_range){0, bytes};
	r->count = 1;
	r->space = 16;
	r->bytes = bytes;
	return true;
}

static struct device_line *line_of(struct peer *p, uint32_t device)
{
	return (struct device_line *)(void *)(p->map + 4096) + device;
}

static struct ring *ring_between(struct peer *p, uint32_t from, uint32_t to)
{
	return (struct ring *)(void *)(p->map + rings_offset(p->count)) + from * p->count + to;
}

struct peer *peer_new(int segment_fd, uint32_t device, uint32_t device_count, char *error,
		      uint32_t error_bytes)
{
	struct segment_header h = {0};
	struct stat info;
	struct peer *p = calloc(1, sizeof *p);
	int seals = fcntl(segment_fd, F_GET_SEALS);
	if (!p || device_count < 2 || device_count > DEVICES_MAX || device >= device_count ||
	    seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(segment_fd, &info) ||
	    (uint64_t)info.st_size != segment_bytes(device_count) ||
	    pread(segment_fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != PEER_MAGIC ||
	    h.device_count != device_count || h.ring_slots != PEER_RING_SLOTS) {
		snprintf(error, error_bytes, "not the shared segment of a job on %u device%s",
			 device_count, plural(device_count));
		free(p);
		return NULL;
	}
	p->device = device;
	p->count = device_count;
	p->map_bytes = outbox_offset(device_count);
	p->fd = fcntl(segment_fd, F_DUPFD_CLOEXEC, 3);
	p->map = mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd,
		      0);
	for (uint32_t i = 0; i < device_count; i++)
		p->last[i] = &p->first[i];
	if (p->fd < 0 || p->map == MAP_FAILED || !ranges_start(&p->host, PEER_OUTBOX_BYTES)) {
		p->map = p->map == MAP_FAILED ? NULL : p->map;
		snprintf(error, error_bytes, "cannot map the job's shared segment: %s",
			 strerror(errno));
		peer_free(p);
		return NULL;
	}
	return p;
}

void peer_free(struct peer *p)
{
	for (uint32_t i = 0; i < p->count; i++) {
		while (p->first[i]) {
			struct overflow *o = p->first[i];
			p->first[i] = o->next;
			free(o);
		}
		if (p->outbox[i])
			munmap(p->outbox[i], PEER_OUTBOX_BYTES);
	}
	if (p->map)
		munmap(p->map, p->map_bytes);
	if (p->fd >= 0)
		close(p->fd);
	free(p->host.pieces);
	free(p->direct.pieces);
	free(p);
}

/* ---- messages ---- */

static void wake_device(struct peer *p, uint32_t device)
{
	struct device_line *l = line_of(p, device);
	doorbell_fence();
	doorbell_ring(&l->doorbell, &l->sleeping);
}

static bool ring_put(struct ring *r, const struct peer_slot *slot)
{
	uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
	if (head - tail >= PEER_RING_SLOTS)
		return false;
	r->slot[head % PEER_RING_SLOTS] = *slot;
	atomic_store_explicit(&r->head, head + 1, memory_order_release);
	return true;
}

void peer_send(struct peer *p, uint32_t to, uint32_t tag, const struct peer_message *m)
{
	struct peer_slot slot = {tag, 0, *m};
	if (to >= p->count || to == p->device)
		return;
	if (p->first[to] || !ring_put(ring_between(p, p->device, to), &slot)) {
		struct overflow *o = malloc(sizeof *o);
		if (!o)
			invariant_broken("a message to a peer has space in host memory", __FILE__,
					 __LINE__); /* without it the job would hang */
		*o = (struct overflow){NULL, slot};
		*p->last[to] = o;
		p->last[to] = &o->next;
	}
	wake_device(p, to);
}

static bool put_overflow(struct peer *p, uint32_t to)
{
	bool moved = false;
	while (p->first[to] && ring_put(ring_between(p, p->device, to), &p->first[to]->slot)) {
		struct overflow *o = p->first[to];
		p->first[to] = o->next;
		if (!p->first[to])
			p->last[to] = &p->first[to];
		free(o);
		moved = true;
	}
	return moved;
}

/* The sender announces that it waits for space before it checks a last time; so the receiver rings
 * its doorbell. */
static void continue_full_rings(struct peer *p)
{
	for (uint32_t to = 0; to < p->count; to++) {
		_Atomic uint32_t *waiting = &ring_between(p, p->device, to)->waiting;
		if (!p->first[to])
			continue;
		bool moved = put_overflow(p, to);
		if (p->first[to]) {
			doorbell_asleep(waiting, true);
			doorbell_fence();
			moved |= put_overflow(p, to);
		}
		if (!p->first[to])
			doorbell_asleep(waiting, false);
		if (moved)
			wake_device(p, to);
	}
}

bool peer_receive(struct peer *p, uint32_t *from, uint32_t *tag, struct peer_message *m)
{
	continue_full_rings(p);
	for (uint32_t n = 0; n < p->count; n++) {
		uint32_t i = (p->next_from + n) % p->count;
		struct ring *r = ring_between(p, i, p->device);
		uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
		uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);
		if (i == p->device || head == tail)
			continue;
		if (head - tail > PEER_RING_SLOTS) {
			p->broken = true;
			continue;
		}
		struct peer_slot slot = r->slot[tail % PEER_RING_SLOTS];
		atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
		doorbell_fence();
		if (doorbell_wanted(&r->waiting))
			wake_device(p, i);
		*from = i;
		*tag = slot.tag;
		*m = slot.message;
		p->next_from = i; /* drain one sender before the next */
		return true;
	}
	return false;
}

bool peer_broken(const struct peer *p) { return p->broken; }

_Atomic uint32_t *peer_doorbell(struct peer *p) { return &line_of(p, p->device)->doorbell; }

void peer_sleep(struct peer *p, bool sleeping)
{
	doorbell_asleep(&line_of(p, p->device)->sleeping, sleeping);
}

/* ---- outboxes ---- */

static uint8_t *outbox_of(struct peer *p, uint32_t device)
{
	if (!p->outbox[device]) {
		uint64_t at = outbox_offset(p->count) + device * PEER_OUTBOX_BYTES;
		int access = device == p->device ? PROT_READ | PROT_WRITE : PROT_READ;
		void *map = mmap(NULL, PEER_OUTBOX_BYTES, access, MAP_SHARED | MAP_NORESERVE, p->fd,
				 (off_t)at);
		p->outbox[device] = map == MAP_FAILED ? NULL : map;
	}
	return p->outbox[device];
}

static uint64_t rounded_up(uint64_t bytes)
{
	return bytes ? (bytes + PEER_ALIGN - 1) / PEER_ALIGN * PEER_ALIGN : PEER_ALIGN;
}

static bool ranges_take(struct outbox_ranges *r, uint64_t need, uint64_t *offset)
{
	for (uint32_t i = 0; i < r->count; i++) {
		struct outbox_range *f = &r->pieces[i];
		if (f->bytes < need)
			continue;
		*offset = f->offset;
		INVARIANT(f->offset + need <= r->bytes, "a range is in the outbox");
		f->offset += need;
		f->bytes -= need;
		if (!f->bytes) {
			r->count--;
			memmove(f, f + 1, (r->count - i) * sizeof *f);
		}
		return true;
	}
	return false;
}

static void ranges_give(struct outbox_ranges *r, uint64_t offset, uint64_t size)
{
	uint32_t i = 0;
	while (i < r->count && r->pieces[i].offset < offset)
		i++;
	INVARIANT(offset + size <= r->bytes &&
			  (!i || r->pieces[i - 1].offset + r->pieces[i - 1].bytes <= offset) &&
			  (i == r->count || offset + size <= r->pieces[i].offset),
		  "a range of the outbox that is given back was not free");
	bool after = i > 0 && r->pieces[i - 1].offset + r->pieces[i - 1].bytes == offset;
	bool before = i < r->count && offset + size == r->pieces[i].offset;
	if (after && before) {
		r->pieces[i - 1].bytes += size + r->pieces[i].bytes;
		r->count--;
		memmove(&r->pieces[i], &r->pieces[i + 1], (r->count - i) * sizeof *r->pieces);
	} else if (after) {
		r->pieces[i - 1].bytes += size;
	} else if (before) {
		r->pieces[i].offset = offset;
		r->pieces[i].bytes += size;
	} else {
		if (r->count == r->space) {
			struct outbox_range *more = realloc(r->pieces, 2 * r->space * sizeof *more);
			if (!more)
				return; /* this range is not used again; nothing else is lost */
			r->pieces = more;
			r->space *= 2;
		}
		memmove(&r->pieces[i + 1], &r->pieces[i], (r->count - i) * sizeof *r->pieces);
		r->pieces[i] = (struct outbox_range){offset, size};
		r->count++;
	}
}

uint64_t peer_outbox_alloc(struct peer *p, uint64_t bytes, uint64_t readers, uint64_t *offset)
{
	uint64_t need = bytes > PEER_OUTBOX_BYTES ? bytes : rounded_up(bytes);
	uint8_t *memory;
	if (!(readers & ~p->readers) && ranges_take(&p->direct, need, offset)) {
		uint64_t at = p->second[p->device].addr + *offset;
		*offset += PEER_OUTBOX_BYTES;
		p->direct_bytes += bytes;
		return at;
	}
	memory = outbox_of(p, p->device);
	if (!memory || !ranges_take(&p->host, need, offset))
		return 0;
	p->host_bytes += bytes;
	return (uintptr_t)(memory + *offset);
}

void peer_outbox_free(struct peer *p, uint64_t offset, uint64_t bytes)
{
	uint64_t size = rounded_up(bytes);
	if (offset >= PEER_OUTBOX_BYTES) {
		ranges_give(&p->direct, offset - PEER_OUTBOX_BYTES, size);
		return;
	}
	if (size >= PEER_PUNCH_BYTES)
		fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  (off_t)(outbox_offset(p->count) + p->device * PEER_OUTBOX_BYTES + offset),
			  (off_t)size);
	ranges_give(&p->host, offset, size);
}

void peer_outbox_counts(const struct peer *p, uint64_t *host, uint64_t *direct)
{
	*host = p->host_bytes;
	*direct = p->direct_bytes;
}

const struct hal_outbox *peer_outbox(const struct peer *p, uint32_t device)
{
	return &p->second[device];
}

void peer_outbox_set(struct peer *p, uint32_t device, const struct hal_outbox *outbox)
{
	INVARIANT(!p->second[device].addr, "a device has one second outbox");
	if (device == p->device && !ranges_start(&p->direct, outbox->bytes))
		p->direct = (struct outbox_ranges){0}; /* always full */
	p->second[device] = *outbox;
	if (device != p->device)
		peer_send(p, device, PEER_READS, &(struct peer_message){{0}});
}

void peer_outbox_opened(struct peer *p, uint32_t by) { p->readers |= 1ull << by; }

uint64_t peer_outbox_readers(const struct peer *p) { return p->readers; }

static bool is_within(uint64_t offset, uint64_t bytes, uint64_t all)
{
	return offset <= all && bytes <= all - offset;
}

int peer_fetch(struct peer *p, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
	       struct hal_ref *place)
{
	const uint8_t *memory;

	(void)token; /* nothing comes later */
	if (device < p->count && offset >= PEER_OUTBOX_BYTES &&
	    is_within(offset - PEER_OUTBOX_BYTES, bytes, p->second[device].bytes)) {
		*place = (struct hal_ref){NULL,
					  p->second[device].addr + offset - PEER_OUTBOX_BYTES};
		return 0;
	}
	if (device >= p->count || !is_within(offset, bytes, PEER_OUTBOX_BYTES))
		return NCCL_INVALID_ARGUMENT;
	memory = outbox_of(p, device);
	if (!memory)
		return NCCL_SYSTEM_ERROR;
	*place = (struct hal_ref){NULL, (uintptr_t)(memory + offset)};
	return 0;
}

void peer_release(struct peer *p, uint32_t device, struct hal_ref place, uint64_t bytes)
{
	(void)p; /* the memory stays where it is */
	(void)device;
	(void)place;
	(void)bytes;
}
