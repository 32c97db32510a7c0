/* internal.h: the structures of the proxy's loop. All are owned by the loop thread; nothing
 * here is locked. The room of each file:
 *
 *   loop.c      one turn: calls from Python, peers, device, rings, streams; sleep
 *   api.c       functions of proxy.h, each run in the loop
 *   mailbox.c   calls into the loop, events out of it
 *   ask.c       requests to Python and their replies
 *   rank.c      a rank comes and goes
 *   dispatch.c  takes records from the ring and finds the handler of each
 *   handle_….c  one handler per opcode: checks a record, then acts or queues
 *   slice.c     which rank may run kernels now (matrix products count as kernels)
 *   job_io.c    the collective engine's requests: memory, sums, peers, ranks
 *   job.c       a job epoch: barrier, collectives and peers put together
 *   state.c     a rank's state to and from its image; saved.c: one row per kind of record
 *
 * A rank's channel, handles and sticky error: ../rank/. Streams and what lies in them: ../queue/.
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
#include "rank/module.h"
#include "rank/ring.h"
#include "rank/table.h"

#define STREAM_ITEMS_MAX 4096u /* weight of a rank's queued items; beyond it its ring waits */
#define MODULE_BYTES_MAX (1ull << 30) /* of the images of one rank that are on their way */
#define STREAMS_MAX 4096u             /* of one rank: every turn looks at all of them */

/* ---- handles ---- */

struct comm {
	struct object o;
	uint64_t key;               /* job-wide; 0 until joined */
	uint64_t issued;            /* rounds on `key` */
	uint64_t queued, submitted; /* groups: the engine gets them in program order, */
				    /* also those of different streams, as NCCL does */
	uint64_t split_from;        /* key of the parent while the split is not answered, else 0 */
};

/* ---- one rank ---- */

struct rank {
	struct proxy *proxy;
	struct job *job;
	uint32_t rank;
	bool exited, crashed, replaced, closing;
	int async_error;
	char error_text[RF_FAULT_BYTES];

	/* channel */
	uint8_t *map;
	struct rf_header *header;
	int channel_fd;
	struct place tail;        /* what we have consumed */
	uint64_t head;            /* what the client has published when we looked last */
	uint32_t replies;         /* requests not answered yet */
	bool hold;                /* nothing is consumed until a module's globals are written */
	bool held;                /* the next record waits for the barrier or a window */
	bool full;                /* the queues are full */
	uint64_t arriving;        /* bytes of module images that are not loaded yet */
	uint64_t silent_since_ns; /* the last record that was no query */

	/* handles and streams */
	struct table objects;
	struct stream **streams;
	uint32_t stream_count;
	struct stream *legacy;
	uint32_t items;
	struct waiter *waiters;
	uint32_t waiter_count, waiter_room;
	struct fence *frees, *frees_tail;
	uint32_t host_place; /* host functions queued so far */
	uint64_t
		last_function; /* handle of the kernel launched last: tells one bucket from another */
	struct nccl_group group;
	uint64_t tickets;       /* of collectives, given to the engine so far */
	uint64_t comms_changed; /* communicators that appeared or disappeared by others' answers */
	uint32_t pending;       /* questions to Python and joinings that the client waits for */

	struct rank_memory memory;

	/* counters */
	uint64_t kernels, collectives, records, switches;
	uint64_t reads;   /* records copied out of the ring: one that is held may be again */
	uint64_t queries; /* records that only query: no sign of work */
	bool idle_told, idle;
};

/* ---- a job epoch ---- */

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
	struct barrier *barrier;
	struct coll *coll;
	struct peer *peer;
	enum proxy_job_state state, told;
	enum job_goal goal;
	uint64_t saved_bytes;
	uint64_t cut; /* the last one's number, and when */
	double cut_at, released_at;
	uint64_t activity; /* at the last look: what its ranks requested and what was done */
	char reason[512];
};

struct ask { /* a request to Python */
	struct ask *next;
	uint64_t token;
	struct rank *rank;
	uint64_t object;
	uint16_t slot;
	uint32_t bulk;
};

struct proxy {
	const struct hal *hal;
	struct hal_device *device;
	struct hal_config hal_config;
	struct device_memory memory;
	struct transfers transfers;

	struct job *jobs;
	struct rank **ranks; /* all attached ones */
	uint32_t rank_count, rank_room;
	struct rank *active;
	uint64_t active_since_ns, quantum_ns;
	bool yielding; /* the active rank's time slice has ended: nothing more is submitted */

	struct rank *target; /* becomes active when its memory is here; slice.c's */

	struct ask *asks;
	uint64_t next_token;
	bool progress; /* in this turn */
	bool settled;  /* in this turn works ended that let nothing happen */
	uint64_t switches, kernels, wakeups;

	struct mailbox *mailbox; /* mailbox.c: calls in, events out, doorbell */
};

/* mailbox.c */
struct mailbox *mailbox_open(struct proxy *);
void mailbox_close(struct proxy *);
bool mailbox_start(struct proxy *);
void mailbox_stop(struct proxy *);
void mailbox_run_calls(struct proxy *);
void in_loop(struct proxy *, void (*run)(struct proxy *, void *), void *arg); /* and wait */
bool mailbox_stopping(const struct proxy *);
void mailbox_doorbell(struct proxy *, uint32_t **word, uint32_t *value);
void mailbox_sleep(struct proxy *, bool sleeping);
void mailbox_ring(void *proxy);                              /* from any thread */
void post_event(struct proxy *, const struct proxy_event *); /* copies data */

/* loop.c */
void *loop_main(void *proxy);
void loop_turn(struct proxy *); /* what it does again and again */

/* dispatch.c */
void rank_consume(struct rank *);

/* valid.c */
const char *core_invalid(const struct proxy *); /* what is wrong, or NULL */

/* slice.c */
void slice_turn(struct proxy *);
uint64_t slice_deadline_ns(const struct proxy *); /* when to look again; 0: never */

/* job_io.c */
struct coll_io job_io(struct job *); /* what its collective engine is driven with */

/* job.c */
struct job *job_find(struct proxy *, uint64_t id);
int job_open(struct proxy *, struct job *, int segment_fd, char *error, uint32_t error_bytes);
void job_close(struct job *);
void job_turn(struct job *);
void job_fail(struct job *, const char *text);
void job_barrier(struct job *, bool request); /* or withdraw */
void job_hurry(struct job *);                 /* called now and then: has anything moved since? */
/* 0: that is its goal now. -1: it has a later one, or does not stand at a cut. */
int job_aim(struct job *, enum job_goal);

/* rank lifecycle: rank.c */
struct rank *rank_attach(struct job *, uint32_t rank, int channel_fd, int image_fd, char *error,
			 uint32_t error_bytes);
void object_free(struct object *);    /* which is no stream, and in no table any more */
void rank_detach(struct rank *);      /* frees it; nothing of it may be in flight */
bool rank_quiet(const struct rank *); /* nothing in flight: may be saved or freed */
bool rank_drained(const struct rank *);

/* requests to Python: ask.c */
struct ask *ask_new(struct rank *, uint64_t object, uint16_t slot, uint32_t bulk);
struct ask *ask_take(struct proxy *, uint64_t token);
struct ask *ask_take_object(struct rank *, uint64_t object);
void ask_forget(struct rank *);
/* False: host memory is short, nothing was sent. */
bool ask_module(struct rank *, struct module *, uint32_t image_kind, uint16_t slot);
bool ask_function(struct rank *, struct function *, uint16_t slot, uint32_t bulk);

#endif
