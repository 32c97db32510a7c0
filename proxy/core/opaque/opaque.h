/* opaque.h: kernels of which nothing says what they read and write, as of machine code: what each
 * does is measured, and what has been the same for all ranks of a device is trusted to be so again
 * (Singularity §5.2.3, conservative validation). Files of this room, from the lowest to the
 * highest: one calls those above it here and no other (tests/proxy/test_floors.py).
 *
 *   parts.c     what a rank's buffers hold, by checksums
 *   launches.c  what launches were seen to do, and what they are trusted to do
 *   measure.c   one launch is measured
 *
 * A launch is known by what the program does every mini-batch: the last collective before it, how
 * many launches lie between, its kernel and shape and the addresses among its parameters. Other
 * numbers among them change from one mini-batch to the next.
 *
 * It is measured: it runs alone in its rank, on memory of the rank's own, and the device computes
 * checksums of all of the rank's memory before and after it. What it has changed gets its checksum
 * as its version. The device's ranks in the communicator vote: if a launch has left the same at the
 * same addresses in all of them, two times, while no other launch came to be UNLIKE, it is ALIKE:
 * from then on it writes what it was seen to change, and reads what was the same in all of them
 * before it, by content and versions. It has a key, and runs once for all whose keys agree. If it
 * has not, it is UNLIKE: each rank runs it alone, and it writes what it was seen to change. Every
 * k-th time it is measured again.
 *
 * Rules:
 *  - what is trusted is a guess, and only for as long as nothing speaks against it. Where memory is
 *    guarded a write to anywhere else is noticed, and the launch is measured anew;
 *  - what ranks do after the same collective is the same occurrence of a launch, also where one of
 *    them has left others out. A decision holds from one occurrence on, in all of them, so that
 *    what all do alike is measured in all of them or in none;
 *  - a difference where a launch was alike before means that what ran once for several ranks may
 *    have been wrong since it was last measured: the caller is told, and trusts nothing any more;
 *  - a launch that cannot be measured (its rank does not become quiet, or it waits for what is
 *    behind it) is not, and may do anything.
 */
#ifndef RANKFOLD_OPAQUE_H
#define RANKFOLD_OPAQUE_H

#include <stdbool.h>
#include <stdint.h>

#include "guard/guard.h"
#include "job_limits.h"
#include "memory/memory.h"
#include "versions/digest.h"

/* ---- parts.c ---- */

struct part { /* of a buffer, or (0) of none: on one page */
	uint64_t addr, bytes, buffer;
	uint64_t sum[2];
	struct version digest; /* of its versions */
};
struct parts { /* in order of address; begins as zeros */
	struct part *all;
	uint32_t count, room;
};
bool parts_add(struct parts *, const struct part *); /* false: host memory is short */
bool parts_copy(struct parts *, const struct parts *from);
/* Of `x` only those stay that `y` has, with the same content and versions. */
void parts_both(struct parts *x, const struct parts *y);
/* The same part with the same content; `at`: where to begin, and where the next one may be. */
const struct part *parts_unchanged(const struct parts *, uint32_t *at, const struct part *);
/* Into `changed` (empty): those of `after` that `before` does not have, or with other content. */
bool parts_changed(const struct parts *before, const struct parts *after, struct parts *changed);
struct version parts_digest(const struct parts *);
void parts_free(struct parts *);

/* Ranges that parts cover together. */
struct ranges {
	struct memory_range *all;
	uint32_t count, room;
};
/* Each part into them, beside its neighbour. False: host memory is short. */
bool ranges_add(struct ranges *, const struct parts *);
bool ranges_add_one(struct ranges *, uint64_t addr, uint64_t bytes);
bool ranges_touch(const struct ranges *, uint64_t addr, uint64_t bytes);
void ranges_free(struct ranges *);

/* ---- launches.c ---- */

struct launches { /* those of a job on a device; begins as zeros */
	struct watched **table;
	uint32_t count, room;
	bool has_measured[RANKS_MAX];
	uint64_t unlike;          /* how often one came to be so */
	uint64_t measured, alike; /* how often one was measured; how many are trusted to be alike */
};

#define NO_OCCURRENCE UINT64_MAX

enum trust {
	TRUST_NOTHING, /* it may do anything */
	TRUST_MEASURE, /* so, and it is to be measured */
	TRUST_UNLIKE,  /* it writes `writes` */
	TRUST_ALIKE,   /* and what that comes to follows from `reads` */
};
struct trusted {
	const struct ranges *writes, *reads;
	uint64_t occurrence;
};
/* That of this rank after the communicator's collective `number`; each `every`-th is measured. */
enum trust launches_trust(const struct launches *, struct version id, uint64_t number,
			  uint32_t rank, uint64_t every, struct trusted *);
/* Has the rank measured none so far? Then all that lies there gets a new version. */
bool launches_first(const struct launches *, uint32_t rank);
/* It has been submitted, or need not be. Returns which occurrence it was. */
uint64_t launches_done(struct launches *, struct version id, uint64_t number, uint32_t rank,
		       bool measured);
/* It wrote to these pages, which it was not trusted to. */
void launches_surprised(struct launches *, struct version id, uint32_t rank, const uint32_t *pages,
			uint32_t count);
void launches_blind(struct launches *, struct version id, uint32_t rank); /* cannot be measured */

struct measured {
	struct version id;
	uint64_t occurrence;
	uint32_t rank;
	bool first;           /* that the rank measures */
	uint32_t voters;      /* ranks of this device that should measure it, too */
	uint64_t key, number; /* of the collective before it */
	struct parts before, after;
};
struct dissent { /* what was alike was not this time */
	uint32_t rank, other;
	uint64_t key, number;           /* after this collective of the communicator */
	uint64_t held_key, held_number; /* when it last was alike */
};
/* True: dissent. */
bool launches_vote(struct launches *, const struct measured *, struct dissent *);
void launches_forget(struct launches *); /* but for how often one was measured */

/* ---- measure.c ---- */

enum measuring {
	MEASURES_NOTHING,
	MEASURE_WAITS,  /* for the rank's memory to be quiet */
	MEASURE_BEFORE, /* the launch: checksums */
	MEASURE_READY,  /* it may be submitted */
	MEASURE_RUNS,
	MEASURE_RAN,
	MEASURE_AFTER,
};
#define LAUNCH_NAME_BYTES 64u

struct measure { /* a rank's; begins as zeros */
	enum measuring state;
	const void *item; /* which is measured; only compared */
	uint64_t since_ns;
	char name[LAUNCH_NAME_BYTES];
	struct measured it;
	bool missed; /* something could not be looked at */
	struct check check;
};
/* Nothing of the rank but this item begins meanwhile. */
static inline bool measure_holds(const struct measure *m, const void *item)
{
	return m->state != MEASURES_NOTHING && (m->state != MEASURE_READY || m->item != item);
}
static inline uint32_t measure_uses(const struct measure *m) { return check_uses(&m->check); }
/* The item is to be measured: begins with that. */
void measure_first(struct measure *, const void *item, const char *name,
		   const struct measured *what, uint64_t now_ns);
/* READY, and now submitted; complete. */
void measure_submitted(struct measure *, const void *item, uint64_t occurrence, uint64_t now_ns);
void measure_ran(struct measure *, const void *item);
enum measure_is { MEASURE_GOES_ON, MEASURE_CHANGED, MEASURE_OVER, MEASURE_FAILED };
/* `still`: nothing else of the rank is under way; `gives_up`: the rank has failed or goes. OVER:
 * all is in `it`, and the rank's versions say what lies where; FAILED: it could not be measured.
 * Then measure_end. */
enum measure_is measure_turn(struct measure *, struct rank_memory *, struct checks *, bool still,
			     bool gives_up, uint64_t now_ns);
uint64_t measure_deadline_ns(
	const struct measure *); /* when to look again at the latest; 0: never */
void measure_end(struct measure *);

#endif
