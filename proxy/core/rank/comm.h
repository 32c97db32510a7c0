/* comm.h: handles of a rank's communicators, and how many rounds and groups they have had (comm.c).
 * collective/ implements communicators. */
#ifndef RANKFOLD_COMM_H
#define RANKFOLD_COMM_H

#include "rank/table.h"

struct rank;

struct comm {
	struct object o;
	uint64_t key;               /* job-wide; 0 until joined */
	uint64_t issued;            /* rounds on `key` */
	uint64_t queued, submitted; /* groups: the engine gets them in program order, */
				    /* including those of different streams, as NCCL does */
	uint64_t split_from;        /* key of the parent until the split is answered, else 0 */
	uint64_t joining;           /* key of the joining until it is answered, else 0 */
	bool aborted;               /* queued operations do nothing */
	bool doomed;                /* removed with the last of them */
	bool hopeless;              /* the program was informed of another rank's abort */
	uint16_t slot;              /* of the reply when its operations have ended, or 0 */
};

struct comm *comm_new(struct rank *, uint64_t id); /* NULL: bad handle, or no memory */
/* Not in a table yet. key 0: an aborted one. */
struct comm *comm_restored(uint64_t id, uint64_t key, uint64_t issued);
void comm_drop(struct rank *, struct comm *);
void comm_break(struct rank *, const struct comm *); /* reports broken keys to the barrier */

static inline void comm_joined(struct comm *c, uint64_t key)
{
	c->key = key;
	c->split_from = c->joining = 0;
}
static inline void comm_issue(struct comm *c, uint64_t key) { c->issued += key == c->key; }
/* `c` will be split from the parent: that is a round of the parent. */
static inline void comm_split(struct comm *parent, struct comm *c)
{
	c->split_from = parent->key;
	comm_issue(parent, parent->key);
}
/* Returns the group's turn. */
static inline uint64_t comm_queue(struct comm *c) { return c->queued++; }
static inline void comm_doom(struct comm *c) { c->doomed = true; }
static inline void comm_submit(struct comm *c) { c->submitted++; }

#endif
