/* stream.c: a rank's streams: independent queues, so that one that waits never holds up another.
 *
 * A stream keeps its items from the oldest incomplete one to the newest: first the submitted ones,
 * then the next one to submit.
 */
#include <stdlib.h>

#include "invariant.h"
#include "queue/queue_parts.h"
#include "queue/accesses.h"

struct stream *stream_new(struct rank *r, uint64_t id, uint32_t flags, int32_t priority)
{
	if (r->queue->stream_count >= STREAMS_MAX)
		return NULL;
	struct stream *s = calloc(1, sizeof *s);
	struct stream **all = realloc(r->queue->streams,
				      (r->queue->stream_count + 1) * sizeof *all);
	if (all)
		r->queue->streams = all;
	if (!s || !all || r->device->hal->stream_create(r->device->opened, &s->hal)) {
		free(s);
		return NULL;
	}
	s->o = (struct object){OBJ_STREAM, id};
	s->flags = flags;
	s->priority = priority;
	if (!table_put(&r->objects, &s->o)) {
		r->device->hal->stream_destroy(s->hal);
		free(s);
		return NULL;
	}
	r->queue->streams[r->queue->stream_count++] = s;
	if (id == RF_STREAM_LEGACY)
		r->queue->legacy = s;
	accesses_stream(r, s, false);
	return s;
}

void stream_free(struct rank *r, uint32_t index)
{
	struct stream *s = r->queue->streams[index];
	INVARIANT(index < r->queue->stream_count && !s->head, "a stream that goes has no items");
	table_remove(&r->objects, s->o.id);
	r->device->hal->stream_destroy(s->hal);
	free(s);
	r->queue->streams[index] = r->queue->streams[--r->queue->stream_count];
}

void streams_close(struct rank *r)
{
	while (r->queue->stream_count)
		stream_free(r, r->queue->stream_count - 1);
	free(r->queue->streams);
	r->queue->streams = NULL;
}

void stream_doom(struct rank *r, struct stream *s)
{
	s->doomed = true;
	accesses_stream(r, s, true);
}

void stream_push(struct rank *r, struct stream *s, struct item *i)
{
	if (s->tail)
		s->tail->next = i;
	else
		s->head = i;
	s->tail = i;
	if (!s->next)
		s->next = i;
	r->queue->items += i->weight;
	if (r->queue->order)
		accesses_pushed(r, s, i);
}

static bool on_other_queue(const struct stream *s, const struct item *i)
{
	return i->execution->place == EXECUTION_DEVICE && i->execution->queue != s->hal;
}

struct item *stream_pop(struct rank *r, struct stream *s)
{
	struct item *i = s->head;
	INVARIANT(i && r->queue->items >= i->weight, "an item that leaves a stream was counted");
	INVARIANT(!(i->submitted && on_other_queue(s, i)) || s->on_other_queue,
		  "an item that completed on another stream's work was counted");
	s->head = i->next;
	if (!s->head)
		s->tail = NULL;
	r->queue->items -= i->weight;
	s->on_other_queue -= i->submitted && on_other_queue(s, i);
	return i;
}

void stream_submitted(struct stream *s)
{
	INVARIANT(s->next && !s->next->submitted, "a stream has a next item when it is submitted");
	s->next->submitted = true;
	s->on_other_queue += on_other_queue(s, s->next);
	s->next = s->next->next;
}
