/* hal.c: the table of the NVIDIA HAL, and the order in which a device is opened. */
#include "nvidia_hal.h"

static void device_close(struct hal_device *device)
{
	if (!nvidia_links_end(device))
		return;           /* the process ends after this */
	nvidia_pins_stop(device); /* the device thread frees what that leaves */
	nvidia_device_close(device);
}

static int device_open(const struct hal_config *config, struct hal_device **out)
{
	struct hal_device *device;
	int error = nvidia_device_open(config, &device);

	if (error)
		return error;
	nvidia_outbox_prepare(device); /* without it collectives go through host memory */
	error = nvidia_sums_load(device);
	if (error)
		nvidia_refuse(device, "the kernels of collectives cannot be loaded", error);
	if (!error)
		error = nvidia_pins_start(device);
	if (!error && pthread_create(&device->thread, NULL, nvidia_thread_main, device))
		error = CUDA_ERROR_OUT_OF_MEMORY;
	device->started = !error;
	device->config.text = NULL; /* the caller's text is only valid during this call */
	if (error)
		device_close(device);
	else
		atomic_store(&nvidia_open_device, *out = device);
	return error;
}

__attribute__((visibility("default"))) const struct hal hal_nvidia = {
	.type = "nvidia",
	.maps_beneath = true,
	.device_open = device_open,
	.device_close = device_close,
	.device_lost = nvidia_device_lost,
	.arithmetic = nvidia_arithmetic,
	.product_library = nvidia_product_library,
	.chunk_create = nvidia_chunk_create,
	.chunk_destroy = nvidia_chunk_destroy,
	.scratch_alloc = nvidia_scratch_alloc,
	.scratch_free = nvidia_scratch_free,
	.outbox_create = nvidia_outbox_create,
	.outbox_open = nvidia_outbox_open,
	.outbox_close = nvidia_outbox_close,
	.link_open = nvidia_link_open,
	.link_state = nvidia_link_state,
	.link_name = nvidia_link_name,
	.link_connect = nvidia_link_connect,
	.link_sum = nvidia_link_sum,
	.link_cancel = nvidia_link_cancel,
	.link_close = nvidia_link_close,
	.space_create = nvidia_space_create,
	.space_destroy = nvidia_space_destroy,
	.space_map = nvidia_space_map,
	.space_unmap = nvidia_space_unmap,
	.space_protect = nvidia_space_protect,
	.space_copied = nvidia_space_copied,
	.space_map_host = nvidia_space_map_host,
	.space_pin = nvidia_space_pin,
	.space_pinned = nvidia_space_pinned,
	.space_error = nvidia_space_error,
	.space_cancel = nvidia_space_cancel,
	.stream_create = nvidia_stream_create,
	.stream_destroy = nvidia_stream_destroy,
	.available = nvidia_available,
	.submit = nvidia_submit,
	.completed = nvidia_completed,
	.notify_at = nvidia_notify_at,
	.await_works = nvidia_await,
	.tensor_map = nvidia_tensor_map,
	.clusters = nvidia_clusters,
};
