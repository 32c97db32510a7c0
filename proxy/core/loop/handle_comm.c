/* handle_comm.c: requests for communicators and reduction operators (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/handlers.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "queue/collective.h"
#include "queue/group.h"
#include "rank/comm.h"

#define SIGNATURE_SPLIT 0x53504c4954ull /* signature of the round: any distinct number */

/* True if the program aborted the communicator before its request was handled. */
static bool comm_aborted(struct rank *r, uint64_t id)
{
	const struct comm *c = GET(r, comm, COMM, id);
	return c && c->aborted;
}

int on_comm_init(struct rank *r, const struct rf_comm_init *a, uint32_t extra)
{
	(void)extra;
	if (!a->r.slot || !a->nranks || a->nranks > r->job->world.size || a->rank >= a->nranks)
		return NCCL_INVALID_ARGUMENT;
	if (comm_aborted(r, a->comm))
		return NCCL_INTERNAL_ERROR;
	if (!barrier_may_issue(r->job->world.barrier, r->rank, 0))
		return RETRY;
	struct comm *c = comm_new(r, a->comm);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!python_request_new(r, a->comm, a->r.slot, 0)) {
		comm_drop(r, c);
		return NCCL_SYSTEM_ERROR;
	}
	c->joining = coll_key(a->unique_id);
	barrier_joining(r->job->world.barrier, r->rank, c->joining, a->nranks);
	coll_init(r->job->world.coll, r->rank, a->comm, a->unique_id, a->nranks, a->rank);
	return ANSWERED;
}

int on_comm_split(struct rank *r, const struct rf_comm_split *a, uint32_t extra)
{
	(void)extra;
	struct comm *parent = GET(r, comm, COMM, a->parent);
	if (!a->r.slot || !parent || !parent->key || parent->aborted)
		return NCCL_INVALID_ARGUMENT;
	if (comm_aborted(r, a->comm))
		return NCCL_INTERNAL_ERROR;
	if (!barrier_may_issue(r->job->world.barrier, r->rank, parent->key))
		return RETRY;
	struct comm *c = comm_new(r, a->comm);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!python_request_new(r, a->comm, a->r.slot, 0)) {
		comm_drop(r, c);
		return NCCL_SYSTEM_ERROR;
	}
	comm_split(parent, c);
	barrier_issue(r->job->world.barrier, r->rank, parent->key, SIGNATURE_SPLIT);
	coll_split(r->job->world.coll, r->rank, a->parent, a->comm, a->color, a->key);
	return ANSWERED;
}

int on_comm_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (c->aborted)
		return on_comm_abort(r, a, extra);
	if (!c->key) /* other ranks rely on its joining, and no client has its handle yet */
		return NCCL_INVALID_USAGE;
	if (collective_queued(r, c))
		return RETRY; /* ncclCommDestroy takes effect after the last operation */
	coll_destroy(r->job->world.coll, r->rank, a->handle);
	barrier_comm_end(r->job->world.barrier, r->rank, c->key);
	comm_drop(r, c);
	return CU_OK;
}

/* Aborts a joining or a split for which other ranks may still wait. */
static void abort_joining(struct rank *r, struct comm *c)
{
	struct python_request *a = python_request_take_object(r, c->o.id);
	if (a)
		ring_reply(r, a->slot, NCCL_INTERNAL_ERROR, NULL, 0);
	free(a);
	if (c->split_from)
		barrier_complete(r->job->world.barrier, r->rank, c->split_from);
	if (c->joining)
		barrier_comm_end(r->job->world.barrier, r->rank, c->joining);
	coll_abort(r->job->world.coll, r->rank, c->o.id);
}

/* Aborts the splits of an aborted communicator: not all of its members will call them. */
static void abort_splits(struct rank *r, const struct comm *parent)
{
	uint32_t at = 0;
	for (struct object *o; (o = table_next(&r->objects, &at));) {
		struct comm *c = (void *)o;
		if (o->kind != OBJ_COMM || c->split_from != parent->key || c->aborted)
			continue;
		abort_joining(r, c);
		comm_drop(r, c);
		at = 0; /* the table has changed */
	}
}

static void abort_member(struct rank *r, struct comm *c)
{
	abort_splits(r, c);
	uint64_t keys[COLL_KEYS_MAX];
	uint32_t n = coll_keys(r->job->world.coll, r->rank, c->o.id, false, keys);
	for (uint32_t i = 0; i < n; i++)
		barrier_abort(r->job->world.barrier, r->rank, keys[i]);
	coll_abort(r->job->world.coll, r->rank, c->o.id);
}

/* Operations that it has queued do nothing any more; those in progress end. The reply is sent when
 * they have. */
static void abort_comm(struct rank *r, struct comm *c, uint16_t slot)
{
	uint16_t finalize = c->slot;
	c->aborted = true;
	c->slot = slot;
	if (finalize)
		ring_reply(r, finalize, NCCL_INTERNAL_ERROR, NULL, 0);
	group_plan_invalidate(r);
	if (c->key) {
		abort_member(r, c);
		return;
	}
	abort_joining(r, c);
	comm_abort_complete(r, c);
}

void comm_abort_complete(struct rank *r, struct comm *c)
{
	ring_reply(r, c->slot, NCCL_OK, NULL, 0);
	c->slot = 0;
	collective_settle(r, c);
}

void comm_abort_now(struct rank *r, uint64_t id, uint16_t slot)
{
	struct comm *c = GET(r, comm, COMM, id);
	if (!c) /* its request is still in the ring */
		c = comm_new(r, id);
	if (c && !c->aborted)
		abort_comm(r, c, slot);
	else
		ring_reply(r, slot, NCCL_INVALID_ARGUMENT, NULL, 0);
}

/* All requests that name the communicator have arrived. */
int on_comm_abort(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!c->aborted)
		abort_comm(r, c, 0);
	comm_doom(c);
	collective_settle(r, c);
	return CU_OK;
}

int on_comm_finalize(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c || !c->key || c->slot)
		return NCCL_INVALID_ARGUMENT;
	if (c->aborted)
		return NCCL_INTERNAL_ERROR;
	if (!collective_queued(r, c))
		return CU_OK;
	c->slot = a->r.slot;
	return c->slot ? ANSWERED : CU_OK;
}

/* Its communicator need not exist any more: another thread of the program may have aborted it after
 * the client checked it. Nothing can use the operator then, but its removal may follow. */
int on_redop_create(struct rank *r, const struct rf_redop *a, uint32_t extra)
{
	(void)extra;
	struct object *o = calloc(1, sizeof *o);
	if (o)
		*o = (struct object){OBJ_REDOP, a->redop};
	if (!o || a->redop < RF_HANDLE_FIRST || !table_put(&r->objects, o)) {
		free(o);
		return NCCL_INVALID_ARGUMENT;
	}
	coll_redop(r->job->world.coll, r->rank, a->comm, a->redop, a->dtype, a->scalar);
	return CU_OK;
}

int on_redop_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct object *o = table_get(&r->objects, a->handle, OBJ_REDOP);
	if (!o)
		return NCCL_INVALID_ARGUMENT;
	if (collective_awaits(r, a->handle))
		return RETRY;
	coll_redop_destroy(r->job->world.coll, r->rank, a->handle);
	table_remove(&r->objects, a->handle);
	free(o);
	return CU_OK;
}
