/* memory.c: of the fake driver (fake.h): devices, the context, memory, the rules of all calls. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"
#include "fake.h"

#define GRANULARITY (2ull << 20)
#define TABLE 8192
#define COMPUTE_MODE 20 /* CU_DEVICE_ATTRIBUTE_…, for tests/gpu */
#define DIRT 0xa5       /* what fresh memory holds */
#define DIRT_EVERY (128u << 10)
#define SHARED "-shared" /* end of the name of memory that processes share */

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_moved = PTHREAD_COND_INITIALIZER;
CUresult fake_dead;

static struct {
	char name[64];
	int calls, fail_in, error;
} calls[512];
static char faults[4096];
static int fault_count, retained;
static CUdevice ours = -1; /* whose context this process has */
static bool initialised;
static _Thread_local bool current;

struct range {
	CUdeviceptr at;
	uint64_t bytes;
};
static struct range reserved[64], pinned[512], spares[64], variables[64];
static unsigned long registered[512]; /* by index in `pinned`: inode of the file; 0: not so */
static struct {
	struct range r;
	CUmemGenericAllocationHandle handle;
	bool access;
} maps[TABLE];
static struct {
	int fd;
	uint64_t bytes;
	uint32_t maps;
	bool live;
	bool shareable, imported;
	CUdevice owner;
} handles[TABLE];
static uint64_t created;

/* ---- rules ---- */

static int call_index(const char *name)
{
	int i = 0;

	while (i < 511 && calls[i].name[0] && strcmp(calls[i].name, name))
		i++;
	snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
	return i;
}

void fake_fault(const char *format, ...)
{
	size_t used = strlen(faults);
	va_list arguments;
	FILE *file;

	fault_count++;
	va_start(arguments, format);
	vsnprintf(faults + used, sizeof faults - used, format, arguments);
	va_end(arguments);
	if ((file = fopen(getenv("RANKFOLD_FAKE_FAULTS") ? getenv("RANKFOLD_FAKE_FAULTS")
							 : "/dev/null",
			  "a"))) {
		fprintf(file, "%s\n", faults + used);
		fclose(file);
	}
	used = strlen(faults);
	snprintf(faults + used, sizeof faults - used, "\n");
}

static CUresult begin(const char *call)
{
	int i = call_index(call);

	calls[i].calls++;
	fake_report();
	if (calls[i].fail_in && --calls[i].fail_in == 0)
		return (CUresult)calls[i].error;
	return CUDA_SUCCESS;
}

CUresult fake_enter(const char *call, bool needs_context)
{
	CUresult error;

	pthread_mutex_lock(&fake_lock);
	error = begin(call);
	if (!error && needs_context && !current) {
		fake_fault("%s: no context is current in this thread", call);
		error = CUDA_ERROR_INVALID_VALUE;
	}
	if (!error && needs_context)
		error = fake_dead;
	if (!error && !initialised && strcmp(call, "cuInit"))
		error = CUDA_ERROR_UNKNOWN;
	if (error)
		pthread_mutex_unlock(&fake_lock);
	return error;
}

EXPORT void fake_fail(const char *call, int nth, int error)
{
	pthread_mutex_lock(&fake_lock);
	int i = call_index(call);
	calls[i].fail_in = nth;
	calls[i].error = error;
	pthread_mutex_unlock(&fake_lock);
}

EXPORT int fake_calls(const char *call)
{
	pthread_mutex_lock(&fake_lock);
	int count = calls[call_index(call)].calls;
	pthread_mutex_unlock(&fake_lock);
	return count;
}

EXPORT int fake_faults(char *text, int bytes)
{
	pthread_mutex_lock(&fake_lock);
	int count = fault_count;
	snprintf(text, (size_t)bytes, "%s", faults);
	fault_count = 0;
	faults[0] = 0;
	pthread_mutex_unlock(&fake_lock);
	return count;
}

__attribute__((constructor)) static void from_environment(void)
{
	const char *wish = getenv("RANKFOLD_FAKE_FAIL");
	char call[64];
	int nth, error;

	if (wish && sscanf(wish, "%63[^:]:%d:%d", call, &nth, &error) == 3)
		fake_fail(call, nth, error);
}

/* ---- device and context ---- */

EXPORT CUresult cuInit(unsigned flags)
{
	CUresult error = fake_enter("cuInit", false);

	if (error)
		return error;
	fake_inject();
	initialised = flags == 0;
	if (!getenv("CUDA_DEVICE_MAX_CONNECTIONS"))
		fake_fault("cuInit: streams share eight queues");
	return fake_leave(initialised ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
	static const struct {
		CUresult error;
		const char *name;
	} names[] = {
		{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
		{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
		{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error) {
			*name = names[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

static int device_count(void)
{
	const char *wish = getenv("RANKFOLD_FAKE_DEVICES");

	return wish ? atoi(wish) : 1;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	CUresult error = fake_enter("cuDeviceGetCount", false);

	if (error)
		return error;
	*count = device_count();
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return ordinal < 0 || ordinal >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* Servers that leave a GPU to others ask this, too. */
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	memset(uuid, 0xfa, sizeof *uuid);
	uuid->bytes[15] = (char)(0xfa - device);
	return device >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static bool reaches(CUdevice device, CUdevice peer)
{
	const char *not = getenv("RANKFOLD_FAKE_NO_PEERS");
	char pair[32];

	snprintf(pair, sizeof pair, "%d:%d", device, peer);
	return device != peer && !(not && strstr(not, pair));
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult error = fake_enter("cuDeviceCanAccessPeer", false);

	if (error)
		return error;
	*can = reaches(device, peer);
	return fake_leave(device >= device_count() || peer >= device_count()
				  ? CUDA_ERROR_INVALID_DEVICE
				  : CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	snprintf(name, (size_t)bytes, "Fake GPU %d", device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	*bytes = FAKE_MEMORY;
	return device >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* An H100's; 1: what the device can do. */
static int attribute_of(CUdevice_attribute attribute)
{
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2619000;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 50 << 20;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 228 << 10;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 227 << 10;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
	case COMPUTE_MODE: return 0;
	default: return 1;
	}
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUresult error = fake_enter("cuDeviceGetAttribute", false);

	if (error)
		return error;
	*value = attribute_of(attribute);
	return fake_leave(device >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult error = fake_enter("cuDevicePrimaryCtxRetain", false);

	if (error)
		return error;
	if (retained++ && device != ours)
		fake_fault("cuDevicePrimaryCtxRetain: of two devices");
	ours = device;
	*context = (CUcontext)&retained;
	return fake_leave(device >= device_count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult error = fake_enter("cuDevicePrimaryCtxRelease_v2", false);

	if (error)
		return error;
	if (device != ours || --retained < 0)
		fake_fault("a context is released that was not retained");
	for (size_t i = 0; i < 512; i++)
		if (registered[i])
			fake_fault("memory at %#llx is still registered", pinned[i].at);
	for (size_t i = 0; i < 64; i++)
		if (spares[i].bytes)
			fake_fault("memory of a stream at %#llx is left", spares[i].at);
	for (size_t i = 0; i < TABLE; i++)
		if (handles[i].shareable && (handles[i].live || handles[i].maps))
			fake_fault("memory that processes share is left");
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult error = fake_enter("cuCtxSetCurrent", false);

	if (error)
		return error;
	current = context != NULL;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTER(cuMemGetInfo_v2);
	*total = FAKE_MEMORY;
	*free_bytes = FAKE_MEMORY - created;
	return fake_leave(CUDA_SUCCESS);
}

/* ---- ranges ---- */

static bool inside(CUdeviceptr at, uint64_t bytes, struct range r)
{
	return r.bytes && at >= r.at && at - r.at <= r.bytes && bytes <= r.bytes - (at - r.at);
}

static bool overlaps(CUdeviceptr at, uint64_t bytes, struct range r)
{
	return r.bytes && at < r.at + r.bytes && r.at < at + bytes;
}

static struct range *put(struct range *table, size_t count, CUdeviceptr at, uint64_t bytes)
{
	for (size_t i = 0; i < count; i++)
		if (!table[i].bytes) {
			table[i] = (struct range){at, bytes};
			return &table[i];
		}
	abort();
}

static struct range *find(struct range *table, size_t count, CUdeviceptr at, uint64_t bytes)
{
	for (size_t i = 0; i < count; i++)
		if (table[i].bytes && table[i].at == at && (!bytes || table[i].bytes == bytes))
			return &table[i];
	return NULL;
}

int fake_ordinal(void) { return ours; }

bool fake_is_window(CUdeviceptr at)
{
	return at >= RF_DEV_BASE && at < RF_DEV_BASE + RF_HEAP_BYTES;
}

bool fake_is_spare(CUdeviceptr at, uint64_t bytes)
{
	for (size_t i = 0; i < 64; i++)
		if (inside(at, bytes, spares[i]))
			return true;
	return false;
}

uint8_t *fake_variables(uint64_t bytes)
{
	uint8_t *made = aligned_alloc(256, (bytes + 255) / 256 * 256);

	memset(made, 0, bytes);
	for (size_t i = 0; i < 64; i++)
		if (!variables[i].bytes) {
			variables[i] = (struct range){(CUdeviceptr)(uintptr_t)made, bytes};
			return made;
		}
	abort();
}

static bool is_variable(CUdeviceptr at, uint64_t bytes)
{
	for (size_t i = 0; i < 64; i++)
		if (inside(at, bytes, variables[i]))
			return true;
	return false;
}

bool fake_window_open(void)
{
	for (size_t i = 0; i < TABLE; i++)
		if (maps[i].r.bytes && !maps[i].access && fake_is_window(maps[i].r.at))
			return false;
	return true;
}

static bool is_still_there(const struct range *);

/* Mappings are adjacent: a range that spans several is checked one by one. */
bool fake_reachable(CUdeviceptr at, uint64_t bytes)
{
	for (size_t i = 0; i < 512; i++)
		if (inside(at, bytes, pinned[i]))
			return !registered[i] || is_still_there(&pinned[i]);
	if (fake_is_spare(at, bytes) || is_variable(at, bytes))
		return true;
	while (bytes) {
		uint64_t got = 0;

		for (size_t i = 0; i < TABLE && !got; i++)
			if (maps[i].access && inside(at, 1, maps[i].r))
				got = maps[i].r.at + maps[i].r.bytes - at;
		if (!got)
			return false;
		got = got < bytes ? got : bytes;
		at += got;
		bytes -= got;
	}
	return true;
}

/* ---- device memory ---- */

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
					      CUmemAllocationGranularity_flags flags)
{
	ENTER(cuMemGetAllocationGranularity);
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || flags)
		fake_fault("cuMemGetAllocationGranularity: not what cuMemCreate gets");
	*bytes = GRANULARITY;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
			    const CUmemAllocationProp *prop, unsigned long long flags)
{
	uint8_t dirt[4096];
	char name[32];

	ENTER(cuMemCreate);
	if (bytes % GRANULARITY || !bytes || flags || prop->location.id != ours ||
	    prop->requestedHandleTypes > CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
		fake_fault("cuMemCreate: %zu bytes on device %d", bytes, prop->location.id);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	if (created + bytes > FAKE_MEMORY)
		return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 1; i < TABLE; i++) {
		if (handles[i].live || handles[i].maps)
			continue;
		snprintf(name, sizeof name, "fake-gpu-%d%s", ours,
			 prop->requestedHandleTypes ? SHARED : "");
		handles[i].fd = memfd_create(name, MFD_CLOEXEC);
		handles[i].owner = ours;
		handles[i].shareable = prop->requestedHandleTypes;
		handles[i].imported = false;
		memset(dirt, DIRT, sizeof dirt);
		/* Here and there: it takes time. */
		if (ftruncate(handles[i].fd, (off_t)bytes))
			abort();
		for (uint64_t at = 0; at < bytes; at += DIRT_EVERY)
			if (pwrite(handles[i].fd, dirt, sizeof dirt, (off_t)at) != sizeof dirt)
				abort();
		handles[i].bytes = bytes;
		handles[i].live = true;
		created += bytes;
		*out = i;
		return fake_leave(CUDA_SUCCESS);
	}
	return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

static void drop_if_unused(CUmemGenericAllocationHandle handle)
{
	if (handles[handle].live || handles[handle].maps)
		return;
	close(handles[handle].fd);
	if (!handles[handle].imported)
		created -= handles[handle].bytes;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
					     CUmemAllocationHandleType type,
					     unsigned long long flags)
{
	ENTER(cuMemExportToShareableHandle);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !handle ||
	    handle >= TABLE || !handles[handle].live || !handles[handle].shareable) {
		fake_fault("cuMemExportToShareableHandle: it was not created for that");
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	*(int *)out = dup(handles[handle].fd);
	return fake_leave(CUDA_SUCCESS);
}

/* The GPU whose shareable memory a descriptor names; -1: it names none. */
static CUdevice owner_of(int fd)
{
	char link[64], target[128] = "", kind[16] = "";
	CUdevice owner;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	if (readlink(link, target, sizeof target - 1) < 0 ||
	    sscanf(target, "/memfd:fake-gpu-%d%15s", &owner, kind) != 2 || strcmp(kind, SHARED))
		return -1;
	return owner;
}

/* The descriptor stays the caller's. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
					       CUmemAllocationHandleType type)
{
	int fd = (int)(intptr_t)os_handle;
	CUdevice owner = owner_of(fd);
	char link[64];

	ENTER(cuMemImportFromShareableHandle);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		fake_fault("cuMemImportFromShareableHandle: a type that was not asked for");
	if (owner < 0 || owner >= device_count())
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 1; i < TABLE; i++) {
		if (handles[i].live || handles[i].maps)
			continue;
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		handles[i].fd = open(link, O_RDWR | O_CLOEXEC);
		handles[i].bytes = (uint64_t)lseek(handles[i].fd, 0, SEEK_END);
		handles[i].live = handles[i].shareable = handles[i].imported = true;
		handles[i].owner = owner;
		*out = i;
		return fake_leave(CUDA_SUCCESS);
	}
	return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

int fake_shared_file(CUdeviceptr at, uint64_t bytes, uint64_t *offset)
{
	for (size_t i = 0; i < TABLE; i++)
		if (inside(at, bytes, maps[i].r) && handles[maps[i].handle].shareable) {
			*offset = at - maps[i].r.at;
			return handles[maps[i].handle].fd;
		}
	return -1;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	ENTER(cuMemRelease);
	if (!handle || handle >= TABLE || !handles[handle].live || handles[handle].maps) {
		fake_fault("cuMemRelease: handle %llu is mapped, or none", handle);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	handles[handle].live = false;
	drop_if_unused(handle);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment,
				    CUdeviceptr at, unsigned long long flags)
{
	int fixed = at ? MAP_FIXED_NOREPLACE : 0;
	void *got;

	ENTER(cuMemAddressReserve);
	if (!bytes || bytes % GRANULARITY || flags || alignment % GRANULARITY)
		fake_fault("cuMemAddressReserve: %zu bytes aligned to %zu", bytes, alignment);
	got = mmap((void *)(uintptr_t)at, bytes + GRANULARITY, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
	if (got == MAP_FAILED) /* the address is a wish: somewhere else */
		got = mmap(NULL, bytes + GRANULARITY, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (got == MAP_FAILED)
		return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*out = ((CUdeviceptr)(uintptr_t)got + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	munmap(got, *out - (CUdeviceptr)(uintptr_t)got);
	munmap((void *)(uintptr_t)(*out + bytes), (uintptr_t)got + GRANULARITY - *out);
	put(reserved, 64, *out, bytes);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	struct range *r;

	ENTER(cuMemAddressFree);
	r = find(reserved, 64, at, bytes);
	for (size_t i = 0; i < TABLE; i++)
		if (overlaps(at, bytes, maps[i].r))
			r = NULL;
	if (!r) {
		fake_fault("cuMemAddressFree: %#llx is mapped, or not reserved so", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	munmap((void *)(uintptr_t)at, bytes);
	r->bytes = 0;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
			 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	bool room = false;
	size_t free_place = TABLE;

	ENTER(cuMemMap);
	for (size_t i = 0; i < 64; i++)
		room |= inside(at, bytes, reserved[i]);
	for (size_t i = 0; i < TABLE; i++) {
		room &= !overlaps(at, bytes, maps[i].r);
		if (!maps[i].r.bytes)
			free_place = i;
	}
	if (!room || offset || flags || at % GRANULARITY || !handle || handle >= TABLE ||
	    !handles[handle].live || bytes != handles[handle].bytes) {
		fake_fault("cuMemMap: %#llx is taken or not reserved", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
		 handles[handle].fd, 0) == MAP_FAILED)
		abort();
	handles[handle].maps++;
	maps[free_place].r = (struct range){at, bytes};
	maps[free_place].handle = handle;
	maps[free_place].access = false;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	size_t i = 0;

	ENTER(cuMemUnmap);
	while (i < TABLE && !(maps[i].r.bytes == bytes && maps[i].r.at == at))
		i++;
	if (i == TABLE || fake_in_use(at, bytes) || (fake_is_window(at) && fake_in_use(0, 0))) {
		fake_fault("cuMemUnmap: %#llx is in use, or not mapped so", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	maps[i].r.bytes = 0;
	maps[i].access = false;
	handles[maps[i].handle].maps--;
	drop_if_unused(maps[i].handle);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
			       size_t count)
{
	bool writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	uint64_t covered = 0;
	bool fresh = true; /* what kernels that run can not know yet */
	bool peers = true;

	ENTER(cuMemSetAccess);
	for (size_t i = 0; i < TABLE; i++)
		if (maps[i].r.bytes &&
		    inside(maps[i].r.at, maps[i].r.bytes, (struct range){at, bytes})) {
			covered += maps[i].r.bytes;
			peers &= handles[maps[i].handle].owner == ours ||
				 reaches(ours, handles[maps[i].handle].owner);
			fresh &= !maps[i].access;
			maps[i].access = true;
		}
	if (!peers) {
		fake_fault("cuMemSetAccess: of a GPU that cannot be reached");
		return fake_leave(CUDA_ERROR_INVALID_DEVICE);
	}
	if (covered != bytes || count != 1 || access->location.id != ours ||
	    (!writable && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ) ||
	    (fake_is_window(at) && !fresh && fake_in_use(0, 0))) {
		fake_fault("cuMemSetAccess: %#llx, %zu bytes: not all of it is mapped, or a "
			   "kernel runs",
			   at, bytes);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	if (mprotect((void *)(uintptr_t)at, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ))
		abort();
	return fake_leave(CUDA_SUCCESS);
}

/* ---- memory of a stream ---- */

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	uint8_t *got;

	(void)stream;
	ENTER(cuMemAllocAsync);
	if (!bytes)
		fake_fault("cuMemAllocAsync: no bytes");
	got = aligned_alloc(256, (bytes + 255) / 256 * 256);
	memset(got, DIRT, bytes);
	*out = (CUdeviceptr)(uintptr_t)got;
	put(spares, 64, *out, bytes);
	return fake_leave(CUDA_SUCCESS);
}

/* Work that was pushed before may use the memory; work that is pushed later must not. */
EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
	struct range *r;

	ENTER(cuMemFreeAsync);
	r = find(spares, 64, at, 0);
	if (!r) {
		fake_fault("cuMemFreeAsync: %#llx is not a stream's", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	r->bytes = 0;
	fake_push_host(stream, free, (void *)(uintptr_t)at);
	return fake_leave(CUDA_SUCCESS);
}

/* ---- host memory ---- */

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
	ENTER(cuMemHostAlloc);
	(void)flags;
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	put(pinned, 512, (CUdeviceptr)(uintptr_t)*out, bytes);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemFreeHost(void *at)
{
	struct range *r;

	ENTER(cuMemFreeHost);
	r = find(pinned, 512, (CUdeviceptr)(uintptr_t)at, 0);
	if (!r || registered[r - pinned] || fake_in_use(r->at, r->bytes)) {
		fake_fault("cuMemFreeHost: %p is in use, or not pinned", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	munmap(at, r->bytes);
	r->bytes = 0;
	return fake_leave(CUDA_SUCCESS);
}

/* The file's inode of the memory there, 0: none that may be read and written; and whether all of
 * its pages exist. */
static unsigned long file_of(CUdeviceptr at, uint64_t bytes, bool *whole)
{
	static unsigned char there[4096];
	char line[512], access[5];
	unsigned long long first, end;
	unsigned long inode, found = 0;
	FILE *all = fopen("/proc/self/maps", "r");

	while (all && fgets(line, sizeof line, all))
		if (sscanf(line, "%llx-%llx %4s %*s %*s %lu", &first, &end, access, &inode) == 4 &&
		    first <= at && at + bytes <= end && access[1] == 'w')
			found = inode;
	if (all)
		fclose(all);
	*whole = bytes / 4096 <= sizeof there && !mincore((void *)(uintptr_t)at, bytes, there);
	for (uint64_t i = 0; *whole && i < bytes / 4096; i++)
		*whole = there[i] & 1;
	return found;
}

/* Registered memory must stay mapped, and keep its pages: the device has their physical
 * addresses. */
static bool is_still_there(const struct range *r)
{
	bool whole;

	return file_of(r->at, r->bytes, &whole) == registered[r - pinned] && whole;
}

EXPORT CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
	bool whole, taken = false;
	unsigned long file;

	ENTER(cuMemHostRegister_v2);
	for (size_t i = 0; i < 512; i++)
		taken |= overlaps(at, bytes, pinned[i]);
	file = file_of(at, bytes, &whole);
	if (at % 4096 || bytes % 4096 || !bytes || taken || !file || flags != 3) {
		fake_fault("cuMemHostRegister: %p, %zu bytes: not memory of a file, or registered",
			   memory, bytes);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (uint64_t i = 0; i < bytes; i += 4096) /* it gets its pages */
		(void)*(volatile uint8_t *)(uintptr_t)(at + i);
	registered[put(pinned, 512, at, bytes) - pinned] = file;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostUnregister(void *memory)
{
	struct range *r;

	ENTER(cuMemHostUnregister);
	r = find(pinned, 512, (CUdeviceptr)(uintptr_t)memory, 0);
	if (!r || !registered[r - pinned] || fake_in_use(r->at, r->bytes) || !is_still_there(r)) {
		fake_fault("cuMemHostUnregister: %p is in use, not registered, or was given back",
			   memory);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	r->bytes = 0;
	registered[r - pinned] = 0;
	return fake_leave(CUDA_SUCCESS);
}

/* After a device was lost, whose process would have ended: all is as at its beginning. */
EXPORT void fake_reset(void)
{
	pthread_mutex_lock(&fake_lock);
	fake_end_streams();
	fake_order_forget();
	for (size_t i = 0; i < 64; i++)
		if (reserved[i].bytes)
			munmap((void *)(uintptr_t)reserved[i].at, reserved[i].bytes);
	for (size_t i = 0; i < 512; i++)
		if (pinned[i].bytes && !registered[i])
			munmap((void *)(uintptr_t)pinned[i].at, pinned[i].bytes);
	for (size_t i = 0; i < TABLE; i++)
		if (handles[i].live || handles[i].maps)
			close(handles[i].fd);
	munmap((void *)(uintptr_t)(RF_DEV_BASE + RF_HEAP_BYTES), RF_WINDOW_BYTES - RF_HEAP_BYTES);
	memset(reserved, 0, sizeof reserved);
	memset(pinned, 0, sizeof pinned);
	memset(registered, 0, sizeof registered);
	memset(spares, 0, sizeof spares);
	memset(maps, 0, sizeof maps);
	memset(handles, 0, sizeof handles);
	created = 0;
	retained = 0;
	fake_dead = CUDA_SUCCESS;
	pthread_mutex_unlock(&fake_lock);
}
