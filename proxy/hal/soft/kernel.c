/* kernel.c: runs a launch: block after block, and in a block from cut to cut.
 *
 * As long as all threads of a block stand at the same cut, its operation is carried out for the
 * whole block and the next segment runs over all threads, in small loops round by round. Where
 * they part, the block goes on in rounds: every warp, and in it every group of lanes that stand at
 * one cut and wait for nobody else, goes one segment further, in ascending order; then barriers
 * that are complete open. A round in which nothing moves is a deadlock of the program and fails
 * the launch. The order never depends on time, so the same launch gives the same bits.
 *
 * Blocks run one after another, in ascending order; where a kernel cannot tell, as one long
 * block. Where their order cannot matter (SOFT_ORDERED is not set) other workers take blocks
 * too, once a launch turns out to take long. The blocks of a cooperative launch are all there at
 * once: one that waits for memory to change gives way to the next.
 *
 * Runs guarded (fault.c): no locks, no memory that is not the worker's scratch.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernel.h"
#include "soft.h"

#define WARP 32u
#define MIXED UINT32_MAX
#define LOCKSTEP_WIDTH_MIN 32u  /* threads in a row: with fewer, more calls cost what they save */

struct launch {
	struct soft_block block;
	const struct hal_function *function;
	uint16_t *next;
	uint64_t *arrived;      /* named barriers: threads that passed bar.arrive */
	uint32_t threads;
	uint32_t at;            /* where all threads stand, or MIXED */
	bool lockstep;          /* its threads have passed the same cuts since it began */
	bool yielded;           /* in this round a thread waits for memory to change */
	uint8_t *shared_copy;   /* cooperative: shared memory while other blocks run */
};

int soft_scratch_open(struct soft_scratch *scratch)
{
	uint8_t *window = mmap(NULL, SOFT_SHARED_WINDOW + 4096, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (window == MAP_FAILED)
		return SOFT_OUT_OF_MEMORY;
	scratch->shared = window;
	return mprotect(window, SOFT_SHARED_BYTES, PROT_READ | PROT_WRITE) == 0
		? 0 : SOFT_OUT_OF_MEMORY;
}

void soft_scratch_close(struct soft_scratch *scratch)
{
	if (scratch->shared)
		munmap(scratch->shared, SOFT_SHARED_WINDOW + 4096);
	free(scratch->frame);
	free(scratch->local);
	free(scratch->resident);
	free(scratch->gemm);
}

const char *soft_function_name(const struct hal_function *function)
{
	return function->name;
}

__attribute__((visibility("default"))) void rankfold_soft_trap(uint32_t error)
{
	soft_leave((int)error);
}

__attribute__((visibility("default"))) uint64_t rankfold_soft_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- running segments ------------------------------------------------------------------ */

__attribute__((visibility("default"))) void
rankfold_soft_stand(const struct soft_block *block, uint32_t cut, uint32_t t0, uint32_t t1)
{
	for (uint32_t t = t0; t < t1; t++)
		block->next[t] = (uint16_t)cut;
}

/* Fills the slots of `count` threads behind the first one's. */
static void spread(uint8_t *slot, const struct soft_kept *kept, uint32_t count)
{
	uint64_t value = 0;

	memcpy(&value, slot, kept->bytes);
	for (uint32_t n = 1; n < count; n++) {
		value += (uint64_t)kept->slope;
		memcpy(slot + (size_t)n * kept->bytes, &value, kept->bytes);
	}
}

__attribute__((visibility("default"))) void
rankfold_soft_part(const struct soft_block *block, uint32_t cut, uint32_t t0, uint32_t t1)
{
	const struct soft_cut *at = &block->function->cuts[cut];

	if (t0 == t1)
		return; /* and `cut` is none */
	rankfold_soft_stand(block, cut, t0, t1);
	for (const struct soft_kept *kept = at->kept; kept < at->kept + at->kept_count; kept++)
		spread(block->frame + (size_t)kept->slot * block->stride +
		       (size_t)t0 * kept->bytes, kept, t1 - t0);
}

/* Threads [t0, t1), of whole rows if they are in lockstep, stand at `cut`, each for itself. */
static void stand_at(struct launch *launch, uint32_t t0, uint32_t t1, uint32_t cut)
{
	uint32_t width = launch->lockstep ? launch->block.ntid[0] : t1 - t0;

	for (uint32_t row = t0; row < t1; row += width)
		(launch->lockstep ? rankfold_soft_part : rankfold_soft_stand)
			(&launch->block, cut, row, row + width);
}

/* Run the segment behind `cut` for threads [t0, t1), row by row. Returns the cut they all came
 * to, or MIXED; then next[] is valid for all of them. */
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
				stand_at(launch, t0, from, all);
			if (end != MIXED)
				stand_at(launch, from, to, end);
			all = MIXED;
		}
		from = to;
	}
	return all;
}

/* As run_range, but next[] is valid in any case. */
static void advance(struct launch *launch, uint32_t cut, uint32_t t0, uint32_t t1)
{
	uint32_t end = run_range(launch, cut, t0, t1);

	if (end != MIXED)
		stand_at(launch, t0, t1, end);
}

/* The lanes of `lanes`, in runs of neighbours. */
static void advance_lanes(struct launch *launch, uint32_t cut, uint32_t first, uint32_t lanes)
{
	while (lanes) {
		uint32_t from = (uint32_t)__builtin_ctz(lanes), to = from;

		while (to < WARP && lanes >> to & 1)
			to++;
		advance(launch, cut, first + from, first + to);
		lanes = to < WARP ? lanes >> to << to : 0;
	}
}

/* ---- operations of a warp ---------------------------------------------------------------- */

static uint32_t *slot(const struct launch *launch, uint32_t number)
{
	return (uint32_t *)(launch->block.frame + (size_t)number * launch->block.stride);
}

static uint32_t operand(const struct launch *launch, const struct soft_operand *in, uint32_t t)
{
	return in->slot == SOFT_NO_SLOT ? in->value : slot(launch, in->slot)[t];
}

static void result(const struct launch *launch, uint32_t out, uint32_t t, uint32_t value)
{
	if (out != SOFT_NO_SLOT)
		slot(launch, out)[t] = value;
}

#define EACH_LANE(lane, lanes) \
	for (uint32_t rest_ = (lanes), lane; \
	     rest_ && (lane = (uint32_t)__builtin_ctz(rest_), 1); rest_ &= rest_ - 1)

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
	default:
		from = lowest | (b & ~segment);
		*in_range = from <= highest;
	}
	return *in_range ? from : lane;
}

/* A lane that is not there gives the reader its own value: undefined in CUDA, fixed here. */
static void shfl(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		 uint32_t lanes)
{
	uint32_t value[WARP] = {0};

	EACH_LANE(lane, lanes)
		value[lane] = operand(launch, &cut->in[0], first + lane);
	EACH_LANE(lane, lanes) {
		uint32_t b = operand(launch, &cut->in[1], first + lane);
		uint32_t c = operand(launch, &cut->in[2], first + lane);
		bool in_range;
		uint32_t from = shfl_source(cut->op, lane, b, c, &in_range);

		result(launch, cut->out[0], first + lane, value[lanes >> from & 1 ? from : lane]);
		result(launch, cut->out[1], first + lane, in_range);
	}
}

static uint32_t ballot(const struct launch *launch, const struct soft_operand *in, uint32_t first,
		       uint32_t lanes)
{
	uint32_t set = 0;

	EACH_LANE(lane, lanes)
		set |= (uint32_t)(operand(launch, in, first + lane) != 0) << lane;
	return set;
}

static void vote(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		 uint32_t lanes)
{
	uint32_t set = ballot(launch, &cut->in[0], first, lanes), value = set;

	switch (cut->op) {
	case SOFT_VOTE_ALL: value = set == lanes; break;
	case SOFT_VOTE_ANY: value = set != 0; break;
	case SOFT_VOTE_UNI: value = set == lanes || set == 0; break;
	}
	EACH_LANE(lane, lanes)
		result(launch, cut->out[0], first + lane, value);
}

static void match(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		  uint32_t lanes)
{
	uint64_t value[WARP] = {0};

	EACH_LANE(lane, lanes)
		value[lane] = operand(launch, &cut->in[0], first + lane) |
			      (uint64_t)operand(launch, &cut->in[1], first + lane) << 32;
	EACH_LANE(lane, lanes) {
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

static void redux(const struct launch *launch, const struct soft_cut *cut, uint32_t first,
		  uint32_t lanes)
{
	uint32_t lowest = (uint32_t)__builtin_ctz(lanes);
	uint32_t value = operand(launch, &cut->in[0], first + lowest);

	EACH_LANE(lane, lanes & (lanes - 1))
		value = redux_step(cut->op, value, operand(launch, &cut->in[0], first + lane));
	EACH_LANE(lane, lanes)
		result(launch, cut->out[0], first + lane, value);
}

static void warp_operation(const struct launch *launch, const struct soft_cut *cut,
			   uint32_t first, uint32_t lanes)
{
	uint32_t lowest = (uint32_t)__builtin_ctz(lanes);

	switch (cut->kind) {
	case SOFT_CUT_SHFL: shfl(launch, cut, first, lanes); break;
	case SOFT_CUT_VOTE: vote(launch, cut, first, lanes); break;
	case SOFT_CUT_MATCH: match(launch, cut, first, lanes); break;
	case SOFT_CUT_REDUX: redux(launch, cut, first, lanes); break;
	case SOFT_CUT_ACTIVE:
		EACH_LANE(lane, lanes)
			result(launch, cut->out[0], first + lane, lanes);
		break;
	case SOFT_CUT_ELECT:
		EACH_LANE(lane, lanes) {
			result(launch, cut->out[0], first + lane, lowest);
			result(launch, cut->out[1], first + lane, lane == lowest);
		}
		break;
	}
}

/* Lanes that name the same members act together. `at` stand at the cut, `alive` have not exited;
 * returns the lanes whose members are all there, after their operation. */
static uint32_t resolve_warp(const struct launch *launch, const struct soft_cut *cut,
			     uint32_t first, uint32_t at, uint32_t alive)
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

struct barrier {
	uint32_t waiting, expected;
	bool reduces;
};

static void count_waiting(const struct launch *launch, struct barrier barriers[16],
			  uint32_t *alive)
{
	memset(barriers, 0, 16 * sizeof *barriers);
	*alive = 0;
	for (uint32_t t = 0; t < launch->threads; t++) {
		const struct soft_cut *cut = &launch->function->cuts[launch->next[t]];
		struct barrier *barrier;

		*alive += launch->next[t] != SOFT_EXIT;
		if (cut->kind != SOFT_CUT_BARRIER)
			continue;
		barrier = &barriers[operand(launch, &cut->in[0], t) & 15];
		barrier->waiting++;
		barrier->expected = operand(launch, &cut->in[1], t);
		barrier->reduces |= cut->op != SOFT_BARRIER_SYNC;
	}
}

/* Threads of a warp that wait at one barrier go on together, warp by warp. */
static void open_barrier(struct launch *launch, uint32_t id)
{
	uint16_t stood[SOFT_THREADS_MAX];

	memcpy(stood, launch->next, launch->threads * sizeof *stood);
	for (uint32_t t = 0; t < launch->threads;) {
		const struct soft_cut *cut = &launch->function->cuts[stood[t]];
		uint32_t from = t++;

		if (cut->kind != SOFT_CUT_BARRIER || (operand(launch, &cut->in[0], from) & 15) != id)
			continue;
		while (t < launch->threads && stood[t] == stood[from] &&
		       (operand(launch, &cut->in[0], t) & 15) == id)
			t++;
		advance(launch, stood[from], from, t);
	}
}

static bool open_barriers(struct launch *launch)
{
	struct barrier barriers[16];
	uint32_t alive;
	bool moved = false;

	count_waiting(launch, barriers, &alive);
	for (uint32_t id = 0; id < 16; id++) {
		struct barrier *barrier = &barriers[id];
		uint64_t there = barrier->waiting + launch->arrived[id];

		if (!barrier->waiting ||
		    there < (barrier->expected ? barrier->expected : alive))
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

/* The lanes `at` of a warp stand at `number`: those that wait for nobody go on. */
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
		go = resolve_warp(launch, cut, first, at, alive);
	}
	advance_lanes(launch, number, first, go);
	return go != 0;
}

/* One round of a warp whose lanes may stand at different cuts. */
static bool advance_warp(struct launch *launch, uint32_t first, uint32_t count)
{
	uint16_t stood[WARP];
	uint32_t alive = 0, rest;
	bool moved = false;

	memcpy(stood, launch->next + first, count * sizeof *stood);
	if (memcmp(stood, stood + 1, (count - 1) * sizeof *stood) == 0) {
		alive = (uint32_t)((1ull << count) - 1);
		return stood[0] != SOFT_EXIT && advance_group(launch, stood[0], first, alive, alive);
	}
	for (uint32_t lane = 0; lane < count; lane++)
		alive |= (uint32_t)(stood[lane] != SOFT_EXIT) << lane;
	for (rest = alive; rest;) {
		uint32_t lowest = (uint32_t)__builtin_ctz(rest), at = 0;

		EACH_LANE(lane, rest)
			at |= (uint32_t)(stood[lane] == stood[lowest]) << lane;
		rest &= ~at;
		moved |= advance_group(launch, stood[lowest], first, at, alive);
	}
	return moved;
}

/* Barriers are looked at when no warp can move, or when those that move only poll memory. */
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
		soft_leave(SOFT_LAUNCH_FAILED);
	if (memcmp(launch->next, launch->next + 1, (threads - 1) * sizeof *launch->next) == 0)
		return launch->next[0];
	return MIXED;
}

/* A shuffle by constants, for whole warps: where each lane reads is the same in all of them. */
static void shfl_block(const struct launch *launch, const struct soft_cut *cut, uint32_t whole)
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

/* All threads stand at `cut`: carry it out. False: it needs the rounds. */
static bool resolve_block(struct launch *launch, const struct soft_cut *cut, uint32_t number)
{
	uint32_t threads = launch->threads, first = 0;

	switch (cut->kind) {
	case SOFT_CUT_NONE:
	case SOFT_CUT_YIELD:
	case SOFT_CUT_REGROUP:
		return true;
	case SOFT_CUT_BARRIER:
		if (cut->in[0].slot != SOFT_NO_SLOT || cut->in[1].slot != SOFT_NO_SLOT ||
		    (cut->in[1].value != 0 && cut->in[1].value != threads))
			return false;
		if (cut->op != SOFT_BARRIER_SYNC) {
			stand_at(launch, 0, threads, number);
			barrier_reduction(launch, 0, true);
		}
		return true;
	case SOFT_CUT_ARRIVE:
		return false;
	case SOFT_CUT_SHFL:
		if (cut->in[0].slot != SOFT_NO_SLOT && cut->in[1].slot == SOFT_NO_SLOT &&
		    cut->in[2].slot == SOFT_NO_SLOT && cut->in[3].slot == SOFT_NO_SLOT &&
		    cut->in[3].value == UINT32_MAX) {
			first = threads / WARP * WARP;
			shfl_block(launch, cut, first);
		}
	}
	for (; first < threads; first += WARP) {
		uint32_t count = threads - first < WARP ? threads - first : WARP;
		uint32_t lanes = (uint32_t)((1ull << count) - 1);

		resolve_warp(launch, cut, first, lanes, lanes);
	}
	return true;
}

/* The threads of a block in lockstep have parted: those that stopped in a loop go on, each for
 * itself, to a real cut. If that is the same for all, they are together again. */
static uint32_t part(struct launch *launch)
{
	uint32_t threads = launch->threads;

	launch->lockstep = false;
	for (uint32_t from = 0, to; from < threads; from = to) {
		uint32_t cut = launch->next[from];

		for (to = from + 1; to < threads && launch->next[to] == cut; to++)
			;
		if (launch->function->cuts[cut].kind == SOFT_CUT_REGROUP)
			advance(launch, cut, from, to);
	}
	if (memcmp(launch->next, launch->next + 1, (threads - 1) * sizeof *launch->next) != 0)
		return MIXED;
	launch->lockstep = true;
	return launch->next[0];
}

/* All threads stand at `cut`: run what follows. */
static void go_on(struct launch *launch, uint32_t cut)
{
	launch->at = run_range(launch, cut, 0, launch->threads);
	if (launch->at == MIXED && launch->lockstep)
		launch->at = part(launch);
}

/* Runs the block to its end (true), or, if it shall `give_way`, until a thread of it waits for
 * memory to change. */
static bool run_block(struct launch *launch, bool give_way)
{
	while (launch->at != SOFT_EXIT) {
		uint32_t at = launch->at;

		launch->yielded = false;
		if (at == MIXED) {
			launch->at = mixed_round(launch);
		} else if (resolve_block(launch, &launch->function->cuts[at], at)) {
			launch->yielded = launch->function->cuts[at].kind == SOFT_CUT_YIELD;
			go_on(launch, at);
		} else {
			stand_at(launch, 0, launch->threads, at);
			launch->at = MIXED;
			launch->lockstep = false;
		}
		if (give_way && launch->yielded)
			break;
	}
	return launch->at == SOFT_EXIT;
}

/* ---- a launch ---------------------------------------------------------------------------- */

static bool grow(uint8_t **memory, size_t *have, size_t wanted)
{
	if (wanted <= *have)
		return true;
	free(*memory);
	wanted = (wanted + 65535) & ~(size_t)65535;
	*memory = aligned_alloc(64, wanted);
	*have = *memory ? wanted : 0;
	/* A local array that is read before it is written gives zeros, not a neighbour's data. */
	if (*memory)
		memset(*memory, 0, wanted);
	return *memory != NULL;
}

/* NULL, or why this device cannot run the launch. */
static const char *refusal(const struct hal_function *function, const struct hal_work *work)
{
	const uint32_t *grid = work->kernel.grid, *block = work->kernel.block;
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];

	if (function->abi != SOFT_KERNEL_ABI)
		return "compiled by another version";
	if (block[0] > SOFT_THREADS_MAX || block[1] > SOFT_THREADS_MAX ||
	    block[2] > SOFT_THREADS_MAX || threads == 0 || threads > function->max_threads ||
	    threads > SOFT_THREADS_MAX)
		return "invalid number of threads in a block";
	if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
		return "a grid without blocks";
	for (int i = 0; i < 3; i++) /* compiled code relies on it: ctaid * ntid + tid fits an int */
		if ((uint64_t)grid[i] * block[i] > INT32_MAX)
			return "more than 2^31 threads in one dimension";
	if (work->kernel.param_bytes < function->param_bytes)
		return "too few bytes of parameters";
	if ((uint64_t)function->static_shared + work->kernel.shared_bytes > SOFT_SHARED_BYTES)
		return "more shared memory than a block can have";
	return NULL;
}

/* What a block needs of its own, in bytes. */
struct needs {
	size_t frame, local, shared;
};

static struct needs needs_of(const struct hal_work *work)
{
	const struct hal_function *function = work->kernel.function;
	size_t threads = (size_t)work->kernel.block[0] * work->kernel.block[1] *
			 work->kernel.block[2];
	size_t stride = (threads + WARP - 1) / WARP * WARP;

	return (struct needs){
		.frame = function->frame_bytes * stride,
		.local = function->local_stride * threads + 64, /* an access may end behind */
		.shared = (size_t)function->static_shared + work->kernel.shared_bytes,
	};
}

static bool prepare(struct launch *launch, struct soft_worker *worker,
		    const struct hal_work *work)
{
	const struct hal_function *function = work->kernel.function;
	struct soft_scratch *scratch = &worker->scratch;
	struct soft_block *block = &launch->block;
	uint32_t threads = work->kernel.block[0] * work->kernel.block[1] * work->kernel.block[2];
	struct needs needs = needs_of(work);
	bool there;

	soft_shelter(); /* malloc's locks must not be left behind by a cancel */
	there = grow(&scratch->frame, &scratch->frame_bytes, needs.frame) &&
		grow(&scratch->local, &scratch->local_bytes, needs.local);
	soft_expose();
	if (!there)
		return false;
	memset(launch, 0, sizeof *launch);
	block->stride = (threads + WARP - 1) / WARP * WARP;
	block->base = work->kernel.space->base;
	block->shared = scratch->shared;
	block->frame = scratch->frame;
	block->local = scratch->local;
	block->params = work->kernel.params;
	block->globals = work->kernel.globals_addr;
	block->next = launch->next = scratch->next;
	block->dynamic_shared = work->kernel.shared_bytes;
	memcpy(block->ntid, work->kernel.block, sizeof block->ntid);
	memcpy(block->nctaid, work->kernel.grid, sizeof block->nctaid);
	launch->function = block->function = function;
	launch->arrived = scratch->arrived;
	launch->threads = threads;
	return true;
}

static void begin_block(struct launch *launch, uint64_t number)
{
	const uint32_t *grid = launch->block.nctaid;

	launch->block.ctaid[0] = (uint32_t)(number % grid[0]);
	launch->block.ctaid[1] = (uint32_t)(number / grid[0] % grid[1]);
	launch->block.ctaid[2] = (uint32_t)(number / grid[0] / grid[1]);
	memset(launch->arrived, 0, SOFT_BARRIERS * sizeof *launch->arrived);
	launch->lockstep = launch->block.ntid[0] >= LOCKSTEP_WIDTH_MIN;
}

static void run_new_block(struct launch *launch, uint64_t number)
{
	begin_block(launch, number);
	go_on(launch, SOFT_ENTRY);
	run_block(launch, false);
}

/* ---- blocks that run as one ---- */

#define WIDE_THREADS 65536u     /* enough that what a call costs does not count */
#define WIDE_BATCHES_MIN 4u     /* for each worker, so that they get equal shares */

static bool wide(const struct hal_work *work)
{
	return work->kernel.function->flags & SOFT_WIDE && !work->kernel.cooperative &&
	       work->kernel.block[1] == 1 && work->kernel.block[2] == 1;
}

uint32_t soft_batch(const struct hal_work *work, uint32_t workers)
{
	uint64_t share = soft_blocks(work) / WIDE_BATCHES_MIN / workers, most = 1;

	if (wide(work) && work->kernel.block[0] > 0)
		most = WIDE_THREADS / work->kernel.block[0];
	most = share < most ? share : most;
	return most ? (uint32_t)most : 1;
}

static void run_wide(struct launch *launch, uint64_t number, uint32_t count)
{
	struct soft_block *block = &launch->block;

	while (count) {
		uint32_t here, left;

		begin_block(launch, number);
		left = block->nctaid[0] - block->ctaid[0]; /* in this row of the grid */
		here = count < left ? count : left;
		launch->function->cuts[SOFT_ENTRY].run(block, 0, here * block->ntid[0], 0, 0, 0);
		number += here;
		count -= here;
	}
}

/* ---- cooperative launches ---- */

static size_t rounded(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

/* Blocks that are all resident: each has memory of its own; shared memory is copied in and out,
 * since its addresses end at unmapped pages. False: not enough host memory. */
static bool make_resident(struct launch **blocks, const struct launch *model, uint64_t count,
			  struct soft_worker *worker, const struct hal_work *work)
{
	struct soft_scratch *scratch = &worker->scratch;
	struct needs needs = needs_of(work);
	size_t own = rounded(sizeof *model), next = rounded(model->threads * sizeof *model->next);
	size_t arrived = rounded(SOFT_BARRIERS * sizeof *model->arrived);
	size_t frame = rounded(needs.frame), local = rounded(needs.local);
	size_t each = own + next + arrived + frame + local + rounded(needs.shared);
	bool there;

	if (count > SOFT_RESIDENT_BYTES / each)
		return false;
	soft_shelter();
	there = grow(&scratch->resident, &scratch->resident_bytes, SOFT_GRID_BYTES + count * each);
	soft_expose();
	if (!there)
		return false;
	memset(scratch->resident, 0, SOFT_GRID_BYTES + count * each);
	*blocks = (struct launch *)(scratch->resident + SOFT_GRID_BYTES);
	for (uint64_t i = 0; i < count; i++) {
		uint8_t *at = (uint8_t *)*blocks + i * each;
		struct launch *launch = (struct launch *)at;

		*launch = *model;
		launch->block.grid = scratch->resident;
		launch->next = launch->block.next = (uint16_t *)(at += own);
		launch->arrived = (uint64_t *)(at += next);
		launch->block.frame = at += arrived;
		launch->block.local = at += frame;
		launch->shared_copy = at + local;
		begin_block(launch, i);
		launch->at = SOFT_ENTRY;
	}
	return true;
}

static void run_together(struct launch *model, uint64_t count, struct soft_worker *worker,
			 const struct hal_work *work)
{
	size_t shared = needs_of(work).shared, each;
	struct launch *first;
	uint64_t left = count;

	if (!make_resident(&first, model, count, worker, work)) {
		soft_space_fail(work->kernel.space, SOFT_OUT_OF_MEMORY,
				"%s: too many blocks for a cooperative launch",
				work->kernel.function->name);
		return;
	}
	each = (size_t)(first->shared_copy - (uint8_t *)first) + rounded(shared);
	while (left)
		for (uint64_t i = 0; i < count; i++) {
			struct launch *launch = (struct launch *)((uint8_t *)first + i * each);

			if (launch->at == SOFT_EXIT)
				continue;
			memcpy(launch->block.shared, launch->shared_copy, shared);
			if (launch->at == SOFT_ENTRY)
				go_on(launch, SOFT_ENTRY);
			left -= run_block(launch, true);
			memcpy(launch->shared_copy, launch->block.shared, shared);
		}
}

/* ---- */

void soft_kernel(struct soft_worker *worker, const struct hal_work *work)
{
	struct launch launch;
	struct hal_space *space = work->kernel.space;
	const char *name = work->kernel.function->name;
	const char *why = refusal(work->kernel.function, work);
	uint64_t number;
	uint32_t count;

	if (why) {
		soft_space_fail(space, SOFT_INVALID_VALUE, "%s: %s", name, why);
		return;
	}
	if (!prepare(&launch, worker, work)) {
		soft_space_fail(space, SOFT_OUT_OF_MEMORY,
				"%s: no host memory for its registers and local arrays", name);
		return;
	}
	if (work->kernel.cooperative) {
		run_together(&launch, soft_blocks(work), worker, work);
		return;
	}
	while ((number = soft_next_blocks(worker, &count)) != SOFT_NO_BLOCK &&
	       !atomic_load(&space->error)) {
		if (wide(work))
			run_wide(&launch, number, count);
		else
			run_new_block(&launch, number);
	}
}
