/* nccl_comm.c: communicators as objects: their list, their properties and their state.
 *
 * Errors are ncclResult_t. The list only grows. Only comm_await blocks.
 *
 * Lock: COMM_LOCK around a request in progress of a nonblocking communicator.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "nccl_parts.h"
#include "plural.h"

static struct comm *_Atomic comms; /* all that ever existed; never freed, to check handles */

struct comm *comm_of(const void *handle)
{
	struct comm *c = atomic_load(&comms);
	while (c && c != handle)
		c = c->next;
	if (c && !c->dead)
		return c;
	because(NCCL_INVALID_ARGUMENT, "%p is not a communicator, or was destroyed", handle);
	return NULL;
}

struct comm *comm_numbered(uint64_t number)
{
	struct comm *c = atomic_load(&comms);
	while (c && c->number != number)
		c = c->next;
	return c;
}

struct comm *nccl_comm_new(int count, int rank)
{
	for (struct comm *k = atomic_load(&comms); k; k = k->next)
		if (k->dead && k->pending)
			(void)comm_progress(k); /* aborted before its request was checked */
	struct comm *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->number = handle_number();
	c->count = count;
	c->rank = rank;
	c->device = current_device;
	c->next = atomic_load(&comms);
	while (!atomic_compare_exchange_weak(&comms, &c->next, c))
		;
	return c;
}

/* ---- nonblocking communicators ---- */

#define IN_PROGRESS_MAX (RF_SLOT_COUNT / 2) /* the rest of the reply slots is for other requests */

static uint32_t in_progress;

bool comm_nonblocking(const ncclConfig_t *config, const struct comm *parent)
{
	if (!config)
		return parent && parent->nonblocking;
	return config->size >= sizeof *config && config->blocking == 0;
}

bool comm_begin(struct comm *c, uint32_t slot)
{
	lock(COMM_LOCK);
	bool may = in_progress < IN_PROGRESS_MAX;
	if (may) {
		c->pending = slot + 1;
		in_progress++;
	}
	unlock(COMM_LOCK);
	return may;
}

ncclResult_t nccl_comm_joined(struct comm *c, uint32_t slot)
{
	struct rf_comm_split_reply reply = {0};
	ncclResult_t error = channel_finish(slot, &reply, sizeof reply);
	if (!error && !c->made && c->parent) {
		c->count = (int)reply.nranks;
		c->rank = (int)reply.rank;
	}
	c->made |= !error && c->count > 0;
	c->result = error;
	return error;
}

/* Under COMM_LOCK. */
static void end_request(struct comm *c)
{
	c->pending = 0;
	INVARIANT(in_progress, "a request that is answered was counted");
	in_progress--;
}

static bool under_way(struct comm *c)
{
	lock(COMM_LOCK);
	if (c->pending && !c->awaited && channel_answered(c->pending - 1)) {
		nccl_comm_joined(c, c->pending - 1);
		end_request(c);
	}
	bool pending = c->pending;
	unlock(COMM_LOCK);
	return pending;
}

/* Meanwhile no other thread takes the reply: its slot would be free for another request, for which
 * this thread would then wait. */
void comm_await(struct comm *c)
{
	lock(COMM_LOCK);
	uint32_t slot = c->pending;
	c->awaited = slot;
	unlock(COMM_LOCK);
	if (!slot)
		return;
	nccl_comm_joined(c, slot - 1);
	lock(COMM_LOCK);
	end_request(c);
	unlock(COMM_LOCK);
}

ncclResult_t comm_progress(struct comm *c)
{
	bool pending = under_way(c);
	/* A split is a request of the parent, too. */
	for (struct comm *k = atomic_load(&comms); k; k = k->next)
		if (k->parent == c && k->nonblocking)
			pending |= under_way(k);
	return pending ? NCCL_IN_PROGRESS : c->result;
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
	struct comm *c = comm_of(comm);
	if (!c || !asyncError)
		return ended("ncclCommGetAsyncError", c, NCCL_INVALID_ARGUMENT);
	*asyncError = comm_progress(c);
	if (*asyncError != NCCL_IN_PROGRESS)
		*asyncError = ended("an earlier call", c,
				    *asyncError ? *asyncError : comm_error(c));
	return NCCL_SUCCESS;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	const struct comm *c = comm_of(comm);
	if (c && !memory_reachable(registered_reached(buff, size), size))
		because(NCCL_INVALID_ARGUMENT,
			"%zu byte%s at %p: not in a live allocation that the device reaches", size,
			plural(size), buff);
	else if (c && handle) {
		*handle = buff; /* nothing to register: every buffer is reached in the same way */
		return NCCL_SUCCESS;
	}
	return ended("ncclCommRegister", c, NCCL_INVALID_ARGUMENT);
}

/* Windows only make collectives faster: NCCL returns NULL if there is none. */
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
