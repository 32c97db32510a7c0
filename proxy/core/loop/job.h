/* job.h: a job epoch on this device (job.c). Who has one reads it; only job.c writes it. */
#ifndef RANKFOLD_JOB_H
#define RANKFOLD_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "barrier/barrier.h"
#include "collective/collective.h"
#include "job_limits.h"
#include "loop/guard.h"
#include "loop/lost.h"
#include "peer.h"
#include "proxy.h"

struct proxy;
struct rank;

/* What a job is brought to next. One goal at a time; a later one of these takes the place of an
 * earlier one. SAVE and LEAVE need a cut. */
enum job_goal {
	GOAL_RUN,
	GOAL_SAVE,    /* write every rank's image, and stay at the cut: then RUN again */
	GOAL_LEAVE,   /* write every rank's image and release the ranks */
	GOAL_DISCARD, /* release the ranks as they are */
};

struct job {
	struct job *next;
	struct proxy *proxy;
	uint64_t id, epoch;
	uint32_t device, device_count, world_size;
	uint32_t rank_device[RANKS_MAX];
	struct rank *ranks[RANKS_MAX]; /* local and attached, else NULL */
	uint32_t attached;
	int check_order; /* of its ranks: enum proxy_races, or 0; races.c */
	struct barrier *barrier;
	struct coll *coll;
	struct peer *peer;
	struct job_guard guard;   /* guard.c */
	struct launches launches; /* of hidden kernels; opaque/ */
	enum proxy_job_state state, told;
	enum job_goal goal;
	uint64_t saved_bytes;
	uint64_t cut; /* the last one's number, and when */
	double cut_at, released_at;
	uint64_t opened_ns, lost_ns[LOST_KINDS]; /* lost.c */
	uint64_t activity; /* at the last look: what its ranks requested and what was done */
	char reason[512];
};

/* job_io.c */
struct coll_io job_io(struct job *); /* what its collective engine is driven with */

/* job.c */
struct job *job_find(struct proxy *, uint64_t id);
/* Copies `j`, of which the caller has filled in what it is: id, epoch, devices, ranks. */
int job_open(struct proxy *, const struct job *, int segment_fd, char *error, uint32_t error_bytes);
/* Out of the list, and freed. */
void job_close(struct proxy *, struct job *);
void job_turn(struct job *);
void job_fail(struct job *, const char *text);
void job_attached(struct rank *); /* to its job; and it goes from there */
void job_detached(struct rank *);
void job_rank_exited(struct job *, uint32_t rank, int how);
void job_rank_broken(struct rank *, const char *text); /* its ring */
void job_barrier(struct job *, bool request);          /* or withdraw */
void job_hurry(struct job *); /* called now and then: has anything moved since? */
/* 0: that is its goal now. -1: it has a later one, or does not stand at a cut. */
int job_aim(struct job *, enum job_goal);
void job_check_order(struct job *, int races); /* of the ranks that come from now on */

#endif
