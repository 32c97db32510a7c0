/* copy.c: copies rows of bytes between spaces and host memory, fills rows with one value, and
 * computes sums of collectives and checksums.
 *
 * Runs in a fault scope: a row that leaves mapped memory fails the space. A range that leaves the
 * window itself is refused before a byte is written.
 */
#include <string.h>

#include "checksum.h"
#include "reduce.h"
#include "soft.h"

/* The host address of `height` rows of `width` bytes; fails the work if they are not in the
 * window. */
static uint8_t *rows_at(struct hal_ref ref, uint64_t width, uint64_t height, uint64_t pitch)
{
	uint64_t bytes, offset = ref.addr - RF_DEV_BASE;

	if (!ref.space)
		return (uint8_t *)(uintptr_t)ref.addr;
	if (__builtin_mul_overflow(height - 1, pitch, &bytes) ||
	    __builtin_add_overflow(bytes, width, &bytes) || offset >= RF_WINDOW_BYTES ||
	    bytes > RF_WINDOW_BYTES - offset)
		soft_abort_space(ref.space, SOFT_ILLEGAL_ADDRESS);
	return ref.space->base + offset;
}

void soft_copy(struct soft_worker *worker, const struct hal_work *work)
{
	uint64_t width = work->copy.width, height = work->copy.height;
	uint64_t dst_pitch = work->copy.dst_pitch, src_pitch = work->copy.src_pitch;
	uint8_t *dst;
	const uint8_t *src;

	(void)worker;
	if (width == 0 || height == 0)
		return;
	dst = rows_at(work->copy.dst, width, height, dst_pitch);
	src = rows_at(work->copy.src, width, height, src_pitch);
	if (height == 1 || (dst_pitch == width && src_pitch == width)) {
		memmove(dst, src, width * height);
		return;
	}
	for (uint64_t y = 0; y < height; y++)
		memmove(dst + y * dst_pitch, src + y * src_pitch, width);
}

static void fill_row(uint8_t *row, uint64_t width, uint32_t value, uint32_t element)
{
	if (element == 1) {
		memset(row, (int)(value & 0xff), width);
	} else if (element == 2) {
		uint16_t half = (uint16_t)value;

		for (uint64_t i = 0; i < width; i++)
			memcpy(row + 2 * i, &half, 2);
	} else {
		for (uint64_t i = 0; i < width; i++)
			memcpy(row + 4 * i, &value, 4);
	}
}

void soft_fill(struct soft_worker *worker, const struct hal_work *work)
{
	uint64_t width = work->fill.width, height = work->fill.height, bytes;
	uint32_t element = work->fill.element;
	uint8_t *dst;

	(void)worker;
	if (element != 1 && element != 2 && element != 4)
		soft_abort(SOFT_INVALID_VALUE);
	if (width == 0 || height == 0)
		return;
	if (__builtin_mul_overflow(width, (uint64_t)element, &bytes))
		soft_abort(SOFT_ILLEGAL_ADDRESS);
	dst = rows_at(work->fill.dst, bytes, height, work->fill.pitch);
	for (uint64_t y = 0; y < height; y++)
		fill_row(dst + y * work->fill.pitch, width, work->fill.value, element);
}

void soft_sum(struct soft_worker *worker, const struct hal_work *work)
{
	struct hal_ref refs[HAL_SUM_REFS];
	uint32_t count = hal_sum_refs(work, refs), element = hal_sum_element(work);
	uint64_t bytes = hal_sum_bytes(work);
	uint8_t *at[HAL_SUM_REFS] = {NULL};

	(void)worker;
	if (bytes == 0)
		return;
	for (uint32_t i = 0; i < count; i++) {
		at[i] = rows_at(refs[i], bytes, 1, bytes);
		if (refs[i].space && refs[i].addr % element)
			soft_abort_space(refs[i].space, SOFT_MISALIGNED_ADDRESS);
	}
	hal_sum(work, at[0], at[1], at[2], bytes / element);
}

void soft_checksum(struct soft_worker *worker, const struct hal_work *work)
{
	uint64_t bytes = work->checksum.bytes;

	(void)worker;
	if (bytes)
		hal_checksum(work->checksum.sum, rows_at(work->checksum.src, bytes, 1, bytes),
			     bytes, 0);
}
