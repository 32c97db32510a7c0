/* device.c: the properties of the virtual device. They are constants of the job and need no server.
 * Only the first request to the launcher blocks.
 */
#include <stdio.h>
#include <string.h>

#include "base.h"

#define CONSTANT_BYTES 65536

_Thread_local int current_device;

int device_total(void)
{
	const struct rf_welcome *welcome;
	return channel_welcome(&welcome) ? -1 : (int)welcome->device_count;
}

int device_count(int *count)
{
	const struct rf_welcome *welcome;
	if (!count)
		return INVALID_VALUE;
	*count = 0;
	int error = channel_welcome(&welcome);
	if (error)
		return error;
	*count = visible_count((int)welcome->device_count);
	return *count ? CUDA_OK : NO_DEVICE;
}

bool device_exists(int number) { return number >= 0 && number < device_total(); }

int device_check(int ordinal)
{
	int count, error = device_count(&count);
	if (error)
		return error;
	return ordinal >= 0 && ordinal < count ? CUDA_OK : INVALID_DEVICE;
}

/* The name contains the kind of device for which the job is made. */
bool device_is_gpu(void)
{
	const struct rf_welcome *welcome;
	return !channel_welcome(&welcome) && strstr(welcome->device.name, " nvidia ");
}

/* Takes numbers of cudaDeviceAttr, equal to CUdevice_attribute's. A feature that such a device
 * lacks is 0, as is every number that is not listed. */
static int attribute_of(const struct rf_device *d, int attribute, int number)
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
	case 19: return 1;   /* maps host memory */
	case 30: return 512; /* surface alignment */
	case 31: return 1;   /* concurrent kernels */
	case 33: return pci_bus_of(number);
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
	case 89: return 1; /* host and kernels may use it at once */
	case 90: return 1; /* compute preemption */
	case 95: return 1; /* cooperative launches */
	case 97: return (int)d->shared_per_block_optin;
	case 99: return 1;  /* host registration */
	case 102: return 1; /* virtual memory management */
	case 106: return (int)d->blocks_per_sm;
	case 111: return (int)DEVICE_SHARED_RESERVED;
	case 113: return 1; /* read-only host registration */
	case 115: return 1; /* memory pools */
	default: return 0;
	}
}

int device_number_attribute(int *value, int attribute, int number)
{
	const struct rf_welcome *welcome;
	if (!value || attribute <= 0 || attribute > 1000)
		return INVALID_VALUE;
	int error = channel_welcome(&welcome);
	if (!error)
		*value = attribute_of(&welcome->device, attribute, number);
	return error;
}

int device_attribute(int *value, int attribute, int device)
{
	int error = device_check(device);
	return error ? error : device_number_attribute(value, attribute, visible_number(device));
}

static void fill_limits(cudaDeviceProp *p, const struct rf_device *d)
{
	p->maxThreadsPerBlock = (int)d->max_threads_per_block;
	p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
	p->maxThreadsDim[2] = 64;
	p->maxGridSize[0] = 0x7fffffff;
	p->maxGridSize[1] = p->maxGridSize[2] = 65535;
	p->maxThreadsPerMultiProcessor = (int)d->max_threads_per_sm;
	p->maxBlocksPerMultiProcessor = (int)d->blocks_per_sm;
	p->sharedMemPerBlock = d->shared_per_block;
	p->sharedMemPerBlockOptin = d->shared_per_block_optin;
	p->sharedMemPerMultiprocessor = d->shared_per_sm;
	p->reservedSharedMemPerBlock = DEVICE_SHARED_RESERVED;
	p->regsPerBlock = (int)d->regs_per_block;
	p->regsPerMultiprocessor = (int)d->regs_per_sm;
	p->warpSize = (int)d->warp_size;
	p->totalConstMem = CONSTANT_BYTES;
	p->memPitch = 0x7fffffff;
}

void device_number_properties(cudaDeviceProp *p, int number)
{
	const struct rf_welcome *welcome;
	channel_welcome(&welcome);
	const struct rf_device *d = &welcome->device;
	memset(p, 0, sizeof *p);
	snprintf(p->name, sizeof p->name, "%s", d->name);
	device_uuid((unsigned char *)p->uuid, number);
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
	p->pciBusID = pci_bus_of(number);
	fill_limits(p, d);
}

int device_properties(cudaDeviceProp *p, int device)
{
	if (!p)
		return INVALID_VALUE;
	int error = device_check(device);
	if (!error)
		device_number_properties(p, visible_number(device));
	return error;
}
