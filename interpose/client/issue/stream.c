/* stream.c: streams, events and host functions.
 *
 * Host functions are the only reason for a thread of ours, which is started with the first of
 * them. It waits on a futex in the memfd for tokens of functions that are due, runs them in the
 * stream's order, and says so to the server. Nothing else here blocks except by definition.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "doorbell.h"
#include "graph.h"

#define EVENT_DISABLE_TIMING 2u
#define EVENT_INTERPROCESS 4u

int stream_create(void **out, unsigned flags, int priority)
{
	int error = channel_use_device();
	if (error)
		return error;
	if (!out || flags & ~STREAM_NON_BLOCKING)
		return INVALID_VALUE;
	priority = nearest_priority(priority);
	struct handle *h = handle_new(HANDLE_STREAM);
	if (!h)
		return OUT_OF_MEMORY;
	h->flags = flags;
	h->hints = usual_hints;
	h->hints.priority = priority;
	struct rf_stream_create m = {.stream = h->number, .flags = flags, .priority = priority};
	channel_post(&m.r, RF_OP_STREAM_CREATE, sizeof m, NULL, 0);
	*out = (void *)h->number;
	return CUDA_OK;
}

int device_sync(void)
{
	struct rf_record m;
	int error = channel_enter();
	if (!error)
		error = capture_forbids_device();
	return error ? error : channel_call(&m, RF_OP_DEVICE_SYNC, sizeof m, NULL, 0, NULL, 0);
}

static int destroy(enum handle_kind kind, const void *value, enum rf_opcode opcode)
{
	int error = channel_open();
	struct handle *h = handle_get(kind, value);
	if (!error && !h)
		error = INVALID_HANDLE;
	if (error)
		return error;
	struct rf_handle m = {.handle = h->number};
	if (kind == HANDLE_STREAM)
		capture_stream_ends(h->number);
	handle_drop(h);
	channel_post(&m.r, opcode, sizeof m, NULL, 0);
	return channel_enter();
}

int stream_destroy(const void *stream)
{
	return destroy(HANDLE_STREAM, stream, RF_OP_STREAM_DESTROY);
}

void stream_end(uint64_t context)
{
	struct handle *h;
	for (uint64_t place = 0; (h = handle_next(&place));) {
		if (h->context != context)
			continue;
		if (h->kind == HANDLE_STREAM)
			destroy(HANDLE_STREAM, (void *)h->number, RF_OP_STREAM_DESTROY);
		else if (h->kind == HANDLE_EVENT)
			destroy(HANDLE_EVENT, (void *)h->number, RF_OP_EVENT_DESTROY);
	}
}

/* ---- default streams of threads ---- */

static _Thread_local void *thread_stream;
static pthread_once_t thread_streams_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_streams;
static _Atomic bool first_taken; /* the one that exists from the start */

static void end_thread_stream(void *stream) { stream_destroy(stream); }

static void prepare_thread_streams(void) { pthread_key_create(&thread_streams, end_thread_stream); }

int stream_of_thread(uint64_t *number)
{
	if (!thread_stream && !atomic_exchange(&first_taken, true))
		thread_stream = (void *)RF_STREAM_PER_THREAD;
	*number = (uint64_t)thread_stream;
	if (*number == RF_STREAM_PER_THREAD || handle_get(HANDLE_STREAM, thread_stream))
		return CUDA_OK;
	int error = stream_create(&thread_stream, 0, 0);
	if (error)
		return error;
	pthread_once(&thread_streams_once, prepare_thread_streams);
	pthread_setspecific(thread_streams, thread_stream);
	*number = (uint64_t)thread_stream;
	return CUDA_OK;
}

/* ---- attributes ---- */

pthread_mutex_t attribute_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hints of_defaults[2]; /* the legacy stream's, the first thread's */
static pthread_once_t defaults_once = PTHREAD_ONCE_INIT;

static void prepare_defaults(void) { of_defaults[0] = of_defaults[1] = usual_hints; }

static struct hints *hints_of(uint64_t stream)
{
	struct handle *h = handle_get(HANDLE_STREAM, (void *)stream);
	pthread_once(&defaults_once, prepare_defaults);
	return h ? &h->hints : &of_defaults[stream == RF_STREAM_PER_THREAD];
}

struct hints stream_hints(uint64_t stream)
{
	pthread_mutex_lock(&attribute_lock);
	struct hints hints = *hints_of(stream);
	pthread_mutex_unlock(&attribute_lock);
	return hints;
}

int stream_attribute_get(const void *stream, int id, launch_attribute_value *value)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error)
		return error;
	pthread_mutex_lock(&attribute_lock);
	error = hint_get(hints_of(number), OF_STREAM, id, value);
	pthread_mutex_unlock(&attribute_lock);
	return error;
}

int stream_attribute_set(const void *stream, int id, const launch_attribute_value *value)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error)
		return error;
	pthread_mutex_lock(&attribute_lock);
	error = hint_set(hints_of(number), OF_STREAM, id, value);
	pthread_mutex_unlock(&attribute_lock);
	return error;
}

int stream_attributes_copy(const void *to, const void *from)
{
	uint64_t dst, src;
	int error = stream_number(to, &dst);
	if (!error)
		error = stream_number(from, &src);
	if (error)
		return error;
	pthread_mutex_lock(&attribute_lock);
	hints_copy(hints_of(dst), hints_of(src), OF_STREAM);
	pthread_mutex_unlock(&attribute_lock);
	return CUDA_OK;
}

int stream_priority(const void *stream, int *priority)
{
	launch_attribute_value value;
	int error = priority ? stream_attribute_get(stream, ATTRIBUTE_PRIORITY, &value)
			     : INVALID_VALUE;
	if (!error)
		*priority = value.priority;
	return error;
}

/* ---- events ---- */

int event_create(void **out, unsigned flags)
{
	int error = channel_use_device();
	if (error)
		return error;
	if (!out || flags > 7)
		return INVALID_VALUE;
	if (flags & EVENT_INTERPROCESS) {
		SAY_ONCE("events shared between processes are not supported by rankfold: use NCCL "
			 "between ranks");
		return NOT_SUPPORTED;
	}
	struct handle *h = handle_new(HANDLE_EVENT);
	if (!h)
		return OUT_OF_MEMORY;
	h->flags = flags;
	struct rf_event_create m = {.event = h->number, .flags = flags};
	channel_post(&m.r, RF_OP_EVENT_CREATE, sizeof m, NULL, 0);
	*out = (void *)h->number;
	return CUDA_OK;
}

int event_destroy(const void *event) { return destroy(HANDLE_EVENT, event, RF_OP_EVENT_DESTROY); }

/* A record that names an event and a stream. */
static int name_both(struct rf_event *m, const struct handle *event, const void *stream)
{
	memset(m, 0, sizeof *m);
	int error = channel_enter();
	if (!error && !event)
		error = INVALID_HANDLE;
	if (!error)
		error = stream_number(stream, &m->stream);
	if (!error)
		m->event = event->number;
	return error;
}

int event_record(const void *event, const void *stream, unsigned flags)
{
	struct rf_event m;
	struct handle *h = handle_get(HANDLE_EVENT, event);
	int error = name_both(&m, h, stream);
	if (!error && flags > 1)
		error = INVALID_VALUE;
	if (error)
		return error;
	if (flags & 1 && capturing(m.stream)) /* external: a node that records it */
		return capture_add(m.stream, node_event(NODE_RECORD, m.event));
	if (capture_record(h, m.stream, &error))
		return error;
	channel_post(&m.r, RF_OP_EVENT_RECORD, sizeof m, NULL, 0);
	return CUDA_OK;
}

int stream_wait(const void *stream, const void *event, unsigned flags)
{
	struct rf_event m;
	const struct handle *h = handle_get(HANDLE_EVENT, event);
	int error = name_both(&m, h, stream);
	if (!error && flags > 1)
		error = INVALID_VALUE;
	if (error)
		return error;
	if (flags & 1 && capturing(m.stream))
		return capture_add(m.stream, node_event(NODE_WAIT, m.event));
	if (capture_wait(m.stream, h, &error))
		return error;
	channel_post(&m.r, RF_OP_STREAM_WAIT, sizeof m, NULL, 0);
	return CUDA_OK;
}

int event_elapsed(float *ms, const void *start, const void *end)
{
	struct handle *a = handle_get(HANDLE_EVENT, start), *b = handle_get(HANDLE_EVENT, end);
	int error = channel_enter();
	if (!error && !ms)
		error = INVALID_VALUE;
	if (!error && (!a || !b || (a->flags | b->flags) & EVENT_DISABLE_TIMING))
		error = INVALID_HANDLE;
	if (!error && (a->captured || b->captured))
		error = CAPTURED_EVENT;
	if (error)
		return error;
	struct rf_elapsed m = {.start = a->number, .end = b->number};
	return channel_call(&m.r, RF_OP_EVENT_ELAPSED, sizeof m, NULL, 0, ms, sizeof *ms);
}

/* ---- host functions ---- */

/* Its address is the token that travels through the server. */
struct host_function {
	CUhostFn function;
	cudaStreamCallback_t callback; /* instead of `function` */
	void *data;
	void *stream;
	uint64_t number;
};

static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;
static bool helper_runs;
static _Atomic uint32_t functions_posted;

static void run(struct host_function *due)
{
	int error = (int)atomic_load(&channel_header->async_error);
	in_host_function = true;
	if (due->callback)
		due->callback(due->stream, error, due->data);
	else if (!error) /* unlike a callback it is not called any more after an error */
		due->function(due->data);
	in_host_function = false;
}

static void *helper(void *unused)
{
	struct rf_header *h = channel_header;
	uint64_t *queue = (uint64_t *)(void *)((char *)h + RF_OFF_HOSTFUNC);
	uint32_t tail = atomic_load(&h->hostfunc_tail);
	for (;;) {
		uint32_t head = atomic_load_explicit(&h->hostfunc_head, memory_order_acquire);
		if (head == tail) {
			doorbell_sleep(&h->hostfunc_head, head);
			continue;
		}
		struct host_function *due = (void *)queue[tail % RF_HOSTFUNC_COUNT];
		struct rf_host_func done = {.stream = due->number, .token = (uint64_t)due};
		run(due);
		free(due);
		/* The ring may be full until the server hears of this. */
		atomic_store(&h->hostfunc_tail, ++tail);
		channel_wake();
		channel_post(&done.r, RF_OP_HOST_DONE, sizeof done, NULL, 0);
	}
	return unused;
}

int start_thread(void *(*function)(void *))
{
	sigset_t all, kept;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &kept);
	int error = pthread_create(&thread, NULL, function, NULL) ? OUT_OF_MEMORY : CUDA_OK;
	if (!error)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &kept, NULL);
	return error;
}

static int start_helper(void)
{
	int error = CUDA_OK;
	pthread_mutex_lock(&helper_lock);
	if (!helper_runs)
		error = start_thread(helper);
	helper_runs |= !error;
	pthread_mutex_unlock(&helper_lock);
	return error;
}

static int post_function(struct host_function f)
{
	int error = stream_number(f.stream, &f.number);
	if (!error)
		error = channel_enter();
	if (!error)
		error = start_helper();
	if (error)
		return error;
	struct host_function *kept = malloc(sizeof *kept);
	if (!kept)
		return OUT_OF_MEMORY;
	*kept = f;
	struct rf_host_func m = {.stream = f.number, .token = (uint64_t)kept};
	atomic_fetch_add(&functions_posted, 1);
	channel_post(&m.r, RF_OP_HOST_FUNC, sizeof m, NULL, 0);
	return CUDA_OK;
}

int stream_before_reading(uint64_t stream)
{
	uint32_t posted = atomic_load(&functions_posted);
	struct rf_handle m = {.handle = stream};
	if (!posted || posted == atomic_load(&channel_header->hostfunc_tail))
		return CUDA_OK;
	return channel_call(&m.r, RF_OP_STREAM_SYNC, sizeof m, NULL, 0, NULL, 0);
}

int stream_host_function(const void *stream, CUhostFn function, void *data)
{
	uint64_t number;
	int error = function ? stream_number(stream, &number) : INVALID_VALUE;
	if (error)
		return error;
	if (capturing(number))
		return capture_add(number, node_host(function, data));
	return post_function((struct host_function){function, NULL, data, (void *)stream, 0});
}

int stream_callback(const void *stream, cudaStreamCallback_t callback, void *data, unsigned flags)
{
	uint64_t number;
	int error = callback && !flags ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error && capturing(number))
		error = capture_refuse(number);
	if (error)
		return error;
	return post_function((struct host_function){NULL, callback, data, (void *)stream, 0});
}
