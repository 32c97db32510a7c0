/* nccl.c: communicators, groups and collectives.
 *
 * What NCCL would enqueue becomes a record of the ring; an outermost group's records follow each
 * other without a gap. Communicators are made when their outermost group ends, all those of the
 * group in flight together. Errors are ncclResult_t. Blocking: making communicators (until all
 * members have joined).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bodies.h"

#define GROUP_MAX 1024u /* what a server takes as one group */
#define VERSION 22803
#define BUILTIN_OPS 5
#define NO_COLOR (-1)

struct comm {
	uint64_t number;
	int count, rank, device;
	bool made, dead;
	struct comm *next;
};

/* A communicator that the group in progress will make. */
struct joining {
	struct comm *comm;
	const struct comm *parent; /* NULL: init */
	ncclComm_t *out;
	int color, key;
	uint8_t unique_id[RF_UNIQUE_ID_BYTES];
	uint32_t slot;
};

struct group {
	int depth;
	ncclResult_t error;
	struct rf_collective *operations;
	uint32_t count, room;
	struct joining *joinings;
	uint32_t joining_count, joining_room;
};

static _Thread_local struct group group;
static struct comm *_Atomic comms; /* all there ever were; never freed, so handles can be checked */

/* ---- small things ---- */

static ncclResult_t nccl_error(int cuda) { return cuda ? NCCL_UNHANDLED_CUDA_ERROR : NCCL_SUCCESS; }

static struct comm *comm_of(const void *handle)
{
	struct comm *c = atomic_load(&comms);
	while (c && c != handle)
		c = c->next;
	return c && !c->dead ? c : NULL;
}

ncclResult_t comm_check(const void *comm)
{
	return comm_of(comm) ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

static struct comm *comm_new(int count, int rank)
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

static uint64_t type_bytes(ncclDataType_t type)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 0;
}

/* ---- groups ---- */

ncclResult_t group_start(void)
{
	group.depth++;
	return NCCL_SUCCESS;
}

static ncclResult_t begin_joining(struct joining *j)
{
	struct comm *c = j->comm;
	if (j->parent) {
		struct rf_comm_split m = {.parent = j->parent->number,
					  .comm = c->number,
					  .color = j->color,
					  .key = j->key};
		j->slot = channel_begin(&m.r, RF_OP_COMM_SPLIT, sizeof m, NULL, 0);
	} else {
		struct rf_comm_init m = {
			.comm = c->number, .nranks = (uint32_t)c->count, .rank = (uint32_t)c->rank};
		memcpy(m.unique_id, j->unique_id, sizeof m.unique_id);
		j->slot = channel_begin(&m.r, RF_OP_COMM_INIT, sizeof m, NULL, 0);
	}
	return NCCL_SUCCESS;
}

static ncclResult_t finish_joining(struct joining *j)
{
	struct rf_comm_split_reply reply = {0};
	ncclResult_t error = channel_finish(j->slot, &reply, sizeof reply);
	if (!error && j->parent) {
		j->comm->count = (int)reply.nranks;
		j->comm->rank = (int)reply.rank;
	}
	j->comm->made = !error && j->comm->count > 0;
	j->comm->dead = !j->comm->made;
	if (j->comm->dead)
		*j->out = NULL;
	return error;
}

/* Up to half of the reply slots in flight: others need some too. */
static ncclResult_t join_all(void)
{
	ncclResult_t error = NCCL_SUCCESS;
	uint32_t begun = 0;
	for (uint32_t i = 0; i < group.joining_count; i++) {
		for (; begun < group.joining_count && begun < i + RF_SLOT_COUNT / 2; begun++)
			begin_joining(&group.joinings[begun]);
		ncclResult_t failed = finish_joining(&group.joinings[i]);
		error = error ? error : failed;
	}
	return error;
}

/* +1: a send of the communicator's rank to itself, -1: a receive from itself, 0: anything else. */
static int to_itself(const struct rf_collective *operation)
{
	const struct comm *c = atomic_load(&comms);
	if (operation->kind != RF_COLL_SEND && operation->kind != RF_COLL_RECV)
		return 0;
	while (c && c->number != operation->comm)
		c = c->next;
	if (!c || c->rank != operation->root)
		return 0;
	return operation->kind == RF_COLL_SEND ? 1 : -1;
}

/* As in NCCL, a rank's sends to itself are received in the same group: nobody else can do it. */
static ncclResult_t check_own_sends(void)
{
	for (uint32_t i = 0; i < group.count; i++) {
		int open = to_itself(&group.operations[i]);
		for (uint32_t k = 0; open && k < group.count; k++)
			if (k != i && group.operations[k].comm == group.operations[i].comm)
				open += to_itself(&group.operations[k]);
		if (open) {
			SAY_ONCE("an NCCL send of a rank to itself without a receive in the same "
				 "group, or the other way round");
			return NCCL_INVALID_USAGE;
		}
	}
	return NCCL_SUCCESS;
}

static ncclResult_t end_outermost(void)
{
	ncclResult_t error = group.error ? group.error : check_own_sends();
	if (!error && group.joining_count)
		error = join_all();
	if (!error && group.count) {
		memory_first_launch();
		channel_post_group(group.operations, group.count);
	}
	for (uint32_t i = 0; error && i < group.joining_count; i++)
		if (!group.joinings[i].comm->made)
			*group.joinings[i].out = NULL;
	group.count = group.joining_count = 0;
	group.error = NCCL_SUCCESS;
	return error;
}

ncclResult_t group_end(void)
{
	if (!group.depth)
		return NCCL_INVALID_USAGE;
	return --group.depth ? NCCL_SUCCESS : end_outermost();
}

/* Every call is a group of its own where it is in none. The first error of a group is its end's. */
static ncclResult_t add(ncclResult_t error)
{
	if (error && !group.error)
		group.error = error;
	if (!group.depth)
		return end_outermost();
	return error;
}

static void *grow(void *list, uint32_t count, uint32_t *room, size_t bytes)
{
	if (count < *room)
		return list;
	uint32_t more = *room ? *room * 2 : 16;
	void *grown = realloc(list, more * bytes);
	if (grown)
		*room = more;
	return grown;
}

static ncclResult_t add_operation(const struct rf_collective *operation)
{
	if (group.count == GROUP_MAX) {
		SAY_ONCE("a group of more than %u NCCL operations is not supported by rankfold",
			 GROUP_MAX);
		return NCCL_INVALID_USAGE;
	}
	struct rf_collective *list = grow(group.operations, group.count, &group.room, sizeof *list);
	if (!list)
		return NCCL_SYSTEM_ERROR;
	group.operations = list;
	list[group.count++] = *operation;
	return NCCL_SUCCESS;
}

static ncclResult_t add_joining(struct joining joining)
{
	struct joining *list = grow(group.joinings, group.joining_count, &group.joining_room,
				    sizeof *list);
	if (!list || !joining.comm)
		return NCCL_SYSTEM_ERROR;
	group.joinings = list;
	list[group.joining_count++] = joining;
	*joining.out = joining.comm;
	return NCCL_SUCCESS;
}

/* ---- communicators ---- */

ncclResult_t comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank)
{
	ncclResult_t error = nccl_error(context_use_device());
	if (!error && (!out || nranks < 1 || rank < 0 || rank >= nranks))
		error = NCCL_INVALID_ARGUMENT;
	if (!error) {
		struct joining j = {.comm = comm_new(nranks, rank), .out = out};
		memcpy(j.unique_id, id->internal, sizeof j.unique_id);
		error = add_joining(j);
	}
	return add(error);
}

ncclResult_t comm_split(const void *comm, int color, int key, ncclComm_t *out)
{
	const struct comm *parent = comm_of(comm);
	ncclResult_t error = nccl_error(channel_enter());
	if (!error && (!parent || !parent->made || !out || color < NO_COLOR))
		error = NCCL_INVALID_ARGUMENT;
	if (!error)
		error = add_joining((struct joining){.comm = comm_new(0, 0),
						     .parent = parent,
						     .out = out,
						     .color = color,
						     .key = key});
	return add(error);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
	ncclUniqueId id;
	if (ndev != 1 || (devlist && devlist[0] != current_device)) {
		SAY_ONCE(
			"ncclCommInitAll over several devices: a rank has one device under rankfold");
		return NCCL_INVALID_USAGE;
	}
	ncclResult_t error = ncclGetUniqueId(&id);
	return error ? error : comm_init(comm, 1, &id, 0);
}

ncclResult_t comm_finalize(const void *comm)
{
	if (!comm_of(comm))
		return NCCL_INVALID_ARGUMENT;
	return nccl_error(wait_for_device());
}

static ncclResult_t leave(void *comm, enum rf_opcode opcode)
{
	struct comm *c = comm_of(comm);
	if (!comm)
		return NCCL_SUCCESS;
	if (!c || channel_open())
		return NCCL_INVALID_ARGUMENT;
	struct rf_handle m = {.handle = c->number};
	c->dead = true;
	channel_post(&m.r, opcode, sizeof m, NULL, 0);
	return NCCL_SUCCESS;
}

ncclResult_t comm_destroy(void *comm) { return leave(comm, RF_OP_COMM_DESTROY); }

/* Does not wait for what is outstanding: that ends with an error. */
ncclResult_t comm_abort(void *comm) { return leave(comm, RF_OP_COMM_ABORT); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
	if (!uniqueId)
		return NCCL_INVALID_ARGUMENT;
	int kept = errno;
	for (size_t have = 0; have < sizeof uniqueId->internal;) {
		ssize_t got = getrandom(uniqueId->internal + have, sizeof uniqueId->internal - have,
					0);
		if (got > 0)
			have += (size_t)got;
		else if (errno != EINTR)
			return NCCL_SYSTEM_ERROR;
	}
	errno = kept;
	return NCCL_SUCCESS;
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return NCCL_INVALID_ARGUMENT;
	*version = VERSION;
	return NCCL_SUCCESS;
}

static ncclResult_t comm_value(const void *comm, int *out, size_t offset)
{
	const struct comm *c = comm_of(comm);
	if (!c || !out)
		return NCCL_INVALID_ARGUMENT;
	memcpy(out, (const char *)c + offset, sizeof *out);
	return NCCL_SUCCESS;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return comm_value(comm, count, offsetof(struct comm, count));
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return comm_value(comm, rank, offsetof(struct comm, rank));
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return comm_value(comm, device, offsetof(struct comm, device));
}

static ncclResult_t async_error(void)
{
	if (!channel_header)
		return NCCL_SUCCESS;
	uint32_t error = atomic_load(&channel_header->comm_error);
	return error ? (ncclResult_t)error
		     : nccl_error((int)atomic_load(&channel_header->async_error));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
	if (!comm_of(comm) || !asyncError)
		return NCCL_INVALID_ARGUMENT;
	*asyncError = async_error();
	return NCCL_SUCCESS;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const texts[] = {
		"no error",
		"unhandled cuda error",
		"unhandled system error",
		"internal error",
		"invalid argument",
		"invalid usage",
		"remote process exited or there was a network error",
		"operation in progress",
	};
	return result >= 0 && (size_t)result < sizeof texts / sizeof *texts ? texts[result]
									    : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	ncclResult_t error = async_error();
	return error ? ncclGetErrorString(error) : "";
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
	uint64_t address;
	if (!ptr || !size)
		return NCCL_INVALID_ARGUMENT;
	ncclResult_t error = nccl_error(memory_alloc(size, &address));
	if (!error)
		*ptr = (void *)address;
	return error;
}

ncclResult_t ncclMemFree(void *ptr) { return ptr ? nccl_error(memory_free(ptr)) : NCCL_SUCCESS; }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	if (!comm_of(comm) || !handle || !memory_reachable(registered_reached(buff, size), size))
		return NCCL_INVALID_ARGUMENT;
	*handle = buff; /* nothing to register: every buffer is reached the same way */
	return NCCL_SUCCESS;
}

/* ---- reduction operators ---- */

ncclResult_t redop_create(ncclRedOp_t *op, const void *scalar, ncclDataType_t type, int residence,
			  const void *comm)
{
	const struct comm *c = comm_of(comm);
	uint64_t bytes = type_bytes(type), number = handle_number();
	if (!op || !scalar || !bytes || !c || number > INT32_MAX)
		return NCCL_INVALID_ARGUMENT;
	struct rf_redop m = {.redop = number, .comm = c->number, .dtype = (uint32_t)type};
	ncclResult_t error = nccl_error(channel_enter());
	if (!error && residence == 0) /* in device memory: its value now */
		error = nccl_error(
			memory_copy_1d(m.scalar, scalar, bytes, BY_ADDRESS, NULL, false));
	else if (!error)
		memcpy(m.scalar, scalar, bytes);
	if (error)
		return error;
	channel_post(&m.r, RF_OP_REDOP_CREATE, sizeof m, NULL, 0);
	*op = (ncclRedOp_t)number;
	return NCCL_SUCCESS;
}

ncclResult_t redop_destroy(ncclRedOp_t op, const void *comm)
{
	if (op < (int)RF_HANDLE_FIRST || !comm_of(comm) || channel_open())
		return NCCL_INVALID_ARGUMENT;
	struct rf_handle m = {.handle = (uint64_t)op};
	channel_post(&m.r, RF_OP_REDOP_DESTROY, sizeof m, NULL, 0);
	return NCCL_SUCCESS;
}

/* ---- collectives ---- */

/* Elements that one call reads and writes on this rank; 0 where a buffer does not count. */
static void extents(enum rf_coll kind, const struct comm *c, int root, uint64_t count,
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

static ncclResult_t check(struct rf_collective *m, const struct comm *c)
{
	uint64_t bytes = type_bytes((int)m->dtype), send, recv;
	if (!c->made) {
		SAY_ONCE("an NCCL operation on a communicator of a group that has not ended");
		return NCCL_INVALID_USAGE;
	}
	if (!bytes || m->count > RF_HEAP_BYTES || m->root < 0 || m->root >= c->count ||
	    (m->op >= BUILTIN_OPS && m->op < RF_HANDLE_FIRST))
		return NCCL_INVALID_ARGUMENT;
	extents(m->kind, c, m->root, m->count, &send, &recv);
	m->send = (uint64_t)registered_reached((void *)m->send, send * bytes);
	m->recv = (uint64_t)registered_reached((void *)m->recv, recv * bytes);
	if ((send && !memory_reachable((void *)m->send, send * bytes)) ||
	    (recv && !memory_reachable((void *)m->recv, recv * bytes))) {
		SAY_ONCE(
			"an NCCL operation names memory that is not (all) a live allocation that the "
			"device reaches: memory of cudaHostRegister must be private, and made of whole "
			"pages");
		return NCCL_INVALID_ARGUMENT;
	}
	m->send = send ? m->send : 0;
	m->recv = recv ? m->recv : 0;
	return NCCL_SUCCESS;
}

static ncclResult_t refuse_captured(uint64_t stream)
{
	if (capture_refuse(stream) == CAPTURE_IMPLICIT)
		return NCCL_UNHANDLED_CUDA_ERROR;
	SAY_ONCE("NCCL operations in a captured stream are not supported by rankfold: end the "
		 "capture before them and launch the graph around them");
	return NCCL_INVALID_USAGE;
}

ncclResult_t collective(enum rf_coll kind, const void *send, void *recv, size_t count, int type,
			int op, int root, const void *comm, const void *stream)
{
	const struct comm *c = comm_of(comm);
	struct rf_collective m = {.send = (uint64_t)send,
				  .recv = (uint64_t)recv,
				  .count = count,
				  .op = (uint64_t)(unsigned)op,
				  .kind = kind,
				  .dtype = (uint32_t)type,
				  .root = root};
	ncclResult_t error = c ? nccl_error(channel_enter()) : NCCL_INVALID_ARGUMENT;
	if (!error && async_error())
		error = async_error();
	if (!error && stream_number(stream, &m.stream))
		error = NCCL_INVALID_ARGUMENT;
	if (!error && capturing(m.stream))
		error = refuse_captured(m.stream);
	if (!error)
		error = check(&m, c);
	if (!error && count) {
		m.comm = c->number;
		error = add_operation(&m);
	}
	return add(error);
}
