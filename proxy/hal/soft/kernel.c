/* kernel.c: runs a launch, block after block (block.c).
 *
 * Blocks run one after another, in ascending order; as one long block if the kernel cannot
 * distinguish that. If their order cannot matter (SOFT_ORDERED is not set), other workers also take
 * blocks once a launch turns out to take long. The blocks of a cooperative launch all exist at
 * once: one that waits for memory to change yields to the next.
 *
 * Runs in a fault scope (fault.c): it takes no locks and uses no memory but the worker's own.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "block.h"
#include "soft.h"

/* threads in a row; with fewer, the additional calls cost what lockstep saves */
#define LOCKSTEP_WIDTH_MIN 32u

/* A shared address may be anywhere in its window, and a copy to it may be as long as the mapped
 * part, so nothing else may follow the window. */
#define SHARED_RESERVED (SOFT_SHARED_WINDOW + SOFT_SHARED_BYTES + 4096)

int soft_scratch_open(struct soft_scratch *scratch)
{
	uint8_t *window = mmap(NULL, SHARED_RESERVED, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (window == MAP_FAILED)
		return SOFT_OUT_OF_MEMORY;
	scratch->shared = window;
	return mprotect(window, SOFT_SHARED_BYTES, PROT_READ | PROT_WRITE) == 0
		       ? 0
		       : SOFT_OUT_OF_MEMORY;
}

void soft_scratch_close(struct soft_scratch *scratch)
{
	if (scratch->shared)
		munmap(scratch->shared, SHARED_RESERVED);
	free(scratch->frame);
	free(scratch->local);
	free(scratch->resident);
	free(scratch->gemm);
}

const char *soft_function_name(const struct hal_function *function) { return function->name; }

__attribute__((visibility("default"))) void rankfold_soft_trap(uint32_t error)
{
	soft_abort((int)error);
}

__attribute__((visibility("default"))) uint64_t rankfold_soft_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- a launch ---------------------------------------------------------------------------- */

static bool grow_memory(uint8_t **memory, size_t *have, size_t wanted)
{
	if (wanted <= *have)
		return true;
	free(*memory);
	wanted = (wanted + 65535) & ~(size_t)65535;
	*memory = aligned_alloc(64, wanted);
	*have = *memory ? wanted : 0;
	/* A kernel that reads before it writes may see an earlier kernel's data, but never the
	 * proxy's. */
	if (*memory)
		memset(*memory, 0, wanted);
	return *memory != NULL;
}

/* NULL, or the reason why this device cannot run the launch. */
static const char *why_refused(const struct hal_function *function, const struct hal_work *work)
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
	for (int i = 0; i < 3; i++) /* compiled code relies on ctaid * ntid + tid fitting an int */
		if ((uint64_t)grid[i] * block[i] > INT32_MAX)
			return "more than 2^31 threads in one dimension";
	if (work->kernel.param_bytes < function->param_bytes)
		return "too few bytes of parameters";
	if ((uint64_t)function->static_shared + work->kernel.shared_bytes > SOFT_SHARED_BYTES)
		return "more shared memory than a block can have";
	return NULL;
}

/* Bytes that each block needs. */
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
		/* an access may extend beyond the end */
		.local = function->local_stride * threads + 64,
		.shared = (size_t)function->static_shared + work->kernel.shared_bytes,
	};
}

static bool prepare_launch(struct launch *launch, struct soft_worker *worker,
			   const struct hal_work *work)
{
	const struct hal_function *function = work->kernel.function;
	struct soft_scratch *scratch = &worker->scratch;
	struct soft_block *block = &launch->block;
	uint32_t threads = work->kernel.block[0] * work->kernel.block[1] * work->kernel.block[2];
	struct needs needs = needs_of(work);
	bool there;

	soft_defer_cancel(); /* a cancel must not leave malloc's locks held */
	there = grow_memory(&scratch->frame, &scratch->frame_bytes, needs.frame) &&
		grow_memory(&scratch->local, &scratch->local_bytes, needs.local);
	soft_allow_cancel();
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
	launch->turns = 0;
	launch->lockstep = launch->block.ntid[0] >= LOCKSTEP_WIDTH_MIN;
}

static void run_new_block(struct launch *launch, uint64_t number)
{
	begin_block(launch, number);
	soft_resume(launch, SOFT_ENTRY);
	soft_run_block(launch, false);
}

/* ---- blocks that run as one ---- */

#define WIDE_THREADS 65536u /* enough to make the cost of a call negligible */
#define WIDE_BATCHES_MIN 4u /* per worker, so that they get equal shares */

static bool is_wide(const struct hal_work *work)
{
	return work->kernel.function->flags & SOFT_WIDE && !work->kernel.cooperative &&
	       work->kernel.block[1] == 1 && work->kernel.block[2] == 1;
}

uint32_t soft_batch(const struct hal_work *work, uint32_t workers)
{
	uint64_t share = soft_blocks(work) / WIDE_BATCHES_MIN / workers, most = 1;

	if (is_wide(work) && work->kernel.block[0] > 0)
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

static size_t whole_cache_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Makes all blocks resident: each has its own memory. Shared memory is copied in and out, because
 * its addresses end at unmapped pages. False: not enough host memory. */
static bool make_resident(struct launch **blocks, const struct launch *model, uint64_t count,
			  struct soft_worker *worker, const struct hal_work *work)
{
	struct soft_scratch *scratch = &worker->scratch;
	struct needs needs = needs_of(work);
	size_t own = whole_cache_lines(sizeof *model),
	       next = whole_cache_lines(model->threads * sizeof *model->next);
	size_t arrived = whole_cache_lines(SOFT_BARRIERS * sizeof *model->arrived);
	size_t frame = whole_cache_lines(needs.frame), local = whole_cache_lines(needs.local);
	size_t each = own + next + arrived + frame + local + whole_cache_lines(needs.shared);
	bool there;

	if (count > SOFT_RESIDENT_BYTES / each)
		return false;
	soft_defer_cancel();
	there = grow_memory(&scratch->resident, &scratch->resident_bytes,
			    SOFT_GRID_BYTES + count * each);
	soft_allow_cancel();
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
	each = (size_t)(first->shared_copy - (uint8_t *)first) + whole_cache_lines(shared);
	while (left)
		for (uint64_t i = 0; i < count; i++) {
			struct launch *launch = (struct launch *)((uint8_t *)first + i * each);

			if (launch->at == SOFT_EXIT)
				continue;
			memcpy(launch->block.shared, launch->shared_copy, shared);
			if (launch->at == SOFT_ENTRY)
				soft_resume(launch, SOFT_ENTRY);
			left -= soft_run_block(launch, true);
			memcpy(launch->shared_copy, launch->block.shared, shared);
		}
}

/* ---- running a launch ---- */

void soft_kernel(struct soft_worker *worker, const struct hal_work *work)
{
	struct launch launch;
	struct hal_space *space = work->kernel.space;
	const char *name = work->kernel.function->name;
	const char *why = why_refused(work->kernel.function, work);
	uint64_t number;
	uint32_t count;

	if (why) {
		soft_space_fail(space, SOFT_INVALID_VALUE, "%s: %s", name, why);
		return;
	}
	if (!prepare_launch(&launch, worker, work)) {
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
		if (is_wide(work))
			run_wide(&launch, number, count);
		else
			run_new_block(&launch, number);
	}
}
