/* barrier.h: the consistent cut: where all ranks of a job stop (Singularity §4.3.1).
 *
 * A pure state machine, one per (job epoch, device): no I/O, no clock, no thread. The proxy's loop
 * feeds it events and sends its messages; the tests drive the same code with arbitrary
 * interleavings.
 *
 * Placement: `device` is this device's index, 0 … device_count - 1; device 0 is the lowest and
 * answers the meta-allreduce. rank_device[r] is the device of rank r, for all ranks of the job.
 *
 * See barrier.c for the protocol.
 */
#ifndef RANKFOLD_BARRIER_H
#define RANKFOLD_BARRIER_H

#include <stdbool.h>
#include <stdint.h>
#include "job_limits.h"

struct barrier;

/* A message to another device (or to this one: the caller loops it back). Delivery is reliable and
 * in order for each pair of devices; no order is assumed between pairs. */
struct barrier_message {
	uint32_t from, to;   /* device indices */
	uint32_t kind, rank; /* private to the barrier */
	uint64_t comm;       /* job-wide communicator key, see barrier_issue */
	uint64_t a, b, c, d; /* private */
};

enum barrier_state {
	BARRIER_STEADY,   /* phase 1: no stop was requested */
	BARRIER_STOPPING, /* phase 2: on the way to the cut, or leaving it: then it is */
			  /* released here, nothing is consumed yet, and a save is too late */
	BARRIER_CUT,      /* reached everywhere: nothing is in flight, nothing may be consumed */
};

struct barrier *barrier_new(uint32_t device, uint32_t device_count, uint32_t world_size,
			    const uint32_t *rank_device);
void barrier_free(struct barrier *);

/* A communicator (key `comm`, never 0) was created for this rank: all its members have joined.
 * members are job ranks. Call it on every device for each of its member ranks, in program order of
 * that rank; and again when a rank is restored: `issued` is then the number of rounds so far, which
 * at a cut is the same for all members. Ends what barrier_joining began. */
void barrier_comm(struct barrier *, uint32_t rank, uint64_t comm, const uint32_t *members,
		  uint32_t count, uint64_t issued);
/* Sends from job rank src to job rank dst on one communicator are a channel of their own: a send is
 * a round on it for src, a receive is one for dst. Either calls this before it first uses the key,
 * any number of times. Not needed for sends to oneself. */
void barrier_pair(struct barrier *, uint32_t rank, uint64_t key, uint32_t src, uint32_t dst);
/* The rank destroyed the communicator, or the joining failed. */
void barrier_comm_end(struct barrier *, uint32_t rank, uint64_t comm);
/* The rank aborted it (a communicator or a pair): it has left, regardless of rounds it had
 * issued. */
void barrier_abort(struct barrier *, uint32_t rank, uint64_t comm);
/* Another member aborted it, so a round may never complete. From now on the rank owes no round on
 * it; but while it waits for one that it has issued, all ranks may continue, until it leaves,
 * too. */
void barrier_broken(struct barrier *, uint32_t rank, uint64_t comm);

/* True if the rank's next record, a round on `comm`, may be consumed now. A round is
 *  - the end of an outermost group, once per communicator on which it has a collective and once per
 *    barrier_pair channel and send or receive: request all in ascending order of key, and consume
 *    the group if all are allowed;
 *  - a COMM_SPLIT: a round on the parent, complete when it is answered;
 *  - a COMM_INIT: call this with comm 0, then barrier_joining instead of barrier_issue.
 * A refusal is remembered: the rank waits at that round. Call again after any event. signature:
 * equal for the same place of every mini-batch, different for different places as far as possible
 * (communicator, operations, counts, what ran before). */
bool barrier_may_issue(struct barrier *, uint32_t rank, uint64_t comm);
void barrier_issue(struct barrier *, uint32_t rank, uint64_t comm, uint64_t signature);
/* That round is complete: its results are delivered on this rank's stream. In issue order per
 * comm. */
void barrier_complete(struct barrier *, uint32_t rank, uint64_t comm);
/* The rank's COMM_INIT was consumed; it waits until nranks have joined under this key. barrier_comm
 * or barrier_comm_end ends it. */
void barrier_joining(struct barrier *, uint32_t rank, uint64_t comm, uint32_t nranks);
/* True if any record of the rank's ring may be consumed. False once no rank owes a round: then
 * streams drain. A rank that is not idle may still be given records other than rounds if its
 * streams cannot drain otherwise (a host function's HOST_DONE), except at the cut. */
bool barrier_may_consume(const struct barrier *, uint32_t rank);
/* The rank has neither work in its streams nor an unanswered request (idle; also before its first
 * record), or has again. Call it before the next barrier_next_message. */
void barrier_idle(struct barrier *, uint32_t rank, bool idle);
void barrier_exited(struct barrier *, uint32_t rank);

/* Requests a stop. One device is enough; a second request has no effect. At the cut, the same cut
 * answers a request, unless it was released meanwhile (also on another device): then a new cut
 * does. Until device 0 has decided which, this device does not report that it is at the cut. */
void barrier_request(struct barrier *);
/* Withdraws every request that device 0 has received when this reaches it: the job becomes steady
 * if the stop has not spread; otherwise it reaches the cut and is released then (at once, if
 * already at the cut). A caller that requests again right away must use the device that withdrew,
 * or (if that was device 0) any. */
void barrier_withdraw(struct barrier *);
/* Ends the cut; all ranks continue in this epoch. Call it on any device that is at the cut. */
void barrier_release(struct barrier *);
/* The caller's clock shows that nothing has moved for long. If stopping: ranks stop where they are;
 * if some owe rounds already, all may continue until none owes. If steady, a rank was refused, and
 * nothing is resolved after 30 such calls: ranks wait for one another outside of their
 * communicators, so the bound on unresolved rounds is dropped. */
void barrier_hurry(struct barrier *);

void barrier_receive(struct barrier *, const struct barrier_message *);
bool barrier_next_message(struct barrier *, struct barrier_message *);

enum barrier_state barrier_state(const struct barrier *);
/* The job-wide number of this cut, for logs; 0 before the first. */
uint64_t barrier_round(const struct barrier *);
/* For logs and tests: the number of rounds that local ranks ran after the cut was called, to catch
 * up (0 if the meta-allreduce decided alone), and how many unresolved rounds a rank may have. */
uint64_t barrier_catch_up(const struct barrier *);
uint32_t barrier_window(const struct barrier *, uint32_t rank);
/* Returns the text of an error (a broken message, or a call that breaks these rules), else NULL.
 * Fail the job then. */
const char *barrier_error(const struct barrier *);
/* Returns which of its own counts and tables disagree, which is a bug of rankfold; NULL: none. */
const char *barrier_invalid(const struct barrier *);
/* True if rounds of the rank on this communicator count: it has not aborted or destroyed it. */
bool barrier_counts(const struct barrier *, uint32_t rank, uint64_t comm);

#endif
