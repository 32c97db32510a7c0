/* rank.c: attaches a rank to this device, and detaches it. */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/intake.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "loop/races.h"
#include "loop/state.h"
#include "queue/accesses.h"
#include "queue/event.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/module.h"
#include "rank/rank.h"

/* The parts of a rank that belong together: freed as the rank. */
struct attached {
	struct rank rank;
	struct rank_queue queue;
};

static bool list_rank(struct proxy *p, struct rank *r)
{
	struct rank **all = realloc(p->device.ranks, (p->device.rank_count + 1) * sizeof *all);
	if (!all)
		return false;
	p->device.ranks = all;
	uint32_t at = p->device.rank_count++;
	for (; at > 0 && p->device.ranks[at - 1]->rank > r->rank; at--) /* in order of rank: fewest
								  * partial sums */
		p->device.ranks[at] = p->device.ranks[at - 1];
	p->device.ranks[at] = r;
	return true;
}

struct rank *rank_attach(struct job *job, uint32_t rank, int channel_fd, int image_fd, char *error,
			 uint32_t error_bytes)
{
	struct attached *all = calloc(1, sizeof *all);
	struct rank *r;
	int code = CU_OUT_OF_MEMORY;
	if (!all) {
		snprintf(error, error_bytes, "rank %u: the proxy is out of host memory", rank);
		return NULL;
	}
	r = &all->rank;
	r->proxy = job->proxy;
	r->job = job;
	r->rank = rank;
	r->device = &job->proxy->device;
	r->world = &job->world;
	r->queue = &all->queue;
	intake_open(r);
	if (ring_open(r, channel_fd, error, error_bytes))
		goto fail;
	memory_single(&r->memory, job->world.size == 1);
	code = memory_open(&r->memory, &job->proxy->device.memory, job->id, rank, image_fd,
			   r->ring.channel_fd);
	if (code) {
		snprintf(error, error_bytes, "rank %u: no space for its memory (error %d)", rank,
			 code);
		goto fail;
	}
	if (job->world.size <= RF_PINNED_SLOTS) /* each rank has its own addresses */
		memory_pins_are_at(&r->memory, (const void *)(r->ring.map + RF_OFF_PINS));
	if (!races_open(r) || !stream_new(r, RF_STREAM_LEGACY, 0, 0) ||
	    !stream_new(r, RF_STREAM_PER_THREAD, 0, 0) || !list_rank(job->proxy, r)) {
		snprintf(error, error_bytes, "rank %u: the proxy is out of host memory", rank);
		goto fail;
	}
	job_attached(r);
	host_open(r);
	int restored = state_restore(r, error, error_bytes);
	if (restored < 0) {
		rank_detach(r);
		return NULL;
	}
	crosscheck_attached(r, restored);
	atomic_store(&r->ring.header->grant_bytes,
		     job->proxy->device.memory.total * RF_CHUNK_BYTES);
	turn_progress(&job->proxy->device.turn);
	return r;
fail:
	rank_drop_streams(r);
	accesses_close(r);
	memory_close(&r->memory);
	ring_close(r);
	table_free(&r->objects);
	free(r);
	return NULL;
}

void object_free(struct object *o)
{
	switch (o->kind) {
	case OBJ_MODULE: module_free((struct module *)o); break;
	case OBJ_FUNCTION: function_free((struct function *)o); break;
	case OBJ_EVENT: event_free((struct event *)o); break;
	default: free(o);
	}
}

/* True if no device work, page move or transfer in flight uses the rank's memory. */
bool rank_quiet(const struct rank *r)
{
	return !r->memory.inflight && !memory_moving(&r->memory) &&
	       !transfer_pending(&r->proxy->transfers, &r->memory);
}

/* True if the rank has nothing in flight, nothing queued and no unanswered request: it is between
 * two records. */
bool rank_drained(const struct rank *r)
{
	return !r->queue->items && !r->ring.replies && !r->queue->frees &&
	       !r->queue->waiter_count && !r->pending && !r->intake.waits_for_transfers &&
	       rank_quiet(r);
}

void rank_detach(struct rank *r)
{
	struct proxy *p = r->proxy;
	uint32_t at = 0;
	group_free(r);
	rank_drop_streams(r);
	accesses_close(r);
	for (struct object *o; (o = table_next(&r->objects, &at));)
		object_free(o);
	table_free(&r->objects);
	python_request_forget(r);
	check_close(&r->check);
	measure_end(&r->measure);
	memory_close(&r->memory);
	ring_close(r);
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		if (p->device.ranks[i] != r)
			continue;
		memmove(&p->device.ranks[i], &p->device.ranks[i + 1],
			(p->device.rank_count - i - 1) * sizeof *p->device.ranks);
		p->device.rank_count--;
		break;
	}
	slice_forget(r);
	job_detached(r);
	turn_progress(&p->device.turn);
	free(r);
}
