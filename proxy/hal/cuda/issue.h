/* issue.h: how issue.c and sums.c give works to the driver; nobody else includes it. Device thread,
 * but for what the driver calls in the stream's order (host functions). */
#ifndef RANKFOLD_CUDA_ISSUE_H
#define RANKFOLD_CUDA_ISSUE_H

#include "cuda_hal.h"

enum issued { ALL, PART, FAILED }; /* PART: the stream comes again */

/* issue.c */
bool issue_is_failed(const struct hal_space *); /* or NULL */
/* An error of a call for the space (or NULL) is that space's, unless it is the context's end. */
enum issued issue_check(struct hal_stream *, struct hal_space *, const char *what, CUresult error);
CUresult issue_host_function(const struct hal_stream *, CUhostFn, void *arg);
bool issue_given_up(void); /* in a host function: the memory that it was for is nobody's */
/* NULL: all are busy. `waits`: until a kernel has run, which may take long. */
struct cuda_stage *issue_take_stage(const struct hal_stream *, bool waits);
void issue_stage_free(void *stage); /* a host function */

/* sums.c */
enum issued issue_sum(struct hal_stream *, struct hal_work *);
enum issued issue_checksum(struct hal_stream *, struct hal_work *);

#endif
