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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
static struct rf_print *_Atomic ring; /* NULL: no module prints */
static uint64_t shown;                /* under printing: bytes of the ring that were */

/* Under module_lock: the ring, made for the first module that prints. */
static int open_ring(uint64_t *address)
{
	void *memory = atomic_load(&ring);
	if (!memory) {
		int error = pinned_alloc(sizeof(struct rf_print), 0, 0, &memory);
		if (error)
			return error;
		memset(memory, 0, sizeof(struct rf_print));
		atomic_store(&ring, memory);
	}
	*address = (uint64_t)memory;
	return CUDA_OK;
}

static int add_base(uint64_t base, uint64_t offset)
{
	uint64_t value, *at = (uint64_t *)(base + offset);
	int error = memory_copy_1d(&value, at, sizeof value, DEVICE_TO_HOST, NULL, false);
	value += base;
	return error ? error : memory_copy_1d(at, &value, sizeof value, HOST_TO_DEVICE, NULL, false);
}

/* Under module_lock: fill in the struct rf_setup at `address`. */
int module_set_up(uint64_t globals, uint64_t address, uint64_t bytes)
{
	struct rf_setup *setup = malloc(bytes);
	int error = !setup ? OUT_OF_MEMORY : bytes < sizeof *setup ? INVALID_IMAGE : CUDA_OK;
	if (!error)
		error = memory_copy_1d(setup, (void *)address, bytes, DEVICE_TO_HOST, NULL, false);
	if (!error && setup->count > (bytes - sizeof *setup) / sizeof *setup->offset)
		error = INVALID_IMAGE;
	for (uint64_t i = 0; !error && i < setup->count; i++)
		error = add_base(globals, setup->offset[i]);
	if (!error)
		error = open_ring(&setup->print);
	if (!error)
		error = memory_copy_1d((void *)address, &setup->print, sizeof setup->print,
				       HOST_TO_DEVICE, NULL, false);
	free(setup);
	if (error)
		return error;
	/* Kernels of every stream may use it from here on. */
	struct rf_handle sync = {.handle = RF_STREAM_LEGACY};
	return channel_call(&sync.r, RF_OP_STREAM_SYNC, sizeof sync, NULL, 0, NULL, 0);
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
		piece = bytes - done < RF_PRINT_BYTES - place ? bytes - done : RF_PRINT_BYTES - place;
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
