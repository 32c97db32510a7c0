/* stream.h: a rank's streams and the items in each (stream.c); pump.h processes them. */
#ifndef RANKFOLD_QUEUE_STREAM_H
#define RANKFOLD_QUEUE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "rank/table.h"
#include "queue/item.h"

#define STREAM_ITEMS_MAX 4096u /* weight of a rank\'s queued items; at this limit, its ring waits */
#define STREAMS_MAX 4096u      /* of one rank: every turn visits all of them */

struct hal_stream;
struct rank;

struct stream {
	struct object o;
	uint32_t flags;
	int32_t priority;
	bool doomed; /* destroyed; removed when empty */
	struct hal_stream *hal;
	struct item *head, *tail; /* oldest incomplete … newest */
	struct item *next;        /* first that is not completely submitted */
	uint32_t
		on_other_queue; /* items submitted but incomplete on another stream's work: squash.c */
};

struct stream *stream_new(struct rank *, uint64_t id, uint32_t flags, int32_t priority);
void stream_doom(struct rank *, struct stream *); /* destroyed: removed when empty */
void stream_push(struct rank *, struct stream *, struct item *);
struct item *stream_pop(struct rank *, struct stream *); /* removes the oldest, which is complete */
void stream_submitted(struct stream *);                  /* all of its next item is submitted */
static inline bool stream_on_other_queue(const struct stream *s) { return s->on_other_queue; }
void stream_free(struct rank *, uint32_t index); /* it must be empty */
void streams_close(struct rank *);               /* all of them; they must be empty */

#endif
