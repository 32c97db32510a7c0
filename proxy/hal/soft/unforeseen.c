/* unforeseen.c: when a kernel writes to a page that is mapped read-only, the page immediately gets
 * its own chunk with the same bytes, and the instruction is repeated.
 *
 * Called in the handler of the fault (fault.c), on the worker's thread, sheltered: it uses only
 * calls that are allowed in a signal handler, and no lock but hal_space.copying, whose holder
 * cannot be interrupted. Other workers may run in the space meanwhile: they read the old chunk
 * until the system replaces the mapping, which it does atomically, and then the new one; writers
 * wait here. Other spaces that map the old chunk are not affected.
 *
 * The chunk may exceed the device's capacity: the core is informed, counts it, and frees capacity
 * later (soft_space_copied).
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft.h"
#include "spin.h"

/* Copies the bytes at `from` to the chunk. */
static bool fill_chunk(const struct hal_device *device, uint32_t chunk, const uint8_t *from)
{
	off_t to = (off_t)(chunk * RF_CHUNK_BYTES);

	for (uint64_t done = 0; done < RF_CHUNK_BYTES;) {
		ssize_t n = pwrite(device->memfd, from + done, RF_CHUNK_BYTES - done,
				   to + (off_t)done);

		if (n == 0 || (n < 0 && errno != EINTR))
			return false;
		done += n > 0 ? (uint64_t)n : 0;
	}
	return true;
}

static bool replace_mapping(struct hal_device *device, uint8_t *at, uint32_t chunk)
{
	return fill_chunk(device, chunk, at) &&
	       mmap(at, RF_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		    device->memfd, (off_t)(chunk * RF_CHUNK_BYTES)) != MAP_FAILED;
}

/* Adds the chunk to the list for the loop, which may take all of it at any time. */
static void list_copy(struct hal_space *space, uint32_t chunk, uint32_t page)
{
	struct soft_chunk *entry = &space->device->chunks[chunk];
	uint32_t last = atomic_load(&space->copied);

	entry->page = page;
	do
		atomic_store(&entry->next, last);
	while (!atomic_compare_exchange_weak(&space->copied, &last, chunk + 1));
}

static bool copy_page(struct hal_space *space, uint32_t page)
{
	struct hal_device *device = space->device;
	uint32_t chunk;
	bool unclean; /* ignored: all of it is overwritten */

	if (!soft_chunk_take(device, &chunk, &unclean))
		return false;
	atomic_fetch_add(&device->chunks_in_use, SOFT_UNREPORTED + 1);
	if (!replace_mapping(device, space->base + page * RF_CHUNK_BYTES, chunk)) {
		soft_chunk_destroy(device, chunk);
		atomic_fetch_sub(&device->chunks_in_use, SOFT_UNREPORTED);
		return false;
	}
	atomic_store(&space->pages[page], SOFT_WRITABLE);
	list_copy(space, chunk, page);
	return true;
}

bool soft_unforeseen(struct soft_worker *worker, struct hal_space *space, uintptr_t address)
{
	uint32_t checks = 0;
	bool there;

	if (soft_space_mapping(space, address) == SOFT_UNMAPPED)
		return false;
	while (atomic_flag_test_and_set(&space->copying))
		spin_moment(&checks, "a space's mappings are changed within a minute");
	if (soft_space_mapping(space, address) != SOFT_WRITABLE) {
		there = copy_page(space,
				  (uint32_t)((address - (uintptr_t)space->base) / RF_CHUNK_BYTES));
		/* another worker has made it writable; a second fault here means that the system refuses
	 * the write */
	} else {
		there = worker->refused != address;
		worker->refused = address;
	}
	atomic_flag_clear(&space->copying);
	return there;
}

bool soft_space_copied(struct hal_space *space, uint64_t *addr, uint32_t *chunk)
{
	const struct soft_chunk *entry;

	if (!space->taken_copies && atomic_load(&space->copied))
		space->taken_copies = atomic_exchange(&space->copied, 0);
	if (!space->taken_copies)
		return false;
	*chunk = space->taken_copies - 1;
	entry = &space->device->chunks[*chunk];
	*addr = RF_DEV_BASE + entry->page * RF_CHUNK_BYTES;
	space->taken_copies = atomic_load(&entry->next);
	atomic_fetch_sub(&space->device->chunks_in_use, SOFT_UNREPORTED);
	return true;
}
