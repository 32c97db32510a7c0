/* nccl_group.c: groups, and the communicators that are made in them.
 *
 * An outermost group's operations become records that follow each other without a gap; its
 * communicators are made when it ends, all in flight together. Errors are ncclResult_t. No lock: a
 * group is its thread's. Blocking: making communicators (until all members have joined).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "nccl_parts.h"

#define GROUP_MAX 1024u /* what a server takes as one group */
#define NO_COLOR (-1)

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
	uint64_t *redops; /* that go when it ends */
	uint32_t redop_count, redop_room;
};

static _Thread_local struct group group;

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
	if (error)
		because(error, "the server refused the communicator, or a member never joined");
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
	const struct comm *c = comm_numbered(operation->comm);
	if (operation->kind != RF_COLL_SEND && operation->kind != RF_COLL_RECV)
		return 0;
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
			static const char why[] = "an NCCL send of a rank to itself without a "
						  "receive in the same group, or the other way "
						  "round";
			SAY_ONCE("%s", why);
			return because(NCCL_INVALID_USAGE, "%s", why);
		}
	}
	return NCCL_SUCCESS;
}

static void post_destroy(uint64_t op)
{
	struct rf_handle m = {.handle = op};
	channel_post(&m.r, RF_OP_REDOP_DESTROY, sizeof m, NULL, 0);
}

static ncclResult_t end_outermost(void)
{
	ncclResult_t error = group.error ? group.error : check_own_sends();
	if (!error && group.joining_count)
		error = join_all();
	if (!error && group.count)
		channel_post_group(group.operations, group.count);
	for (uint32_t i = 0; error && i < group.joining_count; i++)
		if (!group.joinings[i].comm->made)
			*group.joinings[i].out = NULL;
	for (uint32_t i = 0; i < group.redop_count; i++)
		post_destroy(group.redops[i]);
	group.count = group.joining_count = group.redop_count = 0;
	group.error = NCCL_SUCCESS;
	return error;
}

ncclResult_t group_end(void)
{
	if (!group.depth)
		return ended("ncclGroupEnd", NULL,
			     because(NCCL_INVALID_USAGE, "no group has been started"));
	if (--group.depth)
		return NCCL_SUCCESS;
	ncclResult_t before = group.error, error = end_outermost();
	return before ? before : ended("ncclGroupEnd", NULL, error); /* its call has said why */
}

ncclResult_t group_call(const char *call, const struct comm *c, ncclResult_t error)
{
	if (error && !group.error)
		group.error = error;
	if (!group.depth)
		error = end_outermost(); /* which gives an error of this call back */
	return ended(call, c, error);
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

ncclResult_t group_add(const struct rf_collective *operation)
{
	if (group.count == GROUP_MAX) {
		static const char why[] =
			"a group of more than %u NCCL operations is not supported by rankfold";
		SAY_ONCE(why, GROUP_MAX);
		return because(NCCL_INVALID_USAGE, why, GROUP_MAX);
	}
	struct rf_collective *list = grow(group.operations, group.count, &group.room, sizeof *list);
	if (!list)
		return NCCL_SYSTEM_ERROR;
	group.operations = list;
	list[group.count++] = *operation;
	return NCCL_SUCCESS;
}

ncclResult_t group_destroy_redop(uint64_t op)
{
	if (!group.depth) {
		post_destroy(op);
		return NCCL_SUCCESS;
	}
	uint64_t *list = grow(group.redops, group.redop_count, &group.redop_room, sizeof *list);
	if (!list)
		return NCCL_SYSTEM_ERROR;
	group.redops = list;
	list[group.redop_count++] = op;
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
		error = because(NCCL_INVALID_ARGUMENT, "rank %d of %d", rank, nranks);
	if (!error) {
		struct joining j = {.comm = comm_new(nranks, rank), .out = out};
		memcpy(j.unique_id, id->internal, sizeof j.unique_id);
		error = add_joining(j);
	}
	return group_call("ncclCommInitRank", NULL, error);
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
	return group_call("ncclCommSplit", parent, error);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
	ncclUniqueId id;
	if (ndev != 1 || (devlist && devlist[0] != current_device)) {
		static const char why[] =
			"ncclCommInitAll over several devices: a rank has one device under rankfold";
		SAY_ONCE("%s", why);
		return ended("ncclCommInitAll", NULL, because(NCCL_INVALID_USAGE, "%s", why));
	}
	ncclResult_t error = ncclGetUniqueId(&id);
	return error ? error : comm_init(comm, 1, &id, 0);
}

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
