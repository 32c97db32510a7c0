/* memory.h: the memory of a device and of the ranks on it. Its files:
 *
 *   buffers.c   a rank's buffers and the pages they touch: alloc, free, where a range lies
 *   image.c     a rank's space and its image, the file of the launcher's where memory goes to
 *   moves.c     pages on their way between device and image; room, victims
 *   transfer.c  the transfers of collectives, which reach any rank's memory (transfer.h)
 *
 * It knows the device's table (hal.h) and nothing of ranks, jobs, streams or channels: those call.
 * What is not said to be the caller's is written here only.
 *
 * A rank's heap is cut into pages of RF_CHUNK_BYTES. A live page (some buffer touches it) is
 * resident (mapped in the rank's space) or not; what is not resident lies in the rank's image at
 * the same offset, or reads as zero. Only kernels need residency. The image belongs to the
 * launcher: so swapping out all that is left, and handing the rank over, are the same act.
 *
 * Rules:
 *  - pages of a rank move only while no submitted work uses its memory (inflight == 0), and nothing
 *    is submitted while they move (moving);
 *  - a page that no buffer touches any more stays mapped until no submitted work uses the rank's
 *    memory (dying counts those); nobody gets it anew before: it would not read as zero;
 *  - nothing here blocks.
 */
#ifndef RANKFOLD_MEMORY_H
#define RANKFOLD_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "hal.h"

#define HEAP_PAGES (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define PIECE_BYTES (16ull << 20) /* of a copy or fill: no rank holds up the others for longer */

/* CUresult numbers that are given here. */
enum { MEMORY_OK = 0, MEMORY_INVALID = 1, MEMORY_SHORT = 2 };

struct buffer {
	uint64_t addr, bytes;
	uint64_t call_site;
	uint32_t stable;
	bool freed;
};

struct page {
	uint32_t buffers; /* live ones that touch it; 0: not there */
	uint32_t hal;     /* physical chunk + 1; 0: not resident */
	bool in_image;    /* the image holds content (else it reads as zero) */
	bool saved;       /* resident, and the image holds the same */
};

struct rank_memory {
	struct device_memory *device;
	uint32_t rank;
	struct hal_space *space;
	int image_fd;
	uint8_t *image;
	struct buffer *buffers; /* sorted by address */
	uint32_t buffer_count, buffer_room;
	struct page *pages; /* HEAP_PAGES of them, mostly untouched */
	uint32_t *live;     /* indices of pages that are there */
	uint32_t live_count, live_room;
	uint32_t dying;    /* live, but no buffer's any more: unmapped when nothing runs */
	uint32_t missing;  /* live but not resident */
	bool moving;       /* pages are on their way */
	bool stopped;      /* nothing more is brought in: the rank has failed */
	int error;         /* of the last activation */
	bool alone;        /* the caller's: no second copy is kept in the image */
	uint32_t inflight; /* submitted works that use it */
	uint64_t last_active;
};

struct move {
	struct rank_memory *memory;
	uint32_t page;
	bool out, stay; /* stay: copied out, and still resident */
	bool changes;   /* while it is copied: what the image gets is of before */
	uint64_t hal_seq;
};

struct device_memory {
	const struct hal *hal;
	struct hal_device *device;
	uint64_t chunks_total, chunks_used;
	struct rank_memory **all; /* in order of rank */
	uint32_t count, room;
	struct hal_stream *swap_stream;
	struct move *moves;
	uint32_t move_count, move_submitted, move_done, move_room;
	uint64_t swapped_in, swapped_out;
	bool progress; /* something has changed; the loop clears it */
};

/* ---- the device's ---- */

int device_memory_open(struct device_memory *, const struct hal *, struct hal_device *,
		       uint64_t bytes);
void device_memory_close(struct device_memory *, bool idle); /* no work is under way */

/* ---- a rank's: image.c ---- */

/* CUresult; the pinned arena is at RF_OFF_PINNED of channel_fd. Close also after an error. */
int memory_open(struct rank_memory *, struct device_memory *, uint32_t rank, int image_fd,
		int channel_fd);
void memory_close(struct rank_memory *);
bool memory_clear_image(struct rank_memory *); /* what an earlier process of it left there */

static inline bool memory_resident(const struct rank_memory *m) { return !m->missing; }
static inline bool memory_moving(const struct rank_memory *m) { return m->moving; }

/* A work that uses it is submitted; it is over. */
static inline void memory_use(struct rank_memory *m) { m->inflight++; }
static inline void memory_used(struct rank_memory *m) { m->inflight--; }

/* ---- buffers.c ---- */

int memory_alloc(struct rank_memory *, const struct rf_alloc *);
struct buffer *memory_find(struct rank_memory *, uint64_t addr);
void memory_free(struct rank_memory *, uint64_t addr);
bool memory_dying(const struct rank_memory *, uint64_t addr, uint64_t bytes);
void memory_sweep(struct rank_memory *); /* lets go of what is freed, if no work is submitted */
bool memory_valid(const struct rank_memory *, uint64_t addr, uint64_t bytes);
uint64_t memory_resolve(struct rank_memory *, uint64_t addr, uint64_t bytes, bool write,
			struct hal_ref *);

/* ---- moves.c ---- */

void memory_begin_activate(struct rank_memory *);
/* Everything to the image; there, too (`stay`), or there instead. It is quiet and nobody writes to
 * it until it is done; then memory_saved. */
void memory_begin_save(struct rank_memory *, bool stay);
bool memory_saved(const struct rank_memory *); /* its image holds all there is */
void memory_changes(struct rank_memory *);     /* from now on: what was saved is of before */
void memory_move(struct device_memory *);
void memory_stop(struct rank_memory *); /* its rank has failed */

/* ---- between the files of this room ---- */

static inline uint64_t page_addr(uint32_t page) { return RF_DEV_BASE + page * RF_CHUNK_BYTES; }
int page_map_fresh(struct rank_memory *, uint32_t page);
void page_give_back(struct rank_memory *, uint32_t page);
void image_punch(struct rank_memory *, uint32_t page);
bool make_room(void **array, uint64_t count, uint64_t more, uint32_t *room, size_t size);

#endif
