/* event.h: events, their records, and who waits for them (event.c). */
#ifndef RANKFOLD_QUEUE_EVENT_H
#define RANKFOLD_QUEUE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "queue/item.h"
#include "rank/table.h"

struct order_mark;
struct rank;

/* One EVENT_RECORD. Who waits for it keeps it: the event may be recorded anew, elsewhere, and that
 * record may complete earlier. */
struct mark {
	uint32_t refs; /* the event's one, and one per item and waiter that names it */
	bool over;
	bool loud;        /* it is timed, or somebody waits: the loop must be woken for it */
	uint64_t time_ns; /* when that was, CLOCK_MONOTONIC */
	struct order_mark *order; /* what is behind it, where that is checked */
};

struct event {
	struct object o;
	uint32_t flags;
	struct mark *last; /* NULL: never recorded */
};

/* A request that is answered when its mark completes. */
struct waiter {
	struct mark *mark;
	uint16_t slot;
};

struct event *event_new(uint64_t id, uint32_t flags); /* in no table yet */
bool event_from(struct event *, uint64_t time_ns);    /* it was recorded then, elsewhere */
/* EVENT_RECORD and STREAM_WAIT: an item that names the event's record of this moment. CUresult. */
int event_queue(struct rank *, struct event *, struct stream *, enum item_kind, uint64_t seq);
/* Answers when its last record is over. False: host memory is short. */
bool event_await(struct rank *, struct event *, uint16_t slot);
void event_free(struct event *);
bool event_over(const struct event *); /* its last record, if there is one */

void waiters_answer(struct rank *); /* those that have completed; all, if the rank has failed */
void waiters_drop(struct rank *);

#endif
