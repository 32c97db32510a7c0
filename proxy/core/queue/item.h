/* item.h: what lies in a stream: one item per request that takes its turn there (item.c).
 *
 * The files of this room, from the lowest to the highest: one calls those above it here and no
 * other (tests/proxy/test_floors.py).
 *
 *   execution.c   when something that runs has completed
 *   item.c        what is the same for all kinds of items
 *   accesses.c    what is issued, for the check of its order
 *   stream.c      a rank's streams, and the items in each, in their order
 *   event.c       events, their records, and who waits for them
 *   fence.c       what completes when all streams have done all that is older; frees
 *   hidden.c      kernels of which nothing says what they read and write
 *   effects.c     what items do to what their rank's memory holds, before and after submission
 *   copy.c        copies and fills
 *   launch.c      kernels and matrix products
 *   host.c        host functions
 *   collective.c  one group's operations on one communicator
 *   kinds.c       the table of kinds
 *   ready.c       whose turn it is
 *   reuse.c       what need not be done: its result is on the device
 *   squash.c      what would write what several ranks share: once for all, or alone
 *   pump.c        items are submitted and complete
 *   group.c       an outermost NCCL group: issued at once, or not yet
 *   valid.c       do counters and lists agree?
 */
#ifndef RANKFOLD_QUEUE_ITEM_H
#define RANKFOLD_QUEUE_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "collective/collective.h"
#include "queue/execution.h"
#include "queue/hidden.h"

struct comm;
struct fence;
struct foreseen;
struct function;
struct mark;
struct rank;
struct stream;

enum item_kind {
	ITEM_KERNEL,
	ITEM_PRODUCT,
	ITEM_COPY,
	ITEM_FILL,
	ITEM_RECORD,
	ITEM_WAIT,
	ITEM_COLLECTIVE,
	ITEM_HOST,
	ITEM_FENCE,
	ITEM_REPLY,
	ITEM_KINDS,
};

struct item {
	struct item *next;
	enum item_kind kind;
	bool submitted;              /* all of it given to the device, the engine or the client */
	bool apart;                  /* it is not run for other ranks, too: squash.c */
	bool marked;                 /* it ran at a certain time: rank_mark_running */
	uint16_t slot;               /* reply when complete, or 0 */
	uint32_t weight;             /* 1, and 1 for each 8 KiB that it carries */
	uint64_t seq;                /* program order */
	struct execution *execution; /* what it completes on: */
	struct execution own;        /* this one, if it does not share another's */
	union {
		struct {
			struct function *function;
			struct rf_launch launch;
			struct hidden_place place;
		} kernel;
		struct {
			struct rf_copy copy;
			uint64_t row, column;
		} copy;
		struct {
			struct rf_fill fill;
			uint64_t row, column;
		} fill;
		struct mark *mark;
		struct {
			struct comm *comm;
			uint64_t turn;
			struct coll_place place; /* key 0: it has not changed anything */
			uint32_t count, rounds;
		} coll;
		uint64_t token; /* of a host function */
		struct fence *fence;
	};
	_Alignas(16) uint8_t data[]; /* parameters, inline bytes, collectives and their rounds, */
				     /* or the record of a matrix product */
};
static inline struct rf_collective *item_ops(struct item *i) { return (void *)i->data; }
static inline struct coll_round *item_rounds(struct item *i)
{
	return (void *)(item_ops(i) + i->coll.count);
}

/* What an item needs besides its turn: pump.c looks, before it is submitted. */
enum item_needs {
	NEEDS_ACTIVE = 1, /* its rank is the device's active one, and resident */
	NEEDS_STILL = 2,  /* its rank's memory is not on its way, nor about to be */
	NEEDS_ROOM = 4,   /* the stream's device queue has room */
	NEEDS_HEAD = 8,   /* it is the oldest of its stream: all before it is complete */
	HOLDS_NEXT = 16,  /* what is behind it needs it to be complete */
	EVEN_FAILED = 32, /* it is submitted although its rank has failed */
};

enum item_ready { ITEM_LATER, ITEM_READY, ITEM_BROKEN };

/* A kind of items. Functions may be NULL: nothing is to be done, or (ready) it always is. */
struct item_row {
	const char *name;
	uint32_t needs;
	/* Is what it names there? BROKEN: it never will be, and submit says why. */
	enum item_ready (*ready)(const struct item *);
	/* Ready, and all else is there: what will it have read and written? */
	void (*foresee)(struct rank *, const struct item *, struct foreseen *);
	/* As how many works it is submitted, if its rank is resident; NULL: as one. */
	uint64_t (*works)(const struct item *);
	/* Does the rank's memory hold already what it will have written? NULL: nobody knows. */
	bool (*there)(struct rank *, const struct item *);
	/* True: all of it is given away, and its execution is set. False: again later. */
	bool (*submit)(struct rank *, struct stream *, struct item *);
	/* All of it is given away: what the rank's memory holds when it is over. */
	void (*effect)(struct rank *, const struct item *, const struct foreseen *);
	void (*complete)(struct rank *, struct item *);
	void (*drop)(struct item *); /* it goes with its rank, complete or not */
	/* Does anybody depend on its completion but the items behind it? NULL: yes. */
	bool (*heard)(const struct item *);
};
extern const struct item_row item_rows[ITEM_KINDS];
static inline const struct item_row *item_row(const struct item *i) { return &item_rows[i->kind]; }

/* Who has a new one fills in its request (and its slot) before it is pushed.
 * NULL: host memory is short, and the rank has failed for it. */
struct item *item_new(struct rank *, enum item_kind, uint64_t seq, uint64_t data_bytes);
/* It has completed, or is dropped. */
void item_free(struct item *);
/* From now on it completes on what another item runs; it must not have begun anything itself. */
void item_share(struct item *, struct execution *);
/* Work `number` of the stream's device queue is, so far, the last one that it waits for. */
void item_on_device(struct rank *, const struct stream *, struct item *, uint64_t number);
/* One of the rank's was given away, is over, or has completed: others may be next. */
void item_moved(struct rank *);
/* May it be given away now, as far as these needs go? */
bool item_may(const struct rank *, const struct stream *, const struct item *, uint32_t needs);

#endif
