/* fault.h: a rank's sticky error (fault.c). */
#ifndef RANKFOLD_FAULT_H
#define RANKFOLD_FAULT_H

struct rank;

void rank_fail(struct rank *, int error, const char *text);  /* CUresult; the first one stays */
void fault_from(struct rank *, int error, const char *text); /* it failed elsewhere */
/* A communicator's error, an ncclResult_t, and what it is about unless worse has happened; of
 * communicator 0 it is that of all. */
void rank_fail_comm(struct rank *, uint64_t comm, int error, const char *text);

#endif
