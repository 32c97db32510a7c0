/* null.c: a device whose kernels complete without running: the smallest example of a HAL, and what
 * a proxy costs without a device (docs/adding-a-device.md).
 *
 * Its memory is real: a file of chunks, which spaces map into windows of this process. The loop's
 * thread does copies, fills, sums and checksums at once, so each work is complete when submit
 * returns. Kernels write nothing; matrix products are refused.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checksum.h"
#include "hal.h"
#include "reduce.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716 };

struct hal_device {
	struct hal_config config;
	int file;
	uint8_t used[]; /* by chunk */
};

struct hal_space {
	struct hal_device *device;
	uint8_t *window;
	uint8_t access[RF_WINDOW_BYTES / RF_CHUNK_BYTES]; /* of each page: PROT_READ … */
	int error;
};

struct hal_stream {
	struct hal_device *device;
	uint64_t submitted;
};

/* ---- memory ---- */

static void null_device_close(struct hal_device *device)
{
	close(device->file);
	free(device);
}

static int null_device_open(const struct hal_config *config, struct hal_device **out)
{
	uint64_t bytes = config->memory_bytes;
	struct hal_device *device;

	if (!bytes || bytes % RF_CHUNK_BYTES || bytes > RF_HEAP_BYTES)
		return INVALID_VALUE;
	device = calloc(1, sizeof *device + bytes / RF_CHUNK_BYTES);
	if (!device)
		return OUT_OF_MEMORY;
	device->config = *config;
	device->file = memfd_create("rankfold-null", MFD_CLOEXEC);
	if (device->file < 0 || ftruncate(device->file, (off_t)bytes)) {
		null_device_close(device);
		return OUT_OF_MEMORY;
	}
	*out = device;
	return 0;
}

/* Sums are those of reduce.h everywhere. */
static uint64_t null_arithmetic(const struct hal_device *device) { return (void)device, 1; }

static int null_chunk_create(struct hal_device *device, uint32_t *chunk)
{
	uint8_t *free_one = memchr(device->used, 0, device->config.memory_bytes / RF_CHUNK_BYTES);

	if (!free_one)
		return OUT_OF_MEMORY;
	*free_one = 1;
	*chunk = (uint32_t)(free_one - device->used);
	return 0;
}

static void null_chunk_destroy(struct hal_device *device, uint32_t chunk)
{
	/* A hole reads as zero. */
	if (fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)(chunk * RF_CHUNK_BYTES), (off_t)RF_CHUNK_BYTES) == 0)
		device->used[chunk] = 0;
}

static int null_space_create(struct hal_device *device, struct hal_space **out)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	struct hal_space *space = calloc(1, sizeof *space);

	if (!space)
		return OUT_OF_MEMORY;
	space->device = device;
	space->window = mmap(NULL, RF_WINDOW_BYTES, PROT_NONE, flags, -1, 0);
	if (space->window == MAP_FAILED) {
		free(space);
		return OUT_OF_MEMORY;
	}
	*out = space;
	return 0;
}

static void null_space_destroy(struct hal_space *space)
{
	munmap(space->window, RF_WINDOW_BYTES);
	free(space);
}

/* Maps a part of a file, or nothing (file -1). */
static int map(struct hal_space *space, uint64_t addr, uint64_t bytes, int access, int file,
	       uint64_t offset)
{
	int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
	uint64_t at = addr - RF_DEV_BASE;

	if (mmap(space->window + at, bytes, access, MAP_FIXED | kind, file, (off_t)offset) ==
	    MAP_FAILED)
		return OUT_OF_MEMORY;
	memset(space->access + at / RF_CHUNK_BYTES, access, bytes / RF_CHUNK_BYTES);
	return 0;
}

static int null_space_map(struct hal_space *space, uint64_t addr, uint32_t chunk, bool writable)
{
	return map(space, addr, RF_CHUNK_BYTES, writable ? PROT_READ | PROT_WRITE : PROT_READ,
		   space->device->file, chunk * RF_CHUNK_BYTES);
}

static int null_space_unmap(struct hal_space *space, uint64_t addr)
{
	return map(space, addr, RF_CHUNK_BYTES, PROT_NONE, -1, 0);
}

static int null_space_map_host(struct hal_space *space, uint64_t addr, int fd, uint64_t offset,
			       uint64_t bytes)
{
	return map(space, addr, bytes, PROT_READ | PROT_WRITE, fd, offset);
}

static int null_space_protect(struct hal_space *space, uint64_t addr, uint32_t chunks,
			      bool writable)
{
	int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	uint64_t at = addr - RF_DEV_BASE;

	if (mprotect(space->window + at, chunks * RF_CHUNK_BYTES, access))
		return OUT_OF_MEMORY;
	memset(space->access + at / RF_CHUNK_BYTES, access, chunks);
	return 0;
}

static bool null_space_copied(struct hal_space *space, uint64_t *addr, uint32_t *chunk)
{
	(void)space, (void)addr, (void)chunk;
	return false; /* no kernel writes */
}

static int null_space_error(struct hal_space *space, char *text, uint32_t text_bytes)
{
	if (space->error && text)
		snprintf(text, text_bytes, "a copy, fill, checksum or a sum of a collective: %s",
			 space->error == ILLEGAL_ADDRESS ? "nothing is mapped there, or read-only"
							 : "a misaligned address");
	return space->error;
}

static void null_space_cancel(struct hal_space *space) { (void)space; } /* no kernel runs */

/* ---- works ---- */

/* The address of an operand in this process. NULL: its space has failed, now or earlier. */
static void *operand(struct hal_ref ref, uint64_t offset, uint64_t bytes, uint32_t align,
		     int access)
{
	uint64_t at = ref.addr + offset - RF_DEV_BASE;
	struct hal_space *space = ref.space;

	if (!space)
		return (void *)(uintptr_t)(ref.addr + offset);
	if (!space->error && at % align)
		space->error = MISALIGNED_ADDRESS;
	for (uint64_t i = 0, p; i < bytes && !space->error;
	     i += RF_CHUNK_BYTES - p % RF_CHUNK_BYTES) {
		p = at + i;
		if (p >= RF_WINDOW_BYTES || !(space->access[p / RF_CHUNK_BYTES] & access))
			space->error = ILLEGAL_ADDRESS;
	}
	return space->error ? NULL : space->window + at;
}

static void copy(const struct hal_work *w)
{
	for (uint64_t y = 0; y < w->copy.height; y++) {
		void *to = operand(w->copy.dst, y * w->copy.dst_pitch, w->copy.width, 1,
				   PROT_WRITE);
		void *from = operand(w->copy.src, y * w->copy.src_pitch, w->copy.width, 1,
				     PROT_READ);

		if (!to || !from)
			return;
		memmove(to, from, w->copy.width);
	}
}

static void fill(const struct hal_work *w)
{
	uint64_t bytes = w->fill.width * w->fill.element;

	for (uint64_t y = 0; y < w->fill.height; y++) {
		uint8_t *to = operand(w->fill.dst, y * w->fill.pitch, bytes, 1, PROT_WRITE);

		for (uint64_t i = 0; to && i < bytes; i += w->fill.element)
			memcpy(to + i, &w->fill.value, w->fill.element); /* little-endian */
	}
}

static void sum(const struct hal_work *w)
{
	uint64_t bytes = hal_sum_bytes(w), element = hal_sum_element(w);
	struct hal_ref refs[HAL_SUM_REFS];
	void *at[HAL_SUM_REFS] = {NULL};

	for (uint32_t i = hal_sum_refs(w, refs); i-- > 0;) {
		at[i] = operand(refs[i], 0, bytes, (uint32_t)element, i ? PROT_READ : PROT_WRITE);
		if (!at[i])
			return;
	}
	hal_sum(w, at[0], at[1], at[2], bytes / element);
}

static void checksum(const struct hal_work *w)
{
	const void *from = operand(w->checksum.src, 0, w->checksum.bytes, 1, PROT_READ);

	if (from)
		hal_checksum(w->checksum.sum, from, w->checksum.bytes, 0);
}

/* Returns false if the device cannot do such work. */
static bool run(const struct hal_work *w)
{
	switch (w->kind) {
	case HAL_KERNEL: return true;
	case HAL_GEMM: return false;
	case HAL_COPY: copy(w); return true;
	case HAL_FILL: fill(w); return true;
	case HAL_CHECKSUM: checksum(w); return true;
	case HAL_REDUCE:
	case HAL_SCALE:
		if (!hal_sum_acceptable(w))
			return false;
		sum(w);
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

/* Everything that was submitted is complete. */
static uint32_t null_available(struct hal_stream *stream) { return (void)stream, 64; }

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

/* submit rings for each work. */
static void null_notify_at(struct hal_stream *s, uint64_t number) { (void)s, (void)number; }

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
