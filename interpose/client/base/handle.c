/* handle.c: the numbers of streams, events and library handles, and all other new numbers.
 *
 * Numbers come from one counter and are never reused (programs keep them in static variables, and
 * the server's saved state names them). The table is direct-mapped: a number is stored at `number
 * mod size`, and a number whose place is taken is skipped. So a look-up is one load, without a
 * lock, and memory follows the number of live handles, not of all that ever existed. After growth
 * the old table remains allocated for readers that use it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base.h"
#include "invariant.h"

struct table {
	uint64_t size; /* power of two */
	struct handle *_Atomic at[];
};

static struct table *_Atomic table;
static _Atomic uint64_t next_number = RF_HANDLE_FIRST;
static uint64_t live;
static struct handle **spares; /* dropped handles */
static uint64_t spare_count, spare_capacity;

uint64_t handle_number(void) { return atomic_fetch_add(&next_number, 1); }

/* Under the lock: keeps the table at most half full, so that few numbers are skipped. */
static bool grow_table(void)
{
	struct table *old = atomic_load(&table);
	uint64_t size = old ? old->size : 0;
	if (live < size / 2)
		return true;
	size = size ? size * 2 : 256;
	struct table *bigger = calloc(1, sizeof *bigger + size * sizeof *bigger->at);
	if (!bigger)
		return false;
	bigger->size = size;
	for (uint64_t i = 0; old && i < old->size; i++) {
		struct handle *h = atomic_load(&old->at[i]);
		if (h)
			atomic_store(&bigger->at[h->number & (size - 1)], h);
	}
	atomic_store_explicit(&table, bigger, memory_order_release);
	return true;
}

struct handle *handle_new(enum handle_kind kind, uint64_t context)
{
	lock(HANDLE_LOCK);
	struct handle *h = spare_count ? spares[--spare_count] : calloc(1, sizeof *h);
	if (!h || !grow_table()) {
		free(h);
		unlock(HANDLE_LOCK);
		return NULL;
	}
	struct table *t = atomic_load(&table);
	uint64_t number;
	do
		number = handle_number();
	while (atomic_load(&t->at[number & (t->size - 1)]));
	*h = (struct handle){.number = number, .kind = kind, .context = context};
	atomic_store_explicit(&t->at[number & (t->size - 1)], h, memory_order_release);
	live++;
	unlock(HANDLE_LOCK);
	return h;
}

struct handle *handle_get(enum handle_kind kind, const void *value)
{
	uint64_t number = (uint64_t)value;
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);
	if (!t || number < RF_HANDLE_FIRST)
		return NULL;
	struct handle *h = atomic_load_explicit(&t->at[number & (t->size - 1)],
						memory_order_acquire);
	return h && h->number == number && h->kind == kind ? h : NULL;
}

_Atomic uint64_t *stream_last(uint64_t stream)
{
	static _Atomic uint64_t
		of_defaults[RF_STREAM_PER_THREAD + 1]; /* [0]: destroyed meanwhile */
	if (stream <= RF_STREAM_PER_THREAD)
		return &of_defaults[stream];
	struct handle *h = handle_get(HANDLE_STREAM, (void *)stream);
	return h ? &h->last : &of_defaults[0];
}

struct handle *handle_next(uint64_t *place)
{
	struct table *t = atomic_load_explicit(&table, memory_order_acquire);
	struct handle *h = NULL;
	while (!h && t && *place < t->size)
		h = atomic_load_explicit(&t->at[(*place)++], memory_order_acquire);
	return h;
}

/* The next handle takes over the memory: a racing reader sees another number, never freed
 * memory. */
void handle_drop(struct handle *h)
{
	lock(HANDLE_LOCK);
	struct table *t = atomic_load(&table);
	INVARIANT(live && atomic_load(&t->at[h->number & (t->size - 1)]) == h,
		  "a handle that is dropped has its place in the table");
	atomic_store(&t->at[h->number & (t->size - 1)], NULL);
	live--;
	if (spare_count == spare_capacity) {
		uint64_t capacity = spare_capacity ? spare_capacity * 2 : 64;
		struct handle **more = realloc(spares, capacity * sizeof *more);
		if (more) {
			spares = more;
			spare_capacity = capacity;
		}
	}
	if (spare_count < spare_capacity)
		spares[spare_count++] = h;
	unlock(HANDLE_LOCK);
}
