/* nccl_leave.c: ends communicators: finalizes, destroys, aborts them.
 *
 * Errors are ncclResult_t. Blocking: ncclCommFinalize of a blocking communicator, until its
 * operations have completed; ncclCommDestroy, until the communicator's request in progress is
 * answered; ncclCommAbort, until the server has ended the operations.
 */
#include "nccl_parts.h"

/* Only operations that were issued before may complete. */
ncclResult_t comm_finalize(const void *comm)
{
	struct comm *c = comm_of(comm);
	struct rf_handle m = {.handle = c ? c->number : 0};
	if (!c || comm_progress(c) == NCCL_IN_PROGRESS || !c->made || c->finalized)
		return ended("ncclCommFinalize", c, NCCL_INVALID_ARGUMENT);
	c->finalized = true;
	if (c->stopped)
		return NCCL_SUCCESS;
	uint32_t slot = channel_begin(&m.r, RF_OP_COMM_FINALIZE, sizeof m, NULL, 0);
	if (c->nonblocking && comm_begin(c, slot))
		return NCCL_IN_PROGRESS;
	return ended("ncclCommFinalize", c, channel_finish(slot, NULL, 0));
}

/* Invalidates the handle; false: it was invalid already. */
static bool invalidate_comm(void *handle, struct comm **out)
{
	struct comm *c = *out = comm_of(handle);
	return c && !channel_open() && !atomic_exchange(&c->dead, true);
}

ncclResult_t comm_destroy(void *comm)
{
	struct comm *c;
	if (!comm)
		return NCCL_SUCCESS;
	if (!invalidate_comm(comm, &c))
		return ended("ncclCommDestroy", c, NCCL_INVALID_ARGUMENT);
	comm_await(c);
	struct rf_handle m = {.handle = c->number};
	if (c->made)
		channel_post(&m.r, RF_OP_COMM_DESTROY, sizeof m, NULL, 0);
	return NCCL_SUCCESS;
}

ncclResult_t comm_abort(void *comm)
{
	struct comm *c;
	if (!comm)
		return NCCL_SUCCESS;
	if (!invalidate_comm(comm, &c))
		return ended("ncclCommAbort", c, NCCL_INVALID_ARGUMENT);
	group_forget(c);
	(void)channel_abort_comm(c->number);
	(void)comm_progress(c); /* its request in progress has ended */
	channel_post_later(RF_OP_COMM_ABORT, c->number);
	return NCCL_SUCCESS;
}
