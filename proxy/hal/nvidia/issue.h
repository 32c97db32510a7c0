/* issue.h: how stage.c, sums.c, variables.c and issue.c submit works to the driver; no other file
 * includes it. Device thread, except host functions, which the driver calls in the stream's order.
 */
#ifndef RANKFOLD_CUDA_ISSUE_H
#define RANKFOLD_CUDA_ISSUE_H

#include "nvidia_hal.h"

enum issued { ALL, PART, FAILED }; /* PART: to be continued */

/* stage.c */
bool issue_is_failed(const struct hal_space *); /* the space may be NULL */
/* Attributes a call's error to the space (or NULL), unless the context is lost. */
enum issued issue_check(struct hal_stream *, struct hal_space *, const char *what, CUresult error);
CUresult issue_host_function(const struct hal_stream *, CUhostFn, void *arg);
/* for host functions: the device was lost, so its memory must not be used */
bool issue_given_up(void);
/* NULL: all are busy. `waits`: the stage is held until a kernel has run, which may take long. */
struct nvidia_stage *issue_take_stage(const struct hal_stream *, bool waits);
void issue_stage_free(void *stage); /* a host function */

/* sums.c */
enum issued issue_sum(struct hal_stream *, struct hal_work *);
enum issued issue_checksum(struct hal_stream *, struct hal_work *);

/* variables.c: before and after the launch of a kernel; nothing for PTX */
enum issued issue_variables_in(struct hal_stream *, const struct hal_work *);
enum issued issue_variables_out(struct hal_stream *, const struct hal_work *);

#endif
