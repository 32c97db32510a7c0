/* copy.c: copies and fills. Pageable data travels inline (small) or through bulk slots.
 *
 * No lock. Blocking: copies that move pageable data to the host, and copies that are synchronous by
 * definition.
 */
#include <string.h>

#include "issue.h"

#define INLINE_BYTES 4096u /* smaller pageable data travels in the record itself */
#define PIPELINE 8u        /* bulk slots that one device-to-host copy keeps in flight */

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Bytes from the start of a copy's first row to the end of its last row. */
static uint64_t bytes_spanned(const struct copy *c, uint64_t pitch)
{
	return (c->height - 1) * pitch + c->width;
}

static struct rf_copy record_of(const struct copy *c)
{
	return (struct rf_copy){.stream = c->stream,
				.dst = (uint64_t)c->dst,
				.src = (uint64_t)c->src,
				.dst_pitch = c->dst_pitch,
				.src_pitch = c->src_pitch,
				.width = c->width,
				.height = c->height};
}

static int send_copy(struct rf_copy *m, const void *tail, size_t bytes, bool wait)
{
	if (!wait) {
		channel_post_work(&m->r, RF_OP_COPY, sizeof *m, tail, bytes, m->stream);
		return CUDA_OK;
	}
	int error = channel_call(&m->r, RF_OP_COPY, sizeof *m, tail, bytes, NULL, 0);
	print_kernels_output();
	return error;
}

/* Both sides are in the window. */
static int copy_window(const struct copy *c, bool wait)
{
	struct rf_copy m = record_of(c);
	return send_copy(&m, NULL, 0, wait);
}

static void gather_rows(uint8_t *to, const struct copy *c)
{
	for (uint64_t row = 0; row < c->height; row++)
		memcpy(to + row * c->width, (const uint8_t *)c->src + row * c->src_pitch, c->width);
}

static void scatter_rows(const struct copy *c, const uint8_t *from)
{
	for (uint64_t row = 0; row < c->height; row++)
		memcpy((uint8_t *)c->dst + row * c->dst_pitch, from + row * c->width, c->width);
}

/* Cuts the next piece of at most RF_BULK_BYTES off c: whole rows, or a part of one. */
static bool next_piece(struct copy *c, uint64_t *column, struct copy *piece)
{
	if (!c->height)
		return false;
	*piece = *c;
	piece->dst = (uint8_t *)c->dst + *column;
	piece->src = (const uint8_t *)c->src + *column;
	uint64_t rows = 1;
	if (c->width <= RF_BULK_BYTES) {
		rows = piece->height = min(c->height, RF_BULK_BYTES / c->width);
	} else {
		piece->height = 1;
		piece->width = min(c->width - *column, RF_BULK_BYTES);
		*column += piece->width;
		if (*column < c->width)
			return true;
		*column = 0;
	}
	c->dst = (uint8_t *)c->dst + rows * c->dst_pitch;
	c->src = (const uint8_t *)c->src + rows * c->src_pitch;
	c->height -= rows;
	return true;
}

/* Copies pageable memory to the window. CUDA allows a synchronous copy to be still in progress when
 * it returns, but real devices are so fast that programs let streams read the data without waiting
 * for it. So the last piece of a synchronous copy is waited for. */
static int copy_in(struct copy c)
{
	struct copy piece;
	uint64_t column = 0;
	int error = CUDA_OK;
	if (c.width * c.height <= INLINE_BYTES) {
		uint8_t small[INLINE_BYTES];
		struct rf_copy m = record_of(&c);
		gather_rows(small, &c);
		m.src_place = RF_AT_INLINE;
		m.src = 0;
		m.src_pitch = c.width;
		return send_copy(&m, small, c.width * c.height, !c.async);
	}
	while (next_piece(&c, &column, &piece)) {
		uint32_t bulk = bulk_claim(true);
		struct rf_copy m = record_of(&piece);
		gather_rows(bulk_data(bulk), &piece);
		m.src_place = RF_AT_BULK;
		m.src = (uint64_t)bulk * RF_BULK_BYTES;
		m.src_pitch = piece.width;
		m.release_bulk = 1;
		error = send_copy(&m, NULL, 0, !c.async && !c.height);
	}
	return error;
}

struct flight {
	struct copy piece;
	uint32_t bulk, slot;
};

static void send_out(struct flight *f)
{
	struct rf_copy m = record_of(&f->piece);
	m.dst_place = RF_AT_BULK;
	m.dst = (uint64_t)f->bulk * RF_BULK_BYTES;
	m.dst_pitch = f->piece.width;
	f->slot = channel_begin(&m.r, RF_OP_COPY, sizeof m, NULL, 0);
}

/* Copies the window to pageable memory: several pieces in flight, each copied out when it is
 * answered. */
static int copy_out(struct copy c)
{
	struct flight flights[PIPELINE];
	uint32_t first = 0, count = 0;
	uint64_t column = 0;
	bool more = true;
	int error = CUDA_OK;
	for (;;) {
		while (more && !error && count < PIPELINE) {
			struct flight *f = &flights[(first + count) % PIPELINE];
			/* Blocks only while it holds no slot: with one, it can always continue. */
			if ((f->bulk = bulk_claim(count == 0)) == BULK_NONE)
				break;
			if (!(more = next_piece(&c, &column, &f->piece))) {
				bulk_release(f->bulk);
				break;
			}
			send_out(f);
			count++;
		}
		if (!count) {
			print_kernels_output();
			return error;
		}
		struct flight *f = &flights[first];
		int failed = channel_finish(f->slot, NULL, 0);
		if (!failed && !error)
			scatter_rows(&f->piece, bulk_data(f->bulk));
		error = error ? error : failed;
		bulk_release(f->bulk);
		first = (first + 1) % PIPELINE;
		count--;
	}
}

static int copy_on_host(const struct copy *c)
{
	int error = wait_for_stream(c->stream);
	for (uint64_t row = 0; !error && row < c->height; row++)
		memmove((uint8_t *)c->dst + row * c->dst_pitch,
			(const uint8_t *)c->src + row * c->src_pitch, c->width);
	return error;
}

/* True if the copy's `kind` agrees with its pointers. As in CUDA, a pointer that the kind describes
 * as host memory may be device memory. */
static bool kind_fits(int kind, enum where dst, enum where src)
{
	bool to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
	bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE;
	return !(to_device && dst == AT_PAGEABLE) && !(from_device && src == AT_PAGEABLE);
}

int copy_check(struct copy *c)
{
	int error = channel_enter();
	if (!c->width)
		c->height = 0;
	if (error || !c->height)
		return error;
	if (c->kind < HOST_TO_HOST || c->kind > BY_ADDRESS)
		return INVALID_DIRECTION;
	if (c->height > 1 && (c->dst_pitch < c->width || c->src_pitch < c->width))
		return INVALID_VALUE;
	if (c->height > 1 && c->dst_pitch == c->width && c->src_pitch == c->width) {
		c->width *= c->height;
		c->height = 1;
	}
	c->dst = registered_reached(c->dst, bytes_spanned(c, c->dst_pitch));
	c->src = registered_reached(c->src, bytes_spanned(c, c->src_pitch));
	enum where dst = memory_where(c->dst), src = memory_where(c->src);
	if (!c->dst || !c->src || !kind_fits(c->kind, dst, src) ||
	    (dst != AT_PAGEABLE && !memory_on_device(c->dst, bytes_spanned(c, c->dst_pitch))) ||
	    (src != AT_PAGEABLE && !memory_on_device(c->src, bytes_spanned(c, c->src_pitch))))
		return INVALID_VALUE;
	return CUDA_OK;
}

int issue_copy(const struct copy *c)
{
	enum where dst = memory_where(c->dst), src = memory_where(c->src);
	if (dst != AT_DEVICE && src != AT_DEVICE)
		return copy_on_host(c);
	if (src == AT_PAGEABLE) {
		int error = c->async ? CUDA_OK : stream_before_reading(c->stream);
		return error ? error : copy_in(*c);
	}
	if (dst == AT_PAGEABLE)
		return copy_out(*c);
	return copy_window(c, !c->async && (dst == AT_PINNED || src == AT_PINNED));
}

int memory_get(void *to, uint64_t from, uint64_t bytes, uint64_t stream)
{
	return copy_out((struct copy){to, (void *)from, bytes, bytes, bytes, 1, DEVICE_TO_HOST,
				      stream, false});
}

int memory_put(uint64_t to, const void *from, uint64_t bytes, uint64_t stream)
{
	return copy_in((struct copy){(void *)to, from, bytes, bytes, bytes, 1, HOST_TO_DEVICE,
				     stream, false});
}

/* ---- fills ---- */

int fill_check(struct rf_fill *m)
{
	int error = channel_enter();
	if (!m->width)
		m->height = 0;
	if (error || !m->height)
		return error;
	m->dst = (uint64_t)registered_reached((void *)m->dst, m->width * m->element);
	if (m->width > RF_HEAP_BYTES || (m->height > 1 && m->pitch < m->width * m->element) ||
	    m->dst % m->element || (m->height > 1 && m->pitch % m->element) ||
	    !memory_on_device((void *)m->dst, (m->height - 1) * m->pitch + m->width * m->element))
		return INVALID_VALUE;
	if (m->height == 1)
		m->pitch = m->width * m->element;
	return CUDA_OK;
}

void issue_fill(struct rf_fill *m)
{
	channel_post_work(&m->r, RF_OP_FILL, sizeof *m, NULL, 0, m->stream);
}
