/* block.h: a thread block while it runs; for kernel.c (a launch), block.c (execution from cut to
 * cut), warp.c and matrix.c (the operations of a warp).
 */
#ifndef RANKFOLD_BLOCK_H
#define RANKFOLD_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel.h"

#define WARP 32u
#define MIXED UINT32_MAX

struct launch {
	struct soft_block block;
	const struct hal_function *function;
	uint16_t *next;
	uint64_t *arrived; /* named barriers: threads that passed bar.arrive */
	uint32_t threads;
	/* counts turns in which lanes waited although others wait further on */
	uint32_t turns;
	uint32_t at;          /* the cut that all threads have reached, or MIXED */
	bool lockstep;        /* all its threads have passed the same cuts since it began */
	bool yielded;         /* in this round a thread waits for memory to change */
	uint8_t *shared_copy; /* cooperative: shared memory while other blocks run */
};

static inline uint32_t *slot(const struct launch *launch, uint32_t number)
{
	return (uint32_t *)(launch->block.frame + (size_t)number * launch->block.stride);
}

static inline uint32_t operand(const struct launch *launch, const struct soft_operand *in,
			       uint32_t t)
{
	return in->slot == SOFT_NO_SLOT ? in->value : slot(launch, in->slot)[t];
}

static inline void result(const struct launch *launch, uint32_t out, uint32_t t, uint32_t value)
{
	if (out != SOFT_NO_SLOT)
		slot(launch, out)[t] = value;
}

#define EACH_LANE(lane, lanes)                                                                     \
	for (uint32_t rest_ = (lanes), lane; rest_ && (lane = (uint32_t)__builtin_ctz(rest_), 1);  \
	     rest_ &= rest_ - 1)

/* block.c. All threads are at `cut`: runs the segment that follows it. */
void soft_resume(struct launch *, uint32_t cut);
/* Runs the block to its end (true), or, with `give_way`, until one of its threads waits for memory
 * to change. */
bool soft_run_block(struct launch *, bool give_way);

/* warp.c. Lanes that name the same members act together. The lanes `at` are at the cut, the lanes
 * `alive` have not exited. Executes the operation for each set of members that is complete, and
 * returns the lanes of these sets. */
uint32_t soft_resolve_warp(const struct launch *, const struct soft_cut *, uint32_t first,
			   uint32_t at, uint32_t alive);
/* matrix.c: executes the matrix operations of a cut for the `lanes` of a warp. */
void soft_matrix(const struct launch *, const struct soft_cut *, uint32_t first, uint32_t lanes);
/* Executes a shuffle with constant operands for the first `whole` threads: full warps. */
void soft_shfl_block(const struct launch *, const struct soft_cut *, uint32_t whole);

#endif
