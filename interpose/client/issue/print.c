/* print.c: the output of kernels.
 *
 * Kernels write text into a ring in our pinned arena (struct rf_print). It goes to the program's
 * stdout, through its stdio, at synchronisations, blocking copies and launches, as in CUDA: output
 * of kernels that the program did not wait for is lost when it ends.
 *
 * Lock: PRINT_LOCK, around reading the ring. Blocks as stdout does.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "issue.h"

static struct rf_print *_Atomic ring; /* NULL: no module prints */
static uint64_t shown;                /* under PRINT_LOCK: bytes of the ring that were printed */

/* Returns the ring, which is allocated for the first module that prints. */
int print_ring(uint64_t *address)
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
			pinned_release(memory); /* another thread has loaded such a module too */
		pinned_announce();
	}
	*address = (uint64_t)first;
	return CUDA_OK;
}

/* Under PRINT_LOCK: prints the text between `shown` and `head`, except what has been overwritten
 * meanwhile. */
static void show_print(struct rf_print *from, uint64_t head)
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
		fwrite(text + lost, 1, bytes - lost, inside_stdout());
	shown = head;
	free(text);
}

void print_kernels_output(void)
{
	struct rf_print *from = atomic_load_explicit(&ring, memory_order_relaxed);
	if (!from)
		return;
	int saved_errno = errno;
	lock(PRINT_LOCK);
	uint64_t head = atomic_load_explicit(&from->head, memory_order_acquire);
	if (head != shown)
		show_print(from, head);
	unlock(PRINT_LOCK);
	errno = saved_errno;
}
