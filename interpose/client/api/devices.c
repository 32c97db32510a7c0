/* devices.c: queries of devices in both APIs.
 *
 * Bodies of functions of the runtime end in runtime_result, which stores the error for
 * cudaGetLastError; helpers return the plain number. No lock; nothing here blocks by itself.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "bodies.h"

CUresult cuInit(unsigned int Flags)
{
	int count;
	int error = Flags ? INVALID_VALUE : device_count(&count);
	if (!error)
		atomic_store(&context_driver, true);
	return error;
}

int context_begin_driver(void)
{
	if (!atomic_load_explicit(&context_driver, memory_order_relaxed))
		cuInit(0);
	return CUDA_OK;
}

_Atomic bool static_runtime_refused;

/* The first function that a profiler calls, and a static runtime that could not be redirected
 * (static_runtime.c). */
CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	(void)pExportTableId;
	if (ppExportTable)
		*ppExportTable = NULL;
	Dl_info asking = {0};
	dladdr(__builtin_return_address(0), &asking);
	if (asking.dli_fname && strstr(asking.dli_fname, "/libnvrtc."))
		return NOT_SUPPORTED; /* NVRTC works without it */
	if (atomic_load(&static_runtime_refused))
		return NOT_SUPPORTED;
	LOG_ONCE("%s contains a CUDA runtime whose functions rankfold cannot find, as when it was "
		 "stripped: link it without -s and do not strip it, or build it with `nvcc -cudart "
		 "shared`; or it is a profiler (CUPTI): profile the program without rankfold",
		 asking.dli_fname ? asking.dli_fname : "the program");
	return NOT_SUPPORTED;
}

int version_put(int *version, int number)
{
	if (!version)
		return INVALID_VALUE;
	*version = number;
	return CUDA_OK;
}

int version_get(int *version) { return version_put(version, CUDA_VERSION); }

/* The preference for shared memory or cache is only a hint. */
int cache_config(int config) { return config < 0 || config > 3 ? INVALID_VALUE : CUDA_OK; }

int zero_int(int *value)
{
	if (!value)
		return INVALID_VALUE;
	*value = 0;
	return CUDA_OK;
}

int no_peer(int *value, int device, int peer)
{
	int error = device_check(device);
	if (!error)
		error = device_check(peer);
	return error ? error : zero_int(value);
}

/* ---- the runtime ---- */

/* Copies the members from the first to the last one, which both structures have in one order. */
#define COPY(first, last)                                                                          \
	do {                                                                                       \
		enum { BYTES = END_OF(cudaDeviceProp, last) - offsetof(cudaDeviceProp, first) };   \
		_Static_assert(BYTES == END_OF(cudaDeviceProp_12, last) -                          \
						offsetof(cudaDeviceProp_12, first),                \
			       "the same members");                                                \
		memcpy((char *)&older + offsetof(cudaDeviceProp_12, first),                        \
		       (char *)&newer + offsetof(cudaDeviceProp, first), BYTES);                   \
	} while (0)
#define END_OF(type, member) (offsetof(type, member) + sizeof((type *)0)->member)

int device_properties_12(cudaDeviceProp_12 *out, size_t bytes, int device)
{
	cudaDeviceProp newer;
	cudaDeviceProp_12 older = {0};
	int error = out ? device_properties(&newer, device) : INVALID_VALUE;
	if (error)
		return error;
	COPY(name, maxGridSize);
	COPY(totalConstMem, texturePitchAlignment);
	COPY(multiProcessorCount, multiProcessorCount);
	COPY(integrated, canMapHostMemory);
	COPY(surfaceAlignment, unifiedAddressing);
	COPY(memoryBusWidth, localL1CacheSupported);
	COPY(sharedMemPerMultiprocessor, hostNativeAtomicSupported);
	COPY(pageableMemoryAccess, cooperativeLaunch);
	COPY(sharedMemPerBlockOptin, unifiedFunctionPointers);
	device_attribute(&older.clockRate, 13, device);
	device_attribute(&older.deviceOverlap, 15, device);
	device_attribute(&older.memoryClockRate, 36, device);
	device_attribute(&older.singleToDoublePrecisionPerfRatio, 87, device);
	memcpy(out, &older, bytes);
	return CUDA_OK;
}

int pci_bus_id(char *out, int bytes, int device)
{
	int error = device_check(device);
	if (error || !out || bytes < 13)
		return error ? error : INVALID_VALUE;
	snprintf(out, (size_t)bytes, "0000:%02X:00.0", pci_bus_of(visible_number(device)));
	return CUDA_OK;
}

int number_of_pci_bus_id(int *number, const char *id)
{
	unsigned domain, bus;
	if (!id || sscanf(id, "%x:%x:", &domain, &bus) != 2)
		return INVALID_VALUE;
	*number = number_on_pci_bus(bus);
	return !domain && device_exists(*number) ? CUDA_OK : INVALID_DEVICE;
}

int device_by_pci_bus_id(int *device, const char *id)
{
	int number, error = device ? number_of_pci_bus_id(&number, id) : INVALID_VALUE;
	if (error)
		return error;
	*device = visible_ordinal(number, device_total());
	return *device < 0 ? INVALID_DEVICE : CUDA_OK;
}

cudaError_t cudaGetDevice(int *device)
{
	if (!device)
		return runtime_result(INVALID_VALUE);
	int error = device_check(current_device);
	*device = current_device;
	return runtime_result(error);
}

cudaError_t cudaSetDevice(int device)
{
	int error = device_check(device);
	return runtime_result(error ? error : context_set_device(device));
}

cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *prop)
{
	(void)prop;
	return cudaGetDevice(device);
}

/* For copies that name the devices of both sides: they must be the same. */
int same_device(int dst_device, int src_device)
{
	int error = device_check(dst_device);
	if (!error)
		error = device_check(src_device);
	if (!error && dst_device != src_device) {
		LOG_ONCE(
			"a copy between two devices: a rank has one device under rankfold; use NCCL "
			"between ranks");
		error = NOT_SUPPORTED;
	}
	return error;
}

/* ---- the driver ---- */

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	int error = device ? device_check(ordinal) : INVALID_VALUE;
	if (!error)
		*device = ordinal;
	return error;
}

static int device_facts(CUdevice device, const struct rf_device **out)
{
	const struct rf_welcome *welcome;
	int error = device_check(device);
	if (!error)
		error = channel_welcome(&welcome);
	if (!error)
		*out = &welcome->device;
	return error;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	const struct rf_device *d;
	int error = name && len > 0 ? device_facts(dev, &d) : INVALID_VALUE;
	if (!error)
		snprintf(name, (size_t)len, "%s", d->name);
	return error;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	cudaDeviceProp p;
	int error = uuid ? device_properties(&p, dev) : INVALID_VALUE;
	if (!error)
		memcpy(uuid->bytes, p.uuid, sizeof uuid->bytes);
	return error;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	const struct rf_device *d;
	int error = bytes ? device_facts(dev, &d) : INVALID_VALUE;
	if (!error)
		*bytes = d->memory_bytes;
	return error;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	const struct rf_device *d;
	int error = major && minor ? device_facts(dev, &d) : INVALID_VALUE;
	if (error)
		return error;
	*major = (int)d->cc_major;
	*minor = (int)d->cc_minor;
	return CUDA_OK;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	cudaDeviceProp p;
	int error = prop ? device_properties(&p, dev) : INVALID_VALUE;
	if (error)
		return error;
	*prop = (CUdevprop){.maxThreadsPerBlock = p.maxThreadsPerBlock,
			    .sharedMemPerBlock = (int)p.sharedMemPerBlock,
			    .totalConstantMemory = (int)p.totalConstMem,
			    .SIMDWidth = p.warpSize,
			    .memPitch = (int)p.memPitch,
			    .regsPerBlock = p.regsPerBlock,
			    .textureAlign = (int)p.textureAlignment};
	memcpy(prop->maxThreadsDim, p.maxThreadsDim, sizeof prop->maxThreadsDim);
	memcpy(prop->maxGridSize, p.maxGridSize, sizeof prop->maxGridSize);
	return device_attribute(&prop->clockRate, 13, dev);
}
