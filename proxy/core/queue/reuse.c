/* reuse.c: an item need not run if its result is on the device already: in its rank's own memory,
 * or in that of another rank of the job, which it then shares (memory/map_result.c).
 *
 * Content of a rank's memory is recorded when a work is submitted. So the rank's own versions count
 * only if everything in progress precedes the item in its own device queue.
 *
 * Only done where ranks of a job share a device: elsewhere, trusting versions would be an
 * unnecessary risk.
 */
#include "queue/reuse.h"

#include "queue/queue_parts.h"

static bool is_folded(const struct rank *r)
{
	return r->device->memory.shares && !r->device->no_squash && !r->memory.distrusted &&
	       r->world->attached > 1;
}

static bool in_order(struct rank *r, const struct stream *s)
{
	for (uint32_t n = 0; n < r->queue->stream_count && r->memory.inflight; n++) {
		const struct stream *o = r->queue->streams[n];
		for (const struct item *i = o->head; i && i != o->next && o != s; i = i->next)
			if (!execution_done(r, i->execution))
				return false;
	}
	return true;
}

enum result_mapping reuse(struct rank *r, const struct stream *s, const struct item *i,
			  const struct footprint *f)
{
	const struct item_row *row = item_row(i);
	enum result_mapping found = MAPPED_NONE;
	if (!is_folded(r))
		return MAPPED_NONE;
	if (row->there && row->there(r, i) && in_order(r, s))
		found = MAPPED_DONE;
	else if (row->needs & NEEDS_ACTIVE && !r->queue->squashing.concurrent)
		found = memory_map_result(&r->memory, f);
	if (found == MAPPED_FAILED)
		rank_fail(r, CU_OUT_OF_MEMORY, "its memory could not be mapped");
	if (found != MAPPED_DONE)
		return found;
	if (row->needs & NEEDS_ACTIVE)
		rank_count_kernel(r);
	rank_count_squashed(r);
	return MAPPED_DONE;
}
