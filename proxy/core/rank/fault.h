/* fault.h: a rank's sticky error (fault.c). */
#ifndef RANKFOLD_FAULT_H
#define RANKFOLD_FAULT_H

struct rank;

void rank_fail(struct rank *, int error, const char *text);  /* CUresult; the first error is kept */
void fault_from(struct rank *, int error, const char *text); /* it failed before a restore */
/* Sets a communicator's error, an ncclResult_t; comm 0: the error of all communicators. `text`
 * describes it, unless the rank has a sticky error. */
void rank_fail_comm(struct rank *, uint64_t comm, int error, const char *text);

#endif
