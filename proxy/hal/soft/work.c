/* work.c: does one work: in a fault scope, unless a space of it has failed.
 *
 * The blocks of a launch and the tiles of a matrix product are taken from a share. A launch that
 * has taken long is offered to workers without work, if its blocks may run in any order; it ends
 * when all of them have left it.
 */
#include <time.h>

#include "kernel.h"
#include "reduce.h"
#include "soft.h"
#include "spin.h"

#define HELP_AFTER_NS 30000u /* waking a helper costs a few thousand */

/* A device of lower speed takes proportionally longer. */
static void slow_down(const struct hal_device *device, uint64_t started_ns)
{
	double speed = device->config.speed;
	uint64_t pause;
	struct timespec t;

	if (speed >= 1.0 || speed <= 0.0)
		return;
	pause = (uint64_t)((double)(spin_now_ns() - started_ns) * (1.0 / speed - 1.0));
	t.tv_sec = (time_t)(pause / 1000000000u);
	t.tv_nsec = (long)(pause % 1000000000u);
	while (nanosleep(&t, &t) != 0)
		;
}

static bool has_failed(const struct hal_space *space)
{
	return space && atomic_load(&space->error) != 0;
}

uint64_t soft_blocks(const struct hal_work *work)
{
	return (uint64_t)work->kernel.grid[0] * work->kernel.grid[1] * work->kernel.grid[2];
}

/* Called inside a kernel. One launch at a time is offered; there are no workers to help with
 * two. */
static void offer_share(struct hal_device *device, struct soft_share *share)
{
	share->offered = true;
	soft_defer_cancel();
	pthread_mutex_lock(&device->lock);
	if (!device->share)
		device->share = share;
	pthread_cond_broadcast(&device->wake);
	pthread_mutex_unlock(&device->lock);
	soft_allow_cancel();
}

uint64_t soft_next_blocks(struct soft_worker *worker, uint32_t *count)
{
	struct soft_share *share = worker->share;
	uint64_t next = atomic_fetch_add_explicit(&share->next, share->batch, memory_order_relaxed);
	uint64_t left = share->blocks - next;

	if (next >= share->blocks)
		return SOFT_NO_BLOCK;
	*count = left < share->batch ? (uint32_t)left : share->batch;
	if (worker->owner && !share->offered && worker->device->worker_count > 1 && next > 0 &&
	    left > *count && !share->ordered && spin_now_ns() - share->begun_ns > HELP_AFTER_NS)
		offer_share(worker->device, share);
	return next;
}

static void run_share(struct soft_worker *worker, struct soft_share *share, bool owner)
{
	const struct hal_work *work = share->work;

	worker->share = share;
	worker->owner = owner;
	if (work->kind == HAL_KERNEL)
		soft_fault_scope(worker, work->kernel.space, NULL,
				 soft_function_name(work->kernel.function), soft_kernel, work);
	else if (soft_gemm_ready(&worker->scratch))
		soft_fault_scope(worker, work->gemm.space, NULL, "a matrix product", soft_gemm,
				 work);
	else
		soft_space_fail(work->gemm.space, SOFT_OUT_OF_MEMORY,
				"a matrix product: no host memory for its panels");
}

/* The share ends with its owner, so the owner waits for all helpers. */
static void withdraw_share(struct hal_device *device, struct soft_share *share)
{
	pthread_mutex_lock(&device->lock);
	if (device->share == share)
		device->share = NULL;
	while (share->helpers)
		pthread_cond_wait(&device->helped, &device->lock);
	pthread_mutex_unlock(&device->lock);
}

static void run_blocks(struct soft_worker *worker, struct soft_share *share)
{
	struct hal_device *device = worker->device;

	if (device->config.speed < 1.0 || device->worker_count > 1)
		share->begun_ns = spin_now_ns();
	run_share(worker, share, true);
	if (share->offered)
		withdraw_share(device, share);
	slow_down(device, share->begun_ns);
}

static void run_kernel(struct soft_worker *worker, const struct hal_work *work)
{
	struct soft_share share = {.work = work,
				   .blocks = soft_blocks(work),
				   .batch = soft_batch(work, worker->device->worker_count),
				   .ordered = work->kernel.function->flags & SOFT_ORDERED};

	if (!has_failed(work->kernel.space))
		run_blocks(worker, &share);
}

/* Runs the next slice; true: it was the last one. */
static bool run_gemm(struct soft_worker *worker, struct soft_item *item)
{
	const struct rf_gemm_call *call = item->work.gemm.call;
	uint64_t tiles = soft_gemm_tiles(call), end = item->begun + soft_gemm_slice(&call->g);
	struct soft_share share = {.work = &item->work,
				   .next = item->begun,
				   .batch = 1,
				   .blocks = end < tiles ? end : tiles};

	if (has_failed(item->work.gemm.space))
		return true;
	run_blocks(worker, &share);
	item->begun = share.blocks;
	return item->begun == tiles;
}

void soft_work_help(struct soft_worker *worker, struct soft_share *share)
{
	struct hal_device *device = worker->device;

	run_share(worker, share, false);
	pthread_mutex_lock(&device->lock);
	if (--share->helpers == 0)
		pthread_cond_broadcast(&device->helped);
	pthread_mutex_unlock(&device->lock);
}

static void run_copy(struct soft_worker *worker, const struct hal_work *work)
{
	struct hal_space *dst = work->copy.dst.space, *src = work->copy.src.space;

	if (!has_failed(dst) && !has_failed(src))
		soft_fault_scope(worker, dst ? dst : src, (struct hal_space *[]){src, NULL}, "copy",
				 soft_copy, work);
}

/* Collects the spaces of the operands, terminated by NULL. */
static void sum_spaces(const struct hal_work *work, struct hal_space *spaces[HAL_SUM_REFS + 1])
{
	struct hal_ref refs[HAL_SUM_REFS];
	uint32_t count = hal_sum_refs(work, refs), n = 0;

	for (uint32_t i = 0; i < count; i++)
		if (refs[i].space)
			spaces[n++] = refs[i].space;
	spaces[n] = NULL;
}

static bool sum_failed(const struct hal_work *work)
{
	struct hal_space *spaces[HAL_SUM_REFS + 1];

	sum_spaces(work, spaces);
	for (uint32_t i = 0; spaces[i]; i++)
		if (has_failed(spaces[i]))
			return true;
	return false;
}

static void run_sum(struct soft_worker *worker, const struct hal_work *work)
{
	struct hal_space *spaces[HAL_SUM_REFS + 1];

	sum_spaces(work, spaces);
	if (!sum_failed(work))
		soft_fault_scope(worker, spaces[0], spaces, "a sum of a collective", soft_sum,
				 work);
}

bool soft_work_run(struct soft_worker *worker, struct soft_item *item)
{
	const struct hal_work *work = &item->work;

	switch (work->kind) {
	case HAL_KERNEL: run_kernel(worker, work); break;
	case HAL_COPY: run_copy(worker, work); break;
	case HAL_FILL:
		if (!has_failed(work->fill.dst.space))
			soft_fault_scope(worker, work->fill.dst.space, NULL, "fill", soft_fill,
					 work);
		break;
	case HAL_REDUCE:
	case HAL_SCALE: run_sum(worker, work); break;
	case HAL_GEMM: return run_gemm(worker, item);
	case HAL_CHECKSUM:
		if (!has_failed(work->checksum.src.space))
			soft_fault_scope(worker, work->checksum.src.space, NULL, "a checksum",
					 soft_checksum, work);
		break;
	}
	return true;
}

bool soft_work_acceptable(const struct hal_work *work)
{
	uint32_t element = work->fill.element;

	switch (work->kind) {
	case HAL_KERNEL: return work->kernel.space && work->kernel.function;
	case HAL_COPY: return true;
	case HAL_FILL: return element == 1 || element == 2 || element == 4;
	case HAL_REDUCE:
	case HAL_SCALE: return hal_sum_acceptable(work);
	case HAL_GEMM: return work->gemm.space && soft_gemm_tiles(work->gemm.call) > 0;
	case HAL_CHECKSUM: return true;
	}
	return false;
}

bool soft_work_failed(const struct hal_work *work)
{
	switch (work->kind) {
	case HAL_KERNEL: return has_failed(work->kernel.space);
	case HAL_COPY: return has_failed(work->copy.dst.space) || has_failed(work->copy.src.space);
	case HAL_FILL: return has_failed(work->fill.dst.space);
	case HAL_GEMM: return has_failed(work->gemm.space);
	case HAL_CHECKSUM: return has_failed(work->checksum.src.space);
	case HAL_REDUCE:
	case HAL_SCALE: return sum_failed(work);
	}
	return false;
}
