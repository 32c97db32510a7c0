/* broken_client_heap.c: device memory (broken_client.c). */
#include "issue/heap.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_heaps(void)
{
	const struct heap_request r = {.bytes = 4096};
	struct heap_placed at, again;
	struct heap h;
	MUST(heap_init(&h, 1 << 30) && heap_alloc(&h, &r, &at));
	BREAK("memory that is freed was allocated", heap_free(&h, at.addr, 1, true);
	      heap_free(&h, at.addr, 2, true));
	BREAK("memory that gets an owner was allocated", heap_own(&h, RF_DEV_BASE + (1 << 28), 1));
	BREAK("a chunk counts the allocations in it", h.live_chunks = 0;
	      heap_free(&h, at.addr, 1, true));
	BREAK("the heap counts the bytes that it gave out", h.live_bytes = 0;
	      heap_free(&h, at.addr, 1, true));
	BREAK("no more memory is given out than the device has", h.live_chunks = 1 << 30;
	      heap_alloc(&h, &r, &again));
	BREAK("memory that is given out is free",
	      carve_extent(&h, (struct heap_extent){.addr = at.addr, .bytes = 4096}, &again.after));
	BREAK("memory without an address is counted", heap_unpromise(&h, 1));
	BREAK("memory is mapped in whole chunks", heap_map(&h, at.addr, 4096, &again));
	heap_destroy(&h);
}
