/* held.h: where in a rank's image it is said that the image is held, and what was set aside for
 * that (held.c). `rankfold/image.py` reads this header, too: numbers, and arrays of them.
 */
#ifndef RANKFOLD_HELD_H
#define RANKFOLD_HELD_H

#include <stdint.h>

#include "channel.h"

#define HOLD_OFFSET (RF_WINDOW_BYTES / 16 * 9) /* behind memory and state */
#define HOLD_PAGES (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define ASIDE_OFFSET (HOLD_OFFSET + (1ull << 24)) /* pages that were set aside, in order */
#define ASIDE_PAGES ((RF_WINDOW_BYTES - ASIDE_OFFSET) / RF_CHUNK_BYTES)
#define ASIDE_NOTHING 0xffffffffu

struct image_hold {
	_Atomic uint32_t holds; /* the launcher's: it copies the image */
	_Atomic uint32_t lost;  /* the proxy's: something has changed that is not there any more */
	uint32_t pages;         /* set aside */
	uint32_t reserved;
	/* Of each page: 0: it is as it was when the hold began; the number, from 1, that it was set
	 * aside as; ASIDE_NOTHING: the image held nothing of it. */
	_Atomic uint32_t aside[HOLD_PAGES];
};

#endif
