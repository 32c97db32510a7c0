/* nccl_parts.h: what the files of NCCL's bodies share. From low to high: nccl_error.c, nccl_comm.c,
 * nccl_group.c, nccl_leave.c, nccl.c.
 */
#ifndef RANKFOLD_NCCL_PARTS_H
#define RANKFOLD_NCCL_PARTS_H

#include "bodies.h"

#include <stdatomic.h>

struct comm {
	uint64_t number;
	int count, rank, device;
	uint8_t id[RF_UNIQUE_ID_BYTES]; /* the same for all members */
	uint64_t descendants;           /* communicators that have been made of it */
	const struct comm *parent;      /* or NULL */
	bool made, nonblocking, finalized;
	bool stopped;        /* its operations were ended: only its end is left */
	_Atomic bool dead;   /* its handle is no communicator any more */
	uint32_t pending;    /* slot + 1 of the request that is in progress; COMM_LOCK */
	ncclResult_t result; /* of the last such */
	struct comm *next;
};

/* nccl_error.c: each returns `error`, which may be NCCL_SUCCESS but in the first */
/* Inside a call: why it is going to fail. The first reason counts. */
ncclResult_t because(ncclResult_t error, const char *format, ...)
	__attribute__((format(__printf__, 2, 3)));
/* At its end: keeps its name, the rank (comm may be NULL) and the reason for ncclGetLastError. */
ncclResult_t ended(const char *call, const struct comm *, ncclResult_t error);
/* NCCL's result for an error of CUDA, with that as the reason. */
ncclResult_t nccl_error(int cuda);
/* What made a communicator (NULL: any) or the device unusable since; never a call's own error. */
ncclResult_t comm_error(const struct comm *);

/* nccl_comm.c */
/* NULL, with a reason: no communicator, or one that was destroyed. */
struct comm *comm_of(const void *handle);
struct comm *comm_numbered(uint64_t number);
struct comm *comm_new(int count, int rank);                             /* NULL: out of memory */
bool comm_nonblocking(const ncclConfig_t *, const struct comm *parent); /* both may be NULL */
/* NCCL_IN_PROGRESS, or how its last request, or its joining, has ended. Never blocks. */
ncclResult_t comm_progress(struct comm *);
/* From now on the request in this slot is in progress. False: too many are: wait for it. */
bool comm_begin(struct comm *, uint32_t slot);
ncclResult_t comm_joined(struct comm *, uint32_t slot); /* its joining: blocks until it has ended */

/* nccl_group.c */
/* One more operation of the group in progress. */
ncclResult_t group_add(const struct rf_collective *);
/* An operator goes when what the group in progress has of it is under way. */
ncclResult_t group_destroy_redop(uint64_t op);
/* The group in progress forgets a communicator that is aborted in it. */
void group_forget(const struct comm *);
/* End of every call that may stand in a group, and is a group of its own where it stands in none. A
 * group's first error is what its end returns. */
ncclResult_t group_call(const char *call, const struct comm *, ncclResult_t error);

#endif
