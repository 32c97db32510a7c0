/* group.c: an outermost NCCL group: all its collectives are issued at once, or none yet.
 *
 * The group's records are read from the ring once, into operations. When all are there, they become
 * one item per communicator and a list of rounds, which are requested from the barrier every turn
 * until it allows all of them. Only then the items go into their streams and the records leave the
 * ring: at a cut, a held group is in the ring as the client wrote it.
 *
 * While a group is held, nothing after it in the ring is handled, so its streams cannot be
 * destroyed. But a communicator that it names may still be joining: it appears or disappears when
 * the other ranks have answered. rank_queue.comms_changed then changes, and the group is planned
 * again from its operations.
 *
 * A group of a failed rank is not held: it is dropped where it would be.
 */
#include <stdlib.h>
#include <string.h>

#include "queue/queue_parts.h"

static void drop_parts(struct nccl_group *g)
{
	while (g->parts) {
		struct item *next = g->parts->next;
		item_free(g->parts);
		g->parts = next;
	}
	g->planned = false;
}

static void drop_plan(struct nccl_group *g)
{
	drop_parts(g);
	g->count = 0;
	g->whole = false;
}

void group_free(struct rank *r)
{
	drop_plan(&r->queue->group);
	free(r->queue->group.ops);
	free(r->queue->group.rounds);
	r->queue->group = (struct nccl_group){0};
}

void group_plan_invalidate(struct rank *r) { r->queue->comms_changed++; }

/* ---- reading ---- */

static bool allocate_arrays(struct nccl_group *g)
{
	if (!g->ops)
		g->ops = malloc(2 * GROUP_MAX * sizeof *g->ops);
	if (!g->rounds)
		g->rounds = malloc(GROUP_MAX * sizeof *g->rounds);
	return g->ops && g->rounds;
}

static int add_operation(struct rank *r, const struct rf_collective *c)
{
	struct nccl_group *g = &r->queue->group;
	if (!g->count)
		g->first = *c;
	if (c->r.opcode != RF_OP_COLLECTIVE || c->r.bytes < sizeof *c || g->count == GROUP_MAX)
		return GROUP_BROKEN;
	if (!allocate_arrays(g)) {
		rank_fail(r, CU_OUT_OF_MEMORY, "the proxy is out of host memory");
		return GROUP_RANK_FAILED;
	}
	g->ops[g->count++] = *c;
	g->whole = !c->group_left;
	return NCCL_OK;
}

/* ---- planning ---- */

/* Sorts the operations by communicator, in order of the communicators' first operations. */
static void sort_by_communicator(struct nccl_group *g)
{
	struct rf_collective *from = g->ops, *to = from + GROUP_MAX;
	bool taken[GROUP_MAX];
	uint32_t n = 0;
	memset(taken, 0, g->count * sizeof *taken);
	for (uint32_t i = 0; i < g->count; i++) {
		if (taken[i])
			continue;
		for (uint32_t k = i; k < g->count; k++) {
			if (from[k].comm != from[i].comm)
				continue;
			to[n++] = from[k];
			taken[k] = true;
		}
	}
	memcpy(from, to, g->count * sizeof *from);
}

static int by_key(const void *a, const void *b)
{
	const struct coll_round *x = a, *y = b;
	return (x->key > y->key) - (x->key < y->key);
}

/* Appends an item for the operations on one communicator at *end, and advances *end. */
static int plan_part(struct rank *r, const struct rf_collective *ops, uint32_t count,
		     struct item ***end)
{
	struct nccl_group *g = &r->queue->group;
	struct comm *c = (struct comm *)table_get(&r->objects, ops[0].comm, OBJ_COMM);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (c->aborted)
		return NCCL_OK; /* too late: it is dropped */
	/* At most one per operation, so they fit. */
	struct coll_round *rounds = g->rounds + g->round_count;
	uint32_t n = coll_rounds(r->world->coll, r->rank, c->o.id, ops, count, rounds,
				 GROUP_MAX - g->round_count);
	g->round_count += n;
	if (!c->key)
		return NCCL_INVALID_ARGUMENT;
	for (uint32_t i = 1; i < count; i++)
		if (ops[i].stream != ops[0].stream)
			return NCCL_INVALID_USAGE; /* one communicator on several streams at once */
	const struct stream *s = (void *)table_get(&r->objects, ops[0].stream, OBJ_STREAM);
	if (!s || s->doomed)
		return NCCL_INVALID_ARGUMENT;
	struct item *item = item_new(r, ITEM_COLLECTIVE, g->ops[0].r.seq,
				     count * sizeof *ops + n * sizeof *rounds);
	if (!item)
		return NCCL_SYSTEM_ERROR;
	item->coll.comm = c;
	item->coll.count = count;
	item->coll.rounds = n;
	memcpy(item_ops(item), ops, count * sizeof *ops);
	memcpy(item_rounds(item), rounds, n * sizeof *rounds);
	**end = item;
	*end = &item->next;
	return NCCL_OK;
}

static void plan_group(struct rank *r)
{
	struct nccl_group *g = &r->queue->group;
	struct item **end = &g->parts;
	drop_parts(g);
	sort_by_communicator(g);
	g->round_count = 0;
	g->error = NCCL_OK;
	for (uint32_t i = 0, n; i < g->count; i += n) {
		for (n = 1; i + n < g->count && g->ops[i + n].comm == g->ops[i].comm; n++) {
		}
		int error = plan_part(r, g->ops + i, n, &end);
		if (error && !g->error)
			g->first.comm = g->ops[i].comm; /* the error is about that communicator */
		g->error = g->error ? g->error : error;
	}
	qsort(g->rounds, g->round_count, sizeof *g->rounds, by_key);
	g->comms = r->queue->comms_changed;
	g->planned = true;
}

/* ---- issuing ---- */

static bool may_issue(const struct rank *r)
{
	const struct nccl_group *g = &r->queue->group;
	struct barrier *b = r->world->barrier;
	for (uint32_t i = 0; i < g->round_count; i++) {
		const struct coll_round *round = &g->rounds[i];
		if (round->src != round->dst)
			barrier_pair(b, r->rank, round->key, round->src, round->dst);
		if (round->broken)
			barrier_broken(b, r->rank, round->key);
		if (!barrier_may_issue(b, r->rank, round->key))
			return false;
	}
	return true;
}

static void issue_part(struct rank *r, struct item *i)
{
	struct comm *c = i->coll.comm;
	struct stream *s = (void *)table_get(&r->objects, item_ops(i)->stream, OBJ_STREAM);
	i->next = NULL;
	i->coll.turn = comm_queue(c);
	for (uint32_t k = 0; k < i->coll.rounds; k++) {
		const struct coll_round *round = &item_rounds(i)[k];
		comm_issue(c, round->key);
		barrier_issue(r->world->barrier, r->rank, round->key,
			      round->signature ^ (r->queue->last_function * 0x9e3779b97f4a7c15ull));
	}
	opaque_collective(r, i);
	stream_push(r, s, i);
}

static void issue_group(struct rank *r)
{
	struct nccl_group *g = &r->queue->group;
	while (g->parts) {
		struct item *part = g->parts;
		g->parts = part->next;
		issue_part(r, part);
	}
}

/* Reads more of the group. 0: all of it has been read. */
static int read_on(struct rank *r)
{
	struct nccl_group *g = &r->queue->group;
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	while (!g->whole) {
		int n = ring_peek(r, &g->end, record);
		if (!n)
			return GROUP_WAITS;
		int error = n < 0 ? GROUP_RANK_FAILED : add_operation(r, (const void *)record);
		if (error)
			return error; /* what breaks the ring is found again after the group */
	}
	return NCCL_OK;
}

int group_turn(struct rank *r, const struct rf_collective *first, struct place *at)
{
	struct nccl_group *g = &r->queue->group;
	int error = NCCL_OK;
	if (first) {
		g->end = *at;
		error = add_operation(r, first);
	}
	if (!error)
		error = ring_owned(r) ? read_on(r) : GROUP_WAITS;
	if (!error) {
		if (!g->planned || g->comms != r->queue->comms_changed)
			plan_group(r);
		/* Nothing of a failed rank runs any more, so no more rounds will be allowed; and
		 * its client waits for the error in later requests. */
		bool may = may_issue(r);
		if (!may && !r->async_error)
			return GROUP_WAITS;
		if (may)
			issue_group(r);
		error = g->error;
	}
	if (error == GROUP_WAITS)
		return error;
	*at = g->end;
	drop_plan(g);
	return error;
}
