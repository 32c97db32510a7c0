/* job_io.c: serves the collective engine's requests with this device and the job's peers.
 *
 * Memory and arithmetic go through the transfers of memory/; messages and the outboxes go through
 * the peers, if the job has several devices. Completions go back to the ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/handlers.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/python_request.h"
#include "queue/collective.h"
#include "queue/group.h"
#include "rank/comm.h"
#include "rank/fault.h"

static void io_done(void *arg, uint64_t token, int error)
{
	struct job *j = arg;
	if (j->world.coll)
		coll_io_done(j->world.coll, token, error);
}

static struct transfer *transfer_new(struct job *j, enum transfer_kind kind, uint64_t token)
{
	struct transfer *t = calloc(1, sizeof *t);
	if (!t) {
		job_fail(j, "the proxy is out of host memory");
		return NULL;
	}
	t->kind = kind;
	t->on_end = io_done;
	t->arg = j;
	t->token = token;
	return t;
}

static void io_memory(struct job *j, enum transfer_kind kind, uint32_t rank, uint64_t addr,
		      struct hal_ref other, uint64_t bytes, uint64_t token)
{
	struct transfer *t = transfer_new(j, kind, token);
	if (!t)
		return;
	t->memory = j->world.ranks[rank] ? &j->world.ranks[rank]->memory : NULL;
	if (!t->memory) /* the rank is detached: its data is lost */
		t->error = NCCL_SYSTEM_ERROR;
	t->addr = addr;
	t->other = other;
	t->bytes = bytes;
	transfer_push(&j->proxy->transfers, t);
}

static void io_read(void *arg, uint32_t rank, uint64_t addr, struct hal_ref to, uint64_t bytes,
		    uint64_t token)
{
	io_memory(arg, TRANSFER_READ, rank, addr, to, bytes, token);
}

static void io_write(void *arg, uint32_t rank, uint64_t addr, struct hal_ref from, uint64_t bytes,
		     uint64_t token)
{
	io_memory(arg, TRANSFER_WRITE, rank, addr, from, bytes, token);
}

static uint32_t io_receiver(void *arg, const uint32_t *ranks, uint32_t count, uint64_t addr,
			    uint64_t bytes)
{
	struct job *j = arg;
	const struct rank_memory *memories[RANKS_MAX];
	for (uint32_t i = 0; i < count; i++) {
		if (!j->world.ranks[ranks[i]])
			return COLL_EACH;
		memories[i] = &j->world.ranks[ranks[i]]->memory;
	}
	return memory_receiver(memories, count, addr, bytes);
}

static uint32_t io_keeper(void *arg, const uint32_t *ranks, const uint64_t *addrs, uint64_t bytes)
{
	struct job *j = arg;
	const struct rank_memory *memories[2];
	for (uint32_t i = 0; i < 2; i++) {
		if (!j->world.ranks[ranks[i]])
			return COLL_EACH;
		memories[i] = &j->world.ranks[ranks[i]]->memory;
	}
	return memory_keeper(memories, addrs, bytes);
}

static void io_forget(void *arg, uint32_t rank, uint64_t addr, uint64_t bytes)
{
	struct job *j = arg;
	if (j->world.ranks[rank])
		memory_forget(&j->world.ranks[rank]->memory, addr, bytes);
}

static void io_hand(void *arg, uint32_t from, uint32_t to, uint64_t addr, uint64_t bytes,
		    uint64_t token)
{
	struct job *j = arg;
	struct transfer *t = transfer_new(j, TRANSFER_HAND, token);
	if (!t)
		return;
	t->memory = j->world.ranks[to] ? &j->world.ranks[to]->memory : NULL;
	t->source = j->world.ranks[from] ? &j->world.ranks[from]->memory : NULL;
	if (!t->memory || !t->source) /* a rank is detached: its data is lost */
		t->error = NCCL_SYSTEM_ERROR;
	t->addr = addr;
	t->bytes = bytes;
	transfer_push(&j->proxy->transfers, t);
}

/* Returns the memory of the rank that the operand is in, or NULL. */
static struct rank_memory *window_of(const struct job *j, const struct coll_operand *o,
				     struct transfer *t)
{
	if (!o->window)
		return NULL;
	if (!j->world.ranks[o->rank]) /* the rank is detached: its data is lost */
		t->error = NCCL_SYSTEM_ERROR;
	return j->world.ranks[o->rank] ? &j->world.ranks[o->rank]->memory : NULL;
}

static void io_reduce(void *arg, struct hal_ref dst, const struct coll_operand *a,
		      const struct coll_operand *b, uint64_t count, uint32_t dtype, uint32_t op,
		      uint64_t token)
{
	struct job *j = arg;
	struct transfer *t = transfer_new(j, TRANSFER_SUM, token);
	if (!t)
		return;
	t->memory = window_of(j, a, t);
	t->source = window_of(j, b, t);
	t->bytes = count * dtype_bytes(dtype);
	t->work.kind = HAL_REDUCE;
	t->work.reduce.dst = dst;
	t->work.reduce.a = a->at;
	t->work.reduce.b = b->at;
	t->work.reduce.count = count;
	t->work.reduce.dtype = dtype;
	t->work.reduce.op = op;
	transfer_push(&j->proxy->transfers, t);
}

static void io_scale(void *arg, struct hal_ref dst, struct hal_ref a, uint64_t count,
		     uint32_t dtype, const uint8_t *scalar, uint64_t divisor, uint64_t token)
{
	struct job *j = arg;
	struct transfer *t = transfer_new(j, TRANSFER_WORK, token);
	if (!t)
		return;
	t->work.kind = HAL_SCALE;
	t->work.scale.dst = dst;
	t->work.scale.a = a;
	t->work.scale.count = count;
	t->work.scale.dtype = dtype;
	t->work.scale.divide = scalar == NULL;
	t->work.scale.divisor = divisor;
	if (scalar)
		memcpy(t->work.scale.scalar, scalar, sizeof t->work.scale.scalar);
	transfer_push(&j->proxy->transfers, t);
}

static void io_joined(void *arg, uint32_t rank, uint64_t comm, uint64_t key, int error,
		      uint32_t nranks, uint32_t comm_rank)
{
	struct job *j = arg;
	struct rank *r = j->world.ranks[rank];
	if (!r)
		return;
	struct comm *c = (struct comm *)table_get(&r->objects, comm, OBJ_COMM);
	struct python_request *a = python_request_take_object(r, comm);
	if (!c || !a) {
		if (a) /* destroyed before the joining completed */
			ring_reply(r, a->slot, NCCL_INVALID_USAGE, NULL, 0);
		free(a);
		return;
	}
	struct rf_comm_split_reply reply = {nranks, comm_rank};
	group_plan_invalidate(r);
	if (c->split_from)
		barrier_complete(j->world.barrier, rank, c->split_from);
	if (!error && nranks) {
		uint32_t members[RANKS_MAX];
		uint64_t check = 0;
		uint32_t n = coll_members(j->world.coll, rank, comm, members, RANKS_MAX, &check);
		comm_joined(c, key);
		barrier_comm(j->world.barrier, rank, key, members, n, 0);
	} else {
		if (!c->split_from)
			barrier_comm_end(j->world.barrier, rank, c->joining);
		comm_drop(r, c);
	}
	ring_reply(r, a->slot, error, &reply, sizeof reply);
	free(a);
}

static void io_completed(void *arg, uint32_t rank, uint64_t comm, uint64_t ticket, int error)
{
	struct job *j = arg;
	(void)comm;
	if (j->world.ranks[rank])
		collective_report(j->world.ranks[rank], ticket, error);
}

static void io_abort_complete(void *arg, uint32_t rank, uint64_t comm)
{
	struct rank *r = ((struct job *)arg)->world.ranks[rank];
	struct comm *c = r ? (struct comm *)table_get(&r->objects, comm, OBJ_COMM) : NULL;
	if (c)
		comm_abort_complete(r, c);
}

static void io_broken(void *arg, uint32_t rank, uint64_t comm, bool hopeless)
{
	struct rank *r = ((struct job *)arg)->world.ranks[rank];
	struct comm *c = r ? (struct comm *)table_get(&r->objects, comm, OBJ_COMM) : NULL;
	if (!c)
		return;
	comm_break(r, c);
	turn_progress(&r->proxy->device.turn);
	if (!hopeless || c->hopeless)
		return;
	c->hopeless = true;
	char text[RF_FAULT_BYTES];
	snprintf(text, sizeof text, "another rank has aborted communicator %llu",
		 (unsigned long long)comm);
	rank_fail_comm(r, comm, NCCL_REMOTE_ERROR, text);
}

#define IO_FAILED "error " /* the start of the engine's text if one of its own requests failed */

/* Sums and copies fail with a rank whose memory they use, and with the device: that is the reason
 * to report. On a lost device, only the rank that caused the loss has an error other than 709. */
static void io_failed(void *arg, const char *text)
{
	struct job *j = arg;
	char own[256] = "", why[sizeof j->reason];

	for (uint32_t n = 0; n < j->world.size && !strncmp(text, IO_FAILED, strlen(IO_FAILED));
	     n++) {
		struct rank *r = j->world.ranks[n];
		int error = r && r->memory.space ? j->proxy->device.hal->space_error(
							   r->memory.space, own, sizeof own)
						 : CU_OK;

		if (error == CU_OK || error == CU_CONTEXT_IS_DESTROYED)
			continue;
		snprintf(why, sizeof why, "rank %u has failed: %s; with it %.200s", n, own, text);
		job_fail(j, why);
		return;
	}
	job_fail(j, text);
}

static void io_send(void *arg, uint32_t to, const struct peer_message *m)
{
	struct job *j = arg;
	if (j->peer)
		peer_send(j->peer, to, PEER_COLLECTIVE, m);
}

static uint64_t io_scratch_alloc(void *arg, uint64_t bytes)
{
	const struct proxy *p = ((struct job *)arg)->proxy;

	return p->device.hal->scratch_alloc ? p->device.hal->scratch_alloc(p->device.opened, bytes)
					    : 0;
}

static bool io_scratch_free(void *arg, uint64_t addr, uint64_t bytes)
{
	const struct proxy *p = ((struct job *)arg)->proxy;

	return p->device.hal->scratch_free &&
	       p->device.hal->scratch_free(p->device.opened, addr, bytes);
}

static struct hal_ref io_outbox_alloc(void *arg, uint64_t bytes, uint64_t readers, uint64_t *offset)
{
	struct job *j = arg;
	struct hal_ref at = {0};
	if (j->peer) {
		at.addr = peer_outbox_alloc(j->peer, bytes, readers, offset);
	} else { /* one device: no other process reads it */
		*offset = (uintptr_t)malloc(bytes ? bytes : 1);
		at.addr = *offset;
	}
	return at;
}

static void io_outbox_free(void *arg, uint64_t offset, uint64_t bytes)
{
	struct job *j = arg;
	if (j->peer)
		peer_outbox_free(j->peer, offset, bytes);
	else
		free((void *)(uintptr_t)offset);
}

static int io_fetch(void *arg, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
		    struct hal_ref *place)
{
	struct job *j = arg;
	return j->peer ? peer_fetch(j->peer, device, offset, bytes, token, place)
		       : NCCL_INVALID_ARGUMENT;
}

static void io_release(void *arg, uint32_t device, struct hal_ref place, uint64_t bytes)
{
	struct job *j = arg;
	peer_release(j->peer, device, place, bytes);
}

struct coll_io job_io(struct job *j)
{
	struct coll_io io = {
		.arg = j,
		.read = io_read,
		.write = io_write,
		.receiver = io_receiver,
		.keeper = io_keeper,
		.forget = io_forget,
		.hand = io_hand,
		.reduce = io_reduce,
		.scale = io_scale,
		.send = io_send,
		.scratch_alloc = io_scratch_alloc,
		.scratch_free = io_scratch_free,
		.outbox_alloc = io_outbox_alloc,
		.outbox_free = io_outbox_free,
		.fetch = io_fetch,
		.release = io_release,
		.joined = io_joined,
		.completed = io_completed,
		.abort_complete = io_abort_complete,
		.broken = io_broken,
		.failed = io_failed,
	};

	links_io(&io);
	return io;
}
