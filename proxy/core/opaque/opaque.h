/* opaque.h: opaque kernels, whose reads and writes nothing describes, such as machine code: each
 * launch is measured, and effects that were the same in all ranks of a device are trusted to be the
 * same again (Singularity §5.2.3, conservative validation). The files of this folder, from the
 * lowest to the highest layer: a file calls those above it in this list and no others
 * (tests/proxy/test_floors.py).
 *
 *   parts.c     contents of a rank's buffers, by checksums
 *   launches.c  what launches were seen to do, and what they are trusted to do
 *   measure.c   measures one launch
 *
 * A launch is identified by what a program repeats every mini-batch: the last collective before it,
 * the number of launches since then, its kernel and shape, and the addresses among its parameters.
 * Other numbers among these change between mini-batches.
 *
 * A measured launch runs alone in its rank, on memory that the rank owns, and the device computes
 * checksums of all of the rank's memory before and after it. The checksums of changed parts become
 * their versions. The device's ranks in the communicator vote: if a launch has left the same
 * content at the same addresses in all of them, twice, while no other launch became UNLIKE, it is
 * ALIKE: from then on it writes what it was seen to change, and reads what was the same in all of
 * them before it, by content and versions. So it has a key, and runs once for all ranks whose keys
 * agree. Otherwise it is UNLIKE: each rank runs it alone, and it writes what it was seen to change.
 * Every k-th occurrence is measured again.
 *
 * Rules:
 *  - trust is a guess, and lasts until something contradicts it. Where memory is write-protected, a
 *    write to any other place is noticed, and the launch is measured again;
 *  - launches of several ranks after the same collective are the same occurrence, even if one of
 *    them has skipped others. A decision holds from one occurrence on, in all ranks, so that a
 *    launch of all ranks is measured in all of them or in none;
 *  - if a launch that was alike differs, what ran once for several ranks may have been wrong since
 *    it was last measured: the caller is informed, and trusts nothing any more;
 *  - a launch that cannot be measured (its rank does not become quiet, or it waits for later items)
 *    is not measured, and may do anything.
 */
#ifndef RANKFOLD_OPAQUE_H
#define RANKFOLD_OPAQUE_H

#include <stdbool.h>
#include <stdint.h>

#include "crosscheck/crosscheck.h"
#include "job_limits.h"
#include "memory/memory.h"
#include "versions/digest.h"

/* ---- parts.c ---- */

struct part { /* of a buffer, or of none (0): within one page */
	uint64_t addr, bytes, buffer;
	uint64_t sum[2];
	struct version digest; /* of its versions */
};
struct parts { /* in order of address; begins as zeros */
	struct part *all;
	uint32_t count, capacity;
};
bool parts_add(struct parts *, const struct part *); /* false: host memory is short */
bool parts_copy(struct parts *, const struct parts *from);
/* Keeps the parts of `x` that `y` has with the same content and versions. */
void parts_intersect(struct parts *x, const struct parts *y);
/* Returns the same part with the same content, or NULL. `at`: where to begin; moves to where the
 * next one may be. */
const struct part *parts_unchanged(const struct parts *, uint32_t *at, const struct part *);
/* Adds to `changed` (empty) the parts of `after` that `before` lacks or has with other content. */
bool parts_changed(const struct parts *before, const struct parts *after, struct parts *changed);
struct version parts_digest(const struct parts *);
void parts_free(struct parts *);

/* The union of parts, as ranges. */
struct ranges {
	struct memory_range *all;
	uint32_t count, capacity;
};
/* Adds each part, and merges it with its neighbours. False: host memory is short. */
bool ranges_add(struct ranges *, const struct parts *);
bool ranges_add_one(struct ranges *, uint64_t addr, uint64_t bytes);
bool ranges_touch(const struct ranges *, uint64_t addr, uint64_t bytes);
void ranges_free(struct ranges *);

/* ---- launches.c ---- */

struct launches { /* of a job on a device; begins as zeros */
	struct watched **table;
	uint32_t count, capacity;
	bool has_measured[RANKS_MAX];
	uint64_t unlike;          /* how often a launch became UNLIKE */
	uint64_t measured, alike; /* number of measurements; launches that are ALIKE */
};

#define NO_OCCURRENCE UINT64_MAX

enum trust {
	TRUST_NOTHING, /* it may do anything */
	TRUST_MEASURE, /* it may do anything, and is to be measured */
	TRUST_UNLIKE,  /* it writes `writes` */
	TRUST_ALIKE,   /* it writes `writes`, and `reads` decide the content */
};
struct trusted {
	const struct ranges *writes, *reads;
	uint64_t occurrence;
};
/* Returns the trust in this rank's launch after the communicator's collective `number`. Each
 * `every`-th occurrence is measured. */
enum trust launches_trust(const struct launches *, struct version id, uint64_t number,
			  uint32_t rank, uint64_t every, struct trusted *);
/* True if the rank has measured none so far. Then all of its memory gets new versions. */
bool launches_first(const struct launches *, uint32_t rank);
/* The launch was submitted, or need not run. Returns its occurrence. */
uint64_t launches_done(struct launches *, struct version id, uint64_t number, uint32_t rank,
		       bool measured);
/* The launch wrote to these pages, which it was not trusted to do. */
void launches_surprised(struct launches *, struct version id, uint32_t rank, const uint32_t *pages,
			uint32_t count);
void launches_blind(struct launches *, struct version id, uint32_t rank); /* cannot be measured */

struct measured {
	struct version id;
	uint64_t occurrence;
	uint32_t rank;
	bool first;           /* this is the rank's first measurement */
	uint32_t voters;      /* ranks of this device that should measure it, too */
	uint64_t key, number; /* of the collective before it */
	struct parts before, after;
};
struct dissent { /* a launch that was alike differs */
	uint32_t rank, other;
	uint64_t key, number;             /* after this collective of the communicator */
	uint64_t equal_key, equal_number; /* when it was alike for the last time */
};
/* Adds a measurement as a vote. True: dissent. */
bool launches_vote(struct launches *, const struct measured *, struct dissent *);
void launches_forget(struct launches *);               /* all except the number of measurements */
const char *launches_invalid(const struct launches *); /* NULL: valid; else the broken rule */

/* ---- measure.c ---- */

enum measuring {
	MEASURES_NOTHING,
	MEASURE_WAITS,  /* for the rank's memory to become quiet */
	MEASURE_BEFORE, /* computes checksums before the launch */
	MEASURE_READY,  /* the launch may be submitted */
	MEASURE_RUNS,
	MEASURE_RAN,
	MEASURE_AFTER,
};
#define LAUNCH_NAME_BYTES 64u

struct measure { /* of a rank; begins as zeros */
	enum measuring state;
	const void *item; /* the one that is measured; only compared */
	uint64_t since_ns;
	char name[LAUNCH_NAME_BYTES];
	struct measured it;
	bool missed; /* something could not be checked */
	struct check check;
};
/* True while this item of the rank may not begin (NULL: while any item may not). */
static inline bool measure_holds(const struct measure *m, const void *item)
{
	return m->state != MEASURES_NOTHING && (m->state != MEASURE_READY || m->item != item);
}
static inline uint32_t measure_uses(const struct measure *m) { return check_uses(&m->check); }
/* Starts the measurement of the item. */
void measure_first(struct measure *, const void *item, const char *name,
		   const struct measured *what, uint64_t now_ns);
/* The READY item was submitted; it has completed. */
void measure_submitted(struct measure *, const void *item, uint64_t occurrence, uint64_t now_ns);
void measure_ran(struct measure *, const void *item);
enum measure_is { MEASURE_CONTINUES, MEASURE_CHANGED, MEASURE_DONE, MEASURE_FAILED };
/* Continues the measurement. `still`: nothing else of the rank is in progress; `gives_up`: the rank
 * has failed or is detached. OVER: `it` has the result, and the rank's versions describe its
 * memory. FAILED: the launch could not be measured. Call measure_end after both. */
enum measure_is measure_turn(struct measure *, struct rank_memory *, struct checks *, bool still,
			     bool gives_up, uint64_t now_ns);
uint64_t measure_deadline_ns(
	const struct measure *); /* time of the next turn at the latest; 0: none */
void measure_end(struct measure *);
const char *measure_invalid(const struct measure *); /* NULL: valid; else the broken rule */

#endif
