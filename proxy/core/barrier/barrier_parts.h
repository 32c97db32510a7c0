/* barrier_parts.h: what the barrier's files share; no other file includes it. From the lowest to
 * the highest layer: a file calls those above it in this list and no others
 * (tests/proxy/test_floors.py).
 *
 *   messages.c     failure, messages on their way out
 *   rounds.c       a hash table of rounds by rank and communicator
 *   tandem.c       a device's half of the tandem meta-allreduce
 *   vector.c       a device's half of the cut vector
 *   valid.c        checks that counts and tables agree
 *   coordinator.c  device 0's half of both
 *   barrier.c      the caller's reports, messages in, the protocol as a whole
 */
#ifndef RANKFOLD_BARRIER_PARTS_H
#define RANKFOLD_BARRIER_PARTS_H

#include "barrier.h"
#include "invariant.h"

#define KEYS 128u    /* remembered rounds per rank; more unresolved ones turn off the tandem */
#define PATIENCE 30u /* hurries in steady state, without a round resolved, before giving up */
#define WINDOW_MIN 2u
#define WINDOW_MAX 64u /* also while the period is unknown */

enum kind {
	/* to the coordinator */
	REQUEST,
	WITHDRAW,
	RELEASE,
	HURRY,
	GIVE_UP,
	EXITED,
	TANDEM,
	COUNT,
	RAISE,
	REPORTED,
	STAND,
	/* from the coordinator */
	VERDICT,
	OFF,
	FREEZE,
	TARGET,
	LEVEL,
	CUT,
	STEADY,
	BROKEN,
	KINDS,
};

enum level { DRAIN = 0, CATCH_UP = 1, LET_GO = 2 };

/* The state of one communicator, or of one rank on one communicator. */
struct entry {
	uint64_t comm;
	uint32_t rank; /* in a table of targets: 0 */
	uint32_t nranks;
	uint64_t issued; /* rounds; in a table of targets: the target */
	uint64_t complete;
	uint64_t raised;  /* RAISE was sent up to here */
	uint32_t joining; /* waits for the others; in the coordinator's targets: how many do */
	uint32_t joined;  /* coordinator's targets: number of ranks past the joining */
	bool spans, ended;
	bool broken;       /* a member aborted it; in a table of targets: all devices know */
	uint32_t src, dst; /* of a pair; else equal */
};

/* A hash table of entries by (rank, comm). Entries stay until the table is cleared. */
struct rounds {
	struct entry *entry;
	uint32_t *slot; /* entry number + 1, 0: free */
	uint32_t count,
		capacity; /* capacity: number of slots, a power of two; at most half are used */
};

struct barrier_rank {
	uint32_t device;
	bool idle, exited;
	bool refused; /* its next record may not be consumed: a round on refused_comm */
	uint64_t refused_comm;
	uint32_t joining;      /* number of joinings in which it waits */
	uint64_t behind_count; /* communicators on which it is below the target */
	/* the tandem's view: rounds on communicators that span the job */
	uint64_t round, complete;
	uint64_t keys[KEYS], signatures[KEYS];
	uint32_t matches[WINDOW_MAX + 1]; /* [p]: rounds for which period p has held */
	uint32_t period;                  /* 0: unknown */
	uint32_t longest;                 /* matches of a period that proved wrong */
};

enum stage { RUNNING, FROZEN, STOPPED };

/* Device 0 only. */
struct coordinator {
	enum stage stage;
	uint64_t generation, cuts;
	bool wanted; /* requested, and not withdrawn since */
	bool spread; /* some verdict of this generation had need > 0 */
	bool off;    /* the tandem cannot decide any more */
	bool hurried;
	uint32_t exited;
	uint64_t requests[DEVICES_MAX], withdrawals[DEVICES_MAX];
	/* the meta-allreduce in progress: round verdict + 1 */
	uint64_t verdict, need, ack, comm;
	uint32_t offers;
	bool offered[DEVICES_MAX], mismatch;
	uint32_t living[DEVICES_MAX];
	/* the cut vector */
	uint32_t level;
	uint64_t version; /* of the last LEVEL */
	uint32_t reported, drained_count;
	struct rounds reports, targets;
};

struct barrier {
	uint32_t device, device_count, world_size;
	struct barrier_rank *ranks;
	struct rounds members; /* of local ranks */
	struct rounds targets;

	uint64_t generation, cuts;
	bool requested;                 /* this device has requested a stop in this generation */
	uint64_t requests, withdrawals; /* number sent; a release counts as a withdrawal */
	bool stopping;                  /* phase 2 */
	bool off;
	uint64_t verdict; /* the last round with a known verdict */
	uint64_t offered; /* the last round that this device has offered */
	bool frozen, cut;
	bool leaving; /* STEADY may follow: withdrawn, released, or requested at the cut */
	uint32_t level;
	uint64_t version, stood;
	uint64_t catch_up;
	uint32_t hurries; /* in steady state, since a round was resolved */

	struct coordinator lead;

	struct barrier_message *queue; /* ring of queue_capacity, a power of two */
	uint32_t queue_capacity, queue_head, queue_count;
	char error[160];
};

/* messages.c */
void barrier_fail(struct barrier *, const char *what, uint32_t rank, uint64_t comm);
void barrier_send(struct barrier *, struct barrier_message);     /* m.to: the receiver */
void barrier_send_all(struct barrier *, struct barrier_message); /* including this device */
bool barrier_local(const struct barrier *, uint32_t rank);       /* a valid rank, and here */
/* Returns the caller's rank; NULL, and an error, if it is not on this device. */
struct barrier_rank *barrier_checked(struct barrier *, uint32_t rank, const char *what);

/* coordinator.c */
void coordinator_receive(struct barrier *, const struct barrier_message *);

/* rounds.c */
struct entry *rounds_get(const struct rounds *, uint32_t rank, uint64_t comm); /* NULL: none */
struct entry *rounds_put(struct barrier *, struct rounds *, uint32_t rank, uint64_t comm);
void rounds_clear(struct rounds *);
void rounds_free(struct rounds *);

/* tandem.c */
void tandem_offer(struct barrier *); /* offers the next round, if it is due */
bool tandem_allows(const struct barrier *, const struct barrier_rank *);
void tandem_issue(struct barrier *, struct barrier_rank *, uint64_t comm, uint64_t signature);
uint32_t tandem_window(const struct barrier_rank *);
void tandem_give_up(struct barrier *);

/* vector.c */
uint64_t vector_target(const struct barrier *, uint64_t comm);
bool vector_behind(const struct barrier *, const struct barrier_rank *);
bool vector_behind_on(const struct barrier *, const struct entry *);
void vector_on_broken(struct barrier *, uint64_t comm);
/* Returns the entry of a rank, to be overwritten; NULL without memory. The rank's counts then no
 * longer include the old entry. A rank may join a communicator twice by mistake. */
struct entry *vector_replace(struct barrier *, struct barrier_rank *, uint32_t rank, uint64_t comm);
void vector_member(struct barrier *, struct entry); /* replaces the entry of a rank */
void vector_report(struct barrier *, const struct entry *);
/* A rank that owes a round, but waits at a round past its target, requests a higher one. */
void vector_request_raise(struct barrier *, uint32_t rank);
void vector_stand(struct barrier *);
void vector_freeze(struct barrier *);
void vector_on_target(struct barrier *, uint64_t comm, uint64_t to, uint32_t src, uint32_t dst);
void vector_on_level(struct barrier *, uint32_t level, uint64_t version);

#endif
