/* outbox.c: memory that the GPUs of other proxies read directly: the outboxes of jobs.
 *
 * An outbox is one handle of the driver, which only one job has. The process that made it writes
 * there; others import its descriptor and map it read-only. The driver keeps the memory until the
 * last process has released it. So a reader's data stay as they are, also when the job, or the
 * process, of the writer has ended meanwhile; and no other job gets the memory before.
 *
 * One handle is made in advance, because the device's memory is counted when it is opened. Further
 * jobs get one while the GPU has memory left.
 *
 * Loop's thread. The driver takes some tens of microseconds for each call.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvidia_hal.h"

static void explain(char *text, uint32_t text_bytes, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void explain(char *text, uint32_t text_bytes, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	if (text_bytes)
		vsnprintf(text, text_bytes, format, arguments);
	va_end(arguments);
}

static CUdeviceptr place_of(const struct hal_device *device, uint32_t slot)
{
	return device->outboxes + slot * CUDA_OUTBOX_BYTES;
}

CUresult nvidia_outbox_prepare(struct hal_device *device)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};
	CUresult error = CUDA_SUCCESS;

	if (device->has_peers && !device->next_outbox)
		error = device->driver->cuMemCreate(&device->next_outbox, CUDA_OUTBOX_BYTES, &prop,
						    0);
	if (error)
		device->next_outbox = 0;
	return error;
}

/* Maps a handle, which belongs to the slot if this succeeds. */
static CUresult map(struct hal_device *device, CUmemGenericAllocationHandle handle, bool writable,
		    uint32_t *slot)
{
	const struct nvidia_driver *d = device->driver;
	uint32_t i = 0;
	CUresult error;

	while (i < CUDA_OUTBOXES && device->outbox_handles[i])
		i++;
	if (i == CUDA_OUTBOXES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	error = d->cuMemMap(place_of(device, i), CUDA_OUTBOX_BYTES, 0, handle, 0);
	if (error)
		return error;
	error = nvidia_set_access(device, place_of(device, i), CUDA_OUTBOX_BYTES, writable);
	if (error) {
		d->cuMemUnmap(place_of(device, i), CUDA_OUTBOX_BYTES);
		return error;
	}
	device->outbox_handles[i] = handle;
	*slot = i;
	return CUDA_SUCCESS;
}

void nvidia_outbox_close(struct hal_device *device, const struct hal_outbox *outbox)
{
	const struct nvidia_driver *d = device->driver;
	uint64_t slot = (outbox->addr - device->outboxes) / CUDA_OUTBOX_BYTES;

	if (atomic_load(&device->lost) || nvidia_bind(device))
		return; /* the process ends soon */
	d->cuMemUnmap(outbox->addr, CUDA_OUTBOX_BYTES);
	d->cuMemRelease(device->outbox_handles[slot]);
	device->outbox_handles[slot] = 0;
	nvidia_outbox_prepare(device);
}

int nvidia_outbox_create(struct hal_device *device, struct hal_outbox *out, char *text,
			 uint32_t text_bytes)
{
	const struct nvidia_driver *d = device->driver;
	CUresult error = nvidia_bind(device);
	CUuuid uuid;
	uint32_t slot;
	int fd = -1;

	if (!device->has_peers) {
		explain(text, text_bytes,
			"this proxy sees no other GPU, or its driver has no descriptors of memory");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!error)
		error = d->cuDeviceGetUuid_v2(&uuid, device->ordinal);
	if (!error)
		error = nvidia_outbox_prepare(device);
	if (!error)
		error = d->cuMemExportToShareableHandle(
			&fd, device->next_outbox, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (!error)
		error = map(device, device->next_outbox, true, &slot);
	if (error) {
		if (fd >= 0)
			close(fd);
		explain(text, text_bytes,
			"GPU %d has no memory that other processes can read: %s (%d)",
			device->ordinal, nvidia_error_name(device, error), error);
		return (int)error;
	}
	device->next_outbox = 0;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	*out = (struct hal_outbox){
		.addr = place_of(device, slot), .bytes = CUDA_OUTBOX_BYTES, .fd = fd};
	memcpy(out->gpu, uuid.bytes, sizeof out->gpu);
	nvidia_outbox_prepare(device);
	return CUDA_SUCCESS;
}

/* The number that this process has for a GPU; -1: it does not see it. */
static CUdevice find(const struct hal_device *device, const uint8_t *gpu)
{
	const struct nvidia_driver *d = device->driver;
	int count = 0;
	CUdevice found;
	CUuuid uuid;

	d->cuDeviceGetCount(&count);
	for (int i = 0; i < count; i++)
		if (!d->cuDeviceGet(&found, i) && !d->cuDeviceGetUuid_v2(&uuid, found) &&
		    !memcmp(uuid.bytes, gpu, sizeof uuid.bytes))
			return found;
	return -1;
}

int nvidia_outbox_open(struct hal_device *device, struct hal_outbox *outbox, char *text,
		       uint32_t text_bytes)
{
	const struct nvidia_driver *d = device->driver;
	CUdevice peer = find(device, outbox->gpu);
	CUmemGenericAllocationHandle handle;
	CUresult error;
	uint32_t slot;
	int can = 0;

	if (peer < 0 || outbox->bytes != CUDA_OUTBOX_BYTES) {
		explain(text, text_bytes,
			"its GPU is not visible to the proxy of GPU %d, or its outbox has another "
			"size",
			device->ordinal);
		return CUDA_ERROR_INVALID_DEVICE;
	}
	if (peer != device->ordinal &&
	    (d->cuDeviceCanAccessPeer(&can, device->ordinal, peer) || !can)) {
		explain(text, text_bytes, "GPU %d cannot access the memory of GPU %d",
			device->ordinal, peer);
		return CUDA_ERROR_INVALID_DEVICE;
	}
	error = nvidia_bind(device);
	if (!error)
		error = d->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)outbox->fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (!error && (error = map(device, handle, false, &slot)))
		d->cuMemRelease(handle);
	if (error) {
		explain(text, text_bytes, "GPU %d cannot map the memory of GPU %d: %s (%d)",
			device->ordinal, peer, nvidia_error_name(device, error), error);
		return (int)error;
	}
	outbox->addr = place_of(device, slot);
	return CUDA_SUCCESS;
}
