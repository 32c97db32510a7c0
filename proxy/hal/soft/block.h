/* block.h: a block of threads while it runs, for kernel.c (a launch), block.c (from
 * cut to cut), warp.c and matrix.c (the operations of a warp).
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
	uint32_t turns;       /* for which lanes have waited that stand further on than others */
	uint32_t at;          /* where all threads stand, or MIXED */
	bool lockstep;        /* its threads have passed the same cuts since it began */
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

/* block.c. All threads stand at `cut`: run what follows. */
void soft_go_on(struct launch *, uint32_t cut);
/* Runs the block to its end (true), or, if it shall `give_way`, until a thread of it waits for
 * memory to change. */
bool soft_run_block(struct launch *, bool give_way);

/* warp.c. Lanes that name the same members act together. `at` stand at the cut, `alive` have not
 * exited; returns the lanes whose members are all there, after their operation. */
uint32_t soft_resolve_warp(const struct launch *, const struct soft_cut *, uint32_t first,
			   uint32_t at, uint32_t alive);
/* matrix.c: the matrix operation of a warp, of its `lanes`. */
void soft_matrix(const struct launch *, const struct soft_cut *, uint32_t first, uint32_t lanes);
/* A shuffle by constants, for the `whole` first threads: full warps. */
void soft_shfl_block(const struct launch *, const struct soft_cut *, uint32_t whole);

#endif
