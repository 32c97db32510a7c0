/* enqueue.c: work that goes into a stream. If the stream is captured, the work becomes a node of a
 * graph; otherwise it is issued. Work that cannot be captured is refused, as are calls that a
 * capture forbids.
 *
 * The hot path reads one counter (capturing). It has no lock of its own, and blocks like the
 * functions that issue.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

/* cudaEventRecordExternal, cudaEventWaitExternal: in a capture, these make a node that does it. */
#define EVENT_EXTERNAL 1u

/* ---- copies and fills ---- */

int memory_copy(const struct copy *request)
{
	struct copy c = *request;
	int error = copy_check(&c);
	if (error || !c.height)
		return error;
	if (!capturing(c.stream))
		return issue_copy(&c);
	return c.async ? capture_add(c.stream, node_copy(&c)) : capture_refuse(c.stream);
}

int memory_copy_1d(void *dst, const void *src, uint64_t bytes, int kind, const void *stream,
		   bool async)
{
	struct copy c = {dst, src, bytes, bytes, bytes, 1, kind, 0, async};
	int error = stream_number(stream, &c.stream);
	return error ? error : memory_copy(&c);
}

int copy_slices(const struct copy *request, const struct slices *slices)
{
	struct copy c = *request;
	int error = CUDA_OK;
	for (uint64_t z = 0; !error && z < slices->count; z++) {
		c.dst = (uint8_t *)request->dst + z * slices->dst_bytes;
		c.src = (const uint8_t *)request->src + z * slices->src_bytes;
		error = memory_copy(&c);
	}
	return error;
}

int memory_fill(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
		uint64_t height, const void *stream)
{
	struct rf_fill m = {.dst = (uint64_t)dst,
			    .pitch = pitch,
			    .width = width,
			    .height = height,
			    .value = value,
			    .element = element};
	int error = stream_number(stream, &m.stream);
	if (!error)
		error = fill_check(&m);
	if (error || !m.height)
		return error;
	if (capturing(m.stream))
		return capture_add(m.stream,
				   node_fill(&(CUDA_MEMSET_NODE_PARAMS){m.dst, m.pitch, value,
									element, width, height}));
	issue_fill(&m);
	return CUDA_OK;
}

/* ---- kernels and products ---- */

static int capture_launch(const struct launch *l)
{
	size_t bytes = l->function->info.param_bytes;
	uint8_t *packed = malloc(bytes + 1);
	int error = packed ? launch_pack(l, packed) : OUT_OF_MEMORY;
	if (!error)
		error = capture_add(l->stream, node_launch(l, packed, bytes));
	free(packed);
	return error;
}

int enqueue_launch(const struct launch *l)
{
	int error = launch_check(l);
	if (error)
		return error;
	return capturing(l->stream) ? capture_launch(l) : issue_launch(l);
}

int gemm_post(const struct rf_gemm_call *request, const void *stream)
{
	struct rf_gemm_call m = *request;
	int error = stream_number(stream, &m.g.stream);
	if (!error)
		error = channel_enter();
	if (error)
		return error;
	if (capturing(m.g.stream))
		return capture_add(m.g.stream, node_gemm(&m));
	issue_gemm(&m);
	return CUDA_OK;
}

/* ---- events and host functions ---- */

/* Fills in the numbers of an event and a stream. */
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
	if (!error && flags & ~EVENT_EXTERNAL)
		error = INVALID_VALUE;
	if (error)
		return error;
	if (flags & EVENT_EXTERNAL && capturing(m.stream))
		return capture_add(m.stream, node_event(NODE_RECORD, m.event));
	if (capture_record(h, m.stream, &error))
		return error;
	issue_record(m.event, m.stream);
	return CUDA_OK;
}

int stream_wait(const void *stream, const void *event, unsigned flags)
{
	struct rf_event m;
	const struct handle *h = handle_get(HANDLE_EVENT, event);
	int error = name_both(&m, h, stream);
	if (!error && flags & ~EVENT_EXTERNAL)
		error = INVALID_VALUE;
	if (error)
		return error;
	if (flags & EVENT_EXTERNAL && capturing(m.stream))
		return capture_add(m.stream, node_event(NODE_WAIT, m.event));
	if (capture_wait(m.stream, h, &error))
		return error;
	issue_wait(m.stream, m.event);
	return CUDA_OK;
}

int stream_host_function(const void *stream, CUhostFn function, void *data)
{
	uint64_t number;
	int error = function ? stream_number(stream, &number) : INVALID_VALUE;
	if (error)
		return error;
	if (capturing(number))
		return capture_add(number, node_host(function, data));
	return issue_host_call(stream, function, data);
}

int stream_callback(const void *stream, cudaStreamCallback_t callback, void *data, unsigned flags)
{
	uint64_t number;
	int error = callback && !flags ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error && capturing(number))
		error = capture_refuse(number);
	if (error)
		return error;
	return issue_callback(stream, callback, data);
}

/* ---- waits ---- */

int stream_sync(const void *stream)
{
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = stream_idle_number(stream, &number);
	return error ? error : wait_for_stream(number);
}

int stream_query(const void *stream)
{
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = stream_idle_number(stream, &number);
	return error ? error : issue_query_stream(number);
}

int event_sync(const void *event)
{
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = event_idle_number(event, &number);
	return error ? error : wait_for_event(number);
}

int event_query(const void *event)
{
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = event_idle_number(event, &number);
	return error ? error : issue_query(number);
}

int device_sync(void)
{
	int error = channel_enter();
	if (!error)
		error = capture_forbids_device();
	return error ? error : wait_for_device();
}
