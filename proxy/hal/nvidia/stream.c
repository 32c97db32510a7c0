/* stream.c: the streams' rings of works. The loop's thread submits a work, which only copies it
 * into the stream's ring; the device thread (thread.c) takes it out.
 */
#include <stdlib.h>
#include <string.h>

#include "nvidia_hal.h"
#include "reduce.h"

#define GLOBALS_BYTES 8u

/* ---- called by the loop's thread ---- */

int nvidia_stream_create(struct hal_device *device, struct hal_stream **out)
{
	struct hal_stream *s = calloc(1, sizeof *s);
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;

	if (!s || !device->free_slot_count)
		goto fail;
	s->device = device;
	error = nvidia_bind(device);
	if (!error)
		error = device->driver->cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING);
	if (error)
		goto fail;
	pthread_mutex_lock(&device->lock);
	s->slot = device->free_slots[--device->free_slot_count];
	pthread_mutex_unlock(&device->lock);
	s->counter = &device->counters[s->slot];
	atomic_store(s->counter, 0);
	s->next = atomic_load(&device->fresh);
	while (!atomic_compare_exchange_weak(&device->fresh, &s->next, s))
		;
	*out = s;
	return CUDA_SUCCESS;
fail:
	free(s);
	return (int)error;
}

void nvidia_stream_destroy(struct hal_stream *s)
{
	struct hal_device *device = s->device;

	atomic_store(&s->doomed, true); /* from here on the device thread owns s */
	nvidia_wake(device);
}

uint64_t nvidia_completed(const struct hal_stream *s)
{
	if (atomic_load(&s->device->lost))
		return atomic_load(&s->submitted);
	return atomic_load_explicit(s->counter, memory_order_acquire);
}

uint32_t nvidia_available(struct hal_stream *s)
{
	return CUDA_QUEUE_WORKS - (uint32_t)(atomic_load(&s->submitted) - nvidia_completed(s));
}

void nvidia_notify_at(struct hal_stream *s, uint64_t number)
{
	atomic_store(&s->notify_at, number);
}

/* Until both are set, the device thread may report a few works more, or a moment later. */
void nvidia_await(struct hal_stream *s, uint64_t first, uint64_t last)
{
	atomic_store(&s->awaited_first, first);
	atomic_store(&s->awaited_last, last);
}

static bool is_acceptable(const struct hal_work *w)
{
	switch (w->kind) {
	case HAL_KERNEL: return w->kernel.space && w->kernel.function;
	case HAL_COPY: return true;
	case HAL_FILL: return w->fill.element == 1 || w->fill.element == 2 || w->fill.element == 4;
	case HAL_REDUCE:
	case HAL_SCALE: return hal_sum_acceptable(w);
	case HAL_GEMM: return w->gemm.space && nvidia_gemm_acceptable(w->gemm.call);
	case HAL_CHECKSUM: return true;
	}
	return false;
}

static bool grow_params(struct nvidia_item *item, uint32_t bytes)
{
	if (bytes <= item->params_capacity)
		return true;
	free(item->params);
	item->params = malloc(bytes);
	item->params_capacity = item->params ? bytes : 0;
	return item->params;
}

/* Copies the program's parameters, followed by the address of its module's globals (rewrite.py). */
static bool copy_params(struct nvidia_item *item)
{
	const struct hal_function *f = item->work.kernel.function;
	uint32_t bytes = item->work.kernel.param_bytes, wanted = bytes;

	if (f->globals_at != CUDA_NO_GLOBALS)
		wanted = f->globals_at + GLOBALS_BYTES;
	if (bytes > wanted || !grow_params(item, wanted))
		return false;
	if (wanted)
		memset(item->params, 0, wanted);
	if (bytes)
		memcpy(item->params, item->work.kernel.params, bytes);
	if (f->globals_at != CUDA_NO_GLOBALS)
		memcpy(item->params + f->globals_at, &item->work.kernel.globals_addr,
		       GLOBALS_BYTES);
	item->params_bytes = wanted;
	return true;
}

static bool copy_call(struct nvidia_item *item)
{
	if (!grow_params(item, sizeof *item->work.gemm.call))
		return false;
	memcpy(item->params, item->work.gemm.call, sizeof *item->work.gemm.call);
	item->work.gemm.call = (const void *)item->params;
	return true;
}

uint64_t nvidia_submit(struct hal_stream *s, const struct hal_work *work)
{
	uint64_t number = atomic_load(&s->submitted) + 1;
	struct nvidia_item *item = &s->items[(number - 1) % CUDA_QUEUE_WORKS];

	if (!nvidia_available(s) || !is_acceptable(work))
		return 0;
	item->work = *work;
	if ((work->kind == HAL_KERNEL && !copy_params(item)) ||
	    (work->kind == HAL_GEMM && !copy_call(item)))
		return 0;
	atomic_store(&s->submitted, number);
	if (atomic_load(&s->device->lost))
		nvidia_ring(s->device);
	else
		nvidia_wake(s->device);
	return number;
}

/* ---- called by the device thread ---- */

bool nvidia_kernels_run(const struct hal_device *device)
{
	for (const struct hal_stream *s = device->streams; s; s = s->next)
		if (nvidia_completed(s) < s->last_kernel)
			return true;
	return false;
}

/* Clears all listed chunks on a separate stream, for which `s` then waits. */
CUresult nvidia_clear(struct hal_device *device, struct hal_stream *s)
{
	const struct nvidia_driver *d = device->driver;
	uint32_t count = atomic_load(&device->unclean_count);
	CUresult error = CUDA_SUCCESS;

	if (count) {
		pthread_mutex_lock(&device->lock);
		count = device->unclean_count;
		for (uint32_t i = 0; !error && i < count; i++) {
			device->listed[device->unclean[i]] = false;
			error = d->cuMemsetD2D8Async(nvidia_chunk_at(device, device->unclean[i]),
						     RF_CHUNK_BYTES, 0, RF_CHUNK_BYTES, 1,
						     device->clear_stream);
		}
		atomic_store(&device->unclean_count, 0);
		pthread_mutex_unlock(&device->lock);
		if (!error)
			error = d->cuEventRecord(device->clear_event, device->clear_stream);
		device->cleared++;
	}
	if (!error && s->cleared != device->cleared) {
		error = d->cuStreamWaitEvent(s->stream, device->clear_event, 0);
		s->cleared = device->cleared;
	}
	return error;
}
