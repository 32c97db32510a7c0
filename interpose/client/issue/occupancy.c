/* occupancy.c: the resource needs of kernels, and how many of their blocks fit the device.
 * Occupancy follows only from the device's limits and the kernel's needs: threads, registers and
 * shared memory. Only the request for a kernel's needs (function_ready) blocks, once per kernel.
 */
#include "issue.h"

#define WARP 32u

static int max_dynamic(const struct function *f, const struct rf_device *d)
{
	if (f->max_dynamic_shared >= 0)
		return f->max_dynamic_shared;
	int left = (int)d->shared_per_block - (int)f->info.static_shared_bytes;
	return left > 0 ? left : 0;
}

/* Fetches the needs of `f` (its `info`) unless they are known, and the device's limits. */
static int needs_and_limits(struct function *f, const struct rf_device **device)
{
	const struct rf_welcome *welcome;
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	channel_welcome(&welcome);
	*device = &welcome->device;
	return CUDA_OK;
}

/* Takes numbers of CUfunction_attribute. */
int function_attribute(int *value, int attribute, struct function *f)
{
	const struct rf_device *d;
	if (!value)
		return INVALID_VALUE;
	int error = needs_and_limits(f, &d);
	if (error)
		return error;
	switch (attribute) {
	case 0: *value = (int)f->info.max_threads; return CUDA_OK;
	case 1: *value = (int)f->info.static_shared_bytes; return CUDA_OK;
	case 2: *value = (int)f->info.const_bytes; return CUDA_OK;
	case 3: *value = (int)f->info.local_bytes; return CUDA_OK;
	case 4: *value = (int)f->info.registers; return CUDA_OK;
	case 5: *value = (int)f->info.ptx_version; return CUDA_OK;
	case 6: *value = (int)(d->cc_major * 10 + d->cc_minor); return CUDA_OK;
	case 8: *value = max_dynamic(f, d); return CUDA_OK;
	case 9: *value = f->carveout; return CUDA_OK;
	case 7:
	case 10:
	case 11:
	case 12:
	case 13:
	case 15: *value = 0; return CUDA_OK;
	case 14: *value = f->large_clusters; return CUDA_OK;
	default: return INVALID_VALUE;
	}
}

int function_set_attribute(struct function *f, int attribute, int value)
{
	const struct rf_device *d;
	int error = needs_and_limits(f, &d);
	if (error)
		return error;
	int64_t most = (int64_t)d->shared_per_block_optin - f->info.static_shared_bytes;
	if (attribute == 8) {
		if (value < 0 || value > most)
			return INVALID_VALUE;
		f->max_dynamic_shared = value;
		return CUDA_OK;
	}
	if (attribute == 9) { /* a hint */
		if (value < -1 || value > 100)
			return INVALID_VALUE;
		f->carveout = value;
		return CUDA_OK;
	}
	if (attribute == 14 && value) { /* clusters of more than eight blocks */
		error = clusters_supported(f);
		f->large_clusters = !error;
		return error;
	}
	if (attribute >= 10 && attribute <= 15 && value) {
		LOG_ONCE("thread block clusters are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	return attribute >= 10 && attribute <= 15 ? CUDA_OK : INVALID_VALUE;
}

/* ---- occupancy ---- */

static uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

static int resident_blocks(const struct function *f, const struct rf_device *d, int block_size,
			   size_t dynamic)
{
	if (block_size <= 0)
		return 0;
	uint32_t threads = round_up((uint32_t)block_size, WARP);
	uint64_t shared = f->info.static_shared_bytes + dynamic;
	uint64_t blocks = d->max_threads_per_sm / threads;
	/* Registers are allocated per warp, in units of 256. */
	uint64_t registers = (uint64_t)round_up(f->info.registers * WARP, 256) * (threads / WARP);
	if (registers && d->regs_per_sm / registers < blocks)
		blocks = d->regs_per_sm / registers;
	if (shared && d->shared_per_sm / (shared + DEVICE_SHARED_RESERVED) < blocks)
		blocks = d->shared_per_sm / (shared + DEVICE_SHARED_RESERVED);
	if (dynamic > (size_t)max_dynamic(f, d))
		return 0;
	return (int)(blocks < d->blocks_per_sm ? blocks : d->blocks_per_sm);
}

int occupancy_blocks(int *blocks, struct function *f, int block_size, size_t dynamic_shared)
{
	const struct rf_device *d;
	if (!blocks || block_size <= 0)
		return INVALID_VALUE;
	int error = needs_and_limits(f, &d);
	if (error)
		return error;
	*blocks = resident_blocks(f, d, block_size, dynamic_shared);
	return CUDA_OK;
}

/* Shared memory per block for `blocks` blocks on an SM; 0 if they do not fit anyway. */
int occupancy_shared(size_t *bytes, struct function *f, int blocks, int block_size)
{
	const struct rf_device *d;
	if (!bytes || blocks <= 0 || block_size <= 0)
		return INVALID_VALUE;
	int error = needs_and_limits(f, &d);
	if (error)
		return error;
	uint64_t most = (uint64_t)max_dynamic(f, d), each = d->shared_per_sm / (uint32_t)blocks;
	uint64_t in_use = f->info.static_shared_bytes + DEVICE_SHARED_RESERVED;
	each = each > in_use ? each - in_use : 0;
	*bytes = resident_blocks(f, d, block_size, 0) < blocks ? 0 : each < most ? each : most;
	return CUDA_OK;
}

/* The block size with the most resident threads; of equal ones, the largest. */
int occupancy_block_size(int *grid, int *block, struct function *f, CUoccupancyB2DSize shared_of,
			 size_t dynamic_shared, int limit)
{
	const struct rf_device *d;
	int best = 0, error = grid && block ? needs_and_limits(f, &d) : INVALID_VALUE;
	if (error)
		return error;
	int most = (int)f->info.max_threads;
	if (limit > 0 && limit < most)
		most = limit;
	*grid = *block = 0;
	for (int size = (int)round_up((uint32_t)most, WARP); size > 0; size -= (int)WARP) {
		int threads = size < most ? size : most;
		size_t shared = shared_of ? shared_of(threads) : dynamic_shared;
		int blocks = resident_blocks(f, d, threads, shared);
		if (blocks * threads <= best)
			continue;
		best = blocks * threads;
		*block = threads;
		*grid = blocks * (int)d->sm_count;
	}
	return CUDA_OK;
}
