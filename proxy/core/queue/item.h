/* item.h: an item: one request in a stream (item.c).
 *
 * The files of this folder, from the lowest to the highest layer: a file calls those above it in
 * this list and no others (tests/proxy/test_floors.py).
 *
 *   execution.c      when something that runs has completed
 *   item.c           what all kinds of items have in common
 *   accesses.c       what is issued, for the check of its order
 *   stream.c         a rank's streams, and the items in each, in their order
 *   event.c          events, their records, and what waits for them
 *   fence.c          completes when all streams have completed everything older; frees
 *   opaque_launch.c  kernels whose reads and writes nothing describes
 *   effects.c        footprints of items, and the content that they leave
 *   copy.c           copies and fills
 *   launch.c         kernels and matrix products
 *   host.c           host functions
 *   collective.c     one group's operations on one communicator
 *   kinds.c          the table of kinds
 *   ready.c          which items may be next
 *   reuse.c          work that need not run because its result is on the device
 *   squash.c         writes to memory that ranks share: run once for all, or alone
 *   pump.c           submits and completes items
 *   group.c          issues an outermost NCCL group at once, or not yet
 *   valid.c          checks that counters and lists agree
 */
#ifndef RANKFOLD_QUEUE_ITEM_H
#define RANKFOLD_QUEUE_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "collective/collective.h"
#include "queue/execution.h"
#include "queue/opaque_launch.h"

struct comm;
struct fence;
struct footprint;
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
	bool submitted;              /* completely given to the device, the engine or the client */
	bool own_run;                /* not run for other ranks, too: squash.c */
	bool marked;                 /* it ran at the last rank_mark_running */
	uint16_t slot;               /* reply when complete, or 0 */
	uint32_t weight;             /* 1, plus 1 for each 8 KiB of its data */
	uint64_t seq;                /* program order */
	struct execution *execution; /* the item completes on this: */
	struct execution own;        /* this one, unless it shares another item's */
	union {
		struct {
			struct function *function;
			struct rf_launch launch;
			struct opaque_place place;
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
			struct coll_place place; /* key 0: it has changed nothing */
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

/* Conditions of an item in addition to being next: pump.c checks them before submission. */
enum item_needs {
	NEEDS_ACTIVE = 1, /* its rank is active and resident */
	NEEDS_STILL = 2,  /* its rank's memory neither moves nor is about to */
	NEEDS_SLOT = 4,   /* the stream's device queue has space */
	NEEDS_HEAD = 8,   /* it is the oldest of its stream: all earlier items are complete */
	HOLDS_NEXT = 16,  /* later items need its completion */
	EVEN_FAILED = 32, /* it is submitted even if its rank has failed */
};

enum item_ready { ITEM_LATER, ITEM_READY, ITEM_BROKEN };

/* A kind of items. Functions may be NULL: nothing to do, or (ready) always ready. */
struct item_row {
	const char *name;
	uint32_t needs;
	/* Whether what it refers to exists. BROKEN: it never will, and submit reports why. */
	enum item_ready (*ready)(const struct item *);
	/* Computes its footprint. Called when it is ready and all its needs are met. */
	void (*find_footprint)(struct rank *, const struct item *, struct footprint *);
	/* The number of works that it is submitted as, if its rank is resident; NULL: one. */
	uint64_t (*works)(const struct item *);
	/* True if the rank's memory already holds what it would write. NULL: unknown. */
	bool (*there)(struct rank *, const struct item *);
	/* True: all of it is submitted, and its execution is set. False: try again later. */
	bool (*submit)(struct rank *, struct stream *, struct item *);
	/* Records what the rank's memory holds when it is complete. All of it is submitted. */
	void (*effect)(struct rank *, const struct item *, const struct footprint *);
	void (*complete)(struct rank *, struct item *);
	void (*drop)(struct item *); /* it is removed with its rank, complete or not */
	/* True if anything other than later items in the stream waits for its completion; NULL
	 * means always. */
	bool (*awaited)(const struct item *);
};
extern const struct item_row item_rows[ITEM_KINDS];
static inline const struct item_row *item_row(const struct item *i) { return &item_rows[i->kind]; }

/* The caller fills in a new item's request (and its slot) before pushing it. Returns NULL, and
 * fails the rank, if host memory is short. */
struct item *item_new(struct rank *, enum item_kind, uint64_t seq, uint64_t data_bytes);
/* Frees an item that has completed or is dropped. */
void item_free(struct item *);
/* Lets the item complete on another item's execution; its own must not have begun. */
void item_share(struct item *, struct execution *);
/* Records work `number` of the stream's device queue as the last one so far that the item waits
 * for. */
void item_on_device(struct rank *, const struct stream *, struct item *, uint64_t number);
/* Counts that an item of the rank was submitted or has completed: others may be next. */
void item_moved(struct rank *);
/* True if these needs of the item are met now. */
bool item_may(const struct rank *, const struct stream *, const struct item *, uint32_t needs);

#endif
