/* memory_parts.h: declarations that the files of this folder share (memory.h); no other code uses
 * them. */
#ifndef RANKFOLD_MEMORY_PARTS_H
#define RANKFOLD_MEMORY_PARTS_H

#include "memory.h"

int64_t chunks_available(
	const struct device_memory *); /* negative: some promised chunks are unusable */
/* Creates a chunk without pages. Not blank: it may hold any content, and the caller overwrites all
 * of it. */
int chunk_new(struct device_memory *, bool blank, struct chunk **);
void chunk_release(struct device_memory *, struct chunk *); /* it has no page any more */
/* Maps a chunk: read-only if other pages refer to it; those must be write-protected. */
int page_map(struct rank_memory *, uint32_t page, struct chunk *);
void page_unmap(struct rank_memory *, uint32_t page);
/* Maps another chunk with the same content. After an error the page has its old chunk, or none. */
int page_remap(struct rank_memory *, uint32_t page, struct chunk *);
/* As page_remap, while submitted work may read the page. CU_NOT_READY: the device has already given
 * the page a chunk (page_copied). */
int page_own(struct rank_memory *, uint32_t page, struct chunk *);
/* Records a chunk that the device gave to the page, possibly one more than the total. */
void page_copied(struct rank_memory *, uint32_t page, uint32_t number);
void page_leaves(struct rank_memory *, uint32_t page); /* it is being swapped out */
int pages_write_protect(struct rank_memory *, uint32_t first, uint32_t count);
int page_write_protect(struct rank_memory *, uint32_t page);
int pages_open(struct rank_memory *, uint32_t first, uint32_t count, bool shared);
int page_open(struct rank_memory *, uint32_t page, bool shared);
/* The page may be written meanwhile; it stays kept for the work that is about to write it. */
void content_distrust(struct rank_memory *, uint32_t page);
const struct version *content_digest(struct rank_memory *, uint32_t page);
bool content_same(struct rank_memory *, struct rank_memory *, uint32_t page);
/* Finds a rank that has this missing page's content in a chunk and can share it now; NULL: none. */
struct rank_memory *sharing_giver(struct rank_memory *, uint32_t page);
bool sharing_soon(struct rank_memory *, uint32_t page); /* not now, but a busy rank has it */
int sharing_take(struct rank_memory *to, struct rank_memory *from, uint32_t page);
void sharing_saved_nothing(struct rank_memory *,
			   uint32_t page); /* sets the backoff: it was copied */
void image_punch(struct rank_memory *, uint32_t page);
void image_filled(struct rank_memory *, uint32_t page); /* the image now has the page's content */
uint8_t *image_at(const struct rank_memory *, uint32_t page);
void image_ready(struct rank_memory *, uint32_t page); /* before all of it is written there */
/* image_hold.c: called before the image's content of the page changes. */
void image_changes(struct rank_memory *, uint32_t page);
bool image_hold_active(const struct rank_memory *);
void image_hold_overflow(struct rank_memory *); /* a copier of the image has lost content */
/* without references; NULL: no memory */
struct copy *copy_new(struct device_memory *, struct version key);
void copy_refer(struct rank_memory *, uint32_t page, struct copy *);
void copy_forget(struct rank_memory *, uint32_t page); /* no effect if it has none */
void page_common(struct rank_memory *, uint32_t page); /* its content is that of its copy */
/* The host address of a missing page's content; with `write`, in the rank's own image. */
uint8_t *page_on_host(struct rank_memory *, uint32_t page, bool write);
bool copies_trusted(const struct rank_memory *);
void copies_named(struct rank_memory *, uint32_t page); /* its image holds its current content */
bool copies_image_has(struct rank_memory *, uint32_t page);
bool copies_has(struct rank_memory *, uint32_t page);
struct copy *copies_find(struct rank_memory *, uint32_t page);
bool copies_turn(struct device_memory *);
void blank_release(struct rank_memory *); /* invalidate.c: if no work is submitted */
/* True if another rank of the group holds the same content there, on the device or not. */
bool sharing_alike(struct rank_memory *, uint32_t page);
bool sharing_ample(const struct device_memory *); /* a chunk exists for each page of all ranks */
bool sharing_backs_off(const struct rank_memory *, uint32_t page);
uint64_t sharing_fitness(const struct rank_memory *, uint64_t addr, uint64_t bytes);
static inline bool move_inwards(const struct move *v)
{
	return v->kind == MOVE_IN || v->kind == MOVE_OWN;
}
static inline bool is_prefetching(const struct rank_memory *m)
{
	return m->request.state && m->request.purpose == PURPOSE_PREFETCH;
}
static inline void count_prefetched(struct rank_memory *m) /* a page was prefetched */
{
	m->device->prepared++;
	m->counted.prepared++;
}
bool move_add(struct rank_memory *, uint32_t page, enum move_kind);
/* The move that a save needs for a live page; false: none. */
bool move_saves(struct rank_memory *, uint32_t page, bool stay, enum move_kind *);
void moves_drop(struct rank_memory *); /* drops moves inwards that are not submitted */
bool moves_pump(struct device_memory *);
void moves_are_of_before(struct rank_memory *); /* saved content is outdated */
bool moves_forget_saved(struct rank_memory *);  /* of a few pages; true: it took time */

#endif
