/* kernel_heap.c: the memory from which kernels allocate by malloc and new.
 *
 * It is one allocation of device memory, made before the first launch of a kernel whose module may
 * allocate; the device manages it (struct rf_heap). It lives until the device is reset, and moves
 * with the rank like all memory, so addresses stay valid. Modules find its address in their struct
 * rf_setup.
 *
 * No lock here; function.c lets one thread at a time create it, which waits for memory and copies.
 */
#include <stdatomic.h>

#include "issue.h"

#define LIMITS 8
#define MALLOC_HEAP_SIZE 2 /* cudaLimitMallocHeapSize */

static const size_t usual[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};
static _Atomic size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};
static _Atomic uint64_t heap; /* 0: not created */

/* Limits are only stored: for the others (device stack, printf buffer) the device chooses sizes by
 * need. */
int limit_get(size_t *value, int limit)
{
	if (!value || limit < 0 || limit >= LIMITS)
		return INVALID_VALUE;
	*value = atomic_load(&limits[limit]);
	return CUDA_OK;
}

int limit_set(int limit, size_t value)
{
	if (limit < 0 || limit >= LIMITS || (limit == MALLOC_HEAP_SIZE && atomic_load(&heap)))
		return INVALID_VALUE;
	atomic_store(&limits[limit], value);
	return CUDA_OK;
}

/* Returns the heap's address; creates the heap if there is none. */
static int make_kernel_heap(uint64_t *address, uint64_t stream)
{
	struct rf_heap about = {.bytes = atomic_load(&limits[MALLOC_HEAP_SIZE])};
	*address = atomic_load(&heap);
	if (*address)
		return CUDA_OK;
	uint64_t bytes = about.bytes > sizeof about ? about.bytes : sizeof about;
	int error = allocation_new(MEMORY_KERNEL_HEAP, 0, bytes, address);
	if (error)
		return error;
	error = memory_put(*address, &about, sizeof about, stream);
	if (error)
		allocation_free((void *)*address);
	else
		atomic_store(&heap, *address);
	return error;
}

/* Uses a stream of its own, as module_set_up does. */
int kernel_heap_write_address(uint64_t where)
{
	struct rf_stream_create own = {.stream = handle_number(), .flags = RF_STREAM_NON_BLOCKING};
	struct rf_handle destroy = {.handle = own.stream};
	uint64_t address;
	channel_post(&own.r, RF_OP_STREAM_CREATE, sizeof own, NULL, 0);
	int error = make_kernel_heap(&address, own.stream);
	if (!error)
		error = memory_put(where, &address, sizeof address, own.stream);
	channel_post(&destroy.r, RF_OP_STREAM_DESTROY, sizeof destroy, NULL, 0);
	return error;
}

void kernel_heap_reset(void)
{
	uint64_t old = atomic_exchange(&heap, 0);
	if (old)
		allocation_free((void *)old);
	for (int i = 0; i < LIMITS; i++)
		atomic_store(&limits[i], usual[i]);
}
