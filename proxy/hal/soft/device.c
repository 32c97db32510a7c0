/* device.c: the software GPU as a device: its parts are opened, and its table. */
#include <stdlib.h>

#include "soft.h"

int soft_device_open(const struct hal_config *config, struct hal_device **out)
{
	struct hal_device *device = calloc(1, sizeof *device);
	pthread_condattr_t steady;
	int error;

	if (!device)
		return SOFT_OUT_OF_MEMORY;
	device->config = *config;
	if (device->config.speed <= 0.0)
		device->config.speed = 1.0;
	device->memfd = -1;
	pthread_mutex_init(&device->lock, NULL);
	pthread_cond_init(&device->wake, NULL);
	pthread_cond_init(&device->helped, NULL);
	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(&device->starved, &steady);
	pthread_condattr_destroy(&steady);
	error = soft_fault_install();
	if (!error)
		error = soft_memory_open(device);
	if (!error)
		error = soft_whole_open(&device->whole);
	if (!error)
		error = soft_workers_start(device);
	if (error)
		soft_device_close(device);
	else
		*out = device;
	return error;
}

/* The same on every machine. */
uint64_t soft_arithmetic(const struct hal_device *device)
{
	(void)device;
	return 0;
}

void soft_device_close(struct hal_device *device)
{
	soft_workers_stop(device);
	soft_whole_close(&device->whole);
	soft_memory_close(device);
	pthread_cond_destroy(&device->helped);
	pthread_cond_destroy(&device->starved);
	pthread_cond_destroy(&device->wake);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

__attribute__((visibility("default"))) const struct hal hal_soft = {
	.type = "soft",
	.device_open = soft_device_open,
	.device_close = soft_device_close,
	.arithmetic = soft_arithmetic,
	.chunk_create = soft_chunk_create,
	.chunk_create_unclean = soft_chunk_create_unclean,
	.chunk_destroy = soft_chunk_destroy,
	.space_create = soft_space_create,
	.space_destroy = soft_space_destroy,
	.space_map = soft_space_map,
	.space_unmap = soft_space_unmap,
	.space_protect = soft_space_protect,
	.space_own = soft_space_own,
	.space_copied = soft_space_copied,
	.space_map_host = soft_space_map_host,
	.space_error = soft_space_error,
	.space_cancel = soft_space_cancel,
	.stream_create = soft_stream_create,
	.stream_destroy = soft_stream_destroy,
	.available = soft_available,
	.submit = soft_submit,
	.completed = soft_completed,
	.notify_at = soft_notify_at,
};
