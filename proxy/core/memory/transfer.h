/* transfer.h: copies between host memory and any rank's memory, resident or not, or two ranks'; and
 * sums: in order, on a queue of the device's own. Collectives consist of them. */
#ifndef RANKFOLD_TRANSFER_H
#define RANKFOLD_TRANSFER_H

#include "memory.h"

enum transfer_kind {
	TRANSFER_READ,
	TRANSFER_WRITE,
	TRANSFER_HAND, /* what one rank has received goes to another, at the same address */
	TRANSFER_SUM,  /* of two, each in host memory or in a rank's, at an address of its window */
	TRANSFER_WORK,
};

struct transfer {
	struct transfer *next;
	enum transfer_kind kind;
	struct rank_memory
		*memory; /* READ, WRITE, HAND: whose; NULL: it is freed. SUM: whose is the */
	struct rank_memory *source; /* first, or NULL. HAND: who has it, SUM: whose is the second */
	uint64_t addr, bytes, done;
	struct hal_ref other;   /* READ: where it goes, WRITE: where it comes from */
	bool named;             /* WRITE: its content is known, */
	struct content content; /* and this */
	struct hal_work work;   /* WORK, SUM */
	uint64_t hal_seq;
	int error; /* ncclResult_t */
	/* Called when it has completed, unless NULL. */
	void (*over)(void *arg, uint64_t token, int error);
	void *arg;
	uint64_t token;
};

struct transfers {
	const struct hal *hal;
	struct hal_device *device;
	struct hal_stream *stream;
	struct transfer *first, *last, *next; /* oldest incomplete, newest, first not submitted */
	bool progress;                        /* something has changed */
};

int transfer_open(struct transfers *, const struct hal *, struct hal_device *); /* CUresult */
void transfer_close(struct transfers *);
void transfer_push(struct transfers *, struct transfer *); /* takes it; from calloc */
bool transfer_pump(struct transfers *); /* has anything changed since the last one? */
/* Is anything on its way for this memory, or for this `arg`? */
bool transfer_pending(const struct transfers *, const struct rank_memory *);
bool transfer_pending_for(const struct transfers *, const void *arg);

#endif
