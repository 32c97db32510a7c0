/* dispatch_inprocess.c: a CUDA runtime over the software GPU in the program's own process.
 *
 * The other side of benchmarks/dispatch.py and splicing.py: the same program, the same device
 * (hal_soft, one worker), the same compiled kernels, and nothing between them. Stands where
 * libcudart.so.13 and libnccl.so.2 are looked for; has only what the benchmarked programs call, for
 * one host thread.
 *
 * All streams share one queue. Its order is the order of the calls, in which every event is
 * recorded before it is waited for, so waiting between streams is always fulfilled; and since one
 * worker runs one work at a time, no other runtime could finish the same work sooner. An
 * all-reduce of one rank is a copy onto itself: nothing. So one rank is a lower bound.
 *
 * Of several ranks (splicing.py) each is a process with a device of its own. They meet in shared
 * memory, piece by piece: each copies its input there, each sums a part of the elements, each
 * copies the result. The sums are hal_soft's, along the tree of docs/architecture.md: the same bits
 * as through the proxies. The call returns when its own part is done, which costs nothing where all
 * devices share one core.
 *
 * $DISPATCH_KERNELS: a shared object with the kernels, and in `dispatch_kernels` their layouts.
 * $DISPATCH_MEMORY: bytes of the device, if not 256 MiB. $DISPATCH_SHARED: a file of zeros that all
 * ranks of one run share, of the size that `struct shared` says.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
	const char *bytes = getenv("DISPATCH_MEMORY");
	struct hal_config config = {.memory_bytes = bytes ? strtoull(bytes, NULL, 0) : MEMORY_BYTES,
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
	/* Full: until some have space, as proxy/core/queue/pump.c does; not woken for each. */
	if (!hal_soft.available(queue))
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

/* ---- collectives ---- */

#define RANKS 8
#define PIECE_BYTES (4ull << 20) /* as the engine's: the summed data fits a near cache */
enum { TYPE_FLOAT = 7, TYPE_DOUBLE = 8, OP_SUM = 0, OP_AVG = 4 };

struct shared {
	_Atomic uint32_t arrived, round;
	_Alignas(
		4096) uint8_t slots[2][RANKS][PIECE_BYTES]; /* by turns: one is read, one written */
};
static struct shared *shared;
static uint32_t ranks = 1, self;
static uint64_t pieces;

/* Until all ranks are here, and what each has submitted is done. */
static void meet(void)
{
	struct spin spin = {0};
	uint32_t round = atomic_load(&shared->round);
	wait_for(last);
	if (atomic_fetch_add(&shared->arrived, 1) + 1 == ranks) {
		atomic_store(&shared->arrived, 0);
		atomic_store(&shared->round, round + 1);
		syscall(SYS_futex, &shared->round, FUTEX_WAKE, RANKS, NULL, NULL, 0);
		return;
	}
	while (atomic_load(&shared->round) == round)
		if (spin_on(&spin, SPIN_NS))
			(void)sched_yield();
		else
			syscall(SYS_futex, &shared->round, FUTEX_WAIT, round, NULL, NULL, 0);
}

static uint8_t *slot(uint32_t rank) { return shared->slots[pieces % 2][rank]; }

static struct hal_ref host(void *at) { return (struct hal_ref){NULL, (uint64_t)(uintptr_t)at}; }

static void copy(struct hal_ref dst, struct hal_ref src, uint64_t bytes)
{
	struct hal_work w = {.kind = HAL_COPY};
	w.copy.dst = dst, w.copy.src = src;
	w.copy.width = bytes, w.copy.height = 1;
	submit(&w);
}

/* Elements [at, at + count) of ranks [lo, hi) become their sum, in the slot of the first. A node of
 * the tree splits behind the largest power of two that is smaller than it. */
static void sum(uint32_t lo, uint32_t hi, uint64_t at, uint64_t count, uint32_t type)
{
	struct hal_work w = {.kind = HAL_REDUCE};
	uint64_t offset = at * (type == TYPE_DOUBLE ? 8 : 4);
	uint32_t left = 1;
	if (hi - lo == 1)
		return;
	while (2 * left < hi - lo)
		left *= 2;
	sum(lo, lo + left, at, count, type);
	sum(lo + left, hi, at, count, type);
	w.reduce.dst = w.reduce.a = host(slot(lo) + offset);
	w.reduce.b = host(slot(lo + left) + offset);
	w.reduce.count = count, w.reduce.dtype = type, w.reduce.op = HAL_SUM;
	submit(&w);
}

static void divide(uint64_t at, uint64_t count, uint32_t type)
{
	struct hal_work w = {.kind = HAL_SCALE};
	w.scale.dst = w.scale.a = host(slot(0) + at * (type == TYPE_DOUBLE ? 8 : 4));
	w.scale.count = count, w.scale.dtype = type;
	w.scale.divide = 1, w.scale.divisor = ranks;
	submit(&w);
}

EXPORT int ncclGetUniqueId(void *id) { return memset(id, 0, RF_UNIQUE_ID_BYTES), 0; }
struct unique_id {
	char bytes[RF_UNIQUE_ID_BYTES];
};
EXPORT int ncclCommInitRank(void **comm, int count, struct unique_id id, int rank)
{
	const char *path = getenv("DISPATCH_SHARED");
	(void)id;
	if (count < 1 || count > RANKS || rank < 0 || rank >= count || (count > 1 && !path))
		return 4;
	ranks = (uint32_t)count, self = (uint32_t)rank;
	if (count > 1) {
		int fd = open(path, O_RDWR | O_CLOEXEC);
		shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd < 0 || shared == MAP_FAILED)
			fail("DISPATCH_SHARED cannot be mapped");
	}
	return make(comm);
}
EXPORT int ncclCommDestroy(void *comm) { return free(comm), 0; }
EXPORT const char *ncclGetErrorString(int error) { return (void)error, "an error"; }

EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm,
			 void *stream)
{
	uint64_t size = type == TYPE_DOUBLE ? 8 : 4, most = PIECE_BYTES / size;
	(void)comm, (void)stream;
	if (ranks == 1)
		return send == recv ? 0 : 4;
	if ((type != TYPE_FLOAT && type != TYPE_DOUBLE) || (op != OP_SUM && op != OP_AVG))
		return 4;
	for (uint64_t done = 0, n; done < count; done += n, pieces++) {
		n = count - done < most ? count - done : most;
		uint64_t from = n * self / ranks, share = n * (self + 1) / ranks - from;
		copy(host(slot(self)), ref((const uint8_t *)send + done * size), n * size);
		meet();
		if (share)
			sum(0, ranks, from, share, (uint32_t)type);
		if (share && op == OP_AVG)
			divide(from, share, (uint32_t)type);
		meet();
		copy(ref((uint8_t *)recv + done * size), host(slot(0)), n * size);
	}
	return 0;
}

EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
			 void *stream)
{
	uint64_t bytes = count * (type == TYPE_DOUBLE ? 8 : 4);
	(void)comm, (void)stream;
	if (type != TYPE_FLOAT && type != TYPE_DOUBLE)
		return 4;
	for (uint64_t done = 0, n; ranks > 1 && done < bytes; done += n, pieces++) {
		n = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
		if ((uint32_t)root == self)
			copy(host(slot(0)), ref((const uint8_t *)send + done), n);
		meet();
		if ((uint32_t)root != self || send != recv)
			copy(ref((uint8_t *)recv + done), host(slot(0)), n);
	}
	return 0;
}
