/* probe.c: measures on a real driver what proxy/hal/nvidia assumes of one (docs/nvidia.md). Prints
 * a line of JSON for each figure: name, value, unit, how. Needs gcc and the driver alone; each
 * measurement is bounded in count and time, all of them together take under 20 s.
 *
 *   probe          everything that cannot end the context
 *   probe pinned   shared memory of this process, registered with the driver, and whether a kernel
 *                  reaches it when it is not: a process of its own
 *   probe shared   cost and effect of read-only mappings; the last access ends the context
 *   probe ptx      prints the kernels that it gives to the driver
 *
 * One thread, one context. Whatever fails is said on stderr and ends the process with 1.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "channel.h"
#include "driver.h"

#define ROUNDS 200
#define LAUNCHES 2000
#define MEASURE_NS 1500000000ull /* a loop ends by then, whatever it has done */
#define WAIT_NS 5000000000ull    /* nothing that is waited for takes so long */
#define COMPILED_KERNELS 32
#define COMPILED_LINES 256
#define PUT_VALUE 0x600dF00du

#define KERNELS                                                                                    \
	".version 7.5\n.target sm_75\n.address_size 64\n"                                          \
	".visible .entry empty()\n{\n\tret;\n}\n"                                                  \
	".visible .entry put(\n\t.param .u64 at,\n\t.param .u32 value\n)\n{\n"                     \
	"\t.reg .b64 %rd<2>;\n\t.reg .b32 %r<2>;\n"                                                \
	"\tld.param.u64 %rd1, [at];\n\tld.param.u32 %r1, [value];\n"                               \
	"\tst.u32 [%rd1], %r1;\n\tret;\n}\n"                                                       \
	".visible .entry forward(\n\t.param .u64 from,\n\t.param .u64 to\n)\n{\n"                  \
	"\t.reg .b64 %rd<3>;\n\t.reg .b32 %r<2>;\n"                                                \
	"\tld.param.u64 %rd1, [from];\n\tld.param.u64 %rd2, [to];\n"                               \
	"\tld.u32 %r1, [%rd1];\n\tst.u32 [%rd2], %r1;\n\tret;\n}\n"

static const struct nvidia_driver *d;
static CUstream stream;
static CUmodule module;
static uint64_t *counter; /* pinned: the stream writes it */
static uint64_t written;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 2, 3), noreturn)) static void fail(CUresult error, const char *format,
								 ...)
{
	const char *name = NULL;
	va_list arguments;

	d->cuGetErrorName(error, &name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s (%d)\n", name ? name : "an error", error);
	exit(1);
}

#define TRY(call, ...)                                                                             \
	do {                                                                                       \
		CUresult error_ = d->call(__VA_ARGS__);                                            \
		if (error_)                                                                        \
			fail(error_, "%s", #call);                                                 \
	} while (0)

static void say(const char *name, double value, const char *unit, const char *how)
{
	printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"how\": \"%s\"}\n", name,
	       value, unit, how);
	fflush(stdout);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void say_percentiles(const char *name, double *us, int count, const char *how)
{
	char full[64];

	qsort(us, (size_t)count, sizeof *us, compare);
	snprintf(full, sizeof full, "%s_p50", name);
	say(full, us[count / 2], "us", how);
	snprintf(full, sizeof full, "%s_p99", name);
	say(full, us[count * 99 / 100], "us", how);
}

/* ---- work ---- */

static void launch(CUfunction function, void **extra)
{
	CUlaunchConfig config = {.gridDimX = 1,
				 .gridDimY = 1,
				 .gridDimZ = 1,
				 .blockDimX = 1,
				 .blockDimY = 1,
				 .blockDimZ = 1,
				 .hStream = stream};

	TRY(cuLaunchKernelEx, &config, function, NULL, extra);
}

static void write_next(void)
{
	TRY(cuStreamWriteValue64_v2, stream, (CUdeviceptr)(uintptr_t)counter, ++written, 0);
}

static void await(_Atomic uint64_t *word, uint64_t value, const char *what)
{
	uint64_t end = now_ns() + WAIT_NS;

	while (atomic_load(word) < value)
		if (now_ns() > end)
			fail(CUDA_ERROR_NOT_READY, "%s is not there after %llu s", what,
			     WAIT_NS / 1000000000u);
}

static void settle(void)
{
	CUresult error;
	uint64_t end = now_ns() + WAIT_NS;

	while ((error = d->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
		if (now_ns() > end)
			break;
	if (error)
		fail(error, "the stream");
}

static CUfunction function(const char *name)
{
	CUfunction found;

	TRY(cuModuleGetFunction, &found, module, name);
	return found;
}

/* ---- what is measured ---- */

/* Returns where chunks can be mapped. */
static CUdeviceptr reservation(void)
{
	CUdeviceptr at = 0;

	TRY(cuMemAddressReserve, &at, RF_HEAP_BYTES, RF_CHUNK_BYTES, RF_DEV_BASE, 0);
	return at;
}

static CUdeviceptr reserve(void)
{
	CUdeviceptr at = reservation();

	say("fixed_address_reserved", at == RF_DEV_BASE, "bool",
	    "1: the driver gives all of a rank's heap at its address");
	return at;
}

static void set_access(CUdeviceptr at, uint64_t bytes, bool writable)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
				  writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
					   : CU_MEM_ACCESS_FLAGS_PROT_READ};

	TRY(cuMemSetAccess, at, bytes, &access, 1);
}

/* Cost of mapping and unmapping `count` handles of `bytes` each, one behind the other. */
static void map_and_unmap(CUdeviceptr base, CUmemGenericAllocationHandle *handles, uint32_t count,
			  uint64_t bytes)
{
	const char *names[] = {"map", "set_access", "close", "open", "unmap"};
	uint64_t t[6] = {now_ns()};
	char name[64], how[32];

	for (uint32_t i = 0; i < count; i++)
		TRY(cuMemMap, base + i * bytes, bytes, 0, handles[i], 0);
	t[1] = now_ns();
	for (int i = 0; i < 3; i++) { /* then read-only, and writable again, in one call each */
		set_access(base, count * bytes, i != 1);
		t[2 + i] = now_ns();
	}
	for (uint32_t i = 0; i < count; i++)
		TRY(cuMemUnmap, base + i * bytes, bytes);
	t[5] = now_ns();
	snprintf(how, sizeof how, "%u MiB each", (unsigned)(bytes >> 20));
	for (int i = 0; i < 5; i++) {
		if (bytes == RF_CHUNK_BYTES)
			snprintf(name, sizeof name, "%s_per_chunk_%u", names[i], count);
		else
			snprintf(name, sizeof name, "%s_per_%u_mib", names[i],
				 (unsigned)(bytes >> 20));
		say(name, (double)(t[i + 1] - t[i]) / 1e3 / count, "us", how);
	}
}

static void mapping(CUdeviceptr base)
{
	static CUmemGenericAllocationHandle chunks[8192];
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const uint32_t counts[] = {64, 512, 4096, 8192}, larger[] = {8, 32, 128};
	size_t free_bytes, total;
	uint64_t begun;
	uint32_t made = 0;

	TRY(cuMemGetInfo_v2, &free_bytes, &total);
	say("memory_free", (double)free_bytes, "bytes", "of the GPU, with the context made");
	begun = now_ns();
	while (made < 8192 && (made + 1) * RF_CHUNK_BYTES < free_bytes / 10 * 9 &&
	       now_ns() - begun < 2 * MEASURE_NS)
		TRY(cuMemCreate, &chunks[made++], RF_CHUNK_BYTES, &prop, 0);
	if (!made)
		fail(CUDA_ERROR_OUT_OF_MEMORY, "no chunk can be made");
	say("create_per_chunk", (double)(now_ns() - begun) / 1e3 / made, "us", "2 MiB a chunk");
	for (int i = 0; i < 4; i++)
		if (counts[i] <= made)
			map_and_unmap(base, chunks, counts[i], RF_CHUNK_BYTES);
	while (made)
		TRY(cuMemRelease, chunks[--made]);
	for (int i = 0; i < 3; i++) { /* 1 GiB in handles of so many chunks */
		uint64_t bytes = larger[i] * RF_CHUNK_BYTES, count = 512 / larger[i];

		while (made < count && made * bytes < free_bytes / 2)
			TRY(cuMemCreate, &chunks[made++], bytes, &prop, 0);
		if (made)
			map_and_unmap(base, chunks, made, bytes);
		while (made)
			TRY(cuMemRelease, chunks[--made]);
	}
}

/* Microseconds for each of LAUNCHES launches, each with a write of the stream behind it or not. */
static double per_launch(bool with_writes)
{
	CUfunction empty = function("empty");
	uint64_t begun = now_ns();

	for (int i = 0; i < LAUNCHES; i++) {
		launch(empty, NULL);
		if (with_writes)
			write_next();
	}
	if (!with_writes)
		write_next();
	await((_Atomic uint64_t *)counter, written, "the stream's write");
	return (double)(now_ns() - begun) / 1e3 / LAUNCHES;
}

static void stream_writes(void)
{
	double alone = 1e9, with = 1e9, us[ROUNDS];
	CUfunction empty = function("empty");

	per_launch(true);
	for (int i = 0; i < 5; i++) {
		double a = per_launch(false), w = per_launch(true);

		alone = a < alone ? a : alone;
		with = w < with ? w : with;
	}
	say("launch", alone, "us", "an empty kernel, of 2,000 behind one another; best of 5");
	say("stream_write_gap", with - alone, "us", "what a write behind each adds; best of 5");
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t begun = now_ns();

		launch(empty, NULL);
		write_next();
		await((_Atomic uint64_t *)counter, written, "the stream's write");
		us[i] = (double)(now_ns() - begun) / 1e3;
	}
	say_percentiles("launch_until_seen", us, ROUNDS,
			"an empty kernel and a write, until the host sees it");
}

static void arrive(void *argument) { atomic_store((_Atomic uint64_t *)argument, now_ns()); }

static void host_functions(void)
{
	_Atomic uint64_t called;
	double us[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t begun;

		settle();
		atomic_store(&called, 0);
		begun = now_ns();
		TRY(cuLaunchHostFunc, stream, arrive, &called);
		await(&called, 1, "a host function");
		us[i] = (double)(atomic_load(&called) - begun) / 1e3;
	}
	settle();
	say_percentiles("host_function", us, ROUNDS, "in an idle stream, until it runs");
}

/* KERNELS and COMPILED_KERNELS more; the caller's to free. */
static char *kernels_text(void)
{
	size_t room = sizeof KERNELS + COMPILED_KERNELS * (512 + COMPILED_LINES * 48u), used;
	char *text = malloc(room);

	if (!text)
		exit(1);
	used = (size_t)snprintf(text, room, "%s", KERNELS);
	for (int k = 0; k < COMPILED_KERNELS; k++) {
		used += (size_t)snprintf(
			text + used, room - used,
			".visible .entry k%d(\n\t.param .u64 at\n)\n{\n\t.reg .b64 %%rd<2>;\n"
			"\t.reg .f32 %%f<4>;\n\tld.param.u64 %%rd1, [at];\n"
			"\tld.global.f32 %%f1, [%%rd1];\n\tmov.f32 %%f2, %%f1;\n",
			k);
		for (int i = 0; i < COMPILED_LINES; i++)
			used += (size_t)snprintf(text + used, room - used,
						 "\tfma.rn.f32 %%f2, "
						 "%%f2, %%f1, 0f%08X;\n",
						 0x3f800000u + (unsigned)(k * 1000 + i));
		used += (size_t)snprintf(text + used, room - used,
					 "\tst.global.f32 [%%rd1], %%f2;\n\tret;\n}\n");
	}
	return text;
}

static void ptx_compilation(void)
{
	char *text = kernels_text();
	uint64_t begun = now_ns();
	CUmodule compiled;

	TRY(cuModuleLoadDataEx, &compiled, text, 0, NULL, NULL);
	say("ptx_compile_per_kernel", (double)(now_ns() - begun) / 1e6 / COMPILED_KERNELS, "ms",
	    "256 multiply-adds each, no cache of the driver's");
	free(text);
}

#define REGISTERED_CHUNKS 64u
#define COPIES 4u /* of all chunks */

/* GB/s of copies to the device, chunk by chunk, from host memory that the driver knows. */
static double copy_rate(const uint8_t *from, CUdeviceptr to)
{
	uint64_t begun;

	settle();
	begun = now_ns();
	for (uint32_t i = 0; i < COPIES * REGISTERED_CHUNKS; i++)
		TRY(cuMemcpyAsync, to,
		    (CUdeviceptr)(uintptr_t)from + i % REGISTERED_CHUNKS * RF_CHUNK_BYTES,
		    RF_CHUNK_BYTES, stream);
	settle();
	return COPIES * REGISTERED_CHUNKS * (double)RF_CHUNK_BYTES / (double)(now_ns() - begun);
}

/* Shared memory at a rank's address, registered as pins.c does it: what that costs, whether a
 * kernel reaches it there, and how fast copies are. */
static void registered(uint8_t *memory)
{
	struct {
		uint64_t at;
		uint32_t value;
	} params = {(uintptr_t)memory, PUT_VALUE};
	size_t bytes = 12;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &params, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, CU_LAUNCH_PARAM_END};
	CUdeviceptr to = 0;
	uint8_t *pinned = NULL;
	double us[REGISTERED_CHUNKS];

	for (uint32_t i = 0; i < REGISTERED_CHUNKS; i++) {
		uint64_t begun = now_ns();

		TRY(cuMemHostRegister_v2, memory + i * RF_CHUNK_BYTES, RF_CHUNK_BYTES,
		    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
		us[i] = (double)(now_ns() - begun) / 1e3;
	}
	say_percentiles("register_chunk", us, REGISTERED_CHUNKS, "2 MiB of shared memory");
	launch(function("put"), extra);
	settle();
	say("registered_memory_reached", *(volatile uint32_t *)memory == PUT_VALUE, "bool",
	    "1: a kernel writes to it at the address that the process has");
	TRY(cuMemAllocAsync, &to, RF_CHUNK_BYTES, stream);
	TRY(cuMemHostAlloc, (void **)&pinned, REGISTERED_CHUNKS * RF_CHUNK_BYTES, 0);
	copy_rate(memory, to); /* the first time is slower */
	say("registered_copy", copy_rate(memory, to), "GB/s", "to the device, 2 MiB at a time");
	say("pinned_copy", copy_rate(pinned, to), "GB/s", "the same from memory of the driver's");
	TRY(cuMemFreeAsync, to, stream);
	settle();
	TRY(cuMemFreeHost, pinned);
	for (uint32_t i = 0; i < REGISTERED_CHUNKS; i++) {
		uint64_t begun = now_ns();

		TRY(cuMemHostUnregister, memory + i * RF_CHUNK_BYTES);
		us[i] = (double)(now_ns() - begun) / 1e3;
	}
	say_percentiles("unregister_chunk", us, REGISTERED_CHUNKS, "2 MiB of shared memory");
}

/* Shared memory of this process, at the address of a rank's pinned memory. */
static void pinned(void)
{
	uint64_t at = RF_DEV_BASE + RF_HEAP_BYTES;
	struct {
		uint64_t at;
		uint32_t value;
	} params = {at, PUT_VALUE};
	size_t bytes = 12;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &params, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, CU_LAUNCH_PARAM_END};
	int fd = memfd_create("probe", MFD_CLOEXEC);
	_Atomic uint32_t *word;
	uint64_t end;

	if (fd < 0 || ftruncate(fd, REGISTERED_CHUNKS * RF_CHUNK_BYTES))
		fail(CUDA_ERROR_OUT_OF_MEMORY, "no shared memory");
	word = mmap((void *)(uintptr_t)at, REGISTERED_CHUNKS * RF_CHUNK_BYTES,
		    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	if (word == MAP_FAILED)
		fail(CUDA_ERROR_OUT_OF_MEMORY, "the addresses of pinned memory are taken");
	registered((uint8_t *)word);
	atomic_store(word, 0);
	launch(function("put"), extra);
	end = now_ns() + WAIT_NS;
	while (atomic_load(word) != PUT_VALUE && d->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY &&
	       now_ns() < end)
		;
	say("pinned_memory_reached", atomic_load(word) == PUT_VALUE, "bool",
	    "1: a kernel writes to shared memory that is not registered (HMM or ATS)");
}

static void run_kernel(const char *name, void *params, size_t bytes)
{
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, params, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, CU_LAUNCH_PARAM_END};

	launch(function(name), extra);
}

/* Until the stream is idle, or has failed. */
static CUresult outcome(void)
{
	uint64_t end = now_ns() + WAIT_NS;
	CUresult error = CUDA_ERROR_NOT_READY;

	while (error == CUDA_ERROR_NOT_READY && now_ns() < end)
		error = d->cuStreamQuery(stream);
	return error;
}

/* A chunk at two addresses, writable at one and read-only at the other, as ranks that share have
 * it. */
static void shared(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle chunk;
	CUdeviceptr at = reservation(), alias = 0;
	struct {
		uint64_t at, other;
	} params;
	double us[ROUNDS];

	TRY(cuMemAddressReserve, &alias, RF_CHUNK_BYTES, RF_CHUNK_BYTES, 0, 0);
	TRY(cuMemCreate, &chunk, RF_CHUNK_BYTES, &prop, 0);
	TRY(cuMemMap, alias, RF_CHUNK_BYTES, 0, chunk, 0);
	TRY(cuMemMap, at, RF_CHUNK_BYTES, 0, chunk, 0);
	set_access(alias, RF_CHUNK_BYTES, true);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t begun = now_ns();

		set_access(at, RF_CHUNK_BYTES, i % 2 == 0);
		us[i] = (double)(now_ns() - begun) / 1e3;
	}
	say_percentiles("protect_one", us, ROUNDS, "one chunk, read-only or writable again");
	params.at = alias;
	params.other = PUT_VALUE;
	run_kernel("put", &params, 12);
	params.at = at;
	params.other = (uint64_t)(uintptr_t)counter;
	*counter = 0;
	run_kernel("forward", &params, 16);
	settle();
	say("read_only_is_read", *(uint32_t *)counter == PUT_VALUE, "bool",
	    "1: a kernel reads what another wrote at the chunk's other address");
	params.other = 0;
	run_kernel("put", &params, 12);
	say("read_only_write_faults", outcome() == CUDA_ERROR_ILLEGAL_ADDRESS, "bool",
	    "1: a kernel that writes to a read-only chunk ends with error 700");
}

static void open_device(void)
{
	struct rlimit files;
	char text[256];
	CUdevice device;
	CUcontext context;

	if (!getrlimit(RLIMIT_NOFILE, &files)) { /* a driver may keep a descriptor for each chunk */
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	setenv("CUDA_CACHE_DISABLE", "1", 1);
	d = nvidia_driver(text, sizeof text);
	if (!d) {
		fprintf(stderr, "%s\n", text);
		exit(1);
	}
	TRY(cuDeviceGet, &device, 0);
	TRY(cuDevicePrimaryCtxRetain, &context, device);
	TRY(cuCtxSetCurrent, context);
	TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	TRY(cuMemHostAlloc, (void **)&counter, sizeof *counter,
	    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	TRY(cuModuleLoadDataEx, &module, KERNELS, 0, NULL, NULL);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "ptx"))
		return fputs(kernels_text(), stdout) == EOF;
	open_device();
	if (!strcmp(mode, "pinned") || !strcmp(mode, "shared")) {
		(*mode == 'p' ? pinned : shared)();
		return 0;
	}
	mapping(reserve());
	stream_writes();
	host_functions();
	ptx_compilation();
	return 0;
}
