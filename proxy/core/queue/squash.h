/* squash.h: items that would write memory that ranks share (squash.c). */
#ifndef RANKFOLD_QUEUE_SQUASH_H
#define RANKFOLD_QUEUE_SQUASH_H

#include <stdbool.h>
#include <stdint.h>

#include "job_limits.h"

struct footprint;
struct item;
struct rank;
struct stream;

/* The backoff for one kind of item: how often not to wait for others again. */
struct backoff {
	uint64_t what; /* the kind */
	uint8_t skip, next;
	bool together; /* it ran for all the last time */
};
#define BACKOFFS 32u /* per rank; a kind that takes another one's entry starts from 0 */

struct squashing {      /* of a rank */
	bool open;      /* works in flight may write shared pages */
	uint32_t early; /* ranges of the item after a sum that were considered for early opening */
	bool fence_waits;             /* items that a fence held come before the next fence */
	const struct item *first;     /* it needs quiet memory: nothing else begins before it */
	const struct item *waiting;   /* the first that waited in this turn, or NULL */
	const struct item *fruitless; /* the same one in earlier turns, while work ran: */
	uint64_t fruitless_since_ns;
	bool concurrent; /* nothing waits any longer for running work, nor for other ranks */
	struct backoff backoffs[BACKOFFS];
};

enum verdict {
	VERDICT_OWNED,    /* the rank owns all that it writes */
	VERDICT_TOGETHER, /* all sharers have reached the same: it can run once for all */
	VERDICT_WAITS,    /* a sharer has not reached it, and may */
	/* It runs only when the rank owns all that it writes: */
	VERDICT_ALONE,     /* a sharer never will reach it, or it has no key */
	VERDICT_DIVERGES,  /* a sharer has reached something else */
	VERDICT_IMPATIENT, /* waiting for it was without success before */
};

struct team { /* the other ranks that take part, each with its stream, whose next item takes part */
	uint32_t count;
	struct rank *members[RANKS_MAX];
	struct stream *streams[RANKS_MAX];
};

/* Judges the item, which is ready and next in its stream. Changes nothing. */
enum verdict squash_judge(struct rank *, const struct stream *, const struct item *,
			  const struct footprint *, struct team *);
/* True if the item may be submitted now; with a team: once for all of it. Requests what is
 * missing. */
bool squash_may(struct rank *, const struct stream *, struct item *, const struct footprint *,
		struct team *);
/* The item need not be first any longer: it is submitted, or judged again. */
void squash_not_first(struct rank *, const struct item *);
/* True if another item of the rank must be submitted before this one. */
bool squash_must_wait(struct rank *, const struct stream *, const struct item *);
/* The item does not wait for others any more, for the reason `verdict`. */
void squash_stop_waiting(struct rank *, struct item *, const struct footprint *, enum verdict);
/* The item does not run (reuse.c); `now` false: only when the rank's memory is quiet. Returns
 * `now`. */
bool squash_skips(struct rank *, const struct stream *, const struct item *, bool now);
/* The item was submitted: the team's items complete on its execution. */
void squash_join(struct rank *, struct item *, struct footprint *, const struct team *);
void squash_turn(struct rank *); /* called after the rank's streams were processed */
/* When to check again whether running work waits for held items; 0: none is held. */
uint64_t squash_deadline_ns(const struct rank *);
const char *squash_invalid(const struct rank *); /* NULL: valid; else the broken rule */

#endif
