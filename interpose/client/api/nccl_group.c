/* nccl_group.c: groups, and the communicators that are created in them.
 *
 * The operations of an outermost group become consecutive records; its communicators are created
 * when it ends, all in flight together. Errors are ncclResult_t. No lock: a group belongs to its
 * thread. Blocking: creating communicators (until all members have joined).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "nccl_parts.h"
#include "plural.h"

#define GROUP_MAX 1024u /* the server's limit for one group */
#define NO_COLOR (-1)
#define SHRINK_ABORT 1 /* NCCL_SHRINK_ABORT */

/* A communicator that the group in progress will create. */
struct joining {
	struct comm *comm;
	ncclComm_t *out;
	bool split; /* true: by a split; false: by an id */
	int color, key;
	uint32_t slot;
};

struct group {
	int depth;
	ncclResult_t error;
	struct rf_collective *operations;
	uint32_t count, capacity;
	struct joining *joinings;
	uint32_t joining_count, joining_capacity;
	uint64_t *redops; /* operators to destroy when it ends */
	uint32_t redop_count, redop_capacity;
};

static _Thread_local struct group group;

ncclResult_t group_start(void)
{
	group.depth++;
	return NCCL_SUCCESS;
}

static void begin_joining(struct joining *j)
{
	struct comm *c = j->comm;
	if (j->split) {
		struct rf_comm_split m = {.parent = c->parent->number,
					  .comm = c->number,
					  .color = j->color,
					  .key = j->key};
		j->slot = channel_begin_unless(&c->dead, &m.r, RF_OP_COMM_SPLIT, sizeof m, NULL, 0);
	} else {
		struct rf_comm_init m = {
			.comm = c->number, .nranks = (uint32_t)c->count, .rank = (uint32_t)c->rank};
		memcpy(m.unique_id, c->id, sizeof m.unique_id);
		j->slot = channel_begin_unless(&c->dead, &m.r, RF_OP_COMM_INIT, sizeof m, NULL, 0);
	}
}

static ncclResult_t finish_joining(struct joining *j)
{
	struct comm *c = j->comm;
	if (j->slot == SLOT_NONE) {
		*j->out = NULL;
		return because(NCCL_INTERNAL_ERROR, "another thread has aborted the communicator");
	}
	if (c->nonblocking && comm_begin(c, j->slot))
		return NCCL_IN_PROGRESS;
	ncclResult_t error = nccl_comm_joined(c, j->slot);
	if (error)
		because(error, "the server refused the communicator, or a member never joined");
	if (!c->made) {
		c->dead = true;
		*j->out = NULL;
	}
	return error;
}

/* Keeps up to half of the reply slots in flight: other requests need some too. */
static ncclResult_t join_all(void)
{
	ncclResult_t error = NCCL_SUCCESS;
	uint32_t begun_count = 0;
	for (uint32_t i = 0; i < group.joining_count; i++) {
		for (; begun_count < group.joining_count && begun_count < i + RF_SLOT_COUNT / 2;
		     begun_count++)
			begin_joining(&group.joinings[begun_count]);
		ncclResult_t failed = finish_joining(&group.joinings[i]);
		if (!error || error == NCCL_IN_PROGRESS)
			error = failed ? failed : error;
	}
	return error;
}

/* +1: the rank sends to itself; -1: it receives from itself; 0: anything else. */
static int to_itself(const struct rf_collective *operation)
{
	const struct comm *c = comm_numbered(operation->comm);
	if (operation->kind != RF_COLL_SEND && operation->kind != RF_COLL_RECV)
		return 0;
	if (!c || c->rank != operation->root)
		return 0;
	return operation->kind == RF_COLL_SEND ? 1 : -1;
}

/* As in NCCL, a rank's sends to itself are received in the same group: no other thread can do
 * it. */
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
			LOG_ONCE("%s", why);
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

/* Another thread may have aborted the communicator since: the server would refuse the operation and
 * the whole group, and keep an error for a communicator that is gone. */
static bool of_dead(const struct rf_collective *operation)
{
	const struct comm *c = comm_numbered(operation->comm);
	return !c || c->dead;
}

static ncclResult_t end_outermost(void)
{
	ncclResult_t error = group.error ? group.error : check_own_sends();
	if (!error && group.joining_count)
		error = join_all();
	if ((!error || error == NCCL_IN_PROGRESS) && group.count)
		channel_post_group(group.operations, group.count, of_dead);
	for (uint32_t i = 0; error && i < group.joining_count; i++)
		if (!group.joinings[i].comm->made && !group.joinings[i].comm->pending)
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
	return before ? before : ended("ncclGroupEnd", NULL, error); /* its call gave the reason */
}

ncclResult_t group_call(const char *call, const struct comm *c, ncclResult_t error)
{
	if (error && !group.error)
		group.error = error;
	if (!group.depth)
		error = end_outermost(); /* also returns this call's error */
	return ended(call, c, error);
}

static void *grow_list(void *list, uint32_t count, uint32_t *capacity, size_t bytes)
{
	if (count < *capacity)
		return list;
	uint32_t more = *capacity ? *capacity * 2 : 16;
	void *grown = realloc(list, more * bytes);
	if (grown)
		*capacity = more;
	return grown;
}

ncclResult_t group_add(const struct rf_collective *operation)
{
	if (group.count == GROUP_MAX) {
		static const char why[] =
			"a group of more than %u NCCL operations is not supported by rankfold";
		LOG_ONCE(why, GROUP_MAX);
		return because(NCCL_INVALID_USAGE, why, GROUP_MAX);
	}
	struct rf_collective *list = grow_list(group.operations, group.count, &group.capacity,
					       sizeof *list);
	if (!list)
		return NCCL_SYSTEM_ERROR;
	group.operations = list;
	list[group.count++] = *operation;
	return NCCL_SUCCESS;
}

void group_forget(const struct comm *c)
{
	uint32_t remaining = 0;
	for (uint32_t i = 0; i < group.count; i++)
		if (group.operations[i].comm != c->number)
			group.operations[remaining++] = group.operations[i];
	group.count = remaining;
	remaining = 0;
	for (uint32_t i = 0; i < group.joining_count; i++)
		if (group.joinings[i].comm != c)
			group.joinings[remaining++] = group.joinings[i];
	group.joining_count = remaining;
}

ncclResult_t group_destroy_redop(uint64_t op)
{
	if (!group.depth) {
		post_destroy(op);
		return NCCL_SUCCESS;
	}
	uint64_t *list = grow_list(group.redops, group.redop_count, &group.redop_capacity,
				   sizeof *list);
	if (!list)
		return NCCL_SYSTEM_ERROR;
	group.redops = list;
	list[group.redop_count++] = op;
	return NCCL_SUCCESS;
}

static ncclResult_t add_joining(struct joining joining)
{
	struct joining *list = grow_list(group.joinings, group.joining_count,
					 &group.joining_capacity, sizeof *list);
	if (!list || !joining.comm)
		return NCCL_SYSTEM_ERROR;
	group.joinings = list;
	list[group.joining_count++] = joining;
	*joining.out = joining.comm;
	return NCCL_SUCCESS;
}

/* ---- communicators ---- */

ncclResult_t nccl_comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
			    const ncclConfig_t *config)
{
	ncclResult_t error = nccl_error(context_use_device());
	if (!error && (!out || nranks < 1 || rank < 0 || rank >= nranks))
		error = because(NCCL_INVALID_ARGUMENT, "rank %d of %d", rank, nranks);
	struct joining j = {.comm = error ? NULL : nccl_comm_new(nranks, rank), .out = out};
	if (j.comm) {
		memcpy(j.comm->id, id->internal, sizeof j.comm->id);
		j.comm->nonblocking = comm_nonblocking(config, NULL);
	}
	if (!error)
		error = add_joining(j);
	return group_call("ncclCommInitRank", NULL, error);
}

/* Computes the id: the same for all members of a communicator derived from `parent`, and unique to
 * it. */
static void derive_id(struct comm *c, struct comm *parent, uint64_t which)
{
	uint64_t hash = ++parent->descendants, word;
	for (size_t i = 0; i <= sizeof parent->id; i += sizeof word) {
		if (i < sizeof parent->id)
			memcpy(&word, parent->id + i, sizeof word);
		else
			word = which;
		hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 29;
	}
	for (size_t i = 0; i < sizeof c->id; i += sizeof hash) {
		hash = (hash + i) * 0xbf58476d1ce4e5b9ull;
		hash ^= hash >> 32;
		memcpy(c->id + i, &hash, sizeof hash);
	}
	c->parent = parent;
}

static ncclResult_t check_parent(struct comm *parent)
{
	if (!parent)
		return NCCL_INVALID_ARGUMENT;
	if (comm_progress(parent) == NCCL_IN_PROGRESS)
		return because(NCCL_INVALID_ARGUMENT,
			       "a request of the communicator is in progress");
	if (!parent->made || parent->finalized)
		return because(NCCL_INVALID_USAGE, "the communicator is not made, or finalized");
	return NCCL_SUCCESS;
}

ncclResult_t nccl_comm_split(const void *comm, int color, int key, ncclComm_t *out,
			     const ncclConfig_t *config)
{
	struct comm *parent = comm_of(comm);
	ncclResult_t error = nccl_error(channel_enter());
	if (!error)
		error = check_parent(parent);
	if (!error && (!out || color < NO_COLOR || parent->stopped))
		error = NCCL_INVALID_ARGUMENT;
	struct joining j = {.comm = error ? NULL : nccl_comm_new(0, 0),
			    .out = out,
			    .split = true,
			    .color = color,
			    .key = key};
	if (j.comm) {
		derive_id(j.comm, parent, (uint64_t)(uint32_t)color);
		j.comm->nonblocking = comm_nonblocking(config, parent);
	}
	if (!error)
		error = add_joining(j);
	return group_call("ncclCommSplit", parent, error);
}

/* Computes this rank's number in the smaller communicator. All members name the same ranks. */
static ncclResult_t check_excluded(const struct comm *parent, const int *excluded, int count,
				   int *rank, uint64_t *which)
{
	*rank = parent->rank;
	*which = 0x736872696e6bull; /* differs from every split's color */
	if (!excluded || count < 1 || count >= parent->count)
		return because(NCCL_INVALID_ARGUMENT, "%d rank%s of %d cannot be excluded", count,
			       plural(count), parent->count);
	for (int i = 0; i < count; i++) {
		bool bad = excluded[i] < 0 || excluded[i] >= parent->count ||
			   excluded[i] == parent->rank;
		for (int k = 0; k < i; k++)
			bad |= excluded[k] == excluded[i];
		if (bad)
			return because(NCCL_INVALID_ARGUMENT,
				       "rank %d cannot be excluded by rank %d", excluded[i],
				       parent->rank);
		*rank -= excluded[i] < parent->rank;
		*which += 0x9e3779b97f4a7c15ull * (uint64_t)(excluded[i] + 1); /* in any order */
	}
	return NCCL_SUCCESS;
}

ncclResult_t comm_shrink(const void *comm, const int *excluded, int count, ncclComm_t *out,
			 const ncclConfig_t *config, int flags)
{
	struct comm *parent = comm_of(comm);
	int rank = 0;
	uint64_t which = 0;
	ncclResult_t error = nccl_error(channel_enter());
	if (!error)
		error = check_parent(parent);
	if (!error && (!out || flags & ~SHRINK_ABORT))
		error = NCCL_INVALID_ARGUMENT;
	if (!error)
		error = check_excluded(parent, excluded, count, &rank, &which);
	if (!error && flags & SHRINK_ABORT && !parent->stopped) {
		parent->stopped = true;
		group_forget(parent);
		(void)channel_abort_comm(parent->number);
	}
	struct joining j = {.comm = error ? NULL : nccl_comm_new(parent->count - count, rank),
			    .out = out};
	if (j.comm) {
		derive_id(j.comm, parent, which);
		j.comm->nonblocking = comm_nonblocking(config, parent);
	}
	if (!error)
		error = add_joining(j);
	return group_call("ncclCommShrink", parent, error);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
	ncclUniqueId id;
	if (ndev != 1 || (devlist && devlist[0] != current_device)) {
		static const char why[] =
			"ncclCommInitAll over several devices: a rank has one device under rankfold";
		LOG_ONCE("%s", why);
		return ended("ncclCommInitAll", NULL, because(NCCL_INVALID_USAGE, "%s", why));
	}
	ncclResult_t error = ncclGetUniqueId(&id);
	return error ? error : nccl_comm_init(comm, 1, &id, 0, NULL);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
	if (!uniqueId)
		return NCCL_INVALID_ARGUMENT;
	int saved_errno = errno;
	size_t have = 0;
	while (have < sizeof uniqueId->internal) {
		ssize_t got = getrandom(uniqueId->internal + have, sizeof uniqueId->internal - have,
					0);
		if (got > 0)
			have += (size_t)got;
		else if (errno != EINTR)
			break;
	}
	errno = saved_errno;
	return have < sizeof uniqueId->internal ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}
