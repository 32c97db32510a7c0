/* table.h: a rank's virtual handles, from number to object (table.c). */
#ifndef RANKFOLD_TABLE_H
#define RANKFOLD_TABLE_H

#include <stdbool.h>
#include <stdint.h>

enum object_kind { OBJ_STREAM = 1, OBJ_EVENT, OBJ_MODULE, OBJ_FUNCTION, OBJ_COMM, OBJ_REDOP };

struct object {
	enum object_kind kind;
	uint64_t id;
};

#define OBJECTS_MAX (1u << 20) /* in one table */

struct table { /* id -> object, open addressing */
	struct object **slot;
	uint32_t capacity, count, dead;
};
struct object *table_get(const struct table *, uint64_t id, enum object_kind);
bool table_put(struct table *, struct object *);
bool table_has(const struct table *, uint64_t id); /* of any kind */
void table_remove(struct table *, uint64_t id);
/* Iterates over all objects in no particular order, from *at = 0; NULL: no more. The object
 * returned last may be removed. */
struct object *table_next(const struct table *, uint32_t *at);
/* Objects in ascending order of id; caller frees the array. */
struct object **table_sorted(const struct table *, uint32_t *count);
void table_free(struct table *);

#endif
