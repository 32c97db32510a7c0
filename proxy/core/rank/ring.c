/* ring.c: the proxy's end of one rank's channel (interpose/channel/channel.h).
 *
 * Rules: the memfd belongs to an untrusted program. Everything is copied out before it is examined;
 * lengths, offsets and slot numbers from it are checked here. Nothing blocks. The memfd is sealed
 * against shrinking, so that no access of the proxy can fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doorbell.h"
#include "invariant.h"
#include "rank/rank_parts.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

int ring_open(struct rank *r, int channel_fd, char *error, uint32_t error_bytes)
{
	struct stat info;
	r->ring.channel_fd = -1;
	int seals = fcntl(channel_fd, F_GET_SEALS);
	if (fstat(channel_fd, &info) || seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    (uint64_t)info.st_size != RF_MEMFD_BYTES) {
		snprintf(error, error_bytes,
			 "rank %u: the channel is not a sealed memfd of %llu bytes", r->rank,
			 (unsigned long long)RF_MEMFD_BYTES);
		return -1;
	}
	r->ring.channel_fd = fcntl(channel_fd, F_DUPFD_CLOEXEC, 3);
	r->ring.map = mmap(NULL, RF_OFF_PINNED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			   r->ring.channel_fd, 0);
	if (r->ring.channel_fd < 0 || r->ring.map == MAP_FAILED) {
		r->ring.map = NULL;
		snprintf(error, error_bytes, "rank %u: cannot map the channel: %s", r->rank,
			 strerror(errno));
		return -1;
	}
	r->ring.header = (struct rf_header *)(void *)r->ring.map;
	if (r->ring.header->magic != RF_MAGIC || r->ring.header->major != RF_MAJOR) {
		snprintf(error, error_bytes,
			 "rank %u: the channel has version %u.%u, this proxy %d.%d", r->rank,
			 r->ring.header->major, r->ring.header->minor, RF_MAJOR, RF_MINOR);
		return -1;
	}
	if (atomic_load(&r->ring.header->epoch) > r->world->epoch) {
		snprintf(error, error_bytes, "rank %u: epoch %llu has claimed it already", r->rank,
			 (unsigned long long)atomic_load(&r->ring.header->epoch));
		return -1;
	}
	atomic_store(&r->ring.header->epoch, r->world->epoch);
	atomic_store(&r->ring.header->served, 1);
	r->ring.tail.bytes = r->ring.head = atomic_load(
		&r->ring.header->tail); /* state_restore sets its number */
	return 0;
}

void ring_close(struct rank *r)
{
	if (r->ring.map) {
		if (atomic_load(&r->ring.header->epoch) == r->world->epoch) {
			atomic_store(&r->ring.header->served, 0);
			atomic_store(&r->ring.header->server_sleeping, 0);
		}
		munmap(r->ring.map, RF_OFF_PINNED);
	}
	if (r->ring.channel_fd >= 0)
		close(r->ring.channel_fd);
	r->ring.map = NULL;
	r->ring.header = NULL;
	r->ring.channel_fd = -1;
}

bool ring_empty(const struct rank *r)
{
	return r->ring.head == r->ring.tail.bytes &&
	       atomic_load_explicit(&r->ring.header->head, memory_order_acquire) ==
		       r->ring.tail.bytes;
}

/* A proxy that no longer owns the epoch consumes nothing. */
bool ring_owned(const struct rank *r)
{
	return atomic_load_explicit(&r->ring.header->epoch, memory_order_acquire) ==
	       r->world->epoch;
}

int ring_peek(struct rank *r, struct place *at, uint8_t *out)
{
	const uint8_t *ring = r->ring.map + RF_OFF_RING;
	if (!ring_owned(r))
		return 0;
	for (;;) {
		if (at->bytes == r->ring.head) /* otherwise the client's cache line is left alone */
			r->ring.head = atomic_load_explicit(&r->ring.header->head,
							    memory_order_acquire);
		uint64_t head = r->ring.head;
		uint64_t ready = head - at->bytes, place = at->bytes % RF_RING_BYTES;
		struct rf_record first;
		if (ready == 0)
			return 0;
		if (head < r->ring.tail.bytes || head - r->ring.tail.bytes > RF_RING_BYTES ||
		    at->bytes > head || ready < sizeof first || at->bytes % RF_RECORD_ALIGN)
			return RING_BROKEN;
		memcpy(&first, ring + place, sizeof first);
		if (first.bytes < sizeof first || first.bytes % RF_RECORD_ALIGN ||
		    first.bytes > ready || first.bytes > RF_RING_BYTES - place ||
		    (first.opcode != RF_OP_PAD && first.bytes > RF_RECORD_MAX))
			return RING_BROKEN;
		if (first.opcode == RF_OP_PAD) {
			at->bytes += first.bytes;
			continue;
		}
		memcpy(out, ring + place, first.bytes);
		memcpy(out, &first, sizeof first); /* use exactly the header that was checked */
		if (first.seq != at->seq + 1)
			return RING_NUMBER;
		at->bytes += first.bytes;
		at->seq++;
		r->ring.reads++;
		return (int)first.bytes;
	}
}

void ring_from(struct rank *r, uint64_t seq) { r->ring.tail.seq = seq; }

void ring_expect_reply(struct rank *r, uint16_t slot) { r->ring.replies += slot != 0; }

void ring_cancel_reply(struct rank *r, uint16_t slot)
{
	INVARIANT(!slot || r->ring.replies, "a request that is taken back was counted");
	r->ring.replies -= slot != 0;
}

void ring_consume(struct rank *r, struct place upto)
{
	INVARIANT(upto.bytes - r->ring.tail.bytes <= RF_RING_BYTES && upto.seq >= r->ring.tail.seq,
		  "a ring is consumed forwards");
	r->ring.tail = upto;
}

void ring_report_space(struct rank *r)
{
	doorbell_publish(&r->ring.header->tail, r->ring.tail.bytes);
	doorbell_ring(&r->ring.header->space_seq, &r->ring.header->space_waiters);
}

static struct rf_slot *slot_of(const struct rank *r, uint16_t slot)
{
	return (struct rf_slot *)(void *)(r->ring.map + RF_OFF_SLOTS + (slot - 1) * RF_SLOT_BYTES);
}

struct rf_events ring_events(const struct rank *r, uint16_t slot)
{
	struct rf_events events;
	memcpy(&events, slot_of(r, slot)->data, sizeof events);
	return events;
}

void ring_reply(struct rank *r, uint16_t slot, int error, const void *data, uint32_t bytes)
{
	if (!slot || slot > RF_SLOT_COUNT)
		return;
	struct rf_slot *s = slot_of(r, slot);
	if (bytes > sizeof s->data)
		bytes = sizeof s->data;
	s->error = error;
	if (bytes)
		memcpy(s->data, data, bytes);
	slot_answer(s);
	if (r->ring.replies)
		r->ring.replies--;
	turn_progress(&r->device->turn);
}

void ring_release_bulk(struct rank *r, uint32_t index)
{
	if (index >= RF_BULK_COUNT)
		return;
	atomic_fetch_and(&r->ring.header->bulk_busy, ~(1ull << index));
	doorbell_ring(&r->ring.header->bulk_seq, &r->ring.header->bulk_waiters);
}

uint8_t *ring_bulk(struct rank *r, uint64_t at, uint64_t bytes)
{
	const uint64_t all = (uint64_t)RF_BULK_COUNT * RF_BULK_BYTES;
	if (at > all || bytes > all - at)
		return NULL;
	return r->ring.map + RF_OFF_BULK + at;
}

void ring_retired(struct rank *r, uint64_t seq)
{
	atomic_store_explicit(&r->ring.header->retired_free, seq, memory_order_release);
}

void ring_fault_text(struct rank *r, const char *text)
{
	struct rf_header *header = r->ring.header;
	size_t length = strlen(text), first = sizeof header->fault - 1;
	snprintf(header->fault_rest, sizeof header->fault_rest, "%s",
		 length > first ? text + first : "");
	snprintf(header->fault, sizeof header->fault, "%s", text);
}

void ring_comm_error(struct rank *r, uint64_t comm, int error)
{
	_Atomic uint64_t *at = r->ring.header->comm_errors, *free = NULL;
	for (uint32_t i = 0; i < RF_COMM_ERRORS; i++) {
		uint64_t there = atomic_load(&at[i]);
		if (there >> 8 == comm) {
			atomic_store(&at[i], error ? comm << 8 | (uint64_t)error : 0);
			return;
		}
		free = !there && !free ? &at[i] : free;
	}
	if (error)
		atomic_store(free ? free : &at[r->ring.errors++ % RF_COMM_ERRORS],
			     comm << 8 | (uint64_t)error);
}

bool ring_urgent(const struct rank *r)
{
	return atomic_load_explicit(&r->ring.header->urgents, memory_order_acquire) !=
	       r->ring.urgents;
}

bool ring_take_urgent(struct rank *r, uint32_t *at, uint64_t *request, uint16_t *slot)
{
	_Atomic uint64_t *entries = r->ring.header->urgent;
	if (!*at)
		r->ring.urgents = atomic_load(&r->ring.header->urgents);
	for (*request = 0; *at < RF_SLOT_COUNT && !*request; ++*at) {
		if (atomic_load_explicit(&entries[*at], memory_order_acquire))
			*request = atomic_exchange(&entries[*at], 0);
		*slot = (uint16_t)(*at + 1);
	}
	return *request;
}

/* Passes a host function to the client, in order; the client counts those that have returned. */
bool ring_host_function(struct rank *r, uint64_t token, uint32_t place)
{
	uint64_t *queue = (uint64_t *)(void *)(r->ring.map + RF_OFF_HOSTFUNC);
	if (place - atomic_load(&r->ring.header->hostfunc_tail) >= RF_HOSTFUNC_COUNT)
		return false;
	queue[place % RF_HOSTFUNC_COUNT] = token;
	atomic_store_explicit(&r->ring.header->hostfunc_head, place + 1, memory_order_release);
	doorbell_wake(&r->ring.header->hostfunc_head);
	return true;
}

bool ring_host_sound(const struct rank *r, uint32_t called)
{
	return called - atomic_load(&r->ring.header->hostfunc_tail) <= RF_HOSTFUNC_COUNT;
}
