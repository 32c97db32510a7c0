/* memory.h: the memory of a device and of the ranks on it. Its files, from the lowest to the
 * highest: one calls those above it here and no other (tests/proxy/test_floors.py).
 *
 *   chunk.c     physical chunks: who refers to them, how many there are
 *   held.c      an image that its launcher copies: what is about to change there is set aside
 *   image.c     a rank's image, the file of the launcher's where memory goes to, and copies of
 *               pages on the host that several ranks refer to
 *   buffers.c   a rank's buffers and the pages they touch: alloc, free, where a range lies
 *   content.c   what it holds, by versions
 *   copies.c    is what a page holds on the host already, for this rank or for another one?
 *   sharing.c   chunks that several ranks refer to, and what a rank may write
 *   adopt.c     what another rank has computed is mapped instead of computed again
 *   forget.c    content that counts for nothing any more
 *   moves.c     pages on their way between device and image
 *   request.c   requests for a rank's memory, in which order they are served, who makes room
 *   opening.c   a device's memory, and a rank's: opened and closed
 *   transfer.c  the transfers of collectives, which reach any rank's memory (transfer.h)
 *   valid.c     do counters and lists agree?
 *
 * It knows the device's table (hal.h) and nothing of ranks, jobs, streams or channels: those call.
 * What is not said to be the caller's is written here only.
 *
 * A rank's heap is cut into pages of RF_CHUNK_BYTES. A live page (some buffer touches it) is
 * resident (it refers to a chunk, which is mapped in the rank's space) or not; what is not resident
 * lies in the rank's image at the same offset, or in a copy that several ranks refer to and that is
 * never written again, or reads as zero. Only kernels need residency. The
 * image belongs to the launcher: so swapping out all that is left, and handing the rank over, are
 * the same act.
 *
 * Rules:
 *  - pages of a rank move only while no submitted work uses its memory (inflight == 0), but for
 *    copies beneath it (below), and nothing is submitted while they move (memory_moving);
 *  - a page that no buffer touches any more stays mapped until no submitted work uses the rank's
 *    memory (dying counts those); nobody gets it anew before: it would not read as zero;
 *  - a chunk goes back to the device when no page refers to it any more;
 *  - nothing here blocks.
 *
 * Sharing. Pages of several ranks refer to one chunk where they hold the same at the same address:
 *  - only ranks of one group do, and a page is compared (by its digest, content.c) and changes its
 *    mapping only while no submitted work uses the memory of its rank: then versions and bytes
 *    agree. A rank that has failed takes no part;
 *  - such a page is guarded: mapped read-only in all. Who is to write asks first (memory_owns,
 *    PURPOSE_COPY), before the first part of the work is given away. What comes to be owned is
 *    kept: shared no more before it is written, so that a work can own all it needs at one time;
 *  - what had to be copied is left apart for a while, and longer each time: nobody gains by sharing
 *    what each of them soon writes. Unless there is no chunk for every page of all ranks;
 *  - one rank may have it open, for a work that runs once for all who refer to it; all of them
 *    count that work, and so nobody looks at the page meanwhile;
 *  - what a kernel writes although nobody knew goes to a copy that the device makes. It is counted
 *    when the work is over, or when the device says that it is full; it may be one chunk more than
 *    there are, and then room is negative until something leaves.
 *
 * Requests. Each rank has one at most, each with a purpose, and each completes once.
 * Those of different ranks go on side by side. One begins when its rank's memory is quiet, and,
 * where it needs chunks, when there is room for all of them at once:
 *
 *     room = chunks_total - used - reserved + leaving
 *
 * `used` chunks have pages or are lost, `reserved` ones are promised to requests that have begun,
 * `leaving` ones will be free without waiting for anybody: every page that refers to them is on
 * its way out, and what is on its way out cannot be called back. So whoever has begun ends. Those
 * that wait for room are served in one order (by purpose, then by age): the first takes victims
 * until it has enough, and nobody behind it takes room. Victims are the quiet ranks, the one that
 * was active longest ago first; a request that has not begun owns nothing, so its rank may be
 * one. Only a prefetch has to spare some: the active rank, and those with a request.
 *
 * A prefetch takes part of what it asks for, as much as there is room, and ends. Whoever needs room
 * then gets back what it has been promised (few of its pages are on their way at one time), and
 * what has come, which goes first: its rank was active longest ago, and the image holds the same.
 *
 * A missing page needs no chunk if a quiet rank of the group has the same: it is shared when the
 * request begins. Of a victim go out first the pages of chunks that nobody else refers to, then
 * those that only victims share, all at once; never what the requester refers to or is about to
 * share, which would free nothing. If all others are quiet and have let go of all but that, each
 * chunk
 * that is left is one of the requester's pages, which are at most as many as there are chunks
 * (memory_alloc sees to it): so the first in order can begin, and there is no deadlock.
 *
 * A copy needs a chunk for each page in its range that others refer to and keep. If there are too
 * few even then, the others let go of pages in the range, too: each of these needs no chunk any
 * more, and in the end none does. A copy waits for those that leave, which do so by themselves.
 * Where the device can (space_own) it does not wait for the rank's work, which may be waiting for
 * what is to be written: that only reads what is guarded, and cannot tell the copy from it. If a
 * kernel writes there unforeseen, what it gets for that stays, and the copy is dropped.
 * Saves need no room and wait for nobody's work. Of those that stay one of a group is served at a
 * time: what lies in its image then need not go to the others'.
 */
#ifndef RANKFOLD_MEMORY_H
#define RANKFOLD_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "codes.h"
#include "hal.h"
#include "invariant.h"
#include "versions/versions.h"

#define HEAP_PAGES (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define PIECE_BYTES (16ull << 20) /* of a copy or fill: no rank holds up the others for longer */

struct buffer {
	uint64_t addr, bytes;
	uint64_t call_site;
	uint32_t stable;
	bool freed;
};

struct chunk {            /* physical memory for a page, of all pages that refer to it */
	uint32_t refs;    /* pages that it is mapped at */
	uint32_t leaving; /* of these, on their way out */
	bool held;        /* created, and not destroyed since */
	bool lost;        /* could not be unmapped somewhere: nobody else may ever have it */
};

struct copy {               /* of a page, on the host, for several ranks; never written again */
	uint8_t *bytes;     /* the proxy's: RF_CHUNK_BYTES */
	uint32_t refs;      /* pages that refer to it */
	struct version key; /* of what it holds */
	uint64_t hal_seq;   /* of the copy to it; 0: it was made at once */
};

struct page {
	uint32_t buffers;     /* live ones that touch it; 0: not there */
	bool in_image;        /* the image holds content; where the page is missing and not common,
				* this is the page's (else it reads as zero) */
	bool saved;           /* resident, and the image holds the same */
	bool keyed;           /* resident, and the image holds what `key` names */
	bool common;          /* missing, and its content is that of `copy` */
	bool hole;            /* of the image, where content was */
	bool touched;         /* the image has been read or written there, by this proxy */
	bool fresh;           /* in the rank's list of these: nobody has looked who has the same */
	bool leaving;         /* on its way out */
	bool guarded;         /* mapped read-only */
	bool open;            /* shared, and can be written for all who share it */
	bool kept;            /* copied to be written: shared no more before it is */
	uint8_t wary;         /* of sharing it, which has been in vain (sharing.c) */
	bool told;            /* of that, by another rank that has tried */
	uint64_t apart_until; /* a turn of the device's */
	struct chunk *chunk;  /* NULL: not resident */
	uint64_t blank;       /* contents + 1: what lies there counts for nothing (forget.c) */
	struct copy *copy;    /* or NULL; not common: of what the page held once */
	struct version key;
	struct version digest; /* of its content, if `digested` says so (content.c) */
	uint64_t digested;
};

enum memory_purpose {               /* in the order of service */
		      PURPOSE_SAVE, /* all of it to the image; there, too (`stay`), or there instead */
		      PURPOSE_ACTIVATE, /* all of it resident: the rank is to run */
		      PURPOSE_COPY,     /* chunks of its own for a range that is to be written */
		      PURPOSE_PREFETCH, /* as much of it as there is room to spare: it runs soon */
};

/* How a request completes, besides CUresult numbers. */
#define MEMORY_CANCELLED (-1)

enum request_state { REQUEST_NONE, REQUEST_WAITING, REQUEST_BEGUN };

struct memory_request {
	/* The caller's. */
	enum memory_purpose purpose;
	bool stay;            /* SAVE */
	uint64_t addr, bytes; /* COPY */
	bool once;            /* COPY: what it writes now it will not write each time */
	void (*over)(void *arg, enum memory_purpose, int result); /* or NULL */
	void *arg;
	/* Ours. */
	enum request_state state;
	int result;
	struct rank_memory *memory;
	struct memory_request *next; /* in the order of service */
};

enum move_kind {
	MOVE_OUT,  /* to the image */
	MOVE_SAVE, /* copied to the image, and still resident */
	MOVE_IN,   /* a chunk, and what the image has */
	MOVE_OWN,  /* a chunk of its own, and what the shared one has */
	MOVE_HOME, /* to the image, from a copy that several have */
};

struct move {
	uint32_t page;
	enum move_kind kind;
	bool changes;        /* while it is copied: what the image gets is of before */
	bool promised;       /* a chunk, which is not taken yet */
	bool common;         /* OUT: to a copy that others may refer to, too */
	bool copied;         /* there was something to copy */
	struct chunk *chunk; /* OWN: the new one, */
	struct chunk *from;  /* a copy of this */
	uint64_t hal_seq;    /* 0: there was nothing to copy */
};

struct memory_range {
	uint64_t addr, bytes;
};

struct memory_counters {     /* of a rank, since it began */
	uint64_t spared;     /* bytes that were where they were to be, and so not moved in or out */
	uint64_t copies;     /* of pages, before they were written */
	uint64_t unforeseen; /* of pages, while a kernel wrote to them */
	uint64_t prepared;   /* pages that came before the rank's turn */
};

#define STRAYS_MAX 16u

struct rank_memory {
	struct device_memory *device;
	uint64_t group; /* only ranks of one group share */
	uint32_t rank;
	struct hal_space *space;
	int image_fd;
	uint8_t *image;
	struct buffer *buffers; /* sorted by address */
	uint32_t buffer_count, buffer_room;
	struct page *pages; /* HEAP_PAGES of them, mostly untouched */
	uint32_t *live;     /* indices of pages that are there */
	uint32_t live_count, live_room;
	uint32_t unlooked; /* the first of them may lie in the image as they were saved */
	uint32_t dying;    /* live, but no buffer's any more: unmapped when nothing runs */
	uint32_t missing;  /* live but not resident */
	uint32_t guarded;  /* resident pages that are guarded or open */
	uint32_t inflight; /* submitted works that use it, */
	uint32_t exact;    /* and those of them that write where they say, whatever becomes of it */
	uint64_t last_active;
	bool single;     /* no other rank is of its group */
	bool fenced;     /* the submitted work may write anywhere (memory_fence) */
	bool surprised;  /* another has written where nothing said that it might */
	bool stopped;    /* nothing more is brought in: the rank has failed */
	bool doubted;    /* it shares no more: what versions say has been found wrong */
	bool alone;      /* on its device: no second copy is kept in the image */
	bool whole;      /* saved or being saved: what its image holds stays there */
	uint32_t *fresh; /* pages of which the image has got something new */
	uint32_t fresh_count, fresh_room;
	uint32_t writes_page;     /* where its image was last written from outside of the device */
	bool gives, asked;        /* while somebody looks for who may share, or make room */
	struct versions versions; /* of its heap */
	uint64_t contents;        /* how often all of it has become unknown */
	struct memory_counters counted;
	uint32_t strays[STRAYS_MAX]; /* pages of unforeseen writes, nobody has asked for */
	uint32_t stray_count;
	struct memory_request request;
	struct move *moves; /* all of one direction, in order */
	uint32_t move_count, move_submitted, move_done, move_room;
};

struct device_memory {
	const struct hal *hal;
	struct hal_device *device;
	uint64_t total, used, reserved, leaving; /* chunks */
	uint64_t lost;                           /* of those used: of no page, and lost */
	uint64_t shared;                         /* of those used: of several pages */
	bool shares;                             /* may ranks share? memory_may_share */
	struct chunk *chunks;                    /* by the device's number */
	struct rank_memory **all;                /* in order of rank */
	uint32_t count, room;
	struct rank_memory *active;          /* whose kernels run, or NULL */
	uint64_t turns;                      /* how often that has changed */
	struct memory_request *requests;     /* in the order of service */
	uint32_t moving;                     /* ranks of which pages move */
	struct hal_stream *in, *out;         /* queues of the moves */
	struct hal_space *scratch;           /* where new chunks of OWN are written, by number */
	uint64_t swapped_in, swapped_out;    /* bytes */
	uint64_t swapped_alike;              /* of these: another rank held the same there */
	int moves_fd;                        /* gets a line for each of these pages; 0: none */
	uint64_t copies_held;                /* on the host, for several ranks */
	uint64_t holes, refilled;            /* punched into images, and later written again */
	bool fresh;                          /* some rank has pages in its list of these */
	uint64_t spared, copies, unforeseen; /* as of a rank: of all that were ever here */
	uint64_t opened_early;               /* pages that were opened while a sum was computed */
	uint64_t prepared;                   /* pages; likewise */
	bool progress;                       /* something has changed */
};

/* ---- the device's: opening.c ---- */

int device_memory_open(struct device_memory *, const struct hal *, struct hal_device *,
		       uint64_t bytes);
void device_memory_close(struct device_memory *, bool idle); /* no work is under way */
static inline void memory_may_share(struct device_memory *d, bool shares) { d->shares = shares; }
static inline void memory_tells_moves(struct device_memory *d, int fd) { d->moves_fd = fd; }

/* ---- a rank's: opening.c ---- */

/* CUresult; the pinned arena is at RF_OFF_PINNED of channel_fd. Close also after an error, and only
 * when nothing moves and no submitted work uses it. */
int memory_open(struct rank_memory *, struct device_memory *, uint64_t group, uint32_t rank,
		int image_fd, int channel_fd);
void memory_close(struct rank_memory *);
void memory_image_holds(struct rank_memory *, uint32_t page); /* image.c: it came with it */
static inline void memory_counts_from(struct rank_memory *m, struct memory_counters c)
{
	m->counted = c;
}
bool memory_clear_image(struct rank_memory *); /* image.c: what an earlier process left there */

/* Is there nobody to make room for? */
static inline void memory_alone(struct rank_memory *m, bool alone) { m->alone = alone; }

/* What versions say of its group has been found wrong: from now on it shares nothing more. */
static inline void memory_doubt(struct rank_memory *m) { m->doubted = true; }

/* Is it the only rank of its group, on any device? Then nobody ever has the same. */
static inline void memory_single(struct rank_memory *m, bool single) { m->single = single; }

static inline bool memory_resident(const struct rank_memory *m) { return !m->missing; }
static inline bool memory_moving(const struct rank_memory *m) { return m->move_count != 0; }

/* A work that uses it is submitted; it has completed: then it may have written what it shares. */
static inline void memory_use(struct rank_memory *m) { m->inflight++; }
/* Pages that were written unforeseen since somebody last asked, at most STRAYS_MAX; how many. */
uint32_t memory_strays(struct rank_memory *, uint32_t pages[STRAYS_MAX]);
void sharing_copied(struct rank_memory *); /* sharing.c: what it did not foresee is counted */
static inline void memory_used(struct rank_memory *m)
{
	INVARIANT(m->inflight, "work that has completed was counted");
	m->inflight--;
	if (m->guarded)
		sharing_copied(m);
	m->fenced &= m->inflight != 0;
	m->surprised &= m->inflight != 0;
}
/* The same of a copy or a sum that is no program's. */
static inline void memory_use_exact(struct rank_memory *m)
{
	m->exact++;
	memory_use(m);
}
static inline void memory_used_exact(struct rank_memory *m)
{
	INVARIANT(m->exact, "a copy or a sum that has completed was counted");
	m->exact--;
	memory_used(m);
}
/* Is there such a one, and nothing else? */
static inline bool memory_only_exact(const struct rank_memory *m)
{
	return m->exact && m->exact == m->inflight;
}

/* ---- buffers.c ---- */

int memory_alloc(struct rank_memory *, const struct rf_alloc *);
struct buffer *memory_find(struct rank_memory *, uint64_t addr);
/* It will be, when older work is over (memory_free). */
static inline void memory_freed(struct buffer *b) { b->freed = true; }
void memory_free(struct rank_memory *, uint64_t addr);
bool memory_dying(const struct rank_memory *, uint64_t addr, uint64_t bytes);
void memory_sweep(struct rank_memory *); /* lets go of what is freed, if no work is submitted */
bool memory_valid(const struct rank_memory *, uint64_t addr, uint64_t bytes);
uint64_t memory_resolve(struct rank_memory *, uint64_t addr, uint64_t bytes, bool write,
			struct hal_ref *);
bool memory_pinned(const struct rank_memory *, uint64_t addr); /* the host's, too */

/* ---- content.c: for whoever submits what writes ---- */

struct content content_of_bytes(const void *, uint64_t bytes);
void content_is(struct rank_memory *, uint64_t addr, uint64_t bytes, struct content);
void content_unknown(struct rank_memory *, uint64_t addr, uint64_t bytes);
void content_all_unknown(struct rank_memory *);
void content_copied(struct rank_memory *, uint64_t to, uint64_t from, uint64_t bytes);
/* Adds to a digest what lies there. False: nothing is known of that. */
bool content_absorb(const struct rank_memory *, uint64_t addr, uint64_t bytes, struct digest *);
/* Is this known to lie there? */
bool content_holds(const struct rank_memory *, uint64_t addr, uint64_t bytes, struct content);

/* Bytes relative to an address: from `low` up to `high`. Nothing: not low < high. */
struct bound {
	int64_t low, high;
};
/* An address through which a work reaches the buffer that it points into; of the uses that are
 * `bounded`, no more than `read` and `written`, which may go beyond the buffer's ends: programs do
 * write there, where CUDA lets them. If these lie wholly outside of it, nothing is known of the
 * work. Writes that are not bounded, because what is read from memory leads them, may go anywhere;
 * reads are taken to stay in the buffer, because nobody is harmed. What is no address of
 * the rank's is a number. UNORDERED: what the work writes depends on who comes first; PERHAPS: it
 * may write there, and what that leaves depends on what was there, too. */
enum reach_use { REACH_READ = 1, REACH_WRITTEN = 2, REACH_UNORDERED = 4, REACH_PERHAPS = 8 };
struct reach {
	uint64_t addr;
	uint32_t use;
	uint32_t bounded; /* REACH_READ, REACH_WRITTEN */
	struct bound read, written;
};

/* What a work will have done to its rank's memory, told before it is submitted. */
#define RANGES_MAX 64 /* of more nothing is said */
struct range {
	uint64_t addr, bytes;
	uint32_t use; /* enum reach_use */
};
struct foreseen {
	bool known;         /* false: it may read and write all there is */
	bool astray;        /* it may write where no range is, */
	bool trusted;       /* but is taken not to, on pages that some range is on */
	bool keyed;         /* there is a key: */
	bool unordered;     /* and what is written depends on who comes first, besides: */
	struct version key; /* of all that decides what is written, and where in the ranges */
	uint32_t count;     /* in the order that belongs to the key: */
	struct range ranges[RANGES_MAX];
};
/* Neither ranges nor key: begin with this. */
static inline void foreseen_none(struct foreseen *f)
{
	f->known = true;
	f->astray = f->trusted = f->keyed = f->unordered = false;
	f->count = 0;
}
void foreseen_add(struct foreseen *, uint64_t addr, uint64_t bytes, uint32_t use);
/* A work that reaches nothing but this, and that the digest describes but for it. */
void content_foresee(struct rank_memory *, struct digest *, const struct reach *, uint32_t count,
		     struct foreseen *);
/* Of what such a work writes: its key; one that nothing else ever gets if it has none, or if that
 * is not all (UNORDERED). */
struct version content_version(struct rank_memory *, const struct foreseen *);
/* It has been submitted, and writes this. */
void content_commit(struct rank_memory *, const struct foreseen *, struct version);
/* Does the rank hold all that such a work writes: has it been done? */
bool content_committed(const struct rank_memory *, const struct foreseen *);

/* ---- image.c ---- */

struct memory_on_host {  /* pages */
	uint64_t pages;  /* missing, with content: where that lies */
	uint64_t shared; /* of these, in a copy that other ranks refer to, too */
	uint64_t spare;  /* resident, and the image has kept what it held before, or the same */
};
/* `once`: a copy counts for the first rank only that refers to it. */
struct memory_on_host memory_on_host(const struct rank_memory *, bool once);

/* ---- sharing.c ---- */

/* May the rank's work write all of it: is every page that is resident its alone, and not guarded?
 * If not, PURPOSE_COPY gets there, and it stays so until the rank writes there or is moved out. */
bool sharing_owns(const struct rank_memory *, uint64_t addr, uint64_t bytes);
static inline bool memory_owns(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	return !m->guarded || sharing_owns(m, addr, bytes);
}

/* Who refers to the chunks of these ranges, this rank too: at most `room` of them, in order of
 * rank. `exactly`: all pages of the ranges that are there are resident, and each is shared by just
 * these; then they are two or more. */
uint32_t memory_sharers(const struct rank_memory *, const struct memory_range *, uint32_t count,
			struct rank_memory **sharers, uint32_t room, bool *exactly);

/* Has the device room for so many chunks more, without anybody giving any up? */
bool memory_has_room(const struct rank_memory *, uint64_t chunks);

/* Pages of which other ranks refer to the chunk, too. `once`: but for those that a rank before this
 * one has; so each chunk counts once over all ranks. */
uint64_t memory_shared(const struct rank_memory *, bool once);

/* For a work that runs once for all who refer to what it writes: its pages in this rank can be
 * written, though they are shared. CUresult. While work of the rank is submitted that is not exact
 * it does well only where that is so already, and gives CU_NOT_READY elsewhere. All sharers count
 * the work as theirs (memory_use) until it is complete. */
int memory_open_shared(struct rank_memory *, uint64_t addr, uint64_t bytes);
/* Would it do well now, as far as ranks and their works are concerned? */
bool memory_may_open(const struct rank_memory *, uint64_t addr, uint64_t bytes);
/* Guards again what was opened so, `most` stretches of neighbouring pages, if no work of the rank
 * is submitted and nothing of it moves. False: something is still open. */
bool memory_close_shared(struct rank_memory *, uint32_t most);

/* For a work that may write where no range says it does, and that runs while no other work of the
 * rank is submitted: all but the pages of these ranges is guarded until it is over, and so what is
 * written there is noticed. What another work is about to write cannot be guarded: its content is
 * unknown from then on, or (`trusted`) taken not to be written. CUresult; CU_NOT_READY while other
 * work is submitted. */
int memory_fence(struct rank_memory *, const struct memory_range *, uint32_t count, bool trusted);
/* Is anything noticed? Else such a work makes all content unknown. */
static inline bool memory_fences(const struct rank_memory *m)
{
	return m->device->shares && !m->single;
}

/* A PURPOSE_COPY waits for the rank's work to end. Nothing new may begin meanwhile; what has begun
 * goes on. A rank that waits for this is not stuck. */
static inline bool memory_waits(const struct rank_memory *m)
{
	return m->request.state == REQUEST_WAITING && m->request.purpose == PURPOSE_COPY;
}

/* The rank is about to run: its pages that hold the same as those of others of its group refer to
 * the same chunks from now on, as far as both are quiet. CUresult: content is lost. */
int memory_merge(struct rank_memory *);

/* Of ranks that are to hold the same at this address: who should be written to, so that the others
 * can refer to its chunks (memory_hand); UINT32_MAX: none of them, or ranks do not share. */
uint32_t memory_receiver(const struct rank_memory *const *, uint32_t count, uint64_t addr,
			 uint64_t bytes);
/* What `from` has on the whole pages of this range, `to` has, too, whatever it had: as far as both
 * are quiet they refer to the same chunks from now on. What could not be is to be copied. CUresult:
 * content is lost. */
int memory_hand(struct rank_memory *from, struct rank_memory *to, uint64_t addr, uint64_t bytes);

/* ---- adopt.c ---- */

enum adoption {
	ADOPTION_NONE,  /* it has to be computed */
	ADOPTION_LATER, /* not, when the rank's memory is quiet */
	ADOPTION_DONE,  /* the rank has it, and its versions say so */
	ADOPTION_FAILED /* the rank's memory could not be mapped */
};
/* What the work would write, others of the group may hold, in whole pages at the same addresses:
 * then the rank refers to their chunks, and need not do it. It is resident. */
enum adoption memory_adopt(struct rank_memory *, const struct foreseen *);

/* ---- copies.c ---- */

/* Of a live page: whoever of the job has the same has the same bytes, on all devices. Zeros:
 * nothing is to be believed, or known while works use the rank's memory.
 */
struct version memory_key(struct rank_memory *, uint32_t page);

/* Who holds the same as this live page, and has it in its image, where this rank's has not got it;
 * NULL: nobody. */
const struct rank_memory *memory_lies_with(struct rank_memory *, uint32_t page);

/* ---- forget.c ---- */

/* What lies on the whole pages of a range counts for nothing until something is written there: it
 * is not moved, what the image has of it goes, and its chunks are let go of first when somebody
 * needs room. Meanwhile it reads as anything. Only what all know to be overwritten. */
void memory_forget(struct rank_memory *, uint64_t addr, uint64_t bytes);
/* Two ranks of which one is to forget this range, and the other keeps something there: which, 0 or
 * 1? UINT32_MAX: neither, since nothing would be won: there is no whole page, or ample room. */
uint32_t memory_keeper(const struct rank_memory *const *, const uint64_t *addrs, uint64_t bytes);

/* ---- request.c ---- */

/* Asks: the caller's fields are copied. A prefetch gives way to all others, and everything to a
 * save. False: an earlier request has not completed yet, try again. */
bool memory_ask(struct rank_memory *, const struct memory_request *);
/* Would a PURPOSE_COPY of this not wait for what is submitted? */
bool memory_copies_beneath(struct rank_memory *, uint64_t addr, uint64_t bytes);
void memory_cancel(struct rank_memory *);    /* ends at once, or with what has begun */
void memory_stop(struct rank_memory *);      /* its rank has failed */
void memory_activated(struct rank_memory *); /* its kernels run from now on */
void memory_changes(struct rank_memory *);   /* from now on: what was saved is of before */
/* Has anything changed since the last one? */
bool memory_turn(struct device_memory *);

/* ---- moves.c ---- */

/* Does its image hold all there is? If it is to `stay`: it, or images of others of its group that
 * stay, too (memory_lies_with). */
bool memory_saved(struct rank_memory *, bool stay);

/* ---- valid.c ---- */

const char *memory_invalid(const struct device_memory *); /* what is wrong, or NULL */

/* ---- for who looks at pages and chunks themselves ---- */

static inline uint64_t page_addr(uint32_t page) { return RF_DEV_BASE + page * RF_CHUNK_BYTES; }
static inline uint64_t page_at(uint64_t addr) { return (addr - RF_DEV_BASE) / RF_CHUNK_BYTES; }
uint32_t chunk_number(const struct device_memory *, const struct chunk *); /* the device's */
bool make_room(void **array, uint64_t count, uint64_t more, uint32_t *room, size_t size);
static inline bool page_blank(const struct rank_memory *m, uint32_t page)
{
	return m->pages[page].blank == m->contents + 1;
}

#endif
