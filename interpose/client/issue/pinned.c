/* pinned.c: the pinned arena's memory as programs see it: pinned memory, which they free, and
 * managed memory, which is the same with another API.
 *
 * The program's advice about managed memory, and its prefetches, are stored for each page and
 * returned, and have no effect.
 *
 * Lock: PINNED_LOCK around the notes. Blocking: freeing, which waits for the device.
 */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "plural.h"

enum advice {
	READ_MOSTLY = 1,
	NOT_READ_MOSTLY,
	PREFER,
	PREFER_NOTHING,
	ACCESSED_BY,
	NOT_ACCESSED_BY,
};
enum location_type { NOWHERE, ON_DEVICE, ON_HOST, ON_HOST_NODE, ON_NEAREST_NODE };
#define CPU (-1) /* cudaCpuDeviceId */
#define NO_DEVICE_ID (-2)

/* The program's advice for one page. */
struct notes {
	bool read_mostly, accessed_by_host;
	cudaMemLocation preferred, prefetched;
	uint64_t accessed_by[DEVICES_MAX / 64]; /* one bit per device */
};

/* Queued work may still read or write the memory: as in CUDA, freeing waits for the device. */
static int wait_and_release(void *address)
{
	wait_for_device();
	int error = pinned_release(address);
	pinned_announce();
	int sticky = channel_enter();
	return sticky ? sticky : error;
}

static int free_as(void *address, bool managed)
{
	struct allocation a;
	int error = channel_open();
	if (error)
		return error;
	if (!pinned_find(address, &a) || a.base != (uint64_t)address ||
	    managed != !!(a.flags & PINNED_MANAGED))
		return INVALID_VALUE;
	return wait_and_release(address);
}

int pinned_free(void *address) { return free_as(address, false); }

/* ---- managed memory ---- */

bool managed_is(const void *address)
{
	struct allocation a;
	return pinned_find(address, &a) && a.flags & PINNED_MANAGED;
}

int managed_free(void *address) { return free_as(address, true); }

/* Under PINNED_LOCK: allocates the notes for a block's pages; if it cannot, frees the block. */
static int add_notes(void *address)
{
	struct block *b = arena_block(address);
	b->notes = calloc(b->bytes / PAGE, sizeof *b->notes);
	if (b->notes)
		return CUDA_OK;
	arena_drop(b);
	return OUT_OF_MEMORY;
}

int managed_place(uint64_t bytes, uint64_t owner, void **out)
{
	void *address;
	if (device_is_gpu())
		LOG_ONCE("managed memory stays in host memory under rankfold: kernels reach it "
			 "there, which is slow for what they use often; cudaMalloc and copies are "
			 "not");
	int error = pinned_alloc(bytes, owner, PINNED_MANAGED, &address);
	if (error == OUT_OF_MEMORY)
		LOG_ONCE("no space for %llu byte%s of managed memory: a rank has %llu GiB for "
			 "managed and pinned memory under rankfold",
			 (unsigned long long)bytes, plural(bytes), RF_PINNED_SLOT_BYTES >> 30);
	if (error)
		return error;
	lock(PINNED_LOCK);
	error = add_notes(address);
	unlock(PINNED_LOCK);
	if (error)
		return error;
	pinned_announce();
	*out = address;
	return CUDA_OK;
}

/* Under PINNED_LOCK: the notes of all pages that a range of one managed allocation touches. */
static struct notes *notes_of(const void *address, uint64_t bytes, uint64_t *count)
{
	const struct block *b = bytes ? arena_block(address) : NULL;
	if (!b || !b->notes)
		return NULL;
	uint64_t at = (uint64_t)((const uint8_t *)address - arena_start()) - b->offset;
	if (bytes > b->bytes - at)
		return NULL;
	*count = (at + bytes + PAGE - 1) / PAGE - at / PAGE;
	return b->notes + at / PAGE;
}

int managed_location(cudaMemLocation *l)
{
	if (l->type == ON_DEVICE) {
		int error = device_check(l->id);
		return !error && l->id >= DEVICES_MAX ? INVALID_DEVICE : error;
	}
	if (l->type < ON_HOST || l->type > ON_NEAREST_NODE)
		return INVALID_VALUE;
	*l = (cudaMemLocation){ON_HOST, 0};
	return CUDA_OK;
}

cudaMemLocation location_of_device(int device)
{
	return device == CPU ? (cudaMemLocation){ON_HOST, 0} : (cudaMemLocation){ON_DEVICE, device};
}

static void note_advice(struct notes *n, enum advice advice, cudaMemLocation at)
{
	bool device = at.type == ON_DEVICE;
	uint64_t *of = &n->accessed_by[device ? at.id / 64 : 0];
	uint64_t bit = device ? 1ull << at.id % 64 : 0;
	switch (advice) {
	case READ_MOSTLY: n->read_mostly = true; break;
	case NOT_READ_MOSTLY: n->read_mostly = false; break;
	case PREFER: n->preferred = at; break;
	case PREFER_NOTHING: n->preferred = (cudaMemLocation){0}; break;
	case ACCESSED_BY:
	case NOT_ACCESSED_BY:
		*of = advice == ACCESSED_BY ? *of | bit : *of & ~bit;
		n->accessed_by_host = bit ? n->accessed_by_host : advice == ACCESSED_BY;
	}
}

int managed_advise(const void *address, size_t bytes, int advice, cudaMemLocation location)
{
	bool anywhere = advice != PREFER && advice != ACCESSED_BY && advice != NOT_ACCESSED_BY;
	uint64_t count;
	int error = channel_enter();
	if (!error && (advice < READ_MOSTLY || advice > NOT_ACCESSED_BY))
		error = INVALID_VALUE;
	if (!error && !anywhere)
		error = managed_location(&location);
	if (error)
		return error;
	lock(PINNED_LOCK);
	struct notes *notes = notes_of(address, bytes, &count);
	for (uint64_t i = 0; notes && i < count; i++)
		note_advice(&notes[i], (enum advice)advice, location);
	unlock(PINNED_LOCK);
	return notes ? CUDA_OK : INVALID_VALUE;
}

int managed_prefetched(const void *address, size_t bytes, cudaMemLocation location)
{
	uint64_t count;
	lock(PINNED_LOCK);
	struct notes *notes = notes_of(address, bytes, &count);
	for (uint64_t i = 0; notes && i < count; i++)
		notes[i].prefetched = location;
	unlock(PINNED_LOCK);
	return notes ? CUDA_OK : INVALID_VALUE;
}

/* ---- the advice for a range ---- */

/* Numbers of cudaMemRangeAttribute. */
enum range_attribute {
	IS_READ_MOSTLY = 1,
	PREFERRED,
	ACCESSED,
	PREFETCHED,
	PREFERRED_TYPE,
	PREFERRED_ID,
	PREFETCHED_TYPE,
	PREFETCHED_ID,
	RANGE_ATTRIBUTES,
};

/* The place that all pages have in common; type NOWHERE if they differ. */
static cudaMemLocation common_place(const struct notes *n, uint64_t count, bool preferred)
{
	cudaMemLocation first = preferred ? n->preferred : n->prefetched;
	for (uint64_t i = 1; i < count; i++) {
		const cudaMemLocation *l = preferred ? &n[i].preferred : &n[i].prefetched;
		if (l->type != first.type || l->id != first.id)
			return (cudaMemLocation){0};
	}
	return first;
}

static void put_accessed(int *to, size_t capacity, const struct notes *n, uint64_t count)
{
	uint64_t devices[DEVICES_MAX / 64];
	bool host = true;
	size_t used = 0;
	memset(devices, 0xff, sizeof devices);
	for (uint64_t i = 0; i < count; i++) {
		for (int word = 0; word < DEVICES_MAX / 64; word++)
			devices[word] &= n[i].accessed_by[word];
		host &= n[i].accessed_by_host;
	}
	for (int device = 0; device < DEVICES_MAX; device++)
		if (devices[device / 64] >> device % 64 & 1 && used < capacity)
			to[used++] = device;
	if (host && used < capacity)
		to[used++] = CPU;
	while (used < capacity)
		to[used++] = NO_DEVICE_ID;
}

static void put_attribute(int *to, size_t capacity, enum range_attribute which,
			  const struct notes *n, uint64_t count)
{
	bool preferred = which == PREFERRED || which == PREFERRED_TYPE || which == PREFERRED_ID;
	cudaMemLocation place = common_place(n, count, preferred);
	switch (which) {
	case IS_READ_MOSTLY:
		*to = 1;
		for (uint64_t i = 0; i < count; i++)
			*to &= n[i].read_mostly;
		break;
	case ACCESSED: put_accessed(to, capacity, n, count); break;
	case PREFERRED:
	case PREFETCHED:
		*to = place.type == ON_DEVICE ? place.id
		      : place.type == ON_HOST ? CPU
					      : NO_DEVICE_ID;
		break;
	case PREFERRED_TYPE:
	case PREFETCHED_TYPE: *to = place.type; break;
	default: *to = place.id;
	}
}

int managed_attribute(void *data, size_t bytes, int which, const void *address, size_t count)
{
	uint64_t pages;
	int error = channel_enter();
	if (error)
		return error;
	if (!data || which < IS_READ_MOSTLY || which >= RANGE_ATTRIBUTES || !bytes ||
	    (which == ACCESSED ? bytes % sizeof(int) : bytes != sizeof(int)))
		return INVALID_VALUE;
	lock(PINNED_LOCK);
	const struct notes *notes = notes_of(address, count, &pages);
	if (notes)
		put_attribute(data, bytes / sizeof(int), (enum range_attribute)which, notes, pages);
	unlock(PINNED_LOCK);
	return notes ? CUDA_OK : INVALID_VALUE;
}

int managed_attributes(void **data, const size_t *bytes, const int *which, size_t attributes,
		       const void *address, size_t count)
{
	int error = data && bytes && which && attributes ? CUDA_OK : INVALID_VALUE;
	for (size_t i = 0; !error && i < attributes; i++)
		error = managed_attribute(data[i], bytes[i], which[i], address, count);
	return error;
}
