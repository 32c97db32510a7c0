/* stream.c: streams and events, their numbers, and attributes of streams.
 *
 * Lock: ATTRIBUTE_LOCK around the attributes. Nothing here blocks by itself.
 */
#include <pthread.h>

#include "issue.h"

#define EVENT_INTERPROCESS 4u

int stream_create(void **out, unsigned flags, int priority)
{
	int error = context_use_device();
	if (error)
		return error;
	if (!out || flags & ~RF_STREAM_NON_BLOCKING)
		return INVALID_VALUE;
	priority = nearest_priority(priority);
	struct handle *h = handle_new(HANDLE_STREAM, context_owner());
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

/* The function of a higher layer that is called before a stream ends. */
typedef void stream_end_callback(uint64_t stream);
static stream_end_callback *_Atomic before_end;

void stream_on_end(stream_end_callback *callback) { atomic_store(&before_end, callback); }

static int destroy_handle(enum handle_kind kind, const void *value, enum rf_opcode opcode)
{
	int error = channel_open();
	struct handle *h = handle_get(kind, value);
	if (!error && !h)
		error = INVALID_HANDLE;
	if (error)
		return error;
	uint64_t number = h->number;
	stream_end_callback *callback = kind == HANDLE_STREAM ? atomic_load(&before_end) : NULL;
	if (callback)
		callback(number);
	handle_drop(h);
	channel_post_later(opcode, number);
	return channel_enter();
}

int stream_destroy(const void *stream)
{
	return destroy_handle(HANDLE_STREAM, stream, RF_OP_STREAM_DESTROY);
}

void stream_end(uint64_t context)
{
	struct handle *h;
	for (uint64_t place = 0; (h = handle_next(&place));) {
		if (h->context != context)
			continue;
		if (h->kind == HANDLE_STREAM)
			destroy_handle(HANDLE_STREAM, (void *)h->number, RF_OP_STREAM_DESTROY);
		else if (h->kind == HANDLE_EVENT)
			destroy_handle(HANDLE_EVENT, (void *)h->number, RF_OP_EVENT_DESTROY);
	}
}

/* ---- default streams of threads ---- */

_Thread_local uint64_t default_stream = RF_STREAM_LEGACY;
static _Thread_local void *thread_stream;
static pthread_once_t thread_streams_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_streams;
static _Atomic bool first_in_use; /* the stream that always exists is in use */

static void end_thread_stream(void *stream) { stream_destroy(stream); }

static void prepare_thread_streams(void) { pthread_key_create(&thread_streams, end_thread_stream); }

static int stream_of_thread(uint64_t *number)
{
	if (!thread_stream && !atomic_exchange(&first_in_use, true))
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

int stream_number(const void *stream, uint64_t *number)
{
	uint64_t value = (uint64_t)stream;
	*number = value ? value : default_stream;
	if (*number == RF_STREAM_PER_THREAD)
		return stream_of_thread(number);
	if (value <= RF_STREAM_LEGACY || handle_get(HANDLE_STREAM, stream))
		return CUDA_OK;
	return INVALID_HANDLE;
}

int event_number(const void *event, uint64_t *number)
{
	*number = (uint64_t)event;
	return handle_get(HANDLE_EVENT, event) ? CUDA_OK : INVALID_HANDLE;
}

/* ---- attributes ---- */

static struct hints of_defaults[2]; /* of the legacy stream and of the first thread's stream */
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
	lock(ATTRIBUTE_LOCK);
	struct hints hints = *hints_of(stream);
	unlock(ATTRIBUTE_LOCK);
	return hints;
}

int stream_attribute_get(const void *stream, int id, launch_attribute_value *value)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error)
		return error;
	lock(ATTRIBUTE_LOCK);
	error = hint_get(hints_of(number), OF_STREAM, id, value);
	unlock(ATTRIBUTE_LOCK);
	return error;
}

int stream_attribute_set(const void *stream, int id, const launch_attribute_value *value)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error)
		return error;
	lock(ATTRIBUTE_LOCK);
	error = hint_set(hints_of(number), OF_STREAM, id, value);
	unlock(ATTRIBUTE_LOCK);
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
	lock(ATTRIBUTE_LOCK);
	hints_copy(hints_of(dst), hints_of(src), OF_STREAM);
	unlock(ATTRIBUTE_LOCK);
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
	int error = context_use_device();
	if (error)
		return error;
	if (!out || flags > 7)
		return INVALID_VALUE;
	if (flags & EVENT_INTERPROCESS) {
		LOG_ONCE("events shared between processes are not supported by rankfold: use NCCL "
			 "between ranks");
		return NOT_SUPPORTED;
	}
	struct handle *h = handle_new(HANDLE_EVENT, context_owner());
	if (!h)
		return OUT_OF_MEMORY;
	h->flags = flags;
	struct rf_event_create m = {.event = h->number, .flags = flags};
	channel_post(&m.r, RF_OP_EVENT_CREATE, sizeof m, NULL, 0);
	*out = (void *)h->number;
	return CUDA_OK;
}

int event_destroy(const void *event)
{
	return destroy_handle(HANDLE_EVENT, event, RF_OP_EVENT_DESTROY);
}

void issue_record(uint64_t event, uint64_t stream)
{
	struct rf_event m = {.event = event, .stream = stream};
	uint64_t seq = channel_post_work(&m.r, RF_OP_EVENT_RECORD, sizeof m, NULL, 0, stream);
	struct handle *h = handle_get(HANDLE_EVENT, (void *)event);
	uint64_t last = h ? atomic_load(&h->last) : seq;
	while (last < seq && !atomic_compare_exchange_weak(&h->last, &last, seq))
		;
}

void issue_wait(uint64_t stream, uint64_t event)
{
	struct rf_event m = {.event = event, .stream = stream};
	channel_post_work(&m.r, RF_OP_STREAM_WAIT, sizeof m, NULL, 0, stream);
}

/* ---- queries ----
 *
 * They never wait for space in the ring, nor for what is in it: watchdogs query streams and events
 * to find out that nothing moves any more. The server may not yet have handled the request
 * that the answer depends on; the client detects that. */

static int query_answer(int error, const struct rf_query_reply *reply, uint64_t last)
{
	if (reply->consumed < last && (error == CUDA_OK || error == INVALID_HANDLE))
		return NOT_READY; /* the server has not handled the last work yet */
	/* It may not even have created what has no work. */
	return error == INVALID_HANDLE && !last ? CUDA_OK : error;
}

int issue_query(uint64_t event)
{
	struct handle *h = handle_get(HANDLE_EVENT, (void *)event);
	uint64_t last = h ? atomic_load(&h->last) : 0;
	struct rf_query_reply reply;
	int error = channel_query(event, &reply);
	return h ? query_answer(error, &reply, last) : error;
}

static void raise_to(uint64_t *last, _Atomic uint64_t *other)
{
	uint64_t value = atomic_load(other);
	*last = *last < value ? value : *last;
}

int issue_query_stream(uint64_t stream)
{
	uint64_t last = atomic_load(stream_last(stream));
	struct rf_query_reply reply;
	struct handle *h;
	if (stream == RF_STREAM_LEGACY) { /* it is ordered after all blocking streams */
		raise_to(&last, stream_last(RF_STREAM_PER_THREAD));
		for (uint64_t place = 0; (h = handle_next(&place));)
			if (h->kind == HANDLE_STREAM && !(h->flags & RF_STREAM_NON_BLOCKING))
				raise_to(&last, &h->last);
	}
	int error = channel_query(stream, &reply);
	return query_answer(error, &reply, last);
}

int event_elapsed(float *ms, const void *start, const void *end)
{
	struct handle *a = handle_get(HANDLE_EVENT, start), *b = handle_get(HANDLE_EVENT, end);
	int error = channel_enter();
	if (!error && !ms)
		error = INVALID_VALUE;
	if (!error && (!a || !b))
		error = INVALID_HANDLE;
	if (!error && (a->captured || b->captured))
		error = INVALID_VALUE;
	if (!error && (a->flags | b->flags) & RF_EVENT_DISABLE_TIMING)
		error = INVALID_HANDLE;
	if (!error && (!atomic_load(&a->last) || !atomic_load(&b->last)))
		error = INVALID_HANDLE;
	if (error)
		return error;
	struct rf_events events = {a->number, b->number};
	struct rf_query_reply reply;
	uint64_t last = 0;
	raise_to(&last, &a->last);
	raise_to(&last, &b->last);
	error = query_answer(channel_query_elapsed(&events, &reply), &reply, last);
	if (!error)
		*ms = reply.milliseconds;
	return error;
}
