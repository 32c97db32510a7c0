/* doorbell.h: sleep until something is published, and wake the sleeper: for both sides of the
 * channel, and for all others that wait in the same way.
 *
 *   waiter                                 publisher
 *   seen = doorbell_seen(bell)             writes it with a seq_cst operation (doorbell_publish),
 *   checks, and finds nothing                or in any way and then doorbell_fence
 *   doorbell_enter(sleepers):              doorbell_ring(bell, sleepers):
 *     sleepers + 1, fence                    if sleepers is 0: returns
 *   checks again, and finds nothing          bell + 1, wakes all sleepers
 *   doorbell_sleep(bell, seen)
 *   doorbell_leave(sleepers)
 *
 * Why neither side misses the other: each side writes, and then reads what the other side writes,
 * with seq_cst operations or a seq_cst fence in between. Those have one total order. The side that
 * is second in it sees the write of the first: either the waiter's second check finds what was
 * published, or the publisher sees a sleeper. Release and acquire are not enough: a processor may
 * read before others see what it has written (x86 does so), and then each side would find the
 * other's word unchanged.
 *
 * Why no wake-up is lost between the second check and the sleep: `seen` was read before, the kernel
 * lets no thread sleep on a word whose value differs, and the waker changes the word first.
 *
 * This concerns sleeping only. The published data are read after an acquire that pairs with a
 * release.
 *
 * Cost without a sleeper: one read of a cache line that only sleepers write, and the fence. On x86
 * a seq_cst store or read-modify-write already is a fence; a separate fence after a plain store
 * takes 10 ns more.
 *
 * Words may be shared between processes, so no futex here is private. `sleepers` is a count, or 0
 * and 1 where one side may have died in its sleep. errno is preserved.
 */
#ifndef RANKFOLD_DOORBELL_H
#define RANKFOLD_DOORBELL_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "channel.h"

/* ---- the waiter ---- */

static inline uint32_t doorbell_seen(_Atomic uint32_t *bell)
{
	return atomic_load_explicit(bell, memory_order_acquire);
}

/* Replaces doorbell_enter for a thread that waits at several bells: announce it at each, then one
 * fence. */
static inline void doorbell_asleep(_Atomic uint32_t *sleepers, bool asleep)
{
	atomic_store_explicit(sleepers, asleep, memory_order_relaxed);
}

static inline void doorbell_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

static inline void doorbell_enter(_Atomic uint32_t *sleepers)
{
	atomic_fetch_add_explicit(sleepers, 1, memory_order_relaxed);
	doorbell_fence();
}

static inline void doorbell_leave(_Atomic uint32_t *sleepers)
{
	atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
}

/* Returns when `word` may differ from `seen`: the caller checks again. */
static inline void doorbell_sleep(_Atomic uint32_t *word, uint32_t seen)
{
	int saved_errno = errno;
	syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
	errno = saved_errno;
}

/* As doorbell_sleep, for at most so long. */
static inline void doorbell_sleep_within(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
	int saved_errno = errno;
	struct timespec most = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
	errno = saved_errno;
}

/* ---- the publisher ---- */

static inline void doorbell_publish(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store(word, value);
}

/* After publishing: true if a waiter has stopped checking and must be woken. */
static inline bool doorbell_wanted(_Atomic uint32_t *sleepers) { return atomic_load(sleepers); }

/* For waiters that sleep on the published word itself: it has changed. */
static inline void doorbell_wake(_Atomic uint32_t *word)
{
	int saved_errno = errno;
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = saved_errno;
}

static inline void doorbell_ring(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
	if (!doorbell_wanted(sleepers))
		return;
	atomic_fetch_add_explicit(bell, 1, memory_order_release);
	doorbell_wake(bell);
}

/* ---- a reply slot: its state word also records whether a thread sleeps on it ---- */

/* Completes a reply. Everything else in the slot is written: the client may read it. */
static inline void slot_answer(struct rf_slot *slot)
{
	if (atomic_exchange(&slot->state, RF_SLOT_ANSWERED) == RF_SLOT_ASLEEP)
		doorbell_wake(&slot->state);
}

static inline bool slot_answered(struct rf_slot *slot)
{
	return atomic_load_explicit(&slot->state, memory_order_acquire) == RF_SLOT_ANSWERED;
}

/* Marks a thread as asleep, unless the slot is answered. */
static inline void slot_will_sleep(struct rf_slot *slot)
{
	uint32_t state = RF_SLOT_WAITING;
	atomic_compare_exchange_strong(&slot->state, &state, RF_SLOT_ASLEEP);
}

/* Sleeps until the slot is answered. */
static inline void slot_await(struct rf_slot *slot)
{
	while (!slot_answered(slot)) {
		slot_will_sleep(slot);
		doorbell_sleep(&slot->state, RF_SLOT_ASLEEP); /* returns at once in another state */
	}
}

#endif
