/* doorbell.h: sleeping until something is published, and waking who sleeps: for the two sides of
 * the channel, and for all others that wait in the same way.
 *
 *   who waits                              who publishes
 *   seen = doorbell_seen(bell)             writes it, by a seq_cst operation (doorbell_publish)
 *   looks, and finds nothing                 or in any way, and then doorbell_fence
 *   doorbell_enter(sleepers):              doorbell_ring(bell, sleepers):
 *     sleepers + 1, fence                    sleepers is 0: that is all
 *   looks again, and finds nothing           bell + 1, wakes everybody
 *   doorbell_sleep(bell, seen)
 *   doorbell_leave(sleepers)
 *
 * Why nobody misses the other: each side writes, and then reads what the other side writes, with
 * seq_cst operations or a seq_cst fence in between. Those have one total order. The side that is
 * second in it sees what the first wrote: either the second look finds what was published, or the
 * publisher sees that somebody sleeps. Release and acquire are not enough: a processor may read
 * before others see what it has written (x86 does so), and each side would find the other's word
 * as it was.
 *
 * Why no call is lost between the second look and sleep: `seen` was read before, the kernel lets
 * nobody sleep on a word that has another value, and who wakes changes it first.
 *
 * All this is about sleep alone. What is published is read after an acquire that pairs with a
 * release.
 *
 * Cost while nobody sleeps: a look at a line that only sleepers write, and the fence. On x86 a
 * seq_cst store or change is one itself; a fence beside a plain store takes 10 ns more.
 *
 * Words may be shared between processes, so no futex here is a private one. `sleepers` is a
 * count, or 0 and 1 where one side may have died in its sleep. errno stays as it is.
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

/* ---- who waits ---- */

static inline uint32_t doorbell_seen(_Atomic uint32_t *bell)
{
	return atomic_load_explicit(bell, memory_order_acquire);
}

/* Enter, for a thread that waits at several bells: announce it at each, then one fence. */
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

/* Returns when `word` may have another value than `seen`: look again. */
static inline void doorbell_sleep(_Atomic uint32_t *word, uint32_t seen)
{
	int kept = errno;
	syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
	errno = kept;
}

/* ---- who brings ---- */

static inline void doorbell_publish(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store(word, value);
}

/* What is published: does anybody wait for it and not look any more? */
static inline bool doorbell_wanted(_Atomic uint32_t *sleepers) { return atomic_load(sleepers); }

/* Of a word that who waits sleeps on itself: it has changed. */
static inline void doorbell_wake(_Atomic uint32_t *word)
{
	int kept = errno;
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = kept;
}

static inline void doorbell_ring(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
	if (!doorbell_wanted(sleepers))
		return;
	atomic_fetch_add_explicit(bell, 1, memory_order_release);
	doorbell_wake(bell);
}

/* ---- a reply slot: the word that is waited for records itself whether somebody sleeps ---- */

/* Everything else in the slot is written: the client may read it. */
static inline void slot_answer(struct rf_slot *slot)
{
	if (atomic_exchange(&slot->state, RF_SLOT_ANSWERED) == RF_SLOT_ASLEEP)
		doorbell_wake(&slot->state);
}

static inline bool slot_answered(struct rf_slot *slot)
{
	return atomic_load_explicit(&slot->state, memory_order_acquire) == RF_SLOT_ANSWERED;
}

/* Sleeps until it is. */
static inline void slot_await(struct rf_slot *slot)
{
	while (!slot_answered(slot)) {
		uint32_t state = RF_SLOT_WAITING;
		atomic_compare_exchange_strong(&slot->state, &state, RF_SLOT_ASLEEP);
		doorbell_sleep(&slot->state, RF_SLOT_ASLEEP); /* at once back from another state */
	}
}

#endif
