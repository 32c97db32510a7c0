/* capture.c: stream capture. While a stream is captured, work issued to it becomes a node of a
 * graph instead, which depends on the work before it on that stream. An event recorded there stands
 * for those nodes, and a stream that waits for the event joins the capture.
 *
 * Three kinds of calls are not allowed meanwhile: queries of the progress of a captured stream or
 * event (always wrong); uses of the legacy stream, on which the captured blocking streams would
 * depend (always wrong); and calls that are only unsafe, which depend on the modes of captures and
 * threads (capture_forbids). Each has its error and invalidates the captures that it violates.
 *
 * Lock: CAPTURE_LOCK around the list of captures; no thread waits or takes another lock under it.
 * The hot path reads one counter.
 */
#include <pthread.h>
#include <stdlib.h>

#include "graph.h"
#include "invariant.h"

enum capture_mode { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
enum capture_status { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

struct capture {
	struct graph *graph;
	uint64_t id, origin;
	int mode;
	bool broken, own_graph;
	pthread_t thread;
};
/* A captured stream, or an event recorded in one: the next node depends on `tails`. */
struct captured {
	uint64_t number;
	struct capture *capture;
	struct nodes tails;
	struct captured *next;
	bool blocking; /* a stream that is ordered with the legacy stream */
};

_Atomic uint32_t captures_active;

static struct captured *streams, *events;
static uint64_t last_id;
static _Thread_local int thread_mode = CAPTURE_GLOBAL;

/* ---- lists: under CAPTURE_LOCK ---- */

static struct captured *find_captured(struct captured *list, uint64_t number)
{
	while (list && list->number != number)
		list = list->next;
	return list;
}

static void drop_captured(struct captured **list, const struct capture *capture, uint64_t number)
{
	while (*list) {
		struct captured *c = *list;
		if (capture ? c->capture != capture : c->number != number) {
			list = &c->next;
			continue;
		}
		*list = c->next;
		nodes_clear(&c->tails);
		free(c);
	}
}

/* Removes an ended capture from the lists. */
static void forget_capture(const struct capture *capture)
{
	drop_captured(&streams, capture, 0);
	drop_captured(&events, capture, 0);
	INVARIANT(atomic_load(&captures_active), "a capture that ends was counted");
	atomic_fetch_sub(&captures_active, 1);
}

/* After forget, without the lock: frees a capture that leaves no graph. */
static void free_capture(struct capture *capture)
{
	if (capture->own_graph)
		graph_free(capture->graph);
	free(capture);
}

static struct captured *list_captured(struct captured **list, uint64_t number,
				      struct capture *capture)
{
	const struct handle *stream = handle_get(HANDLE_STREAM, (void *)number);
	struct captured *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	*c = (struct captured){number,
			       capture,
			       {NULL, 0},
			       *list,
			       !(stream && stream->flags & RF_STREAM_NON_BLOCKING)};
	return *list = c;
}

/* ---- calls that are not allowed during a capture ---- */

/* Under CAPTURE_LOCK: true if using this stream would affect a capture that it is not part of. */
static bool affects_capture(uint64_t stream)
{
	bool found = false;
	for (const struct captured *c = streams; c && stream == RF_STREAM_LEGACY; c = c->next)
		found |= c->blocking;
	return found;
}

/* Under CAPTURE_LOCK: the stream was used nevertheless. */
static int refuse_implicit(void)
{
	for (struct captured *c = streams; c; c = c->next)
		c->capture->broken |= c->blocking;
	return CAPTURE_IMPLICIT;
}

/* Under CAPTURE_LOCK: a captured stream or event cannot do what was requested. */
static int invalidate_capture(struct captured *c, int error)
{
	if (c->capture->broken)
		return CAPTURE_INVALIDATED;
	c->capture->broken = true;
	return error;
}

bool capture_has(uint64_t stream)
{
	lock(CAPTURE_LOCK);
	bool found = find_captured(streams, stream) || affects_capture(stream);
	unlock(CAPTURE_LOCK);
	return found;
}

bool capture_into(const struct graph *graph)
{
	bool found = false;
	if (!atomic_load_explicit(&captures_active, memory_order_relaxed))
		return false;
	lock(CAPTURE_LOCK);
	for (const struct captured *c = streams; c; c = c->next)
		found |= c->capture->graph == graph;
	unlock(CAPTURE_LOCK);
	return found;
}

int capture_refuse(uint64_t stream)
{
	int error = CUDA_OK;
	lock(CAPTURE_LOCK);
	struct captured *c = find_captured(streams, stream);
	if (c) {
		c->capture->broken = true;
		error = CAPTURE_UNSUPPORTED; /* also if it was already invalidated */
	} else if (affects_capture(stream))
		error = refuse_implicit();
	unlock(CAPTURE_LOCK);
	return error;
}

int capture_refuse_free(uint64_t stream)
{
	int error = capture_refuse(stream);
	if (error == CAPTURE_UNSUPPORTED)
		LOG_ONCE("a capture that frees memory which no capture has allocated is not "
			 "supported by rankfold: free it after the graph's last launch");
	return error;
}

int capture_forbids(void)
{
	int error = CUDA_OK;
	if (!atomic_load_explicit(&captures_active, memory_order_relaxed))
		return CUDA_OK;
	lock(CAPTURE_LOCK);
	for (struct captured *c = streams; c; c = c->next) {
		bool mine = pthread_equal(c->capture->thread, pthread_self());
		if (thread_mode == CAPTURE_RELAXED || c->capture->mode == CAPTURE_RELAXED ||
		    (!mine && (c->capture->mode == CAPTURE_THREAD_LOCAL ||
			       thread_mode == CAPTURE_THREAD_LOCAL)))
			continue;
		c->capture->broken = true;
		error = CAPTURE_UNSUPPORTED;
	}
	unlock(CAPTURE_LOCK);
	return error;
}

int capture_forbids_device(void)
{
	int error = CUDA_OK;
	if (!atomic_load_explicit(&captures_active, memory_order_relaxed))
		return CUDA_OK;
	lock(CAPTURE_LOCK);
	for (struct captured *c = streams; c; c = c->next) {
		c->capture->broken = true;
		error = CAPTURE_UNSUPPORTED;
	}
	unlock(CAPTURE_LOCK);
	return error;
}

int stream_idle_number(const void *stream, uint64_t *number)
{
	int error = stream_number(stream, number);
	if (error || !atomic_load_explicit(&captures_active, memory_order_relaxed))
		return error;
	error = capture_refuse(*number);
	return error ? error : capture_forbids();
}

int event_idle_number(const void *event, uint64_t *number)
{
	const struct handle *h = handle_get(HANDLE_EVENT, event);
	*number = (uint64_t)event;
	if (!h)
		return INVALID_HANDLE;
	if (!atomic_load_explicit(&h->captured, memory_order_relaxed))
		return capture_forbids();
	lock(CAPTURE_LOCK);
	struct captured *c = find_captured(events, *number); /* NULL: the capture has ended */
	if (c)
		c->capture->broken = true;
	unlock(CAPTURE_LOCK);
	return c ? CAPTURED_EVENT : INVALID_VALUE;
}

/* Called before a stream is destroyed. */
static void stream_ends(uint64_t stream)
{
	if (!atomic_load_explicit(&captures_active, memory_order_relaxed))
		return;
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, stream);
	struct capture *capture = s ? s->capture : NULL;
	if (capture && capture->origin != stream) {
		capture->broken = true;
		drop_captured(&streams, NULL, stream);
		capture = NULL;
	}
	if (capture)
		forget_capture(capture);
	unlock(CAPTURE_LOCK);
	if (capture)
		free_capture(capture);
}

/* ---- calls that become nodes ---- */

/* Under CAPTURE_LOCK: whether the stream takes a node; c is NULL if it is not captured. */
static int may_add_node(const struct captured *c, uint64_t stream)
{
	if (!c)
		return affects_capture(stream) ? refuse_implicit() : CAPTURE_UNSUPPORTED;
	return c->capture->broken ? CAPTURE_INVALIDATED : CUDA_OK;
}

int capture_takes(uint64_t stream)
{
	lock(CAPTURE_LOCK);
	int error = may_add_node(find_captured(streams, stream), stream);
	unlock(CAPTURE_LOCK);
	return error;
}

bool capture_follows(uint64_t stream, uint64_t node)
{
	bool found = false;
	lock(CAPTURE_LOCK);
	const struct captured *c = find_captured(streams, stream);
	for (size_t i = 0; c && i < c->capture->graph->count && !found; i++) {
		struct node *n = c->capture->graph->nodes[i];
		found = n->number == node &&
			nodes_reach(c->capture->graph, &c->tails, &(struct nodes){&n, 1});
	}
	unlock(CAPTURE_LOCK);
	return found;
}

int capture_add(uint64_t stream, struct node *n)
{
	uint64_t number;
	return capture_add_numbered(stream, n, &number);
}

int capture_add_numbered(uint64_t stream, struct node *n, uint64_t *number)
{
	struct nodes needs = {NULL, 0};
	lock(CAPTURE_LOCK);
	struct captured *c = find_captured(streams, stream);
	int error = may_add_node(c, stream);
	if (error) {
		unlock(CAPTURE_LOCK);
		graph_append(NULL, n, NULL);
		return error;
	}
	needs = c->tails;
	c->tails = (struct nodes){NULL, 0};
	error = graph_append(c->capture->graph, n, &needs);
	if (!error)
		*number = n->number;
	if (!error && !nodes_add(&c->tails, n))
		error = OUT_OF_MEMORY;
	c->capture->broken |= error != CUDA_OK;
	unlock(CAPTURE_LOCK);
	nodes_clear(&needs);
	return error;
}

/* Under CAPTURE_LOCK: lets an event stand for the stream's last nodes. */
static int mark_event(uint64_t event, const struct captured *s)
{
	if (s->capture->broken)
		return CAPTURE_INVALIDATED;
	struct captured *e = list_captured(&events, event, s->capture);
	return e && nodes_join(&e->tails, &s->tails) ? CUDA_OK : OUT_OF_MEMORY;
}

bool capture_record(struct handle *event, uint64_t stream, int *error)
{
	if (!atomic_load_explicit(&captures_active, memory_order_relaxed)) {
		atomic_store_explicit(&event->captured, false, memory_order_relaxed);
		return false;
	}
	*error = CUDA_OK;
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, stream);
	if (!s && affects_capture(stream))
		*error = refuse_implicit();
	if (!*error)
		drop_captured(&events, NULL, event->number);
	if (s)
		*error = mark_event(event->number, s);
	if (!*error)
		atomic_store_explicit(&event->captured, s != NULL, memory_order_relaxed);
	unlock(CAPTURE_LOCK);
	return s || *error;
}

/* Under CAPTURE_LOCK: checks that stream s may wait for event e. Either is NULL if not captured. */
static int wait_check(struct captured *s, struct captured *e, uint64_t stream, bool stale)
{
	if (s && s->capture->broken)
		return CAPTURE_INVALIDATED;
	if (!s && affects_capture(stream))
		return refuse_implicit();
	if (s && !e)
		return invalidate_capture(s, stale ? CAPTURE_MERGE : CAPTURE_ISOLATION);
	if (s && e->capture != s->capture) {
		e->capture->broken = true;
		return invalidate_capture(s, CAPTURE_MERGE);
	}
	if (e && e->capture->broken)
		return CAPTURE_INVALIDATED;
	if (e && stream == RF_STREAM_LEGACY)
		return invalidate_capture(e,
					  CAPTURE_UNSUPPORTED); /* the legacy stream cannot join */
	return stale && !e ? INVALID_VALUE : CUDA_OK;
}

bool capture_wait(uint64_t stream, const struct handle *event, int *error)
{
	bool stale = atomic_load_explicit(&event->captured, memory_order_relaxed);
	if (!stale && !atomic_load_explicit(&captures_active, memory_order_relaxed))
		return false;
	lock(CAPTURE_LOCK);
	struct captured *e = find_captured(events, event->number),
			*s = find_captured(streams, stream);
	*error = wait_check(s, e, stream, stale);
	if (!*error && e) {
		s = s ? s : list_captured(&streams, stream, e->capture);
		if (!s || !nodes_join(&s->tails, &e->tails))
			*error = OUT_OF_MEMORY;
	}
	unlock(CAPTURE_LOCK);
	return s || e || *error;
}

/* ---- begin and end ---- */

static int start_capture(uint64_t stream, void *graph, const struct nodes *tails, int mode,
			 bool own)
{
	struct capture *capture = calloc(1, sizeof *capture);
	if (!capture)
		return OUT_OF_MEMORY;
	stream_on_end(stream_ends);
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, stream)
				     ? NULL
				     : list_captured(&streams, stream, capture);
	if (s) {
		*capture = (struct capture){graph, ++last_id, stream,        mode,
					    false, own,       pthread_self()};
		capture->broken = !nodes_join(&s->tails, tails);
		atomic_fetch_add(&captures_active, 1);
	}
	unlock(CAPTURE_LOCK);
	if (!s)
		free(capture);
	return s ? CUDA_OK : ILLEGAL_STATE;
}

static int begin_check(const void *stream, int mode, uint64_t *number)
{
	int error = channel_enter();
	if (!error)
		error = stream_number(stream, number);
	if (!error && (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED))
		error = INVALID_VALUE;
	if (!error && *number == RF_STREAM_LEGACY)
		error = CAPTURE_UNSUPPORTED; /* as in CUDA */
	return error;
}

int capture_begin(const void *stream, int mode)
{
	uint64_t number;
	int error = begin_check(stream, mode, &number);
	struct graph *graph = error ? NULL : graph_new();
	if (!graph)
		return error ? error : OUT_OF_MEMORY;
	error = start_capture(number, graph, &(struct nodes){NULL, 0}, mode, true);
	if (error)
		graph_free(graph);
	return error;
}

int capture_begin_to(const void *stream, void *graph, void *const *dependencies, size_t count,
		     int mode)
{
	uint64_t number;
	struct nodes tails = {(struct node **)dependencies, count};
	int error = begin_check(stream, mode, &number);
	if (!error && (!graph || (count && !dependencies) || !nodes_in(graph, &tails)))
		error = INVALID_VALUE;
	return error ? error : start_capture(number, graph, &tails, mode, false);
}

/* Under CAPTURE_LOCK: true if all work of the other streams leads back to the first one. */
static bool all_joined(const struct captured *origin)
{
	for (const struct captured *s = streams; s; s = s->next)
		if (s->capture == origin->capture &&
		    !nodes_reach(origin->capture->graph, &origin->tails, &s->tails))
			return false;
	return true;
}

/* Under CAPTURE_LOCK: the result of ending a capture. If another thread than the one that began it
 * ends it, the capture ends without a graph. */
static int how_it_ends(const struct captured *origin)
{
	const struct capture *capture = origin->capture;
	if (capture->broken)
		return CAPTURE_INVALIDATED;
	if (capture->mode != CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
		return CAPTURE_WRONG_THREAD;
	return all_joined(origin) ? CUDA_OK : CAPTURE_UNJOINED;
}

int capture_end(const void *stream, void **graph)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error)
		return error;
	if (graph)
		*graph = NULL;
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, number);
	struct capture *capture = s ? s->capture : NULL;
	if (!s)
		error = ILLEGAL_STATE;
	else if (!graph)
		error = INVALID_VALUE;
	else if (capture->origin != number)
		error = invalidate_capture(s, CAPTURE_UNMATCHED);
	if (error) {
		unlock(CAPTURE_LOCK);
		return error;
	}
	error = how_it_ends(s);
	forget_capture(capture);
	unlock(CAPTURE_LOCK);
	if (error) {
		free_capture(capture);
		return error;
	}
	*graph = capture->graph;
	free(capture);
	return CUDA_OK;
}

/* ---- queries ---- */

int capture_info(const void *stream, int *status, unsigned long long *id, void **graph,
		 const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	uint64_t number;
	int error = stream_number(stream, &number);
	if (error || !status)
		return error ? error : INVALID_VALUE;
	*status = STATUS_NONE;
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, number);
	error = !s && affects_capture(number) ? CAPTURE_IMPLICIT : CUDA_OK;
	if (s) {
		*status = s->capture->broken ? STATUS_INVALIDATED : STATUS_ACTIVE;
		if (id)
			*id = s->capture->id;
		if (graph)
			*graph = s->capture->graph;
		if (dependencies)
			*dependencies = (const CUgraphNode *)(void *)s->tails.at;
		if (edges)
			*edges = NULL;
		if (count)
			*count = s->tails.count;
	}
	unlock(CAPTURE_LOCK);
	return error;
}

int capture_depend(const void *stream, void *const *dependencies, size_t count, unsigned flags)
{
	uint64_t number;
	struct nodes more = {(struct node **)dependencies, count};
	int error = stream_number(stream, &number);
	if (error || flags > 1 || (count && !dependencies))
		return error ? error : INVALID_VALUE;
	lock(CAPTURE_LOCK);
	struct captured *s = find_captured(streams, number);
	if (!s)
		error = ILLEGAL_STATE;
	else if (s->capture->broken)
		error = CAPTURE_INVALIDATED;
	else if (!nodes_in(s->capture->graph, &more))
		error = INVALID_VALUE;
	if (!error && flags)
		nodes_clear(&s->tails);
	if (!error && !nodes_join(&s->tails, &more))
		error = OUT_OF_MEMORY;
	unlock(CAPTURE_LOCK);
	return error;
}

int exchange_capture_mode(int *mode)
{
	if (!mode || *mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED)
		return INVALID_VALUE;
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_OK;
}
