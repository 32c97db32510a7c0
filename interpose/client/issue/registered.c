/* registered.c: memory of the program that it registers with the device.
 *
 * Memory of whole, private pages is replaced: its content moves to the pinned arena, whose pages
 * are then mapped a second time at the memory's address. So it is pinned memory with another
 * address: copies of it do not wait, and kernels reach it at its address in the arena. Other memory
 * (part of a page belongs to other data; a file's pages are not private) is only recorded, and
 * treated as pageable, which is also correct, but waits. A thread that writes into memory while
 * another registers or unregisters it may lose what it writes.
 *
 * Lock: REGISTERED_LOCK, around the table and the replacement. Blocks, without the lock:
 * unregistering waits for the device, and both for the server.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "issue.h"

#define PAGE 4096ull
#define REGISTER_IO 4u
#define REGISTER_FLAGS 15u

struct registered {
	uint64_t address, bytes;
	uint64_t reached; /* its address in the arena; 0: treated as pageable */
};
static struct registered *registered;
static _Atomic uint32_t registered_count;
static uint32_t registered_capacity;

/* Under REGISTERED_LOCK. */
static struct registered *find_registered(uint64_t address, uint64_t bytes)
{
	for (uint32_t i = 0; i < registered_count; i++) {
		uint64_t offset = address - registered[i].address;
		if (offset < registered[i].bytes && bytes <= registered[i].bytes - offset)
			return &registered[i];
	}
	return NULL;
}

/* True if all of it is private memory without a file, and no thread's stack. */
static bool is_private(uint64_t address, uint64_t bytes)
{
	char *line = NULL;
	size_t capacity = 0;
	uint64_t first, end, covered = address;
	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && covered < address + bytes && getline(&line, &capacity, maps) > 0) {
		char access[5], name[64] = "";
		unsigned long inode;
		if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %63s", &first, &end, access, &inode,
			   name) < 4)
			break;
		if (end <= covered)
			continue;
		if (first > covered || strcmp(access, "rw-p") || inode ||
		    !strncmp(name, "[stack", 6))
			break;
		covered = end;
	}
	if (maps)
		fclose(maps);
	free(line);
	return covered >= address + bytes;
}

/* Maps the arena's pages at `reached` at `address` too. With an old size of 0, mremap keeps the old
 * mapping. A child made by fork sees the pages: it may read what its parent has registered. */
static bool map_there(uint64_t address, uint64_t bytes, void *reached)
{
	memcpy(reached, (void *)address, bytes);
	void *mapped = mremap(reached, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)address);
	if (mapped == MAP_FAILED)
		return false;
	madvise(mapped, bytes, MADV_DOFORK);
	return true;
}

/* Under REGISTERED_LOCK: replaces the memory, if possible. Returns its address in the arena, or
 * 0. */
static uint64_t map_into_arena(uint64_t address, uint64_t bytes)
{
	void *reached;
	if (address % PAGE || bytes % PAGE || !is_private(address, bytes) ||
	    pinned_alloc(bytes, 0, 0, &reached))
		return 0;
	if (map_there(address, bytes, reached))
		return (uint64_t)reached;
	pinned_release(reached);
	return 0;
}

/* Under REGISTERED_LOCK: replaces it by private memory with the current content. */
static int bring_back(const struct registered *r)
{
	void *fresh = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);
	if (fresh == MAP_FAILED)
		return OUT_OF_MEMORY;
	memcpy(fresh, (void *)r->address, r->bytes);
	if (mremap(fresh, r->bytes, r->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)r->address) ==
	    MAP_FAILED) {
		munmap(fresh, r->bytes);
		return OUT_OF_MEMORY;
	}
	return pinned_release((void *)r->reached);
}

/* Under REGISTERED_LOCK. */
static int add_registered(uint64_t address, uint64_t bytes)
{
	for (uint32_t i = 0; i < registered_count; i++)
		if (address < registered[i].address + registered[i].bytes &&
		    registered[i].address < address + bytes)
			return ALREADY_REGISTERED;
	if (registered_count == registered_capacity) {
		uint32_t capacity = registered_capacity ? registered_capacity * 2 : 16;
		struct registered *more = realloc(registered, capacity * sizeof *more);
		if (!more)
			return OUT_OF_MEMORY;
		registered = more;
		registered_capacity = capacity;
	}
	registered[registered_count] = (struct registered){address, bytes,
							   map_into_arena(address, bytes)};
	registered_count++;
	return CUDA_OK;
}

int host_register(void *address, uint64_t bytes, unsigned flags)
{
	int error = channel_enter();
	if (error)
		return error;
	if (!address || !bytes || flags & ~REGISTER_FLAGS || (uint64_t)address + bytes < bytes)
		return INVALID_VALUE;
	if (flags & REGISTER_IO) {
		LOG_ONCE(
			"cudaHostRegister: another device's memory (cudaHostRegisterIoMemory) is not "
			"supported by rankfold: copy through host memory");
		return NOT_SUPPORTED;
	}
	if (memory_where(address) != AT_PAGEABLE)
		return INVALID_VALUE;
	int saved_errno = errno;
	lock(REGISTERED_LOCK);
	error = add_registered((uint64_t)address, bytes);
	unlock(REGISTERED_LOCK);
	pinned_announce();
	errno = saved_errno;
	return error;
}

int host_unregister(void *address)
{
	int error = channel_open();
	if (error)
		return error;
	wait_for_device();
	int saved_errno = errno;
	lock(REGISTERED_LOCK);
	struct registered *r = find_registered((uint64_t)address, 1);
	if (!r)
		error = address && memory_where(address) == AT_PAGEABLE ? NOT_REGISTERED
									: INVALID_VALUE;
	else if (r->address != (uint64_t)address)
		error = INVALID_VALUE;
	else if (r->reached)
		error = bring_back(r);
	if (!error)
		*r = registered[--registered_count];
	unlock(REGISTERED_LOCK);
	pinned_announce();
	errno = saved_errno;
	int sticky = channel_enter();
	return sticky ? sticky : error;
}

void *registered_reached(const void *address, uint64_t bytes)
{
	uint64_t at = (uint64_t)address;
	if (!atomic_load_explicit(&registered_count, memory_order_relaxed))
		return (void *)address;
	lock(REGISTERED_LOCK);
	const struct registered *r = find_registered(at, bytes);
	if (r && r->reached)
		at = r->reached + (at - r->address);
	unlock(REGISTERED_LOCK);
	return (void *)at;
}

bool registered_is(const void *address)
{
	lock(REGISTERED_LOCK);
	bool found = find_registered((uint64_t)address, 1) != NULL;
	unlock(REGISTERED_LOCK);
	return found;
}
