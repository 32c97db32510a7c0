/* set_up.c: fills in a module's struct rf_setup when the module is loaded. */
#include <stddef.h>
#include <stdlib.h>

#include "issue.h"

static int add_base(uint64_t base, uint64_t offset, uint64_t stream)
{
	uint64_t value;
	int error = memory_get(&value, base + offset, sizeof value, stream);
	value += base;
	return error ? error : memory_put(base + offset, &value, sizeof value, stream);
}

/* No other work uses `stream`. */
static int fill_in(uint64_t globals, uint64_t address, uint64_t bytes, uint64_t *heap,
		   uint64_t stream)
{
	struct rf_setup *setup = malloc(bytes);
	int error = !setup ? OUT_OF_MEMORY : bytes < sizeof *setup ? INVALID_IMAGE : CUDA_OK;
	if (!error)
		error = memory_get(setup, address, bytes, stream);
	if (!error && setup->count > (bytes - sizeof *setup) / sizeof *setup->offset)
		error = INVALID_IMAGE;
	for (uint64_t i = 0; !error && i < setup->count; i++)
		error = add_base(globals, setup->offset[i], stream);
	if (!error)
		error = print_ring(&setup->print);
	if (!error)
		error = memory_put(address, &setup->print, sizeof setup->print, stream);
	if (!error)
		*heap = setup->heap ? address + offsetof(struct rf_setup, heap) : 0;
	free(setup);
	return error;
}

/* Fills in the struct rf_setup at `address`. A module may be loaded by a captured launch, or while
 * the program's streams wait for the calling thread's next action: so the copies use their own
 * stream, which is ordered with no other. The copies are complete when they return: kernels of
 * every stream may use the result. */
int module_set_up(uint64_t globals, uint64_t address, uint64_t bytes, uint64_t *heap)
{
	struct rf_stream_create own = {.stream = handle_number(), .flags = RF_STREAM_NON_BLOCKING};
	struct rf_handle destroy = {.handle = own.stream};
	channel_post(&own.r, RF_OP_STREAM_CREATE, sizeof own, NULL, 0);
	int error = fill_in(globals, address, bytes, heap, own.stream);
	channel_post(&destroy.r, RF_OP_STREAM_DESTROY, sizeof destroy, NULL, 0);
	return error;
}
