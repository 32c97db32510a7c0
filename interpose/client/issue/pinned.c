/* pinned.c: host memory that the device reaches at the address that the program knows: pinned
 * memory, and managed memory, which is the same under another name.
 *
 * It is the arena part of the memfd, mapped at one address here and in the device's window, so
 * that it moves with the rank and nobody brings pages to and fro. What a program advises about
 * managed memory, and where it prefetches it to, is noted for each page, told back, and changes
 * nothing.
 *
 * Lock: pinned_lock around the arena. Blocking: freeing, which waits for the device.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bodies.h"

#define PAGE 4096ull

enum advice {
	READ_MOSTLY = 1,
	NOT_READ_MOSTLY,
	PREFER,
	PREFER_NOTHING,
	ACCESSED_BY,
	NOT_ACCESSED_BY,
};
enum location_type { NOWHERE, ON_DEVICE, ON_HOST, ON_HOST_NODE, ON_NEAREST_NODE };
#define CPU (-1) /* as cudaCpuDeviceId */
#define NO_DEVICE_ID (-2)

/* What the program has said of one page. */
struct notes {
	bool read_mostly, accessed_by_host;
	cudaMemLocation preferred, prefetched;
	uint64_t accessed_by; /* a bit per device */
};

/* The arena's blocks in order, without gaps. Pages; few and large. */
struct block {
	uint64_t offset, bytes, asked, owner;
	unsigned flags;
	struct notes *notes; /* of managed memory: one per page */
};
pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* asked 0: free */
static uint32_t block_count, block_room;

static uint8_t *arena(void)
{
	return channel_header ? (uint8_t *)RF_PINNED_BASE(channel_header->rank) : NULL;
}

static bool insert_block(uint32_t at, struct block b)
{
	if (block_count == block_room) {
		uint32_t room = block_room ? block_room * 2 : 16;
		struct block *more = realloc(blocks, room * sizeof *more);
		if (!more)
			return false;
		blocks = more;
		block_room = room;
	}
	memmove(blocks + at + 1, blocks + at, (block_count++ - at) * sizeof *blocks);
	blocks[at] = b;
	return true;
}

static void remove_block(uint32_t at)
{
	memmove(blocks + at, blocks + at + 1, (--block_count - at) * sizeof *blocks);
}

/* Under pinned_lock: first fit. */
static void *take_block(uint64_t asked, uint64_t owner, unsigned flags)
{
	uint64_t bytes = (asked + PAGE - 1) & ~(PAGE - 1);
	if (!block_count && !insert_block(0, (struct block){.bytes = RF_PINNED_SLOT_BYTES}))
		return NULL;
	for (uint32_t i = 0; i < block_count; i++) {
		if (blocks[i].asked || blocks[i].bytes < bytes)
			continue;
		struct block rest = {.offset = blocks[i].offset + bytes,
				     .bytes = blocks[i].bytes - bytes};
		if (rest.bytes && !insert_block(i + 1, rest))
			return NULL;
		blocks[i].bytes = bytes;
		blocks[i].asked = asked;
		blocks[i].owner = owner;
		blocks[i].flags = flags;
		return arena() + blocks[i].offset;
	}
	return NULL;
}

/* Under pinned_lock: the block that holds address, or block_count. */
static uint32_t find_block(const void *address)
{
	uint64_t offset = (uint64_t)((const uint8_t *)address - arena());
	uint32_t i = 0;
	while (i < block_count && offset - blocks[i].offset >= blocks[i].bytes)
		i++;
	return i < block_count && blocks[i].asked ? i : block_count;
}

int pinned_alloc(uint64_t bytes, uint64_t owner, unsigned flags, void **address)
{
	int error = channel_enter();
	if (error)
		return error;
	if (!bytes || bytes > RF_PINNED_SLOT_BYTES)
		return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
	pthread_mutex_lock(&pinned_lock);
	*address = take_block(bytes, owner, flags);
	pthread_mutex_unlock(&pinned_lock);
	return *address ? CUDA_OK : OUT_OF_MEMORY;
}

bool pinned_is(const void *address)
{
	return channel_header &&
	       (uint64_t)((const uint8_t *)address - arena()) < RF_PINNED_SLOT_BYTES;
}

bool pinned_find(const void *address, struct allocation *out)
{
	if (!pinned_is(address))
		return false;
	pthread_mutex_lock(&pinned_lock);
	uint32_t i = find_block(address);
	bool found = i < block_count;
	if (found)
		*out = (struct allocation){(uint64_t)arena() + blocks[i].offset, blocks[i].asked,
					   blocks[i].owner, blocks[i].flags};
	pthread_mutex_unlock(&pinned_lock);
	return found;
}

/* Under pinned_lock: a block that nobody uses joins its free neighbours. */
static void merge_block(uint32_t i)
{
	free(blocks[i].notes);
	blocks[i].notes = NULL;
	blocks[i].asked = 0;
	if (i + 1 < block_count && !blocks[i + 1].asked) {
		blocks[i].bytes += blocks[i + 1].bytes;
		remove_block(i + 1);
	}
	if (i > 0 && !blocks[i - 1].asked) {
		blocks[i - 1].bytes += blocks[i].bytes;
		remove_block(i);
	}
}

/* Under pinned_lock. */
static void drop_block(uint32_t i)
{
	int kept = errno;
	madvise(arena() + blocks[i].offset, blocks[i].bytes, MADV_REMOVE);
	errno = kept;
	merge_block(i);
}

/* What is queued must not read or write it any more. */
int pinned_release(void *address)
{
	int error = CUDA_OK;
	pthread_mutex_lock(&pinned_lock);
	uint32_t i = find_block(address);
	if (i < block_count && arena() + blocks[i].offset == (uint8_t *)address) {
		drop_block(i);
	} else {
		error = INVALID_VALUE;
	}
	pthread_mutex_unlock(&pinned_lock);
	return error;
}

/* What is queued must not use any of it any more. */
void pinned_end(uint64_t owner)
{
	pthread_mutex_lock(&pinned_lock);
	for (uint32_t i = 0; i < block_count;) {
		bool its = blocks[i].asked && blocks[i].owner == owner;
		if (its)
			drop_block(i);
		i = its ? 0 : i + 1; /* it has joined its neighbours */
	}
	pthread_mutex_unlock(&pinned_lock);
}

/* Work that is queued may still read or write it: as in CUDA, freeing waits for the device. */
static int wait_and_release(void *address)
{
	struct rf_record sync;
	channel_call(&sync, RF_OP_DEVICE_SYNC, sizeof sync, NULL, 0, NULL, 0);
	int error = pinned_release(address);
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

/* Under pinned_lock: the notes for a block's pages, or none and no block. */
static int add_notes(void *address)
{
	struct block *b = &blocks[find_block(address)];
	b->notes = calloc(b->bytes / PAGE, sizeof *b->notes);
	if (b->notes)
		return CUDA_OK;
	drop_block((uint32_t)(b - blocks));
	return OUT_OF_MEMORY;
}

int managed_place(uint64_t bytes, uint64_t owner, void **out)
{
	void *address;
	if (device_is_gpu())
		SAY_ONCE(
			"managed memory stays in host memory under rankfold: kernels reach it there, "
			"which is slow for what they use often; cudaMalloc and copies are not");
	int error = pinned_alloc(bytes, owner, PINNED_MANAGED, &address);
	if (error == OUT_OF_MEMORY)
		SAY_ONCE(
			"no room for %llu bytes of managed memory: a rank's managed and pinned memory "
			"have %llu GiB together under rankfold",
			(unsigned long long)bytes, RF_PINNED_SLOT_BYTES >> 30);
	if (error)
		return error;
	pthread_mutex_lock(&pinned_lock);
	error = add_notes(address);
	pthread_mutex_unlock(&pinned_lock);
	if (!error)
		*out = address;
	return error;
}

int managed_alloc(void **out, size_t bytes, unsigned flags)
{
	if (!out || !bytes || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST))
		return INVALID_VALUE;
	int error = channel_use_device();
	if (!error)
		error = capture_forbids();
	return error ? error : managed_place(bytes, context_owner(), out);
}

/* Under pinned_lock: the notes of all pages that a range of one managed allocation touches. */
static struct notes *notes_of(const void *address, uint64_t bytes, uint64_t *count)
{
	uint32_t i = pinned_is(address) && bytes ? find_block(address) : block_count;
	if (i >= block_count || !blocks[i].notes)
		return NULL;
	uint64_t at = (uint64_t)((const uint8_t *)address - arena()) - blocks[i].offset;
	if (bytes > blocks[i].bytes - at)
		return NULL;
	*count = (at + bytes + PAGE - 1) / PAGE - at / PAGE;
	return blocks[i].notes + at / PAGE;
}

/* A place that memory may be: the rank's own host, or a device. Ids of hosts mean nothing here. */
static int check_location(cudaMemLocation *l)
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

static void note(struct notes *n, enum advice advice, cudaMemLocation at)
{
	uint64_t bit = at.type == ON_DEVICE ? 1ull << at.id : 0;
	switch (advice) {
	case READ_MOSTLY: n->read_mostly = true; break;
	case NOT_READ_MOSTLY: n->read_mostly = false; break;
	case PREFER: n->preferred = at; break;
	case PREFER_NOTHING: n->preferred = (cudaMemLocation){0}; break;
	case ACCESSED_BY:
	case NOT_ACCESSED_BY:
		n->accessed_by = advice == ACCESSED_BY ? n->accessed_by | bit
						       : n->accessed_by & ~bit;
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
		error = check_location(&location);
	if (error)
		return error;
	pthread_mutex_lock(&pinned_lock);
	struct notes *notes = notes_of(address, bytes, &count);
	for (uint64_t i = 0; notes && i < count; i++)
		note(&notes[i], (enum advice)advice, location);
	pthread_mutex_unlock(&pinned_lock);
	return notes ? CUDA_OK : INVALID_VALUE;
}

int managed_prefetch(const void *address, size_t bytes, cudaMemLocation location, unsigned flags,
		     const void *stream)
{
	uint64_t number, count;
	int error = channel_enter();
	if (!error)
		error = flags ? INVALID_VALUE : check_location(&location);
	if (!error)
		error = stream_number(stream, &number);
	if (!error && capturing(number))
		error = capture_refuse(number);
	if (error)
		return error;
	pthread_mutex_lock(&pinned_lock);
	struct notes *notes = notes_of(address, bytes, &count);
	for (uint64_t i = 0; notes && i < count; i++)
		notes[i].prefetched = location;
	pthread_mutex_unlock(&pinned_lock);
	return notes ? CUDA_OK : INVALID_VALUE;
}

/* The program promises where it uses the memory. Here it may use it anywhere. */
int managed_attach(const void *stream, const void *address, size_t bytes, unsigned flags)
{
	struct allocation a;
	uint64_t number;
	int error = channel_enter();
	if (!error)
		error = stream_number(stream, &number);
	if (!error && capturing(number))
		error = capture_refuse(number);
	if (error)
		return error;
	bool known = flags == ATTACH_GLOBAL || flags == ATTACH_HOST ||
		     (flags == ATTACH_SINGLE && number != RF_STREAM_LEGACY);
	if (!known || !managed_is(address) || !pinned_find(address, &a) ||
	    a.base != (uint64_t)address || (bytes && bytes != a.bytes))
		return INVALID_VALUE;
	return CUDA_OK;
}

/* ---- what was said of a range ---- */

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

/* The place that all pages have in common, or nowhere. */
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

static void put_accessed(int *to, size_t room, const struct notes *n, uint64_t count)
{
	uint64_t devices = UINT64_MAX;
	bool host = true;
	size_t used = 0;
	for (uint64_t i = 0; i < count; i++) {
		devices &= n[i].accessed_by;
		host &= n[i].accessed_by_host;
	}
	for (int device = 0; device < DEVICES_MAX; device++)
		if (devices >> device & 1 && used < room)
			to[used++] = device;
	if (host && used < room)
		to[used++] = CPU;
	while (used < room)
		to[used++] = NO_DEVICE_ID;
}

static void put_attribute(int *to, size_t room, enum range_attribute which, const struct notes *n,
			  uint64_t count)
{
	bool preferred = which == PREFERRED || which == PREFERRED_TYPE || which == PREFERRED_ID;
	cudaMemLocation place = common_place(n, count, preferred);
	switch (which) {
	case IS_READ_MOSTLY:
		*to = 1;
		for (uint64_t i = 0; i < count; i++)
			*to &= n[i].read_mostly;
		break;
	case ACCESSED: put_accessed(to, room, n, count); break;
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
	pthread_mutex_lock(&pinned_lock);
	const struct notes *notes = notes_of(address, count, &pages);
	if (notes)
		put_attribute(data, bytes / sizeof(int), (enum range_attribute)which, notes, pages);
	pthread_mutex_unlock(&pinned_lock);
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
