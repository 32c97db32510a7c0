/* space.c: the mappings of each rank, and the window that shows one rank's memory to kernels
 * (nvidia_hal.h).
 *
 * The loop's thread writes a space's table, entry by entry, and the device thread reads it; an
 * entry changes only while no submitted work uses it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "nvidia_hal.h"
#include "spin.h"

int nvidia_space_create(struct hal_device *device, struct hal_space **out)
{
	struct hal_space *space;

	if (atomic_load(&device->lost))
		return device->lost;
	space = calloc(1, sizeof *space);
	if (!space)
		return CUDA_ERROR_OUT_OF_MEMORY;
	space->device = device;
	space->serial = device->next_serial++;
	space->chunks = calloc(CUDA_HEAP_CHUNKS, sizeof *space->chunks);
	space->settled = calloc(CUDA_REGIONS, sizeof *space->settled);
	if (!space->chunks || !space->settled) {
		free(space->settled);
		free((void *)space->chunks);
		free(space);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = space;
	return CUDA_SUCCESS;
}

/* The window may still show its chunks: no kernel runs before that is changed. The device thread
 * may still read the space, and frees it. */
void nvidia_space_destroy(struct hal_space *space)
{
	if (space->pins_used) {
		nvidia_pins_close(space);
		return;
	}
	for (uint32_t i = 0; i < space->host_count; i++)
		munmap(space->hosts[i].memory, space->hosts[i].bytes);
	space->host_count = 0;
	nvidia_space_dead(space);
}

/* The chunk's index in the heap, or CUDA_HEAP_CHUNKS. */
static uint64_t place_of(uint64_t addr)
{
	uint64_t offset = addr - RF_DEV_BASE;

	return addr < RF_DEV_BASE || offset % RF_CHUNK_BYTES || offset >= RF_HEAP_BYTES
		       ? CUDA_HEAP_CHUNKS
		       : offset / RF_CHUNK_BYTES;
}

static uint32_t entry_of(uint32_t chunk, bool writable)
{
	return (chunk + 1) | (writable ? 0 : CUDA_READ_ONLY);
}

static uint32_t chunk_of(uint32_t entry) { return (entry & ~CUDA_READ_ONLY) - 1; }

static void set_entry(struct hal_space *space, uint64_t place, uint32_t entry)
{
	uint32_t before = space->chunks[place];

	space->chunks[place] = entry;
	space->settled[place / CUDA_BLOCK_CHUNKS] = 0;
	space->read_only += (entry & CUDA_READ_ONLY) / CUDA_READ_ONLY;
	space->read_only -= (before & CUDA_READ_ONLY) / CUDA_READ_ONLY;
}

int nvidia_space_map(struct hal_space *space, uint64_t addr, uint32_t chunk, bool writable)
{
	uint64_t place = place_of(addr);

	if (place == CUDA_HEAP_CHUNKS || chunk >= space->device->chunk_count ||
	    space->chunks[place])
		return CUDA_ERROR_INVALID_VALUE;
	set_entry(space, place, entry_of(chunk, writable));
	if (place >= space->top)
		space->top = (uint32_t)place + 1;
	atomic_fetch_add(&space->version, 1);
	return CUDA_SUCCESS;
}

int nvidia_space_unmap(struct hal_space *space, uint64_t addr)
{
	uint64_t place = place_of(addr);

	if (place == CUDA_HEAP_CHUNKS || !space->chunks[place])
		return CUDA_ERROR_INVALID_VALUE;
	set_entry(space, place, 0);
	atomic_fetch_add(&space->version, 1);
	return CUDA_SUCCESS;
}

int nvidia_space_protect(struct hal_space *space, uint64_t addr, uint32_t chunks, bool writable)
{
	uint64_t place = place_of(addr);

	if (!chunks || chunks > CUDA_HEAP_CHUNKS - place)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t i = place; i < place + chunks; i++)
		if (!space->chunks[i])
			return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t i = place; i < place + chunks; i++)
		set_entry(space, i, entry_of(chunk_of(space->chunks[i]), writable));
	atomic_fetch_add(&space->version, 1);
	return CUDA_SUCCESS;
}

/* A kernel that writes to read-only memory ends, so no copy is ever made. */
bool nvidia_space_copied(struct hal_space *space, uint64_t *addr, uint32_t *chunk)
{
	(void)space;
	(void)addr;
	(void)chunk;
	return false;
}

int nvidia_space_map_host(struct hal_space *space, uint64_t addr, int fd, uint64_t offset,
			  uint64_t bytes)
{
	void *memory;

	if (addr < RF_DEV_BASE + RF_HEAP_BYTES || (addr | offset | bytes) % 4096 || !bytes ||
	    addr - RF_DEV_BASE >= RF_WINDOW_BYTES || space->host_count == CUDA_HOSTS_MAX ||
	    bytes > RF_DEV_BASE + RF_WINDOW_BYTES - addr)
		return CUDA_ERROR_INVALID_VALUE;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
		      (off_t)offset);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	space->hosts[space->host_count] = (struct nvidia_host_range){addr, bytes, memory};
	atomic_fetch_add(&space->host_count, 1);
	atomic_fetch_add(&space->version, 1);
	return CUDA_SUCCESS;
}

void nvidia_space_settle(struct hal_ref *ref, uint64_t bytes)
{
	const struct hal_space *space = ref->space;

	for (uint32_t i = 0; space && i < space->host_count; i++) {
		uint64_t offset = ref->addr - space->hosts[i].addr,
			 available = space->hosts[i].bytes;

		if (ref->addr < space->hosts[i].addr || offset > available ||
		    bytes > available - offset)
			continue;
		if (i || !atomic_load(&space->placed)) /* otherwise it has its own address */
			ref->addr = (uintptr_t)(space->hosts[i].memory + offset);
		ref->space = NULL;
		return;
	}
}

uint64_t nvidia_space_resolve(const struct hal_space *space, uint64_t addr, bool write,
			      CUdeviceptr *at)
{
	uint64_t offset = addr - RF_DEV_BASE;
	uint32_t entry;

	if (addr < RF_DEV_BASE || offset >= RF_HEAP_BYTES)
		return 0;
	entry = space->chunks[offset / RF_CHUNK_BYTES];
	if (!entry || (write && entry & CUDA_READ_ONLY))
		return 0;
	*at = nvidia_chunk_at(space->device, chunk_of(entry)) + offset % RF_CHUNK_BYTES;
	return RF_CHUNK_BYTES - offset % RF_CHUNK_BYTES;
}

bool nvidia_space_has(const struct hal_space *space, uint64_t addr)
{
	struct hal_ref ref = {(struct hal_space *)(uintptr_t)space, addr};
	CUdeviceptr at;

	if (nvidia_space_resolve(space, addr, false, &at))
		return true;
	nvidia_space_settle(&ref, 1);
	return !ref.space;
}

void nvidia_space_stray(struct hal_space *space, const char *what, uint64_t addr)
{
	CUdeviceptr at;

	if (nvidia_space_resolve(space, addr, false, &at))
		nvidia_space_fail(space, CUDA_ERROR_ILLEGAL_ADDRESS,
				  "%s: a write to device address 0x%llx, where memory is read-only",
				  what, (unsigned long long)addr);
	else
		nvidia_space_fail(space, CUDA_ERROR_ILLEGAL_ADDRESS,
				  "%s: an address that is not mapped", what);
}

/* ---- the window ---- */

bool nvidia_window_shows(const struct hal_device *device, const struct hal_space *space)
{
	return device->window_serial == space->serial &&
	       device->window_version == atomic_load(&space->version);
}

#define CLOSED UINT32_MAX /* window entry: a chunk is mapped there, without usable access */

static CUresult open_run(struct hal_device *device, uint32_t from, uint32_t to)
{
	CUresult error = nvidia_set_access(device, RF_DEV_BASE + from * RF_CHUNK_BYTES,
					   (to - from) * RF_CHUNK_BYTES,
					   !(device->window[from] & CUDA_READ_ONLY));

	for (uint32_t i = from; error && i < to; i++)
		device->window[i] = CLOSED;
	return error;
}

/* Access is set in one call for contiguous entries with equal access: [run, i). */
static CUresult map_missing(struct hal_device *device, const struct hal_space *space)
{
	uint32_t top = space->top, run = 0, i;
	CUresult error = CUDA_SUCCESS, last;

	for (i = 0; !error && i < top; i++) {
		uint32_t wanted = space->chunks[i];
		bool changes = wanted && device->window[i] != wanted;

		if (run < i && (!changes || (wanted ^ device->window[run]) & CUDA_READ_ONLY)) {
			error = open_run(device, run, i);
			run = i;
		}
		if (!changes) {
			run = i + 1;
			continue;
		}
		if (!error && !device->window[i])
			error = device->driver->cuMemMap(RF_DEV_BASE + i * RF_CHUNK_BYTES,
							 RF_CHUNK_BYTES, 0,
							 device->chunks[chunk_of(wanted)], 0);
		if (error)
			break;
		device->window[i] = wanted;
	}
	if (top > device->window_top)
		device->window_top = top;
	last = run < i ? open_run(device, run, i) : CUDA_SUCCESS;
	return error ? error : last;
}

/* Under host_lock. Duplicates the mapping of the rank's memory at the window's address: mremap with
 * size 0 copies it. A placed arena stays. */
static CUresult swap_hosts(struct hal_device *device, const struct hal_space *space)
{
	for (; device->shown_count; device->shown_count--) {
		const struct nvidia_host_range *r = &device->shown[device->shown_count - 1];
		uint64_t slot = (r->addr - CUDA_PINNED_BASE) / RF_PINNED_SLOT_BYTES;

		if (atomic_load(&device->slot_owner[slot]))
			continue;
		if (mmap((void *)(uintptr_t)r->addr, r->bytes, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
			 0) == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (uint32_t i = space->placed; i < space->host_count; i++) {
		const struct nvidia_host_range *r = &space->hosts[i];

		if (mremap(r->memory, 0, r->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
			   (void *)(uintptr_t)r->addr) == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
		device->shown[device->shown_count++] = *r;
	}
	return CUDA_SUCCESS;
}

static CUresult show_hosts(struct hal_device *device, const struct hal_space *space)
{
	CUresult error;

	pthread_mutex_lock(&device->host_lock);
	error = swap_hosts(device, space);
	pthread_mutex_unlock(&device->host_lock);
	return error;
}

/* ---- regions of the window, and blocks ---- */

static uint32_t regions_below(uint32_t top)
{
	return (top + CUDA_BLOCK_CHUNKS - 1) / CUDA_BLOCK_CHUNKS;
}

/* Whether all chunks of a region are there and writable, and their numbers. */
static bool region_full(const struct hal_space *space, uint32_t region, uint32_t *chunks)
{
	for (uint32_t i = 0; i < CUDA_BLOCK_CHUNKS; i++) {
		uint32_t entry = space->chunks[region * CUDA_BLOCK_CHUNKS + i];

		if (!entry || entry & CUDA_READ_ONLY)
			return false;
		chunks[i] = chunk_of(entry);
	}
	return true;
}

/* The block + 1 that the region of this space is; 0: it has chunks, or nothing. */
static uint32_t block_there(const struct hal_device *device, const struct hal_space *space,
			    uint32_t region)
{
	uint32_t chunks[CUDA_BLOCK_CHUNKS], block;

	if (!device->block_count || !region_full(space, region, chunks))
		return 0;
	block = device->block_of[chunks[0]];
	return block && !memcmp(device->blocks[block - 1].chunks, chunks, sizeof chunks) ? block
											 : 0;
}

/* A block that has a chunk of this region, but is not it, + 1. */
static uint32_t block_to_divide(const struct hal_device *device, const struct hal_space *space,
				uint32_t region)
{
	uint32_t there = block_there(device, space, region);

	for (uint32_t i = 0; device->block_count && i < CUDA_BLOCK_CHUNKS; i++) {
		uint32_t entry = space->chunks[region * CUDA_BLOCK_CHUNKS + i];

		if (entry && device->block_of[chunk_of(entry)] != there)
			return device->block_of[chunk_of(entry)];
	}
	return 0;
}

static bool region_to_join(const struct hal_device *device, const struct hal_space *space,
			   uint32_t region, uint32_t *chunks)
{
	return space->settled[region] >= CUDA_SETTLED && !device->blocks_refused &&
	       region_full(space, region, chunks) && !device->block_of[chunks[0]];
}

bool nvidia_window_moves(const struct hal_device *device, const struct hal_space *space)
{
	uint32_t chunks[CUDA_BLOCK_CHUNKS];

	for (uint32_t i = 0; i < regions_below(space->top); i++)
		if (block_to_divide(device, space, i) || region_to_join(device, space, i, chunks))
			return true;
	return false;
}

static CUresult hide_chunk(struct hal_device *device, uint32_t place)
{
	CUresult error = device->driver->cuMemUnmap(RF_DEV_BASE + place * RF_CHUNK_BYTES,
						    RF_CHUNK_BYTES);

	if (!error)
		device->window[place] = 0;
	return error;
}

static CUresult hide_region(struct hal_device *device, uint32_t region)
{
	CUresult error = CUDA_SUCCESS;
	uint32_t first = region * CUDA_BLOCK_CHUNKS;

	if (device->window_blocks[region]) {
		error = device->driver->cuMemUnmap(RF_DEV_BASE + region * CUDA_BLOCK_BYTES,
						   CUDA_BLOCK_BYTES);
		if (!error) {
			device->window_blocks[region] = 0;
			memset(device->window + first, 0,
			       CUDA_BLOCK_CHUNKS * sizeof *device->window);
		}
		return error;
	}
	for (uint32_t i = first; !error && i < first + CUDA_BLOCK_CHUNKS; i++)
		if (device->window[i])
			error = hide_chunk(device, i);
	return error;
}

static CUresult divide(struct hal_device *device, uint32_t block)
{
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < regions_below(device->window_top); i++)
		if (device->window_blocks[i] == block)
			error = hide_region(device, i);
	return error ? error : nvidia_block_divide(device, block - 1);
}

static CUresult hide_chunks(struct hal_device *device, const uint32_t *chunks)
{
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < device->window_top; i++) {
		bool one = false;

		for (uint32_t n = 0; device->window[i] && n < CUDA_BLOCK_CHUNKS; n++)
			one |= device->window[i] == CLOSED ||
			       chunk_of(device->window[i]) == chunks[n];
		if (one)
			error = hide_region(device, i / CUDA_BLOCK_CHUNKS);
	}
	return error;
}

/* Moves content as nvidia_window_moves says. */
static CUresult move_content(struct hal_device *device, struct hal_space *space)
{
	uint32_t chunks[CUDA_BLOCK_CHUNKS], block;
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < regions_below(space->top); i++) {
		while (!error && (block = block_to_divide(device, space, i)))
			error = divide(device, block);
		if (error || !region_to_join(device, space, i, chunks))
			continue;
		error = hide_chunks(device, chunks);
		if (!error)
			nvidia_block_make(device, chunks);
		if (!error && atomic_load(&device->lost))
			error = (CUresult)device->lost;
	}
	return error;
}

/* Unmaps the regions that will show other chunks, or the same ones as a block or not as one. */
static CUresult hide_others(struct hal_device *device, const struct hal_space *space)
{
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < device->window_top; i++) {
		uint32_t region = i / CUDA_BLOCK_CHUNKS, there;

		if (i % CUDA_BLOCK_CHUNKS == 0 &&
		    (device->window_blocks[region] || device->block_count)) {
			there = block_there(device, space, region);
			if (there != device->window_blocks[region])
				error = hide_region(device, region);
		}
		if (error || !device->window[i] || device->window_blocks[region] ||
		    !((device->window[i] ^ space->chunks[i]) & ~CUDA_READ_ONLY))
			continue;
		error = hide_chunk(device, i);
	}
	return error;
}

static CUresult show_block(struct hal_device *device, const struct hal_space *space,
			   uint32_t region, uint32_t block)
{
	CUdeviceptr at = RF_DEV_BASE + region * CUDA_BLOCK_BYTES;
	uint32_t first = region * CUDA_BLOCK_CHUNKS, end = first + CUDA_BLOCK_CHUNKS;
	CUresult error = device->driver->cuMemMap(at, CUDA_BLOCK_BYTES, 0,
						  device->blocks[block - 1].handle, 0);

	if (error)
		return error;
	error = nvidia_set_access(device, at, CUDA_BLOCK_BYTES, true);
	if (error) {
		device->driver->cuMemUnmap(at, CUDA_BLOCK_BYTES);
		return error;
	}
	device->window_blocks[region] = block;
	for (uint32_t i = first; i < end; i++)
		device->window[i] = space->chunks[i];
	if (end > device->window_top)
		device->window_top = end;
	return CUDA_SUCCESS;
}

static CUresult show_blocks(struct hal_device *device, const struct hal_space *space)
{
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && device->block_count && i < regions_below(space->top); i++) {
		uint32_t block = block_there(device, space, i);

		if (block && !device->window_blocks[i])
			error = show_block(device, space, i, block);
	}
	return error;
}

static void count_shown(struct hal_space *space)
{
	uint32_t chunks[CUDA_BLOCK_CHUNKS];

	for (uint32_t i = 0; i < regions_below(space->top); i++)
		if (space->settled[i] < CUDA_SETTLED && region_full(space, i, chunks))
			space->settled[i]++;
}

static bool only_grows(const struct hal_device *device, const struct hal_space *space)
{
	uint32_t top = device->window_top > space->top ? device->window_top : space->top;

	for (uint32_t i = 0; i < top; i++) {
		uint32_t entry = space->chunks[i];

		if (device->window[i] != entry &&
		    (device->window[i] || device->block_of[chunk_of(entry)]))
			return false;
	}
	return true;
}

bool nvidia_window_grow(struct hal_device *device, struct hal_space *space, CUresult *error)
{
	uint64_t version = atomic_load(&space->version);

	if (device->window_serial != space->serial || !only_grows(device, space))
		return false;
	*error = map_missing(device, space);
	if (*error)
		device->window_serial = 0;
	else
		device->window_version = version;
	return true;
}

CUresult nvidia_window_show(struct hal_device *device, struct hal_space *space)
{
	uint64_t version = atomic_load(&space->version);
	bool same = device->window_space == space && device->window_serial == space->serial;
	CUresult error;

	device->window_serial = 0; /* invalid, in case this fails midway */
	error = move_content(device, space);
	if (!error)
		error = hide_others(device, space);
	if (!error)
		error = show_blocks(device, space);
	if (!error)
		error = map_missing(device, space);
	if (!error && !same)
		count_shown(space);
	if (!error)
		error = show_hosts(device, space);
	if (error)
		return error;
	device->window_space = space;
	device->window_serial = space->serial;
	device->window_version = version;
	return CUDA_SUCCESS;
}

/* ---- errors ---- */

int nvidia_space_error(struct hal_space *space, char *text, uint32_t text_bytes)
{
	struct hal_device *device = space->device;
	int error = atomic_load(&space->error), lost = atomic_load(&device->lost);
	const char *line = "";

	if (error) {
		line = space->text;
	} else if (lost) {
		bool mine = atomic_load(&device->lost_serial) == space->serial;

		error = mine ? lost : CUDA_ERROR_CONTEXT_IS_DESTROYED;
		line = device->lost_text;
	}
	if (text && text_bytes)
		snprintf(text, text_bytes, "%s", line);
	return error;
}

void nvidia_space_fail(struct hal_space *space, int error, const char *format, ...)
{
	va_list arguments;
	uint32_t checks = 0;

	if (atomic_exchange(&space->failed, true)) { /* the first error remains */
		while (!atomic_load(&space->error))  /* no work may seem successful meanwhile */
			spin_moment(&checks, "a space's error is set within a minute");
		return;
	}
	va_start(arguments, format);
	vsnprintf(space->text, sizeof space->text, format, arguments);
	va_end(arguments);
	atomic_store(&space->error, error);
	nvidia_ring(space->device);
}

/* A GPU cannot end a single kernel. Work that has not begun is skipped; running work may run for
 * CUDA_CANCEL_NS, and then the device counts as lost (thread.c). */
void nvidia_space_cancel(struct hal_space *space)
{
	struct timespec t;
	uint64_t none = 0;

	clock_gettime(CLOCK_MONOTONIC, &t);
	atomic_compare_exchange_strong(&space->cancelled_ns, &none,
				       (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
	nvidia_space_fail(space, CUDA_ERROR_LAUNCH_FAILED, "the rank's work was cancelled");
}
