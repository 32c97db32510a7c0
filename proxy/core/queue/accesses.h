/* accesses.h: passes what a rank issues to the check of its order (accesses.c). */
#ifndef RANKFOLD_QUEUE_ACCESSES_H
#define RANKFOLD_QUEUE_ACCESSES_H

#include "order/order.h"

struct event;
struct item;
struct mark;
struct rank;
struct stream;

/* Starts the check, before anything is in the rank's streams. Otherwise the other functions do
 * nothing. Returns false if host memory is short. */
bool accesses_open(struct rank *, order_report *, void *to);
void accesses_close(struct rank *);

/* A stream was created, or is destroyed. */
void accesses_stream(struct rank *, const struct stream *, bool gone);
/* An item is added to a stream, in program order. The rank must be checked. */
void accesses_pushed(struct rank *, const struct stream *, const struct item *);
/* Returns the event's record as of now; the mark's owner releases it (order_mark_free). */
struct order_mark *accesses_record(struct rank *, const struct stream *);
void accesses_wait(struct rank *, const struct stream *, const struct event *);
/* The host learns that something is complete, or waits for that. */
void accesses_host_saw(struct rank *, const struct event *);
void accesses_host_saw_stream(struct rank *, const struct stream *);
void accesses_host_saw_all(struct rank *);
/* A buffer is freed: at once, when the device has done all earlier work (stream NULL), or at its
 * place in a stream, where that is an access. */
void accesses_free(struct rank *, const struct stream *, uint64_t addr, uint64_t bytes,
		   uint64_t seq);

#endif
