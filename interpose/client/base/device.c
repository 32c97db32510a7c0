/* device.c: what the virtual device can do. A constant of the job, answered without the server.
 *
 * Occupancy follows from the device's limits and the kernel's needs alone: threads, registers and
 * shared memory. Nothing here blocks but the first question to the launcher, and a kernel's needs
 * (function_ready), asked once.
 */
#include <stdio.h>
#include <string.h>

#include "client.h"

#define WARP 32u
#define BLOCKS_PER_SM 32u
#define CONSTANT_BYTES 65536
#define SHARED_RESERVED 1024u

_Thread_local int current_device;

int device_count(int *count)
{
	const struct rf_welcome *welcome;
	if (!count)
		return INVALID_VALUE;
	*count = 0;
	int error = channel_welcome(&welcome);
	if (!error)
		*count = (int)welcome->device_count;
	return error;
}

int device_check(int ordinal)
{
	int count, error = device_count(&count);
	if (error)
		return error;
	return ordinal >= 0 && ordinal < count ? CUDA_OK : INVALID_DEVICE;
}

/* The name says for which kind of device the job is made. */
bool device_is_gpu(void)
{
	const struct rf_welcome *welcome;
	return !channel_welcome(&welcome) && strstr(welcome->device.name, " nvidia ");
}

/* Numbers of cudaDeviceAttr, which are CUdevice_attribute's. What a device like this one does not
 * have is 0; so is every number that is not listed. */
static int attribute_of(const struct rf_device *d, int attribute, int device)
{
	switch (attribute) {
	case 1: return (int)d->max_threads_per_block;
	case 2:
	case 3: return 1024;       /* block x, y */
	case 4: return 64;         /* block z */
	case 5: return 0x7fffffff; /* grid x */
	case 6:
	case 7: return 65535; /* grid y, z */
	case 8: return (int)d->shared_per_block;
	case 9: return CONSTANT_BYTES;
	case 10: return (int)d->warp_size;
	case 11: return 0x7fffffff; /* pitch */
	case 12: return (int)d->regs_per_block;
	case 13: return (int)d->clock_khz;
	case 14: return 512; /* texture alignment */
	case 15: return 1;   /* overlap */
	case 16: return (int)d->sm_count;
	case 19: return 1;          /* maps host memory */
	case 30: return 512;        /* surface alignment */
	case 31: return 1;          /* concurrent kernels */
	case 33: return device + 1; /* PCI bus */
	case 36: return (int)d->memory_clock_khz;
	case 37: return (int)d->memory_bus_bits;
	case 38: return (int)d->l2_bytes;
	case 39: return (int)d->max_threads_per_sm;
	case 40: return 2;  /* copy engines */
	case 41: return 1;  /* unified addressing */
	case 51: return 32; /* texture pitch alignment */
	case 75: return (int)d->cc_major;
	case 76: return (int)d->cc_minor;
	case 78: return 1; /* stream priorities */
	case 81: return (int)d->shared_per_sm;
	case 82: return (int)d->regs_per_sm;
	case 83: return 1; /* managed memory */
	case 87: return 2; /* single over double precision */
	case 89: return 1; /* which host and kernels use at once */
	case 90: return 1; /* compute preemption */
	case 95: return 1; /* cooperative launches */
	case 97: return (int)d->shared_per_block_optin;
	case 99: return 1; /* host registration */
	case 106: return (int)BLOCKS_PER_SM;
	case 111: return (int)SHARED_RESERVED;
	case 113: return 1; /* read-only host registration */
	case 115: return 1; /* memory pools */
	default: return 0;
	}
}

int device_attribute(int *value, int attribute, int device)
{
	const struct rf_welcome *welcome;
	if (!value || attribute <= 0 || attribute > 1000)
		return INVALID_VALUE;
	int error = device_check(device);
	if (error)
		return error;
	channel_welcome(&welcome);
	*value = attribute_of(&welcome->device, attribute, device);
	return CUDA_OK;
}

static void fill_limits(cudaDeviceProp *p, const struct rf_device *d)
{
	p->maxThreadsPerBlock = (int)d->max_threads_per_block;
	p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
	p->maxThreadsDim[2] = 64;
	p->maxGridSize[0] = 0x7fffffff;
	p->maxGridSize[1] = p->maxGridSize[2] = 65535;
	p->maxThreadsPerMultiProcessor = (int)d->max_threads_per_sm;
	p->maxBlocksPerMultiProcessor = (int)BLOCKS_PER_SM;
	p->sharedMemPerBlock = d->shared_per_block;
	p->sharedMemPerBlockOptin = d->shared_per_block_optin;
	p->sharedMemPerMultiprocessor = d->shared_per_sm;
	p->reservedSharedMemPerBlock = SHARED_RESERVED;
	p->regsPerBlock = (int)d->regs_per_block;
	p->regsPerMultiprocessor = (int)d->regs_per_sm;
	p->warpSize = (int)d->warp_size;
	p->totalConstMem = CONSTANT_BYTES;
	p->memPitch = 0x7fffffff;
}

int device_properties(cudaDeviceProp *p, int device)
{
	const struct rf_welcome *welcome;
	if (!p)
		return INVALID_VALUE;
	int error = device_check(device);
	if (error)
		return error;
	channel_welcome(&welcome);
	const struct rf_device *d = &welcome->device;
	memset(p, 0, sizeof *p);
	snprintf(p->name, sizeof p->name, "%s", d->name);
	memcpy(p->uuid, "rankfold-device", 15);
	p->uuid[15] = (char)device;
	p->totalGlobalMem = d->memory_bytes;
	p->major = (int)d->cc_major;
	p->minor = (int)d->cc_minor;
	p->multiProcessorCount = (int)d->sm_count;
	p->memoryBusWidth = (int)d->memory_bus_bits;
	p->l2CacheSize = (int)d->l2_bytes;
	p->textureAlignment = p->surfaceAlignment = 512;
	p->texturePitchAlignment = 32;
	p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
	p->streamPrioritiesSupported = p->computePreemptionSupported = 1;
	p->hostRegisterSupported = p->hostRegisterReadOnlySupported = 1;
	p->managedMemory = p->concurrentManagedAccess = 1;
	p->memoryPoolsSupported = p->cooperativeLaunch = 1;
	p->asyncEngineCount = 2;
	p->pciBusID = device + 1;
	fill_limits(p, d);
	return CUDA_OK;
}

/* ---- functions ---- */

static int max_dynamic(const struct function *f, const struct rf_device *d)
{
	if (f->max_dynamic_shared >= 0)
		return f->max_dynamic_shared;
	int left = (int)d->shared_per_block - (int)f->info.static_shared_bytes;
	return left > 0 ? left : 0;
}

/* Numbers of CUfunction_attribute. */
int function_attribute(int *value, int attribute, struct function *f)
{
	const struct rf_welcome *welcome;
	if (!value)
		return INVALID_VALUE;
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	channel_welcome(&welcome);
	const struct rf_device *d = &welcome->device;
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
	case 14:
	case 15: *value = 0; return CUDA_OK;
	default: return INVALID_VALUE;
	}
}

int function_set_attribute(struct function *f, int attribute, int value)
{
	const struct rf_welcome *welcome;
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	channel_welcome(&welcome);
	int64_t most = (int64_t)welcome->device.shared_per_block_optin -
		       f->info.static_shared_bytes;
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
	if (attribute >= 10 && attribute <= 15 && value) {
		SAY_ONCE("thread block clusters are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	return attribute >= 10 && attribute <= 15 ? CUDA_OK : INVALID_VALUE;
}

/* ---- occupancy ---- */

static uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

static int blocks_for(const struct function *f, const struct rf_device *d, int block_size,
		      size_t dynamic)
{
	if (block_size <= 0 || (uint32_t)block_size > f->info.max_threads)
		return 0;
	uint32_t threads = round_up((uint32_t)block_size, WARP);
	uint64_t shared = f->info.static_shared_bytes + dynamic;
	uint64_t blocks = d->max_threads_per_sm / threads;
	/* Registers are given out to a warp, 256 at a time. */
	uint64_t registers = (uint64_t)round_up(f->info.registers * WARP, 256) * (threads / WARP);
	if (registers && d->regs_per_sm / registers < blocks)
		blocks = d->regs_per_sm / registers;
	if (shared && d->shared_per_sm / (shared + SHARED_RESERVED) < blocks)
		blocks = d->shared_per_sm / (shared + SHARED_RESERVED);
	if (dynamic > (size_t)max_dynamic(f, d))
		return 0;
	return (int)(blocks < BLOCKS_PER_SM ? blocks : BLOCKS_PER_SM);
}

int occupancy_blocks(int *blocks, struct function *f, int block_size, size_t dynamic_shared)
{
	const struct rf_welcome *welcome;
	if (!blocks || block_size <= 0)
		return INVALID_VALUE;
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	channel_welcome(&welcome);
	*blocks = blocks_for(f, &welcome->device, block_size, dynamic_shared);
	return CUDA_OK;
}

/* How much each of so many blocks of an SM may have; 0 where they do not fit anyway. */
int occupancy_shared(size_t *bytes, struct function *f, int blocks, int block_size)
{
	const struct rf_welcome *welcome;
	if (!bytes || blocks <= 0 || block_size <= 0)
		return INVALID_VALUE;
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	channel_welcome(&welcome);
	const struct rf_device *d = &welcome->device;
	uint64_t most = (uint64_t)max_dynamic(f, d), each = d->shared_per_sm / (uint32_t)blocks;
	uint64_t taken = f->info.static_shared_bytes + SHARED_RESERVED;
	each = each > taken ? each - taken : 0;
	*bytes = blocks_for(f, d, block_size, 0) < blocks ? 0 : each < most ? each : most;
	return CUDA_OK;
}

/* The block size with the most resident threads; the largest of equals. */
int occupancy_block_size(int *grid, int *block, struct function *f, CUoccupancyB2DSize shared_of,
			 size_t dynamic_shared, int limit)
{
	const struct rf_welcome *welcome;
	int best = 0, error = channel_enter();
	if (!error)
		error = grid && block ? function_ready(f) : INVALID_VALUE;
	if (error)
		return error;
	channel_welcome(&welcome);
	const struct rf_device *d = &welcome->device;
	int most = (int)f->info.max_threads;
	if (limit > 0 && limit < most)
		most = limit;
	*grid = *block = 0;
	for (int size = (int)round_up((uint32_t)most, WARP); size > 0; size -= (int)WARP) {
		int threads = size < most ? size : most;
		size_t shared = shared_of ? shared_of(threads) : dynamic_shared;
		int blocks = blocks_for(f, d, threads, shared);
		if (blocks * threads <= best)
			continue;
		best = blocks * threads;
		*block = threads;
		*grid = blocks * (int)d->sm_count;
	}
	return CUDA_OK;
}
