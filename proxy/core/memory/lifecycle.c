/* lifecycle.c: opens and closes a device's memory, and the memory of a rank that comes to the
 * device or leaves it: its space, its image, its pages. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image_hold.h"
#include "memory_parts.h"

int device_memory_open(struct device_memory *d, const struct hal *hal, struct hal_device *device,
		       uint64_t bytes)
{
	d->hal = hal;
	d->device = device;
	d->total = bytes / RF_CHUNK_BYTES;
	d->chunks = calloc(HAL_CHUNK_NUMBERS(bytes), sizeof *d->chunks);
	if (!d->chunks)
		return CU_OUT_OF_MEMORY;
	int error = hal->stream_create(device, &d->in);
	return error ? error : hal->stream_create(device, &d->out);
}

void device_memory_close(struct device_memory *d, bool idle)
{
	if (d->in && idle)
		d->hal->stream_destroy(d->in);
	if (d->out && idle)
		d->hal->stream_destroy(d->out);
	if (d->scratch && idle)
		d->hal->space_destroy(d->scratch);
	free(d->chunks);
	free(d->all);
}

static bool list_rank(struct device_memory *d, struct rank_memory *m)
{
	if (!grow_array((void **)&d->all, d->count, 1, &d->capacity, sizeof *d->all))
		return false;
	uint32_t at = d->count++;
	for (; at > 0 && d->all[at - 1]->rank > m->rank; at--)
		d->all[at] = d->all[at - 1];
	d->all[at] = m;
	return true;
}

int memory_open(struct rank_memory *m, struct device_memory *d, uint64_t group, uint32_t rank,
		int image_fd, int channel_fd)
{
	struct stat info;
	m->device = d;
	m->group = group;
	m->rank = rank;
	m->image_fd = -1;
	m->writes_page = HEAP_PAGES;
	m->last_active = d->turns; /* it has not waited here before */
	if (fstat(image_fd, &info) || (uint64_t)info.st_size < RF_WINDOW_BYTES)
		return CU_INVALID_VALUE;
	m->image_fd = fcntl(image_fd, F_DUPFD_CLOEXEC, 3);
	m->image = mmap(NULL, ASIDE_OFFSET, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			m->image_fd, 0);
	m->pages = mmap(NULL, HEAP_PAGES * sizeof *m->pages, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->image_fd < 0 || m->image == MAP_FAILED || m->pages == MAP_FAILED) {
		m->image = m->image == MAP_FAILED ? NULL : m->image;
		m->pages = m->pages == MAP_FAILED ? NULL : m->pages;
		return CU_OUT_OF_MEMORY;
	}
	if (versions_open(&m->versions, RF_DEV_BASE, RF_DEV_BASE + RF_HEAP_BYTES))
		return CU_OUT_OF_MEMORY;
	int error = d->hal->space_create(d->device, &m->space);
	if (error)
		return error;
	if (!list_rank(d, m))
		return CU_OUT_OF_MEMORY;
	return d->hal->space_map_host(m->space, RF_PINNED_BASE(rank), channel_fd, RF_OFF_PINNED,
				      RF_PINNED_SLOT_BYTES);
}

void memory_close(struct rank_memory *m)
{
	struct device_memory *d = m->device;
	if (!d)
		return;
	memory_cancel(m);
	if (d->active == m)
		d->active = NULL;
	for (uint32_t i = 0; m->space && i < m->live_count; i++) {
		copy_forget(m, m->live[i]);
		if (m->pages[m->live[i]].chunk)
			page_unmap(m, m->live[i]);
	}
	if (m->space)
		d->hal->space_destroy(m->space);
	if (m->image)
		munmap(m->image, ASIDE_OFFSET);
	if (m->pages)
		munmap(m->pages, HEAP_PAGES * sizeof *m->pages);
	if (m->image_fd >= 0)
		close(m->image_fd);
	versions_close(&m->versions);
	free(m->buffers);
	free(m->live);
	free(m->fresh);
	free(m->moves);
	for (uint32_t i = 0; i < d->count; i++) {
		if (d->all[i] != m)
			continue;
		memmove(&d->all[i], &d->all[i + 1],
			(d->count - i - 1) * sizeof(struct rank_memory *));
		d->count--;
		break;
	}
	m->device = NULL;
}
