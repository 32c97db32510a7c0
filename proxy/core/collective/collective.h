/* collective.h: communicators and collectives among the devices of one job epoch.
 *
 * The members of a logical communicator are ranks of the job; a physical communicator has one
 * member per device. The proxy's loop drives the engine, which never blocks, never accesses a ring,
 * and reaches memory, arithmetic and the other devices only through `struct coll_io`. Tests can
 * therefore run several engines in one process over an in-memory transport.
 *
 * D1: for each element, partial sums combine only at the nodes of one binary tree over the
 * communicator's ranks (node [lo, hi) splits at lo + the largest power of two below hi - lo). Each
 * node is rounded to the data type; an average is divided at the root; a pre-multiplication is
 * applied at the leaves. Hence the bits are the same under any placement.
 *
 * D0: the same bits on the same devices. An all-reduce between devices that a library joins (a
 * link, see link.c) sums each device's part at the tree's nodes, and the library sums these; all
 * else uses the tree.
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

/* An operand of a sum: bytes at `at`, or at that address of a rank's window, resident or not. */
struct coll_operand {
	struct hal_ref at;
	bool window;
	uint32_t rank; /* whose window; `at` then has no space, and is aligned to elements */
};

/* Asynchronous io calls carry a token. When one completes, the loop calls coll_io_done(coll, token,
 * error), never from inside the io call itself.
 *
 * A hal_ref names memory that stays in place until the call completes: host memory, or memory of a
 * space. */
#define COLL_LATER (-1)
#define COLL_EACH UINT32_MAX
#define COLL_ABORTED (-2) /* result of an operation whose rank has aborted the communicator */
struct coll_io {
	void *arg;
	/* Copies from and to a rank's window, resident or not. Asynchronous. */
	void (*read)(void *arg, uint32_t rank, uint64_t addr, struct hal_ref to, uint64_t bytes,
		     uint64_t token);
	void (*write)(void *arg, uint32_t rank, uint64_t addr, struct hal_ref from, uint64_t bytes,
		      uint64_t token);
	/* Chooses, among local ranks that will receive the same content at one address, the one
	 * that is written to and hands the content to the others; COLL_EACH: all of them are
	 * written to. */
	uint32_t (*receiver)(void *arg, const uint32_t *ranks, uint32_t count, uint64_t addr,
			     uint64_t bytes);
	/* Called for two local ranks whose inputs at these addresses will not be read by their
	 * programs before the result is written there. `keeper` chooses the one, 0 or 1, that holds
	 * their sum until then; COLL_EACH: each keeps its own input. `forget` drops the other one's
	 * input, which is not read again. */
	uint32_t (*keeper)(void *arg, const uint32_t *ranks, const uint64_t *addrs, uint64_t bytes);
	void (*forget)(void *arg, uint32_t rank, uint64_t addr, uint64_t bytes);
	/* Gives `to` the content that `from` has at that address. Asynchronous. */
	void (*hand)(void *arg, uint32_t from, uint32_t to, uint64_t addr, uint64_t bytes,
		     uint64_t token);
	/* reduce: dst[i] = a[i] op b[i]. scale: dst[i] = a[i] * scalar, or a[i] / divisor if scalar
	 * is NULL. dst may be a. Asynchronous. op: ncclSum 0, ncclProd 1, ncclMax 2, ncclMin 3. */
	void (*reduce)(void *arg, struct hal_ref dst, const struct coll_operand *a,
		       const struct coll_operand *b, uint64_t count, uint32_t dtype, uint32_t op,
		       uint64_t token);
	void (*scale)(void *arg, struct hal_ref dst, struct hal_ref a, uint64_t count,
		      uint32_t dtype, const uint8_t *scalar, uint64_t divisor, uint64_t token);
	/* Sends to device `to`, in order and reliably; never to itself. */
	void (*send)(void *arg, uint32_t to, const struct peer_message *);
	/* Memory that other devices of the epoch can fetch: `readers` has a bit for each. This
	 * device allocates it in its own outbox and frees it; peers address it by offset. addr 0:
	 * host memory is short, and the job fails. */
	struct hal_ref (*outbox_alloc)(void *arg, uint64_t bytes, uint64_t readers,
				       uint64_t *offset);
	void (*outbox_free)(void *arg, uint64_t offset, uint64_t bytes);
	/* Scratch memory near the device, for data that no peer fetches. If both are NULL, or
	 * scratch_alloc returns 0, the engine uses malloc. scratch_free returns false if addr is
	 * not scratch memory. */
	uint64_t (*scratch_alloc)(void *arg, uint64_t bytes);
	bool (*scratch_free)(void *arg, uint64_t addr, uint64_t bytes);
	/* Makes bytes of another device's outbox available until they are released. COLL_LATER:
	 * coll_fetched reports later that they are available, or cannot be had; any number of
	 * fetches may be in progress, and they complete in any order. 0: they are already at
	 * `place`. Otherwise an ncclResult_t: they cannot be had. Fetched bytes stay in place, and
	 * are only read, until they are released: once for each fetch that succeeded. When the
	 * engine is freed, fetches in progress are abandoned. */
	int (*fetch)(void *arg, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
		     struct hal_ref *place);
	void (*release)(void *arg, uint32_t device, struct hal_ref place, uint64_t bytes);
	/* A request has completed. error: an ncclResult_t, 0 for success. */
	void (*joined)(void *arg, uint32_t rank, uint64_t comm, uint64_t key, int error,
		       uint32_t nranks, uint32_t comm_rank);
	void (*completed)(void *arg, uint32_t rank, uint64_t comm, uint64_t ticket, int error);
	/* The rank has left a communicator that it aborted: nothing reads or writes its memory for
	 * the communicator any more. Its operations were completed before, with COLL_ABORTED. */
	void (*abort_complete)(void *arg, uint32_t rank, uint64_t comm);
	/* Another member has aborted the communicator. hopeless: the rank waits for something that
	 * will never complete. Called again when that becomes true. */
	void (*broken)(void *arg, uint32_t rank, uint64_t comm, bool hopeless);
	/* The whole job is wrong (mismatched collectives, bad message): the caller fails it. */
	void (*failed)(void *arg, const char *text);
	/* Links to other devices, as hal.h describes them; used after coll_allow_links. If
	 * link_open is NULL, or returns NULL with a reason in `text`, there is none. */
	struct hal_link *(*link_open)(void *arg, char *text, uint32_t text_bytes);
	enum hal_link_state (*link_state)(void *arg, struct hal_link *, struct hal_link_facts *,
					  uint64_t *done);
	void (*link_name)(void *arg, struct hal_link *);
	void (*link_connect)(void *arg, struct hal_link *, const uint8_t *id, uint32_t members,
			     uint32_t member);
	void (*link_sum)(void *arg, struct hal_link *, uint64_t addr, uint64_t count,
			 uint32_t dtype, uint32_t op);
	void (*link_cancel)(void *arg, struct hal_link *);
	void (*link_close)(void *arg, struct hal_link *, bool now);
	/* The devices of a communicator of so many ranks have decided. why_not "": a library of
	 * this version sums between them; otherwise the tree does, for this reason. */
	void (*link_decided)(void *arg, uint32_t nranks, uint64_t version, const char *why_not);
};

struct coll *coll_new(const struct coll_io *, uint32_t device, uint32_t device_count,
		      uint32_t world_size, const uint32_t *rank_device);
void coll_free(struct coll *);
/* The job's bits may depend on its devices (D0): its communicators may use links. Called on all of
 * its devices, before any rank joins a communicator. */
void coll_allow_links(struct coll *);
/* To be called when a link's state may have changed. True: something has continued. */
bool coll_links_turn(struct coll *);
/* Cancels all links: the job has failed, and a sum in progress may never end. */
void coll_links_end(struct coll *);
/* Bytes of this device's sums that went through links. */
uint64_t coll_links_bytes(const struct coll *);

/* Returns the job-wide key of a communicator made with this unique id (never 0). */
uint64_t coll_key(const uint8_t *unique_id);
/* CommInitRank by a local rank: `comm` is the rank's own handle. io.joined is called when all
 * nranks have joined under the same unique id; `key` names the communicator job-wide (> 0). */
void coll_init(struct coll *, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
	       uint32_t nranks, uint32_t comm_rank);
/* CommSplit: all members of the parent call it. color < 0: no new communicator for this rank
 * (io.joined with nranks 0). */
void coll_split(struct coll *, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
		int32_t key);
void coll_destroy(struct coll *, uint32_t rank, uint64_t comm);
/* The rank leaves a communicator while its operations are in progress (io.abort_complete reports
 * when they have ended), or cancels joining it. In the second case no rank joins: the joins of the
 * others end with ncclRemoteError (6), and this rank gets no other call. */
void coll_abort(struct coll *, uint32_t rank, uint64_t comm);
/* Checks the engine's own counts and links. Returns the broken rule, which indicates a defect in
 * the engine; NULL: none. */
const char *coll_invalid(const struct coll *);
/* Writes the barrier's keys of a local rank's communicator: its own key and those of the rank's
 * pairs. broken: only keys on which a round may never complete, because a member has aborted the
 * communicator. Returns how many, at most COLL_KEYS_MAX. */
#define COLL_KEYS_MAX (2 * RANKS_MAX + 1)
uint32_t coll_keys(const struct coll *, uint32_t rank, uint64_t comm, bool broken, uint64_t *keys);
/* Defines a pre-multiplying sum (ncclRedOpCreatePreMulSum). */
void coll_redop(struct coll *, uint32_t rank, uint64_t comm, uint64_t redop, uint32_t dtype,
		const uint8_t *scalar);
void coll_redop_destroy(struct coll *, uint32_t rank, uint64_t redop);

/* Submits the operations of one rank on one communicator in one outermost group, at their place in
 * the stream: inputs are ready, outputs may be written. io.completed returns the ticket once. A
 * rank's submissions on one communicator come in program order. Returns an ncclResult_t: 0, or
 * ncclInvalidArgument (4) / ncclInvalidUsage (5) for errors that no peer needs to know. */
int coll_submit(struct coll *, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
		uint32_t count, uint64_t ticket);

/* True if these operations change nothing: all are in place, in a communicator of one rank, with no
 * earlier operation in progress. They then count as complete and must not be submitted. As in NCCL,
 * memory is not checked. */
bool coll_nothing_to_do(struct coll *, uint32_t rank, uint64_t comm,
			const struct rf_collective *ops, uint32_t count);

/* A rank's index in a communicator, and the number of its next collective there; sends and receives
 * do not count. All members receive the same result, or parts of it, from the collective with one
 * key and number. False: the rank has no such communicator. */
struct coll_place {
	uint64_t key, number;
	uint32_t nranks, index;
};
bool coll_place(const struct coll *, uint32_t rank, uint64_t comm, struct coll_place *);
/* The number of local members of a communicator. */
uint32_t coll_locals(const struct coll *, uint64_t key);
uint32_t dtype_bytes(uint32_t dtype); /* of an ncclDataType_t; 0: no such type */

void coll_io_done(struct coll *, uint64_t token, int error);
/* A fetch completes: its data are at `place`, or it has failed (ncclResult_t), and then the job
 * fails. */
void coll_fetched(struct coll *, uint64_t token, struct hal_ref place, int error);
void coll_receive(struct coll *, uint32_t from, const struct peer_message *);

/* Lists the barrier rounds of one group's operations on one communicator, in ascending order of
 * key: one round on the communicator if there is any collective (src == dst), one per send and one
 * per receive (src != dst: job ranks, see barrier_pair; none for a rank with itself). signature: of
 * these operations, for barrier_issue. Returns how many; out may be NULL, max 0. */
struct coll_round {
	uint64_t key, signature;
	uint32_t src, dst;
	bool broken; /* the other rank has aborted the communicator */
};
uint32_t coll_rounds(const struct coll *, uint32_t rank, uint64_t comm,
		     const struct rf_collective *ops, uint32_t count, struct coll_round *out,
		     uint32_t max);

/* Reports which other ranks have yet to call the operations that a local rank has called. LOCAL: a
 * local rank, for all of them. OTHERS: for some operation all local ranks have called, so no local
 * rank can advance it; other devices may have to. NO_RANK: all have called; it will complete. NONE:
 * the rank has called nothing that will still complete (in a failed engine, nothing will). Sends
 * and receives do not count. */
enum coll_lack { COLL_LACKS_NONE, COLL_LACKS_LOCAL, COLL_LACKS_OTHERS, COLL_LACKS_NO_RANK };
enum coll_lack coll_lacks(const struct coll *, uint32_t rank);

/* True if anything is unfinished (half joined, contributed but not delivered). False at a cut. */
bool coll_busy(const struct coll *);
/* A local rank has ended and has no work left: what others send to it is taken and dropped. */
void coll_ended(struct coll *, uint32_t rank);
/* Finds a send that has arrived here without a receive; at a cut, none will follow. Writes its two
 * job ranks; false: there is none. */
bool coll_unreceived(const struct coll *, uint32_t *from, uint32_t *to);
/* Writes the members (job ranks, in communicator order) of a local rank's communicator; returns 0
 * if it is unknown. */
uint32_t coll_members(const struct coll *, uint32_t rank, uint64_t comm, uint32_t *members,
		      uint32_t max, uint64_t *key);

/* Saves all communicators and redops of a rank as bytes, at a cut; and restores them on a device of
 * another epoch, before the rank's first record there. Each member's restore is local, because the
 * saved bytes hold the members, the key and the counts. coll_save returns the number of bytes, 0 if
 * max is too small. */
uint64_t coll_save(const struct coll *, uint32_t rank, uint8_t *out, uint64_t max);
int coll_restore(struct coll *, uint32_t rank, const uint8_t *in, uint64_t bytes);

#endif
