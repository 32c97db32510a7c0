/* host_function.c: functions of the program that streams call.
 *
 * They run in a thread of the client, started for the first of them. The thread waits on a futex in
 * the memfd for tokens of functions that are due, runs them in the order of the stream, and reports
 * each to the server.
 *
 * Lock: HELPER_LOCK, while the thread is started.
 */
#include <stdlib.h>

#include "doorbell.h"
#include "issue.h"

/* The address of this struct is the token that travels through the server. */
struct host_function {
	CUhostFn function;
	cudaStreamCallback_t callback; /* instead of `function` */
	void *data;
	void *stream;
	uint64_t number;
};

static bool helper_runs;
static _Atomic uint32_t functions_posted;

static void run_host_function(struct host_function *due)
{
	int error = (int)atomic_load(&channel_header->async_error);
	in_host_function = true;
	if (due->callback)
		due->callback(due->stream, error, due->data);
	else if (!error) /* unlike a callback, it is not called after an error */
		due->function(due->data);
	in_host_function = false;
}

static void *run_host_functions(void *unused)
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
		run_host_function(due);
		free(due);
		/* The ring may be full until the server sees this. */
		atomic_store(&h->hostfunc_tail, ++tail);
		channel_wake();
		channel_post(&done.r, RF_OP_HOST_DONE, sizeof done, NULL, 0);
	}
	return unused;
}

static int start_helper(void)
{
	int error = CUDA_OK;
	lock(HELPER_LOCK);
	if (!helper_runs)
		error = start_thread(run_host_functions);
	helper_runs |= !error;
	unlock(HELPER_LOCK);
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
	struct host_function *copy = malloc(sizeof *copy);
	if (!copy)
		return OUT_OF_MEMORY;
	*copy = f;
	struct rf_host_func m = {.stream = f.number, .token = (uint64_t)copy};
	atomic_fetch_add(&functions_posted, 1);
	channel_post_work(&m.r, RF_OP_HOST_FUNC, sizeof m, NULL, 0, m.stream);
	return CUDA_OK;
}

int stream_before_reading(uint64_t stream)
{
	uint32_t posted = atomic_load(&functions_posted);
	if (!posted || posted == atomic_load(&channel_header->hostfunc_tail))
		return CUDA_OK;
	return wait_for_stream(stream);
}

int issue_host_call(const void *stream, CUhostFn function, void *data)
{
	return post_function((struct host_function){function, NULL, data, (void *)stream, 0});
}

int issue_callback(const void *stream, cudaStreamCallback_t callback, void *data)
{
	return post_function((struct host_function){NULL, callback, data, (void *)stream, 0});
}
