/* internal.h: struct proxy, and what the files of its loop share. All structures belong to the
 * loop's thread: there are no locks. Each structure has an owner, which alone writes it (job.h,
 * slice.h, overhead.h, python_request.h, intake.h; parts of a rank: ../rank/rank.h). The
 * files:
 *
 *   loop.c            one turn: calls from Python, peers, device, rings, streams; sleep
 *   api.c             functions of proxy.h, each run in the loop; status.c: those that report state
 *   mailbox.c         calls into the loop, events out of it
 *   python_request.c  requests to Python and their replies
 *   rank.c            attaches and detaches a rank
 *   dispatch.c        takes records from the ring and finds the handler of each
 *   handle_….c        one handler per opcode: checks a record, then acts or queues
 *   slice.c           which rank may run kernels now (matrix products count as kernels)
 *   overhead.c        overhead: what it costs a job that its ranks share the device
 *   races.c           reports unordered accesses of a rank as events
 *   alarm.c           alarms of the cross-check, after which the job shares nothing more
 *   job_links.c       links of a job's communicators to its other devices
 *   job_io.c          serves the collective engine: memory, sums, peers, ranks
 *   job.c             a job epoch: connects barrier, collectives and peers
 *   state.c           a rank's state to and from its image; saved.c: one row per kind of record
 *
 * Streams and their items: ../queue/.
 */
#ifndef RANKFOLD_INTERNAL_H
#define RANKFOLD_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "crosscheck/crosscheck.h"
#include "hal.h"
#include "loop/overhead.h"
#include "loop/slice.h"
#include "memory/transfer.h"
#include "rank/device.h"

struct job;
struct object;
struct python_request;
struct rank;

struct proxy {
	struct device device; /* as lower folders know it */
	struct hal_config hal_config;
	struct transfers transfers;

	struct job *jobs;         /* job.c */
	struct slice slice;       /* slice.c */
	struct overhead overhead; /* overhead.c */
	bool no_prefetch;         /* api.c: no rank's memory is prefetched */
	bool opaque;              /* api.c: closed kernels are treated as opaque */
	bool lost_reported;       /* loop.c: PROXY_EVENT_LOST was sent */
	struct checks checks;

	struct python_request *python_requests; /* python_request.c */
	uint64_t next_token;

	uint64_t wakeups;

	struct mailbox *mailbox; /* mailbox.c: calls in, events out, doorbell */
};

/* loop.c */
void *loop_main(void *proxy);
void loop_turn(struct proxy *); /* one turn */
/* The time of the next turn if no doorbell rings; 0: none. */
uint64_t loop_deadline_ns(const struct proxy *);

/* valid.c */
const char *core_invalid(const struct proxy *); /* a description of what is wrong, or NULL */
/* Checks all counters and lists of the core, and aborts if one is wrong. This takes too long for
 * every turn. It runs before a save, so that no state of a corrupted core gets into a
 * checkpoint. */
void core_check(const struct proxy *);

/* rank lifecycle: rank.c */
struct rank *rank_attach(struct job *, uint32_t rank, int channel_fd, int image_fd, char *error,
			 uint32_t error_bytes);
void object_free(struct object *);    /* not a stream, and removed from all tables */
void rank_detach(struct rank *);      /* frees the rank; nothing of it may be in flight */
bool rank_quiet(const struct rank *); /* nothing in flight: may be saved or freed */
bool rank_drained(const struct rank *);

#endif
