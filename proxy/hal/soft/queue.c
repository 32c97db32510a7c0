/* queue.c: the device, its in-order queues, and the workers that serve them.
 *
 * A stream with work is either in the run queue or served by one worker, never both; that keeps it
 * in order. After each work, and between parts of a long matrix product, a worker puts its stream
 * at the end of the run queue if another stream waits, so streams share the workers fairly. The
 * lock guards the run queue; while a worker serves a stream, submit and the worker share only its
 * counters. submit copies the work and returns. A worker without work sleeps on the condition
 * variable, or helps with a launch that has taken long and whose blocks may run in any order.
 *
 * A kernel may wait for what another stream will do, and such kernels may occupy all workers.
 * Therefore, if a stream has waited for long and no worker has taken any stream meanwhile, a spare
 * worker takes it. One spare worker observes the run queue, ten times a second while there is work;
 * before it serves a stream it lets the next spare worker observe, up to a maximum number.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"
#include "reduce.h"
#include "soft.h"
#include "spin.h"

#define HELP_AFTER_NS 30000u   /* waking a helper costs a few thousand */
#define WORKER_SPIN_NS 250000u /* for which a worker spins without work */
#define LOOKS 8                /* at `submitted`, before a worker releases a stream */
#define SPARES_MAX 8u
#define STARVED_NS 100000000u /* between two observations by a spare worker */

/* A device of lower speed takes proportionally longer. */
static void slow_down(const struct hal_device *device, uint64_t started_ns)
{
	double speed = device->config.speed;
	uint64_t pause;
	struct timespec t;

	if (speed >= 1.0 || speed <= 0.0)
		return;
	pause = (uint64_t)((double)(spin_now_ns() - started_ns) * (1.0 / speed - 1.0));
	t.tv_sec = (time_t)(pause / 1000000000u);
	t.tv_nsec = (long)(pause % 1000000000u);
	while (nanosleep(&t, &t) != 0)
		;
}

static bool failed(const struct hal_space *space)
{
	return space && atomic_load(&space->error) != 0;
}

uint64_t soft_blocks(const struct hal_work *work)
{
	return (uint64_t)work->kernel.grid[0] * work->kernel.grid[1] * work->kernel.grid[2];
}

/* Called inside a kernel. One launch at a time is offered; there are no workers to help with
 * two. */
static void offer(struct hal_device *device, struct soft_share *share)
{
	share->offered = true;
	soft_shelter();
	pthread_mutex_lock(&device->lock);
	if (!device->share)
		device->share = share;
	pthread_cond_broadcast(&device->wake);
	pthread_mutex_unlock(&device->lock);
	soft_expose();
}

uint64_t soft_next_blocks(struct soft_worker *worker, uint32_t *count)
{
	struct soft_share *share = worker->share;
	uint64_t next = atomic_fetch_add_explicit(&share->next, share->batch, memory_order_relaxed);
	uint64_t left = share->blocks - next;

	if (next >= share->blocks)
		return SOFT_NO_BLOCK;
	*count = left < share->batch ? (uint32_t)left : share->batch;
	if (worker->owner && !share->offered && worker->device->worker_count > 1 && next > 0 &&
	    left > *count && !share->ordered && spin_now_ns() - share->begun_ns > HELP_AFTER_NS)
		offer(worker->device, share);
	return next;
}

static void run_share(struct soft_worker *worker, struct soft_share *share, bool owner)
{
	const struct hal_work *work = share->work;

	worker->share = share;
	worker->owner = owner;
	if (work->kind == HAL_KERNEL)
		soft_fault_scope(worker, work->kernel.space, NULL,
				 soft_function_name(work->kernel.function), soft_kernel, work);
	else if (soft_gemm_ready(&worker->scratch))
		soft_fault_scope(worker, work->gemm.space, NULL, "a matrix product", soft_gemm,
				 work);
	else
		soft_space_fail(work->gemm.space, SOFT_OUT_OF_MEMORY,
				"a matrix product: no host memory for its panels");
}

/* The share ends with its owner, so the owner waits for all helpers. */
static void withdraw(struct hal_device *device, struct soft_share *share)
{
	pthread_mutex_lock(&device->lock);
	if (device->share == share)
		device->share = NULL;
	while (share->helpers)
		pthread_cond_wait(&device->helped, &device->lock);
	pthread_mutex_unlock(&device->lock);
}

static void run_blocks(struct soft_worker *worker, struct soft_share *share)
{
	struct hal_device *device = worker->device;

	if (device->config.speed < 1.0 || device->worker_count > 1)
		share->begun_ns = spin_now_ns();
	run_share(worker, share, true);
	if (share->offered)
		withdraw(device, share);
	slow_down(device, share->begun_ns);
}

static void run_kernel(struct soft_worker *worker, const struct hal_work *work)
{
	struct soft_share share = {.work = work,
				   .blocks = soft_blocks(work),
				   .batch = soft_batch(work, worker->device->worker_count),
				   .ordered = work->kernel.function->flags & SOFT_ORDERED};

	if (!failed(work->kernel.space))
		run_blocks(worker, &share);
}

/* Runs the next slice; true: it was the last one. */
static bool run_gemm(struct soft_worker *worker, struct soft_item *item)
{
	const struct rf_gemm_aux *call = item->work.gemm.call;
	uint64_t tiles = soft_gemm_tiles(call), end = item->begun + soft_gemm_slice(&call->g);
	struct soft_share share = {.work = &item->work,
				   .next = item->begun,
				   .batch = 1,
				   .blocks = end < tiles ? end : tiles};

	if (failed(item->work.gemm.space))
		return true;
	run_blocks(worker, &share);
	item->begun = share.blocks;
	return item->begun == tiles;
}

/* Called by a worker without other work. */
static void help(struct soft_worker *worker, struct soft_share *share)
{
	struct hal_device *device = worker->device;

	run_share(worker, share, false);
	pthread_mutex_lock(&device->lock);
	if (--share->helpers == 0)
		pthread_cond_broadcast(&device->helped);
	pthread_mutex_unlock(&device->lock);
}

static void run_copy(struct soft_worker *worker, const struct hal_work *work)
{
	struct hal_space *dst = work->copy.dst.space, *src = work->copy.src.space;

	if (!failed(dst) && !failed(src))
		soft_fault_scope(worker, dst ? dst : src, (struct hal_space *[]){src, NULL}, "copy",
				 soft_copy, work);
}

/* Collects the spaces of the operands, terminated by NULL. */
static void sum_spaces(const struct hal_work *work, struct hal_space *spaces[HAL_SUM_REFS + 1])
{
	struct hal_ref refs[HAL_SUM_REFS];
	uint32_t count = hal_sum_refs(work, refs), n = 0;

	for (uint32_t i = 0; i < count; i++)
		if (refs[i].space)
			spaces[n++] = refs[i].space;
	spaces[n] = NULL;
}

static bool sum_failed(const struct hal_work *work)
{
	struct hal_space *spaces[HAL_SUM_REFS + 1];

	sum_spaces(work, spaces);
	for (uint32_t i = 0; spaces[i]; i++)
		if (failed(spaces[i]))
			return true;
	return false;
}

static void run_sum(struct soft_worker *worker, const struct hal_work *work)
{
	struct hal_space *spaces[HAL_SUM_REFS + 1];

	sum_spaces(work, spaces);
	if (!sum_failed(work))
		soft_fault_scope(worker, spaces[0], spaces, "a sum of a collective", soft_sum,
				 work);
}

/* False: more of the work remains. */
static bool run(struct soft_worker *worker, struct soft_item *item)
{
	const struct hal_work *work = &item->work;

	switch (work->kind) {
	case HAL_KERNEL: run_kernel(worker, work); break;
	case HAL_COPY: run_copy(worker, work); break;
	case HAL_FILL:
		if (!failed(work->fill.dst.space))
			soft_fault_scope(worker, work->fill.dst.space, NULL, "fill", soft_fill,
					 work);
		break;
	case HAL_REDUCE:
	case HAL_SCALE: run_sum(worker, work); break;
	case HAL_GEMM: return run_gemm(worker, item);
	case HAL_CHECKSUM:
		if (!failed(work->checksum.src.space))
			soft_fault_scope(worker, work->checksum.src.space, NULL, "a checksum",
					 soft_checksum, work);
		break;
	}
	return true;
}

/* Impossible work is refused at submit, so that run needs no error path. */
static bool acceptable(const struct hal_work *work)
{
	uint32_t element = work->fill.element;

	switch (work->kind) {
	case HAL_KERNEL: return work->kernel.space && work->kernel.function;
	case HAL_COPY: return true;
	case HAL_FILL: return element == 1 || element == 2 || element == 4;
	case HAL_REDUCE:
	case HAL_SCALE: return hal_sum_acceptable(work);
	case HAL_GEMM: return work->gemm.space && soft_gemm_tiles(work->gemm.call) > 0;
	case HAL_CHECKSUM: return true;
	}
	return false;
}

static void enqueue(struct hal_device *device, struct hal_stream *stream)
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
static struct hal_stream *dequeue(struct hal_device *device)
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
static struct hal_stream *take(struct hal_device *device, struct soft_share **share,
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
		(void)dequeue(device);
	} else if (device->share) {
		*share = device->share;
		device->share->helpers++;
	}
	pthread_mutex_unlock(&device->lock);
	return stream;
}

static bool has_failed(const struct hal_work *work)
{
	switch (work->kind) {
	case HAL_KERNEL: return failed(work->kernel.space);
	case HAL_COPY: return failed(work->copy.dst.space) || failed(work->copy.src.space);
	case HAL_FILL: return failed(work->fill.dst.space);
	case HAL_GEMM: return failed(work->gemm.space);
	case HAL_CHECKSUM: return failed(work->checksum.src.space);
	case HAL_REDUCE:
	case HAL_SCALE: return sum_failed(work);
	}
	return false;
}

/* Puts the stream at the end of the run queue. */
static void put_off(struct hal_device *device, struct hal_stream *stream)
{
	pthread_mutex_lock(&device->lock);
	enqueue(device, stream);
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

static void complete(struct hal_device *device, struct hal_stream *stream,
		     const struct soft_item *item, uint64_t done)
{
	bool loud = has_failed(&item->work);

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
static bool keep(struct hal_stream *stream)
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
static void fetch(const struct soft_item *item)
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
static void serve(struct soft_worker *worker, struct hal_stream *stream)
{
	struct hal_device *device = worker->device;
	uint64_t done = atomic_load(&stream->completed), known = atomic_load(&stream->submitted);

	for (;;) {
		struct soft_item *item = &stream->items[done % SOFT_QUEUE_WORKS];

		if (done + 1 < known)
			fetch(&stream->items[(done + 1) % SOFT_QUEUE_WORKS]);
		if (run(worker, item))
			complete(device, stream, item, ++done);
		if (done == known)
			known = await_more(stream, done);
		if (done == known) {
			if (!keep(stream))
				break;
			done = atomic_load(&stream->completed);
			known = atomic_load(&stream->submitted);
		} else if (atomic_load_explicit(&device->first, memory_order_relaxed)) {
			put_off(device, stream);
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
	while ((stream = take(device, &share, &spin)) != NULL || share) {
		if (share)
			help(worker, share);
		else
			serve(worker, stream);
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
static struct hal_stream *starving(struct hal_device *device)
{
	const struct hal_stream *seen = NULL;
	uint64_t taken = 0;

	while (!device->stopping) {
		struct timespec until;

		if (device->first && device->first == seen && device->taken == taken)
			return dequeue(device);
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

static void *spare_main(void *arg)
{
	struct soft_worker *worker = arg;
	struct hal_device *device = worker->device;
	struct hal_stream *stream;

	pthread_setname_np(pthread_self(), "soft-spare");
	if (soft_worker_signals(worker) != 0)
		abort();
	pthread_mutex_lock(&device->lock);
	while ((stream = starving(device)) != NULL) {
		if (device->thread_count < device->worker_count + SPARES_MAX)
			/* on failure: when this one is done */
			(void)start_worker(device, spare_main);
		/* one of the resting ones observes */
		pthread_cond_broadcast(&device->starved);
		pthread_mutex_unlock(&device->lock);
		serve(worker, stream);
		pthread_mutex_lock(&device->lock);
	}
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

static int start_workers(struct hal_device *device)
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
		error = start_worker(device, spare_main);
	pthread_mutex_unlock(&device->lock);
	return error;
}

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
		error = start_workers(device);
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
	soft_whole_close(&device->whole);
	soft_memory_close(device);
	pthread_cond_destroy(&device->helped);
	pthread_cond_destroy(&device->starved);
	pthread_cond_destroy(&device->wake);
	pthread_mutex_destroy(&device->lock);
	free(device);
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

	if (soft_available(stream) == 0 || !acceptable(work))
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
	enqueue(device, stream);
	pthread_mutex_unlock(&device->lock);
	pthread_cond_signal(&device->wake);
	return number;
}

void soft_notify_at(struct hal_stream *stream, uint64_t number)
{
	atomic_store(&stream->notify_at, number);
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
