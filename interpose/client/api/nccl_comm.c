/* nccl_comm.c: communicators as objects: which there are, what they know, and how they end.
 *
 * Errors are ncclResult_t. No lock: the list only grows. Blocking: ncclCommFinalize.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_parts.h"

static struct comm *_Atomic comms; /* all there ever were; never freed, so handles can be checked */

struct comm *comm_of(const void *handle)
{
	struct comm *c = atomic_load(&comms);
	while (c && c != handle)
		c = c->next;
	if (c && !c->dead)
		return c;
	because(NCCL_INVALID_ARGUMENT, "%p is no communicator, or one that was destroyed", handle);
	return NULL;
}

struct comm *comm_numbered(uint64_t number)
{
	struct comm *c = atomic_load(&comms);
	while (c && c->number != number)
		c = c->next;
	return c;
}

struct comm *comm_new(int count, int rank)
{
	struct comm *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	*c = (struct comm){handle_number(), count, rank, current_device, false, false, NULL};
	c->next = atomic_load(&comms);
	while (!atomic_compare_exchange_weak(&comms, &c->next, c))
		;
	return c;
}

ncclResult_t comm_check(const void *comm)
{
	return ended("ncclCommDeregister", NULL,
		     comm_of(comm) ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT);
}

static ncclResult_t comm_value(const char *call, const void *comm, int *out, size_t offset)
{
	const struct comm *c = comm_of(comm);
	if (!c || !out)
		return ended(call, c, NCCL_INVALID_ARGUMENT);
	memcpy(out, (const char *)c + offset, sizeof *out);
	return NCCL_SUCCESS;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return comm_value("ncclCommCount", comm, count, offsetof(struct comm, count));
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return comm_value("ncclCommUserRank", comm, rank, offsetof(struct comm, rank));
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return comm_value("ncclCommCuDevice", comm, device, offsetof(struct comm, device));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
	const struct comm *c = comm_of(comm);
	if (!c || !asyncError)
		return ended("ncclCommGetAsyncError", c, NCCL_INVALID_ARGUMENT);
	*asyncError = ended("an earlier call", c, async_error());
	return NCCL_SUCCESS;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	const struct comm *c = comm_of(comm);
	if (c && !memory_reachable(registered_reached(buff, size), size))
		because(NCCL_INVALID_ARGUMENT,
			"%zu bytes at %p are not a live allocation that the device reaches", size,
			buff);
	else if (c && handle) {
		*handle = buff; /* nothing to register: every buffer is reached the same way */
		return NCCL_SUCCESS;
	}
	return ended("ncclCommRegister", c, NCCL_INVALID_ARGUMENT);
}

/* Windows only make collectives faster: of one that there is not NCCL says so by NULL. */
ncclResult_t comm_window(const void *comm, void *buff, size_t size, ncclWindow_t *win)
{
	void *handle;
	if (!win)
		return ended("ncclCommWindowRegister", NULL, NCCL_INVALID_ARGUMENT);
	ncclResult_t error = ncclCommRegister((ncclComm_t)comm, buff, size, &handle);
	if (!error)
		*win = NULL;
	return error;
}

ncclResult_t comm_finalize(const void *comm)
{
	const struct comm *c = comm_of(comm);
	return ended("ncclCommFinalize", c,
		     c ? nccl_error(wait_for_device()) : NCCL_INVALID_ARGUMENT);
}

static ncclResult_t leave(const char *call, void *comm, enum rf_opcode opcode)
{
	if (!comm)
		return NCCL_SUCCESS;
	struct comm *c = comm_of(comm);
	if (!c || channel_open())
		return ended(call, c, NCCL_INVALID_ARGUMENT);
	struct rf_handle m = {.handle = c->number};
	c->dead = true;
	channel_post(&m.r, opcode, sizeof m, NULL, 0);
	return NCCL_SUCCESS;
}

ncclResult_t comm_destroy(void *comm) { return leave("ncclCommDestroy", comm, RF_OP_COMM_DESTROY); }

/* Does not wait for what is outstanding: that ends with an error. */
ncclResult_t comm_abort(void *comm) { return leave("ncclCommAbort", comm, RF_OP_COMM_ABORT); }
