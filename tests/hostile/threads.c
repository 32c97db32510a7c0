/* threads.c: the proxy's threads under the thread sanitizer: calls into the loop from several
 * threads at once, and a device with several workers that is fed and drained.
 *
 * No rank is attached: the sanitizer has no room for a rank's window of addresses.
 */
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

#define CALLERS 4
#define ROUNDS 2000u
#define STREAMS 8u

static void *caller(void *arg)
{
	static _Atomic uint64_t next_job = 1;
	static const uint32_t devices[1];
	struct proxy *p = arg;
	struct proxy_status status;
	struct proxy_job_status job_status;
	char error[512];
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t job = next_job++;
		if (proxy_job_open(p, job, 1, 0, 1, 1, devices, -1, error, sizeof error))
			abort();
		proxy_job_barrier(p, job, 1);
		proxy_job_fail(p, job, "ends");
		if (proxy_job_status(p, job, &job_status))
			abort();
		proxy_status(p, &status);
		if (proxy_job_close(p, job))
			abort();
	}
	return NULL;
}

static void serve(void)
{
	struct proxy_config config = {.hal = "soft", .memory_bytes = 4 << 20, .workers = 2,
				      .cc_major = 8, .speed = 1.0};
	struct proxy_event event;
	pthread_t threads[CALLERS];
	char error[512];
	struct proxy *p = proxy_open(&config, error, sizeof error);
	if (!p)
		abort();
	for (int i = 0; i < CALLERS; i++)
		pthread_create(&threads[i], NULL, caller, p);
	for (uint32_t seen = 0; seen < CALLERS * ROUNDS / 100; )
		seen += (uint32_t)proxy_next_event(p, &event);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(threads[i], NULL);
	proxy_close(p);
}

static void nothing(void *arg) { (void)arg; }

static void feed(void)
{
	struct hal_config config = {.memory_bytes = 4 << 20, .workers = 3, .cc_major = 8,
				    .speed = 1.0, .ring = nothing};
	struct hal_device *device;
	struct hal_stream *streams[STREAMS];
	static uint32_t numbers[STREAMS][64];
	if (hal_soft.device_open(&config, &device))
		abort();
	for (uint32_t s = 0; s < STREAMS; s++)
		hal_soft.stream_create(device, &streams[s]);
	for (uint32_t i = 0; i < ROUNDS; i++)
		for (uint32_t s = 0; s < STREAMS; s++) {
			struct hal_work w = {.kind = HAL_REDUCE};
			w.reduce.dst = numbers[s];
			w.reduce.a = w.reduce.b = numbers[s];
			w.reduce.count = 64;
			w.reduce.dtype = 3; /* uint32 */
			while (!hal_soft.room(streams[s]))
				;
			if (!hal_soft.submit(streams[s], &w))
				abort();
		}
	for (uint32_t s = 0; s < STREAMS; s++) {
		while (hal_soft.completed(streams[s]) < ROUNDS)
			;
		hal_soft.stream_destroy(streams[s]);
	}
	hal_soft.device_close(device);
}

int main(void)
{
	serve();
	feed();
	return 0;
}
