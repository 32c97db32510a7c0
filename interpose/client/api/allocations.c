/* allocations.c: allocates and frees memory for the program, and queries addresses. Calls that may
 * wait in either API are refused while a capture forbids that.
 *
 * No lock; nothing here blocks by itself.
 */
#include <string.h>

#include "bodies.h"

/* ---- device memory ---- */

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

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	uint64_t address;
	int error = dptr && bytesize ? capture_forbids() : INVALID_VALUE;
	if (!error)
		error = memory_alloc_for(context_owner(), bytesize, &address);
	if (!error)
		*dptr = address;
	return error;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	(void)ElementSizeBytes;
	if (!pPitch || !WidthInBytes || !Height || WidthInBytes > RF_HEAP_BYTES)
		return INVALID_VALUE;
	*pPitch = (WidthInBytes + RF_ALLOC_ALIGN - 1) & ~(RF_ALLOC_ALIGN - 1);
	return *pPitch > RF_HEAP_BYTES / Height ? OUT_OF_MEMORY
						: cuMemAlloc_v2(dptr, *pPitch * Height);
}

/* The forms of free that may wait. */
int free_now(const void *address)
{
	int error = channel_open();
	if (!error)
		error = capture_forbids();
	if (error)
		return error;
	if (managed_is(address))
		return managed_free((void *)address);
	return graph_memory_free(address, 0, &error) ? error : allocation_free(address);
}

/* The runtime's frees of NULL: a capture forbids them as well. */
int free_nothing(void)
{
	int error = channel_enter();
	return error ? error : capture_forbids();
}

int alloc_3d(cudaPitchedPtr *out, cudaExtent extent)
{
	if (!out || extent.height > RF_HEAP_BYTES || extent.depth > RF_HEAP_BYTES ||
	    (extent.height && extent.depth > RF_HEAP_BYTES / extent.height))
		return INVALID_VALUE;
	*out = (cudaPitchedPtr){NULL, 0, extent.width, extent.height};
	return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
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

/* ---- host memory ---- */

int host_alloc(void **out, size_t bytes, unsigned flags)
{
	int error = out && bytes && flags <= 7 ? capture_forbids() : INVALID_VALUE;
	if (!error)
		error = pinned_alloc(bytes, context_owner(), flags, out);
	if (!error)
		pinned_announce();
	return error;
}

int host_free(void *address)
{
	int error = capture_forbids();
	return error ? error : pinned_free(address);
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
		LOG_ONCE("cudaHostGetDevicePointer: kernels reach registered memory only if it is "
			 "private and consists of whole pages: align its address and size to 4096 "
			 "bytes, or use cudaHostAlloc");
		return NOT_SUPPORTED;
	}
	if (!memory_on_device(reached, 1) || memory_where(reached) != AT_PINNED)
		return INVALID_VALUE;
	*device = reached; /* the arena has the same address in the device's window */
	return CUDA_OK;
}

int host_flags(unsigned *flags, const void *host)
{
	struct allocation a;
	if (!flags || !pinned_find(host, &a) || a.flags & PINNED_MANAGED)
		return INVALID_VALUE;
	*flags = a.flags | 2; /* 2: mapped, as all of it is */
	return CUDA_OK;
}

/* ---- managed memory ---- */

int managed_alloc(void **out, size_t bytes, unsigned flags)
{
	if (!out || !bytes || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST))
		return INVALID_VALUE;
	int error = context_use_device();
	if (!error)
		error = capture_forbids();
	return error ? error : managed_place(bytes, context_owner(), out);
}

int managed_prefetch(const void *address, size_t bytes, cudaMemLocation location, unsigned flags,
		     const void *stream)
{
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = flags ? INVALID_VALUE : managed_location(&location);
	if (!error)
		error = stream_number(stream, &number);
	if (!error && capturing(number))
		error = capture_refuse(number);
	return error ? error : managed_prefetched(address, bytes, location);
}

/* The program declares where it will use the memory. Here it may use it anywhere. */
int managed_attach(const void *stream, const void *address, size_t bytes, unsigned flags)
{
	struct allocation a;
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = stream_number(stream, &number);
	if (!error && capturing(number))
		error = capture_refuse(number);
	if (error)
		return error;
	bool known = flags == ATTACH_GLOBAL || flags == ATTACH_HOST ||
		     (flags == ATTACH_SINGLE && number != RF_STREAM_LEGACY);
	if (!known || !managed_is(address) || !pinned_find(address, &a) ||
	    a.base != (uint64_t)address || (bytes && bytes != a.bytes))
		return INVALID_VALUE;
	return CUDA_OK;
}

/* ---- memory from pools ---- */

int pool_alloc(void **out, uint64_t bytes, const void *pool, const void *stream)
{
	uint64_t number, address, whole = (bytes + RF_ALLOC_ALIGN - 1) & ~(RF_ALLOC_ALIGN - 1);
	int error = out && bytes ? context_use_device() : INVALID_VALUE;
	if (!error && bytes > RF_HEAP_BYTES)
		error = OUT_OF_MEMORY;
	if (!error)
		error = stream_number(stream, &number);
	if (!error && capturing(number))
		return capture_allocate(number, whole, out);
	if (!error)
		error = current_device < DEVICES_MAX ? pool_book(pool, whole, &number)
						     : INVALID_DEVICE;
	if (error)
		return error;
	error = memory_alloc_for(number, bytes, &address);
	if (error) {
		pool_got_back(number, whole);
		return error;
	}
	pool_took(number);
	*out = (void *)address;
	return CUDA_OK;
}

int pool_alloc_from(void **out, uint64_t bytes, const void *pool, const void *stream)
{
	return pool ? pool_alloc(out, bytes, pool, stream) : INVALID_VALUE;
}

int pool_free(const void *address, const void *stream)
{
	uint64_t number;
	int error = channel_open();
	if (!error)
		error = stream_number(stream, &number);
	if (error || !address)
		return error;
	if (capturing(number))
		return capture_free(number, address);
	if (graph_memory_free(address, number, &error))
		return error;
	return memory_free_in(address, number);
}

int pool_attribute(const void *pool, int attribute, void *value)
{
	uint64_t unused, total;
	int error = memory_info(&unused, &total); /* pools first release what others took */
	return error ? error : pool_get(pool, attribute, value);
}
