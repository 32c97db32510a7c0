/* kernel.h: the contract between compiled kernels (lower.py) and the scheduler (block.c).
 *
 * A kernel is divided at every operation that involves other threads (barriers, shuffles, votes);
 * these places are its cuts. A segment runs threads [t0, t1) of a block from one cut to each
 * thread's next one, and keeps live values in the frame: slot s of thread t is at frame + s *
 * stride + t * size. The scheduler executes the cut's operation on the frame and calls the segment
 * after it. While all threads of a block are at the same cut, they also stop in small loops, after
 * each iteration, so that an iteration can be vectorised; the segment has a second function for
 * that. A value that grows evenly along a row of threads is then stored only for the row's first
 * thread: struct soft_row_value.
 *
 * lower.py writes struct hal_function and its cuts as data of the compiled object. Any change here
 * requires a new SOFT_KERNEL_ABI, which is part of the object cache's key.
 */
#ifndef RANKFOLD_KERNEL_H
#define RANKFOLD_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define SOFT_KERNEL_ABI 11u

/* Numbers of cuts that every kernel has. */
#define SOFT_EXIT 0u
#define SOFT_ENTRY 1u

struct soft_block {
	uint8_t *base; /* of the rank's window */
	uint8_t *shared, *local, *frame;
	const uint8_t *params;
	uint64_t globals; /* device address of the module's globals */
	/* cut of each thread; written when threads of a segment end at different cuts */
	uint16_t *next;
	uint32_t ntid[3], nctaid[3], ctaid[3];
	uint32_t stride; /* threads of the block, rounded up to whole warps */
	uint32_t dynamic_shared, reserved;
	uint8_t *grid; /* workspace of a cooperative launch, else NULL */
	const struct hal_function *function;
};

/* Runs threads t0 to t1, which are in one row of the block: tid.x = t - row. Returns the bitwise OR
 * of the cuts that the threads reached (high half) and the AND (low half): equal if all reached the
 * same one. */
typedef uint64_t (*soft_segment)(const struct soft_block *, uint32_t t0, uint32_t t1, uint32_t row,
				 uint32_t tid_y, uint32_t tid_z);

enum soft_cut_kind {
	SOFT_CUT_NONE,    /* EXIT and ENTRY */
	SOFT_CUT_BARRIER, /* in: id, threads (0: all), predicate; op: enum soft_barrier */
	SOFT_CUT_ARRIVE,  /* in: id, threads */
	SOFT_CUT_YIELD,   /* lets the other threads run */
	/* The operations of a warp; in[3] is the member mask. */
	SOFT_CUT_SYNC,
	SOFT_CUT_SHFL,    /* in: value, lane, clamp; out: value, predicate */
	SOFT_CUT_VOTE,    /* in: predicate; out: result */
	SOFT_CUT_MATCH,   /* in: value, high half of the value; out: mask, predicate */
	SOFT_CUT_REDUX,   /* in: value; out: result */
	SOFT_CUT_ACTIVE,  /* out: mask */
	SOFT_CUT_ELECT,   /* out: lane, predicate */
	SOFT_CUT_REGROUP, /* only a block in lockstep stops here */
	SOFT_CUT_MATRIX,  /* matrix operations of a warp, one after another: soft_cut.steps */
};
/* A step of SOFT_CUT_MATRIX, in words: its kind, its op, the numbers of words of three operands and
 * of the result, and the slots of all these words. A 64-bit value is two words, the low one first.
 */
enum soft_step {
	SOFT_STEP_MMA,  /* A, B, C; result: D */
	SOFT_STEP_TILE, /* address, stride, data to store; result: data loaded */
	SOFT_STEP_ROWS, /* address, data to store; result: data loaded */
	SOFT_STEP_TURN, /* a matrix; result: its transpose */
};
enum soft_barrier { SOFT_BARRIER_SYNC, SOFT_BARRIER_POPC, SOFT_BARRIER_AND, SOFT_BARRIER_OR };
enum soft_shfl { SOFT_SHFL_UP, SOFT_SHFL_DOWN, SOFT_SHFL_BFLY, SOFT_SHFL_IDX };
enum soft_vote { SOFT_VOTE_ALL, SOFT_VOTE_ANY, SOFT_VOTE_UNI, SOFT_VOTE_BALLOT };
enum soft_match { SOFT_MATCH_ANY, SOFT_MATCH_ALL };
enum soft_redux {
	SOFT_REDUX_ADD,
	SOFT_REDUX_MIN_U,
	SOFT_REDUX_MAX_U,
	SOFT_REDUX_MIN_S,
	SOFT_REDUX_MAX_S,
	SOFT_REDUX_AND,
	SOFT_REDUX_OR,
	SOFT_REDUX_XOR,
};

/* The op of a step, written by matrix.py; fields from the low bits up.
 *
 * MMA:  m / 8 (3 bits), n / 8 (3), log2 of k (4), elements of A, B, C, D (4 each), flags (4),
 *       rounding of doubles (2)
 * TILE: m / 8, n / 8, log2 of k, element, part (2), flags (2), space (2), words of a lane
 * ROWS: matrices (3), flags (2), space */
enum soft_element {
	SOFT_F16,
	SOFT_BF16,
	SOFT_TF32,
	SOFT_F32,
	SOFT_F64,
	SOFT_E4M3,
	SOFT_E5M2,
	SOFT_S8,
	SOFT_U8,
	SOFT_S4,
	SOFT_U4,
	SOFT_B1,
	SOFT_S32,
};
enum soft_mma { /* flags; the COLUMN flags are for m8n8k4 only */
		SOFT_MMA_SATURATES = 1,
		SOFT_MMA_AND = 2,
		SOFT_MMA_COLUMN_A = 4,
		SOFT_MMA_COLUMN_B = 8,
};
enum soft_rounding { SOFT_ROUND_N, SOFT_ROUND_Z, SOFT_ROUND_M, SOFT_ROUND_P };
enum soft_part { SOFT_TILE_A, SOFT_TILE_B, SOFT_TILE_C };
enum soft_tile { SOFT_TILE_COLUMNS = 1, SOFT_TILE_STORES = 2 };
enum soft_rows { SOFT_ROWS_TURNED = 1, SOFT_ROWS_STORES = 2 };
enum soft_space { SOFT_SPACE_GENERIC, SOFT_SPACE_GLOBAL, SOFT_SPACE_SHARED };

/* Bits of an address above 2^40 that mark memory outside the window: memory.py. */
#define SOFT_TAG_SHARED 0x10u
#define SOFT_TAG_LOCAL 0x11u
#define SOFT_GRID_BYTES 64u

#define SOFT_NO_SLOT UINT32_MAX
#define SOFT_FLAT 1u          /* `run` reads no thread coordinates: rows do not matter to it */
#define SOFT_LOCKSTEP_FLAT 2u /* nor does `step` */
/* names no members: acts for the lanes of the warp that can be here first */
#define SOFT_LOOSE 4u

/* The slot of a cut's operand n, if it is in a slot; results are 4 and 5. */
#define SOFT_OPERAND(n) (4 * (n))
struct soft_operand {
	uint32_t slot, value;
}; /* value: used if slot is SOFT_NO_SLOT */
/* A value that is stored for the row's first thread t only, for `step`: that of thread t + n is
 * greater by n * slope, modulo the width. (Slope 0: a value of any type.) */
struct soft_row_value {
	uint32_t slot, bytes;
	int64_t slope;
};
struct soft_cut {
	soft_segment run; /* the segment after the cut */
	/* The same, up to the next SOFT_CUT_REGROUP, for a block in lockstep: its threads have
	 * passed the same cuts until now. */
	soft_segment step;
	uint16_t kind, flags;
	uint32_t op;
	struct soft_operand in[4];
	uint32_t out[2]; /* slots of 32 bits, or SOFT_NO_SLOT */
	const struct soft_row_value *row_values;
	const uint32_t *steps; /* of SOFT_CUT_MATRIX: op of them */
	uint32_t row_value_count, reserved;
};

struct hal_function {
	const char *name;
	const struct soft_cut *cuts;
	uint32_t abi, cut_count;
	uint32_t param_bytes, static_shared;
	uint32_t local_stride; /* bytes of local memory of a thread: 0 or a power of two */
	uint32_t frame_bytes;  /* per thread */
	uint32_t max_threads;  /* per block */
	uint32_t flags;
};
#define SOFT_ORDERED 1u /* the order of its blocks may change what it computes or prints */
/* A thread uses its position in x only as ctaid * ntid + tid, and waits for no other thread:
 * consecutive blocks in x can run as one long block. */
#define SOFT_WIDE 2u

/* For compiled kernels: ends the launch. error: 714 for a stack overflow, 719 for a trap, 801 for a
 * call of a function that does not exist. */
void rankfold_soft_trap(uint32_t error);
/* For compiled kernels: __assertfail of the thread x, y, z, with the device addresses of its texts.
 * Ends the launch with error 710. */
void rankfold_soft_assert(const struct soft_block *, const uint8_t *local, uint32_t local_stride,
			  uint32_t x, uint32_t y, uint32_t z, uint64_t message, uint64_t file,
			  uint32_t line, uint64_t function);
/* For compiled kernels: threads [t0, t1) ended at `cut`, others at another one: sets next[]. */
void rankfold_soft_end_at(const struct soft_block *, uint32_t cut, uint32_t t0, uint32_t t1);
/* The same for threads of one row in lockstep, which diverge here: stores for each of them the
 * values that are stored for the first one only. */
void rankfold_soft_diverge(const struct soft_block *, uint32_t cut, uint32_t t0, uint32_t t1);
/* For compiled kernels: printf. `local`, `local_stride`: of the thread. The others are device
 * addresses: of the pointer to the rank's struct rf_print, the format, and the arguments. Returns
 * as vprintf. */
int32_t rankfold_soft_print(const struct soft_block *, const uint8_t *local, uint32_t local_stride,
			    uint64_t print, uint64_t format, uint64_t arguments);
/* For compiled kernels: malloc and free, on the heap that the struct rf_setup at device address
 * `setup` points to. malloc returns 0 if the heap is full; an invalid free ends the launch. */
uint64_t rankfold_soft_malloc(const struct soft_block *, uint64_t setup, uint64_t bytes);
void rankfold_soft_free(const struct soft_block *, uint64_t setup, uint64_t address);
/* For compiled kernels: %clock and %globaltimer. Not deterministic, as on any device. */
uint64_t rankfold_soft_nanoseconds(void);

_Static_assert(offsetof(struct soft_block, ntid) == 56, "lower.py knows these offsets");
_Static_assert(offsetof(struct soft_block, stride) == 92, "lower.py knows these offsets");
_Static_assert(offsetof(struct soft_block, grid) == 104, "lower.py knows these offsets");
_Static_assert(sizeof(struct soft_row_value) == 16, "lower.py writes these");
_Static_assert(sizeof(struct soft_cut) == 88, "lower.py writes these");
_Static_assert(sizeof(struct hal_function) == 48, "lower.py writes these");

#endif
