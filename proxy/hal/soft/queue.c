/* queue.c: in-order queues, and the workers that serve them.
 *
 * A stream with work is either in the run queue or served by one worker, never both; that keeps it
 * in order. After each work, and between parts of a long matrix product, a worker puts its stream
 * at the end of the run queue if another stream waits, so streams share the workers fairly. The
 * lock guards the run queue; while a worker serves a stream, submit and the worker share only its
 * counters. submit copies the work and returns. A worker without work sleeps on the condition
 * variable, or helps with a launch that is offered (work.c).
 *
 * A kernel may wait for what another stream will do, and such kernels may occupy all workers.
 * Therefore, if a stream has waited for long and no worker has taken any stream meanwhile, a spare
 * worker takes it. One spare worker observes the run queue, ten times a second while there is work;
 * before it serves a stream it lets the next spare worker observe, up to a maximum number.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "soft.h"
#include "spin.h"

#define WORKER_SPIN_NS 250000u /* for which a worker spins without work */
#define LOOKS 8                /* at `submitted`, before a worker releases a stream */
#define SPARES_MAX 8u
#define STARVED_NS 100000000u /* between two observations by a spare worker */

static void enqueue_stream(struct hal_device *device, struct hal_stream *stream)
{
	stream->next = NULL;
	if (device->last)
		device->last->next = stream;
	else
		device->first = stream;
	device->last = stream;
	if (device->rests) {
		device->rests = false;
		pthread_cond_signal(&device->starved);
	}
}

/* Called with the lock held, when a stream waits. */
static struct hal_stream *dequeue_stream(struct hal_device *device)
{
	struct hal_stream *stream = device->first;

	atomic_fetch_add(&stream->servers, 1);
	device->taken++;
	device->first = stream->next;
	if (!device->first)
		device->last = NULL;
	return stream;
}

/* Returns the next stream with work; else a launch to help with; neither when the device closes. */
static struct hal_stream *wait_for_work(struct hal_device *device, struct soft_share **share,
					struct spin *spin)
{
	struct hal_stream *stream;

	*share = NULL;
	while (!atomic_load_explicit(&device->first, memory_order_relaxed) &&
	       !atomic_load_explicit(&device->share, memory_order_relaxed) &&
	       spin_on(spin, WORKER_SPIN_NS))
		spin_pause();
	spin_reset(spin);
	pthread_mutex_lock(&device->lock);
	while (!device->first && !device->stopping &&
	       !(device->share && atomic_load(&device->share->next) < device->share->blocks))
		pthread_cond_wait(&device->wake, &device->lock);
	stream = device->first;
	if (stream) {
		(void)dequeue_stream(device);
	} else if (device->share) {
		*share = device->share;
		device->share->helpers++;
	}
	pthread_mutex_unlock(&device->lock);
	return stream;
}

/* Puts the stream at the end of the run queue. */
static void enqueue_again(struct hal_device *device, struct hal_stream *stream)
{
	pthread_mutex_lock(&device->lock);
	enqueue_stream(device, stream);
	pthread_mutex_unlock(&device->lock);
}

/* Counts one more kernel or product in its space (`change` 1), or one less. */
static void count_running(const struct hal_work *work, int change)
{
#ifdef SOFT_CHECKED
	if (work->kind == HAL_KERNEL)
		atomic_fetch_add(&work->kernel.space->running, (uint32_t)change);
	if (work->kind == HAL_GEMM)
		atomic_fetch_add(&work->gemm.space->running, (uint32_t)change);
#else
	(void)work;
	(void)change;
#endif
}

static void complete_work(struct hal_device *device, struct hal_stream *stream,
			  const struct soft_item *item, uint64_t done)
{
	bool loud = soft_work_failed(&item->work);

	count_running(&item->work, -1);
	/* Either the loop sees this completion after its notify_at, or the worker sees its
	 * number. */
	atomic_store(&stream->completed, done);
	loud |= done >= atomic_load(&stream->notify_at);
	if (loud && device->config.ring)
		device->config.ring(device->config.ring_arg);
}

/* A worker that has done all known work of a stream releases it. True: more work was submitted, and
 * the worker has taken the stream again. */
static bool continue_stream(struct hal_stream *stream)
{
	do {
		/* Either this worker sees the next work, or its submit sees that no worker has the
		 * stream. */
		atomic_store(&stream->active, false);
		if (atomic_load(&stream->completed) == atomic_load(&stream->submitted) ||
		    atomic_exchange(&stream->active, true))
			return false;
		/* Another worker may have had it meanwhile, and done all work. */
	} while (atomic_load(&stream->completed) == atomic_load(&stream->submitted));
	return true;
}

/* Prefetches the next work, which another core wrote, while this one runs. */
static void prefetch_item(const struct soft_item *item)
{
	__builtin_prefetch(item);
	__builtin_prefetch((const uint8_t *)item + 64);
	__builtin_prefetch((const uint8_t *)item + 128);
}

/* Polls a few times, because releasing a stream and taking it again costs more. */
static uint64_t await_more(struct hal_stream *stream, uint64_t done)
{
	uint64_t known = atomic_load(&stream->submitted);

	for (int n = 0; known == done && n < LOOKS &&
			!atomic_load_explicit(&stream->device->first, memory_order_relaxed);
	     n++) {
		spin_pause();
		known = atomic_load(&stream->submitted);
	}
	return known;
}

/* Runs work after work while no other stream waits for a worker. `submitted` is read only when all
 * known work is done, because the submitter is writing it. */
static void serve_stream(struct soft_worker *worker, struct hal_stream *stream)
{
	struct hal_device *device = worker->device;
	uint64_t done = atomic_load(&stream->completed), known = atomic_load(&stream->submitted);

	for (;;) {
		struct soft_item *item = &stream->items[done % SOFT_QUEUE_WORKS];

		if (done + 1 < known)
			prefetch_item(&stream->items[(done + 1) % SOFT_QUEUE_WORKS]);
		if (soft_work_run(worker, item))
			complete_work(device, stream, item, ++done);
		if (done == known)
			known = await_more(stream, done);
		if (done == known) {
			if (!continue_stream(stream))
				break;
			done = atomic_load(&stream->completed);
			known = atomic_load(&stream->submitted);
		} else if (atomic_load_explicit(&device->first, memory_order_relaxed)) {
			enqueue_again(device, stream);
			break;
		}
	}
	atomic_fetch_sub(&stream->servers, 1); /* the last access: it may be destroyed now */
}

static void *worker_main(void *arg)
{
	struct soft_worker *worker = arg;
	struct hal_device *device = worker->device;
	struct hal_stream *stream;
	struct soft_share *share;
	struct spin spin = {0};

	pthread_setname_np(pthread_self(), "soft-worker");
	if (soft_worker_signals(worker) != 0)
		abort(); /* no memory for a signal stack of 64 KiB */
	while ((stream = wait_for_work(device, &share, &spin)) != NULL || share) {
		if (share)
			soft_work_help(worker, share);
		else
			serve_stream(worker, stream);
	}
	return NULL;
}

/* Starts one more worker; with the lock held, or while no other thread exists. */
static int start_worker(struct hal_device *device, void *(*how)(void *))
{
	struct soft_worker *worker = &device->workers[device->thread_count];

	worker->device = device;
	if (soft_scratch_open(&worker->scratch) != 0) {
		soft_scratch_close(&worker->scratch);
		worker->scratch.shared = NULL;
		return SOFT_OUT_OF_MEMORY;
	}
	if (pthread_create(&worker->thread, NULL, how, worker) != 0) {
		soft_scratch_close(&worker->scratch);
		worker->scratch.shared = NULL;
		return SOFT_OUT_OF_MEMORY;
	}
	worker->started = true;
	device->thread_count++;
	return 0;
}

/* Waits until a stream has waited from one observation to the next; NULL: the device closes. */
static struct hal_stream *wait_for_starving(struct hal_device *device)
{
	const struct hal_stream *seen = NULL;
	uint64_t taken = 0;

	while (!device->stopping) {
		struct timespec until;

		if (device->first && device->first == seen && device->taken == taken)
			return dequeue_stream(device);
		if (!device->first && device->taken == taken) {
			device->rests = true;
			pthread_cond_wait(&device->starved, &device->lock);
			seen = NULL; /* it was queued just now */
			continue;
		}
		seen = device->first;
		taken = device->taken;
		clock_gettime(CLOCK_MONOTONIC, &until); /* the real-time clock may jump */
		until.tv_nsec += STARVED_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&device->starved, &device->lock, &until);
	}
	return NULL;
}

static void *spare_worker_main(void *arg)
{
	struct soft_worker *worker = arg;
	struct hal_device *device = worker->device;
	struct hal_stream *stream;

	pthread_setname_np(pthread_self(), "soft-spare");
	if (soft_worker_signals(worker) != 0)
		abort();
	pthread_mutex_lock(&device->lock);
	while ((stream = wait_for_starving(device)) != NULL) {
		if (device->thread_count < device->worker_count + SPARES_MAX)
			/* on failure: when this one is done */
			(void)start_worker(device, spare_worker_main);
		/* one of the resting ones observes */
		pthread_cond_broadcast(&device->starved);
		pthread_mutex_unlock(&device->lock);
		serve_stream(worker, stream);
		pthread_mutex_lock(&device->lock);
	}
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

int soft_workers_start(struct hal_device *device)
{
	uint32_t wanted = device->config.workers ? device->config.workers : 1;
	int error = 0;

	device->workers = calloc(wanted + SPARES_MAX, sizeof *device->workers);
	if (!device->workers)
		return SOFT_OUT_OF_MEMORY;
	device->worker_count = wanted;
	for (uint32_t i = 0; i < wanted && !error; i++)
		error = start_worker(device, worker_main);
	pthread_mutex_lock(&device->lock);
	if (!error)
		error = start_worker(device, spare_worker_main);
	pthread_mutex_unlock(&device->lock);
	return error;
}

void soft_workers_stop(struct hal_device *device)
{
	pthread_mutex_lock(&device->lock);
	device->stopping = true;
	pthread_cond_broadcast(&device->wake);
	pthread_cond_broadcast(&device->starved);
	pthread_mutex_unlock(&device->lock);
	for (uint32_t i = 0; i < device->thread_count; i++) {
		if (device->workers[i].started)
			pthread_join(device->workers[i].thread, NULL);
		free(device->workers[i].signal_stack);
		soft_scratch_close(&device->workers[i].scratch);
	}
	free(device->workers);
}

int soft_stream_create(struct hal_device *device, struct hal_stream **out)
{
	struct hal_stream *stream = aligned_alloc(64, sizeof *stream);

	if (!stream)
		return SOFT_OUT_OF_MEMORY;
	memset(stream, 0, sizeof *stream);
	stream->device = device;
	*out = stream;
	return 0;
}

void soft_stream_destroy(struct hal_stream *stream)
{
	uint32_t checks = 0;

	while (atomic_load(&stream->servers)) /* its last worker has not released it yet */
		spin_moment(&checks, "a worker leaves a stream without work within a minute");
	for (uint32_t i = 0; i < SOFT_QUEUE_WORKS; i++)
		free(stream->items[i].params);
	free(stream);
}

uint64_t soft_completed(const struct hal_stream *stream)
{
	return atomic_load_explicit(&stream->completed, memory_order_acquire);
}

/* Reads the worker's counter only when the queue seems full, because reading it moves its cache
 * line. */
uint32_t soft_available(struct hal_stream *stream)
{
	uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_relaxed);

	if (submitted - stream->seen >= SOFT_QUEUE_WORKS)
		stream->seen = soft_completed(stream);
	return SOFT_QUEUE_WORKS - (uint32_t)(submitted - stream->seen);
}

/* Copies parameters for an item; the zeroed tail lets a kernel load whole vectors. */
static const void *copy_params(struct soft_item *item, const void *params, uint32_t bytes)
{
	uint32_t wanted = bytes + SOFT_PARAMS_PAD;

	if (wanted > item->params_capacity) {
		free(item->params);
		item->params = aligned_alloc(64, (wanted + 63) / 64 * 64);
		item->params_capacity = item->params ? (wanted + 63) / 64 * 64 : 0;
		if (!item->params)
			return NULL;
	}
	if (bytes)
		memcpy(item->params, params, bytes);
	memset(item->params + bytes, 0, wanted - bytes);
	return item->params;
}

/* Copies the work and everything that it refers to. */
static bool copy_work(struct soft_item *item, const struct hal_work *work)
{
	item->work = *work;
	item->begun = 0;
	if (work->kind == HAL_KERNEL) {
		item->work.kernel.params = copy_params(item, work->kernel.params,
						       work->kernel.param_bytes);
		return item->work.kernel.params;
	}
	if (work->kind == HAL_GEMM) {
		item->work.gemm.call = copy_params(item, work->gemm.call, sizeof *work->gemm.call);
		return item->work.gemm.call;
	}
	return true;
}

/* Returns 0 if the queue is full or this device cannot run the work. */
uint64_t soft_submit(struct hal_stream *stream, const struct hal_work *work)
{
	struct hal_device *device = stream->device;
	struct soft_item *item = &stream->items[stream->submitted % SOFT_QUEUE_WORKS];
	uint64_t number;

	if (soft_available(stream) == 0 || !soft_work_acceptable(work))
		return 0;
	if (!copy_work(item, work))
		return 0;
	count_running(work, 1);
	number = atomic_load_explicit(&stream->submitted, memory_order_relaxed) + 1;
	atomic_store(&stream->submitted, number);
	if (atomic_exchange(&stream->active, true))
		return number; /* a worker has the stream, and checks again before it releases it */
	if (atomic_load(&stream->completed) == number) {
		atomic_store(&stream->active, false); /* it did, and has already done this work */
		return number;
	}
	pthread_mutex_lock(&device->lock);
	enqueue_stream(device, stream);
	pthread_mutex_unlock(&device->lock);
	pthread_cond_signal(&device->wake);
	return number;
}

void soft_notify_at(struct hal_stream *stream, uint64_t number)
{
	atomic_store(&stream->notify_at, number);
}
