/* accesses.h: what a rank issues, for the check of its order (accesses.c). */
#ifndef RANKFOLD_QUEUE_ACCESSES_H
#define RANKFOLD_QUEUE_ACCESSES_H

#include "order/order.h"

struct event;
struct item;
struct mark;
struct rank;
struct stream;

/* From now on, before anything is in its streams. Without it none of the others does anything.
 * False: host memory is short. */
bool accesses_open(struct rank *, order_told *, void *to);
void accesses_close(struct rank *);

/* A stream comes, or is destroyed. */
void accesses_stream(struct rank *, const struct stream *, bool gone);
/* An item goes into a stream, in program order; the rank is checked. */
void accesses_pushed(struct rank *, const struct stream *, const struct item *);
/* An event's record of this moment; whoever has the mark releases it (order_mark_free). */
struct order_mark *accesses_record(struct rank *, const struct stream *);
void accesses_wait(struct rank *, const struct stream *, const struct event *);
/* The host is told that something is done, or waits for it. */
void accesses_seen(struct rank *, const struct event *);
void accesses_seen_stream(struct rank *, const struct stream *);
void accesses_seen_all(struct rank *);
/* A buffer is freed: at once, when the device has done all it was given (stream NULL), or at its
 * place in a stream, where that is an access. */
void accesses_free(struct rank *, const struct stream *, uint64_t addr, uint64_t bytes,
		   uint64_t seq);

#endif
