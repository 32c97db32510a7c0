/* squash.h: items that would write what several ranks share (squash.c). */
#ifndef RANKFOLD_QUEUE_SQUASH_H
#define RANKFOLD_QUEUE_SQUASH_H

#include <stdbool.h>
#include <stdint.h>

#include "job_limits.h"

struct foreseen;
struct item;
struct rank;
struct stream;

/* What became of waiting for others with one kind of item: how often it is not tried again. */
struct regret {
	uint64_t what; /* which kind */
	uint8_t skip, next;
	bool together; /* it ran for all the last time */
};
#define REGRETS 32u /* of a rank; one that comes to the place of another begins anew */

struct squashing {      /* a rank's */
	bool open;      /* shared pages may be written by works in flight */
	uint32_t early; /* ranges of what comes behind a sum, which were looked at for it */
	bool owed;      /* what was held by a fence comes before the next one */
	const struct item *first; /* needs the rank's memory quiet: nothing else begins before it */
	const struct item *held;  /* the first that waited in this turn, or NULL, */
	const struct item *vain;  /* and since when the same has, while something ran: */
	uint64_t vain_since_ns;
	bool beside; /* nothing waits for what runs any longer, nor for other ranks */
	struct regret regrets[REGRETS];
};

enum verdict {
	VERDICT_OWNED,    /* the rank owns all that it writes */
	VERDICT_TOGETHER, /* all who share that have come to the same: it can run once for all */
	VERDICT_WAITS,    /* somebody has not, and may */
	/* It is not run before the rank owns all that it writes: */
	VERDICT_ALONE,     /* somebody never will, or it has no key */
	VERDICT_DIVERGES,  /* somebody comes to something else */
	VERDICT_IMPATIENT, /* it was waited for in vain before */
};

struct team { /* the others who take part; of each, the next item of the stream */
	uint32_t count;
	struct rank *members[RANKS_MAX];
	struct stream *streams[RANKS_MAX];
};

/* The item, which is ready, is its stream's next one. Nothing changes by it. */
enum verdict squash_judge(struct rank *, const struct stream *, const struct item *,
			  const struct foreseen *, struct team *);
/* May it be submitted now? With a team: for all of it. What that needs is asked for. */
bool squash_may(struct rank *, const struct stream *, struct item *, const struct foreseen *,
		struct team *);
/* Does another item of the rank have to be submitted before this one? */
bool squash_held(struct rank *, const struct stream *, const struct item *);
/* Nobody is waited for any more: `verdict` says why. */
void squash_alone(struct rank *, struct item *, const struct foreseen *, enum verdict);
/* It is not run (reuse.c), or `now` false: when the rank's memory is quiet. Gives `now`. */
bool squash_spared(struct rank *, const struct stream *, const struct item *, bool now);
/* It has been submitted: the team's items complete on what runs for it. */
void squash_join(struct rank *, struct item *, struct foreseen *, const struct team *);
void squash_turn(struct rank *); /* its streams have had their turn */
/* When to look again whether what runs waits for what is held; 0: nothing is. */
uint64_t squash_deadline_ns(const struct rank *);

#endif
