/* cudart.c: bodies of the runtime API that are more than one call, and helpers which the
 * descriptions of both APIs name. Bodies of API functions end in runtime_result, which remembers
 * the error for cudaGetLastError; helpers return the plain number.
 *
 * No lock, nothing that blocks of its own.
 */
#include <stdio.h>
#include <string.h>

#include "bodies.h"

/* ---- device ---- */

int version_get(int *version)
{
	if (!version)
		return INVALID_VALUE;
	*version = CUDA_VERSION;
	return CUDA_OK;
}

int zero_int(int *value)
{
	if (!value)
		return INVALID_VALUE;
	*value = 0;
	return CUDA_OK;
}

int priority_range(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = PRIORITY_GREATEST;
	return CUDA_OK;
}

int no_peer(int *value, int device, int peer)
{
	int error = device_check(device);
	if (!error)
		error = device_check(peer);
	return error ? error : zero_int(value);
}

int pci_bus_id(char *out, int bytes, int device)
{
	int error = device_check(device);
	if (error || !out || bytes < 13)
		return error ? error : INVALID_VALUE;
	snprintf(out, (size_t)bytes, "0000:%02X:00.0", device + 1);
	return CUDA_OK;
}

int device_by_pci_bus_id(int *device, const char *id)
{
	unsigned domain, bus;
	if (!device || !id || sscanf(id, "%x:%x:", &domain, &bus) != 2)
		return INVALID_VALUE;
	*device = (int)bus - 1;
	return domain ? INVALID_DEVICE : device_check(*device);
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

/* ---- streams ---- */

static int stream_property(const void *stream, const struct handle **h)
{
	uint64_t number;
	*h = handle_get(HANDLE_STREAM, stream);
	return stream_number(stream, &number);
}

int stream_flags(const void *stream, unsigned *flags)
{
	const struct handle *h;
	int error = flags ? stream_property(stream, &h) : INVALID_VALUE;
	if (!error)
		*flags = h ? h->flags : 0;
	return error;
}

int stream_id(const void *stream, unsigned long long *id)
{
	uint64_t number;
	int error = id ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error)
		*id = number;
	return error;
}

int stream_device(const void *stream, int *device)
{
	uint64_t number;
	int error = device ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error)
		*device = current_device;
	return error;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
	uint64_t address = 0;
	int error = devPtr ? channel_enter() : INVALID_VALUE;
	if (!error)
		error = capture_forbids();
	if (!error && size)
		error = memory_alloc_for(context_owner(), size, &address);
	if (!error)
		*devPtr = (void *)address;
	return runtime_result(error);
}

cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height)
{
	if (!pitch || width > RF_HEAP_BYTES || height > RF_HEAP_BYTES)
		return runtime_result(INVALID_VALUE);
	*pitch = (width + RF_ALLOC_ALIGN - 1) & ~(RF_ALLOC_ALIGN - 1);
	if (height && *pitch > RF_HEAP_BYTES / height)
		return runtime_result(OUT_OF_MEMORY);
	return cudaMalloc(devPtr, *pitch * height);
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
	if (!pHost || flags > 7)
		return runtime_result(INVALID_VALUE);
	*pHost = NULL;
	return runtime_result(size ? host_alloc(pHost, size, flags) : channel_enter());
}

int host_device_pointer(void **device, void *host, unsigned flags)
{
	if (!device || flags)
		return INVALID_VALUE;
	*device = NULL;
	void *reached = registered_reached(host, 1);
	if (reached == host && registered_is(host)) {
		SAY_ONCE("cudaHostGetDevicePointer: kernels reach registered memory only if it is "
			 "private and consists of whole pages: align its address and size to 4096 "
			 "bytes, or use cudaHostAlloc");
		return NOT_SUPPORTED;
	}
	if (!memory_on_device(reached, 1) || memory_where(reached) != AT_PINNED)
		return INVALID_VALUE;
	*device = reached; /* the arena lies at the same address in the device's window */
	return CUDA_OK;
}

int host_flags(unsigned *flags, const void *host)
{
	struct allocation a;
	if (!flags || !pinned_find(host, &a) || a.flags & PINNED_MANAGED)
		return INVALID_VALUE;
	*flags = a.flags | 2; /* mapped: all of it is */
	return CUDA_OK;
}

int memory_info_get(size_t *free_bytes, size_t *total_bytes)
{
	uint64_t available, total;
	int error = channel_enter();
	if (!error)
		error = memory_info(&available, &total);
	if (!error && free_bytes)
		*free_bytes = available;
	if (!error && total_bytes)
		*total_bytes = total;
	return error;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *ptr)
{
	if (!attributes)
		return runtime_result(INVALID_VALUE);
	int error = device_check(current_device);
	memset(attributes, 0, sizeof *attributes);
	attributes->device = current_device;
	if (memory_on_device(ptr, 0)) {
		bool pinned = memory_where(ptr) == AT_PINNED;
		attributes->type = managed_is(ptr) ? MEMORY_MANAGED
				   : pinned        ? MEMORY_HOST
						   : MEMORY_DEVICE;
		attributes->devicePointer = (void *)ptr;
		attributes->hostPointer = pinned ? (void *)ptr : NULL;
	} else if (registered_is(ptr)) {
		void *reached = registered_reached(ptr, 0);
		attributes->type = MEMORY_HOST;
		attributes->devicePointer = reached != ptr ? reached : NULL;
		attributes->hostPointer = (void *)ptr;
	} else {
		attributes->type = MEMORY_UNREGISTERED;
		attributes->device = -2;
		attributes->hostPointer = (void *)ptr;
	}
	return runtime_result(error);
}

/* ---- copies ---- */

int copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
	    size_t height, int kind, const void *stream, bool async)
{
	struct copy c = {dst, src, dst_pitch, src_pitch, width, height, kind, 0, async};
	int error = width > dst_pitch || width > src_pitch ? INVALID_PITCH : CUDA_OK;
	if (!error)
		error = stream_number(stream, &c.stream);
	return error ? error : memory_copy(&c);
}

/* Copies that name the devices of both sides: there is one. */
int same_device(int dst_device, int src_device)
{
	int error = device_check(dst_device);
	if (!error)
		error = device_check(src_device);
	if (!error && dst_device != src_device) {
		SAY_ONCE(
			"a copy between two devices: a rank has one device under rankfold; use NCCL "
			"between ranks");
		error = NOT_SUPPORTED;
	}
	return error;
}

int copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
	      const void *stream)
{
	int error = same_device(dst_device, src_device);
	return error ? error : memory_copy_1d(dst, src, bytes, DEVICE_TO_DEVICE, stream, true);
}

int symbol_part(const void *symbol, size_t bytes, size_t offset, int kind, bool to, void **at)
{
	uint64_t address, size;
	int error = channel_enter();
	if (!error)
		error = symbol_address(symbol, &address, &size);
	if (!error && (offset > size || bytes > size - offset))
		error = INVALID_VALUE;
	if (!error && (kind == HOST_TO_HOST || kind == (to ? DEVICE_TO_HOST : HOST_TO_DEVICE)))
		error = INVALID_DIRECTION;
	if (!error)
		*at = (uint8_t *)address + offset;
	return error;
}

int copy_to_symbol(const void *symbol, const void *src, size_t bytes, size_t offset, int kind,
		   const void *stream, bool async)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, true, &at);
	return error ? error : memory_copy_1d(at, src, bytes, kind, stream, async);
}

int copy_from_symbol(void *dst, const void *symbol, size_t bytes, size_t offset, int kind,
		     const void *stream, bool async)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, false, &at);
	return error ? error : memory_copy_1d(dst, at, bytes, kind, stream, async);
}

cudaError_t cudaGetSymbolAddress(void **devPtr, const void *symbol)
{
	uint64_t address, size;
	int error = devPtr ? channel_enter() : INVALID_VALUE;
	if (!error)
		error = symbol_address(symbol, &address, &size);
	if (!error)
		*devPtr = (void *)address;
	return runtime_result(error);
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
	uint64_t address, bytes;
	int error = size ? channel_enter() : INVALID_VALUE;
	if (!error)
		error = symbol_address(symbol, &address, &bytes);
	if (!error)
		*size = bytes;
	return runtime_result(error);
}

/* ---- launches ---- */

/* What <<<…>>> says of the next launch. Calls nest only if an argument launches: a few levels. */
#define CALLS_MAX 16
struct call {
	dim3 grid, block;
	size_t shared;
	void *stream;
};
static _Thread_local struct call calls[CALLS_MAX];
static _Thread_local int call_count;

unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem, void *stream)
{
	if (call_count == CALLS_MAX)
		return (unsigned)runtime_result(INVALID_CONFIGURATION);
	calls[call_count++] = (struct call){gridDim, blockDim, sharedMem, stream};
	return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
				       void *stream)
{
	if (!call_count)
		return runtime_result(52); /* cudaErrorMissingConfiguration */
	const struct call *c = &calls[--call_count];
	*gridDim = c->grid;
	*blockDim = c->block;
	*sharedMem = c->shared;
	*(void **)stream = c->stream;
	return CUDA_OK;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *hostFun)
{
	struct function *f = function_of_host(hostFun);
	if (!kernel || !f)
		return runtime_result(kernel ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
	*kernel = f;
	return CUDA_OK;
}

static int launch_as(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		     const void *stream, const launch_attribute *attributes, unsigned count)
{
	struct launch l = {.function = function,
			   .grid = {grid.x, grid.y, grid.z},
			   .block = {block.x, block.y, block.z},
			   .shared_bytes = shared,
			   .args = args};
	int error = count ? launch_attributes(attributes, count, &l) : CUDA_OK;
	if (!error && !function)
		error = INVALID_DEVICE_FUNCTION;
	if (!error)
		error = stream_number(stream, &l.stream);
	return error ? error : launch(&l);
}

int launch_runtime(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		   const void *stream)
{
	return launch_as(function, grid, block, args, shared, stream, NULL, 0);
}

int launch_cooperative(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		       const void *stream)
{
	launch_attribute together = {.id = ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	return launch_as(function, grid, block, args, shared, stream, &together, 1);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
	if (!config)
		return runtime_result(INVALID_VALUE);
	return runtime_result(launch_as(function_of_host(func), config->gridDim, config->blockDim,
					args, config->dynamicSmemBytes, config->stream,
					config->attrs, config->numAttrs));
}

cudaError_t cudaFuncGetName(const char **name, const void *func)
{
	struct function *f = function_of_host(func);
	if (!name || !f)
		return runtime_result(name ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
	*name = f->name;
	return CUDA_OK;
}

int function_param(struct function *f, size_t index, size_t *offset, size_t *bytes)
{
	int error = f ? channel_enter() : INVALID_DEVICE_FUNCTION;
	if (!error)
		error = function_ready(f);
	if (!error && (!offset || index >= f->info.param_count))
		error = INVALID_VALUE;
	if (error)
		return error;
	*offset = f->params[index].offset;
	if (bytes)
		*bytes = f->params[index].bytes;
	return CUDA_OK;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, const void *func)
{
	struct function *f = function_of_host(func);
	int value[10] = {0};
	int error = attr ? CUDA_OK : INVALID_VALUE;
	if (!error && !f)
		error = INVALID_DEVICE_FUNCTION;
	for (int i = 0; !error && i < 10; i++)
		error = function_attribute(&value[i], i, f);
	if (error)
		return runtime_result(error);
	memset(attr, 0, sizeof *attr);
	attr->maxThreadsPerBlock = value[0];
	attr->sharedSizeBytes = (size_t)value[1];
	attr->constSizeBytes = (size_t)value[2];
	attr->localSizeBytes = (size_t)value[3];
	attr->numRegs = value[4];
	attr->ptxVersion = value[5];
	attr->binaryVersion = value[6];
	attr->maxDynamicSharedSizeBytes = value[8];
	attr->preferredShmemCarveout = value[9];
	return CUDA_OK;
}

int host_function_set(const void *function, int attribute, int value)
{
	struct function *f = function_of_host(function);
	return f ? function_set_attribute(f, attribute, value) : INVALID_DEVICE_FUNCTION;
}

int host_occupancy(int *blocks, const void *function, int block_size, size_t dynamic_shared)
{
	struct function *f = function_of_host(function);
	return f ? occupancy_blocks(blocks, f, block_size, dynamic_shared)
		 : INVALID_DEVICE_FUNCTION;
}

/* ---- libraries: modules by another name ---- */

int library_load(void **library, const void *code)
{
	return library && code ? module_load(code, (struct module **)library) : INVALID_VALUE;
}

/* Numbers of CUjit_option: what is written back. All others tune a compiler that is not here. */
enum { JIT_WALL_TIME = 2, JIT_INFO_LOG, JIT_INFO_BYTES, JIT_ERROR_LOG, JIT_ERROR_BYTES };

void fill_logs(int error, unsigned count, const int *options, void **values)
{
	char *info = NULL, *log = NULL;
	size_t info_room = 0, room = 0, wrote = 0;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == JIT_INFO_LOG)
			info = values[i];
		else if (options[i] == JIT_INFO_BYTES)
			info_room = (size_t)values[i];
		else if (options[i] == JIT_ERROR_LOG)
			log = values[i];
		else if (options[i] == JIT_ERROR_BYTES)
			room = (size_t)values[i];
		if (options[i] == JIT_WALL_TIME || options[i] == JIT_INFO_BYTES)
			values[i] = NULL; /* zero, as a number of either kind */
	}
	if (info && info_room)
		*info = 0;
	if (log && room) {
		*log = 0;
		if (error)
			snprintf(log, room,
				 "the module cannot be loaded: %s; the log of the device's proxy "
				 "says why",
				 cudaGetErrorString(error));
		wrote = strlen(log);
	}
	for (unsigned i = 0; i < count; i++)
		if (options[i] == JIT_ERROR_BYTES)
			values[i] = (void *)wrote;
}

int library_load_with(void **library, const void *code, unsigned count, const int *options,
		      void **values)
{
	if (count && (!options || !values))
		return INVALID_VALUE;
	int error = library_load(library, code);
	fill_logs(error, count, options, values);
	return error;
}

int library_unload(void *library)
{
	return module_is(library) ? module_unload(library) : INVALID_HANDLE;
}

int library_function(void **function, void *library, const char *name)
{
	if (!function || !name)
		return INVALID_VALUE;
	return module_is(library) ? module_function(library, name, (struct function **)function)
				  : INVALID_HANDLE;
}

int library_count(unsigned *count, void *library)
{
	if (!count)
		return INVALID_VALUE;
	return module_is(library) ? module_function_count(library, count) : INVALID_HANDLE;
}

int library_enumerate(void **functions, unsigned room, void *library)
{
	if (!functions && room)
		return INVALID_VALUE;
	return module_is(library) ? module_enumerate(library, functions, room) : INVALID_HANDLE;
}

int library_global(CUdeviceptr *address, size_t *bytes, void *library, const char *name)
{
	uint64_t at, size;
	int error = !name ? INVALID_VALUE : module_is(library) ? CUDA_OK : INVALID_HANDLE;
	if (!error)
		error = module_global(library, name, &at, &size);
	if (!error && address)
		*address = at;
	if (!error && bytes)
		*bytes = size;
	return error;
}
