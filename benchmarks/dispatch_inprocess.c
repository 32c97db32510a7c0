/* dispatch_inprocess.c: a CUDA runtime over the software GPU in the program's own process.
 *
 * The other side of benchmarks/dispatch.py: the same program, the same device (hal_soft, one
 * worker), the same compiled kernels, and nothing between them. Stands where libcudart.so.13 and
 * libnccl.so.2 are looked for; has only what the benchmarked programs call, for one rank and one
 * host thread.
 *
 * All streams share one queue. Its order is the order of the calls, in which every event is
 * recorded before it is waited for, so waiting between streams is always fulfilled; and since one
 * worker runs one work at a time, no other runtime could finish the same work sooner. An
 * all-reduce of one rank is a copy onto itself: nothing. So this side is a lower bound.
 *
 * $DISPATCH_KERNELS: a shared object with the kernels, and in `dispatch_kernels` their layouts.
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hal.h"
#include "spin.h"

#define EXPORT __attribute__((visibility("default")))
#define MEMORY_BYTES (256ull << 20)
#define FUNCTIONS_MAX 64
#define QUEUE_WORKS 64 /* at least: hal.h */
#define REFILL_WORKS 32
#define SPIN_NS 50000u
#define SPINS 300 /* as interpose/client/base/channel.c: the same way of waiting on both sides */

struct param {
	uint32_t offset, bytes;
};
struct kernel { /* what dispatch.py writes */
	const char *name;
	const struct hal_function *function;
	uint32_t param_bytes, param_count;
	const struct param *params;
};
struct dim3 {
	uint32_t x, y, z;
};

static const struct kernel *kernels;
static struct {
	const void *host;
	const struct kernel *kernel;
} functions[FUNCTIONS_MAX];
static uint32_t function_count;
static struct hal_device *device;
static struct hal_space *space;
static struct hal_stream *queue;
static uint64_t last, heap = RF_DEV_BASE, mapped = RF_DEV_BASE;
static _Atomic uint32_t moved, waiting;
static struct {
	struct dim3 grid, block;
	size_t shared;
	void *stream;
} configuration;

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "in-process runtime: %s\n", what);
	exit(1);
}

/* ---- the device ---- */

static void on_moved(void *unused)
{
	(void)unused;
	atomic_fetch_add(&moved, 1);
	if (atomic_load(&waiting))
		syscall(SYS_futex, &moved, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void open_device(void)
{
	struct hal_config config = {.memory_bytes = MEMORY_BYTES,
				    .workers = 1,
				    .cc_major = 8,
				    .speed = 1.0,
				    .ring = on_moved};
	if (hal_soft.device_open(&config, &device) || hal_soft.space_create(device, &space) ||
	    hal_soft.stream_create(device, &queue))
		fail("no device");
}

/* Until `number` is done: first awake, then asleep. */
static void wait_for(uint64_t number)
{
	for (int n = 0; n < SPINS; n++) {
		if (hal_soft.completed(queue) >= number)
			return;
		__builtin_ia32_pause();
	}
	struct spin spin = {0};
	while (hal_soft.completed(queue) < number && spin_on(&spin, SPIN_NS))
		(void)sched_yield();
	hal_soft.notify_at(queue, number);
	while (hal_soft.completed(queue) < number) {
		uint32_t seen = atomic_load(&moved);
		atomic_store(&waiting, 1);
		if (hal_soft.completed(queue) < number)
			syscall(SYS_futex, &moved, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
		atomic_store(&waiting, 0);
	}
}

static void submit(const struct hal_work *work)
{
	/* Full: until some have room, as proxy/core/queue/pump.c does; not woken for each. */
	if (!hal_soft.room(queue))
		wait_for(last - QUEUE_WORKS + REFILL_WORKS);
	last = hal_soft.submit(queue, work);
	if (!last)
		fail("the device refused a work");
}

static int synchronize(uint64_t number)
{
	wait_for(number);
	return hal_soft.space_error(space, NULL, 0);
}

/* ---- kernels ---- */

EXPORT void **__cudaRegisterFatBinary(void *image)
{
	if (!kernels) {
		const char *path = getenv("DISPATCH_KERNELS");
		void *library = path ? dlopen(path, RTLD_NOW) : NULL;
		kernels = library ? dlsym(library, "dispatch_kernels") : NULL;
		if (!kernels)
			fail("DISPATCH_KERNELS does not name the kernels");
		open_device();
	}
	return image;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *stub, const char *name)
{
	(void)handle, (void)stub;
	for (const struct kernel *k = kernels; k->name; k++) {
		if (strcmp(k->name, name) || function_count == FUNCTIONS_MAX)
			continue;
		functions[function_count].host = host;
		functions[function_count++].kernel = k;
		return;
	}
	fail(name);
}

EXPORT unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
					    void *stream)
{
	configuration.grid = grid, configuration.block = block;
	configuration.shared = shared, configuration.stream = stream;
	return 0;
}

EXPORT int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared,
				      void *stream)
{
	*grid = configuration.grid, *block = configuration.block;
	*shared = configuration.shared, *(void **)stream = configuration.stream;
	return 0;
}

EXPORT int __cudaGetKernel(const void **kernel, const void *host)
{
	for (uint32_t i = 0; i < function_count; i++)
		if (functions[i].host == host)
			*kernel = functions[i].kernel;
	return 0;
}

EXPORT int __cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **args,
			      size_t shared, void *stream)
{
	const struct kernel *k = kernel;
	uint8_t params[4096];
	struct hal_work w = {.kind = HAL_KERNEL};
	(void)stream;
	for (uint32_t i = 0; i < k->param_count; i++)
		memcpy(params + k->params[i].offset, args[i], k->params[i].bytes);
	w.kernel.space = space;
	w.kernel.function = k->function;
	memcpy(w.kernel.grid, &grid, sizeof grid);
	memcpy(w.kernel.block, &block, sizeof block);
	w.kernel.shared_bytes = (uint32_t)shared;
	w.kernel.params = params;
	w.kernel.param_bytes = k->param_bytes;
	submit(&w);
	return 0;
}

/* ---- memory ---- */

EXPORT int cudaMalloc(void **address, size_t bytes)
{
	uint32_t chunk;
	*address = (void *)heap;
	heap += (bytes + RF_ALLOC_ALIGN - 1) / RF_ALLOC_ALIGN * RF_ALLOC_ALIGN;
	for (; mapped < heap; mapped += RF_CHUNK_BYTES)
		if (hal_soft.chunk_create(device, &chunk) ||
		    hal_soft.space_map(space, mapped, chunk, true))
			return 2;
	return 0;
}
EXPORT int cudaFree(void *address) { return (void)address, 0; }

EXPORT int cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
	(void)flags;
	return *address = calloc(1, bytes), *address ? 0 : 2;
}
EXPORT int cudaFreeHost(void *address) { return free(address), 0; }

static struct hal_ref ref(const void *address)
{
	uint64_t at = (uint64_t)(uintptr_t)address;
	return (struct hal_ref){at - RF_DEV_BASE < RF_WINDOW_BYTES ? space : NULL, at};
}

EXPORT int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	struct hal_work w = {.kind = HAL_COPY};
	(void)kind, (void)stream;
	w.copy.dst = ref(dst), w.copy.src = ref(src);
	w.copy.width = bytes, w.copy.height = 1;
	submit(&w);
	return 0;
}

EXPORT int cudaMemcpy(void *dst, const void *src, size_t bytes, int kind)
{
	return cudaMemcpyAsync(dst, src, bytes, kind, NULL), synchronize(last);
}

EXPORT int cudaMemsetAsync(void *dst, int value, size_t bytes, void *stream)
{
	struct hal_work w = {.kind = HAL_FILL};
	(void)stream;
	w.fill.dst = ref(dst), w.fill.width = bytes, w.fill.height = 1;
	w.fill.value = (uint8_t)value, w.fill.element = 1;
	submit(&w);
	return 0;
}
EXPORT int cudaMemset(void *dst, int value, size_t bytes)
{
	return cudaMemsetAsync(dst, value, bytes, NULL);
}

/* ---- streams and events: an event is the number of the last work before it ---- */

static int make(void **out) { return *out = calloc(1, sizeof last), *out ? 0 : 2; }
EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
	return (void)flags, make(stream);
}
EXPORT int cudaStreamDestroy(void *stream) { return free(stream), 0; }
EXPORT int cudaStreamSynchronize(void *stream) { return (void)stream, synchronize(last); }
EXPORT int cudaDeviceSynchronize(void) { return synchronize(last); }
EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags)
{
	return (void)flags, make(event);
}
EXPORT int cudaEventDestroy(void *event) { return free(event), 0; }
EXPORT int cudaEventRecord(void *event, void *stream)
{
	return (void)stream, *(uint64_t *)event = last, 0;
}
EXPORT int cudaEventSynchronize(void *event) { return synchronize(*(uint64_t *)event); }
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	return (void)stream, (void)event, (void)flags, 0;
}

/* ---- the rest ---- */

EXPORT int cudaSetDevice(int ordinal) { return ordinal ? 101 : 0; }
EXPORT int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
EXPORT int cudaGetLastError(void) { return hal_soft.space_error(space, NULL, 0); }
EXPORT const char *cudaGetErrorString(int error) { return (void)error, "an error"; }

EXPORT int ncclGetUniqueId(void *id) { return memset(id, 0, RF_UNIQUE_ID_BYTES), 0; }
struct unique_id {
	char bytes[RF_UNIQUE_ID_BYTES];
};
EXPORT int ncclCommInitRank(void **comm, int ranks, struct unique_id id, int rank)
{
	return (void)id, ranks == 1 && rank == 0 ? make(comm) : 4;
}
EXPORT int ncclCommDestroy(void *comm) { return free(comm), 0; }
EXPORT const char *ncclGetErrorString(int error) { return (void)error, "an error"; }

/* Of one rank, in place. */
EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm,
			 void *stream)
{
	(void)count, (void)type, (void)op, (void)comm, (void)stream;
	return send == recv ? 0 : 4;
}
EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
			 void *stream)
{
	return root ? 4 : ncclAllReduce(send, recv, count, type, 0, comm, stream);
}
