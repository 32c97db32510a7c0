/* memory.h: the memory of a device and of the ranks on it. Its files, from the lowest layer to the
 * highest; a file calls only files listed above it (tests/proxy/test_floors.py):
 *
 *   chunk.c      physical chunks: reference counts and totals
 *   image_hold.c image holds: copies a page aside before it changes under a launcher's copy
 *   image.c      a rank's image (the launcher's file), and host copies shared by several ranks
 *   buffers.c    a rank's buffers and the pages they touch: alloc, free, resolving a range
 *   content.c    versions: what a rank's memory holds
 *   copies.c     whether the host already has a page's content, for this rank or another
 *   sharing.c    chunks that several ranks refer to, and what a rank may write
 *   map_result.c reuse: maps another rank's result instead of computing it again
 *   invalidate.c invalidates content that nothing will read
 *   swap.c       pages that are moving between device and image
 *   request.c    requests for a rank's memory, their order, and which ranks release chunks
 *   pins.c       which parts of a rank's pinned memory the device reaches directly
 *   lifecycle.c  opens and closes the memory of a device and of a rank
 *   transfer.c   the transfers of collectives, which reach any rank's memory (transfer.h)
 *   valid.c      checks that counters and lists agree
 *
 * This module uses the device's table (hal.h) and is independent of ranks, jobs, streams and
 * channels, which call it. Fields are private to this module unless marked otherwise.
 *
 * Buffers that the program has mapped next to each other are joined: an access may reach from one
 * into the next. They are freed one by one; everything else that asks how far an address reaches
 * takes all of them as one buffer (struct buffer, `whole`).
 *
 * A rank's heap consists of pages of RF_CHUNK_BYTES. A page is live if a buffer touches it. A live
 * page is either resident (it refers to a chunk, which is mapped in the rank's space) or missing.
 * The content of a missing page is in the rank's image at the same offset, or in a host copy that
 * several ranks refer to and that is never written again; otherwise the page reads as zero. Only
 * kernels need residency. The launcher owns the image, so handing a rank over consists of swapping
 * out everything that is still resident.
 *
 * Rules:
 *  - A rank's pages move only while no submitted work uses its memory (inflight == 0), except
 *    copies beneath running work (see below) and new pages, on a device that maps them beneath
 *    running work (memory_grows). Nothing is submitted while pages move
 *    (memory_moving).
 *  - A page that no buffer touches any more stays mapped until no submitted work uses the rank's
 *    memory (`dying` counts such pages). It is not allocated again before that, because it would
 *    not read as zero.
 *  - A chunk returns to the device when no page refers to it any more.
 *  - Nothing here blocks.
 *
 * Sharing. Pages of several ranks refer to one chunk if they hold the same content at the same
 * address:
 *  - Only ranks of one group share. A page is compared (by its digest, content.c) and remapped only
 *    while no submitted work uses its rank's memory, because only then do versions match bytes. A
 *    rank that has failed does not take part.
 *  - A shared page is write-protected: mapped read-only in all ranks. A rank that is about to write
 *    acquires the pages first (memory_owns, PURPOSE_COPY), before the first part of the work is
 *    submitted. An acquired page is kept: it is not shared again until it has been written, so that
 *    a work can own all the pages it needs at the same time.
 *  - A page that had to be copied is not shared again for a while, and for longer each time,
 *    because sharing a page that every rank soon writes saves nothing. This backoff does not apply
 *    when there are fewer chunks than pages of all ranks.
 *  - One rank may have a shared page open, for a work that runs once for all ranks that refer to
 *    it. All of them count that work, so none of them compares the page meanwhile.
 *  - An unforeseen write by a kernel goes to a copy that the device makes. The copy is counted when
 *    the work completes, or when the device reports that it is full. It may exceed the number of
 *    chunks by one; free capacity is then negative until a page leaves.
 *
 * Requests. Each rank has at most one request, with one purpose, and each request completes exactly
 * once. Requests of different ranks run concurrently. A request begins when its rank's memory is
 * quiet and, if it needs chunks, when there is free capacity for all of them at once:
 *
 *     free = chunks_total - used - reserved + leaving
 *
 * `used` chunks have pages or are unusable. `reserved` chunks are promised to requests that have
 * begun. `leaving` chunks will become free without further waiting: every page that refers to them
 * is being swapped out, and a swap-out cannot be revoked. Therefore every request that has begun
 * also ends. Requests that wait for capacity are served in one order (by purpose, then by age): the
 * first takes victims until it has enough, and no later request takes capacity before it. Victims
 * are quiet ranks, least recently active first. A request that has not begun owns nothing, so its
 * rank may be a victim. Only a prefetch must spare some ranks: the active rank, and ranks with a
 * request.
 *
 * A prefetch takes as many of its pages as there is free capacity for, and ends. A request that
 * needs capacity cancels it and regains what it was promised (few of its pages move at one time).
 * Pages that it has already brought in are the first victims: their rank was active longest ago,
 * and the image holds the same content.
 *
 * A missing page needs no chunk if a quiet rank of the group has the same content: the page is
 * shared when the request begins. From a victim, pages whose chunk has no other references leave
 * first, then pages that only victims share, all at once. A page never leaves if the requester
 * refers to its chunk or is about to share it, because that would free nothing. If all other ranks
 * are quiet and have released everything but that, each remaining chunk belongs to one of the
 * requester's pages, and memory_alloc limits these to the number of chunks. So the first request in
 * the order can begin, and there is no deadlock.
 *
 * A copy needs a chunk for each page in its range that other ranks refer to and keep. If there are
 * too few chunks even then, the other ranks release pages in the range too; such a page needs no
 * chunk any more, and in the end none does. A copy waits for pages that are leaving, which needs no
 * further action. Where the device supports it (space_own), a copy does not wait for the rank's own
 * work, which may itself wait for what is to be written: that work only reads write-protected
 * pages, and cannot distinguish the copy from the original. If a kernel makes an unforeseen write
 * there, the page keeps the chunk made for that write, and the copy is dropped.
 *
 * Saves need no capacity and wait for no other rank's work. Of saves that stay, one per group is
 * served at a time: content that is then in its image need not go to the images of the others.
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
/* of a copy or fill: bounds how long one rank delays the others */
#define PIECE_BYTES (16ull << 20)

struct memory_range {
	uint64_t addr, bytes;
};

struct buffer {
	uint64_t addr, bytes;
	uint64_t call_site;
	uint32_t stable;
	bool freed;
	bool joined; /* accesses may continue in an adjacent joined buffer: it is of one range of
		      * addresses in which the program has mapped several pieces of memory */
	struct memory_range whole; /* where accesses through an address in it may go */
};

struct chunk {            /* physical memory for a page, and for all pages that refer to it */
	uint32_t refs;    /* pages that map it */
	uint32_t leaving; /* of these, the ones that are being swapped out */
	bool held;        /* created, and not destroyed since */
	bool unusable;    /* could not be unmapped from some space: it must never be reused */
};

struct copy {               /* host copy of a page, for several ranks; never written again */
	uint8_t *bytes;     /* RF_CHUNK_BYTES, owned by the proxy */
	uint32_t refs;      /* pages that refer to it */
	struct version key; /* of its content */
	uint64_t hal_seq;   /* of the copy that fills it; 0: filled synchronously */
};

struct page {
	uint32_t buffers; /* live buffers that touch it; 0: the page is not live */
	/* The image has content. If the page is missing and not common, that is the page's content;
	 * without it such a page reads as zero. */
	bool in_image;
	bool saved;             /* resident, and the image holds the same content */
	bool keyed;             /* resident, and the image holds the content named by `key` */
	bool common;            /* missing, and its content is that of `copy` */
	bool hole;              /* of the image, where content was */
	bool image_used;        /* this proxy has read or written the image there */
	bool fresh;             /* in the rank's list of pages not yet checked for equal content */
	bool leaving;           /* being swapped out */
	bool write_protected;   /* mapped read-only */
	bool open;              /* shared, and writable on behalf of all sharers */
	bool write_pending;     /* copied to be written: not shared again before that */
	uint8_t backoff;        /* backoff of sharing it, which saved nothing (sharing.c) */
	bool backoff_by_other;  /* the backoff was set by another rank's copy */
	uint64_t backoff_until; /* a turn number of the device */
	struct chunk *chunk;    /* NULL: not resident */
	uint64_t blank;         /* contents + 1: its content is invalidated (invalidate.c) */
	struct copy *copy;      /* or NULL; if not common: of earlier content of the page */
	struct version key;
	struct version digest; /* of its content, valid if `digested` matches (content.c) */
	uint64_t digested;
};

enum memory_purpose {                   /* in the order of service */
		      PURPOSE_SAVE,     /* all to the image: resident too (`stay`), or only there */
		      PURPOSE_ACTIVATE, /* all of it resident: the rank is about to run */
		      PURPOSE_COPY,     /* chunks of its own for a range that is to be written */
		      PURPOSE_PREFETCH, /* as much as free capacity allows: it runs soon */
};

/* Result of a cancelled request; other results are CUresult numbers. */
#define MEMORY_CANCELLED (-1)

enum request_state { REQUEST_NONE, REQUEST_WAITING, REQUEST_ACTIVE };

struct memory_request {
	/* Set by the caller. */
	enum memory_purpose purpose;
	bool stay;            /* SAVE */
	uint64_t addr, bytes; /* COPY */
	bool once;            /* COPY: the write is not repeated, so it causes no backoff */
	void (*on_end)(void *arg, enum memory_purpose,
		       int result); /* completion callback, or NULL */
	void *arg;
	/* Private to this module. */
	enum request_state state;
	int result;
	struct rank_memory *memory;
	struct memory_request *next; /* in the order of service */
};

enum move_kind {
	MOVE_OUT,  /* to the image */
	MOVE_SAVE, /* copied to the image, and still resident */
	MOVE_IN,   /* a new chunk, filled from the image */
	MOVE_OWN,  /* a chunk of its own, filled from the shared one */
	MOVE_HOME, /* to the image, from a host copy that several ranks share */
};

struct move {
	uint32_t page;
	enum move_kind kind;
	bool changes;        /* the page changes during the copy: the image gets old content */
	bool promised;       /* a reserved chunk that is not taken yet */
	bool common;         /* OUT: to a host copy that other ranks may refer to too */
	bool copied;         /* there was something to copy */
	struct chunk *chunk; /* OWN: the new chunk, */
	struct chunk *from;  /* a copy of this one */
	uint64_t hal_seq;    /* 0: there was nothing to copy */
};

struct memory_counters {      /* of a rank, since it began */
	uint64_t not_swapped; /* bytes already in place, and so not moved in or out */
	uint64_t copies;      /* of pages, before they were written */
	uint64_t unforeseen;  /* of pages, while a kernel wrote to them */
	uint64_t prepared;    /* pages that came in before the rank's turn */
};

#define STRAYS_MAX 16u
#define PIN_WORDS 64 /* RF_PIN_WORDS */

struct rank_memory {
	struct device_memory *device;
	uint64_t group; /* only ranks of one group share */
	uint32_t rank;
	struct hal_space *space;
	int image_fd;
	uint8_t *image;
	struct buffer *buffers; /* sorted by address */
	uint32_t buffer_count, buffer_capacity;
	struct page *pages; /* HEAP_PAGES of them, mostly untouched */
	uint32_t *live;     /* indices of live pages */
	uint32_t live_count, live_capacity;
	/* the first so many live pages may have outdated saved content in the image */
	uint32_t unlooked;
	uint32_t dying;           /* live but in no buffer: unmapped when no work is in flight */
	uint32_t missing;         /* live but not resident */
	uint32_t write_protected; /* resident pages that are write-protected or open */
	uint32_t inflight;        /* submitted works that use it, */
	uint32_t exact;           /* of these, the works that only write what they declare */
	uint64_t last_active;
	bool single;     /* no other rank is in its group */
	bool fenced;     /* the submitted work may write anywhere (memory_fence) */
	bool surprised;  /* another work has made an unforeseen write */
	bool stopped;    /* the rank has failed: nothing more is swapped in */
	bool distrusted; /* its versions were found wrong: it shares no more */
	bool alone;      /* on its device: no second copy is kept in the image */
	bool whole;      /* saved or being saved: the content of its image stays there */
	uint32_t *fresh; /* pages whose image has received new content */
	uint32_t fresh_count, fresh_capacity;
	/* where its image was last written by something other than the device */
	uint32_t writes_page;
	/* scratch: a victim candidate of a request or merge; already chosen */
	bool gives, chosen;
	struct versions versions; /* of its heap */
	uint64_t contents;        /* number of times that all content became unknown */
	struct memory_counters counted;
	uint32_t strays[STRAYS_MAX]; /* pages of unforeseen writes, not yet taken */
	uint32_t stray_count;
	struct memory_request request;
	const _Atomic uint64_t *pins_wanted; /* RF_PIN_WORDS words of the channel; or NULL */
	uint64_t pins[PIN_WORDS];            /* as given to the device */
	struct move *moves;                  /* all in one direction, in order */
	uint32_t move_count, move_submitted, move_done, move_capacity;
};

struct device_memory {
	const struct hal *hal;
	struct hal_device *device;
	uint64_t total, used, reserved, leaving; /* chunks */
	uint64_t unusable;        /* used chunks that have no page and are unusable */
	uint64_t shared;          /* used chunks that several pages refer to */
	bool shares;              /* ranks may share (memory_may_share) */
	struct chunk *chunks;     /* indexed by the device's number */
	struct rank_memory **all; /* in order of rank */
	uint32_t count, capacity;
	struct rank_memory *active;       /* the rank whose kernels run, or NULL */
	uint64_t turns;                   /* number of times that `active` was set */
	struct memory_request *requests;  /* in the order of service */
	uint32_t moving;                  /* ranks with pages that are moving */
	struct hal_stream *in, *out;      /* queues of the moves */
	struct hal_space *scratch;        /* where new chunks of OWN are written, by number */
	uint64_t swapped_in, swapped_out; /* bytes */
	/* of these: another rank held the same content at that address */
	uint64_t swapped_alike;
	int moves_fd;            /* receives a line per swapped page; 0: none */
	uint64_t copies_on_host; /* on the host, for several ranks */
	/* punched into images; of these, written again later */
	uint64_t holes, refilled;
	bool fresh;                               /* some rank has pages in its `fresh` list */
	uint64_t not_swapped, copies, unforeseen; /* as of a rank: of all ranks ever here */
	uint64_t opened_early;                    /* pages opened while a sum was being computed */
	uint64_t prepared;                        /* pages, as of a rank */
	bool progress; /* something has changed since the last memory_turn */
};

/* ---- of the device: lifecycle.c ---- */

int device_memory_open(struct device_memory *, const struct hal *, struct hal_device *,
		       uint64_t bytes);
void device_memory_close(struct device_memory *, bool idle); /* `idle`: no work is in progress */
static inline void memory_may_share(struct device_memory *d, bool shares) { d->shares = shares; }
static inline void memory_log_moves(struct device_memory *d, int fd) { d->moves_fd = fd; }

/* ---- of a rank: lifecycle.c ---- */

/* Returns a CUresult. The pinned arena is at RF_OFF_PINNED of channel_fd. The caller closes the
 * memory also after an error, and only when nothing moves and no submitted work uses it. */
int memory_open(struct rank_memory *, struct device_memory *, uint64_t group, uint32_t rank,
		int image_fd, int channel_fd);
void memory_close(struct rank_memory *);
/* image.c: the image arrived with it */
void memory_image_holds(struct rank_memory *, uint32_t page);
static inline void memory_counts_from(struct rank_memory *m, struct memory_counters c)
{
	m->counted = c;
}
bool memory_clear_image(struct rank_memory *); /* image.c: drops what an earlier process left */

/* Sets whether the rank is alone on its device, so that no other rank needs its chunks. */
static inline void memory_alone(struct rank_memory *m, bool alone) { m->alone = alone; }

/* The versions of its group were found wrong: from now on the rank shares nothing more. */
static inline void memory_distrust(struct rank_memory *m) { m->distrusted = true; }

/* Sets whether it is the only rank of its group on any device, so that no rank has equal
 * content. */
static inline void memory_single(struct rank_memory *m, bool single) { m->single = single; }

/* request.c: whether what the rank lacks is new, and may be mapped while its work runs. */
bool memory_grows(const struct rank_memory *);
static inline bool memory_resident(const struct rank_memory *m) { return !m->missing; }
static inline bool memory_moving(const struct rank_memory *m) { return m->move_count != 0; }

/* Counts a submitted work that uses this memory, and its completion. After completion the work may
 * have written pages that are shared. */
static inline void memory_use(struct rank_memory *m) { m->inflight++; }
/* Copies the pages of unforeseen writes since the last call, at most STRAYS_MAX; returns their
 * number. */
uint32_t memory_strays(struct rank_memory *, uint32_t pages[STRAYS_MAX]);
void sharing_copied(struct rank_memory *); /* sharing.c: counts unforeseen writes */
static inline void memory_used(struct rank_memory *m)
{
	INVARIANT(m->inflight, "work that has completed was counted");
	m->inflight--;
	if (m->write_protected)
		sharing_copied(m);
	m->fenced &= m->inflight != 0;
	m->surprised &= m->inflight != 0;
}
/* The same for a copy or sum that does not belong to the program. */
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
/* True if submitted work uses this memory and all of it is exact. */
static inline bool memory_only_exact(const struct rank_memory *m)
{
	return m->exact && m->exact == m->inflight;
}

/* ---- buffers.c ---- */

int memory_alloc(struct rank_memory *, const struct rf_alloc *);
struct buffer *memory_find(struct rank_memory *, uint64_t addr);
/* The buffer that contains `addr`, with all that are joined to it; NULL: none. */
const struct memory_range *memory_whole(struct rank_memory *, uint64_t addr);
/* Marks a buffer that memory_free releases when older work has completed. */
static inline void memory_freed(struct buffer *b) { b->freed = true; }
void memory_free(struct rank_memory *, uint64_t addr);
bool memory_dying(const struct rank_memory *, uint64_t addr, uint64_t bytes);
void memory_sweep(struct rank_memory *); /* releases freed pages if no work is submitted */
bool memory_valid(const struct rank_memory *, uint64_t addr, uint64_t bytes);
uint64_t memory_resolve(struct rank_memory *, uint64_t addr, uint64_t bytes, bool write,
			struct hal_ref *);
bool memory_pinned(const struct rank_memory *, uint64_t addr); /* pinned host memory */

/* ---- pins.c ---- */

/* The words at RF_OFF_PINS, which stay there until the memory is closed. */
void memory_pins_are_at(struct rank_memory *, const _Atomic uint64_t *wanted);
/* Makes the device reach what the words say; false: call again later. */
bool memory_pins_follow(struct rank_memory *);

/* ---- content.c: called when a work that writes is submitted ---- */

struct content content_of_bytes(const void *, uint64_t bytes);
void content_is(struct rank_memory *, uint64_t addr, uint64_t bytes, struct content);
void content_unknown(struct rank_memory *, uint64_t addr, uint64_t bytes);
void content_all_unknown(struct rank_memory *);
void content_copied(struct rank_memory *, uint64_t to, uint64_t from, uint64_t bytes);
/* Adds the content of a range to a digest. False: its content is unknown. */
bool content_absorb(const struct rank_memory *, uint64_t addr, uint64_t bytes, struct digest *);
/* True if the range is known to hold this content. */
bool content_holds(const struct rank_memory *, uint64_t addr, uint64_t bytes, struct content);

/* A range of bytes relative to an address: `low` up to, not including, `high`; empty unless low <
 * high. */
struct bound {
	int64_t low, high;
};
/* An address through which a work reaches the buffer that it points into. A use that is in
 * `bounded` reaches at most the range `read` or `written`. That range may extend beyond the
 * buffer's ends, because CUDA lets programs write there. If it is wholly outside the buffer,
 * nothing is known about the work. Unbounded writes, whose address comes from memory, may go
 * anywhere; unbounded reads are assumed to stay in the buffer, because a wrong assumption harms no
 * other rank. A value that is not an address of the rank is a number. UNORDERED: the result depends
 * on the order of execution. PERHAPS: the work may write there, and the result also depends on the
 * previous content. */
enum reach_use { REACH_READ = 1, REACH_WRITTEN = 2, REACH_UNORDERED = 4, REACH_PERHAPS = 8 };
struct reach {
	uint64_t addr;
	uint32_t use;
	uint32_t bounded; /* REACH_READ, REACH_WRITTEN */
	struct bound read, written;
};

/* The footprint of a work: what it will do to its rank's memory, computed before it is
 * submitted. */
#define RANGES_MAX 512 /* with more ranges the footprint is unknown */
struct range {
	uint64_t addr, bytes;
	uint32_t use; /* enum reach_use */
};
struct footprint {
	bool known;          /* false: it may read and write anything */
	bool writes_outside; /* it may write outside the ranges, */
	bool trusted;        /* but is assumed not to, on pages that have a range */
	bool keyed;          /* `key` is valid */
	bool unordered;      /* the result also depends on the order of execution */
	/* of everything that decides what is written, and where in the ranges */
	struct version key;
	uint32_t count; /* of ranges, in the order that the key assumes */
	struct range ranges[RANGES_MAX];
};
/* Sets an empty footprint without a key; callers begin with this. */
static inline void footprint_none(struct footprint *f)
{
	f->known = true;
	f->writes_outside = f->trusted = f->keyed = f->unordered = false;
	f->count = 0;
}
void footprint_add(struct footprint *, uint64_t addr, uint64_t bytes, uint32_t use);
/* Computes the footprint of a work that reaches only `reaches`; the digest describes everything
 * else about the work. */
void content_footprint(struct rank_memory *, struct digest *, const struct reach *, uint32_t count,
		       struct footprint *);
/* Returns the version of what such a work writes: its key; or a new private version if the work has
 * no key or the key does not decide the result (UNORDERED). */
struct version content_version(struct rank_memory *, const struct footprint *);
/* Records the writes of a work that has been submitted. */
void content_commit(struct rank_memory *, const struct footprint *, struct version);
/* True if the rank already holds everything that such a work writes, so the work is done. */
bool content_committed(const struct rank_memory *, const struct footprint *);

/* ---- image.c ---- */

struct memory_on_host {  /* counts of pages */
	uint64_t pages;  /* missing pages that have content */
	uint64_t shared; /* of these, in a copy that other ranks refer to too */
	uint64_t spare;  /* resident pages whose image still has content, old or equal */
};
/* `once`: a copy counts only for the first rank that refers to it. */
struct memory_on_host memory_on_host(const struct rank_memory *, bool once);

/* ---- sharing.c ---- */

/* True if the rank's work may write the whole range: every resident page in it is unshared and not
 * write-protected. If false, PURPOSE_COPY makes it true, and it stays true until the rank writes
 * there or is swapped out. */
bool sharing_owns(const struct rank_memory *, uint64_t addr, uint64_t bytes);
static inline bool memory_owns(const struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	return !m->write_protected || sharing_owns(m, addr, bytes);
}

/* Finds the ranks that refer to the chunks of these ranges, this rank included: at most `capacity`
 * of them, in order of rank; returns their number. `exactly`: all live pages of the ranges are
 * resident, each is shared by just these ranks, and there are at least two of them. */
uint32_t memory_sharers(const struct rank_memory *, const struct memory_range *, uint32_t count,
			struct rank_memory **sharers, uint32_t capacity, bool *exactly);

/* True if the device has this many free chunks without any rank releasing one. */
bool memory_has_chunks(const struct rank_memory *, uint64_t chunks);

/* Pages whose chunk other ranks refer to too. `once`: except pages that an earlier rank already
 * counted, so that each chunk counts once over all ranks. */
uint64_t memory_shared(const struct rank_memory *, bool once);

/* For a work that runs once for all ranks that refer to what it writes: makes the pages writable in
 * this rank although they are shared. Returns a CUresult. While submitted work of the rank is not
 * exact, it succeeds only where pages are writable already, and returns CU_NOT_READY elsewhere. All
 * sharers count the work as theirs (memory_use) until it completes. */
int memory_open_shared(struct rank_memory *, uint64_t addr, uint64_t bytes);
/* True if memory_open_shared would succeed now, as far as ranks and their works decide it. */
bool memory_may_open(const struct rank_memory *, uint64_t addr, uint64_t bytes);
/* Write-protects opened pages again, at most `most` runs of neighbouring pages, if no work of the
 * rank is submitted and none of its pages move. False: a page is still open. */
bool memory_close_shared(struct rank_memory *, uint32_t most);

/* For a work that may write outside its ranges and that runs while no other work of the rank is
 * submitted: write-protects all pages outside these ranges until it completes, so that writes there
 * are detected. Pages that another work is about to write cannot be write-protected: their content
 * is unknown from then on, or (`trusted`) is assumed not to be written. Returns a CUresult;
 * CU_NOT_READY while other work is submitted. */
int memory_fence(struct rank_memory *, const struct memory_range *, uint32_t count, bool trusted);
/* True if writes outside the ranges are detected; otherwise such a work makes all content
 * unknown. */
static inline bool memory_fences(const struct rank_memory *m)
{
	return m->device->shares && !m->single;
}

/* True while a PURPOSE_COPY waits for the rank's work to complete. No new work may begin meanwhile;
 * running work continues. A rank that waits for this is not stuck. */
static inline bool memory_waits(const struct rank_memory *m)
{
	return m->request.state == REQUEST_WAITING && m->request.purpose == PURPOSE_COPY;
}

/* Called when the rank is about to run: remaps its pages to chunks of other ranks of its group that
 * hold the same content, where both ranks are quiet. Returns a CUresult; an error means that
 * content is lost. */
int memory_merge(struct rank_memory *);

/* Chooses, among ranks that will hold the same content at this address, the one to write to, so
 * that the others can refer to its chunks (memory_hand). UINT32_MAX: none, or ranks do not
 * share. */
uint32_t memory_receiver(const struct rank_memory *const *, uint32_t count, uint64_t addr,
			 uint64_t bytes);
/* Replaces the content of the whole pages in this range of `to` with that of `from`: the pages
 * refer to the same chunks from now on, if both ranks are quiet. The caller copies the pages that
 * could not be remapped. Returns a CUresult; an error means that content is lost. */
int memory_hand(struct rank_memory *from, struct rank_memory *to, uint64_t addr, uint64_t bytes);

/* ---- map_result.c ---- */

enum result_mapping {
	MAPPED_NONE,  /* it has to be computed */
	MAPPED_LATER, /* try again when the rank's memory is quiet */
	MAPPED_DONE,  /* the rank has the result, and its versions are updated */
	MAPPED_FAILED /* the rank's memory could not be mapped */
};
/* If other ranks of the group hold what the work would write, in whole pages at the same addresses,
 * remaps the rank's pages to their chunks, so that the work need not run. The rank is resident. */
enum result_mapping memory_map_result(struct rank_memory *, const struct footprint *);

/* ---- copies.c ---- */

/* The key of a live page: ranks of the job with equal keys hold equal bytes, on all devices. Zeros:
 * the content is not trusted, or is unknown because works use the rank's memory.
 */
struct version memory_key(struct rank_memory *, uint32_t page);

/* Finds a rank that holds the same content as this live page and has it in its image, when this
 * rank's image does not have it. NULL: there is none. */
const struct rank_memory *memory_image_owner(struct rank_memory *, uint32_t page);

/* ---- invalidate.c ---- */

/* Invalidates the content on the whole pages of a range until something is written there: it is not
 * moved, the image's content is dropped, and its chunks are released first when a request needs
 * capacity. Until then reads return arbitrary bytes. Only for content that is known to be
 * overwritten before it is read. */
void memory_forget(struct rank_memory *, uint64_t addr, uint64_t bytes);
/* One of two ranks forgets this range, and the other one keeps content there. Returns which one
 * keeps it, 0 or 1. UINT32_MAX: neither, because nothing would be gained: there is no whole page,
 * or there are ample chunks. */
uint32_t memory_keeper(const struct rank_memory *const *, const uint64_t *addrs, uint64_t bytes);

/* ---- request.c ---- */

/* Requests memory; the caller's fields are copied. A prefetch gives way to all other purposes, and
 * all purposes give way to a save. False: an earlier request has not completed; try again. */
bool memory_request(struct rank_memory *, const struct memory_request *);
/* True if a PURPOSE_COPY of this range would not wait for submitted work. */
bool memory_copies_while_running(struct rank_memory *, uint64_t addr, uint64_t bytes);
void memory_cancel(struct rank_memory *);    /* at once, or when its submitted moves complete */
void memory_stop(struct rank_memory *);      /* its rank has failed */
void memory_activated(struct rank_memory *); /* its kernels run from now on */
void memory_changes(struct rank_memory *);   /* it changes from now on: saved content is outdated */
/* Serves requests and moves. True if anything has changed since the last call. */
bool memory_turn(struct device_memory *);

/* ---- swap.c ---- */

/* True if its image holds all content. With `stay`, images of other ranks of its group that stay
 * count too (memory_image_owner). */
bool memory_saved(struct rank_memory *, bool stay);

/* ---- valid.c ---- */

const char *memory_invalid(const struct device_memory *); /* NULL: valid; else the broken rule */

/* ---- for callers that inspect pages and chunks ---- */

static inline uint64_t page_addr(uint32_t page) { return RF_DEV_BASE + page * RF_CHUNK_BYTES; }
static inline uint64_t page_at(uint64_t addr) { return (addr - RF_DEV_BASE) / RF_CHUNK_BYTES; }
uint32_t chunk_number(const struct device_memory *, const struct chunk *); /* its device number */
bool grow_array(void **array, uint64_t count, uint64_t more, uint32_t *capacity, size_t size);
static inline bool page_blank(const struct rank_memory *m, uint32_t page)
{
	return m->pages[page].blank == m->contents + 1;
}

#endif
