/* state.h: a rank's state to and from its image (state.c), and the kinds of records that it has
 * (saved.c; how they are laid out: saved.h).
 */
#ifndef RANKFOLD_STATE_H
#define RANKFOLD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "rank/table.h"

struct rank;

/* At a cut, when the memory is in the image: bytes; or 0 and why. */
uint64_t state_save(struct rank *, char *error, uint32_t error_bytes);
/* 1: restored; 0: the image holds no state (a fresh rank); -1: it cannot be restored, and is there
 * as it was: what has been made of it until then goes when the rank is detached. */
int state_restore(struct rank *, char *error, uint32_t error_bytes);
void state_void(struct rank *); /* what is in the image is no longer the rank's state */

/* ---- between state.c and saved.c ---- */

struct writer {
	struct rank *rank;
	uint8_t *at, *end;
	uint64_t now_ns;    /* one moment for all of it */
	uint32_t elsewhere; /* chunks that lie in images of others */
};

struct saved_kind {
	uint16_t opcode;
	uint32_t bytes; /* of a record, at least */
	enum object_kind
		object; /* saved one by one; 0: this kind is no handle, `save` writes all */
	/* False: it does not fit, or host memory is short. */
	bool (*save)(struct writer *, const struct saved_kind *, const struct object *);
	/* CU_OK, CU_OUT_OF_MEMORY, CU_INVALID_VALUE. `now_ns` is one moment for all of it. */
	int (*restore)(struct rank *, const void *record, uint64_t now_ns);
};
extern const struct saved_kind saved_kinds[];
extern const uint32_t saved_kind_count;
/* Room for a record and `extra` bytes behind it, zeroed but for its head; NULL: no room. */
void *saved_put(struct writer *, const struct saved_kind *, uint64_t extra);

#endif
