/* null.c: a device whose kernels complete without running: the smallest example of a HAL, and what
 * a proxy costs without a device (docs/adding-a-device.md).
 *
 * Its memory is real. Copies, fills, sums and checksums are done at once by the loop's thread, so a
 * stream never holds work that is not complete. Kernels write nothing; matrix products are refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checksum.h"
#include "hal.h"
#include "reduce.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716 };

#define PAGES (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define HOST_RANGES 8u
#define AVAILABLE 64u

struct hal_device {
	struct hal_config config;
	uint8_t *memory;
	uint32_t *free, free_count; /* a stack of chunks */
};

struct hal_space {
	struct hal_device *device;
	struct null_page {
		uint32_t chunk; /* its number plus 1; 0: nothing is mapped */
		bool writable;
	} *pages;
	struct {
		uint64_t addr, bytes;
		uint8_t *memory;
	} hosts[HOST_RANGES]; /* pinned memory */
	uint32_t host_count;
	int error;
};

struct hal_stream {
	struct hal_device *device;
	uint64_t submitted;
};

/* ---- memory ---- */

static void null_device_close(struct hal_device *device)
{
	if (device->memory)
		munmap(device->memory, device->config.memory_bytes);
	free(device->free);
	free(device);
}

static int null_device_open(const struct hal_config *config, struct hal_device **out)
{
	struct hal_device *device = calloc(1, sizeof *device);
	uint32_t chunks = (uint32_t)(config->memory_bytes / RF_CHUNK_BYTES);
	void *memory;

	if (!device)
		return OUT_OF_MEMORY;
	if (!chunks || config->memory_bytes % RF_CHUNK_BYTES ||
	    config->memory_bytes > RF_HEAP_BYTES) {
		free(device);
		return INVALID_VALUE;
	}
	device->config = *config;
	device->free = calloc(chunks, sizeof *device->free);
	memory = mmap(NULL, config->memory_bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	device->memory = memory == MAP_FAILED ? NULL : memory;
	if (!device->free || !device->memory) {
		null_device_close(device);
		return OUT_OF_MEMORY;
	}
	for (uint32_t i = chunks; i > 0; i--)
		device->free[device->free_count++] = i - 1;
	*out = device;
	return 0;
}

static uint64_t null_arithmetic(const struct hal_device *device)
{
	(void)device;
	return 1; /* sums are those of reduce.h everywhere */
}

static uint8_t *null_chunk_at(const struct hal_device *device, uint32_t chunk)
{
	return device->memory + chunk * RF_CHUNK_BYTES;
}

static int null_chunk_create(struct hal_device *device, uint32_t *chunk)
{
	if (!device->free_count)
		return OUT_OF_MEMORY;
	*chunk = device->free[--device->free_count];
	memset(null_chunk_at(device, *chunk), 0, RF_CHUNK_BYTES);
	return 0;
}

static void null_chunk_destroy(struct hal_device *device, uint32_t chunk)
{
	device->free[device->free_count++] = chunk;
}

/* ---- spaces ---- */

static int null_space_create(struct hal_device *device, struct hal_space **out)
{
	struct hal_space *space = calloc(1, sizeof *space);

	if (space)
		space->pages = calloc(PAGES, sizeof *space->pages);
	if (!space || !space->pages) {
		free(space);
		return OUT_OF_MEMORY;
	}
	space->device = device;
	*out = space;
	return 0;
}

static void null_space_destroy(struct hal_space *space)
{
	for (uint32_t i = 0; i < space->host_count; i++)
		munmap(space->hosts[i].memory, space->hosts[i].bytes);
	free(space->pages);
	free(space);
}

static struct null_page *null_page_of(struct hal_space *space, uint64_t addr)
{
	uint64_t index = (addr - RF_DEV_BASE) / RF_CHUNK_BYTES;

	return addr >= RF_DEV_BASE && index < PAGES ? &space->pages[index] : NULL;
}

static int null_space_map(struct hal_space *space, uint64_t addr, uint32_t chunk, bool writable)
{
	*null_page_of(space, addr) = (struct null_page){.chunk = chunk + 1, .writable = writable};
	return 0;
}

static int null_space_unmap(struct hal_space *space, uint64_t addr)
{
	*null_page_of(space, addr) = (struct null_page){0};
	return 0;
}

static int null_space_protect(struct hal_space *space, uint64_t addr, uint32_t chunks,
			      bool writable)
{
	for (uint32_t i = 0; i < chunks; i++)
		null_page_of(space, addr + i * RF_CHUNK_BYTES)->writable = writable;
	return 0;
}

static bool null_space_copied(struct hal_space *space, uint64_t *addr, uint32_t *chunk)
{
	(void)space, (void)addr, (void)chunk;
	return false; /* no kernel writes */
}

static int null_space_map_host(struct hal_space *space, uint64_t addr, int fd, uint64_t offset,
			       uint64_t bytes)
{
	void *memory;

	if (space->host_count == HOST_RANGES)
		return OUT_OF_MEMORY;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (memory == MAP_FAILED)
		return OUT_OF_MEMORY;
	space->hosts[space->host_count].addr = addr;
	space->hosts[space->host_count].bytes = bytes;
	space->hosts[space->host_count++].memory = memory;
	return 0;
}

static int null_space_error(struct hal_space *space, char *text, uint32_t text_bytes)
{
	if (space->error && text)
		snprintf(text, text_bytes, "a copy, fill, sum or checksum: %s",
			 space->error == ILLEGAL_ADDRESS
				 ? "nothing is mapped there, or only to read"
				 : "an address that is not aligned");
	return space->error;
}

static void null_space_cancel(struct hal_space *space) { (void)space; } /* no kernel runs */

/* The address of [ref, ref + *bytes) in this process; reduces *bytes to what is contiguous. NULL:
 * nothing is mapped there, or it is to be written and read-only; the space has failed then. */
static uint8_t *resolve(struct hal_ref ref, uint64_t offset, uint64_t *bytes, bool write)
{
	struct hal_space *space = ref.space;
	uint64_t addr = ref.addr + offset, in_page = (addr - RF_DEV_BASE) % RF_CHUNK_BYTES, left;
	const struct null_page *page;

	if (!space)
		return (uint8_t *)(uintptr_t)addr;
	for (uint32_t i = 0; i < space->host_count; i++) {
		uint64_t from = addr - space->hosts[i].addr;

		if (from >= space->hosts[i].bytes)
			continue;
		left = space->hosts[i].bytes - from;
		*bytes = *bytes < left ? *bytes : left;
		return space->hosts[i].memory + from;
	}
	page = null_page_of(space, addr);
	if (!page || !page->chunk || (write && !page->writable)) {
		space->error = ILLEGAL_ADDRESS;
		return NULL;
	}
	left = RF_CHUNK_BYTES - in_page;
	*bytes = *bytes < left ? *bytes : left;
	return null_chunk_at(space->device, page->chunk - 1) + in_page;
}

/* ---- works ---- */

static void copy(const struct hal_work *w)
{
	for (uint64_t y = 0; y < w->copy.height; y++)
		for (uint64_t x = 0, n; x < w->copy.width; x += n) {
			uint8_t *dst, *src;

			n = w->copy.width - x;
			dst = resolve(w->copy.dst, y * w->copy.dst_pitch + x, &n, true);
			src = dst ? resolve(w->copy.src, y * w->copy.src_pitch + x, &n, false) : 0;
			if (!src)
				return;
			memmove(dst, src, n);
		}
}

static void fill(const struct hal_work *w)
{
	uint64_t width = w->fill.width * w->fill.element;

	for (uint64_t y = 0; y < w->fill.height; y++)
		for (uint64_t x = 0, n; x < width; x += n) {
			uint8_t *dst;

			n = width - x;
			dst = resolve(w->fill.dst, y * w->fill.pitch + x, &n, true);
			if (!dst)
				return;
			for (uint64_t i = 0; i < n; i++) /* little-endian */
				dst[i] = (uint8_t)(w->fill.value >> (x + i) % w->fill.element * 8);
		}
}

static void sum(const struct hal_work *w)
{
	struct hal_ref refs[HAL_SUM_REFS];
	uint32_t count = hal_sum_refs(w, refs), element = hal_sum_element(w);
	uint64_t bytes = hal_sum_bytes(w);

	for (uint32_t i = 0; i < count; i++)
		if (refs[i].space && refs[i].addr % element) {
			refs[i].space->error = MISALIGNED_ADDRESS;
			return;
		}
	for (uint64_t at = 0, n; at < bytes; at += n) {
		uint8_t *to[HAL_SUM_REFS] = {NULL};

		n = bytes - at;
		for (uint32_t i = 0; i < count; i++)
			if (!(to[i] = resolve(refs[i], at, &n, i == 0)))
				return;
		hal_sum(w, to[0], to[1], to[2], n / element);
	}
}

static void checksum(const struct hal_work *w)
{
	for (uint64_t at = 0, n; at < w->checksum.bytes; at += n) {
		const uint8_t *from;

		n = w->checksum.bytes - at;
		from = resolve(w->checksum.src, at, &n, false);
		if (!from)
			return;
		hal_checksum(w->checksum.sum, from, n, at / 8);
	}
}

static bool failed(const struct hal_space *space) { return space && space->error; }

/* Does the work, unless a space of it has failed. Returns false if the device cannot do it. */
static bool run(const struct hal_work *w)
{
	struct hal_ref refs[HAL_SUM_REFS];
	bool skip = false;

	switch (w->kind) {
	case HAL_KERNEL: return w->kernel.space && w->kernel.function;
	case HAL_GEMM: return false;
	case HAL_COPY:
		if (!failed(w->copy.dst.space) && !failed(w->copy.src.space))
			copy(w);
		return true;
	case HAL_FILL:
		if (w->fill.element != 1 && w->fill.element != 2 && w->fill.element != 4)
			return false;
		if (!failed(w->fill.dst.space))
			fill(w);
		return true;
	case HAL_REDUCE:
	case HAL_SCALE:
		if (!hal_sum_acceptable(w))
			return false;
		for (uint32_t i = hal_sum_refs(w, refs); i > 0; i--)
			skip |= failed(refs[i - 1].space);
		if (!skip)
			sum(w);
		return true;
	case HAL_CHECKSUM:
		if (!failed(w->checksum.src.space))
			checksum(w);
		return true;
	}
	return false;
}

/* ---- streams ---- */

static int null_stream_create(struct hal_device *device, struct hal_stream **out)
{
	*out = calloc(1, sizeof **out);
	if (!*out)
		return OUT_OF_MEMORY;
	(*out)->device = device;
	return 0;
}

static void null_stream_destroy(struct hal_stream *stream) { free(stream); }

static uint32_t null_available(struct hal_stream *stream)
{
	(void)stream;
	return AVAILABLE; /* everything that was submitted is complete */
}

static uint64_t null_submit(struct hal_stream *stream, const struct hal_work *work)
{
	const struct hal_config *config = &stream->device->config;

	if (!run(work))
		return 0;
	if (config->ring)
		config->ring(config->ring_arg);
	return ++stream->submitted;
}

static uint64_t null_completed(const struct hal_stream *stream) { return stream->submitted; }

static void null_notify_at(struct hal_stream *stream, uint64_t number)
{
	(void)stream, (void)number; /* submit rings for each work */
}

__attribute__((visibility("default"))) const struct hal hal_null = {
	.type = "null",
	.device_open = null_device_open,
	.device_close = null_device_close,
	.arithmetic = null_arithmetic,
	.chunk_create = null_chunk_create,
	.chunk_destroy = null_chunk_destroy,
	.space_create = null_space_create,
	.space_destroy = null_space_destroy,
	.space_map = null_space_map,
	.space_unmap = null_space_unmap,
	.space_protect = null_space_protect,
	.space_copied = null_space_copied,
	.space_map_host = null_space_map_host,
	.space_error = null_space_error,
	.space_cancel = null_space_cancel,
	.stream_create = null_stream_create,
	.stream_destroy = null_stream_destroy,
	.available = null_available,
	.submit = null_submit,
	.completed = null_completed,
	.notify_at = null_notify_at,
};
