/* state.h: a rank's state, to and from its image (state.c), and its kinds of records (saved.c;
 * their layout: saved.h).
 */
#ifndef RANKFOLD_STATE_H
#define RANKFOLD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "rank/table.h"

struct rank;

/* Writes the state, at a cut, when the memory is in the image. Returns its bytes; or 0 with
 * `error`. */
uint64_t state_save(struct rank *, char *error, uint32_t error_bytes);
/* Returns 1 if the state was restored; 0 if the image has no state (a fresh rank); -1 if it cannot
 * be restored. After -1 the image is as it was, and detaching the rank removes what was created. */
int state_restore(struct rank *, char *error, uint32_t error_bytes);
void state_void(struct rank *); /* the state in the image is no longer valid */

/* ---- between state.c and saved.c ---- */

struct writer {
	struct rank *rank;
	uint8_t *at, *end;
	uint64_t now_ns;    /* one time for the whole state */
	uint32_t elsewhere; /* chunks whose content is in images of other ranks */
};

struct saved_kind {
	uint16_t opcode;
	uint32_t bytes;          /* minimum size of a record */
	enum object_kind object; /* saved one by one; 0: not a handle, `save` writes all records */
	/* Returns false if the record does not fit, or host memory is short. */
	bool (*save)(struct writer *, const struct saved_kind *, const struct object *);
	/* Returns CU_OK, CU_OUT_OF_MEMORY or CU_INVALID_VALUE. `now_ns` is the same for all
	 * records. */
	int (*restore)(struct rank *, const void *record, uint64_t now_ns);
};
extern const struct saved_kind saved_kinds[];
extern const uint32_t saved_kind_count;
/* Appends a record with `extra` more bytes, zeroed except for its head; NULL if it does not fit. */
void *saved_put(struct writer *, const struct saved_kind *, uint64_t extra);

#endif
