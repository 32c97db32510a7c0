/* device.c: opens and closes a GPU, divides its memory into chunks, and records that it is lost.
 *
 * All chunks are created when the device is opened, so its capacity is available whatever other
 * programs do to the GPU later. They stay mapped at their alias addresses until the device is
 * closed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nvidia_hal.h"

struct hal_device *_Atomic nvidia_open_device;

CUresult nvidia_bind(const struct hal_device *device)
{
	return device->driver->cuCtxSetCurrent(device->context);
}

const char *nvidia_error_name(const struct hal_device *device, CUresult error)
{
	const char *name = NULL;

	device->driver->cuGetErrorName(error, &name);
	return name ? name : "unknown error";
}

CUresult nvidia_set_access(const struct hal_device *device, CUdeviceptr at, uint64_t bytes,
			   bool writable)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
				  .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
						    : CU_MEM_ACCESS_FLAGS_PROT_READ};

	return device->driver->cuMemSetAccess(at, bytes, &access, 1);
}

void nvidia_ring(const struct hal_device *device)
{
	if (device->config.ring)
		device->config.ring(device->config.ring_arg);
}

/* The caller has published the work before: either the device thread sees it, or this sees the
 * sleep. */
void nvidia_wake(struct hal_device *device)
{
	if (!atomic_load(&device->sleeping))
		return;
	pthread_mutex_lock(&device->lock);
	pthread_cond_signal(&device->wake);
	pthread_mutex_unlock(&device->lock);
}

void nvidia_lose(struct hal_device *device, int error, const char *format, ...)
{
	const struct hal_space *space = device->window_serial ? device->window_space : NULL;
	bool perhaps = error == CUDA_ERROR_ILLEGAL_ADDRESS && space &&
		       atomic_load(&space->read_only);
	char what[CUDA_TEXT_BYTES / 2];
	va_list arguments;

	if (atomic_load(&device->lost))
		return;
	va_start(arguments, format);
	vsnprintf(what, sizeof what, format, arguments);
	va_end(arguments);
	snprintf(device->lost_text, sizeof device->lost_text,
		 "%s%s; this ends the GPU's context for all ranks of the proxy", what,
		 perhaps ? " (perhaps a write to read-only memory outside the footprint)" : "");
	atomic_store(&device->lost_serial, device->window_serial);
	atomic_store(&device->lost, error);
	nvidia_ring(device);
}

CUresult nvidia_refuse(const struct hal_device *device, const char *what, CUresult error)
{
	if (device->config.text)
		snprintf(device->config.text, device->config.text_bytes, "GPU %d: %s: %s (%d)",
			 device->ordinal, what, nvidia_error_name(device, error), error);
	return error;
}

static CUresult require_attribute(const struct hal_device *device, CUdevice_attribute attribute,
				  const char *what)
{
	int value = 0;
	CUresult error = device->driver->cuDeviceGetAttribute(&value, attribute, device->ordinal);

	if (!error && !value)
		error = CUDA_ERROR_NOT_SUPPORTED;
	return error ? nvidia_refuse(device, what, error) : CUDA_SUCCESS;
}

/* Checks that the GPU can run code for the compute capability that jobs see. */
static CUresult check_capability(struct hal_device *device)
{
	const struct hal_config *c = &device->config;
	int major = 0, minor = 0;
	CUresult error = device->driver->cuDeviceGetAttribute(
		&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->ordinal);

	if (!error)
		error = device->driver->cuDeviceGetAttribute(
			&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->ordinal);
	if (error)
		return nvidia_refuse(device, "its compute capability cannot be queried", error);
	device->capability = major * 10 + minor;
	if (device->capability >= (int)(c->cc_major * 10 + c->cc_minor))
		return CUDA_SUCCESS;
	if (c->text)
		snprintf(c->text, c->text_bytes,
			 "GPU %d has compute capability %d.%d, less than the pool's %u.%u",
			 device->ordinal, major, minor, c->cc_major, c->cc_minor);
	return CUDA_ERROR_INVALID_DEVICE;
}

/* Chooses the GPU. `index` counts the GPUs that the driver shows. With RANKFOLD_NVIDIA_SHARE=1 it
 * wraps around: several devices of a pool are then one GPU, each with its share of the memory. */
static CUresult choose_gpu(struct hal_device *device)
{
	const struct hal_config *c = &device->config;
	const char *wish = getenv("RANKFOLD_NVIDIA_SHARE");
	bool share = wish && strcmp(wish, "1") == 0;
	int count = 0, index = (int)c->index, exports = 0;
	CUresult error = device->driver->cuDeviceGetCount(&count);

	if (!error && count && share)
		index %= count;
	if (!error && index >= count) {
		if (c->text)
			snprintf(c->text, c->text_bytes,
				 "there is no GPU %d: the driver shows %d "
				 "(CUDA_VISIBLE_DEVICES?)",
				 index, count);
		return CUDA_ERROR_NO_DEVICE;
	}
	if (!error)
		error = device->driver->cuDeviceGet(&device->ordinal, index);
	if (!error)
		error = device->driver->cuDeviceGetAttribute(
			&exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
			device->ordinal);
	if (error)
		return nvidia_refuse(device, "cannot be chosen", error);
	device->has_peers = exports && (count > 1 || share);
	return check_capability(device);
}

static uint64_t all_bytes(const struct hal_device *device)
{
	return device->config.memory_bytes + CUDA_SCRATCH_BYTES;
}

/* In addition to what the pool gives to ranks. */
static uint64_t own_bytes(const struct hal_device *device)
{
	return CUDA_SCRATCH_BYTES + (device->has_peers ? CUDA_OUTBOX_BYTES : 0);
}

static CUresult check_memory(const struct hal_device *device)
{
	const struct hal_config *c = &device->config;
	size_t free_bytes = 0, total = 0;
	CUresult error = device->driver->cuMemGetInfo_v2(&free_bytes, &total);

	if (error)
		return nvidia_refuse(device, "its memory size cannot be queried", error);
	if (c->memory_bytes + own_bytes(device) <= free_bytes)
		return CUDA_SUCCESS;
	if (c->text)
		snprintf(
			c->text, c->text_bytes,
			"GPU %d has %zu MiB of %zu free, the pool wants "
			"%llu and %llu for itself: lower its memory, or stop other users of the GPU",
			device->ordinal, free_bytes >> 20, total >> 20,
			(unsigned long long)c->memory_bytes >> 20,
			(unsigned long long)own_bytes(device) >> 20);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult reserve_window(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	CUdeviceptr window = 0;
	CUresult error = d->cuMemAddressReserve(&window, RF_HEAP_BYTES, RF_CHUNK_BYTES, RF_DEV_BASE,
						0);

	if (!error && window != RF_DEV_BASE) {
		d->cuMemAddressFree(window, RF_HEAP_BYTES);
		error = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (error)
		return nvidia_refuse(device,
				     "the driver does not provide the addresses of ranks' memory "
				     "(from 0x200000000000)",
				     error);
	device->window_reserved = true;
	device->host_window = mmap(
		(void *)(uintptr_t)(RF_DEV_BASE + RF_HEAP_BYTES), RF_WINDOW_BYTES - RF_HEAP_BYTES,
		PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
		0);
	if (device->host_window == MAP_FAILED) {
		device->host_window = NULL;
		return nvidia_refuse(device, "the addresses of ranks' pinned memory are in use",
				     CUDA_ERROR_OUT_OF_MEMORY);
	}
	error = d->cuMemAddressReserve(&device->alias, all_bytes(device), RF_CHUNK_BYTES, 0, 0);
	if (!error && device->has_peers)
		error = d->cuMemAddressReserve(&device->outboxes, CUDA_OUTBOXES * CUDA_OUTBOX_BYTES,
					       RF_CHUNK_BYTES, 0, 0);
	if (!error)
		error = d->cuMemAddressReserve(&device->links, CUDA_LINKS * CUDA_LINK_BYTES,
					       RF_CHUNK_BYTES, 0, 0);
	return error ? nvidia_refuse(device, "no addresses for its memory", error) : CUDA_SUCCESS;
}

static CUresult make_chunks(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};
	size_t granularity = 0;
	CUresult error = d->cuMemGetAllocationGranularity(&granularity, &prop,
							  CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (!error && (!granularity || RF_CHUNK_BYTES % granularity))
		error = CUDA_ERROR_NOT_SUPPORTED;
	for (uint32_t i = 0; !error && i < device->chunk_count + CUDA_SCRATCH_CHUNKS; i++) {
		error = d->cuMemCreate(&device->chunks[i], RF_CHUNK_BYTES, &prop, 0);
		if (error)
			break;
		error = d->cuMemMap(nvidia_alias(device, i), RF_CHUNK_BYTES, 0, device->chunks[i],
				    0);
		if (error)
			d->cuMemRelease(device->chunks[i]);
		else
			device->chunks_made++;
	}
	if (!error)
		error = nvidia_set_access(device, device->alias, all_bytes(device), true);
	if (error)
		return nvidia_refuse(device, "its memory cannot be allocated", error);
	for (uint32_t i = device->chunk_count; i > 0; i--)
		device->free_chunks[device->free_count++] = i - 1;
	return CUDA_SUCCESS;
}

static CUresult make_host_memory(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
	CUresult error = d->cuMemHostAlloc((void **)&device->counters,
					   CUDA_STREAMS_MAX * sizeof(uint64_t), flags);

	if (!error)
		error = d->cuMemHostAlloc((void **)&device->stage_memory,
					  CUDA_STAGES * CUDA_STAGE_BYTES, flags);
	if (error)
		return nvidia_refuse(device, "no pinned host memory", error);
	for (uint32_t i = CUDA_STREAMS_MAX; i > 0; i--)
		device->free_slots[device->free_slot_count++] = i - 1;
	for (uint32_t i = 0; i < CUDA_STAGES; i++)
		device->stages[i].memory = device->stage_memory + i * CUDA_STAGE_BYTES;
	return CUDA_SUCCESS;
}

static CUresult open_context(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	CUresult error = require_attribute(device,
					   CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
					   "it cannot map memory at chosen addresses");

	if (!error)
		error = require_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
					  "its streams cannot write values");
	if (error)
		return error;
	error = d->cuDevicePrimaryCtxRetain(&device->context, device->ordinal);
	if (!error)
		error = nvidia_bind(device);
	if (!error)
		error = d->cuStreamCreate(&device->clear_stream, CU_STREAM_NON_BLOCKING);
	if (!error)
		error = d->cuEventCreate(&device->clear_event, CU_EVENT_DISABLE_TIMING);
	return error ? nvidia_refuse(device, "no context can be created", error) : CUDA_SUCCESS;
}

static bool host_arrays(struct hal_device *device)
{
	device->chunk_count = (uint32_t)(device->config.memory_bytes / RF_CHUNK_BYTES);
	device->chunks = calloc(device->chunk_count + CUDA_SCRATCH_CHUNKS, sizeof *device->chunks);
	device->free_chunks = calloc(device->chunk_count, sizeof *device->free_chunks);
	device->unclean = calloc(device->chunk_count, sizeof *device->unclean);
	device->listed = calloc(device->chunk_count, sizeof *device->listed);
	device->window = calloc(CUDA_HEAP_CHUNKS, sizeof *device->window);
	device->window_blocks = calloc(CUDA_REGIONS, sizeof *device->window_blocks);
	device->blocks = calloc(device->chunk_count / CUDA_BLOCK_CHUNKS + 1,
				sizeof *device->blocks);
	device->block_of = calloc(device->chunk_count, sizeof *device->block_of);
	device->free_slots = calloc(CUDA_STREAMS_MAX, sizeof *device->free_slots);
	return device->chunks && device->free_chunks && device->unclean && device->listed &&
	       device->window && device->window_blocks && device->blocks && device->block_of &&
	       device->free_slots;
}

int nvidia_device_open(const struct hal_config *config, struct hal_device **out)
{
	struct hal_device *device;
	int error;
	const struct nvidia_driver *driver = nvidia_driver(config->text, config->text_bytes);

	if (!driver)
		return CUDA_ERROR_NO_DEVICE;
	if (config->memory_bytes == 0 || config->memory_bytes % RF_CHUNK_BYTES ||
	    config->memory_bytes > RF_HEAP_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	device = calloc(1, sizeof *device);
	if (!device)
		return CUDA_ERROR_OUT_OF_MEMORY;
	device->driver = driver;
	device->config = *config;
	device->next_serial = 1;
	pthread_mutex_init(&device->lock, NULL);
	pthread_cond_init(&device->wake, NULL);
	pthread_mutex_init(&device->pin_lock, NULL);
	pthread_mutex_init(&device->host_lock, NULL);
	pthread_cond_init(&device->pin_wake, NULL);
	pthread_mutex_init(&device->link_lock, NULL);
	pthread_cond_init(&device->link_left, NULL);
	device->pins_last = &device->pins_first;
	error = host_arrays(device) ? choose_gpu(device) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!error)
		error = open_context(device);
	if (!error)
		error = check_memory(device);
	if (!error)
		error = reserve_window(device);
	if (!error)
		error = make_chunks(device);
	if (!error)
		error = make_host_memory(device);
	if (error)
		nvidia_device_close(device);
	else
		*out = device;
	return error;
}

const char *nvidia_device_lost(const struct hal_device *device)
{
	return atomic_load(&device->lost) ? device->lost_text : NULL;
}

/* The driver's compiler generates machine code from PTX for this kind of GPU; cuBLASLt's choice
 * also depends on the GPU's size. */
uint64_t nvidia_arithmetic(const struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	const CUdevice_attribute queried[] = {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
					      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
					      CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT};
	uint64_t number;
	int value = 0;

	d->cuDriverGetVersion(&value);
	number = (uint64_t)value;
	for (uint32_t i = 0; i < sizeof queried / sizeof *queried; i++) {
		value = 0;
		d->cuDeviceGetAttribute(&value, queried[i], device->ordinal);
		number = number * 1000 + (uint64_t)value;
	}
	return number;
}

static void release_blocks(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	uint32_t count = device->chunk_count / CUDA_BLOCK_CHUNKS;

	for (uint32_t i = 0; device->blocks && i < count; i++)
		if (device->blocks[i].used) {
			d->cuMemUnmap(device->block_alias + i * CUDA_BLOCK_BYTES, CUDA_BLOCK_BYTES);
			d->cuMemRelease(device->blocks[i].handle);
		}
	while (device->spare_count)
		d->cuMemRelease(device->spares[--device->spare_count]);
	if (device->block_alias)
		d->cuMemAddressFree(device->block_alias, count * CUDA_BLOCK_BYTES);
}

static void release_outboxes(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;

	for (uint32_t i = 0; i < CUDA_OUTBOXES; i++)
		if (device->outbox_handles[i]) {
			d->cuMemUnmap(device->outboxes + i * CUDA_OUTBOX_BYTES, CUDA_OUTBOX_BYTES);
			d->cuMemRelease(device->outbox_handles[i]);
		}
	if (device->next_outbox)
		d->cuMemRelease(device->next_outbox);
	if (device->outboxes)
		d->cuMemAddressFree(device->outboxes, CUDA_OUTBOXES * CUDA_OUTBOX_BYTES);
}

/* Releases what the driver holds for this device. */
static void release_device(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;

	for (uint32_t i = 0; i < CUDA_REGIONS; i++)
		if (device->window_blocks[i])
			d->cuMemUnmap(RF_DEV_BASE + i * CUDA_BLOCK_BYTES, CUDA_BLOCK_BYTES);
	for (uint32_t i = 0; i < device->window_top; i++)
		if (device->window[i] && !device->window_blocks[i / CUDA_BLOCK_CHUNKS])
			d->cuMemUnmap(RF_DEV_BASE + i * RF_CHUNK_BYTES, RF_CHUNK_BYTES);
	release_blocks(device);
	release_outboxes(device);
	if (device->links)
		d->cuMemAddressFree(device->links, CUDA_LINKS * CUDA_LINK_BYTES);
	for (uint32_t i = 0; i < device->chunks_made; i++) {
		if (!device->chunks[i])
			continue; /* it was in a block */
		d->cuMemUnmap(nvidia_alias(device, i), RF_CHUNK_BYTES);
		d->cuMemRelease(device->chunks[i]);
	}
	if (device->host_window)
		munmap(device->host_window, RF_WINDOW_BYTES - RF_HEAP_BYTES);
	if (device->alias)
		d->cuMemAddressFree(device->alias, all_bytes(device));
	if (device->window_reserved)
		d->cuMemAddressFree(RF_DEV_BASE, RF_HEAP_BYTES);
	if (device->stage_memory)
		d->cuMemFreeHost(device->stage_memory);
	if (device->counters)
		d->cuMemFreeHost(device->counters);
	if (device->clear_event)
		d->cuEventDestroy_v2(device->clear_event);
	if (device->clear_stream)
		d->cuStreamDestroy_v2(device->clear_stream);
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease_v2(device->ordinal);
}

void nvidia_device_close(struct hal_device *device)
{
	if (device->started) {
		pthread_mutex_lock(&device->lock);
		atomic_store(&device->stopping, true);
		pthread_cond_signal(&device->wake);
		pthread_mutex_unlock(&device->lock);
		pthread_join(device->thread, NULL);
	}
	if (atomic_load(&nvidia_open_device) == device)
		atomic_store(&nvidia_open_device, NULL);
	if (device->streams || atomic_load(&device->lost))
		return; /* work may be in progress: the process ends after this */
	if (device->context && !nvidia_bind(device))
		release_device(device);
	pthread_cond_destroy(&device->link_left);
	pthread_mutex_destroy(&device->link_lock);
	pthread_cond_destroy(&device->pin_wake);
	pthread_mutex_destroy(&device->host_lock);
	pthread_mutex_destroy(&device->pin_lock);
	pthread_cond_destroy(&device->wake);
	pthread_mutex_destroy(&device->lock);
	free(device->chunks);
	free(device->free_chunks);
	free(device->unclean);
	free(device->listed);
	free(device->window);
	free(device->window_blocks);
	free(device->blocks);
	free(device->block_of);
	free(device->free_slots);
	free(device);
}

int nvidia_chunk_create(struct hal_device *device, uint32_t *chunk)
{
	if (device->free_count == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*chunk = device->free_chunks[--device->free_count];
	pthread_mutex_lock(&device->lock);
	if (!device->listed[*chunk]) {
		device->listed[*chunk] = true;
		device->unclean[device->unclean_count] = *chunk;
		atomic_fetch_add(&device->unclean_count, 1);
	}
	pthread_mutex_unlock(&device->lock);
	return CUDA_SUCCESS;
}

void nvidia_chunk_destroy(struct hal_device *device, uint32_t chunk)
{
	device->free_chunks[device->free_count++] = chunk;
}

/* ---- scratch memory: contiguous slots ---- */

static uint64_t slots_of(uint64_t bytes)
{
	uint64_t count = (bytes + CUDA_SCRATCH_SLOT_BYTES - 1) / CUDA_SCRATCH_SLOT_BYTES;

	return count < CUDA_SCRATCH_SLOTS ? (1ull << count) - 1 : 0;
}

uint64_t nvidia_scratch_alloc(struct hal_device *device, uint64_t bytes)
{
	uint64_t wanted = bytes <= CUDA_SCRATCH_BYTES ? slots_of(bytes) : 0;

	for (uint32_t at = 0; wanted && at < CUDA_SCRATCH_SLOTS; at++) {
		uint64_t taken = wanted << at;

		if (taken >> at != wanted)
			break; /* beyond the end */
		if (taken & device->scratch_used)
			continue;
		device->scratch_used |= taken;
		return nvidia_alias(device, device->chunk_count) + at * CUDA_SCRATCH_SLOT_BYTES;
	}
	return 0;
}

bool nvidia_scratch_free(struct hal_device *device, uint64_t addr, uint64_t bytes)
{
	uint64_t available = nvidia_scratch_space(device, addr);

	if (available)
		device->scratch_used &= ~(slots_of(bytes) << (CUDA_SCRATCH_BYTES - available) /
								     CUDA_SCRATCH_SLOT_BYTES);
	return available;
}
