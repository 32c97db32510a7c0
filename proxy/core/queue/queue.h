/* queue.h: what of a rank's the queues keep: each line is written by its file only. */
#ifndef RANKFOLD_QUEUE_H
#define RANKFOLD_QUEUE_H

#include "queue/group.h"
#include "queue/hidden.h"
#include "queue/squash.h"

struct fence;
struct order;
struct stream;
struct waiter;

struct rank_queue {
	struct stream **streams; /* stream.c */
	uint32_t stream_count;
	struct stream *legacy;
	uint32_t items; /* weight of all that lies in them */

	uint64_t moves; /* item.c: how often an item was given away, was over, or completed */

	struct waiter *waiters; /* event.c */
	uint32_t waiter_count, waiter_room;

	struct fence *frees, *frees_tail; /* fence.c */

	uint32_t host_place; /* host.c: host functions queued so far */

	/* launch.c: handle of the kernel launched last: tells one bucket from another */
	uint64_t last_function;

	uint64_t tickets; /* collective.c: given to the engine so far */

	struct squashing squashing; /* squash.c */

	struct hidden_place place; /* hidden.c: of the rank's next launch */

	struct nccl_group group; /* group.c */
	uint64_t comms_changed;  /* communicators that came or went by others' answers */

	struct order *order; /* accesses.c; NULL: nobody checks the order */
};

#endif
