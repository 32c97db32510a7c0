/* hal.c: the table of the NVIDIA HAL, and the order in which a device is opened. */
#include "cuda_hal.h"

static int device_open(const struct hal_config *config, struct hal_device **out)
{
	struct hal_device *device;
	int error = cuda_device_open(config, &device);

	if (error)
		return error;
	error = cuda_sums_load(device);
	if (error)
		cuda_refuse(device, "the kernels of collectives cannot be loaded", error);
	if (!error && pthread_create(&device->thread, NULL, cuda_thread_main, device))
		error = CUDA_ERROR_OUT_OF_MEMORY;
	device->started = !error;
	device->config.text = NULL; /* the caller's text is only valid during this call */
	if (error)
		cuda_device_close(device);
	else
		atomic_store(&cuda_open_device, *out = device);
	return error;
}

__attribute__((visibility("default"))) const struct hal hal_nvidia = {
	.type = "nvidia",
	.device_open = device_open,
	.device_close = cuda_device_close,
	.device_lost = cuda_device_lost,
	.arithmetic = cuda_arithmetic,
	.chunk_create = cuda_chunk_create,
	.chunk_destroy = cuda_chunk_destroy,
	.scratch_alloc = cuda_scratch_alloc,
	.scratch_free = cuda_scratch_free,
	.space_create = cuda_space_create,
	.space_destroy = cuda_space_destroy,
	.space_map = cuda_space_map,
	.space_unmap = cuda_space_unmap,
	.space_protect = cuda_space_protect,
	.space_copied = cuda_space_copied,
	.space_map_host = cuda_space_map_host,
	.space_error = cuda_space_error,
	.space_cancel = cuda_space_cancel,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.room = cuda_room,
	.submit = cuda_submit,
	.completed = cuda_completed,
	.notify_at = cuda_notify_at,
};
