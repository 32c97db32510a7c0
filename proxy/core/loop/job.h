/* job.h: a job epoch on this device (job.c). Only job.c writes it; other files read it. */
#ifndef RANKFOLD_JOB_H
#define RANKFOLD_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "barrier/barrier.h"
#include "collective/collective.h"
#include "job_limits.h"
#include "loop/alarm.h"
#include "loop/overhead.h"
#include "peer/peer.h"
#include "proxy.h"
#include "rank/world.h"

struct proxy;
struct rank;

/* The next goal for a job. A job has one goal at a time; a later value replaces an earlier one.
 * SAVE and LEAVE need a cut. */
enum job_goal {
	GOAL_RUN,
	GOAL_SAVE,    /* write every rank's image, stay at the cut, and return to RUN */
	GOAL_LEAVE,   /* write every rank's image and release the ranks */
	GOAL_DISCARD, /* release the ranks as they are */
};

struct job {
	struct job *next;
	struct proxy *proxy;
	struct world world;
	uint64_t id;
	uint32_t device, device_count;
	uint32_t rank_device[RANKS_MAX];
	int check_order; /* of its ranks: enum proxy_races, or 0; races.c */
	struct peer *peer;
	struct job_crosscheck crosscheck;    /* alarm.c */
	enum proxy_job_state reported_state; /* the state that Python knows */
	enum job_goal goal;
	uint64_t saved_bytes;
	uint64_t cut; /* the last cut's number, and its times */
	double cut_at, released_at;
	struct { /* of its communicators that span devices: job_links.c */
		uint64_t used, refused;
		char why_not[HAL_LINK_ID_BYTES]; /* of the last refusal */
	} links;
	uint64_t opened_ns, overhead_ns[OVERHEAD_KINDS]; /* overhead.c */
	uint64_t activity; /* requests and works of its ranks at the last job_hurry */
	char reason[512];
};

/* outboxes.c: closes those of the job; its collectives use them no more */
void outboxes_close(struct job *);

/* job_links.c: sets the functions for links */
void links_io(struct coll_io *);

/* job_io.c */
struct coll_io job_io(struct job *); /* the functions that its collective engine calls */

/* job.c */
struct job *job_find(struct proxy *, uint64_t id);
/* Copies `j`, in which the caller has set id, epoch, devices and ranks. */
int job_open(struct proxy *, const struct job *, int segment_fd, char *error, uint32_t error_bytes);
/* Removes it from the list and frees it. */
void job_close(struct proxy *, struct job *);
void job_turn(struct job *);
void job_fail(struct job *, const char *text);
void job_attached(struct rank *); /* adds the rank to its job */
void job_detached(struct rank *);
void job_rank_exited(struct job *, uint32_t rank, int how);
void job_rank_broken(struct rank *, const char *text); /* its ring is broken */
void job_barrier(struct job *, bool request);          /* or withdraw */
void job_hurry(struct job *); /* called regularly: hurries the barrier if nothing has happened
			       * since */
/* Sets the goal. Returns -1 if the job has a later goal, or is not at the cut that the goal
 * needs. */
int job_aim(struct job *, enum job_goal);
void job_check_order(struct job *, int races); /* of ranks that are attached from now on */

#endif
