/* internal.h: the proxy, and what its loop's files see of one another. All structures belong to the
 * loop's thread: nothing is locked. Each has an owner, which alone writes it (job.h, slice.h,
 * lost.h, ask.h, intake.h, ending.h; a rank's parts: ../rank/rank.h). The room of each file:
 *
 *   loop.c      one turn: calls from Python, peers, device, rings, streams; sleep
 *   api.c       functions of proxy.h, each run in the loop
 *   mailbox.c   calls into the loop, events out of it
 *   ask.c       requests to Python and their replies
 *   rank.c      a rank comes and goes
 *   dispatch.c  takes records from the ring and finds the handler of each
 *   handle_….c  one handler per opcode: checks a record, then acts or queues
 *   slice.c     which rank may run kernels now (matrix products count as kernels)
 *   lost.c      what it costs a job that its ranks share the device
 *   races.c     what the check of a rank's order finds, as events
 *   guard.c     what is to be equal and is not: an alarm, and the job shares no more
 *   job_io.c    the collective engine's requests: memory, sums, peers, ranks
 *   job.c       a job epoch: barrier, collectives and peers put together
 *   state.c     a rank's state to and from its image; saved.c: one row per kind of record
 *
 * Streams and what lies in them: ../queue/.
 */
#ifndef RANKFOLD_INTERNAL_H
#define RANKFOLD_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "barrier/barrier.h"
#include "channel.h"
#include "clock.h"
#include "codes.h"
#include "collective/collective.h"
#include "hal.h"
#include "job_limits.h"
#include "loop/ask.h"
#include "loop/job.h"
#include "loop/lost.h"
#include "loop/mailbox.h"
#include "loop/opaque.h"
#include "loop/slice.h"
#include "memory/memory.h"
#include "memory/transfer.h"
#include "peer.h"
#include "proxy.h"
#include "queue/collective.h"
#include "queue/event.h"
#include "queue/fence.h"
#include "queue/group.h"
#include "queue/item.h"
#include "queue/pump.h"
#include "queue/stream.h"
#include "rank/fault.h"
#include "rank/comm.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "rank/ring.h"
#include "rank/table.h"
#include "turn.h"

#define STREAM_ITEMS_MAX 4096u /* weight of a rank's queued items; beyond it its ring waits */
#define STREAMS_MAX 4096u      /* of one rank: every turn looks at all of them */

struct proxy {
	const struct hal *hal;
	struct hal_device *device;
	struct hal_config hal_config;
	struct version arithmetic; /* of the device: what it computes has it in its versions */
	struct device_memory memory;
	struct transfers transfers;

	struct job *jobs;    /* job.c */
	struct rank **ranks; /* rank.c: all attached ones */
	uint32_t rank_count;
	struct slice slice; /* slice.c */
	struct lost lost;   /* lost.c */
	bool apart;         /* api.c: nothing is squashed, */
	bool unprepared;    /* api.c: no rank's memory comes before its turn, */
	uint64_t validate;  /* and at which collectives contents are compared; 0: never */
	bool opaque;        /* api.c: nothing is said of kernels */
	bool told_lost;     /* loop.c: PROXY_EVENT_LOST */
	struct checks checks;

	struct ask *asks; /* ask.c */
	uint64_t next_token;

	struct turn turn;
	struct rank_counters counters;
	uint64_t wakeups;

	struct mailbox *mailbox; /* mailbox.c: calls in, events out, doorbell */
};

/* loop.c */
void *loop_main(void *proxy);
void loop_turn(struct proxy *); /* what it does again and again */
/* When to look again though nobody calls; 0: never. */
uint64_t loop_deadline_ns(const struct proxy *);

/* valid.c */
const char *core_invalid(const struct proxy *); /* what is wrong, or NULL */
/* Check all counters and lists of the core, and abort if one is wrong. It takes too long for each
 * turn, and runs before a save: nothing that comes of a corrupted core gets into a checkpoint. */
void core_check(const struct proxy *);

/* rank lifecycle: rank.c */
struct rank *rank_attach(struct job *, uint32_t rank, int channel_fd, int image_fd, char *error,
			 uint32_t error_bytes);
void object_free(struct object *);    /* which is no stream, and in no table any more */
void rank_detach(struct rank *);      /* frees it; nothing of it may be in flight */
bool rank_quiet(const struct rank *); /* nothing in flight: may be saved or freed */
bool rank_drained(const struct rank *);

#endif
