/* stream.c: of the fake driver: streams, one thread each, and what runs in them (fake.h). */
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

enum kind { COPY, FILL, WRITE, RECORD, WAIT, HOST, KERNEL };

struct work {
	struct work *next;
	enum kind kind;
	CUdeviceptr dst, src;
	uint64_t width, height, dst_pitch, src_pitch, value;
	uint32_t element;
	CUevent event;
	CUhostFn function;
	void *argument;
	struct fake_launch launch;
	bool shared; /* it touches memory that other processes may have */
};

struct CUevent_st {
	uint64_t recorded, reached;
};

struct CUstream_st {
	struct CUstream_st *next;
	pthread_t thread;
	struct work *first, *last; /* the first one runs */
	bool ending;
};

static struct CUstream_st *streams;
static bool resetting; /* no call waits any more */
static bool held;      /* host functions wait */
static unsigned slow_us;

__attribute__((constructor)) static void from_environment(void)
{
	const char *wish = getenv("RANKFOLD_FAKE_SLOW_US");

	slow_us = wish ? (unsigned)atoi(wish) : 0;
}

EXPORT void fake_hold(int hold)
{
	pthread_mutex_lock(&fake_lock);
	held = hold;
	pthread_cond_broadcast(&fake_moved);
	pthread_mutex_unlock(&fake_lock);
}

static bool touches(CUdeviceptr at, const struct work *w, CUdeviceptr from, uint64_t pitch,
		    uint64_t bytes)
{
	return from && w->height && from < at + bytes &&
	       at < from + (w->height - 1) * pitch + w->width;
}

bool fake_in_use(CUdeviceptr at, uint64_t bytes)
{
	if (bytes && fake_order_touches(at, bytes))
		return true;
	for (const struct CUstream_st *s = streams; s; s = s->next)
		for (const struct work *w = s->first; w; w = w->next)
			if (bytes ? touches(at, w, w->dst, w->dst_pitch, bytes) ||
					    touches(at, w, w->src, w->src_pitch, bytes)
				  : w->kind == KERNEL && !w->launch.to)
				return true;
	return false;
}

static void fill(const struct work *w)
{
	for (uint64_t y = 0; y < w->height; y++)
		for (uint64_t x = 0; x < w->width; x += w->element)
			memcpy((uint8_t *)(uintptr_t)(w->dst + y * w->dst_pitch + x), &w->value,
			       w->element);
}

static void run(struct work *w)
{
	switch (w->kind) {
	case COPY:
		for (uint64_t y = 0; y < w->height; y++)
			memcpy((void *)(uintptr_t)(w->dst + y * w->dst_pitch),
			       (void *)(uintptr_t)(w->src + y * w->src_pitch), w->width);
		break;
	case FILL: fill(w); break;
	case WRITE: /* when it has left the queue: who sees it may think the stream idle */ break;
	case RECORD:
	case WAIT:
		pthread_mutex_lock(&fake_lock);
		if (w->kind == RECORD)
			w->event->reached = w->value;
		while (w->event->reached < w->value && !resetting)
			pthread_cond_wait(&fake_moved, &fake_lock);
		pthread_mutex_unlock(&fake_lock);
		break;
	case HOST:
		pthread_mutex_lock(&fake_lock);
		while (held && !resetting)
			pthread_cond_wait(&fake_moved, &fake_lock);
		pthread_mutex_unlock(&fake_lock);
		w->function(w->argument);
		break;
	case KERNEL: w->launch.run(w->launch.params); break;
	}
}

/* ---- faults of kernels ---- */

static _Thread_local sigjmp_buf *escape;
static struct sigaction previous_fault;

static void on_fault(int signum, siginfo_t *info, void *context)
{
	if (escape && fake_is_window((CUdeviceptr)(uintptr_t)info->si_addr))
		siglongjmp(*escape, 1);
	if (previous_fault.sa_flags & SA_SIGINFO)
		previous_fault.sa_sigaction(signum, info, context);
	else
		signal(signum, SIG_DFL); /* the access is tried again and ends the process */
}

static void install(void)
{
	struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	if (sigaction(SIGSEGV, &fault, &previous_fault))
		abort();
}

/* An access to the window that is not allowed ends a kernel, and with it the context. */
static void run_guarded(struct work *w)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf here;

	pthread_once(&once, install);
	if (w->kind != KERNEL) {
		run(w);
		return;
	}
	escape = &here;
	if (sigsetjmp(here, 1))
		w->launch.error = CUDA_ERROR_ILLEGAL_ADDRESS;
	else
		run(w);
	escape = NULL;
}

/* After the context's end nothing runs any more. */
static void *stream_main(void *arg)
{
	struct CUstream_st *s = arg;

	pthread_mutex_lock(&fake_lock);
	while (!s->ending) {
		struct work *w = s->first;

		if (!w || fake_dead) {
			pthread_cond_wait(&fake_moved, &fake_lock);
			continue;
		}
		pthread_mutex_unlock(&fake_lock);
		if (w->shared && slow_us)
			usleep(slow_us);
		if (w->kind != KERNEL || !w->launch.error)
			run_guarded(w);
		pthread_mutex_lock(&fake_lock);
		if (w->shared)
			fake_order_end(w);
		if (w->kind == KERNEL && w->launch.error)
			fake_dead = w->launch.error;
		s->first = w->next;
		if (!s->first)
			s->last = NULL;
		if (w->kind == WRITE && !s->ending)
			atomic_store((_Atomic uint64_t *)(uintptr_t)w->dst, w->value);
		free(w);
		pthread_cond_broadcast(&fake_moved);
	}
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

/* Under fake_lock: notes what a work touches. */
static void order(struct work *w)
{
	uint64_t rows = w->height ? w->height - 1 : 0;

	if (w->kind == KERNEL && w->launch.to) {
		w->shared |= fake_order_begin(w, w->launch.to, w->launch.bytes, true);
		for (int i = 0; i < 2; i++)
			if (w->launch.from[i])
				w->shared |= fake_order_begin(w, w->launch.from[i], w->launch.bytes,
							      false);
	}
	if ((w->kind == COPY || w->kind == FILL) && w->height)
		w->shared |= fake_order_begin(w, w->dst, rows * w->dst_pitch + w->width, true);
	if (w->kind == COPY && w->height)
		w->shared |= fake_order_begin(w, w->src, rows * w->src_pitch + w->width, false);
}

/* Under fake_lock. */
static CUresult push(CUstream s, const struct work *w)
{
	struct work *copy = malloc(sizeof *copy);

	*copy = *w;
	order(copy);
	copy->next = NULL;
	if (s->last)
		s->last->next = copy;
	else
		s->first = copy;
	s->last = copy;
	pthread_cond_broadcast(&fake_moved);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	CUstream s;

	ENTER(cuStreamCreate);
	if (flags != CU_STREAM_NON_BLOCKING)
		fake_fault("cuStreamCreate: a stream that waits for the legacy one");
	s = calloc(1, sizeof *s);
	s->next = streams;
	streams = s;
	pthread_create(&s->thread, NULL, stream_main, s);
	*out = s;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
	ENTER(cuStreamDestroy_v2);
	if (s->first) {
		fake_fault("cuStreamDestroy: work is under way");
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (CUstream *at = &streams; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			break;
		}
	s->ending = true;
	pthread_cond_broadcast(&fake_moved);
	pthread_mutex_unlock(&fake_lock);
	pthread_join(s->thread, NULL);
	free(s);
	return CUDA_SUCCESS;
}

void fake_end_streams(void)
{
	CUstream all = streams;

	streams = NULL;
	resetting = true;
	for (CUstream s = all; s; s = s->next)
		s->ending = true;
	pthread_cond_broadcast(&fake_moved);
	for (CUstream s = all, next; s; s = next) {
		next = s->next;
		pthread_mutex_unlock(&fake_lock);
		pthread_join(s->thread, NULL);
		pthread_mutex_lock(&fake_lock);
		free(s);
	}
	resetting = false;
}

EXPORT CUresult cuStreamQuery(CUstream s)
{
	ENTER(cuStreamQuery);
	return fake_leave(s->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr at, cuuint64_t number,
					unsigned flags)
{
	struct work w = {.kind = WRITE, .dst = at, .width = 8, .height = 1, .value = number};

	ENTER(cuStreamWriteValue64_v2);
	if (at % 8 || flags || !fake_reachable(at, 8)) {
		fake_fault("cuStreamWriteValue64: %#llx", at);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	return fake_leave(push(s, &w));
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	ENTER(cuEventCreate);
	if (flags != CU_EVENT_DISABLE_TIMING)
		fake_fault("cuEventCreate: an event that takes times");
	*out = calloc(1, sizeof **out);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER(cuEventDestroy_v2);
	if (event->reached != event->recorded)
		fake_fault("cuEventDestroy: it is still to be reached");
	free(event);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream s)
{
	ENTER(cuEventRecord);
	return fake_leave(push(
		s, &(struct work){.kind = RECORD, .event = event, .value = ++event->recorded}));
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent event, unsigned flags)
{
	ENTER(cuStreamWaitEvent);
	if (flags)
		fake_fault("cuStreamWaitEvent: flags %#x", flags);
	return fake_leave(
		push(s, &(struct work){.kind = WAIT, .event = event, .value = event->recorded}));
}

void fake_push_host(CUstream s, CUhostFn function, void *argument)
{
	push(s, &(struct work){.kind = HOST, .function = function, .argument = argument});
}

EXPORT CUresult cuLaunchHostFunc(CUstream s, CUhostFn function, void *argument)
{
	ENTER(cuLaunchHostFunc);
	fake_push_host(s, function, argument);
	return fake_leave(CUDA_SUCCESS);
}

static CUresult copy(const char *call, CUstream s, struct work w)
{
	w.kind = COPY;
	for (uint64_t y = 0; y < w.height; y++)
		if (!fake_reachable(w.dst + y * w.dst_pitch, w.width) ||
		    !fake_reachable(w.src + y * w.src_pitch, w.width)) {
			fake_fault("%s: %#llx from %#llx, %llu bytes: not all is device memory or "
				   "pinned",
				   call, w.dst, w.src, (unsigned long long)w.width);
			return CUDA_ERROR_INVALID_VALUE;
		}
	return push(s, &w);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	struct work w = {.dst = dst, .src = src, .width = bytes, .height = 1};

	ENTER(cuMemcpyAsync);
	return fake_leave(copy("cuMemcpyAsync", s, w));
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s)
{
	struct work w = {.dst = c->dstDevice,
			 .src = c->srcDevice,
			 .width = c->WidthInBytes,
			 .height = c->Height,
			 .dst_pitch = c->dstPitch,
			 .src_pitch = c->srcPitch};

	ENTER(cuMemcpy2DAsync_v2);
	if (c->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
	    c->dstMemoryType != CU_MEMORYTYPE_UNIFIED || c->srcXInBytes || c->srcY ||
	    c->dstXInBytes || c->dstY || c->srcPitch < c->WidthInBytes ||
	    c->dstPitch < c->WidthInBytes || c->srcPitch >= 1ull << 31 ||
	    c->dstPitch >= 1ull << 31) {
		fake_fault("cuMemcpy2DAsync: pitches %zu and %zu of %zu", c->dstPitch, c->srcPitch,
			   c->WidthInBytes);
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	return fake_leave(copy("cuMemcpy2DAsync", s, w));
}

static CUresult set(CUstream s, CUdeviceptr at, size_t pitch, unsigned number, unsigned element,
		    size_t width, size_t height)
{
	struct work w = {.kind = FILL,
			 .dst = at,
			 .width = width * element,
			 .height = height,
			 .dst_pitch = pitch,
			 .value = number,
			 .element = element};
	bool good = at % element == 0 &&
		    (height == 1 || (pitch % element == 0 && pitch >= w.width));

	for (uint64_t y = 0; good && y < height; y++)
		good = fake_reachable(at + y * pitch, w.width);
	if (good)
		return push(s, &w);
	fake_fault("cuMemsetD2D%uAsync: %#llx", 8 * element, at);
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr at, size_t pitch, unsigned char number, size_t width,
				  size_t height, CUstream s)
{
	ENTER(cuMemsetD2D8Async);
	return fake_leave(set(s, at, pitch, number, 1, width, height));
}

EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr at, size_t pitch, unsigned short number,
				   size_t width, size_t height, CUstream s)
{
	ENTER(cuMemsetD2D16Async);
	return fake_leave(set(s, at, pitch, number, 2, width, height));
}

EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr at, size_t pitch, unsigned number, size_t width,
				   size_t height, CUstream s)
{
	ENTER(cuMemsetD2D32Async);
	return fake_leave(set(s, at, pitch, number, 4, width, height));
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
				 void **extra)
{
	struct work w = {.kind = KERNEL};
	CUresult error;

	ENTER(cuLaunchKernelEx);
	if (params)
		fake_fault("cuLaunchKernelEx: parameters in two ways");
	if (!fake_window_open()) {
		fake_fault("cuLaunchKernelEx: memory that is mapped but may not be accessed");
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	}
	error = fake_launch_check(config, function, extra, &w.launch);
	if (w.launch.to) { /* as a copy: what it touches must not go meanwhile */
		w.dst = w.src = w.launch.to;
		w.width = w.launch.bytes;
		w.height = 1;
	}
	return fake_leave(error ? error : push(config->hStream, &w));
}

CUresult fake_push_near(CUstream s, void (*run)(const uint8_t *), const void *params, size_t bytes,
			CUdeviceptr at, uint64_t touched)
{
	struct work w = {.kind = KERNEL,
			 .dst = at,
			 .src = at,
			 .width = touched,
			 .height = 1,
			 .launch = {.run = run, .to = at, .bytes = touched}};

	memcpy(w.launch.params, params, bytes);
	return push(s, &w);
}

CUresult fake_push_kernel(CUstream s, void (*run)(const uint8_t *), const void *params,
			  size_t bytes)
{
	struct work w = {.kind = KERNEL, .launch.run = run};

	if (bytes > sizeof w.launch.params)
		abort();
	memcpy(w.launch.params, params, bytes);
	return push(s, &w);
}
