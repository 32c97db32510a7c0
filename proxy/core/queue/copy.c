/* copy.c: copies and fills: submitted in pieces, so that none holds up other ranks.
 *
 * They run for any rank, including one that is not resident: then a piece is within one page, on
 * the device or in the rank's image (memory_resolve).
 */
#include "queue/queue_parts.h"
#include "queue/kinds.h"

#define PIECE_ROWS 65536u

/* Resolves one side of a copy at (row, column). Returns how much of the row is contiguous. */
static uint64_t resolve_side(struct rank *r, struct item *i, bool destination, uint64_t bytes,
			     struct hal_ref *ref)
{
	const struct rf_copy *c = &i->copy.copy;
	uint64_t at = (destination ? c->dst : c->src) +
		      i->copy.row * (destination ? c->dst_pitch : c->src_pitch) + i->copy.column;
	switch (destination ? c->dst_place : c->src_place) {
	case RF_AT_BULK:
		*ref = (struct hal_ref){NULL,
					(uint64_t)(uintptr_t)(r->ring.map + RF_OFF_BULK + at)};
		return bytes;
	case RF_AT_INLINE:
		*ref = (struct hal_ref){NULL, (uint64_t)(uintptr_t)(i->data + at)};
		return bytes;
	default: return memory_resolve(&r->memory, at, bytes, destination, ref);
	}
}

/* Returns how many whole rows to submit at once; 0: the next row is not contiguous, or too long. */
static uint64_t whole_rows(const struct rank *r, uint64_t width, uint64_t left, uint64_t column)
{
	uint64_t rows = PIECE_BYTES / width;
	if (!memory_resident(&r->memory) || column)
		return 0;
	rows = rows < PIECE_ROWS ? rows : PIECE_ROWS;
	return rows < left ? rows : left;
}

/* Submits as many rows at once as fit a piece if the rank is resident, otherwise chunk by chunk. */
bool copy_submit(struct rank *r, struct stream *s, struct item *i)
{
	const struct hal *hal = r->device->hal;
	const struct rf_copy *c = &i->copy.copy;
	while (i->copy.row < c->height && c->width) {
		if (!item_may(r, s, i, COPY_NEEDS))
			return false;
		struct hal_work w = {.kind = HAL_COPY};
		uint64_t n = resolve_side(r, i, true, c->width - i->copy.column, &w.copy.dst);
		n = resolve_side(r, i, false, n, &w.copy.src);
		uint64_t rows = whole_rows(r, c->width, c->height - i->copy.row, i->copy.column);
		w.copy.width = n;
		w.copy.height = rows ? rows : 1;
		w.copy.dst_pitch = c->dst_pitch;
		w.copy.src_pitch = c->src_pitch;
		item_on_device(r, s, i, hal->submit(s->hal, &w));
		i->copy.column += n;
		if (i->copy.column >= c->width) {
			i->copy.row += w.copy.height;
			i->copy.column = 0;
		}
	}
	return true;
}

bool fill_submit(struct rank *r, struct stream *s, struct item *i)
{
	const struct hal *hal = r->device->hal;
	const struct rf_fill *f = &i->fill.fill;
	uint64_t row_bytes = f->width * f->element;
	while (i->fill.row < f->height && row_bytes) {
		if (!item_may(r, s, i, COPY_NEEDS))
			return false;
		struct hal_work w = {.kind = HAL_FILL};
		uint64_t at = f->dst + i->fill.row * f->pitch + i->fill.column;
		uint64_t rows = whole_rows(r, row_bytes, f->height - i->fill.row, i->fill.column);
		uint64_t n = memory_resolve(&r->memory, at, row_bytes - i->fill.column, true,
					    &w.fill.dst);
		w.fill.width = n / f->element;
		w.fill.height = rows ? rows : 1;
		w.fill.pitch = f->pitch;
		w.fill.value = f->value;
		w.fill.element = f->element;
		item_on_device(r, s, i, hal->submit(s->hal, &w));
		i->fill.column += n;
		if (i->fill.column >= row_bytes) {
			i->fill.row += w.fill.height;
			i->fill.column = 0;
		}
	}
	return true;
}

/* Counts works as copy_submit and fill_submit cut rows for a resident rank. */
static uint64_t count_works(uint64_t width, uint64_t rows)
{
	uint64_t at_once = width ? PIECE_BYTES / width : 0;
	if (!width || !rows)
		return 0;
	if (!at_once)
		return rows * ((width + PIECE_BYTES - 1) / PIECE_BYTES);
	at_once = at_once < PIECE_ROWS ? at_once : PIECE_ROWS;
	return (rows + at_once - 1) / at_once;
}

uint64_t copy_works(const struct item *i)
{
	return count_works(i->copy.copy.width, i->copy.copy.height);
}

uint64_t fill_works(const struct item *i)
{
	return count_works(i->fill.fill.width * i->fill.fill.element, i->fill.fill.height);
}

void copy_complete(struct rank *r, struct item *i)
{
	const struct rf_copy *c = &i->copy.copy;
	if (c->release_bulk && c->src_place == RF_AT_BULK)
		ring_release_bulk(r, (uint32_t)(c->src / RF_BULK_BYTES));
}

bool copy_awaited(const struct item *i) { return i->slot || i->copy.copy.release_bulk; }
