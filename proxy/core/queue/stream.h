/* stream.h: a rank's streams and the items in each (stream.c); what becomes of these: pump.h. */
#ifndef RANKFOLD_QUEUE_STREAM_H
#define RANKFOLD_QUEUE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "rank/table.h"
#include "queue/item.h"

struct hal_stream;
struct rank;

struct stream {
	struct object o;
	uint32_t flags;
	int32_t priority;
	bool doomed; /* destroyed; goes when empty */
	struct hal_stream *hal;
	struct item *head, *tail; /* oldest incomplete … newest */
	struct item *next;        /* first that is not wholly submitted */
	uint32_t abroad; /* submitted and not complete: on another stream's work, see squash.c */
};

struct stream *stream_new(struct rank *, uint64_t id, uint32_t flags, int32_t priority);
void stream_doom(struct rank *, struct stream *); /* destroyed: goes when nothing is left in it */
void stream_push(struct rank *, struct stream *, struct item *);
struct item *stream_pop(struct rank *, struct stream *); /* the oldest, complete: out of it */
void stream_submitted(struct stream *);                  /* all of its next item */
static inline bool stream_abroad(const struct stream *s) { return s->abroad; }
void stream_free(struct rank *, uint32_t index); /* of the rank's; with nothing in it */
void streams_close(struct rank *);               /* all of them, likewise */

#endif
