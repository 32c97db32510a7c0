/* space.c: physical chunks, and the address spaces that they are mapped into.
 *
 * Called from the proxy's loop thread, except for calls by unforeseen.c. Nothing here waits for
 * work: the caller ensures that no submitted work uses a chunk or mapping that is removed. Workers
 * also take chunks from the free list.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft.h"
#include "spin.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; glibc names it since 2.37 */
#endif

/* ---- chunks ---- */

int soft_memory_open(struct hal_device *device)
{
	uint64_t bytes = device->config.memory_bytes;
	uint32_t numbers = (uint32_t)HAL_CHUNK_NUMBERS(bytes);

	if (bytes == 0 || bytes % RF_CHUNK_BYTES != 0 || bytes > RF_HEAP_BYTES)
		return SOFT_INVALID_VALUE;
	device->chunk_count = (uint32_t)(bytes / RF_CHUNK_BYTES);
	device->numbers = numbers;
	device->chunks = calloc(numbers, sizeof *device->chunks);
	device->memfd = memfd_create("rankfold-device", MFD_CLOEXEC);
	if (!device->chunks || device->memfd < 0 ||
	    ftruncate(device->memfd, (off_t)(numbers * RF_CHUNK_BYTES)) != 0)
		return SOFT_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < numbers - 1; i++)
		atomic_store(&device->chunks[i].next, i + 2);
	atomic_store(&device->free, 1);
	return 0;
}

void soft_memory_close(struct hal_device *device)
{
	if (device->memfd >= 0)
		close(device->memfd);
	free(device->chunks);
}

bool soft_chunk_take(struct hal_device *device, uint32_t *chunk, bool *unclean)
{
	uint64_t first = atomic_load(&device->free), next;

	do {
		if (!(uint32_t)first)
			return false;
		*chunk = (uint32_t)first - 1;
		next = ((first >> 32) + 1) << 32 | atomic_load(&device->chunks[*chunk].next);
	} while (!atomic_compare_exchange_weak(&device->free, &first, next));
	*unclean = device->chunks[*chunk].unclean;
	device->chunks[*chunk].unclean = false;
	if (*unclean)
		atomic_fetch_sub(&device->unclean, 1);
	return true;
}

/* Punches a hole, which frees the pages and makes the next owner read zeros. */
static void zero_chunk(const struct hal_device *device, uint32_t chunk)
{
	device->chunks[chunk].huge = false;
	if (fallocate(device->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)chunk * (off_t)RF_CHUNK_BYTES, RF_CHUNK_BYTES) != 0)
		abort(); /* a chunk with old content must never be handed out as zeros */
}

static int create_chunk(struct hal_device *device, uint32_t *chunk, bool *unclean)
{
	uint64_t chunks_in_use = atomic_load(&device->chunks_in_use);

	if ((uint32_t)chunks_in_use >= device->chunk_count)
		return chunks_in_use >= SOFT_UNREPORTED ? SOFT_NOT_READY : SOFT_OUT_OF_MEMORY;
	if (!soft_chunk_take(device, chunk, unclean))
		return SOFT_OUT_OF_MEMORY;
	atomic_fetch_add(&device->chunks_in_use, 1);
	return 0;
}

int soft_chunk_create_unclean(struct hal_device *device, uint32_t *chunk)
{
	bool unclean;
	int error = create_chunk(device, chunk, &unclean);

	if (!error)
		device->chunks[*chunk].overwritten = true;
	return error;
}

int soft_chunk_create(struct hal_device *device, uint32_t *chunk)
{
	bool unclean = false;
	int error = create_chunk(device, chunk, &unclean);

	if (!error)
		device->chunks[*chunk].unzeroed = unclean;
	return error;
}

static void clean_free_chunks(struct hal_device *device)
{
	for (uint32_t i = 0; i < device->numbers; i++)
		if (device->chunks[i].unclean)
			zero_chunk(device, i);
	for (uint32_t i = 0; i < device->numbers; i++)
		device->chunks[i].unclean = false;
	atomic_store(&device->unclean, 0);
}

/* Some free chunks keep their content: most are taken again soon and are overwritten by a copy, and
 * new system pages cost more than that copy. An empty device keeps none. */
void soft_chunk_destroy(struct hal_device *device, uint32_t chunk)
{
	uint64_t first = atomic_load(&device->free), next;
	bool unclean = atomic_load(&device->unclean) < SOFT_UNCLEAN_MAX;

	if (unclean)
		atomic_fetch_add(&device->unclean, 1);
	else
		zero_chunk(device, chunk);
	device->chunks[chunk].unclean = unclean;
	device->chunks[chunk].overwritten = device->chunks[chunk].unzeroed = false;
	bool empty = atomic_fetch_sub(&device->chunks_in_use, 1) == 1;
	do {
		atomic_store(&device->chunks[chunk].next, (uint32_t)first);
		next = first >> 32 << 32 | (chunk + 1);
	} while (!atomic_compare_exchange_weak(&device->free, &first, next));
	if (empty && atomic_load(&device->unclean)) /* no running work takes any */
		clean_free_chunks(device);
}

/* ---- spaces ---- */

/* Reserves inaccessible addresses from a multiple of RF_CHUNK_BYTES on, so that a chunk may be one
 * huge page; NULL on failure. */
static uint8_t *reserve_window(void)
{
	uint8_t *got = mmap(NULL, SOFT_SPAN_BYTES + RF_CHUNK_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t before;

	if (got == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)got % RF_CHUNK_BYTES;
	if (before)
		munmap(got, before);
	munmap(got + before + SOFT_SPAN_BYTES, RF_CHUNK_BYTES - before);
	return got + before;
}

static void space_free(struct hal_space *space)
{
	if (space->reservation)
		munmap(space->reservation, SOFT_SPAN_BYTES);
	free(space->pages);
	free(space->closed);
	free(space);
}

int soft_space_create(struct hal_device *device, struct hal_space **out)
{
	struct hal_space *space = calloc(1, sizeof *space);

	if (!space)
		return SOFT_OUT_OF_MEMORY;
	space->device = device;
	space->pages = calloc(SOFT_WINDOW_PAGES, sizeof *space->pages);
	space->closed = calloc(SOFT_WINDOW_PAGES, sizeof *space->closed);
	space->reservation = reserve_window();
	if (!space->pages || !space->closed || !space->reservation) {
		space_free(space);
		return SOFT_OUT_OF_MEMORY;
	}
	space->base = space->reservation + SOFT_GUARD_BYTES;
	*out = space;
	return 0;
}

void soft_space_destroy(struct hal_space *space)
{
	uint64_t addr;
	uint32_t chunk;

	while (soft_space_copied(space, &addr, &chunk))
		soft_chunk_destroy(space->device, chunk);
	space_free(space);
}

/* The host address of [addr, addr + bytes); NULL if that is not inside the window. */
static uint8_t *window_range(struct hal_space *space, uint64_t addr, uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE;

	if (addr < RF_DEV_BASE || offset >= RF_WINDOW_BYTES || bytes == 0 ||
	    bytes > RF_WINDOW_BYTES - offset)
		return NULL;
	return space->base + offset;
}

/* `flags`: in addition to the usual ones. */
static int map_file(uint8_t *at, uint64_t bytes, int access, int flags, int fd, uint64_t offset)
{
	void *got = mmap(at, bytes, access, MAP_SHARED | MAP_FIXED | flags, fd, (off_t)offset);

	return got == MAP_FAILED ? SOFT_OUT_OF_MEMORY : 0;
}

/* Checks the rules of hal.h for map, unmap and protect, in builds with sanitizers. */
static void check_nothing_runs(struct hal_space *space)
{
#ifdef SOFT_CHECKED
	if (atomic_load(&space->running) || atomic_load(&space->copied) || space->taken_copies)
		abort();
#else
	(void)space;
#endif
}

/* Locks mappings: workers that write to read-only pages also change them (unforeseen.c). */
static void lock_mappings(struct hal_space *space)
{
	uint32_t checks = 0;

	while (atomic_flag_test_and_set(&space->copying))
		spin_moment(&checks, "a worker makes a page writable within a minute");
}

static void unlock_mappings(struct hal_space *space) { atomic_flag_clear(&space->copying); }

static int access_of(bool writable) { return writable ? PROT_READ | PROT_WRITE : PROT_READ; }

/* Makes a chunk one huge page of the host, if the system has one: mapping, unmapping and protecting
 * it then takes microseconds instead of hundreds, and kernels miss the TLB less often. */
static void make_huge(struct hal_device *device, const volatile uint8_t *at,
		      struct soft_chunk *entry)
{
	if (entry->huge || device->refused >= SOFT_REFUSED_MAX)
		return;
	(void)*at; /* the system refuses a chunk without any page */
	entry->huge = madvise((void *)(uintptr_t)at, RF_CHUNK_BYTES, MADV_COLLAPSE) == 0;
	device->refused += !entry->huge;
}

/* Populates a chunk that has old content, or is about to be overwritten: the worker would take
 * twice as long if its pages were allocated at their first write. A new chunk that reads as zero is
 * left empty, because programs allocate much that they never touch. */
static int map_chunk(const struct hal_space *space, uint8_t *at, uint32_t chunk, bool writable)
{
	struct hal_device *device = space->device;
	struct soft_chunk *entry = &device->chunks[chunk];
	int error = map_file(at, RF_CHUNK_BYTES, access_of(writable), 0, device->memfd,
			     chunk * RF_CHUNK_BYTES);

	if (error || !writable || !(entry->overwritten || entry->unzeroed))
		return error;
	make_huge(device, at, entry);
	if (!entry->huge)
		madvise(at, RF_CHUNK_BYTES, MADV_POPULATE_WRITE);
	return 0;
}

/* Zeroes old content in place if nothing reads it yet (`alone`): new pages take three times as
 * long. */
static int map_zeroed(const struct hal_space *space, uint8_t *at, uint32_t chunk, bool writable,
		      bool alone)
{
	struct soft_chunk *entry = &space->device->chunks[chunk];
	int error;

	if (entry->unzeroed && !(writable && alone)) {
		zero_chunk(space->device, chunk);
		entry->unzeroed = false;
	}
	error = map_chunk(space, at, chunk, writable);
	if (!error && entry->unzeroed) {
		memset(at, 0, RF_CHUNK_BYTES);
		entry->unzeroed = false;
	}
	return error;
}

/* The page of a host address in the window. */
static uint64_t page_at(const struct hal_space *space, const uint8_t *at)
{
	return (uint64_t)(at - space->base) / RF_CHUNK_BYTES;
}

static void set_mapping(struct hal_space *space, uint64_t page, enum soft_mapping mapping)
{
	if (mapping == SOFT_READ_ONLY && atomic_load(&space->pages[page]) == SOFT_WRITABLE)
		soft_whole_closed(&space->device->whole, space->base + page * RF_CHUNK_BYTES,
				  &space->closed[page]);
	atomic_store(&space->pages[page], mapping);
}

static void set_new(struct hal_space *space, uint64_t page, enum soft_mapping mapping)
{
	space->closed[page] = 0;
	atomic_store(&space->pages[page], mapping);
}

enum soft_mapping soft_space_mapping(const struct hal_space *space, uintptr_t at)
{
	uint64_t offset = at - (uintptr_t)space->base;

	return offset < RF_WINDOW_BYTES ? atomic_load(&space->pages[offset / RF_CHUNK_BYTES])
					: SOFT_UNMAPPED;
}

int soft_space_map(struct hal_space *space, uint64_t addr, uint32_t chunk, bool writable)
{
	uint8_t *at = window_range(space, addr, RF_CHUNK_BYTES);
	int error;

	if (!at || addr % RF_CHUNK_BYTES != 0 || chunk >= space->device->numbers)
		return SOFT_INVALID_VALUE;
	check_nothing_runs(space);
	error = map_zeroed(space, at, chunk, writable, true);
	if (!error)
		set_new(space, page_at(space, at), writable ? SOFT_WRITABLE : SOFT_READ_ONLY);
	return error;
}

int soft_space_unmap(struct hal_space *space, uint64_t addr)
{
	uint8_t *at = window_range(space, addr, RF_CHUNK_BYTES);

	if (!at || addr % RF_CHUNK_BYTES != 0)
		return SOFT_INVALID_VALUE;
	check_nothing_runs(space);
	if (mmap(at, RF_CHUNK_BYTES, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return SOFT_OUT_OF_MEMORY;
	set_new(space, page_at(space, at), SOFT_UNMAPPED);
	return 0;
}

/* One system call for all mappings. If it fails, none is left writable. */
int soft_space_protect(struct hal_space *space, uint64_t addr, uint32_t chunks, bool writable)
{
	uint64_t bytes = chunks * RF_CHUNK_BYTES;
	uint8_t *at = window_range(space, addr, bytes);
	uint64_t page;
	int error;

	if (!at || addr % RF_CHUNK_BYTES != 0)
		return SOFT_INVALID_VALUE;
	page = page_at(space, at);
	for (uint32_t i = 0; i < chunks; i++)
		if (atomic_load(&space->pages[page + i]) == SOFT_UNMAPPED)
			return SOFT_INVALID_VALUE;
	if (!writable)
		check_nothing_runs(space);
	lock_mappings(space);
	error = mprotect(at, bytes, access_of(writable)) ? SOFT_OUT_OF_MEMORY : 0;
	if (error)
		mprotect(at, bytes, PROT_READ);
	for (uint32_t i = 0; i < chunks; i++)
		set_mapping(space, page + i, writable && !error ? SOFT_WRITABLE : SOFT_READ_ONLY);
	unlock_mappings(space);
	return error;
}

/* The system replaces a mapping atomically: a concurrent reader sees the old or the new one. */
int soft_space_own(struct hal_space *space, uint64_t addr, uint32_t chunk)
{
	uint8_t *at = window_range(space, addr, RF_CHUNK_BYTES);
	int error = SOFT_NOT_READY;

	if (!at || addr % RF_CHUNK_BYTES != 0 || chunk >= space->device->numbers ||
	    atomic_load(&space->pages[page_at(space, at)]) == SOFT_UNMAPPED)
		return SOFT_INVALID_VALUE;
	lock_mappings(space);
	if (atomic_load(&space->pages[page_at(space, at)]) == SOFT_READ_ONLY)
		error = map_zeroed(space, at, chunk, true, false);
	if (!error)
		set_new(space, page_at(space, at), SOFT_WRITABLE);
	unlock_mappings(space);
	return error;
}

int soft_space_map_host(struct hal_space *space, uint64_t addr, int fd, uint64_t offset,
			uint64_t bytes)
{
	uint8_t *at = window_range(space, addr, bytes);

	if (!at || (addr | offset | bytes) % 4096 != 0)
		return SOFT_INVALID_VALUE;
	return map_file(at, bytes, PROT_READ | PROT_WRITE, 0, fd, offset);
}

int soft_space_error(struct hal_space *space, char *text, uint32_t text_bytes)
{
	int error = atomic_load(&space->error);

	if (text && text_bytes)
		snprintf(text, text_bytes, "%s", error ? space->text : "");
	return error;
}

void soft_space_fail(struct hal_space *space, int error, const char *format, ...)
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
}

void soft_space_cancel(struct hal_space *space)
{
	struct hal_device *device = space->device;

	/* Once is enough: all later work sees the flag. A worker that abandons its work would make
	 * no progress while signals keep coming. */
	if (atomic_exchange(&space->cancel, true))
		return;
	for (uint32_t i = 0; i < atomic_load(&device->thread_count); i++)
		if (atomic_load(&device->workers[i].space) == space)
			soft_signal_cancel(&device->workers[i]);
}
