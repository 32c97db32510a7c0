/* print.c: what kernels print, and what else a module asks to be filled in when it is loaded.
 *
 * Kernels leave text in a ring in our pinned arena (struct rf_print). It goes to the program's
 * stdout, through its stdio, at synchronisations, blocking copies and launches, as in CUDA: output
 * that nothing waited for is lost when the program ends.
 *
 * Locks: printing, around reading the ring; taken with none of ours held. Blocks as stdout does.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
static struct rf_print *_Atomic ring; /* NULL: no module prints */
static uint64_t shown;                /* under printing: bytes of the ring that were */

/* The ring, made for the first module that prints. */
static int open_ring(uint64_t *address)
{
	struct rf_print *first = atomic_load(&ring);
	if (!first) {
		void *memory;
		int error = pinned_alloc(sizeof(struct rf_print), 0, 0, &memory);
		if (error)
			return error;
		memset(memory, 0, sizeof(struct rf_print));
		if (atomic_compare_exchange_strong(&ring, &first, memory))
			first = memory;
		else
			pinned_release(memory); /* another thread loads a module too */
	}
	*address = (uint64_t)first;
	return CUDA_OK;
}

static int add_base(uint64_t base, uint64_t offset, uint64_t stream)
{
	uint64_t value;
	int error = memory_get(&value, base + offset, sizeof value, stream);
	value += base;
	return error ? error : memory_put(base + offset, &value, sizeof value, stream);
}

/* On `stream`, which is nobody else's. */
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
		error = open_ring(&setup->print);
	if (!error)
		error = memory_put(address, &setup->print, sizeof setup->print, stream);
	if (!error)
		*heap = setup->heap ? address + offsetof(struct rf_setup, heap) : 0;
	free(setup);
	return error;
}

/* Fill in the struct rf_setup at `address`. A module may be loaded by a launch that
 * is captured, or while the program's streams wait for what the calling thread does next: so the
 * copies have a stream of their own, which orders with none. What they wrote is there when they
 * return: kernels of every stream may use it. */
int module_set_up(uint64_t globals, uint64_t address, uint64_t bytes, uint64_t *heap)
{
	struct rf_stream_create own = {.stream = handle_number(), .flags = STREAM_NON_BLOCKING};
	struct rf_handle gone = {.handle = own.stream};
	channel_post(&own.r, RF_OP_STREAM_CREATE, sizeof own, NULL, 0);
	int error = fill_in(globals, address, bytes, heap, own.stream);
	channel_post(&gone.r, RF_OP_STREAM_DESTROY, sizeof gone, NULL, 0);
	return error;
}

/* Under printing: what lies between `shown` and `head`, as far as it has not been overwritten
 * meanwhile. */
static void show(struct rf_print *from, uint64_t head)
{
	uint64_t bytes = head - shown < RF_PRINT_BYTES ? head - shown : RF_PRINT_BYTES;
	uint64_t first = head - bytes, now, lost;
	char *text = malloc(bytes);
	if (!text)
		return;
	for (uint64_t done = 0, piece; done < bytes; done += piece) {
		uint64_t place = (first + done) % RF_PRINT_BYTES;
		piece = bytes - done < RF_PRINT_BYTES - place ? bytes - done
							      : RF_PRINT_BYTES - place;
		memcpy(text + done, from->text + place, piece);
	}
	atomic_thread_fence(memory_order_acquire);
	now = atomic_load_explicit(&from->head, memory_order_relaxed);
	lost = now - first > RF_PRINT_BYTES ? now - first - RF_PRINT_BYTES : 0;
	if (lost < bytes)
		fwrite(text + lost, 1, bytes - lost, stdout);
	shown = head;
	free(text);
}

void print_kernels_output(void)
{
	struct rf_print *from = atomic_load_explicit(&ring, memory_order_relaxed);
	if (!from)
		return;
	int kept = errno;
	pthread_mutex_lock(&printing);
	uint64_t head = atomic_load_explicit(&from->head, memory_order_acquire);
	if (head != shown)
		show(from, head);
	pthread_mutex_unlock(&printing);
	errno = kept;
}
