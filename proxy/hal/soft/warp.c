/* warp.c: the operations of a warp: shuffles, votes, matches, reductions, on the frame of the block
 * (kernel.h). Lanes that name the same members act together, once all of them have arrived. PTX
 * ISA, "Parallel Synchronization and Communication Instructions" and "shfl.sync".
 *
 * Runs in a fault scope (fault.c): it takes no locks and accesses only the frame.
 */
#include <string.h>

#include "block.h"

/* PTX ISA, "shfl.sync": the lane to read from, and whether it is in range. */
static uint32_t shfl_source(uint32_t op, uint32_t lane, uint32_t b, uint32_t c, bool *in_range)
{
	uint32_t segment = c >> 8 & 31, clamp = c & 31, from;
	uint32_t lowest = lane & segment, highest = lowest | (clamp & ~segment);

	b &= 31;
	switch (op) {
	case SOFT_SHFL_UP:
		from = lane - b;
		*in_range = (int32_t)from >= (int32_t)highest;
		break;
	case SOFT_SHFL_DOWN:
		from = lane + b;
		*in_range = from <= highest;
		break;
	case SOFT_SHFL_BFLY:
		from = lane ^ b;
		*in_range = from <= highest;
		break;
	default: from = lowest | (b & ~segment); *in_range = from <= highest;
	}
	return *in_range ? from : lane;
}

/* Reading from an absent lane gives 0: undefined in CUDA, and what an H200 does. */
static void run_shfl(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		     uint32_t lanes)
{
	uint32_t value[WARP] = {0};

	EACH_LANE(lane, lanes)
	value[lane] = operand(launch, &cut->in[0], first + lane);
	EACH_LANE(lane, lanes)
	{
		uint32_t b = operand(launch, &cut->in[1], first + lane);
		uint32_t c = operand(launch, &cut->in[2], first + lane);
		bool in_range;
		uint32_t from = shfl_source(cut->op, lane, b, c, &in_range);

		result(launch, cut->out[0], first + lane, value[from]);
		result(launch, cut->out[1], first + lane, in_range);
	}
}

/* With constant operands the source lanes are the same in all warps. */
void soft_shfl_block(const struct launch *launch, const struct soft_cut *cut, uint32_t whole)
{
	uint32_t from[WARP], range[WARP], value[WARP];
	uint32_t *a = slot(launch, cut->in[0].slot);

	for (uint32_t lane = 0; lane < WARP; lane++) {
		bool in_range;

		from[lane] = shfl_source(cut->op, lane, cut->in[1].value, cut->in[2].value,
					 &in_range);
		range[lane] = in_range;
	}
	for (uint32_t first = 0; first < whole; first += WARP) {
		memcpy(value, a + first, sizeof value);
		if (cut->out[0] != SOFT_NO_SLOT)
			for (uint32_t lane = 0; lane < WARP; lane++)
				slot(launch, cut->out[0])[first + lane] = value[from[lane]];
		if (cut->out[1] != SOFT_NO_SLOT)
			memcpy(slot(launch, cut->out[1]) + first, range, sizeof range);
	}
}

static uint32_t ballot_of(const struct launch *launch, const struct soft_operand *in,
			  uint32_t first, uint32_t lanes)
{
	uint32_t set = 0;

	EACH_LANE(lane, lanes)
	set |= (uint32_t)(operand(launch, in, first + lane) != 0) << lane;
	return set;
}

static void run_vote(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		     uint32_t lanes)
{
	uint32_t set = ballot_of(launch, &cut->in[0], first, lanes), value = set;

	switch (cut->op) {
	case SOFT_VOTE_ALL: value = set == lanes; break;
	case SOFT_VOTE_ANY: value = set != 0; break;
	case SOFT_VOTE_UNI: value = set == lanes || set == 0; break;
	}
	EACH_LANE(lane, lanes)
	result(launch, cut->out[0], first + lane, value);
}

static void run_match(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		      uint32_t lanes)
{
	uint64_t value[WARP] = {0};

	EACH_LANE(lane, lanes)
	value[lane] = operand(launch, &cut->in[0], first + lane) |
		      (uint64_t)operand(launch, &cut->in[1], first + lane) << 32;
	EACH_LANE(lane, lanes)
	{
		uint32_t same = 0;

		EACH_LANE(other, lanes)
		same |= (uint32_t)(value[other] == value[lane]) << other;
		if (cut->op == SOFT_MATCH_ALL && same != lanes)
			same = 0;
		result(launch, cut->out[0], first + lane, same);
		result(launch, cut->out[1], first + lane, same != 0);
	}
}

static uint32_t redux_step(uint32_t op, uint32_t a, uint32_t b)
{
	switch (op) {
	case SOFT_REDUX_ADD: return a + b;
	case SOFT_REDUX_MIN_U: return a < b ? a : b;
	case SOFT_REDUX_MAX_U: return a > b ? a : b;
	case SOFT_REDUX_MIN_S: return (int32_t)a < (int32_t)b ? a : b;
	case SOFT_REDUX_MAX_S: return (int32_t)a > (int32_t)b ? a : b;
	case SOFT_REDUX_AND: return a & b;
	case SOFT_REDUX_OR: return a | b;
	default: return a ^ b;
	}
}

static void run_redux(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		      uint32_t lanes)
{
	uint32_t lowest = (uint32_t)__builtin_ctz(lanes);
	uint32_t value = operand(launch, &cut->in[0], first + lowest);

	EACH_LANE(lane, lanes & (lanes - 1))
	value = redux_step(cut->op, value, operand(launch, &cut->in[0], first + lane));
	EACH_LANE(lane, lanes)
	result(launch, cut->out[0], first + lane, value);
}

static void warp_operation(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
			   uint32_t lanes)
{
	uint32_t lowest = (uint32_t)__builtin_ctz(lanes);

	switch (cut->kind) {
	case SOFT_CUT_SHFL: run_shfl(launch, cut, first, lanes); break;
	case SOFT_CUT_VOTE: run_vote(launch, cut, first, lanes); break;
	case SOFT_CUT_MATCH: run_match(launch, cut, first, lanes); break;
	case SOFT_CUT_REDUX: run_redux(launch, cut, first, lanes); break;
	case SOFT_CUT_ACTIVE:
		EACH_LANE(lane, lanes)
		result(launch, cut->out[0], first + lane, lanes);
		break;
	case SOFT_CUT_ELECT:
		EACH_LANE(lane, lanes)
		{
			result(launch, cut->out[0], first + lane, lowest);
			result(launch, cut->out[1], first + lane, lane == lowest);
		}
		break;
	case SOFT_CUT_MATRIX: soft_matrix(launch, cut, first, lanes); break;
	}
}

uint32_t soft_resolve_warp(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
			   uint32_t at, uint32_t alive)
{
	uint32_t done = 0, rest = at;

	if (cut->kind == SOFT_CUT_ACTIVE) {
		warp_operation(launch, cut, first, at);
		return at;
	}
	while (rest) {
		uint32_t lowest = (uint32_t)__builtin_ctz(rest), group = 0;
		uint32_t members = operand(launch, &cut->in[3], first + lowest);

		if (cut->in[3].slot == SOFT_NO_SLOT)
			group = rest;
		else
			EACH_LANE(lane, rest)
		if (operand(launch, &cut->in[3], first + lane) == members)
			group |= 1u << lane;
		rest &= ~group;
		if ((members & alive & ~at) == 0) {
			warp_operation(launch, cut, first, group);
			done |= group;
		}
	}
	return done;
}
