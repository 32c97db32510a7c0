/* nccl.c: NCCL's collectives, reduction operators and memory.
 *
 * Operations that NCCL would enqueue become records of the ring (nccl_group.c). Errors are
 * ncclResult_t; each call that fails stores its reason for ncclGetLastError (nccl_error.c). Only
 * reading an operator's scalar from device memory blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_parts.h"
#include "plural.h"

#define VERSION 22803
#define BUILTIN_OPS 5

static uint64_t nccl_type_bytes(ncclDataType_t type)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 0;
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return NCCL_INVALID_ARGUMENT;
	*version = VERSION;
	return NCCL_SUCCESS;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	uint64_t address = 0; /* for 0 bytes, as cudaMalloc returns */
	if (!ptr)
		return ended("ncclMemAlloc", NULL, NCCL_INVALID_ARGUMENT);
	ncclResult_t error = size ? nccl_error(memory_alloc_for(0, size, &address)) : NCCL_SUCCESS;
	if (!error)
		*ptr = (void *)address;
	return ended("ncclMemAlloc", NULL, error);
}

ncclResult_t ncclMemFree(void *ptr)
{
	return ended("ncclMemFree", NULL, ptr ? nccl_error(allocation_free(ptr)) : NCCL_SUCCESS);
}

/* ---- reduction operators ---- */

/* An operator that a program created. ncclRedOp_t has 31 bits, so names are reused, as in NCCL;
 * numbers are not. `address` refers to a factor in device memory, which is read when a collective
 * runs; it is 0 if the server has the operator under its number. */
struct operator {
	ncclRedOp_t name;
	uint32_t dtype;
	uint64_t number, address, bytes;
	struct operator *next;
};

static struct operator *operators, *spare;
static ncclRedOp_t next_name = RF_HANDLE_FIRST;

/* Adds an operator and chooses its name. */
static ncclResult_t operator_add(struct operator *given)
{
	struct operator *fresh = malloc(sizeof *fresh);
	if (!fresh)
		return NCCL_SYSTEM_ERROR;
	lock(OPERATOR_LOCK);
	struct operator *o = spare ? spare : fresh;
	given->name = spare ? spare->name : next_name++;
	if (spare)
		spare = spare->next;
	given->next = operators;
	*o = *given;
	operators = o;
	unlock(OPERATOR_LOCK);
	if (o != fresh)
		free(fresh);
	return NCCL_SUCCESS;
}

static bool operator_of(ncclRedOp_t name, struct operator *out, bool goes)
{
	lock(OPERATOR_LOCK);
	struct operator **at = &operators;
	while (*at && (*at)->name != name)
		at = &(*at)->next;
	struct operator *o = *at;
	if (o)
		*out = *o;
	if (o && goes) {
		*at = o->next;
		o->next = spare;
		spare = o;
	}
	unlock(OPERATOR_LOCK);
	return o;
}

/* Creates a separate operator for the collective, with the factor's value at this place in its
 * stream. Waits for the stream. */
static ncclResult_t bring_factor(struct rf_collective *m, const struct operator *o,
				 const struct comm *c, const void *stream)
{
	struct rf_redop own = {.redop = handle_number(), .comm = c->number, .dtype = o->dtype};
	int error = memory_copy_1d(own.scalar, (const void *)o->address, o->bytes, BY_ADDRESS,
				   stream, true);
	if (error)
		return nccl_error(error);
	channel_post(&own.r, RF_OP_REDOP_CREATE, sizeof own, NULL, 0);
	m->op = own.redop;
	return NCCL_SUCCESS;
}

ncclResult_t redop_create(ncclRedOp_t *op, const void *scalar, ncclDataType_t type, int residence,
			  const void *comm)
{
	const struct comm *c = comm_of(comm);
	uint64_t bytes = nccl_type_bytes(type);
	if (!op || !scalar || !bytes || !c)
		return ended("ncclRedOpCreatePreMulSum", c, NCCL_INVALID_ARGUMENT);
	struct operator o = {.number = handle_number(), .bytes = bytes, .dtype = (uint32_t)type};
	if (residence == 0) /* 0: in device memory */
		o.address = (uint64_t)scalar;
	ncclResult_t error = nccl_error(channel_enter());
	if (!error)
		error = operator_add(&o);
	if (error)
		return ended("ncclRedOpCreatePreMulSum", c, error);
	if (!o.address) {
		struct rf_redop m = {.redop = o.number, .comm = c->number, .dtype = o.dtype};
		memcpy(m.scalar, scalar, bytes);
		channel_post(&m.r, RF_OP_REDOP_CREATE, sizeof m, NULL, 0);
	}
	*op = o.name;
	return NCCL_SUCCESS;
}

ncclResult_t redop_destroy(ncclRedOp_t op, const void *comm)
{
	const struct comm *c = comm_of(comm);
	struct operator removed;
	if (!c || channel_open() || !operator_of(op, &removed, true))
		return ended("ncclRedOpDestroy", c, NCCL_INVALID_ARGUMENT);
	if (removed.address)
		return NCCL_SUCCESS;
	return ended("ncclRedOpDestroy", c, group_destroy_redop(removed.number));
}

/* ---- collectives ---- */

/* Elements that one call reads and writes on this rank; 0 for an unused buffer. */
static void elements_of_call(enum rf_coll kind, const struct comm *c, int root, uint64_t count,
			     uint64_t *send, uint64_t *recv)
{
	uint64_t all = count * (uint64_t)c->count;
	bool is_root = c->rank == root;
	*send = *recv = count;
	switch (kind) {
	case RF_COLL_REDUCE: *recv = is_root ? count : 0; break;
	case RF_COLL_BROADCAST: *send = is_root ? count : 0; break;
	case RF_COLL_ALLGATHER: *recv = all; break;
	case RF_COLL_REDUCESCATTER: *send = all; break;
	case RF_COLL_SEND: *recv = 0; break;
	case RF_COLL_RECV: *send = 0; break;
	case RF_COLL_ALLTOALL: *send = *recv = all; break;
	case RF_COLL_GATHER: *recv = is_root ? all : 0; break;
	case RF_COLL_SCATTER: *send = is_root ? all : 0; break;
	default: break;
	}
}

static bool device_reaches(uint64_t address, uint64_t bytes)
{
	if (!bytes || memory_reachable((void *)address, bytes))
		return true;
	LOG_ONCE("an NCCL operation names memory that is not (all) a live allocation that the "
		 "device reaches: memory of cudaHostRegister must be private, and made of whole "
		 "pages");
	because(NCCL_INVALID_ARGUMENT,
		"%llu byte%s at %#llx: not (all) in a live allocation that the device reaches",
		(unsigned long long)bytes, plural(bytes), (unsigned long long)address);
	return false;
}

static ncclResult_t check_collective(struct rf_collective *m, struct comm *c)
{
	uint64_t bytes = nccl_type_bytes((int)m->dtype), send, recv;
	if (c->nonblocking && comm_progress(c) == NCCL_IN_PROGRESS)
		return because(NCCL_INVALID_ARGUMENT,
			       "a request of the communicator is in progress");
	if (c->finalized || c->stopped)
		return because(NCCL_INVALID_USAGE, "the communicator is finalized");
	if (!c->made) {
		static const char why[] =
			"an NCCL operation on a communicator of a group that has not ended";
		LOG_ONCE("%s", why);
		return because(NCCL_INVALID_USAGE, "%s", why);
	}
	if (!bytes || m->count > RF_HEAP_BYTES)
		return because(NCCL_INVALID_ARGUMENT, "%llu elements of data type %d",
			       (unsigned long long)m->count, (int)m->dtype);
	if (m->root < 0 || m->root >= c->count)
		return because(NCCL_INVALID_ARGUMENT, "root or peer %d", m->root);
	elements_of_call(m->kind, c, m->root, m->count, &send, &recv);
	m->send = (uint64_t)registered_reached((void *)m->send, send * bytes);
	m->recv = (uint64_t)registered_reached((void *)m->recv, recv * bytes);
	if (!device_reaches(m->send, send * bytes) || !device_reaches(m->recv, recv * bytes))
		return NCCL_INVALID_ARGUMENT;
	m->send = send ? m->send : 0;
	m->recv = recv ? m->recv : 0;
	return NCCL_SUCCESS;
}

static ncclResult_t refuse_captured(uint64_t stream)
{
	static const char why[] =
		"NCCL operations in a captured stream are not supported by rankfold: end the "
		"capture before them and launch the graph around them";
	int error = capture_refuse(stream);
	if (error == CAPTURE_IMPLICIT)
		return nccl_error(error);
	LOG_ONCE("%s", why);
	return because(NCCL_INVALID_USAGE, "%s", why);
}

static const char *call_name(enum rf_coll kind)
{
	static const char *const names[] = {
		[RF_COLL_ALLREDUCE] = "ncclAllReduce",
		[RF_COLL_REDUCE] = "ncclReduce",
		[RF_COLL_BROADCAST] = "ncclBroadcast",
		[RF_COLL_ALLGATHER] = "ncclAllGather",
		[RF_COLL_REDUCESCATTER] = "ncclReduceScatter",
		[RF_COLL_SEND] = "ncclSend",
		[RF_COLL_RECV] = "ncclRecv",
		[RF_COLL_ALLTOALL] = "ncclAlltoAll",
		[RF_COLL_GATHER] = "ncclGather",
		[RF_COLL_SCATTER] = "ncclScatter",
	};
	return names[kind];
}

ncclResult_t nccl_collective(enum rf_coll kind, const void *send, void *recv, size_t count,
			     int type, int op, int root, const void *comm, const void *stream)
{
	struct comm *c = comm_of(comm);
	struct rf_collective m = {.send = (uint64_t)send,
				  .recv = (uint64_t)recv,
				  .count = count,
				  .op = (uint64_t)op,
				  .kind = kind,
				  .dtype = (uint32_t)type,
				  .root = root};
	ncclResult_t error = c ? nccl_error(channel_enter()) : NCCL_INVALID_ARGUMENT;
	if (!error)
		error = comm_error(c);
	if (!error && stream_number(stream, &m.stream))
		error = because(NCCL_INVALID_ARGUMENT, "%p is not a stream", stream);
	if (!error && capturing(m.stream))
		error = refuse_captured(m.stream);
	if (!error)
		error = check_collective(&m, c);
	struct operator made = {.number = 0};
	if (!error && (op < 0 || op >= BUILTIN_OPS)) {
		if (operator_of(op, &made, false))
			m.op = made.number;
		else
			error = because(NCCL_INVALID_ARGUMENT, "reduction operator %d", op);
	}
	bool brought = !error && count && made.address;
	if (brought)
		error = bring_factor(&m, &made, c, stream);
	brought &= !error;
	if (!error && count) {
		m.comm = c->number;
		error = group_add(&m);
	}
	error = group_call(call_name(kind), c, error);
	if (brought)
		(void)group_destroy_redop(m.op);
	return error;
}
