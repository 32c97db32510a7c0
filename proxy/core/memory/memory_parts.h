/* memory_parts.h: what the files of this room (memory.h) have for one another, and nobody else. */
#ifndef RANKFOLD_MEMORY_PARTS_H
#define RANKFOLD_MEMORY_PARTS_H

#include "memory.h"

int64_t chunk_room(const struct device_memory *); /* negative: some that were promised are lost */
/* Of no page yet. Not blank: it may hold anything, and all of it is to be overwritten. */
int chunk_new(struct device_memory *, bool blank, struct chunk **);
void chunk_let_go(struct device_memory *, struct chunk *); /* of no page any more */
/* Read-only if other pages refer to it, which must be guarded then. */
int page_map(struct rank_memory *, uint32_t page, struct chunk *);
void page_unmap(struct rank_memory *, uint32_t page);
/* Another chunk with the same content. After an error it has the old one, or none. */
int page_remap(struct rank_memory *, uint32_t page, struct chunk *);
/* As page_remap, under work that may read there. CU_NOT_READY: page_copied is to come, or came. */
int page_own(struct rank_memory *, uint32_t page, struct chunk *);
/* The device has given it a chunk of its own, maybe one more than there are. */
void page_copied(struct rank_memory *, uint32_t page, uint32_t number);
void page_leaves(struct rank_memory *, uint32_t page); /* is on its way out */
int pages_guard(struct rank_memory *, uint32_t first, uint32_t count);
int page_guard(struct rank_memory *, uint32_t page);
int pages_open(struct rank_memory *, uint32_t first, uint32_t count, bool shared);
int page_open(struct rank_memory *, uint32_t page, bool shared);
/* It may be written meanwhile, and is still kept for who is to write it. */
void content_doubted(struct rank_memory *, uint32_t page);
const struct version *content_digest(struct rank_memory *, uint32_t page);
bool content_same(struct rank_memory *, struct rank_memory *, uint32_t page);
/* Who has what this page holds, which is not resident, and can share it now; NULL: nobody. */
struct rank_memory *sharing_giver(struct rank_memory *, uint32_t page);
bool sharing_soon(struct rank_memory *, uint32_t page); /* not now, but who has it is busy */
int sharing_take(struct rank_memory *to, struct rank_memory *from, uint32_t page);
void sharing_was_in_vain(struct rank_memory *, uint32_t page); /* it is copied */
void image_punch(struct rank_memory *, uint32_t page);
void image_filled(struct rank_memory *, uint32_t page); /* it has got the page's content */
uint8_t *image_at(const struct rank_memory *, uint32_t page);
void image_ready(struct rank_memory *, uint32_t page); /* all of it is to be written there */
/* held.c: what the image has of the page is about to change. */
void image_changes(struct rank_memory *, uint32_t page);
bool image_held(const struct rank_memory *);
void image_hold_lost(struct rank_memory *); /* who copies it has lost something of it */
struct copy *copy_new(struct device_memory *, struct version key); /* nobody's; NULL: no memory */
void copy_refer(struct rank_memory *, uint32_t page, struct copy *);
void copy_forget(struct rank_memory *, uint32_t page); /* unless it has none */
void page_common(struct rank_memory *, uint32_t page); /* its content is that of its copy */
/* Where a missing page lies; to `write` there, in the rank's own image. */
uint8_t *page_on_host(struct rank_memory *, uint32_t page, bool write);
bool copies_trusted(const struct rank_memory *);
void copies_named(struct rank_memory *, uint32_t page); /* its image holds what it holds now */
bool copies_image_has(struct rank_memory *, uint32_t page);
bool copies_has(struct rank_memory *, uint32_t page);
struct copy *copies_find(struct rank_memory *, uint32_t page);
bool copies_turn(struct device_memory *);
void blank_let_go(struct rank_memory *); /* forget.c: if no work is submitted */
/* Does another rank of the group hold the same there, wherever it has it? */
bool sharing_alike(struct rank_memory *, uint32_t page);
bool sharing_ample(const struct device_memory *); /* is there a chunk for each page of all ranks? */
bool sharing_stays_apart(const struct rank_memory *, uint32_t page);
uint64_t sharing_fitness(const struct rank_memory *, uint64_t addr, uint64_t bytes);
static inline bool move_inwards(const struct move *v)
{
	return v->kind == MOVE_IN || v->kind == MOVE_OWN;
}
static inline bool prepares(const struct rank_memory *m)
{
	return m->request.state && m->request.purpose == PURPOSE_PREFETCH;
}
static inline void prepared(struct rank_memory *m) /* a page has come */
{
	m->device->prepared++;
	m->counted.prepared++;
}
bool move_add(struct rank_memory *, uint32_t page, enum move_kind);
/* What a save takes of a live page; false: nothing. */
bool move_saves(struct rank_memory *, uint32_t page, bool stay, enum move_kind *);
void moves_drop(struct rank_memory *); /* of those in, what is not submitted */
bool moves_pump(struct device_memory *);
void moves_are_of_before(struct rank_memory *); /* what they copy, and what was saved */
bool moves_forget_saved(struct rank_memory *);  /* some of that; true: it took a while */

#endif
