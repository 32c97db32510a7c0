/* sums.c: the arithmetic of collectives, and checksums, which the host computes in the stream's
 * order.
 *
 * Operands in device memory go through one of the pinned buffers (issue.c), a piece at a time: its
 * first half takes `a` and the result, its second half `b`. What lies in host memory is used where
 * it lies. A piece ends where the device's chunks do.
 *
 * Runs in the device thread; host functions run in the driver's and call nothing of it.
 */
#include "checksum.h"
#include "issue.h"
#include "reduce.h"

#define HALF_BYTES (CUDA_STAGE_BYTES / 2)

static uint8_t *host_at(const struct hal_ref *ref) { return (uint8_t *)(uintptr_t)ref->addr; }

/* All of it, in host memory. */
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

static void sum_piece(void *arg)
{
	struct cuda_stage *stage = arg;

	if (issue_given_up())
		return;
	hal_sum(stage->sum.work, stage->sum.at[0], stage->sum.at[1], stage->sum.at[2],
		stage->sum.count);
}

/* A piece of `bytes` with its operands: in `device`, where they lie there, or 0. */
static CUresult sum_staged(const struct hal_stream *s, struct cuda_stage *stage,
			   const CUdeviceptr device[HAL_SUM_REFS], uint64_t bytes)
{
	const struct cuda_driver *d = s->device->driver;
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 1; i < HAL_SUM_REFS && !error; i++)
		if (device[i])
			error = d->cuMemcpyAsync((CUdeviceptr)(uintptr_t)stage->sum.at[i],
						 device[i], bytes, s->stream);
	if (!error)
		error = issue_host_function(s, sum_piece, stage);
	if (!error && device[0])
		error = d->cuMemcpyAsync(device[0], (CUdeviceptr)(uintptr_t)stage->sum.at[0], bytes,
					 s->stream);
	/* Also after an error: behind what may use it still. */
	if (issue_host_function(s, issue_stage_free, stage))
		issue_stage_free(stage);
	return error;
}

/* One piece from s->column on, which is moved behind it. */
static enum issued issue_piece(struct hal_stream *s, struct hal_work *w,
			       const struct hal_ref refs[HAL_SUM_REFS], uint32_t count,
			       uint64_t bytes)
{
	struct hal_space *space = NULL;
	CUdeviceptr device[HAL_SUM_REFS] = {0};
	uint64_t n = bytes - s->column;
	struct cuda_stage *stage;

	n = n < HALF_BYTES ? n : HALF_BYTES;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t room = UINT64_MAX;

		if (refs[i].space) {
			space = refs[i].space;
			room = cuda_space_resolve(space, refs[i].addr + s->column, i == 0,
						  &device[i]);
		}
		if (!room) {
			cuda_space_stray(space, "a sum of a collective", refs[i].addr + s->column);
			return FAILED;
		}
		n = n < room ? n : room;
	}
	stage = issue_take_stage(s);
	if (!stage)
		return PART;
	stage->sum.work = w;
	stage->sum.count = n / hal_sum_element(w);
	for (uint32_t i = 0; i < HAL_SUM_REFS; i++)
		stage->sum.at[i] = device[i] ? stage->memory + (i == 2 ? HALF_BYTES : 0)
				   : i < count && refs[i].addr ? host_at(&refs[i]) + s->column
							       : NULL;
	s->column += n;
	return issue_check(s, space, "a sum of a collective", sum_staged(s, stage, device, n));
}

enum issued issue_sum(struct hal_stream *s, struct hal_work *w)
{
	struct hal_ref refs[HAL_SUM_REFS] = {{0}};
	uint32_t count = hal_sum_refs(w, refs);
	uint64_t bytes = hal_sum_bytes(w);
	enum issued done = ALL;
	bool on_device = false;

	for (uint32_t i = 0; i < count; i++) {
		if (issue_is_failed(refs[i].space))
			return FAILED;
		if (refs[i].space && refs[i].addr % hal_sum_element(w)) {
			cuda_space_fail(
				refs[i].space, CUDA_ERROR_MISALIGNED_ADDRESS,
				"a sum of a collective: an address that is not a multiple of "
				"the size of what is there");
			return FAILED;
		}
		on_device |= refs[i].space != NULL;
	}
	if (!bytes)
		return ALL;
	if (!on_device)
		return issue_check(s, NULL, "host arithmetic",
				   issue_host_function(s, sum_whole, w));
	for (uint32_t i = 0; i < count; i++)
		cuda_space_settle(&refs[i], bytes);
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

static void checksum_piece(void *arg)
{
	struct cuda_stage *stage = arg;

	if (!issue_given_up())
		hal_checksum(stage->sum.work->checksum.sum, stage->memory, stage->sum.count,
			     stage->sum.from / sizeof(uint64_t));
}

static CUresult checksum_staged(const struct hal_stream *s, struct cuda_stage *stage,
				CUdeviceptr from)
{
	CUresult error = s->device->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)stage->memory,
							  from, stage->sum.count, s->stream);

	if (!error)
		error = issue_host_function(s, checksum_piece, stage);
	if (issue_host_function(s, issue_stage_free, stage))
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
	cuda_space_settle(&w->checksum.src, bytes);
	if (!w->checksum.src.space)
		return issue_check(s, NULL, what, issue_host_function(s, checksum_whole, w));
	while (done == ALL && s->column < bytes) {
		uint64_t addr = w->checksum.src.addr + s->column, n = bytes - s->column, room;
		CUdeviceptr at;
		struct cuda_stage *stage;

		room = cuda_space_resolve(space, addr, false, &at);
		if (!room) {
			cuda_space_stray(space, what, addr);
			return FAILED;
		}
		n = n < room ? n : room;
		n = n < CUDA_STAGE_BYTES ? n : CUDA_STAGE_BYTES;
		stage = issue_take_stage(s);
		if (!stage)
			return PART;
		stage->sum.work = w;
		stage->sum.count = n;
		stage->sum.from = s->column;
		s->column += n;
		done = issue_check(s, space, what, checksum_staged(s, stage, at));
	}
	return done;
}
