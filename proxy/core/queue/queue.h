/* queue.h: the queues' part of a rank: only the named file writes each member. */
#ifndef RANKFOLD_QUEUE_H
#define RANKFOLD_QUEUE_H

#include "queue/group.h"
#include "queue/opaque_launch.h"
#include "queue/squash.h"

struct fence;
struct order;
struct stream;
struct waiter;

struct rank_queue {
	struct stream **streams; /* stream.c */
	uint32_t stream_count;
	struct stream *legacy;
	uint32_t items; /* weight of all queued items */

	uint64_t moves; /* item.c: how often an item was submitted or completed */

	struct waiter *waiters; /* event.c */
	uint32_t waiter_count, waiter_capacity;

	struct fence *frees, *frees_tail; /* fence.c */

	uint32_t host_place; /* host.c: host functions queued so far */

	/* launch.c: handle of the kernel launched last; distinguishes buckets (round signatures) */
	uint64_t last_function;

	uint64_t tickets; /* collective.c: number of tickets given to the engine */

	struct squashing squashing; /* squash.c */

	struct opaque_place place; /* opaque_launch.c: of the rank's next launch */

	struct nccl_group group; /* group.c */
	uint64_t comms_changed;  /* how often other ranks' answers added or removed one */

	struct order *order; /* accesses.c; NULL: the order is not checked */
};

#endif
