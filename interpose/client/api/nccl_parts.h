/* nccl_parts.h: declarations for the files of NCCL's bodies. From low to high: nccl_error.c,
 * nccl_comm.c, nccl_group.c, nccl_leave.c, nccl.c.
 */
#ifndef RANKFOLD_NCCL_PARTS_H
#define RANKFOLD_NCCL_PARTS_H

#include "bodies.h"

#include <stdatomic.h>

struct comm {
	uint64_t number;
	int count, rank, device;
	uint8_t id[RF_UNIQUE_ID_BYTES]; /* the same for all members */
	uint64_t descendants;           /* communicators that were derived from it */
	const struct comm *parent;      /* or NULL */
	bool made, nonblocking, finalized;
	bool stopped;        /* its operations were ended: it can only be destroyed */
	_Atomic bool dead;   /* its handle is no longer valid */
	uint32_t pending;    /* slot + 1 of the request in progress; COMM_LOCK */
	bool awaited;        /* by a thread that will take its reply; COMM_LOCK */
	ncclResult_t result; /* of the last finished request */
	struct comm *next;
};

/* nccl_error.c: each returns `error`, which may be NCCL_SUCCESS except in the first */
/* Within a call: stores the reason why it will fail. The first reason counts. */
ncclResult_t because(ncclResult_t error, const char *format, ...)
	__attribute__((format(__printf__, 2, 3)));
/* At the end of a call: stores its name, the rank (comm may be NULL) and the reason for
 * ncclGetLastError. */
ncclResult_t ended(const char *call, const struct comm *, ncclResult_t error);
/* NCCL's result for an error of CUDA, with that error as the reason. */
ncclResult_t nccl_error(int cuda);
/* The error that made a communicator (NULL: any) or the device unusable; never a call's own
 * error. */
ncclResult_t comm_error(const struct comm *);

/* nccl_comm.c */
/* NULL, with a reason: invalid handle, or a destroyed communicator. */
struct comm *comm_of(const void *handle);
struct comm *comm_numbered(uint64_t number);
struct comm *nccl_comm_new(int count, int rank);                        /* NULL: out of memory */
bool comm_nonblocking(const ncclConfig_t *, const struct comm *parent); /* both may be NULL */
/* NCCL_IN_PROGRESS, or the result of its last request or of its creation. Never blocks. */
ncclResult_t comm_progress(struct comm *);
/* Waits for the request in progress, once for a communicator. */
void comm_await(struct comm *);
/* The request in this slot is now in progress. False: too many are; the caller waits for it. */
bool comm_begin(struct comm *, uint32_t slot);
ncclResult_t nccl_comm_joined(struct comm *, uint32_t slot); /* its creation: waits for the reply */

/* nccl_group.c */
/* Adds an operation to the group in progress. */
ncclResult_t group_add(const struct rf_collective *);
/* Destroys an operator after the group in progress has posted its operations. */
ncclResult_t group_destroy_redop(uint64_t op);
/* Removes an aborted communicator from the group in progress. */
void group_forget(const struct comm *);
/* Called at the end of every call that may be part of a group; outside of groups the call is a
 * group of its own. The end of a group returns its first error. */
ncclResult_t group_call(const char *call, const struct comm *, ncclResult_t error);

#endif
