/* ready.h: may the next item of a stream be looked at? (ready.c) */
#ifndef RANKFOLD_QUEUE_READY_H
#define RANKFOLD_QUEUE_READY_H

#include <stdbool.h>

#include "queue/item.h"
#include "queue/stream.h"

bool ready_held(const struct rank *, const struct stream *); /* its next item, by another stream */
bool ready_open(const struct rank *,
		const struct stream *); /* there is a next item, and its turn */
enum item_ready ready_item(const struct item *);

/* The record of a collective of which all that comes before it in its stream is on the device, and
 * not over; 0: there is none. */
uint64_t ready_before_collective(const struct rank *);

#endif
