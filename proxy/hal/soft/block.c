/* block.c: runs a block from cut to cut.
 *
 * While all its threads are at the same cut, that cut's operation is executed for the whole block,
 * and the next segment runs over all threads, in small loops iteration by iteration. After they
 * diverge, the block continues in rounds: every warp, and in it every group of lanes that are at
 * one cut and wait for no other lane, runs one more segment, in ascending order; then complete
 * barriers open. A round without progress is a deadlock of the program and fails the launch. The
 * order never depends on time, so the same launch produces the same bits.
 *
 * Runs in a fault scope (fault.c): it takes no locks and uses no memory but the worker's own.
 */
#include <string.h>

#include "block.h"
#include "soft.h"

#define TURNS_MAX 16384u /* times that lanes wait for others further on */

/* ---- running segments ------------------------------------------------------------------ */

__attribute__((visibility("default"))) void rankfold_soft_end_at(const struct soft_block *block,
								 uint32_t cut, uint32_t t0,
								 uint32_t t1)
{
	for (uint32_t t = t0; t < t1; t++)
		block->next[t] = (uint16_t)cut;
}

/* Fills the slots of the `count` - 1 threads after the first one. */
static void expand_row_value(uint8_t *slot, const struct soft_row_value *row, uint32_t count)
{
	uint64_t value = 0;

	memcpy(&value, slot, row->bytes);
	for (uint32_t n = 1; n < count; n++) {
		value += (uint64_t)row->slope;
		memcpy(slot + (size_t)n * row->bytes, &value, row->bytes);
	}
}

__attribute__((visibility("default"))) void rankfold_soft_diverge(const struct soft_block *block,
								  uint32_t cut, uint32_t t0,
								  uint32_t t1)
{
	const struct soft_cut *at = &block->function->cuts[cut];

	if (t0 == t1)
		return; /* and `cut` is not valid */
	rankfold_soft_end_at(block, cut, t0, t1);
	for (uint32_t i = 0; i < at->row_value_count; i++) {
		const struct soft_row_value *row = &at->row_values[i];

		expand_row_value(block->frame + (size_t)row->slot * block->stride +
					 (size_t)t0 * row->bytes,
				 row, t1 - t0);
	}
}

/* Sets threads [t0, t1), whole rows if they are in lockstep, to be at `cut` individually. */
static void set_next(struct launch *launch, uint32_t t0, uint32_t t1, uint32_t cut)
{
	uint32_t width = launch->lockstep ? launch->block.ntid[0] : t1 - t0;

	for (uint32_t row = t0; row < t1; row += width)
		(launch->lockstep ? rankfold_soft_diverge
				  : rankfold_soft_end_at)(&launch->block, cut, row, row + width);
}

/* Runs the segment after `cut` for threads [t0, t1), row by row. Returns the cut that they all
 * reached, or MIXED; then next[] is valid for all of them. */
static uint32_t run_range(struct launch *launch, uint32_t cut, uint32_t t0, uint32_t t1)
{
	const struct soft_cut *at = &launch->function->cuts[cut];
	soft_segment run = launch->lockstep ? at->step : at->run;
	uint32_t width = launch->block.ntid[0], height = launch->block.ntid[1];
	uint32_t row, all = MIXED;

	if (at->flags & (launch->lockstep ? SOFT_LOCKSTEP_FLAT : SOFT_FLAT))
		width = launch->threads;
	row = t0 / width * width;
	for (uint32_t from = t0; from < t1; row += width) {
		uint32_t to = row + width < t1 ? row + width : t1, line = row / width;
		uint64_t ends = run(&launch->block, from, to, row, line % height, line / height);
		uint32_t end = (uint32_t)ends == (uint32_t)(ends >> 32) ? (uint32_t)ends : MIXED;

		if (from == t0) {
			all = end;
		} else if (all != end || end == MIXED) {
			if (all != MIXED)
				set_next(launch, t0, from, all);
			if (end != MIXED)
				set_next(launch, from, to, end);
			all = MIXED;
		}
		from = to;
	}
	return all;
}

/* As run_range, but next[] is always valid afterwards. */
static void advance_threads(struct launch *launch, uint32_t cut, uint32_t t0, uint32_t t1)
{
	uint32_t end = run_range(launch, cut, t0, t1);

	if (end != MIXED)
		set_next(launch, t0, t1, end);
}

/* Runs the lanes of `lanes`, in runs of neighbours. */
static void advance_lanes(struct launch *launch, uint32_t cut, uint32_t first, uint32_t lanes)
{
	while (lanes) {
		uint32_t from = (uint32_t)__builtin_ctz(lanes), to = from;

		while (to < WARP && lanes >> to & 1)
			to++;
		advance_threads(launch, cut, first + from, first + to);
		lanes = to < WARP ? lanes >> to << to : 0;
	}
}

/* ---- barriers ---------------------------------------------------------------------------- */

static void barrier_reduction(const struct launch *launch, uint32_t id, bool all)
{
	uint32_t waiting = 0, set = 0;

	for (int pass = 0; pass < 2; pass++)
		for (uint32_t t = 0; t < launch->threads; t++) {
			const struct soft_cut *cut = &launch->function->cuts[launch->next[t]];

			if (cut->kind != SOFT_CUT_BARRIER ||
			    (!all && operand(launch, &cut->in[0], t) != id))
				continue;
			if (pass == 0) {
				waiting++;
				set += operand(launch, &cut->in[2], t) != 0;
			} else if (cut->op == SOFT_BARRIER_POPC) {
				result(launch, cut->out[0], t, set);
			} else if (cut->op == SOFT_BARRIER_AND) {
				result(launch, cut->out[0], t, set == waiting);
			} else if (cut->op == SOFT_BARRIER_OR) {
				result(launch, cut->out[0], t, set != 0);
			}
		}
}

struct block_barrier {
	uint32_t waiting, expected;
	bool reduces;
};

static void count_waiting(const struct launch *launch, struct block_barrier barriers[16],
			  uint32_t *alive)
{
	memset(barriers, 0, 16 * sizeof *barriers);
	*alive = 0;
	for (uint32_t t = 0; t < launch->threads; t++) {
		const struct soft_cut *cut = &launch->function->cuts[launch->next[t]];
		struct block_barrier *barrier;

		*alive += launch->next[t] != SOFT_EXIT;
		if (cut->kind != SOFT_CUT_BARRIER)
			continue;
		barrier = &barriers[operand(launch, &cut->in[0], t) & 15];
		barrier->waiting++;
		barrier->expected = operand(launch, &cut->in[1], t);
		barrier->reduces |= cut->op != SOFT_BARRIER_SYNC;
	}
}

/* Threads of a warp that wait at one barrier continue together, warp by warp. */
static void open_barrier(struct launch *launch, uint32_t id)
{
	uint16_t stood[SOFT_THREADS_MAX];

	memcpy(stood, launch->next, launch->threads * sizeof *stood);
	for (uint32_t t = 0; t < launch->threads;) {
		const struct soft_cut *cut = &launch->function->cuts[stood[t]];
		uint32_t from = t++;

		if (cut->kind != SOFT_CUT_BARRIER ||
		    (operand(launch, &cut->in[0], from) & 15) != id)
			continue;
		while (t < launch->threads && stood[t] == stood[from] &&
		       (operand(launch, &cut->in[0], t) & 15) == id)
			t++;
		advance_threads(launch, stood[from], from, t);
	}
}

static bool open_barriers(struct launch *launch)
{
	struct block_barrier barriers[16];
	uint32_t alive;
	bool moved = false;

	count_waiting(launch, barriers, &alive);
	for (uint32_t id = 0; id < 16; id++) {
		struct block_barrier *barrier = &barriers[id];
		uint64_t there = barrier->waiting + launch->arrived[id];

		if (!barrier->waiting || there < (barrier->expected ? barrier->expected : alive))
			continue;
		if (barrier->reduces)
			barrier_reduction(launch, id, false);
		launch->arrived[id] = 0;
		open_barrier(launch, id);
		moved = true;
	}
	return moved;
}

/* ---- a block ----------------------------------------------------------------------------- */

/* The lanes `at` of a warp are at cut `number`: runs those that do not have to wait. */
static bool advance_group(struct launch *launch, uint32_t number, uint32_t first, uint32_t at,
			  uint32_t alive)
{
	const struct soft_cut *cut = &launch->function->cuts[number];
	uint32_t go = at;

	if (cut->kind == SOFT_CUT_BARRIER)
		return false;
	if (cut->kind == SOFT_CUT_ARRIVE) {
		EACH_LANE(lane, at)
		launch->arrived[operand(launch, &cut->in[0], first + lane) & 15]++;
	} else if (cut->kind == SOFT_CUT_YIELD) {
		launch->yielded = true;
	} else {
		go = soft_resolve_warp(launch, cut, first, at, alive);
	}
	advance_lanes(launch, number, first, go);
	return go != 0;
}

/* True if two operations of a warp are the same operation when their lanes name the same
 * members: PTX ISA requires the same qualifiers, and the same instruction only if it is .aligned
 * (matrices). */
static bool same_operation(const struct soft_cut *a, const struct soft_cut *b)
{
	return a->kind == b->kind && a->op == b->op && !((a->flags | b->flags) & SOFT_LOOSE) &&
	       a->kind >= SOFT_CUT_SYNC && a->kind <= SOFT_CUT_ELECT && a->kind != SOFT_CUT_ACTIVE;
}

/* Executes the operation for each set of lanes that name the same members. Returns the lanes for
 * which it was executed. */
static uint32_t resolve_sets(const struct launch *launch, const struct soft_cut *cut,
			     uint32_t first, uint32_t at, uint32_t alive)
{
	uint32_t done = 0;

	for (uint32_t rest = at, set; rest; rest &= ~set) {
		uint32_t members = operand(launch, &cut->in[3],
					   first + (uint32_t)__builtin_ctz(rest));

		set = 0;
		EACH_LANE(lane, rest)
		set |= (uint32_t)(operand(launch, &cut->in[3], first + lane) == members) << lane;
		done |= soft_resolve_warp(launch, cut, first, set, alive);
	}
	return done;
}

/* Executes one operation for lanes at several equivalent cuts: all operands are first copied to the
 * frame. */
static bool advance_alike(struct launch *launch, const uint16_t stood[WARP], uint32_t first,
			  uint32_t at, uint32_t alive)
{
	struct soft_cut one = launch->function->cuts[stood[__builtin_ctz(at)]];
	uint32_t go, rest;

	EACH_LANE(lane, at)
	for (uint32_t n = 0; n < 4; n++) {
		const struct soft_operand *in = &launch->function->cuts[stood[lane]].in[n];

		if (in->slot == SOFT_NO_SLOT)
			slot(launch, SOFT_OPERAND(n))[first + lane] = in->value;
	}
	for (uint32_t n = 0; n < 4; n++)
		one.in[n].slot = SOFT_OPERAND(n);
	for (uint32_t n = 0; n < 2; n++)
		one.out[n] = SOFT_OPERAND(4 + n);
	go = rest = resolve_sets(launch, &one, first, at, alive);
	while (rest) {
		uint32_t number = stood[__builtin_ctz(rest)], together = 0;

		EACH_LANE(lane, rest)
		together |= (uint32_t)(stood[lane] == number) << lane;
		rest &= ~together;
		advance_lanes(launch, number, first, together);
	}
	return go != 0;
}

/* Runs one round of a warp whose lanes may be at different cuts. At an operation that names no
 * members, lanes wait until no other lane of the warp can move; then the cut that is first in the
 * kernel's text goes first, so that diverged lanes reconverge, as on the devices that have such
 * operations. If lanes wait for others that are further on, this would never end, so the last cut
 * goes first from time to time. */
static bool advance_warp(struct launch *launch, uint32_t first, uint32_t count)
{
	uint16_t stood[WARP];
	uint32_t alive = 0, rest, loose = 0, last = 0, waiting = UINT32_MAX, furthest = 0;
	bool moved = false, others = false;

	memcpy(stood, launch->next + first, count * sizeof *stood);
	if (memcmp(stood, stood + 1, (count - 1) * sizeof *stood) == 0) {
		alive = (uint32_t)((1ull << count) - 1);
		return stood[0] != SOFT_EXIT &&
		       advance_group(launch, stood[0], first, alive, alive);
	}
	for (uint32_t lane = 0; lane < count; lane++)
		alive |= (uint32_t)(stood[lane] != SOFT_EXIT) << lane;
	for (rest = alive; rest;) {
		uint32_t lowest = (uint32_t)__builtin_ctz(rest), at = 0, same = 0;

		EACH_LANE(lane, rest)
		{
			at |= (uint32_t)(stood[lane] == stood[lowest]) << lane;
			same |= (uint32_t)same_operation(&launch->function->cuts[stood[lane]],
							 &launch->function->cuts[stood[lowest]])
				<< lane;
		}
		rest &= ~(at | same);
		if (same & ~at) {
			bool together = advance_alike(launch, stood, first, same, alive);

			moved |= together;
			others |= together;
			continue;
		}
		if (launch->function->cuts[stood[lowest]].flags & SOFT_LOOSE) {
			if (stood[lowest] < waiting) {
				waiting = stood[lowest];
				loose = at;
			}
			if (stood[lowest] > furthest) {
				furthest = stood[lowest];
				last = at;
			}
			continue;
		}
		if (advance_group(launch, stood[lowest], first, at, alive)) {
			moved = true;
			others |= launch->function->cuts[stood[lowest]].kind != SOFT_CUT_YIELD;
		}
	}
	if (loose && !others && furthest != waiting && ++launch->turns % TURNS_MAX == 0)
		moved |= advance_group(launch, furthest, first, last, alive);
	else if (loose && !others)
		moved |= advance_group(launch, waiting, first, loose, alive);
	return moved;
}

/* Barriers are checked when no warp can move, or when the warps that move only poll memory. */
static uint32_t mixed_round(struct launch *launch)
{
	bool moved = false;
	uint32_t threads = launch->threads;

	launch->yielded = false;
	for (uint32_t first = 0; first < threads; first += WARP)
		moved |= advance_warp(launch, first,
				      threads - first < WARP ? threads - first : WARP);
	if (!moved || launch->yielded)
		moved |= open_barriers(launch);
	if (!moved)
		soft_abort(SOFT_LAUNCH_FAILED);
	if (memcmp(launch->next, launch->next + 1, (threads - 1) * sizeof *launch->next) == 0)
		return launch->next[0];
	return MIXED;
}

/* All threads are at `cut`: executes it. False: it needs rounds. */
static bool resolve_block(struct launch *launch, const struct soft_cut *cut, uint32_t number)
{
	uint32_t threads = launch->threads, first = 0;

	switch (cut->kind) {
	case SOFT_CUT_NONE:
	case SOFT_CUT_YIELD:
	case SOFT_CUT_REGROUP: return true;
	case SOFT_CUT_BARRIER:
		if (cut->in[0].slot != SOFT_NO_SLOT || cut->in[1].slot != SOFT_NO_SLOT ||
		    (cut->in[1].value != 0 && cut->in[1].value != threads))
			return false;
		if (cut->op != SOFT_BARRIER_SYNC) {
			set_next(launch, 0, threads, number);
			barrier_reduction(launch, 0, true);
		}
		return true;
	case SOFT_CUT_ARRIVE: return false;
	case SOFT_CUT_SYNC:
		if (cut->flags & SOFT_LOOSE)
			return true;
		break;
	case SOFT_CUT_SHFL:
		if (cut->in[0].slot != SOFT_NO_SLOT && cut->in[1].slot == SOFT_NO_SLOT &&
		    cut->in[2].slot == SOFT_NO_SLOT && cut->in[3].slot == SOFT_NO_SLOT &&
		    (cut->in[3].value == UINT32_MAX || cut->flags & SOFT_LOOSE)) {
			first = threads / WARP * WARP;
			soft_shfl_block(launch, cut, first);
		}
	}
	for (; first < threads; first += WARP) {
		uint32_t count = threads - first < WARP ? threads - first : WARP;
		uint32_t lanes = (uint32_t)((1ull << count) - 1);

		soft_resolve_warp(launch, cut, first, lanes, lanes);
	}
	return true;
}

/* The threads of a block in lockstep have diverged: each of those that stopped in a loop continues
 * to a real cut. If all reach the same one, they are in lockstep again. */
static uint32_t leave_lockstep(struct launch *launch)
{
	uint32_t threads = launch->threads;

	launch->lockstep = false;
	for (uint32_t from = 0, to; from < threads; from = to) {
		uint32_t cut = launch->next[from];

		for (to = from + 1; to < threads && launch->next[to] == cut; to++)
			;
		if (launch->function->cuts[cut].kind == SOFT_CUT_REGROUP)
			advance_threads(launch, cut, from, to);
	}
	if (memcmp(launch->next, launch->next + 1, (threads - 1) * sizeof *launch->next) != 0)
		return MIXED;
	launch->lockstep = true;
	return launch->next[0];
}

void soft_resume(struct launch *launch, uint32_t cut)
{
	launch->at = run_range(launch, cut, 0, launch->threads);
	if (launch->at == MIXED && launch->lockstep)
		launch->at = leave_lockstep(launch);
}

bool soft_run_block(struct launch *launch, bool give_way)
{
	while (launch->at != SOFT_EXIT) {
		uint32_t at = launch->at;

		launch->yielded = false;
		if (at == MIXED) {
			launch->at = mixed_round(launch);
		} else if (resolve_block(launch, &launch->function->cuts[at], at)) {
			launch->yielded = launch->function->cuts[at].kind == SOFT_CUT_YIELD;
			soft_resume(launch, at);
		} else {
			set_next(launch, 0, launch->threads, at);
			launch->at = MIXED;
			launch->lockstep = false;
		}
		if (give_way && launch->yielded)
			break;
	}
	return launch->at == SOFT_EXIT;
}
