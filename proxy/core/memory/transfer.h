/* transfer.h: copies between host memory and any rank's memory, resident or not, or between two
 * ranks; and sums. They run in order, on a queue of the device's own. Collectives consist of
 * them. */
#ifndef RANKFOLD_TRANSFER_H
#define RANKFOLD_TRANSFER_H

#include "memory.h"

enum transfer_kind {
	TRANSFER_READ,
	TRANSFER_WRITE,
	TRANSFER_HAND, /* gives what one rank has received to another, at the same address */
	TRANSFER_SUM,  /* of two inputs, each in host memory or at an address of a rank's window */
	TRANSFER_WORK,
};

struct transfer {
	struct transfer *next;
	enum transfer_kind kind;
	/* READ, WRITE, HAND: the memory that it reads or writes; NULL: closed meanwhile. SUM: the
	 * memory of the first input's rank, or NULL */
	struct rank_memory *memory;
	/* HAND: the memory that has the content. SUM: that of the second input's rank, or NULL */
	struct rank_memory *source;
	uint64_t addr, bytes, done;
	struct hal_ref other;   /* READ: the destination; WRITE: the source */
	bool named;             /* WRITE: `content` is known */
	struct content content; /* WRITE: what it writes */
	struct hal_work work;   /* WORK, SUM */
	uint64_t hal_seq;
	int error; /* ncclResult_t */
	/* Called on completion, unless NULL. */
	void (*on_end)(void *arg, uint64_t token, int error);
	void *arg;
	uint64_t token;
};

struct transfers {
	const struct hal *hal;
	struct hal_device *device;
	struct hal_stream *stream;
	struct transfer *first, *last, *next; /* oldest incomplete, newest, first not submitted */
	bool progress;                        /* something has changed since the last pump */
};

/* returns a CUresult */
int transfer_open(struct transfers *, const struct hal *, struct hal_device *);
void transfer_close(struct transfers *);
void transfer_push(struct transfers *, struct transfer *); /* takes ownership; from calloc */
bool transfer_pump(struct transfers *);                    /* true: something has changed */
/* True if any incomplete transfer uses this memory, or has this `arg`. */
bool transfer_pending(const struct transfers *, const struct rank_memory *);
bool transfer_pending_for(const struct transfers *, const void *arg);

#endif
