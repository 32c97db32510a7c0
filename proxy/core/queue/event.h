/* event.h: events, their records, and what waits for them (event.c). */
#ifndef RANKFOLD_QUEUE_EVENT_H
#define RANKFOLD_QUEUE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "queue/item.h"
#include "rank/table.h"

struct order_mark;
struct rank;

/* One EVENT_RECORD. Items and requests that wait for it keep it: the event may be recorded again,
 * in another stream, and that record may complete earlier. */
struct mark {
	uint32_t refs; /* one of the event, and one per item and waiter that refers to it */
	bool complete;
	bool loud;                /* timed, or something waits for it: it must wake the loop */
	uint64_t time_ns;         /* time of completion, CLOCK_MONOTONIC */
	struct order_mark *order; /* its place in the program's order, if that is checked */
};

struct event {
	struct object o;
	uint32_t flags;
	struct mark *last; /* NULL: never recorded */
};

/* A request whose reply is sent when its mark completes. */
struct waiter {
	struct mark *mark;
	uint16_t slot;
};

struct event *event_new(uint64_t id, uint32_t flags); /* in no table yet */
bool event_from(struct event *, uint64_t time_ns);    /* recorded at that time, before a restore */
/* EVENT_RECORD and STREAM_WAIT: queues an item that refers to the event's current record.
 * CUresult. */
int event_queue(struct rank *, struct event *, struct stream *, enum item_kind, uint64_t seq);
/* Replies when the event's last record is complete. False: host memory is short. */
bool event_await(struct rank *, struct event *, uint16_t slot);
void event_free(struct event *);
bool event_done(const struct event *); /* its last record is complete, or there is none */

void waiters_answer(struct rank *); /* if completed; all, if the rank has failed */
void waiters_drop(struct rank *);

#endif
