/* nccl.c: links (hal.h): communicators of NCCL, whose members are devices of several proxies.
 *
 * A call of NCCL may take long, or never end when another member is gone. So each link has a
 * thread of its own, which alone calls NCCL for it, and a stream of its own: no link waits for
 * another one. The communicator is non-blocking: while a call is in progress the thread polls its
 * state, and whether the link is to be closed. A link that is closed while sums are in progress is
 * aborted; otherwise NCCL finalizes it, which waits for a limited time until the other members
 * close theirs.
 *
 * Sums use only memory of the link, at addresses of the device's own (nvidia_near_space). NCCL
 * allocates more, in addition to the device's capacity: if there is none, connecting fails.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvidia_hal.h"

#define CONNECT_S "120"         /* unless RANKFOLD_NCCL_CONNECT says otherwise */
#define CLOSE_NS 10000000000ull /* for the other members to close theirs */
#define NAP_NS 20000
#define OLDEST 21400 /* NCCL 2.14, the first with non-blocking communicators */

enum { SUCCESS = 0, IN_PROGRESS = 7 };
typedef struct {
	char bytes[HAL_LINK_ID_BYTES];
} unique_id;    /* ncclUniqueId, which is passed by value */
struct config { /* ncclConfig_t as of `version`; later fields have their defaults */
	size_t size;
	unsigned magic, version;
	int blocking;
};

static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
static struct {
	int (*ncclGetVersion)(int *);
	int (*ncclGetUniqueId)(unique_id *);
	int (*ncclCommInitRankConfig)(void **, int, unique_id, int, struct config *);
	int (*ncclCommGetAsyncError)(void *, int *);
	int (*ncclCommFinalize)(void *);
	int (*ncclCommDestroy)(void *);
	int (*ncclCommAbort)(void *);
	int (*ncclAllReduce)(const void *, void *, size_t, int, int, void *, CUstream);
	const char *(*ncclGetErrorString)(int);
} nccl;

struct sum {
	uint64_t addr, count;
	int type, op;
};

struct hal_link {
	struct hal_device *device;
	struct hal_link *next; /* in the device's list; guarded by its link_lock */
	pthread_mutex_t lock;  /* guards what follows, up to the sums */
	pthread_cond_t wake;
	struct hal_link_facts facts;
	bool name, connect; /* requests */
	uint8_t id[HAL_LINK_ID_BYTES];
	int members, member;
	struct sum sums[HAL_LINK_SLOTS];
	uint64_t submitted;
	_Atomic bool stopping; /* cancelled, or closed at once */
	_Atomic bool closing;
	_Atomic enum hal_link_state state;
	_Atomic uint64_t done;     /* sums that have ended well */
	_Atomic uint64_t *counter; /* written by the device: sums that have ended */
	/* Used by its thread only: */
	void *communicator; /* NULL: none, or it was aborted */
	CUstream stream;
	uint64_t issued;
	CUmemGenericAllocationHandle handle; /* of its memory; 0: none */
	uint32_t place, slot;                /* of its memory, of its counter */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL); }

static void set_state(struct hal_link *l, enum hal_link_state state)
{
	atomic_store(&l->state, state);
	nvidia_ring(l->device);
}

static void fail(struct hal_link *l, const char *text)
{
	pthread_mutex_lock(&l->lock);
	snprintf(l->facts.text, sizeof l->facts.text, "%s", text);
	pthread_mutex_unlock(&l->lock);
	set_state(l, HAL_LINK_FAILED);
}

static void fail_call(struct hal_link *l, const char *call, int result)
{
	char text[HAL_LINK_TEXT_BYTES];

	snprintf(text, sizeof text, "%s on GPU %d: %s (%d)", call, l->device->ordinal,
		 result == IN_PROGRESS ? "it has not ended in time"
				       : nccl.ncclGetErrorString(result),
		 result);
	fail(l, text);
}

static bool is_lost(const struct hal_link *l) { return atomic_load(&l->device->lost); }

/* ---- the library ---- */

static bool find_functions(char *text, uint32_t text_bytes)
{
	void *library = nvidia_library("nccl", text, text_bytes);
	bool found = library;

#define FIND(function) found = found && (*(void **)&nccl.function = dlsym(library, #function))
	FIND(ncclGetVersion);
	FIND(ncclGetUniqueId);
	FIND(ncclCommInitRankConfig);
	FIND(ncclCommGetAsyncError);
	FIND(ncclCommFinalize);
	FIND(ncclCommDestroy);
	FIND(ncclCommAbort);
	FIND(ncclAllReduce);
	FIND(ncclGetErrorString);
#undef FIND
	if (library && !found)
		snprintf(text, text_bytes, "NVIDIA's libnccl.so.2 is older than 2.14");
	return found;
}

static bool begin(struct hal_link *l, char *text, uint32_t text_bytes)
{
	const char *wish = getenv("RANKFOLD_NCCL");
	int version = 0;
	CUuuid uuid;
	bool found;

	if (wish && strcmp(wish, "0") == 0) {
		snprintf(text, text_bytes, "RANKFOLD_NCCL=0");
		return false;
	}
	pthread_mutex_lock(&finding);
	found = find_functions(text, text_bytes);
	pthread_mutex_unlock(&finding);
	if (!found)
		return false;
	if (nvidia_bind(l->device) ||
	    l->device->driver->cuDeviceGetUuid_v2(&uuid, l->device->ordinal)) {
		snprintf(text, text_bytes, "GPU %d does not answer", l->device->ordinal);
		return false;
	}
	if (nccl.ncclGetVersion(&version) || version < OLDEST) {
		snprintf(text, text_bytes, "NCCL %d is older than 2.14", version);
		return false;
	}
	pthread_mutex_lock(&l->lock);
	l->facts.version = (uint64_t)version;
	memcpy(l->facts.gpu, uuid.bytes, sizeof l->facts.gpu);
	pthread_mutex_unlock(&l->lock);
	return true;
}

/* ---- memory ---- */

static CUdeviceptr link_memory(const struct hal_link *l)
{
	return l->device->links + l->place * CUDA_LINK_BYTES;
}

static CUresult map_memory(struct hal_link *l)
{
	const struct nvidia_driver *d = l->device->driver;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, l->device->ordinal}};
	CUresult error = d->cuMemCreate(&l->handle, CUDA_LINK_BYTES, &prop, 0);

	if (error) {
		l->handle = 0;
		return error;
	}
	error = d->cuMemMap(link_memory(l), CUDA_LINK_BYTES, 0, l->handle, 0);
	if (!error) {
		error = nvidia_set_access(l->device, link_memory(l), CUDA_LINK_BYTES, true);
		if (error)
			d->cuMemUnmap(link_memory(l), CUDA_LINK_BYTES);
	}
	if (error) {
		d->cuMemRelease(l->handle);
		l->handle = 0;
	}
	return error;
}

static bool make_memory(struct hal_link *l)
{
	struct hal_device *device = l->device;
	CUresult error = device->driver->cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING);
	char text[HAL_LINK_TEXT_BYTES];

	if (error)
		l->stream = NULL;
	else
		error = map_memory(l);
	if (!error)
		return true;
	snprintf(text, sizeof text, "GPU %d has no memory for sums of NCCL: %s (%d)",
		 device->ordinal, nvidia_error_name(device, error), error);
	fail(l, text);
	return false;
}

/* ---- calls ---- */

/* Returns how the communicator is: IN_PROGRESS, if a call is. Sums that have ended are reported
 * only if nothing has failed. */
static int look(struct hal_link *l)
{
	uint64_t done = atomic_load(l->counter);
	int result = SUCCESS, error = nccl.ncclCommGetAsyncError(l->communicator, &result);

	result = error ? error : result;
	if ((result && result != IN_PROGRESS) || done == atomic_load(&l->done))
		return result;
	atomic_store(&l->done, done);
	nvidia_ring(l->device);
	return result;
}

/* Returns the result of a call that may be in progress: IN_PROGRESS, if it has not ended by `until`
 * (0: never), or before this is to stop. */
static int settle(struct hal_link *l, int result, uint64_t until)
{
	while (result == IN_PROGRESS && !atomic_load(&l->stopping) && !is_lost(l) &&
	       (!until || now_ns() < until)) {
		nap();
		result = look(l);
	}
	return result;
}

static void make_name(struct hal_link *l)
{
	unique_id id;
	int result = nccl.ncclGetUniqueId(&id);

	if (result) {
		fail_call(l, "ncclGetUniqueId", result);
		return;
	}
	pthread_mutex_lock(&l->lock);
	memcpy(l->facts.id, id.bytes, sizeof l->facts.id);
	pthread_mutex_unlock(&l->lock);
	set_state(l, HAL_LINK_NAMED);
}

static void join(struct hal_link *l)
{
	struct config config = {sizeof config, 0xcafebeef, OLDEST, 0};
	const char *seconds = getenv("RANKFOLD_NCCL_CONNECT");
	uint64_t until = now_ns() + strtoull(seconds ? seconds : CONNECT_S, NULL, 10) * 1000000000u;
	unique_id id;
	int result;

	if (!make_memory(l))
		return;
	memcpy(id.bytes, l->id, sizeof id.bytes);
	result = nccl.ncclCommInitRankConfig(&l->communicator, l->members, id, l->member, &config);
	result = l->communicator ? settle(l, result, until) : result;
	if (result) {
		fail_call(l, "ncclCommInitRankConfig", result);
		return;
	}
	pthread_mutex_lock(&l->lock);
	l->facts.memory = link_memory(l);
	pthread_mutex_unlock(&l->lock);
	set_state(l, HAL_LINK_CONNECTED);
}

static void add(struct hal_link *l, const struct sum *s)
{
	void *at = (void *)(uintptr_t)s->addr;
	int result = nccl.ncclAllReduce(at, at, s->count, s->type, s->op, l->communicator,
					l->stream);

	result = settle(l, result, 0);
	if (result) {
		fail_call(l, "ncclAllReduce", result);
		return;
	}
	if (l->device->driver->cuStreamWriteValue64_v2(
		    l->stream, (CUdeviceptr)(uintptr_t)l->counter, ++l->issued, 0))
		fail(l, "a stream of NCCL has failed");
}

/* While sums are in progress: another member may have failed. */
static void watch(struct hal_link *l)
{
	uint64_t done = atomic_load(&l->done);
	int result = look(l);

	if (result && result != IN_PROGRESS)
		fail_call(l, "ncclAllReduce", result);
	else if (done == atomic_load(&l->done))
		nap();
}

/* ---- its thread ---- */

enum request { TO_CLOSE, TO_CANCEL, TO_NAME, TO_CONNECT, TO_SUM, TO_WATCH };

/* The next request, when there is one; TO_WATCH: sums are in progress. */
static enum request next_request(struct hal_link *l, struct sum *sum)
{
	enum request found = TO_WATCH;
	bool failed;

	pthread_mutex_lock(&l->lock);
	for (;;) {
		failed = atomic_load(&l->state) == HAL_LINK_FAILED;
		if (atomic_load(&l->closing))
			found = TO_CLOSE;
		else if (atomic_load(&l->stopping) && l->communicator)
			found = TO_CANCEL;
		else if (l->name && !failed)
			found = TO_NAME;
		else if (l->connect && !failed)
			found = TO_CONNECT;
		else if (l->issued < l->submitted && !failed)
			found = TO_SUM;
		else if (failed || atomic_load(&l->done) == l->issued) {
			pthread_cond_wait(&l->wake, &l->lock);
			continue;
		}
		break;
	}
	l->name &= found != TO_NAME;
	l->connect &= found != TO_CONNECT;
	if (found == TO_SUM)
		*sum = l->sums[l->issued % HAL_LINK_SLOTS];
	pthread_mutex_unlock(&l->lock);
	return found;
}

static void abort_communicator(struct hal_link *l)
{
	nccl.ncclCommAbort(l->communicator);
	l->communicator = NULL;
}

static void leave_communicator(struct hal_link *l)
{
	bool idle = atomic_load(&l->done) == l->issued &&
		    atomic_load(&l->state) == HAL_LINK_CONNECTED && !atomic_load(&l->stopping);

	if (idle && !settle(l, nccl.ncclCommFinalize(l->communicator), now_ns() + CLOSE_NS))
		nccl.ncclCommDestroy(l->communicator);
	else
		abort_communicator(l);
}

/* False: something still runs, so nothing can be released. */
static bool release(struct hal_link *l)
{
	const struct nvidia_driver *d = l->device->driver;
	uint64_t until = now_ns() + CLOSE_NS;

	if (is_lost(l))
		return false; /* the process ends soon */
	if (l->communicator)
		leave_communicator(l);
	while (l->stream && d->cuStreamQuery(l->stream) == CUDA_ERROR_NOT_READY) {
		if (now_ns() > until)
			return false;
		nap();
	}
	if (l->stream)
		d->cuStreamDestroy_v2(l->stream);
	if (l->handle) {
		d->cuMemUnmap(link_memory(l), CUDA_LINK_BYTES);
		d->cuMemRelease(l->handle);
	}
	return true;
}

static void forget(struct hal_link *l, bool released)
{
	struct hal_device *device = l->device;

	pthread_mutex_lock(&device->lock);
	if (released)
		device->free_slots[device->free_slot_count++] = l->slot;
	pthread_mutex_unlock(&device->lock);
	pthread_mutex_lock(&device->link_lock);
	if (released)
		device->link_places &= ~(1ull << l->place);
	for (struct hal_link **at = &device->all_links; *at; at = &(*at)->next)
		if (*at == l) {
			*at = l->next;
			break;
		}
	pthread_cond_broadcast(&device->link_left);
	pthread_mutex_unlock(&device->link_lock);
	pthread_cond_destroy(&l->wake);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static void *link_main(void *arg)
{
	struct hal_link *l = arg;
	char text[HAL_LINK_TEXT_BYTES] = "";
	enum request request;
	struct sum sum;

	if (begin(l, text, sizeof text))
		set_state(l, HAL_LINK_OPENED);
	else
		fail(l, text);
	while ((request = next_request(l, &sum)) != TO_CLOSE) {
		if (is_lost(l)) {
			fail(l, "the device is lost");
			continue;
		}
		switch (request) {
		case TO_CANCEL:
			abort_communicator(l);
			fail(l, "it was cancelled");
			break;
		case TO_NAME: make_name(l); break;
		case TO_CONNECT: join(l); break;
		case TO_SUM: add(l, &sum); break;
		default: watch(l);
		}
	}
	forget(l, release(l));
	return NULL;
}

/* ---- called by the loop's thread ---- */

static bool take_place(struct hal_device *device, struct hal_link *l)
{
	bool found;

	pthread_mutex_lock(&device->link_lock);
	found = device->links && ~device->link_places;
	if (found) {
		l->place = (uint32_t)__builtin_ctzll(~device->link_places);
		device->link_places |= 1ull << l->place;
		l->next = device->all_links;
		device->all_links = l;
	}
	pthread_mutex_unlock(&device->link_lock);
	return found;
}

int nvidia_link_open(struct hal_device *device, struct hal_link **out)
{
	struct hal_link *l = calloc(1, sizeof *l);
	pthread_t thread;

	if (!l || !device->free_slot_count || !take_place(device, l)) {
		free(l);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	l->device = device;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->wake, NULL);
	pthread_mutex_lock(&device->lock);
	l->slot = device->free_slots[--device->free_slot_count];
	pthread_mutex_unlock(&device->lock);
	l->counter = &device->counters[l->slot];
	atomic_store(l->counter, 0);
	if (pthread_create(&thread, NULL, link_main, l)) {
		forget(l, true);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_detach(thread);
	*out = l;
	return CUDA_SUCCESS;
}

enum hal_link_state nvidia_link_state(const struct hal_link *link, struct hal_link_facts *facts,
				      uint64_t *done)
{
	struct hal_link *l = (struct hal_link *)link; /* for its lock */

	if (facts) {
		pthread_mutex_lock(&l->lock);
		*facts = l->facts;
		pthread_mutex_unlock(&l->lock);
	}
	if (done)
		*done = atomic_load(&l->done);
	return atomic_load(&l->state);
}

void nvidia_link_name(struct hal_link *l)
{
	pthread_mutex_lock(&l->lock);
	l->name = true;
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

void nvidia_link_connect(struct hal_link *l, const uint8_t *id, uint32_t members, uint32_t member)
{
	pthread_mutex_lock(&l->lock);
	memcpy(l->id, id, sizeof l->id);
	l->members = (int)members;
	l->member = (int)member;
	l->connect = true;
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

void nvidia_link_sum(struct hal_link *l, uint64_t addr, uint64_t count, uint32_t dtype,
		     enum hal_reduction op)
{
	pthread_mutex_lock(&l->lock);
	l->sums[l->submitted++ % HAL_LINK_SLOTS] = (struct sum){addr, count, (int)dtype, (int)op};
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

void nvidia_link_cancel(struct hal_link *l)
{
	pthread_mutex_lock(&l->lock);
	atomic_store(&l->stopping, true);
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

void nvidia_link_close(struct hal_link *l, bool now)
{
	pthread_mutex_lock(&l->lock);
	if (now)
		atomic_store(&l->stopping, true);
	atomic_store(&l->closing, true);
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

bool nvidia_links_end(struct hal_device *device)
{
	struct timespec until;
	bool all;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(CLOSE_NS / 1000000000u);
	pthread_mutex_lock(&device->link_lock);
	for (struct hal_link *l = device->all_links; l; l = l->next)
		nvidia_link_close(l, true);
	while (device->all_links &&
	       !pthread_cond_timedwait(&device->link_left, &device->link_lock, &until))
		;
	all = !device->all_links;
	pthread_mutex_unlock(&device->link_lock);
	return all;
}
