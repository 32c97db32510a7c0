/* crosscheck.h: the cross-check. All sharing relies on the rule that equal versions are equal
 * bytes; this folder tests it. The files, from the lowest to the highest layer: a file calls those
 * above it in this list and no others (tests/proxy/test_floors.py).
 *
 *   pairs.c   known contents by version, each with the checksum of its bytes: kept and compared
 *   check.c   checks a rank's buffers
 *
 * At each k-th collective of a communicator, and at the first eight after a placement, a rank stops
 * before the collective until its memory is quiet: then versions and bytes agree. The device
 * computes checksums of parts of its buffers, one part for each page that a buffer touches. Each
 * checksum goes to the device's pairs with the digest of the part's versions. Contents with the
 * same digest must have the same checksum, for all ranks, devices and times.
 *
 * Rules:
 *  - the versions of a part are read again when its checksum has arrived: if they have changed,
 *    something wrote to it meanwhile (a collective may), and the part is not compared;
 *  - the memory of a failed rank is not checked;
 *  - a rank that does not become quiet in time continues unchecked: one of its kernels may wait for
 *    another one that is held up by the check. After several times in a row the rank is not stopped
 *    any more, and its status reports that;
 *  - which parts are checked depends on page and collective, and after a placement on the
 *    collectives since then: ranks at the same collectives choose the same parts.
 */
#ifndef RANKFOLD_CROSSCHECK_H
#define RANKFOLD_CROSSCHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/memory.h"
#include "versions/digest.h"

/* ---- pairs.c ---- */

#define NO_CHUNK UINT32_MAX

struct witness { /* where and when a content was seen */
	uint32_t rank, device, chunk;
	uint32_t reserved;
	uint64_t addr, bytes;                     /* of the part */
	uint64_t buffer, buffer_bytes, call_site; /* of its buffer */
	uint64_t key, number;                     /* at this collective of the communicator */
};
struct pair {
	struct version digest;
	uint64_t sum[2];
	struct witness who;
};
struct pairs { /* the contents seen last; begins as zeros */
	struct kept *kept;
	uint64_t clock;
};

enum pair_is {
	PAIR_NEW,
	PAIR_KNOWN,   /* the same was reported at this collective already */
	PAIR_SAME,    /* the same was reported at another collective */
	PAIR_DIFFERS, /* the same versions, other bytes: `other` had these */
};
enum pair_is pairs_add(struct pairs *, const struct pair *, struct witness *other);
/* True if this chunk was checked with this content at the same collective. */
bool pairs_seen(const struct pairs *, struct version digest, const struct witness *);
void pairs_close(struct pairs *);

/* ---- check.c ---- */

struct checks { /* of a device */
	const struct hal *hal;
	struct hal_device *device;
	struct hal_stream *stream; /* created at the first use */
	uint64_t parts;            /* that were checked */
};

enum check_state {
	CHECK_NONE,
	CHECK_WAITS, /* for the rank's memory to become quiet */
	CHECK_RUNS,
};

struct check_part {
	struct pair pair;
	uint64_t hal_seq;
};

struct check {          /* of a rank; begins as zeros */
	uint64_t every; /* 0: never */
	uint32_t device;
	uint32_t due; /* parts, one bit each, not yet checked since the rank arrived */
	enum check_state state;
	uint64_t key, number; /* where it stops, or stopped last */
	uint64_t since_ns;
	uint32_t fruitless; /* how often in a row it was not quiet in time */
	uint32_t looks;     /* the parts to check now, one bit each */
	bool missed;        /* some part could not be checked */
	struct check_part *parts;
	uint32_t count, capacity, submitted, done;
};

/* `device`: index in its job; `arrives`: from another placement. */
void check_open(struct check *, uint64_t every, uint32_t device, bool arrives);
void check_close(struct check *);
/* Starts a check if one is due before these `count` collectives of a communicator, from `number`
 * on. True: the rank waits until the check is complete. */
bool check_first(struct check *, uint64_t key, uint64_t number, uint64_t count, uint64_t now_ns);
/* Starts a check of every part, and of memory between buffers. The rank's memory must be quiet. */
void check_all(struct check *, struct rank_memory *, struct checks *, const struct pairs *);
/* True if the rank is not stopped any more, because it was not quiet in time too often. */
bool check_gave_up(const struct check *);
/* True if some part should have been checked and was not. */
static inline bool check_missed(const struct check *c) { return c->missed; }
/* True while nothing of the rank may begin. */
static inline bool check_holds(const struct check *c) { return c->state != CHECK_NONE; }
const char *check_invalid(const struct check *);  /* NULL: valid; else the broken rule */
uint64_t check_deadline_ns(const struct check *); /* time of the next turn at the latest; 0: none */
/* Works that count as submitted for the rank (memory_use). */
static inline uint32_t check_uses(const struct check *c) { return c->state == CHECK_RUNS; }
/* Continues the check; `gives_up`: the rank has failed or is detached. Calls `report` with each
 * pair of contents that was compared. Returns true if something has changed. */
bool check_turn(struct check *, struct rank_memory *, struct checks *, const struct pairs *,
		bool gives_up, uint64_t now_ns, void (*report)(void *arg, const struct pair *),
		void *arg);
static inline bool checks_open(struct checks *c, const struct hal *hal, struct hal_device *device)
{
	*c = (struct checks){.hal = hal, .device = device};
	return true;
}
void checks_close(struct checks *); /* no work is in progress */

#endif
