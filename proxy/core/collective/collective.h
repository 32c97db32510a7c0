/* collective.h: communicators and collectives among the devices of one job epoch.
 *
 * Logical communicators have the job's ranks as members; the physical ones have one member per
 * device. The engine is driven by the proxy's loop: it never blocks, never touches a ring, and
 * reaches memory, arithmetic and the other devices only through `struct coll_io`; so tests run
 * several engines in one process over an in-memory transport.
 *
 * D1: per element, partial sums combine only at the nodes of one binary tree over the
 * communicator's ranks (node [lo, hi) splits at lo + the largest power of two below hi - lo), each
 * node rounded to the data type, average divided at the root, pre-multiplication at the leaves.
 * Hence the same bits under any placement. D0 may use the same tree.
 */
#ifndef RANKFOLD_COLLECTIVE_H
#define RANKFOLD_COLLECTIVE_H

#include <stdbool.h>
#include <stdint.h>
#include "channel.h"
#include "hal.h"
#include "job_limits.h"

struct coll; /* the engine of one device in one job epoch */

#define PEER_MESSAGE_BYTES 192
struct peer_message {
	uint8_t bytes[PEER_MESSAGE_BYTES];
};

/* What a sum reads: bytes at `at`, or at that address of the window of a rank, resident or not. */
struct coll_operand {
	struct hal_ref at;
	bool window;
	uint32_t rank; /* of a window; `at` has no space then, and is aligned to elements */
};

/* Asynchronous io calls carry a token; when one completes the loop calls
 * coll_io_done(coll, token, error). Never from inside the io call itself.
 *
 * A hal_ref names what does not move until the call completes: host memory, or a space's. */
#define COLL_LATER (-1)
#define COLL_EACH UINT32_MAX
#define COLL_ABORTED (-2) /* how an operation ends whose communicator its rank has aborted */
struct coll_io {
	void *arg;
	/* Copy from and to a rank's window, resident or not. Asynchronous. */
	void (*read)(void *arg, uint32_t rank, uint64_t addr, struct hal_ref to, uint64_t bytes,
		     uint64_t token);
	void (*write)(void *arg, uint32_t rank, uint64_t addr, struct hal_ref from, uint64_t bytes,
		      uint64_t token);
	/* Of local ranks that are to get the same at the same address: which of them is written to,
	 * and hands it to the others; COLL_EACH: all of them are written to. */
	uint32_t (*receiver)(void *arg, const uint32_t *ranks, uint32_t count, uint64_t addr,
			     uint64_t bytes);
	/* Two local ranks give bytes at these addresses that nobody looks at before they get the
	 * result there: which of them, 0 or 1, is to hold their sum meanwhile; COLL_EACH: each
	 * keeps its own. And the other's: it is not read again, and counts for nothing. */
	uint32_t (*keeper)(void *arg, const uint32_t *ranks, const uint64_t *addrs, uint64_t bytes);
	void (*forget)(void *arg, uint32_t rank, uint64_t addr, uint64_t bytes);
	/* `to` gets there what `from` has. Asynchronous. */
	void (*hand)(void *arg, uint32_t from, uint32_t to, uint64_t addr, uint64_t bytes,
		     uint64_t token);
	/* dst[i] = a[i] op b[i], and dst[i] = a[i] * scalar or (scalar NULL) / divisor; dst may be a.
	 * Asynchronous. op: ncclSum 0, ncclProd 1, ncclMax 2, ncclMin 3. */
	void (*reduce)(void *arg, struct hal_ref dst, const struct coll_operand *a,
		       const struct coll_operand *b, uint64_t count, uint32_t dtype, uint32_t op,
		       uint64_t token);
	void (*scale)(void *arg, struct hal_ref dst, struct hal_ref a, uint64_t count,
		      uint32_t dtype, const uint8_t *scalar, uint64_t divisor, uint64_t token);
	/* In order, reliable, to device index `to` (never to itself). */
	void (*send)(void *arg, uint32_t to, const struct peer_message *);
	/* Memory that every device of the epoch can fetch: this device allocates in its own outbox
	 * and frees; offset is what peers use. addr 0 when host memory is short: the job fails. */
	struct hal_ref (*outbox_alloc)(void *arg, uint64_t bytes, uint64_t *offset);
	void (*outbox_free)(void *arg, uint64_t offset, uint64_t bytes);
	/* Scratch memory near the device, for what no peer fetches; both NULL, or 0 from the first:
	 * malloc's will do. scratch_free: false, if it is none of it. */
	uint64_t (*scratch_alloc)(void *arg, uint64_t bytes);
	bool (*scratch_free)(void *arg, uint64_t addr, uint64_t bytes);
	/* Bytes of another device's outbox, kept until they are released. COLL_LATER: when they
	 * are here, or cannot be had, coll_fetched says so; any number are under way, and end in any
	 * order. 0: they lie at `place` already. Else an ncclResult_t: they cannot be had.
	 * What was fetched lies still, and is only read, until it is released: once for each fetch
	 * that went well. What is under way when the engine is freed is nobody's. */
	int (*fetch)(void *arg, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
		     struct hal_ref *place);
	void (*release)(void *arg, uint32_t device, struct hal_ref place, uint64_t bytes);
	/* A request has completed. error: ncclResult_t, 0 for success; text says why. */
	void (*joined)(void *arg, uint32_t rank, uint64_t comm, uint64_t key, int error,
		       uint32_t nranks, uint32_t comm_rank);
	void (*completed)(void *arg, uint32_t rank, uint64_t comm, uint64_t ticket, int error);
	/* The rank's end of a communicator that it aborted is over: nothing reads or writes its
	 * memory for that any more. Its operations were completed before, with COLL_ABORTED. */
	void (*left)(void *arg, uint32_t rank, uint64_t comm);
	/* Another member has aborted it. hopeless: the rank waits for what will never come. Told
	 * again when that becomes so. */
	void (*broken)(void *arg, uint32_t rank, uint64_t comm, bool hopeless);
	/* The whole job is wrong (mismatched collectives, bad message): fail it, closed. */
	void (*failed)(void *arg, const char *text);
};

struct coll *coll_new(const struct coll_io *, uint32_t device, uint32_t device_count,
		      uint32_t world_size, const uint32_t *rank_device);
void coll_free(struct coll *);

/* The job-wide key that a communicator made with this unique id will have (never 0). */
uint64_t coll_key(const uint8_t *unique_id);
/* CommInitRank by a local rank: `comm` is the rank's own handle. io.joined answers when all
 * nranks have joined under the same unique id; key names the communicator job-wide (> 0). */
void coll_init(struct coll *, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
	       uint32_t nranks, uint32_t comm_rank);
/* CommSplit: all members of parent call it; color < 0: none for this rank (joined, nranks 0). */
void coll_split(struct coll *, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
		int32_t key);
void coll_destroy(struct coll *, uint32_t rank, uint64_t comm);
/* The rank leaves a communicator in the middle of its operations (io.left says when they have
 * ended), or gives up joining it: then nobody joins, and the others' joinings end with
 * ncclRemoteError (6); for this one there is no answer any more. */
void coll_abort(struct coll *, uint32_t rank, uint64_t comm);
/* Which of the engine's own counts and links disagree: a bug of ours; NULL: none. */
const char *coll_invalid(const struct coll *);
/* The barrier's keys of a local rank's communicator: its own and those of the rank's pairs.
 * broken: only those on which a round may never complete, since a member has aborted it. At most
 * COLL_KEYS_MAX. */
#define COLL_KEYS_MAX (2 * RANKS_MAX + 1)
uint32_t coll_keys(const struct coll *, uint32_t rank, uint64_t comm, bool broken, uint64_t *keys);
/* A pre-multiplying sum (ncclRedOpCreatePreMulSum). */
void coll_redop(struct coll *, uint32_t rank, uint64_t comm, uint64_t redop, uint32_t dtype,
		const uint8_t *scalar);
void coll_redop_gone(struct coll *, uint32_t rank, uint64_t redop);

/* One outermost group's operations of one rank on one communicator, at their place in the stream:
 * inputs are ready, outputs may be written. ticket is given back by io.completed, once. All of a
 * rank's submissions on one communicator come in program order. Returns an ncclResult_t: 0, or
 * ncclInvalidArgument (4) / ncclInvalidUsage (5) for what no peer needs to know. */
int coll_submit(struct coll *, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
		uint32_t count, uint64_t ticket);

/* Do these operations change nothing: all in place, in a communicator of one, none before them
 * under way? Then they are counted and over, and must not be submitted. As in NCCL, no memory is
 * looked at. */
bool coll_nothing_to_do(struct coll *, uint32_t rank, uint64_t comm,
			const struct rf_collective *ops, uint32_t count);

/* A rank's place in a communicator, and its next collective there: sends and receives do not count.
 * What members receive from the collective of one key and number is one result, or parts of it.
 * False: it has no such communicator. */
struct coll_place {
	uint64_t key, number;
	uint32_t nranks, index;
};
bool coll_place(const struct coll *, uint32_t rank, uint64_t comm, struct coll_place *);
/* Local members of a communicator. */
uint32_t coll_locals(const struct coll *, uint64_t key);
uint32_t dtype_bytes(uint32_t dtype); /* of an ncclDataType_t; 0: no such type */

void coll_io_done(struct coll *, uint64_t token, int error);
/* A fetch completes: its data are at `place`, or it failed (ncclResult_t), and so does the job. */
void coll_fetched(struct coll *, uint64_t token, struct hal_ref place, int error);
void coll_receive(struct coll *, uint32_t from, const struct peer_message *);

/* What one group's operations on one communicator are for the barrier, in ascending order of key:
 * one round on the communicator if there is any collective (src == dst), one per send and one per
 * receive (src != dst: job ranks, see barrier_pair; none for a rank with itself). signature: of
 * these operations, for barrier_issue. Returns how many; out may be NULL, max 0. */
struct coll_round {
	uint64_t key, signature;
	uint32_t src, dst;
	bool broken; /* its other side has aborted the communicator */
};
uint32_t coll_rounds(const struct coll *, uint32_t rank, uint64_t comm,
		     const struct rf_collective *ops, uint32_t count, struct coll_round *out,
		     uint32_t max);

/* Which of those that must call the operations that a local rank has called have not? OTHERS: all
 * local ones have, for some operation, so none of them can do anything for it: other devices may
 * have to. NOBODY: nor they; it will complete. NONE: it has called nothing that will complete yet
 * (of an engine that has failed nothing will). Sends and receives do not count. */
enum coll_lack { COLL_LACKS_NONE, COLL_LACKS_LOCAL, COLL_LACKS_OTHERS, COLL_LACKS_NOBODY };
enum coll_lack coll_lacks(const struct coll *, uint32_t rank);

/* Is anything unfinished (half joined, contributed but not delivered)? False at a cut. */
bool coll_busy(const struct coll *);
/* A local rank has ended and has no work left: what others send it is taken, and goes nowhere. */
void coll_ended(struct coll *, uint32_t rank);
/* A send that has arrived here and that nobody has received: at a cut nobody will. Its two job
 * ranks; false if there is none. */
bool coll_unreceived(const struct coll *, uint32_t *from, uint32_t *to);
/* Members (job ranks, in communicator order) of a local rank's communicator; 0 if unknown. */
uint32_t coll_members(const struct coll *, uint32_t rank, uint64_t comm, uint32_t *members,
		      uint32_t max, uint64_t *key);

/* Rank state: all communicators and redops of a rank as bytes, at a cut; and back, on another
 * device of another epoch, before the rank's first record there. Every member's restore is local:
 * the image holds the members, the key and the counts. Returns bytes, 0 if max is too small. */
uint64_t coll_save(const struct coll *, uint32_t rank, uint8_t *out, uint64_t max);
int coll_restore(struct coll *, uint32_t rank, const uint8_t *in, uint64_t bytes);

#endif
