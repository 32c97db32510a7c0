/* nccl.c: of the fake driver (fake.h): NCCL 2.27.3, as a part of the same library.
 *
 * Members are processes; they share a file that the unique id names. A sum is a kernel of the
 * stream: it waits until all members run theirs, as NCCL's does, or until its own communicator is
 * aborted. Element ranges are added in the order of a ring: that of member c's first, then those of
 * c + 1 and so on. So the bits of sums of floats are not those of rankfold's tree.
 *
 * It is stricter than NCCL: members that do not make the same calls in the same order, memory that
 * is a rank's or has gone, a communicator that is used while it is in progress, or after its end,
 * and one that is destroyed without being finalized, are faults of the caller.
 *
 * RANKFOLD_FAKE_NCCL_VERSION: its number. RANKFOLD_FAKE_NCCL_HANG=n: the process of GPU n never
 * joins. RANKFOLD_FAKE_NCCL_STUCK=n: its sums after the first few never end.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"
#include "reduce.h"

#define MEMBERS 16
#define SUM_BYTES (4u << 20)
#define POLLS 2 /* of a call's state, before it has ended */
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

struct call {
	uint64_t count;
	int type, op;
};

struct world { /* in the file; all of it is zero in the beginning */
	_Atomic int joined;
	struct {
		_Atomic int present, finalized;
		_Atomic uint64_t written, read; /* sums */
		struct call call;
		uint8_t data[SUM_BYTES];
	} member[MEMBERS];
};

struct communicator {
	struct world *world;
	char name[128]; /* of the file */
	int members, member, polls;
	bool finalizing, hangs;
	_Atomic bool aborted, gone;
	_Atomic uint64_t pushed, ended;
};

struct unique_id {
	char name[128];
};
struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
struct run { /* parameters of a kernel */
	struct communicator *c;
	struct call call;
	uint64_t at;
};

static int number_for(const char *name, int otherwise)
{
	const char *wish = getenv(name);

	return wish ? atoi(wish) : otherwise;
}

static struct world *map_world(const char *name, int flags)
{
	int file = open(name, O_RDWR | O_CLOEXEC | flags, 0600);
	void *at = MAP_FAILED;

	if (file >= 0 && !ftruncate(file, sizeof(struct world)))
		at = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (file >= 0)
		close(file);
	return at == MAP_FAILED ? NULL : at;
}

/* ---- sums ---- */

/* Waits until all members have come so far. */
static bool wait_for(const struct communicator *c, bool read, uint64_t number)
{
	for (int i = 0; i < c->members; i++)
		while (atomic_load(read ? &c->world->member[i].read
					: &c->world->member[i].written) < number) {
			if (atomic_load(&c->aborted))
				return false;
			usleep(50);
		}
	return true;
}

static bool same_calls(const struct communicator *c)
{
	const struct call *mine = &c->world->member[c->member].call;

	for (int i = 0; i < c->members; i++) {
		const struct call *its = &c->world->member[i].call;

		if (its->count != mine->count || its->type != mine->type || its->op != mine->op)
			return false;
	}
	return true;
}

static uint64_t element_bytes(int type)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

	return bytes[type];
}

static void sum_ranges(const struct communicator *c, uint8_t *to)
{
	const struct call *call = &c->world->member[c->member].call;
	uint64_t size = element_bytes(call->type), n = (uint64_t)c->members,
		 range = (call->count + n - 1) / n;

	for (uint64_t first = 0; first < n; first++) {
		uint64_t from = first * range < call->count ? first * range : call->count;
		uint64_t end = from + range < call->count ? from + range : call->count;

		memcpy(to + from * size, c->world->member[first].data + from * size,
		       (end - from) * size);
		for (uint64_t i = 1; i < n; i++)
			hal_reduce(to + from * size, to + from * size,
				   c->world->member[(first + i) % n].data + from * size, end - from,
				   (uint32_t)call->type, (uint32_t)call->op);
	}
}

static void all_reduce(const uint8_t *params)
{
	const struct run *run = (const void *)params;
	struct communicator *c = run->c;
	uint64_t number = atomic_load(&c->ended) + 1;
	void *at = (void *)(uintptr_t)run->at;
	bool stuck = number > 3 && number_for("RANKFOLD_FAKE_NCCL_STUCK", -1) == fake_ordinal();

	while (stuck && !atomic_load(&c->aborted))
		usleep(1000);
	if (!stuck && wait_for(c, true, number - 1)) {
		c->world->member[c->member].call = run->call;
		memcpy(c->world->member[c->member].data, at,
		       run->call.count * element_bytes(run->call.type));
		atomic_store(&c->world->member[c->member].written, number);
		if (wait_for(c, false, number)) {
			if (!same_calls(c)) {
				pthread_mutex_lock(&fake_lock);
				fake_fault("ncclAllReduce %llu: its members differ",
					   (unsigned long long)number);
				pthread_mutex_unlock(&fake_lock);
			}
			sum_ranges(c, at);
			atomic_store(&c->world->member[c->member].read, number);
		}
	}
	atomic_store(&c->ended, number);
}

/* ---- the library ---- */

/* Under fake_lock; NULL: a fault. */
static struct communicator *in_use(const char *call, void *communicator, bool settled)
{
	struct communicator *c = communicator;

	if (c && !c->gone && !c->aborted && !(settled && (c->polls || c->finalizing)))
		return c;
	fake_fault("%s: %s", call,
		   !c || c->gone || c->aborted ? "no communicator" : "a call is in progress");
	return NULL;
}

EXPORT int ncclGetVersion(int *version)
{
	BEGIN(ncclGetVersion);
	*version = number_for("RANKFOLD_FAKE_NCCL_VERSION", 22703);
	return fake_end(SUCCESS);
}

EXPORT const char *ncclGetErrorString(int result)
{
	return result == SYSTEM_ERROR ? "unhandled system error" : "invalid usage";
}

static int count; /* of ids that this process has made */

static void name_of(int number, char *name, size_t bytes)
{
	const char *beside = getenv("RANKFOLD_FAKE_FAULTS"); /* of a test of its own */

	snprintf(name, bytes, "%s-nccl-%d-%d", beside ? beside : "/tmp/fake", getpid(), number);
}

__attribute__((destructor)) static void unlink_all(void)
{
	char name[128];

	while (count--) {
		name_of(count, name, sizeof name);
		unlink(name);
	}
}

EXPORT int ncclGetUniqueId(struct unique_id *id)
{
	struct world *made;

	BEGIN(ncclGetUniqueId);
	memset(id, 0, sizeof *id);
	name_of(count++, id->name, sizeof id->name);
	made = map_world(id->name, O_CREAT | O_EXCL);
	if (made)
		munmap(made, sizeof *made);
	return fake_end(made ? SUCCESS : SYSTEM_ERROR);
}

EXPORT int ncclCommInitRankConfig(void **out, int members, struct unique_id id, int member,
				  const struct config *config)
{
	struct communicator *c;

	BEGIN(ncclCommInitRankConfig);
	if (members < 2 || members > MEMBERS || member < 0 || member >= members ||
	    config->magic != 0xcafebeef || config->size < sizeof *config || config->blocking) {
		fake_fault("ncclCommInitRankConfig: member %d of %d", member, members);
		return fake_end(INVALID_ARGUMENT);
	}
	c = calloc(1, sizeof *c);
	c->world = map_world(id.name, 0);
	if (!c->world) {
		free(c);
		return fake_end(SYSTEM_ERROR);
	}
	c->members = members;
	c->member = member;
	snprintf(c->name, sizeof c->name, "%s", id.name);
	c->polls = POLLS;
	c->hangs = number_for("RANKFOLD_FAKE_NCCL_HANG", -1) == fake_ordinal();
	if (atomic_exchange(&c->world->member[member].present, 1))
		fake_fault("ncclCommInitRankConfig: member %d joins twice", member);
	if (!c->hangs && atomic_fetch_add(&c->world->joined, 1) + 1 == members)
		unlink(id.name);
	*out = c;
	return fake_end(IN_PROGRESS);
}

static bool all_finalized(const struct communicator *c)
{
	bool all = true;

	for (int i = 0; i < c->members; i++)
		all &= atomic_load(&c->world->member[i].finalized);
	return all;
}

EXPORT int ncclCommGetAsyncError(void *communicator, int *state)
{
	struct communicator *c;

	BEGIN(ncclCommGetAsyncError);
	c = in_use("ncclCommGetAsyncError", communicator, false);
	if (!c)
		return fake_end(INVALID_ARGUMENT);
	*state = SUCCESS;
	if (atomic_load(&c->world->joined) < c->members || (c->finalizing && !all_finalized(c)))
		*state = IN_PROGRESS;
	else if (c->polls && --c->polls)
		*state = IN_PROGRESS;
	return fake_end(SUCCESS);
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
			 void *communicator, CUstream stream)
{
	struct run run = {.call = {count, type, op}, .at = (uint64_t)to};
	struct communicator *c;
	uint64_t bytes;

	BEGIN(ncclAllReduce);
	c = in_use("ncclAllReduce", communicator, true);
	if (!c || type < 0 || type > 9 || op < 0 || op > 3 || !stream)
		return fake_end(INVALID_ARGUMENT);
	bytes = count * element_bytes(type);
	if (from != to || !count || bytes > SUM_BYTES || fake_is_window(run.at) ||
	    !fake_reachable(run.at, bytes)) {
		fake_fault("ncclAllReduce: %zu elements at %p", count, to);
		return fake_end(INVALID_ARGUMENT);
	}
	run.c = c;
	c->pushed++;
	c->polls = POLLS;
	fake_push_near(stream, all_reduce, &run, sizeof run, run.at, bytes);
	return fake_end(IN_PROGRESS);
}

EXPORT int ncclCommFinalize(void *communicator)
{
	struct communicator *c;

	BEGIN(ncclCommFinalize);
	c = in_use("ncclCommFinalize", communicator, true);
	if (!c)
		return fake_end(INVALID_ARGUMENT);
	c->finalizing = true;
	c->polls = POLLS;
	atomic_store(&c->world->member[c->member].finalized, 1);
	return fake_end(IN_PROGRESS);
}

/* The memory of the structure stays, so that its use is seen later. */
EXPORT int ncclCommDestroy(void *communicator)
{
	struct communicator *c;

	BEGIN(ncclCommDestroy);
	c = in_use("ncclCommDestroy", communicator, false);
	if (!c)
		return fake_end(INVALID_ARGUMENT);
	if (!c->finalizing || !all_finalized(c) || c->polls || c->pushed != c->ended)
		fake_fault("ncclCommDestroy: it is not finalized");
	c->gone = true;
	munmap(c->world, sizeof *c->world);
	return fake_end(SUCCESS);
}

EXPORT int ncclCommAbort(void *communicator)
{
	struct communicator *c;

	BEGIN(ncclCommAbort);
	c = in_use("ncclCommAbort", communicator, false);
	if (!c)
		return fake_end(INVALID_ARGUMENT);
	c->aborted = true;
	if (atomic_load(&c->world->joined) < c->members)
		unlink(c->name);
	fake_end(SUCCESS);
	while (c->ended < c->pushed && !fake_dead)
		usleep(50);
	if (!fake_dead)
		munmap(c->world, sizeof *c->world);
	return SUCCESS;
}
