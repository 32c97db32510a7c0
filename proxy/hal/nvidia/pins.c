/* pins.c: pinned memory of the ranks that is registered with the driver, chunk by chunk, because a
 * registration ends as a whole, and a copy may not cross two.
 *
 * With unified addressing the device uses a registered page at the address at which the process has
 * it. So the arena is mapped at the rank's address before, and stays there: its program's pointers
 * are then right for kernels and copies.
 *
 * The pinning thread makes all calls, in the order of the requests, so everything that a space
 * leaves behind is gone before the next one comes. It is not the device thread, because the driver
 * pins page by page and may wait for kernels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "nvidia_hal.h"

/* ---- called by any thread ---- */

void nvidia_space_dead(struct hal_space *space)
{
	struct hal_device *device = space->device;

	space->next = atomic_load(&device->dead_spaces);
	while (!atomic_compare_exchange_weak(&device->dead_spaces, &space->next, space))
		;
	nvidia_wake(device);
}

static uint32_t slot_of(const struct nvidia_host_range *r)
{
	return (uint32_t)((r->addr - CUDA_PINNED_BASE) / RF_PINNED_SLOT_BYTES);
}

uint64_t nvidia_pinned_from(const struct hal_device *device, uint64_t addr)
{
	uint64_t offset = addr - CUDA_PINNED_BASE, chunk = offset / RF_CHUNK_BYTES;

	if (addr < CUDA_PINNED_BASE || chunk >= CUDA_PIN_CHUNKS ||
	    !(atomic_load(&device->pinned[chunk / 64]) >> chunk % 64 & 1))
		return 0;
	return RF_CHUNK_BYTES - offset % RF_CHUNK_BYTES;
}

bool nvidia_pins_in_the_way(const struct hal_device *device, const struct hal_space *space)
{
	for (uint32_t i = 0; i < space->host_count; i++) {
		uint64_t owner = atomic_load(&device->slot_owner[slot_of(&space->hosts[i])]);

		if (owner && owner != space->serial)
			return true;
	}
	return false;
}

/* ---- called by the loop's thread ---- */

/* Under pin_lock. */
static void queue_space(struct hal_space *space)
{
	struct hal_device *device = space->device;

	atomic_store(&space->pins_change, true);
	if (space->pins_queued)
		return;
	space->pins_queued = true;
	space->pins_next = NULL;
	*device->pins_last = space;
	device->pins_last = &space->pins_next;
	pthread_cond_signal(&device->pin_wake);
}

void nvidia_space_pin(struct hal_space *space, uint64_t addr, uint64_t bytes, bool pinned)
{
	struct hal_device *device = space->device;
	const struct nvidia_host_range *r = &space->hosts[0];
	uint64_t first = (addr - r->addr) / RF_CHUNK_BYTES, count = bytes / RF_CHUNK_BYTES;

	if (!space->host_count || addr < r->addr || addr % RF_CHUNK_BYTES ||
	    bytes % RF_CHUNK_BYTES || first + count > r->bytes / RF_CHUNK_BYTES)
		return;
	space->pins_used = true;
	pthread_mutex_lock(&device->pin_lock);
	for (uint64_t i = first; i < first + count; i++)
		if (pinned)
			space->pins_wanted[i / 64] |= 1ull << i % 64;
		else
			space->pins_wanted[i / 64] &= ~(1ull << i % 64);
	queue_space(space);
	pthread_mutex_unlock(&device->pin_lock);
}

bool nvidia_space_pinned(const struct hal_space *space)
{
	return !atomic_load(&space->pins_change);
}

void nvidia_pins_close(struct hal_space *space)
{
	struct hal_device *device = space->device;

	pthread_mutex_lock(&device->pin_lock);
	space->closing = true;
	for (uint32_t i = 0; i < RF_PIN_WORDS; i++)
		space->pins_wanted[i] = 0;
	queue_space(space);
	pthread_mutex_unlock(&device->pin_lock);
}

/* ---- the pinning thread ---- */

/* Maps the arena at its own address. mremap with size 0 copies a mapping. */
static bool place(struct hal_space *space)
{
	struct hal_device *device = space->device;
	const struct nvidia_host_range *r = &space->hosts[0];
	_Atomic uint64_t *owner = &device->slot_owner[slot_of(r)];

	if (space->placed)
		return true;
	pthread_mutex_lock(&device->host_lock);
	if (!atomic_load(owner) && mremap(r->memory, 0, r->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
					  (void *)(uintptr_t)r->addr) != MAP_FAILED) {
		atomic_store(owner, space->serial);
		atomic_store(&space->placed, true);
	}
	pthread_mutex_unlock(&device->host_lock);
	return space->placed;
}

static void take_away(struct hal_space *space)
{
	struct hal_device *device = space->device;
	const struct nvidia_host_range *r = &space->hosts[0];

	pthread_mutex_lock(&device->host_lock);
	if (space->placed) {
		mmap((void *)(uintptr_t)r->addr, r->bytes, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		atomic_store(&device->slot_owner[slot_of(r)], 0);
	}
	pthread_mutex_unlock(&device->host_lock);
}

static void change_chunk(struct hal_space *space, uint32_t chunk, bool pinned)
{
	struct hal_device *device = space->device;
	const struct nvidia_driver *d = device->driver;
	uint64_t addr = space->hosts[0].addr + chunk * RF_CHUNK_BYTES,
		 index = (addr - CUDA_PINNED_BASE) / RF_CHUNK_BYTES;
	CUresult error = CUDA_SUCCESS;

	if (atomic_load(&device->lost))
		return;
	if (!pinned) {
		atomic_fetch_and(&device->pinned[index / 64], ~(1ull << index % 64));
		error = d->cuMemHostUnregister((void *)(uintptr_t)addr);
	} else {
		error = d->cuMemHostRegister_v2((void *)(uintptr_t)addr, RF_CHUNK_BYTES,
						CU_MEMHOSTREGISTER_PORTABLE |
							CU_MEMHOSTREGISTER_DEVICEMAP);
		if (!error)
			atomic_fetch_or(&device->pinned[index / 64], 1ull << index % 64);
	}
	if (!error) {
		space->pins[chunk / 64] ^= 1ull << chunk % 64;
	} else if (!pinned) { /* kernels would write to pages that the program no longer has */
		atomic_store(&device->pins_failed, (int)error);
		nvidia_wake(device);
	} else if (!device->pins_refused) {
		device->pins_refused = true;
		fprintf(stderr,
			"rankfold-proxy: pinned memory cannot be registered with the driver: %s "
			"(%d); copies of it are slower\n",
			nvidia_error_name(device, error), error);
	}
}

static void change(struct hal_space *space, const uint64_t *wanted)
{
	for (uint32_t i = 0; i < CUDA_SLOT_CHUNKS; i++) {
		bool pinned = wanted[i / 64] >> i % 64 & 1, is = space->pins[i / 64] >> i % 64 & 1;

		if (pinned != is && (is || place(space)))
			change_chunk(space, i, pinned);
	}
}

/* Under pin_lock, which it gives back meanwhile. */
static void serve(struct hal_device *device)
{
	struct hal_space *space = device->pins_first;
	uint64_t wanted[RF_PIN_WORDS];
	bool closing = space->closing, more;

	device->pins_first = space->pins_next;
	if (!device->pins_first)
		device->pins_last = &device->pins_first;
	space->pins_queued = false;
	for (uint32_t i = 0; i < RF_PIN_WORDS; i++)
		wanted[i] = space->pins_wanted[i];
	pthread_mutex_unlock(&device->pin_lock);
	change(space, wanted);
	if (closing) {
		take_away(space);
		for (uint32_t i = 0; i < space->host_count; i++)
			munmap(space->hosts[i].memory, space->hosts[i].bytes);
		nvidia_space_dead(space);
		pthread_mutex_lock(&device->pin_lock);
		return;
	}
	pthread_mutex_lock(&device->pin_lock);
	more = space->pins_queued;
	atomic_store(&space->pins_change, more);
	if (!more) {
		nvidia_wake(device);
		nvidia_ring(device);
	}
}

static void *pin_main(void *arg)
{
	struct hal_device *device = arg;

	nvidia_bind(device);
	pthread_mutex_lock(&device->pin_lock);
	for (;;) {
		if (device->pins_first)
			serve(device);
		else if (device->pins_stop)
			break;
		else
			pthread_cond_wait(&device->pin_wake, &device->pin_lock);
	}
	pthread_mutex_unlock(&device->pin_lock);
	return NULL;
}

int nvidia_pins_start(struct hal_device *device)
{
	device->pins_started = !pthread_create(&device->pin_thread, NULL, pin_main, device);
	return device->pins_started ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void nvidia_pins_stop(struct hal_device *device)
{
	if (!device->pins_started)
		return;
	pthread_mutex_lock(&device->pin_lock);
	device->pins_stop = true;
	pthread_cond_signal(&device->pin_wake);
	pthread_mutex_unlock(&device->pin_lock);
	pthread_join(device->pin_thread, NULL);
}
