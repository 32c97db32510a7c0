/* image_hold.h: the table in a rank's image that records an image hold, and the pages copied aside
 * for it (image_hold.c). `rankfold/image.py` also reads this header: its numbers, arrays of them.
 */
#ifndef RANKFOLD_IMAGE_HOLD_H
#define RANKFOLD_IMAGE_HOLD_H

#include <stdint.h>

#include "channel.h"

#define HOLD_OFFSET (RF_WINDOW_BYTES / 16 * 9) /* after memory and saved state */
#define HOLD_PAGES (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define ASIDE_OFFSET (HOLD_OFFSET + (1ull << 24)) /* pages copied aside, in order */
#define ASIDE_PAGES ((RF_WINDOW_BYTES - ASIDE_OFFSET) / RF_CHUNK_BYTES)
#define ASIDE_NOTHING 0xffffffffu

struct image_hold {
	_Atomic uint32_t holds; /* written by the launcher: it is copying the image */
	/* written by the proxy: content was lost before it could be copied */
	_Atomic uint32_t overflowed;
	uint32_t pages; /* pages copied aside */
	uint32_t reserved;
	/* For each page: 0 if it is as it was when the hold began; otherwise its number among the
	 * pages copied aside, counted from 1; ASIDE_NOTHING if the image had no content for it. */
	_Atomic uint32_t aside[HOLD_PAGES];
};

#endif
