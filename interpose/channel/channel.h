/* channel.h: the contract between a rank (interpose/) and a device proxy (proxy/).
 *
 * Everything that a rank shares with rankfold is in one sealed, sparse memfd. The rank creates it
 * and hands it to its launcher once. This header defines the layout of that memfd, the records of
 * its request ring, and the two messages of the hand-over. Nothing else is shared.
 *
 * These changes require a new RF_MAJOR: a different offset or size, or a different meaning of a
 * field or of an opcode's arguments. Rings at rest outlive builds, so opcodes are append-only: a
 * number is never reused. A new opcode, or the use of a reserved field, raises RF_MINOR.
 *
 * Rules for both sides:
 *  - Each field has one writer: (C) the client, (S) the server that owns the epoch, (L) the
 *    launcher. Only that side writes it.
 *  - The client is passive. It never learns that it is parked: parked means that no server
 *    consumes its ring. Every wait of the client is a re-checked futex loop.
 *  - The server copies a record to its own memory before it inspects it, and trusts no length,
 *    offset or handle in it.
 *  - All futexes are process-shared. Numbers are little-endian.
 */
#ifndef RANKFOLD_CHANNEL_H
#define RANKFOLD_CHANNEL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RF_MAGIC 0x444c4f464b4e4152ull /* "RANKFOLD" */
#define RF_MAJOR 1
#define RF_MINOR 18

/* ---- device addresses: the same for every rank, device and node ----------------------- */

#define RF_DEV_BASE 0x200000000000ull     /* first device address */
#define RF_WINDOW_BYTES (1ull << 40)      /* a rank's window: device heap, then pinned memory */
#define RF_HEAP_BYTES (1ull << 39)        /* device heap: [DEV_BASE, DEV_BASE + HEAP) */
#define RF_CHUNK_BYTES (2ull << 20)       /* unit of physical memory */
#define RF_ALLOC_ALIGN 512ull             /* every allocation starts at a multiple of it */
#define RF_PINNED_SLOT_BYTES (1ull << 33) /* pinned arena of one rank */
#define RF_PINNED_SLOTS 64u
/* Address of rank r's pinned arena, the same in the client and in the device window. */
#define RF_PINNED_BASE(rank)                                                                       \
	(RF_DEV_BASE + RF_HEAP_BYTES + ((uint64_t)(rank) % RF_PINNED_SLOTS) * RF_PINNED_SLOT_BYTES)

/* ---- layout of the memfd -------------------------------------------------------------- */

#define RF_OFF_HEADER 0x0ull
#define RF_OFF_SLOTS 0x1000ull      /* reply slots */
#define RF_OFF_HOSTFUNC 0x6000ull   /* tokens of host functions that are due */
#define RF_OFF_PINS 0x7000ull       /* parts of the pinned arena in use (1.16) */
#define RF_OFF_RING 0x10000ull      /* request ring */
#define RF_OFF_BULK 0x1000000ull    /* bulk slots: pageable data in transit */
#define RF_OFF_PINNED 0x10000000ull /* pinned arena */
#define RF_SLOT_COUNT 64u
#define RF_SLOT_BYTES 256u
#define RF_SLOT_DATA_BYTES 240u  /* of these bytes, for the opcode's result */
#define RF_RING_BYTES (4u << 20) /* power of two */
#define RF_RECORD_ALIGN 64u
#define RF_RECORD_MAX 32896u /* bytes of one record, header included (8192 before 1.6) */
#define RF_BULK_COUNT 64u
#define RF_BULK_BYTES (256u << 10)
#define RF_HOSTFUNC_COUNT 256u
/* (C) At RF_OFF_PINS: bit i: memory in chunk i of the pinned arena is in use, and its pages stay
 * until the server has answered a PINNED request that finds the bit cleared. */
#define RF_PIN_WORDS (RF_PINNED_SLOT_BYTES / RF_CHUNK_BYTES / 64)
#define RF_COMM_ERRORS 64u /* communicators whose errors are kept */
#define RF_URGENT_QUERY (1ull << 63)
#define RF_URGENT_ELAPSED RF_URGENT_QUERY /* no handle has the number 0 */
#define RF_FAULT_BYTES 256u               /* of the beginning of a fault's text, with its zero */
#define RF_FAULT_TEXT_BYTES 2048u         /* of the whole text, with its zero */
#define RF_MEMFD_BYTES (RF_OFF_PINNED + RF_PINNED_SLOT_BYTES)

struct rf_header {
	/* line 0, constant after creation (C) */
	uint64_t magic;
	uint32_t major, minor;
	uint64_t memfd_bytes;
	uint32_t pid; /* of the process that owns the channel, in its own namespace */
	uint32_t rank;
	uint32_t world_size;
	uint32_t reserved0[7];

	/* line 1 (S): the server */
	_Alignas(64) _Atomic uint64_t epoch; /* raised by each attach; 0: never served */
	_Atomic uint32_t served;          /* 1 while a server consumes; information for `doctor` */
	_Atomic uint32_t server_sleeping; /* 1: the server waits on `doorbell` */

	/* line 2 (C): the ring's producer. head and tail count all bytes ever written; the place in
	 * the ring is the count modulo RF_RING_BYTES. A record never wraps: a PAD record fills
	 * the rest. */
	_Alignas(64) _Atomic uint64_t head; /* published with release after the copy */
	_Atomic uint32_t doorbell;          /* the server's futex; raised if server_sleeping */
	_Atomic uint32_t space_waiters;     /* client threads that wait for free space */
	_Atomic uint32_t urgents;           /* entries of `urgent` filled so far (1.11) */

	/* line 3 (S): the ring's consumer */
	_Alignas(64) _Atomic uint64_t tail; /* every byte below has been copied out */
	_Atomic uint32_t space_seq;         /* futex: raised when tail moved and space_waiters */
	_Atomic uint32_t bulk_seq; /* futex: raised when a bulk slot was freed and bulk_waiters;
				    * by C too, for a slot that brought data to the client */

	/* line 4 (S): state that the client reads without a request */
	_Alignas(64) _Atomic uint64_t retired_free; /* frees with seq <= this: memory is reusable */
	_Atomic uint64_t grant_bytes;               /* malloc beyond it sends OP_GRANT */
	_Atomic uint32_t async_error;               /* sticky CUDA error of the context, 0: none */
	_Atomic uint32_t comm_error; /* ncclResult_t of a failed communicator, 0: none */

	/* line 5. S writes the tokens and hostfunc_head. C writes hostfunc_tail: the number of
	 * functions that have returned, in order. It then rings `doorbell` as for a record, because
	 * the ring may be full, and posts HOST_DONE. */
	_Alignas(64) _Atomic uint32_t hostfunc_head; /* futex of the helper thread */
	_Atomic uint32_t hostfunc_tail;

	/* line 6 (C): bulk slots in use. Bit i: the client has claimed slot i. For a slot that
	 * carries a copy's source, the server clears the bit when it has read the data. */
	_Alignas(64) _Atomic uint64_t bulk_busy;
	_Atomic uint32_t bulk_waiters;

	/* from line 7 (S): a readable description of async_error or, without one, of comm_error;
	 * written before it (1.5) */
	_Alignas(64) char fault[RF_FAULT_BYTES];

	/* its own line (C): the end of what is being written into the ring, if that is beyond head
	 * (1.10). Needed to save a rank in the middle of a write. */
	_Alignas(64) _Atomic uint64_t writing;

	/* Their own lines: requests that do not queue in the ring, which may be full or blocked by
	 * operations that never end. Entry i is answered in slot i: the number of a communicator to
	 * abort (1.11), RF_URGENT_QUERY | an event (1.12) or a stream (1.14) to query, or
	 * RF_URGENT_ELAPSED for the time between the two events of the struct rf_events in the slot
	 * (1.14); 0: none. C fills it and increments `urgents`; S consumes it. The reply to a query
	 * is a struct rf_query_reply. */
	_Alignas(64) _Atomic uint64_t urgent[RF_SLOT_COUNT];
	/* (S) Why single communicators are unusable: number << 8 | ncclResult_t; 0: none (1.11) */
	_Alignas(64) _Atomic uint64_t comm_errors[RF_COMM_ERRORS];
	/* (S) what follows the first RF_FAULT_BYTES - 1 bytes of the text that `fault` begins;
	 * written before it (1.15) */
	char fault_rest[RF_FAULT_TEXT_BYTES - RF_FAULT_BYTES + 1];
};

/* A reply slot. The client claims a free one (FREE -> WAITING), names it in the record, and waits
 * on `state`. The server fills the rest, sets state = ANSWERED, and wakes the client if it was
 * ASLEEP. */
enum rf_slot_state {
	RF_SLOT_FREE = 0,
	RF_SLOT_WAITING = 1,  /* (C) */
	RF_SLOT_ANSWERED = 2, /* (S) */
	RF_SLOT_ASLEEP = 3,   /* (C) sleeps, and must be woken */
};
struct rf_slot {
	_Atomic uint32_t state; /* enum rf_slot_state */
	int32_t error;          /* (S) CUresult/cudaError_t, or ncclResult_t for OP_COMM_* */
	uint64_t seq;           /* (C) seq of the request; the server does not write it */
	/* (S) the opcode's result; (C) before it, what an urgent request has to say */
	uint8_t data[RF_SLOT_DATA_BYTES];
};

/* ---- records -------------------------------------------------------------------------- */

struct rf_record {
	uint32_t bytes; /* of the whole record, a multiple of RF_RECORD_ALIGN */
	uint16_t opcode;
	uint16_t slot; /* reply slot + 1; 0: no reply requested */
	uint64_t seq;  /* 1, 2, 3, … over the life of the channel; any other breaks the ring */
};

/* Handles (stream, event, module, function, comm, redop) are 64-bit numbers. The client chooses
 * them from one counter that starts at RF_HANDLE_FIRST and never reuses one. Stream handles below
 * RF_HANDLE_FIRST always exist: */
#define RF_STREAM_LEGACY 1ull     /* ordered with all blocking streams */
#define RF_STREAM_PER_THREAD 2ull /* a plain blocking stream, of the first thread that uses it */
#define RF_HANDLE_FIRST 16ull

enum rf_opcode {                /* described in opcodes.def */
		 RF_OP_PAD = 0, /* skip `bytes` */
#define RF_OPCODE(name, handler, number, record, size, about, kind, errors) RF_OP_##name = (number),
#include "opcodes.def"
		 /* only in saved rank state, never in a ring: see proxy/core/loop/saved.def */
		 RF_OP_STATE_FIRST = 0x1000,
};

/* Any request may name a reply slot; it is then answered when the request is done. */
enum rf_kind {
	RF_ASYNC, /* usually without a slot: its failure becomes the rank's sticky error */
	RF_CALL,  /* with a slot: the client continues with the result */
	RF_SYNC,  /* with a slot: answered when its subject's earlier work is done */
	RF_QUERY, /* with a slot: answered at once; does not count as work */
	RF_ROUND, /* a round of a communicator: completes with the other ranks; counted */
};

struct rf_handle {
	struct rf_record r;
	uint64_t handle;
};

/* Accesses may continue in an adjacent allocation that has this flag, too. */
#define RF_ALLOC_JOINED 1u
struct rf_alloc {
	struct rf_record r;
	uint64_t addr;      /* RF_ALLOC_ALIGNed, inside the heap */
	uint64_t bytes;     /* as requested by the program */
	uint64_t call_site; /* hash of the call stack; 0: unknown */
	uint32_t stable;    /* 1: predicted to be long-lived (parameters, optimizer state) */
	uint32_t flags;     /* RF_ALLOC_JOINED (1.16) */
};
struct rf_free {
	struct rf_record r;
	uint64_t addr;
};
struct rf_free_async {
	struct rf_record r;
	uint64_t addr;
	uint64_t stream; /* the program releases the memory at this place in it */
};
struct rf_grant {
	struct rf_record r;
	uint64_t want_bytes;
};
struct rf_grant_reply {
	uint64_t grant_bytes;
};

enum rf_place {
	RF_AT_ADDRESS = 0, /* a device or pinned address of the window */
	RF_AT_BULK = 1,    /* at = slot number * RF_BULK_BYTES + offset; rows packed by pitch */
	RF_AT_INLINE = 2,  /* source only: the bytes follow the record's fixed part, packed */
};
/* One copy of `height` rows of `width` bytes. 1D: height 1. */
struct rf_copy {
	struct rf_record r;
	uint64_t stream;
	uint64_t dst, src; /* interpreted by dst_place, src_place */
	uint64_t dst_pitch, src_pitch;
	uint64_t width, height;
	uint8_t dst_place, src_place;
	uint8_t release_bulk; /* 1: the source slot becomes free when it has been read */
	uint8_t reserved[5];
	uint8_t data[]; /* RF_AT_INLINE */
};
struct rf_fill {
	struct rf_record r;
	uint64_t stream;
	uint64_t dst, pitch;
	uint64_t width, height;  /* width in elements */
	uint32_t value, element; /* element: 1, 2 or 4 bytes */
};

/* RF_IMAGE_LIBRARY is no code: RF_LIBRARY_TEXT and the name of a library of NVIDIA's. The module's
 * functions are the library's; the proxy of an nvidia device calls them
 * (proxy/hal/nvidia/calls.c). */
enum rf_image { RF_IMAGE_FATBIN = 0, RF_IMAGE_PTX = 1, RF_IMAGE_ELF = 2, RF_IMAGE_LIBRARY = 3 };
#define RF_LIBRARY_TEXT "rankfold library "
struct rf_module_data {
	struct rf_record r;
	uint64_t module;
	uint64_t offset; /* in the image */
	uint32_t bytes;
	uint32_t bulk; /* slot that holds the bytes; the server frees it */
};
struct rf_module_load {
	struct rf_record r;
	uint64_t module;
	uint64_t bytes; /* of the whole image, already sent */
	uint32_t image; /* enum rf_image */
	uint32_t why;   /* 1 + the bulk slot for the reason of an error: zero-terminated text,
			 * empty if there is none; 0: no slot */
};
#define RF_GLOBALS_MANAGED (1u << 31) /* in global_count: the host accesses some of them, too */
struct rf_module_reply {
	uint64_t globals_bytes; /* the client allocates them, then sends MODULE_GLOBALS */
	uint32_t function_count, global_count;
};
struct rf_module_globals {
	struct rf_record r;
	uint64_t module, addr;
};
#define RF_NAME_MAX 4096u
struct rf_name {
	struct rf_record r;
	uint64_t module;
	uint64_t handle;     /* FUNCTION_GET: the function's handle */
	uint32_t bulk;       /* FUNCTION_GET: slot for the parameter layout, or for the reason of
			      * an error: zero-terminated text, empty if there is none. GLOBAL_GET:
			      * 1: only a variable that the host accesses, too */
	uint32_t name_bytes; /* without a terminating zero */
	char name[];
};
/* FUNCTION_GET writes param_count of these into the bulk slot that it names. */
struct rf_param {
	uint32_t offset, bytes;
};
struct rf_function_reply {
	uint32_t param_count, param_bytes;
	uint32_t static_shared_bytes, max_threads, registers, local_bytes, const_bytes, ptx_version;
};
struct rf_global_reply {
	uint64_t addr, bytes;
};
/* The names of a module's functions in module order, starting with number `first`: as many as fit
 * the bulk slot, each with its terminating zero. */
struct rf_function_names {
	struct rf_record r;
	uint64_t module;
	uint32_t first, bulk;
};
struct rf_function_names_reply {
	uint32_t count;
};

#define RF_STREAM_NON_BLOCKING 1u /* not ordered with the legacy stream */
struct rf_stream_create {
	struct rf_record r;
	uint64_t stream;
	uint32_t flags; /* RF_STREAM_NON_BLOCKING */
	int32_t priority;
};
#define RF_EVENT_DISABLE_TIMING 2u /* its time is never read */
struct rf_event_create {
	struct rf_record r;
	uint64_t event;
	uint32_t flags; /* CUDA's; only RF_EVENT_DISABLE_TIMING has an effect */
	uint32_t reserved;
};
struct rf_event {
	struct rf_record r;
	uint64_t event, stream;
};
struct rf_elapsed {
	struct rf_record r;
	uint64_t start, end;
};
struct rf_elapsed_reply {
	float milliseconds;
};
struct rf_events {
	uint64_t start, end;
};
struct rf_query_reply {
	uint64_t consumed;  /* seq of the last record that was consumed before the query */
	float milliseconds; /* RF_URGENT_ELAPSED */
	uint32_t reserved;
};

#define RF_LAUNCH_COOPERATIVE 1u
#define RF_PARAM_MAX 32764u /* bytes of a kernel's parameters: CUDA's own limit */
struct rf_launch {
	struct rf_record r;
	uint64_t stream, function;
	uint32_t grid[3], block[3];
	uint32_t shared_bytes; /* dynamic */
	uint32_t param_bytes;
	uint32_t flags;   /* RF_LAUNCH_COOPERATIVE */
	uint32_t cluster; /* blocks of a cluster: x | y << 8 | z << 16; 0: none (1.18) */
	uint8_t params[]; /* in the layout that FUNCTION_GET returned */
};
/* How many clusters of a launch fit the device at once, or how many blocks a cluster may have: what
 * cuOccupancyMaxActiveClusters and cuOccupancyMaxPotentialClusterSize return (since 1.18). */
enum rf_clusters_kind { RF_CLUSTERS_ACTIVE = 1, RF_CLUSTERS_POTENTIAL };
struct rf_clusters {
	struct rf_record r;
	uint64_t function;
	uint32_t grid[3], block[3];
	uint32_t shared_bytes, cluster; /* as in rf_launch */
	uint32_t kind, large;           /* large: more than eight blocks are allowed */
};
struct rf_clusters_reply {
	uint32_t count;
};
/* The driver's description of a tensor, which kernels get as a parameter and which contains its
 * address (since 1.17). The fields are the parameters of cuTensorMapEncode…; the device's driver
 * checks them. */
#define RF_TENSOR_MAP_BYTES 128u
enum rf_tensor_map_kind { RF_TENSOR_TILED = 1, RF_TENSOR_IM2COL, RF_TENSOR_REPLACE_ADDRESS };
struct rf_tensor_map {
	struct rf_record r;
	uint64_t addr;
	uint32_t kind, type, rank;
	uint32_t interleave, swizzle, promotion, fill;
	uint32_t channels, pixels; /* IM2COL: per pixel, per column */
	uint32_t reserved;
	uint64_t dim[5], stride[4];
	uint32_t box[5], element_stride[5];
	int32_t lower[3], upper[3];       /* IM2COL */
	uint8_t map[RF_TENSOR_MAP_BYTES]; /* REPLACE_ADDRESS */
};
struct rf_tensor_map_reply {
	uint8_t map[RF_TENSOR_MAP_BYTES];
};
struct rf_host_func {
	struct rf_record r;
	uint64_t stream, token;
};

/* Element (i, j) of matrix number b is row * i + col * j + batch * b elements after `addr`. Either
 * row or col is 1; this expresses order and transposition without separate fields. */
struct rf_matrix {
	uint64_t addr, row, col, batch;
};
enum rf_gemm_flags {
	RF_GEMM_POINTERS = 1, /* addr of A, B, C, D refers to `count` addresses, one per product */
	RF_GEMM_SCALARS = 2,  /* alpha and beta are addresses of the values */
	RF_GEMM_RELU = 4,     /* last step of the product: max(x, 0) */
	RF_GEMM_GELU = 8,     /* or x * Phi(x), in the tanh form */
	/* GEMM_AUX only; without RF_GEMM_POINTERS, and not for integers */
	RF_GEMM_KEEP = 16,   /* with RELU or GELU: store the step's input x in `aux` */
	RF_GEMM_DRELU = 32,  /* or multiply x by ReLU's derivative at the value in `aux` */
	RF_GEMM_DGELU = 64,  /* or multiply x by GELU's derivative there */
	RF_GEMM_SUM_D = 128, /* `bias` is a result: the sums of D's rows, */
	RF_GEMM_SUM_A = 256, /* or of A's rows, */
	RF_GEMM_SUM_B = 512, /* or of B's columns */
};
/* `count` products D = step(alpha * A * B + beta * C + bias). A has m rows and k columns, B has k
 * rows and n columns; C and D have the same type, m rows and n columns. Types are cudaDataType
 * numbers. */
struct rf_gemm {
	struct rf_record r;
	uint64_t stream;
	uint64_t m, n, k, count;
	struct rf_matrix a, b, c, d;
	uint64_t bias, bias_batch; /* one element per row of D, contiguous; address 0: none */
	uint64_t alpha, beta;      /* as bits, in type_scale */
	uint8_t type_ab, type_cd, type_bias, type_scale;
	uint32_t flags;         /* enum rf_gemm_flags */
	uint32_t compute, math; /* cublasComputeType_t, cublasMath_t: the permitted precision */
};
/* `aux` is stored by columns. For GELU it is a matrix like D. For ReLU it has one bit per element,
 * 1 where ReLU passed x, the first in a byte's lowest bit; col and batch then count bits, in
 * multiples of 128. */
struct rf_gemm_aux {
	struct rf_gemm g;
	struct rf_matrix aux;
};
enum rf_gemm_api { /* of the program's call */
		   RF_GEMM_ANY = 0,
		   RF_GEMM_LT = 1,         /* cublasLtMatmul */
		   RF_GEMM_ONE = 2,        /* cublasSgemm, cublasDgemm, cublasHgemm */
		   RF_GEMM_STRIDED = 3,    /* …StridedBatched */
		   RF_GEMM_LISTED = 4,     /* …Batched */
		   RF_GEMM_ONE_EX = 5,     /* cublasGemmEx, and also cublasSgemmEx */
		   RF_GEMM_STRIDED_EX = 6, /* …StridedBatchedEx */
		   RF_GEMM_LISTED_EX = 7,  /* …BatchedEx */
		   RF_GEMM_APIS,
};
/* How the program requested a product: with it, a device that has the program's library makes the
 * same call. A, B, C and D are numbers 0 to 3. */
struct rf_gemm_how {
	uint64_t workspace, workspace_bytes; /* the program's own; address 0: the library's */
	uint64_t ld[4];
	uint8_t api;       /* enum rf_gemm_api; ANY: not said, and the rest is 0 */
	uint8_t op[2];     /* cublasOperation_t of A and B */
	uint8_t by_rows;   /* bits: stored by rows, for LT */
	int32_t algorithm; /* cublasGemmAlgo_t */
	int32_t atomics, sm_count;
	/* LT: the preference with which the program got its algorithm */
	uint32_t reductions, aligned[4]; /* mask; bytes */
	uint32_t reserved;
	uint64_t most_bytes; /* of workspace */
};
struct rf_gemm_call {
	struct rf_gemm g;
	struct rf_matrix aux;
	struct rf_gemm_how how;
};

/* ---- what the client fills in for a module ---------------------------------------------- */

/* A module may have a variable of this name in its globals: a struct rf_setup. The client fills it
 * in before the module's first launch (1.1): it adds the address of the module's globals to the
 * 64-bit words at the `offset`s, which are pointers of initialised variables, and sets `print` to a
 * struct rf_print in its pinned arena, where kernels write their output. `heap` is initially 1 if
 * kernels may allocate; the client then sets it to a struct rf_heap before the first of them
 * runs. */
#define RF_SETUP_NAME "__rankfold"
struct rf_setup {
	uint64_t print;
	uint64_t heap;
	uint64_t count;
	uint64_t offset[]; /* from the start of the globals */
};

/* A ring of text. `head` counts all bytes ever written; bytes more than RF_PRINT_BYTES behind it
 * are overwritten, as in CUDA. The client reads it when it synchronises.
 */
#define RF_PRINT_BYTES (1u << 20) /* power of two */
struct rf_print {
	_Alignas(64) _Atomic uint64_t head; /* (S) */
	_Alignas(64) uint8_t text[RF_PRINT_BYTES];
};

/* The heap from which kernels allocate, in device memory. The client writes these two fields; the
 * device keeps its other state behind them. */
struct rf_heap {
	uint64_t bytes; /* size of the whole heap */
	uint64_t made;  /* 0: the device has not used it yet */
};

#define RF_UNIQUE_ID_BYTES 128u
struct rf_comm_init {
	struct rf_record r;
	uint64_t comm;
	uint32_t nranks, rank;
	uint8_t unique_id[RF_UNIQUE_ID_BYTES];
};
struct rf_comm_split {
	struct rf_record r;
	uint64_t parent, comm;
	int32_t color, key;
};
struct rf_comm_split_reply {
	uint32_t nranks, rank;
};

enum rf_coll {
	RF_COLL_ALLREDUCE = 0,
	RF_COLL_REDUCE = 1,
	RF_COLL_BROADCAST = 2,
	RF_COLL_ALLGATHER = 3,
	RF_COLL_REDUCESCATTER = 4,
	RF_COLL_SEND = 5,
	RF_COLL_RECV = 6,
	RF_COLL_ALLTOALL = 7,
	RF_COLL_GATHER = 8,
	RF_COLL_SCATTER = 9,
};
struct rf_collective {
	struct rf_record r;
	uint64_t stream, comm;
	uint64_t send, recv; /* window addresses; 0 where the operation has none */
	uint64_t count;      /* elements, as in the NCCL call (sendcount or recvcount) */
	uint64_t op;         /* ncclRedOp_t, or a handle >= RF_HANDLE_FIRST of REDOP_CREATE */
	uint32_t kind;       /* enum rf_coll */
	uint32_t dtype;      /* ncclDataType_t */
	int32_t root;        /* root, or the peer of SEND and RECV */
	uint32_t group_left; /* records of the same outermost group that follow; 0: last */
};
struct rf_redop {
	struct rf_record r;
	uint64_t redop, comm;
	uint32_t dtype, reserved;
	uint8_t scalar[8]; /* pre-multiplication, in dtype, host value */
};

/* ---- hand-over of the memfd: client -> launcher, on a Unix SOCK_STREAM socket ---------- */

#define RF_ENV_LAUNCHER "RANKFOLD_LAUNCHER" /* path of the launcher's client socket */

struct rf_hello { /* (C), with the memfd as SCM_RIGHTS, after the header's line 0 is set */
	uint64_t magic;
	uint32_t major, minor;
	uint32_t pid;
	uint32_t reserved;
};
/* The virtual device: constant for the job, whatever device serves it. */
struct rf_device {
	char name[64];
	uint64_t memory_bytes; /* capacity: malloc beyond it fails */
	uint32_t cc_major, cc_minor;
	uint32_t sm_count, warp_size;
	uint32_t max_threads_per_block, max_threads_per_sm;
	uint32_t shared_per_block, shared_per_block_optin, shared_per_sm;
	uint32_t regs_per_block, regs_per_sm;
	uint32_t clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
	uint32_t blocks_per_sm;
	uint32_t reserved[8];
};
struct rf_welcome { /* (L) */
	uint64_t magic;
	int32_t error;         /* 0; 1: refused, `message` has the reason */
	uint32_t device_count; /* virtual devices the rank sees */
	uint32_t rank, world_size;
	struct rf_device device;
	char message[256];
};
/* Before it creates the memfd, the client sends rf_hello with pid 0 and no descriptor; the
 * rf_welcome brings rank and device, or the reason of a refusal. It then creates the memfd, sends
 * rf_hello with its pid and the memfd, receives rf_welcome again, and closes the connection. */

/* The positions are part of the contract: nothing may move. */
#define RF_OPCODE(name, handler, number, record, size, about, kind, errors)                        \
	_Static_assert(sizeof(struct record) == (size), "size of " #record);
#define RF_REPLY(name, reply, size)                                                                \
	_Static_assert(sizeof(struct reply) == (size) && (size) <= RF_SLOT_DATA_BYTES,             \
		       "size of " #reply);
#include "opcodes.def"
#define RF_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), "size of " #type)
RF_SIZE(rf_header, 3648);
RF_SIZE(rf_slot, RF_SLOT_BYTES);
RF_SIZE(rf_param, 8);
RF_SIZE(rf_events, 16);
RF_SIZE(rf_query_reply, 16);
RF_SIZE(rf_matrix, 32);
RF_SIZE(rf_setup, 24);
RF_SIZE(rf_print, 64 + RF_PRINT_BYTES);
RF_SIZE(rf_heap, 16);
RF_SIZE(rf_hello, 24);
RF_SIZE(rf_device, 168);
RF_SIZE(rf_welcome, 448);
#undef RF_SIZE
_Static_assert(sizeof(struct rf_header) <= RF_OFF_SLOTS, "header fits its page");
_Static_assert(offsetof(struct rf_header, epoch) == 64, "line 1");
_Static_assert(offsetof(struct rf_header, head) == 128, "line 2");
_Static_assert(offsetof(struct rf_header, tail) == 192, "line 3");
_Static_assert(offsetof(struct rf_header, retired_free) == 256, "line 4");
_Static_assert(offsetof(struct rf_header, hostfunc_head) == 320, "line 5");
_Static_assert(offsetof(struct rf_header, bulk_busy) == 384, "line 6");
_Static_assert(offsetof(struct rf_header, fault) == 448, "line 7");
_Static_assert(offsetof(struct rf_header, writing) == 704, "behind the fault's text");
_Static_assert(offsetof(struct rf_header, urgents) == 144, "in line 2");
_Static_assert(offsetof(struct rf_header, urgent) == 768, "behind writing");
_Static_assert(offsetof(struct rf_header, comm_errors) == 1280, "behind urgent");
_Static_assert(offsetof(struct rf_header, fault_rest) == 1792, "behind comm_errors");
_Static_assert(RF_OFF_SLOTS + RF_SLOT_COUNT * RF_SLOT_BYTES <= RF_OFF_HOSTFUNC, "slots fit");
_Static_assert(RF_OFF_HOSTFUNC + RF_HOSTFUNC_COUNT * sizeof(uint64_t) <= RF_OFF_PINS,
	       "host functions fit");
_Static_assert(RF_OFF_PINS + RF_PIN_WORDS * sizeof(uint64_t) <= RF_OFF_RING, "pins fit");
_Static_assert(RF_OFF_RING + RF_RING_BYTES <= RF_OFF_BULK, "ring fits");
_Static_assert(RF_OFF_BULK + (uint64_t)RF_BULK_COUNT * RF_BULK_BYTES <= RF_OFF_PINNED, "bulk fits");
_Static_assert(sizeof(struct rf_launch) + RF_PARAM_MAX <= RF_RECORD_MAX &&
		       RF_RECORD_MAX % RF_RECORD_ALIGN == 0,
	       "any launch is a record");

#endif
