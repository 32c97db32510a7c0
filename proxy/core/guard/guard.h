/* guard.h: equal versions are equal bytes: all sharing rests on that, and here it is watched. The
 * files of this room, from the lowest to the highest: one calls those above it here and no other
 * (tests/proxy/test_floors.py).
 *
 *   pairs.c   contents by versions, each with the checksum of its bytes: kept and compared
 *   check.c   a rank's buffers are gone through
 *
 * At each k-th collective of a communicator, and at the first eight after a placement, a rank stops
 * before the collective until its memory is quiet: then versions and bytes agree. The device
 * computes checksums of its buffers' parts, one for each page that a buffer touches, and each goes
 * to the device's pairs with the digest of the part's versions. What is there under the same digest
 * must have the same checksum, of whichever rank and device it is, and of whenever it was.
 *
 * Rules:
 *  - a part is looked at by its versions again when its checksum is there: if they have changed,
 *    something wrote to it meanwhile (a collective may), and nothing is said of it;
 *  - nothing is looked at in the memory of a rank that has failed;
 *  - a rank that does not become quiet in time goes on without: a kernel of it may wait for another
 *    one that is held up by this. After some of these the rank is not stopped any more, and that
 *    is told;
 *  - which parts are looked at depends on page and collective, and after a placement on those that
 *    were passed since: ranks that pass the same ones take the same.
 */
#ifndef RANKFOLD_GUARD_H
#define RANKFOLD_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"
#include "versions/digest.h"

/* ---- pairs.c ---- */

#define NO_CHUNK UINT32_MAX

struct witness { /* who had a content, where and when */
	uint32_t rank, device, chunk;
	uint32_t reserved;
	uint64_t addr, bytes;                     /* of the part, */
	uint64_t buffer, buffer_bytes, call_site; /* and its buffer */
	uint64_t key, number;                     /* at this collective of the communicator */
};
struct pair {
	struct version digest;
	uint64_t sum[2];
	struct witness who;
};
struct pairs { /* those that were seen last; begins as zeros */
	struct kept *kept;
	uint64_t clock;
};

enum pair_is {
	PAIR_NEW,
	PAIR_KNOWN,   /* the same was said at this collective already */
	PAIR_SAME,    /* and at another one */
	PAIR_DIFFERS, /* the same versions, other bytes: `other` had these */
};
enum pair_is pairs_add(struct pairs *, const struct pair *, struct witness *other);
/* Has this chunk been looked at with this content, at the same collective? */
bool pairs_seen(const struct pairs *, struct version digest, const struct witness *);
void pairs_close(struct pairs *);

/* ---- check.c ---- */

struct checks { /* a device's */
	const struct hal *hal;
	struct hal_device *device;
	struct hal_stream *stream; /* made for the first one */
	uint64_t parts;            /* that were looked at */
};

enum check_state {
	CHECK_NONE,
	CHECK_WAITS, /* for the rank's memory to be quiet */
	CHECK_RUNS,
};

struct check_part {
	struct pair pair;
	uint64_t hal_seq;
};

struct check {          /* a rank's; begins as zeros */
	uint64_t every; /* 0: never */
	uint32_t device;
	uint32_t due; /* parts, one bit each, whose turn has not been since it came */
	enum check_state state;
	uint64_t key, number; /* where it stops, or did last */
	uint64_t since_ns;
	uint32_t vain;  /* how often it was not quiet in time, one after the other */
	uint32_t looks; /* at which parts, one bit each */
	bool missed;    /* some part could not be looked at */
	struct check_part *parts;
	uint32_t count, room, submitted, done;
};

/* `device`: of its job; `arrives`: from another placement. */
void check_open(struct check *, uint64_t every, uint32_t device, bool arrives);
void check_close(struct check *);
/* Is the rank to be looked at before these `count` collectives of a communicator, from `number` on?
 * Then it is held up until that is over. */
bool check_first(struct check *, uint64_t key, uint64_t number, uint64_t count, uint64_t now_ns);
/* Every part is looked at, from now on, and what lies between buffers: the rank's memory is quiet.
 */
void check_all(struct check *, struct rank_memory *, struct checks *, const struct pairs *);
/* Is the rank not stopped any more, because it was not quiet in time too often? */
bool check_gave_up(const struct check *);
/* Has some part not been, which it should? */
static inline bool check_missed(const struct check *c) { return c->missed; }
/* Nothing of the rank begins meanwhile. */
static inline bool check_holds(const struct check *c) { return c->state != CHECK_NONE; }
uint64_t check_deadline_ns(const struct check *); /* when to look again at the latest; 0: never */
/* Works of the rank's that it counts as submitted (memory_use). */
static inline uint32_t check_uses(const struct check *c) { return c->state == CHECK_RUNS; }
/* Goes on with it; `gives_up`: the rank has failed or goes. What is found is told. True: something
 * has changed. */
bool check_turn(struct check *, struct rank_memory *, struct checks *, const struct pairs *,
		bool gives_up, uint64_t now_ns, void (*told)(void *arg, const struct pair *),
		void *arg);
static inline bool checks_open(struct checks *c, const struct hal *hal, struct hal_device *device)
{
	*c = (struct checks){.hal = hal, .device = device};
	return true;
}
void checks_close(struct checks *); /* no work is under way */

#endif
