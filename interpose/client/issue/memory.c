/* memory.c: device memory, and the classification of addresses.
 *
 * The client assigns device addresses (heap.c) and announces them to the server.
 *
 * Lock: HEAP_LOCK around the heap and the records that announce its changes, so that the order of
 * frees is the order of their numbers. No thread waits under it: what the device waits for may need
 * it. Blocking, without the lock: malloc when memory is short (until frees are retired) and at the
 * first allocation (grant); malloc and free when the ring is full.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "call_site.h"
#include "heap.h"
#include "issue.h"

static struct heap heap;
static bool heap_ready;

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- device memory ---- */

/* Waits until the server has retired the free with this number. A device synchronisation is
 * answered when all earlier work is done; retirement follows at once. (Not by wait_for_device: it
 * does not count as a synchronisation of the program.) */
static void wait_retired(uint64_t seq)
{
	struct rf_record sync;
	struct timespec nap = {0, 50000};
	if (atomic_load_explicit(&channel_header->retired_free, memory_order_acquire) < seq)
		channel_finish(channel_begin(&sync, RF_OP_DEVICE_SYNC, sizeof sync, NULL, 0), NULL,
			       0);
	int saved_errno = errno;
	while (atomic_load_explicit(&channel_header->retired_free, memory_order_acquire) < seq)
		nanosleep(&nap, NULL);
	errno = saved_errno;
}

/* Under HEAP_LOCK: the free that must be retired before the next ALLOC; 0: none. `after` is the
 * free for the place itself; in addition the server must not hold more than the device has. */
static uint64_t free_to_await(uint64_t after)
{
	heap_retire(&heap, atomic_load(&channel_header->retired_free));
	if (heap.retired_seq < after)
		return after;
	return heap.held_chunks > heap.capacity_chunks && heap.retired < heap.freed_count
		       ? heap.freed[heap.retired].seq
		       : 0;
}

static int request_grant(uint64_t want)
{
	struct rf_grant m = {.want_bytes = want};
	return channel_call(&m.r, RF_OP_GRANT, sizeof m, NULL, 0, NULL, 0);
}

/* Under HEAP_LOCK. */
static int open_heap(void)
{
	const struct rf_welcome *welcome;
	if (heap_ready)
		return CUDA_OK;
	int error = channel_welcome(&welcome);
	if (!error)
		error = heap_init(&heap, welcome->device.memory_bytes) ? CUDA_OK : OUT_OF_MEMORY;
	heap_ready = !error;
	return error;
}

/* Under HEAP_LOCK, except while it waits: announces what heap_alloc has placed. No other thread
 * knows the address yet. */
static int announce_allocation(const struct heap_request *request, const struct heap_placed *placed,
			       uint32_t flags)
{
	struct rf_alloc m = {.addr = placed->addr,
			     .bytes = request->bytes,
			     .call_site = request->site,
			     .stable = placed->stable,
			     .flags = flags};
	int error = CUDA_OK;
	while (!error) {
		uint64_t seq = free_to_await(placed->after),
			 want = heap.held_chunks * RF_CHUNK_BYTES;
		bool granted = want <= atomic_load(&channel_header->grant_bytes);
		if (!seq && granted && channel_try_post(&m.r, RF_OP_ALLOC, sizeof m))
			return CUDA_OK;
		unlock(HEAP_LOCK);
		if (seq)
			wait_retired(seq);
		else if (!granted)
			error = request_grant(want);
		else
			channel_wait_space(sizeof m);
		lock(HEAP_LOCK);
	}
	if (flags & RF_ALLOC_JOINED)
		heap_unmap(&heap, placed->addr, 0);
	else
		heap_free(&heap, placed->addr, 0, false);
	return error;
}

static int allocate_memory(uint64_t owner, const struct heap_request *request, uint64_t *address)
{
	int error = context_use_device();
	if (error)
		return error;
	struct heap_placed placed;
	lock(HEAP_LOCK);
	error = open_heap();
	if (!error) {
		(void)free_to_await(0); /* what is retired by now is free */
		error = heap_alloc(&heap, request, &placed)
				? announce_allocation(request, &placed, 0)
				: OUT_OF_MEMORY;
	}
	if (!error && owner)
		heap_own(&heap, placed.addr, owner);
	unlock(HEAP_LOCK);
	if (!error)
		*address = placed.addr;
	return error;
}

int allocation_new(enum memory_use use, uint64_t which, uint64_t bytes, uint64_t *address)
{
	struct heap_request request = {bytes, use ^ which << 8, use};
	return allocate_memory(0, &request, address);
}

int memory_alloc_for(uint64_t owner, uint64_t bytes, uint64_t *address)
{
	struct call_site from = call_site();
	struct heap_request request = {bytes, from.site, from.path};
	return allocate_memory(owner, &request, address);
}

/* By the program, by its owner's end; memory that was mapped, and of that, what stays promised. */
enum free_kind { FREE_OF_PROGRAM, FREE_OF_OWNER, FREE_MAPPED, FREE_KEPT };

/* Frees an allocation: at its place in the stream, or for `stream` 0 after all earlier work.
 *
 * Only the latter returns a sticky error. PyTorch, whose allocator frees in a stream
 * (rankfold/settings.py), does so in destructors: an error there ends the process, and the program
 * could not handle the exception that another call has given it for the fault. */
static int free_memory(const void *address, uint64_t stream, enum free_kind kind)
{
	int error = channel_open();
	if (error)
		return error;
	struct rf_free_async m = {.addr = (uint64_t)address, .stream = stream};
	enum rf_opcode opcode = stream ? RF_OP_FREE_ASYNC : RF_OP_FREE;
	size_t size = stream ? sizeof m : sizeof(struct rf_free);
	uint64_t owner = 0, bytes = 0;
	bool freed = false;
	lock(HEAP_LOCK);
	while (!freed && !error) {
		const struct heap_extent *e = heap_find(&heap, m.addr);
		uint64_t seq = 0;
		if (!e || e->addr != m.addr || (e->reservation != 0) != (kind >= FREE_MAPPED))
			error = INVALID_VALUE;
		else
			seq = channel_try_post(&m.r, opcode, size);
		if (seq) {
			owner = e->owner;
			bytes = e->bytes;
			if (kind == FREE_KEPT)
				heap_unmap(&heap, m.addr, seq);
			else
				heap_free(&heap, m.addr, seq, kind == FREE_OF_PROGRAM);
			freed = true;
		} else if (!error) {
			unlock(HEAP_LOCK);
			channel_wait_space(size);
			lock(HEAP_LOCK);
		}
	}
	unlock(HEAP_LOCK);
	if (owner)
		pool_got_back(owner, bytes);
	int sticky = channel_enter();
	return sticky && !(stream && freed) ? sticky : error;
}

int allocation_free(const void *address) { return free_memory(address, 0, FREE_OF_PROGRAM); }

int memory_unmap(uint64_t addr, bool keep)
{
	return free_memory((void *)addr, 0, keep ? FREE_KEPT : FREE_MAPPED);
}

int memory_free_in(const void *address, uint64_t stream)
{
	return free_memory(address, stream, FREE_OF_PROGRAM);
}

/* ---- reserved addresses, and memory that is mapped there (virtual_memory.c) ---- */

int addresses_reserve(uint64_t bytes, uint64_t *addr)
{
	struct call_site from = call_site();
	struct heap_request request = {bytes, from.site, from.path};
	int error = context_use_device();
	if (error)
		return error;
	lock(HEAP_LOCK);
	error = open_heap();
	if (!error && !heap_reserve(&heap, &request, addr))
		error = OUT_OF_MEMORY;
	unlock(HEAP_LOCK);
	return error;
}

bool addresses_free(uint64_t addr)
{
	lock(HEAP_LOCK);
	bool done = heap_unreserve(&heap, addr);
	unlock(HEAP_LOCK);
	return done;
}

bool addresses_find(uint64_t addr, uint64_t *first, uint64_t *bytes)
{
	lock(HEAP_LOCK);
	bool found = heap_reservation(&heap, addr, first, bytes);
	unlock(HEAP_LOCK);
	return found;
}

int memory_promise(uint64_t bytes)
{
	lock(HEAP_LOCK);
	int error = open_heap();
	if (!error && !heap_promise(&heap, bytes / RF_CHUNK_BYTES))
		error = OUT_OF_MEMORY;
	unlock(HEAP_LOCK);
	return error;
}

void memory_unpromise(uint64_t bytes)
{
	lock(HEAP_LOCK);
	heap_unpromise(&heap, bytes / RF_CHUNK_BYTES);
	unlock(HEAP_LOCK);
}

int memory_map(uint64_t addr, uint64_t bytes)
{
	struct heap_request request = {bytes, 0, 0};
	struct heap_placed placed;
	int error = context_use_device();
	if (error)
		return error;
	lock(HEAP_LOCK);
	(void)free_to_await(0); /* what is retired by now is free */
	error = heap_map(&heap, addr, bytes, &placed)
			? announce_allocation(&request, &placed, RF_ALLOC_JOINED)
			: INVALID_VALUE;
	unlock(HEAP_LOCK);
	return error;
}

/* Returns the addresses of the owner's allocations, to be freed. False: out of host memory. */
static bool memory_of(uint64_t owner, uint64_t **out, uint32_t *count)
{
	*count = 0;
	lock(HEAP_LOCK);
	*out = malloc((heap.count + 1) * sizeof **out);
	for (uint32_t i = 0; *out && i < heap.count; i++)
		if (heap.extents[i].state == HEAP_LIVE && heap.extents[i].owner == owner)
			(*out)[(*count)++] = heap.extents[i].addr;
	unlock(HEAP_LOCK);
	return *out;
}

int memory_info(uint64_t *free_bytes, uint64_t *total_bytes)
{
	const struct rf_welcome *welcome;
	int error = channel_welcome(&welcome);
	if (error)
		return error;
	*total_bytes = welcome->device.memory_bytes;
	lock(HEAP_LOCK);
	uint64_t chunks = heap.live_chunks + heap.promised_chunks;
	*free_bytes = *total_bytes - min(*total_bytes, chunks * RF_CHUNK_BYTES);
	unlock(HEAP_LOCK);
	*free_bytes -= pool_reserved(*free_bytes);
	return CUDA_OK;
}

/* The caller ensures that no queued work still uses any of the memory. */
int memory_end(uint64_t owner)
{
	uint64_t *addresses;
	uint32_t count;
	if (!memory_of(owner, &addresses, &count))
		return OUT_OF_MEMORY;
	for (uint32_t i = 0; i < count; i++)
		free_memory((void *)addresses[i], 0, FREE_OF_OWNER);
	free(addresses);
	pinned_end(owner);
	pinned_announce();
	return CUDA_OK;
}

/* ---- classification of addresses ---- */

bool allocation_find(const void *address, struct allocation *out)
{
	if (memory_where(address) != AT_DEVICE)
		return pinned_find(address, out);
	lock(HEAP_LOCK);
	const struct heap_extent *e = heap_find(&heap, (uint64_t)address);
	if (e)
		*out = (struct allocation){e->addr, e->requested, e->owner, 0, e->reservation != 0};
	unlock(HEAP_LOCK);
	return e;
}

static bool in_allocation(const void *address, uint64_t bytes, uint64_t granule)
{
	struct allocation a;
	if (!allocation_find(address, &a))
		return false;
	uint64_t offset = (uint64_t)address - a.base, rest;
	uint64_t whole = (a.bytes + granule - 1) / granule * granule;
	if (offset > whole)
		return false;
	for (rest = whole - offset; bytes > rest; rest = a.bytes) {
		bytes -= rest;
		if (!a.mapped || !allocation_find((void *)(a.base + a.bytes), &a) || !a.mapped)
			return false; /* only mapped memory continues in another allocation */
	}
	return true;
}

bool memory_on_device(const void *address, uint64_t bytes)
{
	return in_allocation(address, bytes, 1);
}

bool memory_reachable(const void *address, uint64_t bytes)
{
	return in_allocation(address, bytes, RF_ALLOC_ALIGN);
}
