/* fault.h: a rank's sticky error (fault.c). */
#ifndef RANKFOLD_FAULT_H
#define RANKFOLD_FAULT_H

struct rank;

void rank_fail(struct rank *, int error, const char *text);  /* CUresult; the first one stays */
void fault_from(struct rank *, int error, const char *text); /* it failed elsewhere */
/* The communicators' error, an ncclResult_t, and what it is about unless worse has happened. */
void rank_fail_comm(struct rank *, int error, const char *text);

#endif
