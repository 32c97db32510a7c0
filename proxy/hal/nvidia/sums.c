/* sums.c: the arithmetic of collectives, and checksums, by the HAL's own kernels (kernels/sums.cu).
 *
 * A kernel accesses device memory through aliases, and scratch memory in place. Operands in host
 * memory go through one of the pinned buffers (issue.c), a piece at a time: its first half holds
 * `a` and the result, its second half `b`. A piece ends at the device's chunk boundaries. If no
 * operand is in GPU memory, the host computes the sum in place.
 *
 * Runs in the device thread. Host functions run in the driver's thread and do not call the driver.
 */
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "issue.h"
#include "reduce.h"

#define HALF_BYTES (CUDA_STAGE_BYTES / 2)
#define THREADS 256u     /* per block */
#define BLOCKS_MAX 4096u /* with more elements, each thread takes several */
#define CHECKSUM_BLOCKS 64u

CUresult nvidia_sums_load(struct hal_device *device)
{
	static const char *const types[CUDA_SUM_TYPES] = {"int8",   "uint8",   "int32", "uint32",
							  "int64",  "uint64",  "half",  "float",
							  "double", "bfloat16"};
	const struct nvidia_driver *d = device->driver;
	CUmodule module;
	CUresult error = d->cuModuleLoadDataEx(&module, nvidia_sums_ptx, 0, NULL, NULL);
	char name[32];

	for (uint32_t i = 0; !error && i < CUDA_SUM_TYPES; i++) {
		snprintf(name, sizeof name, "sum_%s", types[i]);
		error = d->cuModuleGetFunction(&device->sums[i].sum, module, name);
		snprintf(name, sizeof name, "scale_by_%s", types[i]);
		if (!error)
			error = d->cuModuleGetFunction(&device->sums[i].scale, module, name);
	}
	if (!error)
		error = d->cuModuleGetFunction(&device->checksum, module, "checksum");
	return error;
}

static uint8_t *host_at(const struct hal_ref *ref) { return (uint8_t *)(uintptr_t)ref->addr; }

/* `params`: packed as the kernel's parameters. */
static CUresult launch(const struct hal_stream *s, CUfunction function, uint64_t blocks,
		       void *params, size_t bytes)
{
	CUlaunchConfig config = {.gridDimX = (unsigned)blocks,
				 .gridDimY = 1,
				 .gridDimZ = 1,
				 .blockDimX = THREADS,
				 .blockDimY = 1,
				 .blockDimZ = 1,
				 .hStream = s->stream};
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, params, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, CU_LAUNCH_PARAM_END};

	return s->device->driver->cuLaunchKernelEx(&config, function, NULL, extra);
}

static uint64_t blocks_for(uint64_t elements, uint64_t most)
{
	uint64_t blocks = (elements + THREADS - 1) / THREADS;

	return blocks < most ? blocks : most;
}

/* ---- sums ---- */

/* Computes the whole sum, in host memory. */
static void sum_whole(void *arg)
{
	const struct hal_work *w = arg;
	struct hal_ref refs[HAL_SUM_REFS] = {{0}};

	if (issue_given_up())
		return;
	hal_sum_refs(w, refs);
	hal_sum(w, host_at(&refs[0]), host_at(&refs[1]), host_at(&refs[2]),
		hal_sum_bytes(w) / hal_sum_element(w));
}

/* ---- pieces ---- */

static uint8_t *half_of(const struct nvidia_stage *stage, uint32_t operand)
{
	return stage->memory + (operand == 2 ? HALF_BYTES : 0);
}

static void sum_in(void *arg)
{
	struct nvidia_stage *stage = arg;

	if (issue_given_up())
		return;
	for (uint32_t i = 1; i < HAL_SUM_REFS; i++)
		if (stage->sum.host[i])
			memcpy(half_of(stage, i), stage->sum.host[i], stage->sum.bytes);
}

static void sum_out(void *arg)
{
	struct nvidia_stage *stage = arg;

	if (issue_given_up())
		return;
	if (stage->sum.host[0])
		memcpy(stage->sum.host[0], stage->memory, stage->sum.bytes);
	issue_stage_free(stage);
}

/* `at`: the addresses at which the GPU finds `bytes` of each operand. */
static CUresult sum_launch(const struct hal_stream *s, const struct hal_work *w,
			   const CUdeviceptr at[HAL_SUM_REFS], uint64_t bytes)
{
	uint64_t count = bytes / hal_sum_element(w), blocks = blocks_for(count, BLOCKS_MAX);
	struct {
		uint64_t d, a, b, count;
		uint32_t op;
	} sum = {at[0], at[1], at[2], count, 0};
	struct {
		uint64_t d, a, count;
		uint32_t divide;
		uint64_t divisor, scalar;
	} scale = {at[0], at[1], count, 0, 0, 0};

	if (w->kind == HAL_REDUCE) {
		sum.op = w->reduce.op;
		return launch(s, s->device->sums[w->reduce.dtype].sum, blocks, &sum,
			      offsetof(__typeof__(sum), op) + sizeof sum.op);
	}
	scale.divide = w->scale.divide;
	scale.divisor = w->scale.divisor;
	memcpy(&scale.scalar, w->scale.scalar, sizeof scale.scalar);
	return launch(s, s->device->sums[w->scale.dtype].scale, blocks, &scale, sizeof scale);
}

static CUresult sum_staged(const struct hal_stream *s, const struct hal_work *w,
			   struct nvidia_stage *stage, const CUdeviceptr at[HAL_SUM_REFS],
			   uint64_t bytes)
{
	CUresult error = CUDA_SUCCESS;

	stage->sum.bytes = bytes;
	if (stage->sum.host[1] || stage->sum.host[2])
		error = issue_host_function(s, sum_in, stage);
	if (!error)
		error = sum_launch(s, w, at, bytes);
	if (!error)
		error = issue_host_function(s, sum_out, stage);
	/* After what may still use it. */
	if (error && issue_host_function(s, issue_stage_free, stage))
		issue_stage_free(stage);
	return error;
}

/* Submits one piece from s->column on, and advances it. */
static enum issued issue_piece(struct hal_stream *s, struct hal_work *w,
			       const struct hal_ref refs[HAL_SUM_REFS], uint32_t count,
			       uint64_t bytes)
{
	struct hal_space *space = NULL;
	CUdeviceptr at[HAL_SUM_REFS] = {0};
	uint8_t *host[HAL_SUM_REFS] = {NULL};
	uint64_t n = bytes - s->column;
	struct nvidia_stage *stage = NULL;
	bool staged = false;
	CUresult error;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t addr = refs[i].addr + s->column,
			 available = nvidia_near_space(s->device, addr);

		if (refs[i].space) {
			space = refs[i].space;
			available = nvidia_space_resolve(space, addr, i == 0, &at[i]);
			if (!available) {
				nvidia_space_stray(space, "a sum of a collective", addr);
				return FAILED;
			}
		} else if (available) {
			at[i] = addr;
		} else {
			host[i] = host_at(&refs[i]) + s->column;
			available = HALF_BYTES;
			staged = true;
		}
		n = n < available ? n : available;
	}
	if (staged) {
		stage = issue_take_stage(s, true);
		if (!stage)
			return PART;
		memcpy(stage->sum.host, host, sizeof host);
		for (uint32_t i = 0; i < count; i++)
			if (host[i])
				at[i] = (CUdeviceptr)(uintptr_t)half_of(stage, i);
	}
	s->column += n;
	error = stage ? sum_staged(s, w, stage, at, n) : sum_launch(s, w, at, n);
	return issue_check(s, space, "a sum of a collective", error);
}

enum issued issue_sum(struct hal_stream *s, struct hal_work *w)
{
	struct hal_ref refs[HAL_SUM_REFS] = {{0}};
	uint32_t count = hal_sum_refs(w, refs);
	uint64_t bytes = hal_sum_bytes(w);
	enum issued done = ALL;
	bool reached = false;

	for (uint32_t i = 0; i < count; i++) {
		if (issue_is_failed(refs[i].space))
			return FAILED;
		if (refs[i].space && refs[i].addr % hal_sum_element(w)) {
			nvidia_space_fail(refs[i].space, CUDA_ERROR_MISALIGNED_ADDRESS,
					  "a sum of a collective: a misaligned address");
			return FAILED;
		}
		reached |= refs[i].space || nvidia_near_space(s->device, refs[i].addr);
	}
	if (!bytes)
		return ALL;
	if (!reached)
		return issue_check(s, NULL, "host arithmetic",
				   issue_host_function(s, sum_whole, w));
	for (uint32_t i = 0; i < count; i++)
		nvidia_space_settle(&refs[i], bytes);
	while (done == ALL && s->column < bytes)
		done = issue_piece(s, w, refs, count, bytes);
	return done;
}

/* ---- checksums ---- */

static void checksum_whole(void *arg)
{
	const struct hal_work *w = arg;

	if (!issue_given_up())
		hal_checksum(w->checksum.sum, host_at(&w->checksum.src), w->checksum.bytes, 0);
}

/* Adds the blocks' shares to the work's sum. */
static void checksum_add(void *arg)
{
	struct nvidia_stage *stage = arg;
	const uint64_t *shares = (const uint64_t *)(const void *)stage->memory;

	if (issue_given_up())
		return;
	for (uint64_t i = 0; i < 2 * stage->checksum.blocks; i++)
		stage->checksum.work->checksum.sum[i % 2] += shares[i];
	issue_stage_free(stage);
}

static CUresult checksum_staged(const struct hal_stream *s, struct nvidia_stage *stage,
				const struct hal_work *w, CUdeviceptr from, uint64_t bytes)
{
	struct {
		uint64_t from, bytes, word, out;
	} params = {from, bytes, s->column / sizeof(uint64_t), (uintptr_t)stage->memory};
	CUresult error;

	stage->checksum.work = w;
	stage->checksum.blocks = blocks_for(bytes / sizeof(uint64_t) + 1, CHECKSUM_BLOCKS);
	memset(stage->memory, 0, 2 * stage->checksum.blocks * sizeof(uint64_t));
	error = launch(s, s->device->checksum, stage->checksum.blocks, &params, sizeof params);
	if (!error)
		error = issue_host_function(s, checksum_add, stage);
	if (error && issue_host_function(s, issue_stage_free, stage))
		issue_stage_free(stage);
	return error;
}

enum issued issue_checksum(struct hal_stream *s, struct hal_work *w)
{
	static const char what[] = "a checksum";
	struct hal_space *space = w->checksum.src.space;
	uint64_t bytes = w->checksum.bytes;
	enum issued done = ALL;

	if (issue_is_failed(space))
		return FAILED;
	nvidia_space_settle(&w->checksum.src, bytes);
	if (!w->checksum.src.space)
		return issue_check(s, NULL, what, issue_host_function(s, checksum_whole, w));
	while (done == ALL && s->column < bytes) {
		uint64_t addr = w->checksum.src.addr + s->column, n = bytes - s->column, available;
		CUdeviceptr at;
		struct nvidia_stage *stage;

		available = nvidia_space_resolve(space, addr, false, &at);
		if (!available) {
			nvidia_space_stray(space, what, addr);
			return FAILED;
		}
		n = n < available ? n : available;
		stage = issue_take_stage(s, true);
		if (!stage)
			return PART;
		done = issue_check(s, space, what, checksum_staged(s, stage, w, at, n));
		s->column += n;
	}
	return done;
}
