/* engine.h: internal declarations of the collectives' engine; only its files include it. The files,
 * from the lowest layer to the highest; a file calls only files listed above it
 * (tests/proxy/test_floors.py):
 *
 *   tree.c         the one summation tree
 *   base.c         failure, memory, messages to other devices
 *   link.c         sums by a library that joins the devices of a communicator, in their order
 *   shape.c        how much data an operation moves, and in which pieces
 *   steps.c        the steps of pieces, one asynchronous io call each
 *   agree.c        whether a communicator's devices use such a library
 *   op.c           operations, and whether all ranks call the same one
 *   early_sum.c    early sums: sums of some local members' inputs, before the others call
 *   local_sum.c    steps that sum the inputs of local members
 *   piece.c        executes pieces: reads, fetches, combines, writes, informs the other devices
 *   sends.c        sends and receives, in parts
 *   communicator.c communicators: found, made, destroyed
 *   abort.c        a member leaves a communicator during operations; what is unfinished
 *   connect.c      how communicators are created
 *   saved.c        a rank's communicators as bytes
 *   collective.c   calls by ranks: checked, and started in their order
 *   valid.c        checks that counts and links agree
 *   engine.c       dispatches messages, handles the loop's calls and completions
 *
 * All of them run in the proxy's loop, never block, and take no lock. Callbacks (joined, completed,
 * failed) may call back into the engine. They are called only from engine_pump or, for a refusal,
 * directly from the call that is refused.
 */
#ifndef RANKFOLD_ENGINE_H
#define RANKFOLD_ENGINE_H

#include "codes.h"
#include "collective.h"
#include "invariant.h"
#include "job_limits.h"
#include "tree.h"

#define MEMBERS_PER_MESSAGE 32u
#define NONE UINT32_MAX
#define SPARE_BLOCKS 16u

#ifndef COLL_PIECE_BYTES /* tests reduce it */
/* maximum size of a piece of an operation or a part of a send */
#define COLL_PIECE_BYTES (4ull << 20)
#endif
#define BYTES_MAX (1ull << 40) /* of one rank's buffer: its whole window */

enum message_kind {
	MSG_JOIN = 1, /* to device 0: a rank joins or splits */
	MSG_MADE,     /* from device 0: members of a new communicator, in several messages */
	/* to an operation's referee: all local ranks have called it, with this shape */
	MSG_HELLO,
	MSG_READY,    /* to a piece's owner: partials are published; or only: ready to receive */
	MSG_RESULT,   /* from the owner: the result can be read */
	MSG_READ,     /* to the owner: the result was read and may be freed */
	MSG_SENT,     /* to the receiver's device: a part of a send is in my outbox */
	MSG_RECEIVED, /* to the sender's device: the part was received and may be freed */
	/* to all other devices of a communicator: one of its members has left, see abort.c */
	MSG_ABORT,
	MSG_NO_MEMBERS, /* to the same devices: this device has no member in it any more */
	MSG_UNJOIN,     /* to device 0: a rank has cancelled joining */
	MSG_GO,         /* from an operation's referee: all devices have called it, see link.c */
	MSG_LINK,       /* between a communicator's lowest device and the others, see agree.c */
	MSG_KINDS,
};

enum reduction { SUM, PROD, MAX, MIN, AVG, PREMUL };

/* The parameters of an operation; they must be the same for all members. */
struct shape {
	uint32_t kind, dtype, op, root;
	uint64_t count;
};

/* The bytes of a struct peer_message. */
struct coll_message {
	uint32_t kind, from_rank; /* from_rank: the job rank that sends it, for error texts */
	uint64_t key, seq;
	union {
		struct {
			uint64_t offset, bytes; /* in the sender's outbox */
			uint64_t value;
			uint32_t a, b, c, piece;
			struct shape shape;
			uint16_t members[MEMBERS_PER_MESSAGE];
		};
		/* MSG_LINK; seq: enum link_step */
		uint8_t link_id[HAL_LINK_ID_BYTES];
		struct link_offer {
			uint64_t version;
			uint8_t gpu[16];
		} link_offer;
		char link_text[HAL_LINK_ID_BYTES];
	};
};
_Static_assert(sizeof(struct coll_message) <= PEER_MESSAGE_BYTES, "a message fits");

/* The completion of one rank's submission on one communicator. */
struct coll_group {
	struct coll_group *next, *all; /* in coll.done, in coll.groups */
	uint64_t ticket, comm;
	uint32_t rank, pending;
	int error;
	struct seat *seat;
};

/* A local rank's membership in a communicator. */
struct seat {
	uint32_t rank, index; /* in the job; in the communicator */
	uint64_t handle;
	uint64_t next_seq; /* of its next collective */
	uint64_t splits;
	/* per member: number of the next part sent to it; received from it */
	uint64_t *sent, *received;
	uint64_t *unreceived; /* per member: bytes sent to it and not received */
	uint32_t groups;      /* not completed */
	bool in_use, closing; /* in_use: held by the rank (free once destroyed) */
	bool abandoned; /* it has called an operation that will not complete: see comm_abandoned */
	bool aborted;   /* closing, and its operations in progress end unfinished */
};

/* A local rank's arguments of an operation. */
struct coll_call {
	uint64_t send, recv;
	uint8_t scalar[8];
	/* its send buffer holds the sum of these ranks; lo == hi: of none */
	struct tree_node holds;
	/* the seat that is written to: its own, or one that hands the result to it */
	uint32_t receiver;
	struct coll_group *group;
};

struct ready {
	struct ready *next;
	uint32_t piece, from;
	uint64_t offset, bytes;
};

/* The sum of the inputs of two seats, in pieces: in progress until all pieces have ended. */
struct early {
	uint32_t seats[2], keeper; /* of the lower and of the higher ranks; keeper: 0 or 1 */
	uint64_t pieces, next, ended;
	bool looked; /* searched since the last call or sum: no pair can be added */
};

/* One collective, from the first local call or peer message to its end. */
struct op {
	struct op *next;
	struct coll_comm *comm;
	uint64_t seq;
	struct shape shape;
	uint32_t shape_rank;     /* the first rank that reported it; NONE: none yet */
	uint32_t arrived;        /* local calls */
	uint32_t hellos;         /* received, at the referee */
	struct coll_call *calls; /* per seat of the communicator */
	struct early early;
	struct ready *ready;
	uint64_t pieces, next_piece;
	uint32_t running;
	bool agreed; /* all devices have called it */
	bool begun;
	bool handed; /* results are being handed, or were, from receivers to the other seats */
	bool finished;
};

/* The work of one piece: elements [0, count) from `sources` at src_at to `dests` at dst_at. */
struct plan {
	struct tree_node sources, dests; /* communicator ranks */
	uint64_t src_at, dst_at, count;  /* in elements */
	uint32_t owner;                  /* device */
};

/* Memory. addr 0: none. It is in the outbox if peers fetch it; otherwise offset is addr. */
struct coll_block {
	struct hal_ref at;
	uint64_t offset, bytes, capacity;
	bool outbox;
	bool lent; /* it belongs to a link */
};

enum step_kind {
	STEP_FETCH,
	STEP_READ,
	STEP_SCALE,
	STEP_REDUCE,
	STEP_EXCHANGE, /* adds what the other devices have at dst */
	STEP_DIVIDE,
	STEP_WRITE,
	STEP_HAND,
};
struct step {
	enum step_kind kind;
	uint32_t seat;        /* READ, WRITE, SCALE, HAND: the seat of the rank */
	uint32_t from;        /* HAND: the seat that has the content */
	uint32_t device;      /* FETCH: the device whose outbox it is */
	uint64_t addr, count; /* count: bytes for FETCH, READ, WRITE and HAND, otherwise elements */
	/* addr: in the rank's window, or in the outbox */
	struct hal_ref dst, a;
	struct coll_operand left, right; /* REDUCE */
};

/* Bytes that a piece has fetched, or has requested, from another device. */
struct fetched {
	uint32_t device;
	bool here;
	uint64_t token, bytes;
	struct hal_ref at;
};

enum phase {
	/* of an operation, see piece.c and early_sum.c */
	ADDING,
	CONTRIBUTING,
	COLLECTING,
	GATHERING,
	COMBINING,
	EXCHANGING,
	FETCHING,
	DELIVERING,
	DRAINING,
	HANDING,
	/* of a send and a receive, see sends.c */
	SENDING,
	SENT,
	TAKING,
	RECEIVING,
};

/* A running part of the work: a range of an operation's elements, or one part of a send or receive.
 * Its steps run one after the other; consecutive fetches run concurrently. */
struct coll_piece {
	struct coll_piece *next;
	uint64_t token;
	struct coll_comm *comm;
	enum phase phase;
	void (*advance)(struct coll *, struct coll_piece *); /* called after the last step */
	struct step *steps;
	uint32_t step_count, step;
	struct fetched *fetched; /* in the order of their steps; each until it is released */
	uint32_t fetched_count, awaited; /* awaited: not complete yet */
	struct coll_block partials, scratch, result;
	/* Only for a piece of an operation: */
	struct op *op;
	uint32_t number, owner;
	uint32_t unread; /* participants that may still read the result */
	uint64_t turn;   /* its place among the exchanges of its communicator: 1, 2 …; 0: none */
	bool waits;      /* it has come to its exchange, which has not begun */
	/* Only for one part of a send or receive; `shape` is that of the whole: */
	struct coll_group *group;
	bool dropped;      /* its rank has aborted: it ends with the current step */
	uint32_t src, dst; /* communicator ranks */
	uint64_t seq;
	uint32_t seat; /* of a receive: the receiving seat and the destination */
	uint64_t addr, bytes;
	struct shape shape;
};

/* A send some of whose parts still wait for capacity. Its group waits for each of them. */
struct sending {
	struct sending *next;
	struct coll_comm *comm;
	uint32_t seat, peer;
	uint64_t addr, part; /* part: the next one to submit */
	struct shape shape;  /* of the whole send */
	struct coll_group *group;
};

struct receive { /* a posted receive, or one part of a send that has arrived */
	struct receive *next;
	uint32_t src, dst;
	uint64_t seq;       /* number of the (first) part */
	struct shape shape; /* of the whole send */
	uint32_t from;      /* arrived: the device whose outbox has it */
	uint64_t offset, bytes;
	uint32_t seat;          /* posted: the receiving seat and the destination */
	uint64_t addr, started; /* started: parts that have arrived */
	struct coll_group *group;
};

/* Whether the devices of a communicator use a library for sums between them, see agree.c. */
enum link_phase { LINK_UNDECIDED, LINK_ASKED, LINK_USED, LINK_REFUSED };
struct coll_link {
	enum link_phase phase;
	struct hal_link *at;      /* NULL: none, or no more */
	enum hal_link_state seen; /* its last state that was handled */
	bool owes;                /* the lowest device waits for an answer */
	uint64_t version, memory;
	uint32_t slots;              /* of its memory, those in use: a bit for each */
	uint64_t turns, begun, done; /* pieces that have a place in the order; exchanges */
	/* On the lowest device: */
	bool naming, answered;   /* answered: USE or REFUSE was sent */
	uint64_t replied;        /* devices that have, in this step: a bit for each */
	struct link_offer offer; /* the first one; all have the same version */
	uint8_t gpus[DEVICES_MAX][16];
};

struct coll_comm {
	struct coll_comm *next;
	uint64_t key;
	uint32_t nranks;
	uint32_t member[RANKS_MAX];                  /* job rank of each communicator rank */
	uint32_t device[RANKS_MAX];                  /* its device */
	uint32_t devices[DEVICES_MAX], device_count; /* all of them, ascending */
	struct seat *seats;                          /* of the local members, ascending */
	uint32_t seat_count;
	struct op *ops; /* ascending seq */
	struct receive *posted, *arrived;
	uint64_t base_seq; /* of its first collective in this epoch */
	struct coll_link link;
	bool closed; /* a seat was destroyed, possibly the last one */
	/* After a member has aborted it, see abort.c: */
	bool broken;
	bool stopped;            /* a local member has: its operations do not continue here */
	bool aborted[RANKS_MAX]; /* members that have aborted */
	uint64_t limit;          /* operations from this number on will not complete */
	/* Devices without members in it. This device: MSG_NO_MEMBERS was sent. */
	bool no_members[DEVICES_MAX];
};

struct join { /* a local rank that waits for a communicator */
	struct join *next;
	uint32_t rank;
	uint64_t handle, key, seq; /* seq 0: INIT under key; otherwise the parent's split seq */
	int32_t color;
	bool aborted; /* device 0's answer is awaited, and will be discarded */
};

struct gathering { /* members that have called, collected at device 0 */
	struct gathering *next;
	uint64_t key, seq;
	uint32_t nranks, count;
	uint32_t rank[RANKS_MAX]; /* by index; NONE: not yet */
	int32_t color[RANKS_MAX], order[RANKS_MAX];
	bool refused; /* a rank has cancelled: it stays until all others have called */
};

struct redop {
	struct redop *next;
	uint32_t rank, dtype;
	uint64_t comm, handle;
	uint8_t scalar[8];
};

struct inbound { /* a message to this device itself, or one for a communicator not known yet */
	struct inbound *next;
	uint32_t from;
	struct coll_message m;
};

struct coll {
	struct coll_io io;
	uint32_t device, device_count, world_size;
	uint32_t rank_device[RANKS_MAX];
	struct coll_comm *comms;
	struct join *joins;
	struct gathering *gatherings;
	struct redop *redops;
	struct coll_piece *pieces;
	uint32_t early_running; /* of these: pieces of early sums */
	bool links_allowed, links_ended;
	uint64_t links_bytes;     /* that went through links */
	struct sending *sendings; /* oldest first */
	/* bytes sent by local ranks and not received, over all seats */
	uint64_t unreceived;
	bool ended[RANKS_MAX]; /* local ranks that receive nothing any more */
	/* all that are not reported yet; those that can be reported */
	struct coll_group *groups, *done;
	struct inbound *inbox, **inbox_end, *early;
	uint32_t early_count;
	uint64_t tokens;
	uint32_t made[RANKS_MAX]; /* members of the communicator that device 0 is announcing */
	bool pumping, failed;
	struct coll_spare { /* memory of freed blocks, for reuse */
		void *at;   /* NULL: none */
		uint64_t capacity;
	} spare[SPARE_BLOCKS];
};

/* base.c */
void engine_fail(struct coll *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *engine_new(struct coll *, size_t bytes); /* zeroed; NULL: the engine has failed */
void engine_send(struct coll *, uint32_t to, const struct coll_message *);
uint64_t engine_hash(uint64_t a, uint64_t b, uint64_t c); /* never 0 */
/* retries messages for communicators that were not known */
void engine_deliver_early(struct coll *);
void group_part_done(struct coll *, struct coll_group *);

/* link.c */
void link_end(struct coll *, struct coll_comm *, bool now); /* closes it, if there is one */
/* Whether the devices decide before this operation begins; whether they exchange its sums. */
bool link_concerns(const struct coll *, const struct op *);
bool link_carries(const struct coll *, const struct op *);
/* Whether the operation's next piece may start. */
bool link_ready(const struct coll *, const struct op *);
/* Gives the piece memory of the link, and its turn. */
void link_take(struct coll_piece *, uint64_t bytes);
void link_give_back(struct coll_piece *);
/* The piece has come to its exchange, which begins when it is its turn. */
void link_exchange(struct coll *, struct coll_piece *);
/* In the middle of an exchange a piece uses only memory of the link. */
static inline bool piece_exchanges(const struct coll_piece *p)
{
	return p->token && p->step < p->step_count && p->steps[p->step].kind == STEP_EXCHANGE;
}

/* shape.c */
const char *shape_text(const struct shape *, char *out, size_t bytes);
void shape_fail(struct coll *, uint32_t rank_a, const struct shape *a, uint32_t rank_b,
		const struct shape *b);
bool shape_reduces(uint32_t kind);
bool shape_has_root(uint32_t kind);
/* Bytes, if all members receive the same; 0: they differ. */
uint64_t shape_common(const struct shape *, uint64_t nranks);
uint64_t shape_pieces(const struct shape *, const struct coll_comm *);
struct plan plan_make(const struct op *, uint64_t number);
bool plan_takes_part(const struct coll_comm *, const struct plan *, uint32_t device);
/* The devices that take part, a bit for each. */
uint64_t plan_participants(const struct coll_comm *, const struct plan *);

static inline uint64_t device_bit(uint32_t device) { return 1ull << device; }
_Static_assert(DEVICES_MAX <= 64, "a word has a bit for each device");

/* steps.c */
static inline struct hal_ref ref_plus(struct hal_ref at, uint64_t bytes)
{
	at.addr += bytes;
	return at;
}
/* readers: the devices that fetch it, a bit for each; 0: it is not in the outbox. */
struct coll_block block_new(struct coll *, uint64_t bytes, uint64_t readers);
void block_free(struct coll *, struct coll_block *);
void blocks_release(struct coll *); /* frees the spare blocks */
struct coll_piece *piece_new(struct coll *, struct coll_comm *, const struct shape *, enum phase,
			     void (*advance)(struct coll *, struct coll_piece *));
void piece_free(struct coll *, struct coll_piece *);
void piece_release(struct coll *, struct coll_piece *);         /* everything that it has fetched */
struct seat *seat_of(const struct coll_comm *, uint32_t index); /* NULL: not local */
void step_add(struct coll *, struct coll_piece *, struct step);
void steps_clear(struct coll_piece *);
/* starts the next step, or calls advance after the last */
void piece_next(struct coll *, struct coll_piece *);

void step_done(struct coll *, uint64_t token, int error);
void step_fetched(struct coll *, uint64_t token, struct hal_ref place, int error);

/* True if an operation of this number will never complete. */
static inline bool comm_abandoned(const struct coll_comm *m, uint64_t seq)
{
	return m->broken && seq >= m->limit;
}

/* agree.c */
void link_ask(struct coll *, struct coll_comm *); /* nothing happens if it has been asked */
bool link_open_questions(const struct coll *, const struct coll_comm *);
bool link_on_message(struct coll *, uint32_t from, struct coll_comm *, const struct coll_message *);
bool link_turn(struct coll *, struct coll_comm *);

/* op.c */
struct op *op_expected(struct coll *, struct coll_comm *, const struct coll_message *);
bool op_shape(struct coll *, struct op *, const struct shape *, uint32_t rank);
struct coll_message op_message(const struct op *, uint32_t kind);
void op_call(struct coll *, struct coll_comm *, uint32_t seat, const struct shape *,
	     struct coll_call);
void op_choose_receivers(struct coll *, struct op *); /* once all local members have called it */
/* the seat that holds the node's sum, or NONE */
uint32_t op_holder(const struct op *, struct tree_node);
/* op_operand returns where `count` elements from `at` of a seat's sum can be read for an addition;
 * if they cannot be read in place, it first adds steps that bring them to `dst`.
 * op_copy_input adds those steps. */
struct coll_operand op_operand(struct coll *, struct coll_piece *, uint32_t seat, uint64_t at,
			       uint64_t count, struct hal_ref dst);
void op_copy_input(struct coll *, struct coll_piece *, uint32_t seat, uint64_t at, uint64_t count,
		   struct hal_ref dst);
void op_sweep(struct coll_comm *, uint32_t device);
void op_free(struct op *);
bool op_on_hello(struct coll *, struct coll_comm *, const struct coll_message *);
bool op_on_go(uint32_t from, struct coll_comm *, const struct coll_message *);

/* early_sum.c */
void early_run(struct coll *, struct op *);
static inline bool early_under_way(const struct op *op)
{
	return op->early.ended < op->early.pieces;
}

/* local_sum.c: adds steps that put the sum of a wholly local node at dst; or that of all local
 * members, with scratch memory of so many blocks. */
uint32_t local_sum_blocks(const struct plan *);
void local_sum_node(struct coll *, struct coll_piece *, const struct plan *, struct tree_node,
		    struct hal_ref dst);
void local_sum_all(struct coll *, struct coll_piece *, const struct plan *, struct hal_ref dst);

/* piece.c. The message handlers return false for an impossible message. */
void comm_run(struct coll *, struct coll_comm *);
bool piece_on_ready(struct coll *, uint32_t from, struct coll_comm *, const struct coll_message *);
bool piece_on_result(struct coll *, uint32_t from, struct coll_comm *, const struct coll_message *);
bool piece_on_read(struct coll *, uint32_t from, struct coll_comm *, const struct coll_message *);

/* sends.c */
void send_start(struct coll *, struct coll_comm *, uint32_t seat, uint32_t peer, uint64_t addr,
		const struct shape *, struct coll_group *);
void sends_to_ended(struct coll *, uint32_t from, const struct coll_message *);
bool sends_on_sent(struct coll *, uint32_t from, struct coll_comm *, const struct coll_message *);
bool sends_on_received(struct coll *, uint32_t from, struct coll_comm *,
		       const struct coll_message *);
void receive_post(struct coll *, struct coll_comm *, struct receive posted);
void receives_free(struct receive *);

void sends_ended(struct coll *, uint32_t rank);
/* A local member has aborted: after the current step its memory is neither read nor written. */
void sends_abort(struct coll *, struct coll_comm *, uint32_t seat);
/* Drops the parts that have arrived for this rank. */
void arrived_discard(struct coll *, struct coll_comm *, uint32_t rank);

/* communicator.c */
struct coll_comm *comm_by_key(const struct coll *, uint64_t key);
struct seat *comm_seat(const struct coll *, uint32_t rank, uint64_t handle, struct coll_comm **);
/* The local object of a communicator: the existing one, or a new one without taken seats. */
struct coll_comm *comm_make(struct coll *, uint64_t key, uint32_t nranks, const uint32_t *member);
struct seat *seat_acquire(struct coll *, struct coll_comm *, uint32_t rank, uint64_t handle);
void comm_close(struct coll *, uint32_t rank, uint64_t comm);
bool comm_joining(const struct coll *, uint64_t key); /* a local rank is joining it */
void comm_sweep(struct coll *);
void comm_remove(struct coll *, struct coll_comm *); /* no piece may refer to it any more */
void comm_free_all(struct coll *);

/* abort.c */
void abort_seat(struct coll *, struct coll_comm *, struct seat *);
/* Informs the local members of a broken communicator. */
void abort_notify_members(struct coll *, struct coll_comm *);
void abort_turn(struct coll *);  /* ends operations that have come to rest */
void abort_sweep(struct coll *); /* removes communicators without members */
bool abort_on_message(struct coll *, uint32_t from, struct coll_comm *,
		      const struct coll_message *);
/* Handles a message for a communicator that was removed here, or is not known yet. False: the
 * caller keeps it. */
bool abort_unknown(struct coll *, uint32_t from, const struct coll_message *);

/* connect.c */
void comm_unjoin(struct coll *, uint32_t rank, uint64_t handle);
void comm_on_unjoin(struct coll *, uint32_t from, const struct coll_message *);
void comm_init(struct coll *, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
	       uint32_t nranks, uint32_t comm_rank);
void comm_split(struct coll *, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
		int32_t key);
void comm_on_join(struct coll *, uint32_t from, const struct coll_message *);
void comm_on_made(struct coll *, uint32_t from, const struct coll_message *);

/* saved.c */
int comm_restore(struct coll *, uint32_t rank, const uint8_t *in, uint64_t bytes);

/* collective.c */
int op_submit(struct coll *, uint32_t rank, uint64_t comm, const struct rf_collective *ops,
	      uint32_t count, uint64_t ticket);

#endif
