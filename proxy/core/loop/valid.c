/* valid.c: checks that the loop's counters and lists agree. Runs after each turn in a build with
 * -DSOFT_CHECKED (the sanitizers' build), as heap_invalid does for the client's heap, and before
 * each save (core_check).
 */
#include "invariant.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "queue/item.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/comm.h"
#include "rank/module.h"
#include "rank/rank.h"

static bool is_attached(const struct proxy *p, const struct rank *r)
{
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		if (p->device.ranks[i] == r)
			return true;
	return false;
}

static const struct module *requested_module(const struct python_request *a)
{
	const struct object *m = table_get(&a->rank->objects, a->object, OBJ_MODULE);
	const struct object *f = table_get(&a->rank->objects, a->object, OBJ_FUNCTION);
	return m ? (const struct module *)m : f ? ((const struct function *)f)->module : NULL;
}

/* Counts queued kernels and open requests of the module and its functions. */
static uint32_t uses_of(const struct rank *r, const struct module *m)
{
	uint32_t uses = 0;
	for (const struct python_request *a = r->proxy->python_requests; a; a = a->next)
		uses += a->rank == r && requested_module(a) == m;
	for (uint32_t n = 0; n < r->queue->stream_count; n++)
		for (const struct item *i = r->queue->streams[n]->head; i; i = i->next)
			uses += i->kind == ITEM_KERNEL && i->kernel.function->module == m;
	return uses;
}

static const char *modules_invalid(const struct rank *r)
{
	uint32_t at = 0;
	uint64_t arriving = 0;
	for (const struct object *o; (o = table_next(&r->objects, &at));) {
		const struct module *m = (const void *)o;
		if (o->kind != OBJ_MODULE)
			continue;
		WRONG(m->uses != uses_of(r, m), "uses of a module");
		WRONG(m->doomed && !m->uses, "an unloaded module without uses is still there");
		WRONG(m->loaded && m->image, "a loaded module keeps its image");
		arriving += m->loaded ? 0 : m->image_bytes;
	}
	WRONG(arriving != r->arriving, "bytes of modules that arrive");
	return NULL;
}

static bool aborted_counts(const struct rank *r)
{
	uint32_t at = 0;
	for (const struct object *o; (o = table_next(&r->objects, &at));) {
		const struct comm *c = (const void *)o;
		if (o->kind == OBJ_COMM && c->aborted && c->key &&
		    barrier_counts(r->job->world.barrier, r->rank, c->key))
			return true;
	}
	return false;
}

static const char *rank_invalid(const struct proxy *p, const struct rank *r)
{
	uint32_t inflight = 0, slots = 0, pending = 0, exact = 0, at = 0;
	const char *wrong = queue_invalid(r, &inflight, &slots);
	if (wrong || (wrong = modules_invalid(r)) || (wrong = check_invalid(&r->check)) ||
	    (wrong = measure_invalid(&r->measure)))
		return wrong;
	for (const struct transfer *t = p->transfers.first; t; t = t->next)
		exact += (t->memory == &r->memory || t->source == &r->memory) && t->hal_seq;
	for (const struct python_request *a = p->python_requests; a; a = a->next)
		pending += a->rank == r && a->slot;
	inflight += exact + check_uses(&r->check) + measure_uses(&r->measure);
	WRONG(inflight != r->memory.inflight, "works in flight");
	WRONG(exact != r->memory.exact, "works in flight that write where they say");
	for (const struct object *o; (o = table_next(&r->objects, &at));)
		slots += o->kind == OBJ_COMM && ((const struct comm *)o)->slot;
	WRONG(pending != r->pending, "requests whose replies the client awaits");
	WRONG(slots + pending != r->ring.replies, "requests that are not answered");
	WRONG(aborted_counts(r), "rounds of a communicator that its rank has aborted");
	WRONG(r->job->world.ranks[r->rank] != r, "a rank has another's place in its job");
	WRONG(!job_find((struct proxy *)(uintptr_t)p, r->job->id), "a rank of a job that is gone");
	return NULL;
}

static const char *job_invalid(const struct job *j)
{
	uint32_t count = 0;
	for (uint32_t n = 0; n < j->world.size; n++) {
		count += j->world.ranks[n] != NULL;
		WRONG(j->world.ranks[n] && !is_attached(j->proxy, j->world.ranks[n]),
		      "a job's rank is not the device's");
	}
	WRONG(count != j->world.attached, "attached ranks of a job");
	WRONG((j->goal == GOAL_SAVE || j->goal == GOAL_LEAVE) && j->world.state != PROXY_JOB_CUT,
	      "a job is being saved that does not stand at a cut");
	WRONG(j->world.state == PROXY_JOB_SAVED && j->world.attached,
	      "a job has gone and its ranks are here");
	const char *wrong = launches_invalid(&j->world.launches);
	if (!wrong && j->world.barrier)
		wrong = barrier_invalid(j->world.barrier);
	return wrong || !j->world.coll ? wrong : coll_invalid(j->world.coll);
}

static const char *lists_invalid(const struct proxy *p)
{
	const struct transfer *last = NULL;
	bool next = !p->transfers.next;
	for (const struct transfer *t = p->transfers.first; t; last = t, t = t->next)
		next |= t == p->transfers.next;
	WRONG(!next, "the next transfer is not listed");
	WRONG(last != p->transfers.last, "the last transfer is not the last one");
	for (const struct python_request *a = p->python_requests; a; a = a->next) {
		WRONG(!is_attached(p, a->rank), "a request of a rank that is gone");
		WRONG(a->token > p->next_token, "a request that has not been made");
	}
	WRONG(p->device.active && !is_attached(p, p->device.active), "the active rank is gone");
	WRONG(p->slice.target && !is_attached(p, p->slice.target), "the next active rank is gone");
	WRONG(p->device.rank_count != p->device.memory.count, "ranks that have memory here");
	for (uint32_t i = 1; i < p->device.rank_count; i++)
		WRONG(p->device.ranks[i - 1]->rank > p->device.ranks[i]->rank,
		      "ranks are not in their order");
	return NULL;
}

const char *core_invalid(const struct proxy *p)
{
	const char *wrong = memory_invalid(&p->device.memory);
	uint32_t ranks = 0;
	if (!wrong)
		wrong = lists_invalid(p);
	for (const struct job *j = p->jobs; j && !wrong; j = j->next) {
		wrong = job_invalid(j);
		ranks += j->world.attached;
	}
	WRONG(!wrong && ranks != p->device.rank_count, "attached ranks of the device");
	for (uint32_t i = 0; i < p->device.rank_count && !wrong; i++)
		wrong = rank_invalid(p, p->device.ranks[i]);
	if (!wrong)
		wrong = executions_invalid(&p->device);
	return wrong;
}
