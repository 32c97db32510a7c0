/* group.h: an outermost NCCL group of a rank: read once, and kept until it may be issued (group.c).
 */
#ifndef RANKFOLD_QUEUE_GROUP_H
#define RANKFOLD_QUEUE_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "rank/ring.h"

struct coll_round;
struct item;
struct rank;

#define GROUP_MAX 1024u /* collectives in one outermost group */

/* The group whose records are next in a rank's ring. They stay in the ring until it is issued. */
struct nccl_group {
	struct rf_collective first; /* kept after the end, too, for error texts */
	uint32_t count;             /* operations read so far; 0: no group */
	bool whole;                 /* all of them are read */
	struct place end;           /* in the ring, after them */
	struct rf_collective *ops;  /* space for GROUP_MAX of them, and as many more to sort them */

	/* Computed when the group is whole: */
	bool planned;
	uint64_t comms;            /* rank_queue.comms_changed at that time */
	struct item *parts;        /* one per communicator, by first operation; in no stream yet */
	struct coll_round *rounds; /* in order of key: all that the barrier must allow */
	uint32_t round_count;
	int error; /* ncclResult_t: the first part that is not valid */
};

#define GROUP_WAITS (-1)  /* some of it has not arrived, or the barrier does not allow all rounds */
#define GROUP_BROKEN (-2) /* a record that is no collective, or too many of them */
#define GROUP_RANK_FAILED (-3) /* the rank fails for another reason, which is reported elsewhere */
/* Continues the group that is kept, or (first not NULL) begins one with this record, after which
 * *at points. GROUP_WAITS: nothing has happened. Otherwise the group is read and *at points after
 * it; the result is 0, the ncclResult_t of the first part that was refused, or one of the above. */
int group_turn(struct rank *, const struct rf_collective *first, struct place *at);
void group_plan_invalidate(struct rank *); /* a communicator was added or removed */
void group_free(struct rank *);

#endif
