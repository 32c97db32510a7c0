/* rank.c: attaches a rank to this device, and detaches it. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "loop/races.h"
#include "queue/accesses.h"
#include "state.h"

static bool list_rank(struct proxy *p, struct rank *r)
{
	struct rank **all = realloc(p->ranks, (p->rank_count + 1) * sizeof *all);
	if (!all)
		return false;
	p->ranks = all;
	uint32_t at = p->rank_count++;
	for (; at > 0 && p->ranks[at - 1]->rank > r->rank; at--) /* in order of rank: fewest
								  * partial sums */
		p->ranks[at] = p->ranks[at - 1];
	p->ranks[at] = r;
	return true;
}

struct rank *rank_attach(struct job *job, uint32_t rank, int channel_fd, int image_fd, char *error,
			 uint32_t error_bytes)
{
	struct rank *r = calloc(1, sizeof *r);
	int code = CU_OUT_OF_MEMORY;
	if (!r) {
		snprintf(error, error_bytes, "rank %u: the proxy is out of host memory", rank);
		return NULL;
	}
	r->proxy = job->proxy;
	r->job = job;
	r->rank = rank;
	r->device = &job->proxy->counters;
	intake_open(r);
	if (ring_open(r, channel_fd, error, error_bytes))
		goto fail;
	memory_single(&r->memory, job->world_size == 1);
	code = memory_open(&r->memory, &job->proxy->memory, job->id, rank, image_fd,
			   r->ring.channel_fd);
	if (code) {
		snprintf(error, error_bytes, "rank %u: no space for its memory (error %d)", rank,
			 code);
		goto fail;
	}
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
	atomic_store(&r->ring.header->grant_bytes, job->proxy->memory.total * RF_CHUNK_BYTES);
	turn_progress(&job->proxy->turn);
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
	return !r->queue.items && !r->ring.replies && !r->queue.frees && !r->queue.waiter_count &&
	       !r->pending && !r->intake.hold && rank_quiet(r);
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
	for (uint32_t i = 0; i < p->rank_count; i++) {
		if (p->ranks[i] != r)
			continue;
		memmove(&p->ranks[i], &p->ranks[i + 1], (p->rank_count - i - 1) * sizeof *p->ranks);
		p->rank_count--;
		break;
	}
	slice_forget(r);
	job_detached(r);
	turn_progress(&p->turn);
	free(r);
}
