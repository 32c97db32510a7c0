/* queue.c: the streams' rings of works, and the device thread that serves them.
 *
 * submit only copies the work into the stream's ring. The device thread issues up to
 * CUDA_STREAM_DEPTH works of each stream and then polls the streams' counters, which the device
 * itself writes: continuously while they change, every NAP_NS while they do not, and not at all
 * while no work is in progress. A completion therefore needs no driver call, and no thread waits
 * for the device.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_hal.h"
#include "reduce.h"

#define NAP_NS 20000
#define SPINS 200u      /* polls without a nap */
#define QUERY_EVERY 64u /* polls without progress before the context is checked */
#define GLOBALS_BYTES 8u

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void cuda_ring(const struct hal_device *device)
{
	if (device->config.ring)
		device->config.ring(device->config.ring_arg);
}

/* The caller has published the work before: either the device thread sees it, or this sees the
 * sleep. */
void cuda_wake(struct hal_device *device)
{
	if (!atomic_load(&device->sleeping))
		return;
	pthread_mutex_lock(&device->lock);
	pthread_cond_signal(&device->wake);
	pthread_mutex_unlock(&device->lock);
}

void cuda_lose(struct hal_device *device, int error, const char *format, ...)
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
		 perhaps ? " (perhaps a write to read-only memory that was not foreseen)" : "");
	atomic_store(&device->lost_serial, device->window_serial);
	atomic_store(&device->lost, error);
	cuda_ring(device);
}

/* ---- called by the loop's thread ---- */

int cuda_stream_create(struct hal_device *device, struct hal_stream **out)
{
	struct hal_stream *s = calloc(1, sizeof *s);
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;

	if (!s || !device->free_slot_count)
		goto fail;
	s->device = device;
	error = cuda_bind(device);
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

void cuda_stream_destroy(struct hal_stream *s)
{
	struct hal_device *device = s->device;

	atomic_store(&s->doomed, true); /* from here on the device thread owns s */
	cuda_wake(device);
}

uint64_t cuda_completed(const struct hal_stream *s)
{
	if (atomic_load(&s->device->lost))
		return atomic_load(&s->submitted);
	return atomic_load_explicit(s->counter, memory_order_acquire);
}

uint32_t cuda_room(struct hal_stream *s)
{
	return CUDA_QUEUE_WORKS - (uint32_t)(atomic_load(&s->submitted) - cuda_completed(s));
}

void cuda_notify_at(struct hal_stream *s, uint64_t number) { atomic_store(&s->notify_at, number); }

static bool acceptable(const struct hal_work *w)
{
	switch (w->kind) {
	case HAL_KERNEL: return w->kernel.space && w->kernel.function;
	case HAL_COPY: return true;
	case HAL_FILL: return w->fill.element == 1 || w->fill.element == 2 || w->fill.element == 4;
	case HAL_REDUCE:
	case HAL_SCALE: return hal_sum_acceptable(w);
	case HAL_GEMM: return w->gemm.space && cuda_gemm_acceptable(w->gemm.call);
	case HAL_CHECKSUM: return true;
	}
	return false;
}

static bool make_room(struct cuda_item *item, uint32_t bytes)
{
	if (bytes <= item->params_room)
		return true;
	free(item->params);
	item->params = malloc(bytes);
	item->params_room = item->params ? bytes : 0;
	return item->params;
}

/* Copies the program's parameters, followed by the address of its module's globals (rewrite.py). */
static bool copy_params(struct cuda_item *item)
{
	const struct hal_function *f = item->work.kernel.function;
	uint32_t bytes = item->work.kernel.param_bytes, wanted = bytes;

	if (f->globals_at != CUDA_NO_GLOBALS)
		wanted = f->globals_at + GLOBALS_BYTES;
	if (bytes > wanted || !make_room(item, wanted))
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

static bool copy_call(struct cuda_item *item)
{
	if (!make_room(item, sizeof *item->work.gemm.call))
		return false;
	memcpy(item->params, item->work.gemm.call, sizeof *item->work.gemm.call);
	item->work.gemm.call = (const void *)item->params;
	return true;
}

uint64_t cuda_submit(struct hal_stream *s, const struct hal_work *work)
{
	uint64_t number = atomic_load(&s->submitted) + 1;
	struct cuda_item *item = &s->items[(number - 1) % CUDA_QUEUE_WORKS];

	if (!cuda_room(s) || !acceptable(work))
		return 0;
	item->work = *work;
	if ((work->kind == HAL_KERNEL && !copy_params(item)) ||
	    (work->kind == HAL_GEMM && !copy_call(item)))
		return 0;
	atomic_store(&s->submitted, number);
	if (atomic_load(&s->device->lost))
		cuda_ring(s->device);
	else
		cuda_wake(s->device);
	return number;
}

/* ---- the device thread ---- */

bool cuda_kernels_run(const struct hal_device *device)
{
	for (const struct hal_stream *s = device->streams; s; s = s->next)
		if (cuda_completed(s) < s->last_kernel)
			return true;
	return false;
}

/* Clears all listed chunks on a separate stream, for which `s` then waits. */
CUresult cuda_clear(struct hal_device *device, struct hal_stream *s)
{
	const struct cuda_driver *d = device->driver;
	uint32_t count = atomic_load(&device->unclean_count);
	CUresult error = CUDA_SUCCESS;

	if (count) {
		pthread_mutex_lock(&device->lock);
		count = device->unclean_count;
		for (uint32_t i = 0; !error && i < count; i++) {
			device->listed[device->unclean[i]] = false;
			error = d->cuMemsetD2D8Async(cuda_alias(device, device->unclean[i]),
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

static void adopt(struct hal_device *device)
{
	struct hal_stream *s = atomic_exchange(&device->fresh, NULL);

	while (s) {
		struct hal_stream *next = s->next;

		s->next = device->streams;
		device->streams = s;
		s = next;
	}
}

static void stream_free(struct hal_stream *s)
{
	struct hal_device *device = s->device;

	if (!atomic_load(&device->lost))
		device->driver->cuStreamDestroy_v2(s->stream);
	for (uint32_t i = 0; i < CUDA_QUEUE_WORKS; i++)
		free(s->items[i].params);
	pthread_mutex_lock(&device->lock);
	device->free_slots[device->free_slot_count++] = s->slot;
	pthread_mutex_unlock(&device->lock);
	free(s);
}

static void bury(struct hal_device *device)
{
	for (struct hal_stream **at = &device->streams; *at;) {
		struct hal_stream *s = *at;

		if (!atomic_load(&s->doomed)) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		stream_free(s);
	}
	for (struct hal_space *s = atomic_exchange(&device->dead_spaces, NULL), *next; s;
	     s = next) {
		next = s->next;
		if (device->window_serial == s->serial)
			device->window_serial = 0;
		free(s->chunks);
		free(s);
	}
}

/* True if work of the stream is in progress. Sets `moved` if work was issued or completed. */
static bool serve(struct hal_stream *s, bool *moved)
{
	uint64_t submitted = atomic_load(&s->submitted), done = cuda_completed(s);

	while (s->issued < submitted && s->issued - done < CUDA_STREAM_DEPTH &&
	       !atomic_load(&s->device->lost)) {
		if (!cuda_issue(s, &s->items[s->issued % CUDA_QUEUE_WORKS]))
			break;
		*moved = true;
	}
	done = cuda_completed(s);
	if (done != s->seen) {
		s->seen = done;
		*moved = true;
		if (done >= atomic_load(&s->notify_at))
			cuda_ring(s->device);
	}
	return done < submitted;
}

/* Checks that the context is alive, and that cancelled kernels end in time; running kernels belong
 * to the space that the window shows. */
static void look_after(struct hal_device *device)
{
	const struct hal_space *space = device->window_space;
	CUresult error = device->driver->cuStreamQuery(device->clear_stream);
	uint64_t cancelled;

	if (error && error != CUDA_ERROR_NOT_READY) {
		cuda_lose(device, (int)error, "a kernel failed: %s",
			  cuda_error_name(device, error));
		return;
	}
	if (!device->window_serial || !cuda_kernels_run(device))
		return;
	cancelled = atomic_load(&space->cancelled_ns);
	if (cancelled && now_ns() - cancelled > CUDA_CANCEL_NS)
		cuda_lose(device, CUDA_ERROR_LAUNCH_FAILED,
			  "a kernel did not end within 10 s after it was cancelled");
}

/* Sleeps until there is work. */
static void sleep_until_called(struct hal_device *device)
{
	pthread_mutex_lock(&device->lock);
	atomic_store(&device->sleeping, true);
	for (;;) {
		bool called = atomic_load(&device->stopping) || atomic_load(&device->fresh) ||
			      atomic_load(&device->dead_spaces);

		for (struct hal_stream *s = device->streams; s && !called; s = s->next)
			called = atomic_load(&s->doomed) || atomic_load(&s->submitted) > s->seen;
		if (called)
			break;
		pthread_cond_wait(&device->wake, &device->lock);
	}
	atomic_store(&device->sleeping, false);
	pthread_mutex_unlock(&device->lock);
}

/* Serves all streams once; true if any work is in progress. */
static bool turn(struct hal_device *device, bool *moved)
{
	bool busy = false;

	*moved = false;
	adopt(device);
	bury(device);
	for (struct hal_stream *s = device->streams; s; s = s->next)
		busy |= serve(s, moved);
	return busy;
}

void *cuda_thread_main(void *arg)
{
	struct hal_device *device = arg;
	uint32_t quiet = 0;
	bool moved;

	cuda_bind(device);
	while (!atomic_load(&device->stopping)) {
		if (!turn(device, &moved)) {
			sleep_until_called(device);
			continue;
		}
		quiet = moved ? 0 : quiet + 1;
		if (quiet % QUERY_EVERY == QUERY_EVERY - 1)
			look_after(device);
		if (quiet > SPINS)
			nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	turn(device, &moved); /* streams that were destroyed last */
	if (!atomic_load(&device->lost))
		cuda_gemm_close(device);
	return NULL;
}

__attribute__((visibility("default"))) const struct hal hal_nvidia = {
	.type = "nvidia",
	.device_open = cuda_device_open,
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
