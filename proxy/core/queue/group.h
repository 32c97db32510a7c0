/* group.h: an outermost NCCL group of a rank, read once and kept until it may be issued (group.c).
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

/* The group whose records a rank's ring has next. They stay in the ring until it is issued. */
struct nccl_group {
	struct rf_collective first; /* also when it has ended: for error texts */
	uint32_t count;             /* operations read so far; 0: no group */
	bool whole;                 /* all of them */
	struct place end;           /* in the ring, behind them */
	struct rf_collective *ops;  /* room for GROUP_MAX of them, and for as many to sort them */

	/* What follows from them once it is whole: */
	bool planned;
	uint64_t comms;            /* rank.comms_changed at that time */
	struct item *parts;        /* one per communicator, by first operation; in no stream yet */
	struct coll_round *rounds; /* ascending by key: all that the barrier must allow */
	uint32_t round_count;
	int error; /* ncclResult_t: the first part that is not valid */
};

#define GROUP_HELD (-1)   /* not all of it is there, or the barrier does not allow all its rounds */
#define GROUP_BROKEN (-2) /* a record that is no collective, or too many of them */
#define GROUP_GONE (-3)   /* the rank fails for another reason, said elsewhere */
/* Goes on with the group that is kept, or (first not NULL) begins one with this record, which *at
 * lies behind. Held, nothing has happened; else the group is read and *at lies behind it: 0, the
 * ncclResult_t of the first part that was refused, or one of the above. */
int group_turn(struct rank *, const struct rf_collective *first, struct place *at);
void group_plan_anew(struct rank *); /* a communicator has come or gone */
void group_free(struct rank *);

#endif
