/* saved.h: the records that state.c writes to a rank's image, in addition to its memory.
 *
 * They have the framing of the ring (struct rf_record) and follow a header one after another; the
 * size of each is a multiple of RF_RECORD_ALIGN. saved.def lists them; the last one is END.
 * `rankfold inspect` reads this header, too: use only fixed-width numbers and arrays of them.
 *
 * Any change to a record here changes STATE_VERSION; another version is refused.
 */
#ifndef RANKFOLD_SAVED_H
#define RANKFOLD_SAVED_H

#include "channel.h"

#define STATE_OFFSET RF_HEAP_BYTES        /* in the image: memory by heap offset, then the state */
#define STATE_MAGIC 0x4554415453465200ull /* "\0RFSTATE" */
#define STATE_VERSION 11
#define STATE_BYTES_MAX (1ull << 36)

enum state_opcode {
#define SAVED(name, number, type, size) STATE_##name = (number),
#include "saved.def"
#undef SAVED
};

struct state_header {
	uint64_t magic;
	uint32_t version;
	uint32_t elsewhere;       /* chunks whose content is in images of other ranks: it must be
				   * fetched first */
	uint64_t bytes, checksum; /* of the records after the header */
};
struct state_rank {
	struct rf_record r;
	uint64_t capacity_chunks, kernels, collectives, records, switches, squashed;
	uint64_t tail; /* of the channel: this state results from all records before it */
	uint64_t seq;  /* number of the last of these records */
	uint64_t not_swapped, copies, unforeseen;
	uint32_t rank, world_size;
	int32_t async_error;
	uint32_t prepared;
	char error_text[RF_FAULT_BYTES]; /* its beginning */
};
struct state_buffer {
	struct rf_record r;
	uint64_t addr, bytes, call_site;
	uint32_t stable, flags; /* as in rf_alloc */
};
struct state_chunk {
	struct rf_record r;
	uint64_t chunk;
	uint32_t image_owner, reserved; /* the rank whose image had the content when this was
				       * written */
	uint64_t key[2];                /* of the content (memory.h, memory_key) */
};
struct state_stream {
	struct rf_record r;
	uint64_t id;
	uint32_t flags;
	int32_t priority;
};
struct state_event {
	struct rf_record r;
	uint64_t id, recorded;
	uint64_t age_ns; /* at the save; measured with one clock for all events of the rank */
	uint32_t flags, reserved;
};
struct state_module { /* followed by the image, if it has not been loaded */
	struct rf_record r;
	uint64_t id, globals_addr, image_bytes;
	char hash[72];
};
struct state_function { /* followed by the name */
	struct rf_record r;
	uint64_t id, module;
	uint32_t name_bytes, param_bytes, max_threads, static_shared_bytes;
};
struct state_comm {
	struct rf_record r;
	uint64_t id, key, issued;
};
struct state_bytes {
	struct rf_record r;
	uint64_t bytes;
};
struct state_alarm {
	struct rf_record r;
	char text[512];
};
struct state_redop {
	struct rf_record r;
	uint64_t id;
};

_Static_assert((int)STATE_RANK == (int)RF_OP_STATE_FIRST, "no opcode of the ring is one of these");
_Static_assert(sizeof(struct state_header) == 32, "header of the state");
#define SAVED(name, number, type, size)                                                            \
	_Static_assert(sizeof(struct type) == (size), "size of the record " #name);
#include "saved.def"
#undef SAVED

#endif
