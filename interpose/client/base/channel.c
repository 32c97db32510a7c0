/* channel.c: everything that passes through the memfd: records in the ring, replies in their slots,
 * data in bulk slots.
 *
 * Lock: RING_LOCK around the copy of a record, or of one group of collectives. Blocks on: a full
 * ring, a missing bulk or reply slot, a reply. All are re-checked futex loops without a deadline,
 * so that a rank can be parked for as long as it has no server.
 */
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "doorbell.h"
#include "invariant.h"
#include "spin.h"

#define AHEAD 2048     /* bytes of the ring: some records */
#define SPIN_NS 50000u /* the time for which a thread checks and yields before it sleeps */

static uint64_t ring_head; /* under RING_LOCK: bytes produced, records numbered */
static uint64_t ring_seq;
static uint64_t ring_tail; /* last value read; never beyond the real one */
static _Atomic uint64_t slots_busy;
static _Atomic uint32_t slots_bell; /* incremented when a reply slot was freed */
static _Atomic uint32_t slots_waiters;

/* The address at which a part of the memfd is mapped. */
static uint8_t *mapped_part(uint64_t offset) { return (uint8_t *)channel_header + offset; }

/* ---- the ring ---- */

/* Under RING_LOCK: waits until `bytes` are free. Our own position is ahead of what the server
 * sees. */
static void wait_for_space(uint64_t bytes)
{
	struct rf_header *h = channel_header;
	INVARIANT(bytes <= RF_RING_BYTES && ring_head - ring_tail <= RF_RING_BYTES,
		  "what waits for the server fits into the ring");
	while (ring_head + bytes - ring_tail > RF_RING_BYTES) {
		ring_tail = atomic_load_explicit(&h->tail, memory_order_acquire);
		if (ring_head + bytes - ring_tail <= RF_RING_BYTES)
			return;
		uint32_t seen = doorbell_seen(&h->space_seq);
		doorbell_enter(&h->space_waiters);
		if (ring_head + bytes - atomic_load(&h->tail) > RF_RING_BYTES)
			doorbell_sleep(&h->space_seq, seen);
		doorbell_leave(&h->space_waiters);
	}
}

void channel_wake(void)
{
	doorbell_ring(&channel_header->doorbell, &channel_header->server_sleeping);
}

static void publish_ring(void)
{
	doorbell_publish(&channel_header->head, ring_head);
	channel_wake();
}

/* The lines ahead are in the server's cache since it read them. Prefetches as many bytes as were
 * just written, for writing, early enough for the records that will be written there. Without it
 * each record waits for its lines (150 ns and more). */
static void fetch_ahead(const uint8_t *ring, uint64_t bytes)
{
	for (uint64_t line = 0; line < bytes && line < AHEAD; line += 64) {
		const uint8_t *at = ring + (ring_head + AHEAD + line) % RF_RING_BYTES;
#if defined(__x86_64__)
		__asm__ volatile("prefetchw %0" : : "m"(*at)); /* the builtin needs -mprfchw */
#else
		__builtin_prefetch(at, 1);
#endif
	}
}

/* Under RING_LOCK: the bytes that a record takes in the ring, with any padding before it. */
static uint64_t taken_by(size_t bytes)
{
	uint64_t whole = (bytes + RF_RECORD_ALIGN - 1) & ~(uint64_t)(RF_RECORD_ALIGN - 1);
	uint64_t left = RF_RING_BYTES - ring_head % RF_RING_BYTES;
	return left < whole ? left + whole : whole;
}

/* Under RING_LOCK: returns the address for the next `bytes` of the ring; `publish` ends the
 * write. */
static uint8_t *write_next(uint64_t bytes)
{
	atomic_store_explicit(&channel_header->writing, ring_head + bytes, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst); /* the reader has stopped this thread */
	uint8_t *at = mapped_part(RF_OFF_RING) + ring_head % RF_RING_BYTES;
	ring_head += bytes;
	return at;
}

/* Under RING_LOCK: writes and publishes one whole record. */
static void put_record(struct rf_record *record, size_t bytes, const void *tail, size_t tail_bytes)
{
	uint64_t whole = (bytes + tail_bytes + RF_RECORD_ALIGN - 1) &
			 ~(uint64_t)(RF_RECORD_ALIGN - 1);
	uint64_t left = RF_RING_BYTES - ring_head % RF_RING_BYTES;
	INVARIANT(bytes >= sizeof *record && whole <= RF_RECORD_MAX,
		  "a record is no larger than the server accepts");
	if (left < whole) {
		wait_for_space(left);
		struct rf_record pad = {(uint32_t)left, RF_OP_PAD, 0, 0};
		memcpy(write_next(left), &pad, sizeof pad);
		publish_ring();
	}
	wait_for_space(whole);
	record->bytes = (uint32_t)whole;
	record->seq = ++ring_seq;
	uint8_t *at = write_next(whole);
	memcpy(at, record, bytes);
	if (tail_bytes)
		memcpy(at + bytes, tail, tail_bytes);
	publish_ring();
	fetch_ahead(mapped_part(RF_OFF_RING), whole);
}

/* Records whose posters do not wait. */
struct later {
	struct rf_handle m;
	struct later *next;
};
static struct later *_Atomic laters;

/* Under RING_LOCK, before other records are put. */
static void put_laters(void)
{
	if (!atomic_load_explicit(&laters, memory_order_relaxed))
		return;
	struct later *l = atomic_exchange(&laters, NULL);
	while (l) {
		struct later *next = l->next;
		put_record(&l->m.r, sizeof l->m, NULL, 0);
		free(l);
		l = next;
	}
}

void channel_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		  size_t tail_bytes)
{
	record->opcode = (uint16_t)opcode;
	record->slot = 0;
	lock(RING_LOCK);
	put_laters();
	put_record(record, bytes, tail, tail_bytes);
	unlock(RING_LOCK);
}

uint64_t channel_post_work(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
			   const void *tail, size_t tail_bytes, uint64_t stream)
{
	_Atomic uint64_t *last = stream_last(stream);
	record->opcode = (uint16_t)opcode;
	record->slot = 0;
	lock(RING_LOCK);
	put_laters();
	put_record(record, bytes, tail, tail_bytes);
	uint64_t seq = record->seq;
	atomic_store_explicit(last, seq, memory_order_relaxed);
	unlock(RING_LOCK);
	return seq;
}

uint64_t channel_try_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes)
{
	uint64_t seq = 0;
	if (!lock_try(RING_LOCK))
		return 0; /* the holder may wait for free space */
	ring_tail = atomic_load_explicit(&channel_header->tail, memory_order_acquire);
	if (ring_head + taken_by(bytes) - ring_tail <= RF_RING_BYTES) {
		record->opcode = (uint16_t)opcode;
		record->slot = 0;
		put_record(record, bytes, NULL, 0);
		seq = record->seq;
	}
	unlock(RING_LOCK);
	return seq;
}

void channel_post_later(enum rf_opcode opcode, uint64_t handle)
{
	struct rf_handle m = {.handle = handle};
	if (channel_try_post(&m.r, opcode, sizeof m))
		return;
	struct later *l = malloc(sizeof *l);
	if (!l)
		return; /* the server keeps the object, a few bytes */
	m.r.opcode = (uint16_t)opcode;
	*l = (struct later){m, atomic_load(&laters)};
	while (!atomic_compare_exchange_weak(&laters, &l->next, l))
		;
}

void channel_wait_space(size_t bytes)
{
	lock(RING_LOCK);
	wait_for_space(taken_by(bytes));
	unlock(RING_LOCK);
}

void channel_post_group(struct rf_collective *records, uint32_t count,
			bool (*cancelled)(const struct rf_collective *))
{
	uint32_t remaining = 0;
	lock(RING_LOCK);
	put_laters(); /* first: no release of a communicator comes between the check and the group */
	for (uint32_t i = 0; i < count; i++)
		if (!cancelled(&records[i]))
			records[remaining++] = records[i];
	for (uint32_t i = 0; i < remaining; i++) {
		records[i].group_left = remaining - 1 - i;
		records[i].r.opcode = RF_OP_COLLECTIVE;
		records[i].r.slot = 0;
		put_record(&records[i].r, sizeof records[i], NULL, 0);
		atomic_store_explicit(stream_last(records[i].stream), records[i].r.seq,
				      memory_order_relaxed);
	}
	unlock(RING_LOCK);
}

/* ---- reply slots ---- */

static struct rf_slot *slot_at(uint32_t index)
{
	return (struct rf_slot *)(void *)mapped_part(RF_OFF_SLOTS +
						     (uint64_t)index * RF_SLOT_BYTES);
}

/* Sets and returns the lowest clear bit of a 64-bit word among `usable`; 64 if none is clear. */
static uint32_t claim_bit(_Atomic uint64_t *word, uint64_t usable)
{
	uint64_t busy = atomic_load(word);
	while (usable & ~busy) {
		uint32_t bit = (uint32_t)__builtin_ctzll(usable & ~busy);
		if (atomic_compare_exchange_weak(word, &busy, busy | 1ull << bit))
			return bit;
	}
	return 64;
}

#define EVERY_SLOT UINT64_MAX
/* One is left for urgent requests: threads that wait for what an abort would end may have all
 * others. */
#define USUAL_SLOTS (UINT64_MAX >> 1)

static uint32_t slot_claim(uint64_t usable)
{
	_Static_assert(RF_SLOT_COUNT == 64 && RF_BULK_COUNT == 64, "one bit each");
	for (;;) {
		uint32_t seen = doorbell_seen(&slots_bell);
		uint32_t index = claim_bit(&slots_busy, usable);
		if (index < RF_SLOT_COUNT)
			return index;
		doorbell_enter(&slots_waiters);
		if (!(usable & ~atomic_load(&slots_busy)))
			doorbell_sleep(&slots_bell, seen);
		doorbell_leave(&slots_waiters);
	}
}

static void slot_release(uint32_t index)
{
	atomic_store_explicit(&slot_at(index)->state, RF_SLOT_FREE, memory_order_relaxed);
	atomic_fetch_and(&slots_busy, ~(1ull << index));
	doorbell_ring(&slots_bell, &slots_waiters);
}

uint32_t channel_begin_unless(const _Atomic bool *cancelled, struct rf_record *record,
			      enum rf_opcode opcode, size_t bytes, const void *tail,
			      size_t tail_bytes)
{
	uint32_t index = slot_claim(USUAL_SLOTS);
	/* The store to the ring's head releases it. */
	atomic_store_explicit(&slot_at(index)->state, RF_SLOT_WAITING, memory_order_relaxed);
	record->opcode = (uint16_t)opcode;
	record->slot = (uint16_t)(index + 1);
	lock(RING_LOCK);
	put_laters(); /* as before a group */
	bool posted = !cancelled || !atomic_load(cancelled);
	if (posted)
		put_record(record, bytes, tail, tail_bytes);
	unlock(RING_LOCK);
	if (posted)
		return index;
	slot_release(index);
	return SLOT_NONE;
}

uint32_t channel_begin(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		       const void *tail, size_t tail_bytes)
{
	return channel_begin_unless(NULL, record, opcode, bytes, tail, tail_bytes);
}

int channel_finish(uint32_t index, void *reply, size_t reply_bytes)
{
	struct rf_slot *slot = slot_at(index);
	INVARIANT(index < RF_SLOT_COUNT && atomic_load(&slots_busy) >> index & 1 &&
			  reply_bytes <= sizeof slot->data,
		  "a reply is awaited in a slot that was claimed");
	for (int n = 0; n < channel_spins && !slot_answered(slot); n++)
		spin_relax();
	/* Where other threads want the core, the replier is one of them, and runs sooner if we
	 * yield. */
	struct spin spin = {0};
	bool wanted = false;
	while (!slot_answered(slot) && !wanted && spin_on(&spin, SPIN_NS))
		wanted = spin_give_way();
	slot_await(slot);
	int error = slot->error;
	if (reply)
		memcpy(reply, slot->data, reply_bytes);
	slot_release(index);
	if (error)
		(void)sticky_error(); /* reports the fault */
	return error;
}

bool channel_wait(uint32_t index, uint64_t ns)
{
	struct rf_slot *slot = slot_at(index);
	uint64_t begin = spin_now_ns(), now = begin;
	for (; !slot_answered(slot) && now - begin < ns; now = spin_now_ns()) {
		slot_will_sleep(slot);
		doorbell_sleep_within(&slot->state, RF_SLOT_ASLEEP, ns - (now - begin));
	}
	return slot_answered(slot);
}

bool channel_answered(uint32_t index) { return slot_answered(slot_at(index)); }

static int call_urgently(uint64_t request, const struct rf_events *events,
			 struct rf_query_reply *reply)
{
	struct rf_header *h = channel_header;
	uint32_t index = slot_claim(EVERY_SLOT);
	if (events)
		memcpy(slot_at(index)->data, events, sizeof *events);
	atomic_store_explicit(&slot_at(index)->state, RF_SLOT_WAITING, memory_order_relaxed);
	atomic_store(&h->urgent[index], request);
	atomic_fetch_add(&h->urgents, 1);
	channel_wake();
	return channel_finish(index, reply, reply ? sizeof *reply : 0);
}

int channel_abort_comm(uint64_t comm) { return call_urgently(comm, NULL, NULL); }

int channel_query(uint64_t handle, struct rf_query_reply *reply)
{
	return call_urgently(RF_URGENT_QUERY | handle, NULL, reply);
}

int channel_query_elapsed(const struct rf_events *events, struct rf_query_reply *reply)
{
	return call_urgently(RF_URGENT_ELAPSED, events, reply);
}

int channel_call(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		 size_t tail_bytes, void *reply, size_t reply_bytes)
{
	return channel_finish(channel_begin(record, opcode, bytes, tail, tail_bytes), reply,
			      reply_bytes);
}

/* ---- bulk slots ---- */

uint32_t bulk_claim(bool wait)
{
	struct rf_header *h = channel_header;
	for (;;) {
		uint32_t seen = doorbell_seen(&h->bulk_seq);
		uint32_t index = claim_bit(&h->bulk_busy, UINT64_MAX);
		if (index < RF_BULK_COUNT)
			return index;
		if (!wait)
			return BULK_NONE;
		doorbell_enter(&h->bulk_waiters);
		if (!~atomic_load(&h->bulk_busy))
			doorbell_sleep(&h->bulk_seq, seen);
		doorbell_leave(&h->bulk_waiters);
	}
}

uint8_t *bulk_data(uint32_t slot)
{
	return mapped_part(RF_OFF_BULK + (uint64_t)slot * RF_BULK_BYTES);
}

/* Frees a slot that brought data to the client; for those, the client does that and not the
 * server. */
void bulk_release(uint32_t slot)
{
	struct rf_header *h = channel_header;
	INVARIANT(slot < RF_BULK_COUNT && atomic_load(&h->bulk_busy) >> slot & 1,
		  "a bulk slot that is released was claimed");
	atomic_fetch_and(&h->bulk_busy, ~(1ull << slot));
	doorbell_ring(&h->bulk_seq, &h->bulk_waiters);
}
