/* rounds.c: a hash table of rounds by rank and communicator. See barrier.c.
 *
 * Rules: entries are kept in order of insertion, so that an iteration over them is the same
 * everywhere; they stay until the table is cleared.
 */
#include "barrier_parts.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_round(uint32_t rank, uint64_t comm)
{
	uint64_t h = (comm ^ ((uint64_t)rank << 32)) * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(h >> 32);
}

struct entry *rounds_get(const struct rounds *t, uint32_t rank, uint64_t comm)
{
	if (!t->capacity)
		return NULL;
	for (uint32_t i = hash_round(rank, comm);; i++) {
		uint32_t slot = t->slot[i & (t->capacity - 1)];

		if (!slot)
			return NULL;
		if (t->entry[slot - 1].rank == rank && t->entry[slot - 1].comm == comm)
			return &t->entry[slot - 1];
	}
}

static void rounds_place(struct rounds *t, uint32_t number)
{
	uint32_t i = hash_round(t->entry[number].rank, t->entry[number].comm) & (t->capacity - 1);

	INVARIANT(number < t->capacity / 2, "a table of rounds has space");
	while (t->slot[i])
		i = (i + 1) & (t->capacity - 1);
	t->slot[i] = number + 1;
}

/* Finds or creates an entry. Returns NULL, with an error, if memory is short. Pointers to other
 * entries become invalid. */
struct entry *rounds_put(struct barrier *b, struct rounds *t, uint32_t rank, uint64_t comm)
{
	struct entry *e = rounds_get(t, rank, comm);

	if (e)
		return e;
	if (2 * t->count >= t->capacity) {
		uint32_t capacity = t->capacity ? 2 * t->capacity : 32;
		uint32_t *slot = calloc(capacity, sizeof *slot);
		struct entry *entry = realloc(t->entry, capacity / 2 * sizeof *entry);

		if (entry)
			t->entry = entry;
		if (!slot || !entry) {
			free(slot);
			barrier_fail(b, "out of memory", rank, comm);
			return NULL;
		}
		free(t->slot);
		t->slot = slot;
		t->capacity = capacity;
		for (uint32_t i = 0; i < t->count; i++)
			rounds_place(t, i);
	}
	t->entry[t->count] = (struct entry){.rank = rank, .comm = comm};
	rounds_place(t, t->count);
	return &t->entry[t->count++];
}

void rounds_clear(struct rounds *t)
{
	if (t->capacity)
		memset(t->slot, 0, t->capacity * sizeof *t->slot);
	t->count = 0;
}

void rounds_free(struct rounds *t)
{
	free(t->entry);
	free(t->slot);
}
