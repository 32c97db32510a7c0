/* comm.h: a rank's communicators, as handles, and how many rounds and groups they have had
 * (comm.c). What they are: collective/. */
#ifndef RANKFOLD_COMM_H
#define RANKFOLD_COMM_H

#include "rank/table.h"

struct rank;

struct comm {
	struct object o;
	uint64_t key;               /* job-wide; 0 until joined */
	uint64_t issued;            /* rounds on `key` */
	uint64_t queued, submitted; /* groups: the engine gets them in program order, */
				    /* also those of different streams, as NCCL does */
	uint64_t split_from;        /* key of the parent while the split is not answered, else 0 */
	uint64_t joining;           /* key of the joining that is not answered, else 0 */
	bool aborted;               /* what is queued for it does nothing */
	bool doomed;                /* it goes with the last of that */
	bool hopeless;              /* the program has been told of the abort of another rank */
	uint16_t slot;              /* reply when its operations have ended, or 0 */
};

struct comm *comm_new(struct rank *, uint64_t id); /* NULL: a handle that cannot be, or no memory */
/* In no table yet. key 0: one that was aborted. */
struct comm *comm_restored(uint64_t id, uint64_t key, uint64_t issued);
void comm_drop(struct rank *, struct comm *);
void comm_break(struct rank *, const struct comm *); /* members have aborted it: to the barrier */

static inline void comm_joined(struct comm *c, uint64_t key)
{
	c->key = key;
	c->split_from = c->joining = 0;
}
static inline void comm_issue(struct comm *c, uint64_t key) { c->issued += key == c->key; }
/* `c` is to come of it: that is a round of it, too. */
static inline void comm_split(struct comm *parent, struct comm *c)
{
	c->split_from = parent->key;
	comm_issue(parent, parent->key);
}
static inline uint64_t comm_queue(struct comm *c) { return c->queued++; } /* a group: its turn */
static inline void comm_doom(struct comm *c) { c->doomed = true; }
static inline void comm_submit(struct comm *c) { c->submitted++; }

#endif
