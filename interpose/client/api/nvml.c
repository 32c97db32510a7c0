/* nvml.c: the management library's view of the virtual devices: the same values as in the CUDA API,
 * in NVML's form. Answered here, without claiming the channel: programs query NVML before they
 * decide whether to use CUDA. A process sees its own part of a device's memory and processes. For
 * values that a virtual device does not have (changing clocks, power, links) the result is NVML's
 * "not supported".
 *
 * Results are nvmlReturn_t. No lock; only the first request to the launcher blocks.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bodies.h"

#define NO_INSTANCE 0xFFFFFFFFu
#define ARCHITECTURE_UNKNOWN 0xFFFFFFFFu
#define STRUCTURE_VERSION(type, number) ((unsigned)sizeof(type) | (number) << 24)

static _Atomic int initialised;   /* calls of nvmlInit minus those of nvmlShutdown */
static char devices[DEVICES_MAX]; /* &devices[i] is the handle of the job's device i */

/* ---- initialisation ---- */

int nvml_init(void)
{
	if (device_total() < 0)
		return NVML_DRIVER_NOT_LOADED;
	atomic_fetch_add(&initialised, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
	int have = atomic_load(&initialised);
	while (have > 0)
		if (atomic_compare_exchange_weak(&initialised, &have, have - 1))
			return NVML_SUCCESS;
	return NVML_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
		[0] = "Success",
		[1] = "Uninitialized",
		[2] = "Invalid Argument",
		[3] = "Not Supported",
		[4] = "Insufficient Permissions",
		[5] = "Already Initialized",
		[6] = "Not Found",
		[7] = "Insufficient Size",
		[8] = "Insufficient External Power",
		[9] = "Driver Not Loaded",
		[10] = "Timeout",
		[11] = "Interrupt Request Issue",
		[12] = "NVML Shared Library Not Found",
		[13] = "Function Not Found",
		[14] = "Corrupted infoROM",
		[15] = "GPU is lost",
		[16] = "GPU requires reset",
		[17] = "GPU access blocked by the operating system",
		[18] = "Driver/library version mismatch",
		[19] = "In use by another client",
		[20] = "Insufficient Memory",
		[21] = "No data",
		[22] = "vGPU ECC Not Supported",
		[23] = "Insufficient Resources",
		[24] = "Frequency Not Supported",
		[25] = "Argument version mismatch",
		[26] = "Deprecated",
		[27] = "Not Ready",
		[28] = "GPU Not Found",
		[29] = "Invalid State",
		[30] = "Reset Type Not Supported",
	};
	bool known = result >= 0 && (size_t)result < sizeof texts / sizeof *texts;
	return known ? texts[result] : "Unknown Error";
}

/* ---- handles ---- */

/* The device number of a handle. */
static int number_of(const void *device, int *number)
{
	ptrdiff_t at = (const char *)device - devices;
	if (!atomic_load(&initialised))
		return NVML_UNINITIALIZED;
	*number = (int)at;
	return at >= 0 && at < DEVICES_MAX && device_exists((int)at) ? NVML_SUCCESS
								     : NVML_INVALID_ARGUMENT;
}

static int properties_of(const void *device, cudaDeviceProp *p)
{
	int number, error = number_of(device, &number);
	if (!error)
		device_number_properties(p, number);
	return error;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	int count = device_total();
	if (!atomic_load(&initialised))
		return NVML_UNINITIALIZED;
	if (!deviceCount || count < 0)
		return NVML_INVALID_ARGUMENT;
	*deviceCount = (unsigned)count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	int number;
	if (index >= DEVICES_MAX || !device)
		return atomic_load(&initialised) ? NVML_INVALID_ARGUMENT : NVML_UNINITIALIZED;
	int error = number_of(&devices[index], &number);
	if (!error)
		*device = &devices[index];
	return error;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	int number, error = number_of(device, &number);
	if (error || !index)
		return error ? error : NVML_INVALID_ARGUMENT;
	*index = (unsigned)number;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	int number;
	if (!atomic_load(&initialised))
		return NVML_UNINITIALIZED;
	if (!pciBusId || !device)
		return NVML_INVALID_ARGUMENT;
	if (number_of_pci_bus_id(&number, pciBusId))
		return NVML_NOT_FOUND;
	return nvmlDeviceGetHandleByIndex_v2((unsigned)number, device);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[DEVICE_UUID_TEXT];
	int number, error = number_of(device, &number);
	if (error)
		return error;
	device_uuid_text(text, number);
	return nvml_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char text[DEVICE_UUID_TEXT];
	if (!atomic_load(&initialised))
		return NVML_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_INVALID_ARGUMENT;
	for (int i = 0; i < DEVICES_MAX && device_exists(i); i++) {
		device_uuid_text(text, i);
		if (strcmp(text, uuid))
			continue;
		*device = &devices[i];
		return NVML_SUCCESS;
	}
	return NVML_NOT_FOUND;
}

/* ---- properties of a device ---- */

int nvml_text(char *out, unsigned bytes, const char *text)
{
	if (!atomic_load(&initialised))
		return NVML_UNINITIALIZED;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (strlen(text) >= bytes)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

/* The one query that needs no nvmlInit. */
int nvml_cuda_version(int *version)
{
	return version_get(version) ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

int nvml_lacks(const void *device)
{
	int number, error = number_of(device, &number);
	return error ? error : NVML_NOT_SUPPORTED;
}

/* A value that is an attribute of the device in CUDA. */
int nvml_number(const void *device, unsigned *out, int attribute)
{
	int number, value, error = number_of(device, &number);
	if (!error && (!out || device_number_attribute(&value, attribute, number)))
		error = NVML_INVALID_ARGUMENT;
	if (!error)
		*out = (unsigned)value;
	return error;
}

/* A device of a rank is never an instance of a partitioned one. Tools ask before anything else. */
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	int number, error = number_of(device, &number);
	if (!error && !isMigDevice)
		error = NVML_INVALID_ARGUMENT;
	if (!error)
		*isMigDevice = 0;
	return error;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	cudaDeviceProp p;
	int error = properties_of(device, &p);
	return error ? error : nvml_text(name, length, p.name);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	cudaDeviceProp p;
	int error = properties_of(device, &p);
	if (error || !major || !minor)
		return error ? error : NVML_INVALID_ARGUMENT;
	*major = p.major;
	*minor = p.minor;
	return NVML_SUCCESS;
}

/* Numbers of NVML_DEVICE_ARCH_*. */
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
	static const struct {
		int capability;
		unsigned architecture;
	} newest_first[] = {
		{130, ARCHITECTURE_UNKNOWN},
		{100, 10},
		{90, 9},
		{89, 8},
		{80, 7},
		{75, 6},
		{70, 5},
		{60, 4},
		{50, 3},
		{30, 2},
	};
	cudaDeviceProp p;
	int error = properties_of(device, &p);
	if (error || !arch)
		return error ? error : NVML_INVALID_ARGUMENT;
	*arch = ARCHITECTURE_UNKNOWN;
	for (size_t i = 0; i < sizeof newest_first / sizeof *newest_first; i++) {
		if (p.major * 10 + p.minor < newest_first[i].capability)
			continue;
		*arch = newest_first[i].architecture;
		break;
	}
	return NVML_SUCCESS;
}

int nvml_pci(const void *device, nvmlPciInfo_t *out, size_t bytes)
{
	cudaDeviceProp p;
	int error = properties_of(device, &p);
	if (error || !out)
		return error ? error : NVML_INVALID_ARGUMENT;
	nvmlPciInfo_t info = {.domain = (unsigned)p.pciDomainID,
			      .bus = (unsigned)p.pciBusID,
			      .device = (unsigned)p.pciDeviceID,
			      .pciDeviceId = p.gpuPciDeviceID,
			      .pciSubSystemId = p.gpuPciSubsystemID};
	snprintf(info.busIdLegacy, sizeof info.busIdLegacy, "%04X:%02X:%02X.0",
		 info.domain & 0xFFFF, info.bus & 0xFF, info.device & 0xFF);
	snprintf(info.busId, sizeof info.busId, "%08X:%02X:%02X.0", info.domain, info.bus & 0xFF,
		 info.device & 0xFF);
	memcpy(out, &info, bytes);
	return NVML_SUCCESS;
}

/* Clocks are constants of the virtual device: the current and the maximum value are equal. */
int nvml_clock(const void *device, int type, unsigned *mhz)
{
	enum { GRAPHICS, SM, MEMORY };
	int error = type < GRAPHICS || type > MEMORY
			    ? nvml_lacks(device)
			    : nvml_number(device, mhz, type == MEMORY ? 36 : 13);
	if (!error)
		*mhz /= 1000;
	return error;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
				    nvmlGpuP2PCapsIndex_t p2pIndex, nvmlGpuP2PStatus_t *p2pStatus)
{
	int one, two, error = number_of(device1, &one);
	if (!error)
		error = number_of(device2, &two);
	if (error || !p2pStatus || p2pIndex < 0 || one == two)
		return error ? error : NVML_INVALID_ARGUMENT;
	*p2pStatus = 5; /* NVML_P2P_STATUS_NOT_SUPPORTED, as in cudaDeviceCanAccessPeer */
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
						 nvmlGpuTopologyLevel_t *pathInfo)
{
	int one, two, error = number_of(device1, &one);
	if (!error)
		error = number_of(device2, &two);
	if (error || !pathInfo || one == two)
		return error ? error : NVML_INVALID_ARGUMENT;
	*pathInfo = 50; /* NVML_TOPOLOGY_SYSTEM: the place of a rank's device may change */
	return NVML_SUCCESS;
}

/* Each value has its own result. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
				      nvmlFieldValue_t *values)
{
	int number, error = number_of(device, &number);
	if (error || valuesCount < 1 || !values)
		return error ? error : NVML_INVALID_ARGUMENT;
	for (int i = 0; i < valuesCount; i++)
		values[i].nvmlReturn = NVML_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

/* ---- memory and processes ---- */

/* cudaMemGetInfo for the device that this process uses; on other devices it uses no memory. */
static int memory_of(const void *device, uint64_t *unused, uint64_t *total)
{
	int number, error = number_of(device, &number);
	if (!error && memory_info(unused, total))
		error = NVML_INVALID_ARGUMENT;
	if (!error && number != context_used_number())
		*unused = *total;
	return error;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	uint64_t unused, total;
	int error = memory_of(device, &unused, &total);
	if (error || !memory)
		return error ? error : NVML_INVALID_ARGUMENT;
	*memory = (nvmlMemory_t){.total = total, .free = unused, .used = total - unused};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	uint64_t unused, total;
	int error = memory_of(device, &unused, &total);
	if (error || !memory)
		return error ? error : NVML_INVALID_ARGUMENT;
	if (memory->version != STRUCTURE_VERSION(nvmlMemory_v2_t, 2u))
		return NVML_VERSION_MISMATCH;
	*memory = (nvmlMemory_v2_t){
		.version = memory->version, .total = total, .free = unused, .used = total - unused};
	return NVML_SUCCESS;
}

/* Lists this process, if it uses the device; `bytes`: size of an entry, which depends on the
 * version. */
int nvml_processes(const void *device, unsigned *count, void *out, size_t bytes)
{
	uint64_t unused, total;
	int number = -1, error = memory_of(device, &unused, &total);
	if (error || !count)
		return error ? error : NVML_INVALID_ARGUMENT;
	number_of(device, &number);
	unsigned capacity = *count;
	*count = number == context_used_number();
	if (!*count)
		return NVML_SUCCESS;
	if (!capacity)
		return NVML_INSUFFICIENT_SIZE;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	nvmlProcessInfo_v2_t mine = {(unsigned)getpid(), total - unused, NO_INSTANCE, NO_INSTANCE};
	memcpy(out, &mine, bytes);
	return NVML_SUCCESS;
}

/* Graphics processes, and those of the multi-process service: none. */
int nvml_no_processes(const void *device, unsigned *count)
{
	int number, error = number_of(device, &number);
	if (error || !count)
		return error ? error : NVML_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}
