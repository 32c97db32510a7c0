/* handle_comm.c: requests for communicators and reduction operators (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "handlers.h"

#define SIGNATURE_SPLIT 0x53504c4954ull /* a round's signature, any distinct number */

int on_comm_init(struct rank *r, const struct rf_comm_init *a, uint32_t extra)
{
	(void)extra;
	if (!a->r.slot || !a->nranks || a->nranks > r->job->world_size || a->rank >= a->nranks)
		return NCCL_INVALID_ARGUMENT;
	if (!barrier_may_issue(r->job->barrier, r->rank, 0))
		return RETRY;
	struct comm *c = comm_new(r, a->comm);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!ask_new(r, a->comm, a->r.slot, 0)) {
		comm_drop(r, c);
		return NCCL_SYSTEM_ERROR;
	}
	barrier_joining(r->job->barrier, r->rank, coll_key(a->unique_id), a->nranks);
	coll_init(r->job->coll, r->rank, a->comm, a->unique_id, a->nranks, a->rank);
	return ANSWERED;
}

int on_comm_split(struct rank *r, const struct rf_comm_split *a, uint32_t extra)
{
	(void)extra;
	struct comm *parent = GET(r, comm, COMM, a->parent);
	if (!a->r.slot || !parent || !parent->key)
		return NCCL_INVALID_ARGUMENT;
	if (!barrier_may_issue(r->job->barrier, r->rank, parent->key))
		return RETRY;
	struct comm *c = comm_new(r, a->comm);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!ask_new(r, a->comm, a->r.slot, 0)) {
		comm_drop(r, c);
		return NCCL_SYSTEM_ERROR;
	}
	comm_split(parent, c);
	barrier_issue(r->job->barrier, r->rank, parent->key, SIGNATURE_SPLIT);
	coll_split(r->job->coll, r->rank, a->parent, a->comm, a->color, a->key);
	return ANSWERED;
}

int on_comm_destroy(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c)
		return NCCL_INVALID_ARGUMENT;
	if (!c->key) /* the other ranks count on its joining, and no client has its handle yet */
		return NCCL_INVALID_USAGE;
	if (collective_queued(r, c))
		return RETRY; /* ncclCommDestroy comes after the last operation */
	coll_destroy(r->job->coll, r->rank, a->handle);
	barrier_comm_gone(r->job->barrier, r->rank, c->key);
	comm_drop(r, c);
	return CU_OK;
}

/* What other ranks have agreed to run cannot be taken back, so a rank that gives up operations of
 * its own loses its context: nothing of it waits any more, and it may say why before it ends. */
int on_comm_abort(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	struct comm *c = GET(r, comm, COMM, a->handle);
	if (!c || !collective_queued(r, c))
		return on_comm_destroy(r, a, extra);
	rank_fail(r, CU_LAUNCH_FAILED, "a communicator was aborted with operations outstanding");
	return CU_OK;
}

int on_redop_create(struct rank *r, const struct rf_redop *a, uint32_t extra)
{
	(void)extra;
	struct comm *c = GET(r, comm, COMM, a->comm);
	struct object *o = calloc(1, sizeof *o);
	if (o)
		*o = (struct object){OBJ_REDOP, a->redop};
	if (!c || !o || a->redop < RF_HANDLE_FIRST || !table_put(&r->objects, o)) {
		free(o);
		return NCCL_INVALID_ARGUMENT;
	}
	coll_redop(r->job->coll, r->rank, a->comm, a->redop, a->dtype, a->scalar);
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
	coll_redop_gone(r->job->coll, r->rank, a->handle);
	table_remove(&r->objects, a->handle);
	free(o);
	return CU_OK;
}
