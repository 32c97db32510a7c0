/* issue.c: submits one work to the driver: kernels; copies and fills, piece by piece; and host
 * operations as host functions, which the driver calls in the stream's order. Sums: sums.c.
 *
 * A piece of a copy is contiguous on both sides. Copies of host memory that is not registered would
 * wait for the stream, so they go through a pinned buffer (stage.c); if all are busy, the stream
 * tries again later.
 *
 * Runs in the device thread. Host functions run in the driver's thread and do not call the driver.
 */
#include <string.h>

#include "issue.h"

#define PITCH_MAX ((1ull << 31) - 1) /* the driver's limit for rows of a copy */

/* ---- host functions ---- */

static void copy_rows(uint8_t *dst, uint64_t dst_pitch, const uint8_t *src, uint64_t src_pitch,
		      uint64_t width, uint64_t height)
{
	for (uint64_t y = 0; y < height; y++)
		memmove(dst + y * dst_pitch, src + y * src_pitch, width);
}

static void stage_in(void *arg)
{
	struct nvidia_stage *s = arg;

	if (issue_given_up())
		return;
	copy_rows(s->memory, s->width, s->host, s->pitch, s->width, s->rows);
}

static void stage_out(void *arg)
{
	struct nvidia_stage *s = arg;

	if (issue_given_up())
		return;
	copy_rows(s->host, s->pitch, s->memory, s->width, s->width, s->rows);
	issue_stage_free(arg);
}

static void fill_row(uint8_t *row, uint64_t width, uint32_t value, uint32_t element)
{
	for (uint64_t i = 0; i < width; i++)
		memcpy(row + i * element, &value, element); /* little-endian */
}

static void on_host(void *arg)
{
	const struct hal_work *w = arg;

	if (issue_given_up())
		return;
	switch (w->kind) {
	case HAL_COPY:
		copy_rows((uint8_t *)(uintptr_t)w->copy.dst.addr, w->copy.dst_pitch,
			  (const uint8_t *)(uintptr_t)w->copy.src.addr, w->copy.src_pitch,
			  w->copy.width, w->copy.height);
		break;
	case HAL_FILL:
		for (uint64_t y = 0; y < w->fill.height; y++)
			fill_row((uint8_t *)(uintptr_t)w->fill.dst.addr + y * w->fill.pitch,
				 w->fill.width, w->fill.value, w->fill.element);
		break;
	default: break;
	}
}

/* ---- copies ---- */

/* The number of bytes from the first row's beginning to the last row's end; UINT64_MAX on
 * overflow. */
static uint64_t bytes_of_rows(uint64_t width, uint64_t height, uint64_t pitch)
{
	uint64_t bytes;

	return __builtin_mul_overflow(height - 1, pitch, &bytes) ||
			       __builtin_add_overflow(bytes, width, &bytes)
		       ? UINT64_MAX
		       : bytes;
}

static bool is_host(const struct hal_device *device, const struct hal_ref *ref)
{
	return !ref->space && !nvidia_near_space(device, ref->addr);
}

struct side {
	CUdeviceptr at;
	uint64_t available, pitch;
	uint8_t *host;
};

static struct side side_of(const struct hal_device *device, const struct hal_ref *ref, uint64_t at,
			   uint64_t pitch, bool write)
{
	struct side side = {.pitch = pitch};

	if (ref->space) {
		side.available = nvidia_space_resolve(ref->space, at, write, &side.at);
	} else if ((side.available = nvidia_near_space(device, at))) {
		side.at = at;
	} else if ((side.available = nvidia_pinned_from(device, at))) {
		side.at = at;
	} else {
		side.host = (uint8_t *)(uintptr_t)at;
		side.available = UINT64_MAX;
	}
	return side;
}

/* The number of whole rows that are contiguous here. */
static uint64_t rows_in(const struct side *side, uint64_t width)
{
	if (side->pitch < width || side->pitch > PITCH_MAX)
		return 1;
	return 1 + (side->available - width) / side->pitch;
}

static CUresult copy_device(const struct hal_stream *s, const struct side *dst,
			    const struct side *src, uint64_t width, uint64_t rows)
{
	const struct nvidia_driver *d = s->device->driver;
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			   .srcDevice = src->at,
			   .srcPitch = src->pitch,
			   .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			   .dstDevice = dst->at,
			   .dstPitch = dst->pitch,
			   .WidthInBytes = width,
			   .Height = rows};

	return rows == 1 ? d->cuMemcpyAsync(dst->at, src->at, width, s->stream)
			 : d->cuMemcpy2DAsync_v2(&c, s->stream);
}

static CUresult copy_staged(const struct hal_stream *s, struct nvidia_stage *stage,
			    struct side *dst, struct side *src, uint64_t width, uint64_t rows)
{
	struct side *host = dst->host ? dst : src;
	bool out = dst->host != NULL;
	CUresult error = CUDA_SUCCESS;

	stage->host = host->host;
	stage->width = width;
	stage->rows = rows;
	stage->pitch = host->pitch;
	*host = (struct side){.at = (CUdeviceptr)(uintptr_t)stage->memory, .pitch = width};
	if (!out)
		error = issue_host_function(s, stage_in, stage);
	if (!error)
		error = copy_device(s, dst, src, width, rows);
	if (!error)
		return issue_host_function(s, out ? stage_out : issue_stage_free, stage);
	if (issue_host_function(s, issue_stage_free, stage)) /* after what may still use it */
		issue_stage_free(stage);
	return error;
}

/* Copies one piece from (row, column) on, and advances these. */
static enum issued copy_piece(struct hal_stream *s, const struct hal_work *w, uint64_t width,
			      uint64_t height)
{
	struct hal_space *space = w->copy.dst.space ? w->copy.dst.space : w->copy.src.space;
	uint64_t to = w->copy.dst.addr + s->row * w->copy.dst_pitch + s->column;
	uint64_t from = w->copy.src.addr + s->row * w->copy.src_pitch + s->column;
	struct side dst = side_of(s->device, &w->copy.dst, to, w->copy.dst_pitch, true);
	struct side src = side_of(s->device, &w->copy.src, from, w->copy.src_pitch, false);
	struct nvidia_stage *stage = NULL;
	uint64_t n = width - s->column, rows = 1, most;
	CUresult error;

	if (!dst.available || !src.available) {
		nvidia_space_stray(dst.available ? w->copy.src.space : w->copy.dst.space, "copy",
				   dst.available ? from : to);
		return FAILED;
	}
	n = n < dst.available ? n : dst.available;
	n = n < src.available ? n : src.available;
	if (dst.host || src.host) {
		n = n < CUDA_STAGE_BYTES ? n : CUDA_STAGE_BYTES;
		stage = issue_take_stage(s, false);
		if (!stage)
			return PART;
	}
	if (n == width) {
		rows = height - s->row;
		most = rows_in(&dst, width);
		rows = rows < most ? rows : most;
		most = rows_in(&src, width);
		rows = rows < most ? rows : most;
		if (stage && rows > CUDA_STAGE_BYTES / width)
			rows = CUDA_STAGE_BYTES / width;
	}
	error = stage ? copy_staged(s, stage, &dst, &src, n, rows)
		      : copy_device(s, &dst, &src, n, rows);
	s->column += n;
	if (s->column == width) {
		s->row += rows;
		s->column = 0;
	}
	return issue_check(s, space, "copy", error);
}

static bool pins_change(const struct hal_space *space)
{
	return space && !nvidia_space_pinned(space);
}

static enum issued copy_work(struct hal_stream *s, struct hal_work *w)
{
	uint64_t width = w->copy.width, height = w->copy.height;
	enum issued done = ALL;

	if (!width || !height)
		return ALL;
	if (issue_is_failed(w->copy.dst.space) || issue_is_failed(w->copy.src.space))
		return FAILED;
	if (pins_change(w->copy.dst.space) || pins_change(w->copy.src.space))
		return PART;
	nvidia_space_settle(&w->copy.dst, bytes_of_rows(width, height, w->copy.dst_pitch));
	nvidia_space_settle(&w->copy.src, bytes_of_rows(width, height, w->copy.src_pitch));
	if (is_host(s->device, &w->copy.dst) && is_host(s->device, &w->copy.src))
		return issue_check(s, NULL, "copy", issue_host_function(s, on_host, w));
	if (w->copy.dst_pitch == width && w->copy.src_pitch == width) {
		width *= height;
		height = 1;
	}
	while (done == ALL && s->row < height)
		done = copy_piece(s, w, width, height);
	return done;
}

/* ---- fills ---- */

static CUresult fill_device(const struct hal_stream *s, const struct hal_work *w, CUdeviceptr at,
			    uint64_t width, uint64_t rows)
{
	const struct nvidia_driver *d = s->device->driver;
	uint64_t pitch = w->fill.pitch;
	uint32_t value = w->fill.value;

	switch (w->fill.element) {
	case 1:
		return d->cuMemsetD2D8Async(at, pitch, (unsigned char)value, width, rows,
					    s->stream);
	case 2:
		return d->cuMemsetD2D16Async(at, pitch, (unsigned short)value, width, rows,
					     s->stream);
	default: return d->cuMemsetD2D32Async(at, pitch, value, width, rows, s->stream);
	}
}

static enum issued fill_piece(struct hal_stream *s, const struct hal_work *w)
{
	uint32_t element = w->fill.element;
	uint64_t bytes = w->fill.width * element, rows = 1, most, n = bytes - s->column;
	uint64_t to = w->fill.dst.addr + s->row * w->fill.pitch + s->column;
	struct side dst = side_of(s->device, &w->fill.dst, to, w->fill.pitch, true);

	if (!dst.available) {
		nvidia_space_stray(w->fill.dst.space, "fill", to);
		return FAILED;
	}
	if (dst.at % element) {
		nvidia_space_fail(w->fill.dst.space, CUDA_ERROR_INVALID_VALUE,
				  "fill: an address that is not aligned");
		return FAILED;
	}
	n = n < dst.available ? n : dst.available;
	if (n == bytes) {
		most = rows_in(&dst, bytes);
		rows = w->fill.height - s->row;
		rows = rows < most ? rows : most;
	}
	s->column += n;
	if (s->column == bytes) {
		s->row += rows;
		s->column = 0;
	}
	return issue_check(s, w->fill.dst.space, "fill",
			   fill_device(s, w, dst.at, n / element, rows));
}

static enum issued fill_work(struct hal_stream *s, struct hal_work *w)
{
	enum issued done = ALL;

	if (!w->fill.width || !w->fill.height)
		return ALL;
	if (issue_is_failed(w->fill.dst.space))
		return FAILED;
	nvidia_space_settle(&w->fill.dst, bytes_of_rows(w->fill.width * w->fill.element,
							w->fill.height, w->fill.pitch));
	if (!w->fill.dst.space)
		return issue_check(s, NULL, "fill", issue_host_function(s, on_host, w));
	while (done == ALL && s->row < w->fill.height)
		done = fill_piece(s, w);
	return done;
}

/* ---- kernels ---- */

/* limit without an attribute: static and dynamic shared memory together */

static CUresult launch_kernel(const struct hal_stream *s, const struct nvidia_item *item)
{
	const struct nvidia_driver *d = s->device->driver;
	const struct hal_work *w = &item->work;
	const struct hal_function *f = w->kernel.function;
	uint32_t cluster = w->kernel.cluster, count = 0;
	CUlaunchAttribute attributes[2];
	CUlaunchConfig config = {.gridDimX = w->kernel.grid[0],
				 .gridDimY = w->kernel.grid[1],
				 .gridDimZ = w->kernel.grid[2],
				 .blockDimX = w->kernel.block[0],
				 .blockDimY = w->kernel.block[1],
				 .blockDimZ = w->kernel.block[2],
				 .sharedMemBytes = w->kernel.shared_bytes,
				 .hStream = s->stream,
				 .attrs = attributes};
	size_t bytes = item->params_bytes;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, item->params, CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, CU_LAUNCH_PARAM_END};

	if (w->kernel.cooperative)
		attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
							  .value.cooperative = 1};
	if (cluster)
		attributes[count++] = nvidia_cluster_of(cluster);
	config.numAttrs = count;
	CUresult error = nvidia_allow(d, f, w->kernel.shared_bytes,
				      (cluster & 0xff) * (cluster >> 8 & 0xff) * (cluster >> 16) >
					      8);
	if (error)
		return error;
	return d->cuLaunchKernelEx(&config, f->function, NULL, bytes ? extra : NULL);
}

/* Whether nothing is in progress, of ranks or of clearing. Kernels are not: works that are end
 * soon. */
static bool is_idle(struct hal_device *device)
{
	bool idle = device->driver->cuStreamQuery(device->clear_stream) == CUDA_SUCCESS;

	for (struct hal_stream *s = device->streams; s; s = s->next) {
		idle &= nvidia_completed(s) == s->issued && !s->row && !s->column;
		nvidia_report(s);
	}
	return idle;
}

/* ALL: the window shows the space, and its kernel may be submitted. */
static enum issued show_space(struct hal_stream *s, struct hal_space *space)
{
	struct hal_device *device = s->device;
	CUresult error;

	if (issue_is_failed(space))
		return FAILED;
	if (!nvidia_space_pinned(space) || nvidia_pins_in_the_way(device, space))
		return PART;
	if (nvidia_window_shows(device, space))
		return ALL;
	if (nvidia_window_grow(device, space, &error) && error != CUDA_ERROR_NOT_READY)
		return issue_check(s, space, "mapping the rank's memory", error);
	if (nvidia_kernels_run(device)) {
		for (struct hal_stream *each = device->streams; each; each = each->next)
			nvidia_report(each);
		return PART;
	}
	if (nvidia_window_moves(device, space) && !is_idle(device)) {
		device->alone = s;
		return PART;
	}
	return issue_check(s, space, "mapping the rank's memory",
			   nvidia_window_show(device, space));
}

/* The launch of a function of a library: as far as can be known, it runs kernels. */
static enum issued library_work(struct hal_stream *s, const struct nvidia_item *item)
{
	struct hal_space *space = item->work.kernel.space;
	char what[CUDA_TEXT_BYTES];

	s->last_kernel = s->issued + 1; /* even if it fails, a part of it may run */
	return issue_check(s, space, what, nvidia_call(s, space, item, what, sizeof what));
}

static enum issued kernel_work(struct hal_stream *s, struct nvidia_item *item)
{
	struct hal_space *space = item->work.kernel.space;
	enum issued done = show_space(s, space);

	if (done == ALL && item->work.kernel.function->call)
		return library_work(s, item);
	if (done == ALL)
		done = issue_variables_in(s, &item->work);
	if (done == ALL)
		done = issue_check(s, space, item->work.kernel.function->name,
				   launch_kernel(s, item));
	if (done == ALL) {
		s->last_kernel = s->issued + 1;
		done = issue_variables_out(s, &item->work);
	}
	return done;
}

static enum issued gemm_work(struct hal_stream *s, const struct hal_work *w)
{
	struct hal_space *space = w->gemm.space;
	enum issued done = show_space(s, space);
	char what[CUDA_TEXT_BYTES];

	if (done != ALL)
		return done;
	s->last_kernel = s->issued + 1; /* even if it fails, a part of it may run */
	return issue_check(s, space, what, nvidia_gemm(s, space, w->gemm.call, what, sizeof what));
}

static enum issued run_item(struct hal_stream *s, struct nvidia_item *item)
{
	switch (item->work.kind) {
	case HAL_KERNEL: return kernel_work(s, item);
	case HAL_COPY: return copy_work(s, &item->work);
	case HAL_FILL: return fill_work(s, &item->work);
	case HAL_GEMM: return gemm_work(s, &item->work);
	case HAL_REDUCE:
	case HAL_SCALE: return issue_sum(s, &item->work);
	case HAL_CHECKSUM: return issue_checksum(s, &item->work);
	}
	return ALL;
}

void nvidia_report(struct hal_stream *s)
{
	const struct nvidia_driver *d = s->device->driver;
	CUdeviceptr counter = (CUdeviceptr)(uintptr_t)s->counter;

	if (s->reported == s->issued || atomic_load(&s->device->lost))
		return;
	s->reported = s->issued;
	issue_check(s, NULL, "counting",
		    d->cuStreamWriteValue64_v2(s->stream, counter, s->issued, 0));
}

/* The work is done or skipped. */
bool nvidia_issue(struct hal_stream *s, struct nvidia_item *item)
{
	uint64_t last = atomic_load(&s->awaited_last);
	struct hal_stream *alone = s->device->alone;

	if (alone && alone != s && !s->row && !s->column)
		return false;
	s->device->alone = alone == s ? NULL : alone;
	if (issue_check(s, NULL, "clearing memory", nvidia_clear(s->device, s)) == FAILED ||
	    run_item(s, item) == PART)
		return false;
	s->issued++;
	s->row = s->column = 0;
	if (!last || (atomic_load(&s->awaited_first) <= s->issued && s->issued <= last) ||
	    s->issued - s->reported >= CUDA_REPORT_EVERY)
		nvidia_report(s);
	return true;
}
