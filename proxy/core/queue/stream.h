/* stream.h: a rank's streams and the order in them (stream.c). */
#ifndef RANKFOLD_QUEUE_STREAM_H
#define RANKFOLD_QUEUE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/table.h"
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
};

struct stream *stream_new(struct rank *, uint64_t id, uint32_t flags, int32_t priority);
void stream_push(struct rank *, struct stream *, struct item *);
void rank_pump(struct rank *);             /* complete, then submit what can be */
bool rank_has_kernel(const struct rank *); /* a kernel could be submitted were it active */
void rank_drop_streams(struct rank *);
void rank_sleep(struct rank *); /* before the loop sleeps: which completions must wake it */
/* What is wrong with the rank's streams, or NULL (valid.c). Adds the works that use the rank's
 * memory and the requests that wait for an answer here. */
const char *queue_invalid(const struct rank *, uint32_t *inflight, uint32_t *slots);

#endif
