/* blocks.c: blocks: 16 chunks in one handle of the driver. It maps such a handle as fast as one of
 * 2 MiB.
 *
 * A chunk has a handle of its own at first. When a rank has shown 16 aligned chunks of its window
 * several times, all writable and none changed, their content moves to a block, and the window
 * shows that. The driver maps a handle as a whole. So if one of the chunks is to be shown at
 * another place, read-only, or without the others, the content moves back (nvidia_block_divide).
 * Copies do not notice: they look up a chunk's alias address when they are submitted.
 *
 * Nothing may be in progress when content moves: no kernel of a rank, no copy, no clearing.
 *
 * A division needs 16 handles. They are there before the first block, in addition to the device's
 * memory, so it does not depend on what other programs leave free.
 *
 * Device thread.
 */
#include <stdlib.h>
#include <string.h>

#include "nvidia_hal.h"
#include "spin.h"

static CUmemAllocationProp of_device(const struct hal_device *device)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};
}

static CUdeviceptr block_alias(const struct hal_device *device, uint32_t block)
{
	return device->block_alias + block * CUDA_BLOCK_BYTES;
}

CUdeviceptr nvidia_chunk_at(const struct hal_device *device, uint32_t chunk)
{
	uint32_t block = device->block_of[chunk];
	uint32_t place = 0;

	if (!block)
		return nvidia_alias(device, chunk);
	while (device->blocks[block - 1].chunks[place] != chunk)
		place++;
	return block_alias(device, block - 1) + place * RF_CHUNK_BYTES;
}

/* The clearing stream has nothing else to do. */
static CUresult finish_copies(const struct hal_device *device)
{
	CUresult error;
	uint32_t checks = 0;

	while ((error = device->driver->cuStreamQuery(device->clear_stream)) ==
	       CUDA_ERROR_NOT_READY)
		spin_moment(&checks, "a copy within the device takes less than a minute");
	return error;
}

/* Returns the place of a block that is not used, whose addresses are reserved. */
static struct nvidia_block *free_block(struct hal_device *device)
{
	uint32_t count = device->chunk_count / CUDA_BLOCK_CHUNKS, i = 0;

	if (!device->block_alias &&
	    device->driver->cuMemAddressReserve(&device->block_alias, count * CUDA_BLOCK_BYTES,
						RF_CHUNK_BYTES, 0, 0)) {
		device->block_alias = 0;
		return NULL;
	}
	while (i < count && device->blocks[i].used)
		i++;
	return i < count ? &device->blocks[i] : NULL;
}

static void release_block(struct hal_device *device, struct nvidia_block *b, bool mapped)
{
	const struct nvidia_driver *d = device->driver;

	if (mapped)
		d->cuMemUnmap(block_alias(device, (uint32_t)(b - device->blocks)),
			      CUDA_BLOCK_BYTES);
	d->cuMemRelease(b->handle);
	*b = (struct nvidia_block){0};
}

/* A block with memory, mapped at its alias. NULL: there is no memory to spare. */
static struct nvidia_block *new_block(struct hal_device *device)
{
	const struct nvidia_driver *d = device->driver;
	CUmemAllocationProp prop = of_device(device);
	struct nvidia_block *b = free_block(device);
	CUdeviceptr at;

	if (!b || d->cuMemCreate(&b->handle, CUDA_BLOCK_BYTES, &prop, 0))
		return NULL;
	at = block_alias(device, (uint32_t)(b - device->blocks));
	if (d->cuMemMap(at, CUDA_BLOCK_BYTES, 0, b->handle, 0)) {
		release_block(device, b, false);
		return NULL;
	}
	if (nvidia_set_access(device, at, CUDA_BLOCK_BYTES, true)) {
		release_block(device, b, true);
		return NULL;
	}
	return b;
}

static CUresult copy_chunks(const struct hal_device *device, const struct nvidia_block *b,
			    bool back)
{
	CUdeviceptr at = block_alias(device, (uint32_t)(b - device->blocks));
	CUresult error = CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < CUDA_BLOCK_CHUNKS; i++) {
		CUdeviceptr own = nvidia_alias(device, b->chunks[i]), its = at + i * RF_CHUNK_BYTES;

		error = device->driver->cuMemcpyAsync(back ? own : its, back ? its : own,
						      RF_CHUNK_BYTES, device->clear_stream);
	}
	return error ? error : finish_copies(device);
}

bool nvidia_block_make(struct hal_device *device, const uint32_t *chunks)
{
	const struct nvidia_driver *d = device->driver;
	struct nvidia_block *b = device->blocks_refused ? NULL : new_block(device);
	CUresult error;

	if (!b) {
		device->blocks_refused = true; /* the GPU is full */
		return false;
	}
	memcpy(b->chunks, chunks, sizeof b->chunks);
	error = copy_chunks(device, b, false);
	for (uint32_t i = 0; !error && i < CUDA_BLOCK_CHUNKS; i++) {
		uint32_t chunk = chunks[i];

		error = d->cuMemUnmap(nvidia_alias(device, chunk), RF_CHUNK_BYTES);
		if (error)
			break;
		if (device->spare_count < CUDA_BLOCK_CHUNKS)
			device->spares[device->spare_count++] = device->chunks[chunk];
		else
			error = d->cuMemRelease(device->chunks[chunk]);
		device->chunks[chunk] = 0;
		device->block_of[chunk] = (uint32_t)(b - device->blocks) + 1;
	}
	b->used = true;
	device->block_count++;
	if (error)
		nvidia_lose(device, (int)error, "chunks cannot be joined: %s",
			    nvidia_error_name(device, error));
	return !error;
}

/* After the content has moved. Handles for the next division are made while there is more memory
 * than that. */
static void fill_spares(struct hal_device *device)
{
	CUmemAllocationProp prop = of_device(device);

	while (device->block_count && device->spare_count < CUDA_BLOCK_CHUNKS &&
	       !device->driver->cuMemCreate(&device->spares[device->spare_count], RF_CHUNK_BYTES,
					    &prop, 0))
		device->spare_count++;
}

CUresult nvidia_block_divide(struct hal_device *device, uint32_t block)
{
	const struct nvidia_driver *d = device->driver;
	struct nvidia_block *b = &device->blocks[block];
	CUresult error = device->spare_count < CUDA_BLOCK_CHUNKS ? CUDA_ERROR_OUT_OF_MEMORY
								 : CUDA_SUCCESS;

	for (uint32_t i = 0; !error && i < CUDA_BLOCK_CHUNKS; i++) {
		CUdeviceptr own = nvidia_alias(device, b->chunks[i]);
		CUmemGenericAllocationHandle handle = device->spares[--device->spare_count];

		device->chunks[b->chunks[i]] = handle;
		error = d->cuMemMap(own, RF_CHUNK_BYTES, 0, handle, 0);
		if (!error)
			error = nvidia_set_access(device, own, RF_CHUNK_BYTES, true);
	}
	if (!error)
		error = copy_chunks(device, b, true);
	if (error) {
		nvidia_lose(device, (int)error, "chunks cannot be divided: %s",
			    nvidia_error_name(device, error));
		return error;
	}
	for (uint32_t i = 0; i < CUDA_BLOCK_CHUNKS; i++)
		device->block_of[b->chunks[i]] = 0;
	device->block_count--;
	fill_spares(device); /* if possible, before the block's memory may get another owner */
	release_block(device, b, true);
	fill_spares(device);
	return CUDA_SUCCESS;
}
