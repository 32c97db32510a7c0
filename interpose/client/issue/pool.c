/* pool.c: memory pools, the source of stream-ordered allocations.
 *
 * A pool counts memory and holds none: its allocations are in the one heap, and freed memory
 * returns to the heap as soon as the device is done with it. The memory that a pool would retain
 * (`reserved` beyond `used`) is counted as CUDA documents it: released at synchronisations beyond
 * the threshold, by trimming, and before an allocation fails; cudaMemGetInfo does not report it as
 * free. So all numbers depend on the program's calls alone, and unused memory takes nothing of a
 * device.
 *
 * Lock: POOL_LOCK around all pools. Nothing here blocks by itself.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "issue.h"

/* Numbers of cudaMemPoolAttr, equal to CUmemPool_attribute's. */
enum attribute {
	REUSE_FIRST = 1,
	REUSE_LAST = 3,
	RELEASE_THRESHOLD = 4,
	RESERVED_CURRENT = 5,
	RESERVED_HIGH = 6,
	USED_CURRENT = 7,
	USED_HIGH = 8,
};
enum { ALLOCATION_PINNED = 1, AT_A_DEVICE = 1, PROTECTION_NONE = 0, PROTECTION_READ_WRITE = 3 };

struct pool {
	uint64_t number; /* its handle */
	int device;
	bool destroyed;        /* but some of its allocations are not freed yet */
	int reuse[REUSE_LAST]; /* settings without effect */
	uint64_t most, threshold;
	uint64_t used, used_high, reserved, reserved_high;
	uint64_t seen; /* synchronisations at the last settle_pool() */
	struct pool *next;
};

static struct pool *pools;
static uint64_t default_pool[DEVICES_MAX], current_pool[DEVICES_MAX]; /* numbers, 0: none yet */
static _Atomic uint64_t synchronisations;

void pool_synchronised(void)
{
	atomic_fetch_add_explicit(&synchronisations, 1, memory_order_relaxed);
}

/* ---- under POOL_LOCK ---- */

static uint64_t whole_chunks(uint64_t bytes)
{
	return bytes > UINT64_MAX - RF_CHUNK_BYTES
		       ? bytes
		       : (bytes + RF_CHUNK_BYTES - 1) & ~(RF_CHUNK_BYTES - 1);
}

/* Releases what is reserved and not used, down to `keep`. */
static void release_unused(struct pool *p, uint64_t keep)
{
	uint64_t least = whole_chunks(p->used > keep ? p->used : keep);
	if (p->reserved > least)
		p->reserved = least;
}

/* Applies the releases of synchronisations since the last call. */
static void settle_pool(struct pool *p)
{
	uint64_t now = atomic_load_explicit(&synchronisations, memory_order_relaxed);
	if (p->seen != now)
		release_unused(p, p->threshold);
	p->seen = now;
}

static struct pool *find_pool(uint64_t number)
{
	struct pool *p = pools;
	while (p && p->number != number)
		p = p->next;
	if (p)
		settle_pool(p);
	return p;
}

/* The live pool of a handle, or NULL. */
static struct pool *pool_of(const void *handle)
{
	struct pool *p = find_pool((uint64_t)handle);
	return p && !p->destroyed ? p : NULL;
}

static struct pool *add_pool(int device, uint64_t most)
{
	struct pool *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct pool){.number = handle_number(),
			   .device = device,
			   .most = most,
			   .reuse = {1, 1, 1},
			   .next = pools};
	return pools = p;
}

static void drop_if_empty(struct pool *unused)
{
	struct pool **at = &pools;
	if (!unused->destroyed || unused->used)
		return;
	while (*at && *at != unused)
		at = &(*at)->next;
	INVARIANT(*at, "a pool that goes is listed");
	*at = unused->next;
	free(unused);
}

/* A device's default pool, created when it is first needed. */
static uint64_t default_of(int device)
{
	if (!default_pool[device]) {
		struct pool *p = add_pool(device, 0);
		default_pool[device] = p ? p->number : 0;
	}
	return default_pool[device];
}

static uint64_t current_of(int device)
{
	return current_pool[device] ? current_pool[device] : default_of(device);
}

/* ---- allocations ---- */

/* Counted before it is allocated, so that two threads together do not exceed the pool. */
int pool_book(const void *pool, uint64_t bytes, uint64_t *number)
{
	int error = CUDA_OK;
	lock(POOL_LOCK);
	struct pool *p = pool ? pool_of(pool) : find_pool(current_of(current_device));
	if (!p)
		error = pool ? INVALID_VALUE : OUT_OF_MEMORY;
	else if (p->device != current_device)
		error = NOT_SUPPORTED;
	else if (p->most && (bytes > p->most || p->used > p->most - bytes))
		error = OUT_OF_MEMORY;
	if (!error) {
		p->used += bytes;
		*number = p->number;
	}
	unlock(POOL_LOCK);
	if (error == NOT_SUPPORTED)
		LOG_ONCE("an allocation from a pool of another device: a rank has one device under "
			 "rankfold");
	return error;
}

/* The allocation succeeded: updates the reserved bytes and the maxima. */
void pool_took(uint64_t number)
{
	lock(POOL_LOCK);
	struct pool *p = find_pool(number);
	if (p && p->used > p->reserved)
		p->reserved = whole_chunks(p->used);
	if (p && p->used > p->used_high)
		p->used_high = p->used;
	if (p && p->reserved > p->reserved_high)
		p->reserved_high = p->reserved;
	unlock(POOL_LOCK);
}

void pool_got_back(uint64_t number, uint64_t bytes)
{
	lock(POOL_LOCK);
	struct pool *p = find_pool(number);
	if (p) {
		INVARIANT(p->used >= bytes, "a pool counts the bytes that come from it");
		p->used -= bytes;
		drop_if_empty(p);
	}
	unlock(POOL_LOCK);
}

uint64_t pool_reserved(uint64_t capacity)
{
	uint64_t total = 0;
	lock(POOL_LOCK);
	for (struct pool *p = pools; p; p = p->next) {
		settle_pool(p);
		uint64_t used = whole_chunks(p->used);
		if (used > p->reserved)
			continue; /* another thread is allocating from it (pool_took) */
		uint64_t excess = p->reserved - used;
		if (excess > capacity - total) /* other allocations use it */
			p->reserved -= excess - (capacity - total);
		total += p->reserved - used;
	}
	unlock(POOL_LOCK);
	return total;
}

/* ---- pools ---- */

static int location_check(const cudaMemLocation *location, int type)
{
	if (!location)
		return INVALID_VALUE;
	if (location->type != AT_A_DEVICE || type != ALLOCATION_PINNED) {
		LOG_ONCE("memory pools of host or managed memory are not supported by rankfold; "
			 "cudaHostAlloc and pools of device memory are");
		return NOT_SUPPORTED;
	}
	return device_check(location->id);
}

int pool_create(void **out, const cudaMemPoolProps *props)
{
	int error = out && props ? location_check(&props->location, props->allocType)
				 : INVALID_VALUE;
	if (!error && props->handleTypes) {
		LOG_ONCE(
			"memory pools that other processes can open are not supported by rankfold: "
			"use NCCL between ranks");
		error = NOT_SUPPORTED;
	}
	if (error)
		return error;
	lock(POOL_LOCK);
	struct pool *p = add_pool(props->location.id, props->maxSize);
	if (p)
		*out = (void *)p->number;
	unlock(POOL_LOCK);
	return p ? CUDA_OK : OUT_OF_MEMORY;
}

int pool_destroy(const void *pool)
{
	lock(POOL_LOCK);
	struct pool *p = pool_of(pool);
	bool ours = p && p->number == default_pool[p->device];
	if (p && !ours) {
		if (current_pool[p->device] == p->number)
			current_pool[p->device] = 0;
		p->destroyed = true;
		release_unused(p, 0);
		drop_if_empty(p);
	}
	unlock(POOL_LOCK);
	return p && !ours ? CUDA_OK : INVALID_VALUE;
}

static int pool_get_of(void **pool, int device, uint64_t (*which)(int device))
{
	int error = pool && device < DEVICES_MAX ? device_check(device) : INVALID_VALUE;
	if (error)
		return error;
	lock(POOL_LOCK);
	uint64_t number = which(device);
	unlock(POOL_LOCK);
	*pool = (void *)number;
	return number ? CUDA_OK : OUT_OF_MEMORY;
}

int pool_default(void **pool, int device) { return pool_get_of(pool, device, default_of); }

int pool_current(void **pool, int device) { return pool_get_of(pool, device, current_of); }

int pool_make_current(int device, const void *pool)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_VALUE;
	if (error)
		return error;
	lock(POOL_LOCK);
	struct pool *p = pool_of(pool);
	if (!p || p->device != device)
		error = INVALID_VALUE;
	else
		current_pool[device] = p->number;
	unlock(POOL_LOCK);
	return error;
}

int pool_default_at(void **pool, const cudaMemLocation *location, int type)
{
	int error = location_check(location, type);
	return error ? error : pool_default(pool, location->id);
}

int pool_current_at(void **pool, const cudaMemLocation *location, int type)
{
	int error = location_check(location, type);
	return error ? error : pool_current(pool, location->id);
}

int pool_make_current_at(const cudaMemLocation *location, int type, const void *pool)
{
	int error = location_check(location, type);
	return error ? error : pool_make_current(location->id, pool);
}

/* ---- attributes ---- */

/* Under POOL_LOCK. */
static int pool_write_attribute(struct pool *p, int attribute, const void *value)
{
	uint64_t number;
	if (attribute >= REUSE_FIRST && attribute <= REUSE_LAST) {
		memcpy(&p->reuse[attribute - REUSE_FIRST], value, sizeof *p->reuse);
		return CUDA_OK;
	}
	memcpy(&number, value, sizeof number);
	if (attribute == RELEASE_THRESHOLD)
		p->threshold = number;
	else if (attribute == RESERVED_HIGH && !number)
		p->reserved_high = p->reserved;
	else if (attribute == USED_HIGH && !number)
		p->used_high = p->used;
	else
		return INVALID_VALUE;
	return CUDA_OK;
}

int pool_set(const void *pool, int attribute, const void *value)
{
	if (!value || attribute < REUSE_FIRST || attribute > USED_HIGH)
		return INVALID_VALUE;
	lock(POOL_LOCK);
	struct pool *p = pool_of(pool);
	int error = p ? pool_write_attribute(p, attribute, value) : INVALID_VALUE;
	unlock(POOL_LOCK);
	return error;
}

/* Under POOL_LOCK. */
static void pool_read_attribute(const struct pool *p, int attribute, void *value)
{
	const uint64_t numbers[] = {
		[RELEASE_THRESHOLD] = p->threshold, [RESERVED_CURRENT] = p->reserved,
		[RESERVED_HIGH] = p->reserved_high, [USED_CURRENT] = p->used,
		[USED_HIGH] = p->used_high,
	};
	if (attribute <= REUSE_LAST)
		memcpy(value, &p->reuse[attribute - REUSE_FIRST], sizeof *p->reuse);
	else
		memcpy(value, &numbers[attribute], sizeof *numbers);
}

int pool_get(const void *pool, int attribute, void *value)
{
	if (!value || attribute < REUSE_FIRST || attribute > USED_HIGH)
		return INVALID_VALUE;
	lock(POOL_LOCK);
	const struct pool *p = pool_of(pool);
	if (p)
		pool_read_attribute(p, attribute, value);
	unlock(POOL_LOCK);
	return p ? CUDA_OK : INVALID_VALUE;
}

int pool_trim(const void *pool, size_t keep)
{
	lock(POOL_LOCK);
	struct pool *p = pool_of(pool);
	if (p)
		release_unused(p, keep);
	unlock(POOL_LOCK);
	return p ? CUDA_OK : INVALID_VALUE;
}

/* ---- access to a pool: only by its own device, which always has it ---- */

static int device_of(const void *pool, int *device)
{
	lock(POOL_LOCK);
	const struct pool *p = pool_of(pool);
	if (p)
		*device = p->device;
	unlock(POOL_LOCK);
	return p ? CUDA_OK : INVALID_VALUE;
}

int pool_set_access(const void *pool, const cudaMemAccessDesc *list, size_t count)
{
	int device, error = list || !count ? device_of(pool, &device) : INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		bool own = list[i].location.id == device;
		if (list[i].location.type != AT_A_DEVICE)
			error = INVALID_VALUE;
		else if (!(error = device_check(list[i].location.id)) && own)
			error = list[i].flags == PROTECTION_READ_WRITE ? CUDA_OK : INVALID_VALUE;
		else if (!error && list[i].flags != PROTECTION_NONE)
			error = PEER_ACCESS_UNSUPPORTED;
	}
	return error;
}

int pool_get_access(int *flags, const void *pool, const cudaMemLocation *location)
{
	int device, error = flags && location ? device_of(pool, &device) : INVALID_VALUE;
	if (!error && location->type != AT_A_DEVICE)
		error = INVALID_VALUE;
	if (!error)
		error = device_check(location->id);
	if (!error)
		*flags = location->id == device ? PROTECTION_READ_WRITE : PROTECTION_NONE;
	return error;
}
