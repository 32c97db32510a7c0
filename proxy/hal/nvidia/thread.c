/* thread.c: the device thread, which serves all streams.
 *
 * It issues up to CUDA_STREAM_DEPTH works of each stream and then polls the streams' counters,
 * which the device itself writes (nvidia_report): continuously while they change, every NAP_NS
 * while they do not, and not at all while no work is in progress. No thread waits for the device.
 */
#include <stdlib.h>
#include <time.h>

#include "nvidia_hal.h"

#define NAP_NS 20000
#define SPINS 200u      /* polls without a nap */
#define QUERY_EVERY 64u /* polls without progress before the context is checked */
#define REPORT_AT 256u  /* polls without progress before all works are reported, awaited or not */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void take_new_streams(struct hal_device *device)
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

	if (device->alone == s)
		device->alone = NULL;
	if (!atomic_load(&device->lost))
		device->driver->cuStreamDestroy_v2(s->stream);
	for (uint32_t i = 0; i < CUDA_QUEUE_WORKS; i++)
		free(s->items[i].params);
	pthread_mutex_lock(&device->lock);
	device->free_slots[device->free_slot_count++] = s->slot;
	pthread_mutex_unlock(&device->lock);
	free(s);
}

static void free_destroyed(struct hal_device *device)
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
		free((void *)s->settled);
		free((void *)s->chunks);
		free(s);
	}
}

/* Reports awaited works that were issued before that was known. */
static void report_awaited(struct hal_stream *s)
{
	uint64_t last = atomic_load(&s->awaited_last);

	if (!last || (s->reported < last && atomic_load(&s->awaited_first) <= s->issued))
		nvidia_report(s);
}

/* True if work of the stream is in progress. Sets `moved` if work was issued or completed. */
static bool serve_stream(struct hal_stream *s, bool *moved)
{
	uint64_t submitted = atomic_load(&s->submitted), done = nvidia_completed(s);

	while (s->issued < submitted && s->issued - done < CUDA_STREAM_DEPTH &&
	       !atomic_load(&s->device->lost)) {
		if (!nvidia_issue(s, &s->items[s->issued % CUDA_QUEUE_WORKS]))
			break;
		*moved = true;
	}
	report_awaited(s);
	done = nvidia_completed(s);
	if (done != s->seen) {
		s->seen = done;
		*moved = true;
		if (done >= atomic_load(&s->notify_at))
			nvidia_ring(s->device);
	}
	return done < submitted;
}

/* Checks that the context is alive, and that cancelled kernels end in time; running kernels belong
 * to the space that the window shows. */
static void check_context(struct hal_device *device)
{
	const struct hal_space *space = device->window_space;
	CUresult error = device->driver->cuStreamQuery(device->clear_stream);
	uint64_t cancelled;

	if (error && error != CUDA_ERROR_NOT_READY) {
		nvidia_lose(device, (int)error, "a kernel failed: %s",
			    nvidia_error_name(device, error));
		return;
	}
	if (!device->window_serial || !nvidia_kernels_run(device))
		return;
	cancelled = atomic_load(&space->cancelled_ns);
	if (cancelled && now_ns() - cancelled > CUDA_CANCEL_NS)
		nvidia_lose(device, CUDA_ERROR_LAUNCH_FAILED,
			    "a kernel did not end within 10 s after it was cancelled");
}

static bool pins_have_failed(struct hal_device *device)
{
	return atomic_load(&device->pins_failed) && !atomic_load(&device->lost);
}

/* A context that has ended is the more likely reason. */
static void check_pins(struct hal_device *device)
{
	CUresult error = (CUresult)atomic_load(&device->pins_failed);

	check_context(device);
	nvidia_lose(device, (int)error, "pinned memory cannot be taken back from the driver: %s",
		    nvidia_error_name(device, error));
}

/* Sleeps until there is work. */
static void sleep_until_called(struct hal_device *device)
{
	pthread_mutex_lock(&device->lock);
	atomic_store(&device->sleeping, true);
	for (;;) {
		bool called = atomic_load(&device->stopping) || atomic_load(&device->fresh) ||
			      atomic_load(&device->dead_spaces) || pins_have_failed(device);

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
static bool serve_all(struct hal_device *device, bool *moved)
{
	bool busy = false;

	*moved = false;
	take_new_streams(device);
	free_destroyed(device);
	for (struct hal_stream *s = device->streams; s; s = s->next)
		busy |= serve_stream(s, moved);
	return busy;
}

void *nvidia_thread_main(void *arg)
{
	struct hal_device *device = arg;
	uint32_t quiet = 0;
	bool moved;

	nvidia_bind(device);
	while (!atomic_load(&device->stopping)) {
		if (pins_have_failed(device))
			check_pins(device);
		if (!serve_all(device, &moved)) {
			sleep_until_called(device);
			continue;
		}
		quiet = moved ? 0 : quiet + 1;
		if (quiet % QUERY_EVERY == QUERY_EVERY - 1)
			check_context(device);
		for (struct hal_stream *s = device->streams; s && quiet == REPORT_AT; s = s->next)
			nvidia_report(s);
		if (quiet > SPINS)
			nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	serve_all(device, &moved); /* streams that were destroyed last */
	if (!atomic_load(&device->lost)) {
		nvidia_gemm_close(device);
		nvidia_calls_close(device);
	}
	return NULL;
}
