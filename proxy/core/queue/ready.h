/* ready.h: whether the next item of a stream may be considered (ready.c). */
#ifndef RANKFOLD_QUEUE_READY_H
#define RANKFOLD_QUEUE_READY_H

#include <stdbool.h>

#include "queue/item.h"
#include "queue/stream.h"

bool ready_waits_for_older(const struct rank *, const struct stream *); /* by another stream */
bool ready_open(const struct rank *,
		const struct stream *); /* there is a next item, and it may be next */
enum item_ready ready_item(const struct item *);

/* Returns the number (seq) of a collective's record if everything before it in its stream is on the
 * device and incomplete; 0: there is none. */
uint64_t ready_before_collective(const struct rank *);

#endif
