/* table.c: a rank's virtual handles, from number to object.
 *
 * Open addressing with linear probing; a removed slot is a tombstone until the next growth.
 * Does not own the objects.
 */
#include <stdlib.h>

#include "invariant.h"
#include "rank/table.h"

static struct object tombstone;

static uint32_t slot_of(const struct table *t, uint64_t id)
{
	return (uint32_t)((id * 0x9e3779b97f4a7c15ull) >> 32) & (t->capacity - 1);
}

static bool enlarge_table(struct table *t)
{
	struct table bigger = {0};
	bigger.capacity = t->capacity ? t->capacity : 16;
	while (bigger.capacity < (t->count + 1) * 2)
		bigger.capacity *= 2;
	bigger.slot = calloc(bigger.capacity, sizeof *bigger.slot);
	if (!bigger.slot)
		return false;
	for (uint32_t i = 0; i < t->capacity; i++) {
		if (!t->slot[i] || t->slot[i] == &tombstone)
			continue;
		uint32_t s = slot_of(&bigger, t->slot[i]->id);
		while (bigger.slot[s])
			s = (s + 1) & (bigger.capacity - 1);
		bigger.slot[s] = t->slot[i];
		bigger.count++;
	}
	free(t->slot);
	*t = bigger;
	return true;
}

static struct object *find_entry(const struct table *t, uint64_t id)
{
	if (!t->capacity)
		return NULL;
	for (uint32_t s = slot_of(t, id); t->slot[s]; s = (s + 1) & (t->capacity - 1))
		if (t->slot[s] != &tombstone && t->slot[s]->id == id)
			return t->slot[s];
	return NULL;
}

struct object *table_get(const struct table *t, uint64_t id, enum object_kind kind)
{
	struct object *found = find_entry(t, id);
	return found && found->kind == kind ? found : NULL;
}

bool table_has(const struct table *t, uint64_t id) { return find_entry(t, id) != NULL; }

/* Returns false if the number is taken, there are too many objects, or host memory is short. */
bool table_put(struct table *t, struct object *object)
{
	if (t->count >= OBJECTS_MAX)
		return false;
	if ((t->count + t->dead + 1) * 4 > t->capacity * 3 && !enlarge_table(t))
		return false;
	uint32_t s = slot_of(t, object->id);
	for (; t->slot[s]; s = (s + 1) & (t->capacity - 1))
		if (t->slot[s] != &tombstone && t->slot[s]->id == object->id)
			return false;
	t->slot[s] = object;
	t->count++;
	return true;
}

void table_remove(struct table *t, uint64_t id)
{
	if (!t->capacity)
		return;
	for (uint32_t s = slot_of(t, id); t->slot[s]; s = (s + 1) & (t->capacity - 1)) {
		if (t->slot[s] == &tombstone || t->slot[s]->id != id)
			continue;
		INVARIANT(t->count, "a table counts its objects");
		t->slot[s] = &tombstone;
		t->count--;
		t->dead++;
		return;
	}
}

struct object *table_next(const struct table *t, uint32_t *at)
{
	while (*at < t->capacity) {
		struct object *o = t->slot[(*at)++];
		if (o && o != &tombstone)
			return o;
	}
	return NULL;
}

static int by_id(const void *a, const void *b)
{
	const struct object *const *x = a, *const *y = b;
	return ((*x)->id > (*y)->id) - ((*x)->id < (*y)->id);
}

struct object **table_sorted(const struct table *t, uint32_t *count)
{
	struct object **all = calloc(t->count + 1, sizeof *all);
	*count = 0;
	for (uint32_t i = 0; all && i < t->capacity; i++)
		if (t->slot[i] && t->slot[i] != &tombstone)
			all[(*count)++] = t->slot[i];
	if (all)
		qsort(all, *count, sizeof *all, by_id);
	return all;
}

void table_free(struct table *t)
{
	free(t->slot);
	*t = (struct table){0};
}
