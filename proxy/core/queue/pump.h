/* pump.h: what becomes of the items in a rank's streams (pump.c). */
#ifndef RANKFOLD_PUMP_H
#define RANKFOLD_PUMP_H

#include <stdbool.h>
#include <stdint.h>

struct item;
struct proxy;
struct rank;

void rank_pump(struct rank *); /* complete, then submit what can be */
/* What could a rank do, were it active? */
enum rank_work {
	WORK_NONE,
	WORK_WAITS,  /* go on, when others come to the same (squash.c) */
	WORK_KERNEL, /* run a kernel */
};
enum rank_work rank_work(struct rank *);
void rank_goes_alone(struct rank *);            /* it waits for nobody any longer */
bool rank_runs_for_others(const struct rank *); /* works that others' items complete on */
/* Marks what is first in each stream and runs on the device; does any of that still? */
void rank_mark_running(struct rank *);
bool rank_runs_marked(const struct rank *);
bool rank_near(const struct rank *); /* its device will soon have done what somebody waits for */
uint64_t rank_done(const struct rank *); /* works that have completed, of all its streams */
void rank_sleep(struct rank *);          /* before the loop sleeps: which completions wake it */
void rank_drop_streams(struct rank *);   /* with all that is queued; nothing of it is in flight */
/* What is wrong with the rank's streams, or NULL (valid.c). Adds the works that use the rank's
 * memory and the requests that wait for an answer here. */
const char *queue_invalid(const struct rank *, uint32_t *inflight, uint32_t *slots);
/* Of all ranks: items of several may complete on one execution. */
const char *executions_invalid(const struct proxy *);

/* launch.c */
void kernel_seen(struct rank *, uint64_t function); /* the client has launched it */
/* host.c */
void host_open(struct rank *); /* as many were called as the channel says */
/* A host function in which the rank has exited never returns: what was issued behind it does not
 * run. May this, may more of the ring? Is anything left that may? */
bool host_lets_run(struct rank *, const struct item *);
bool host_lets_consume(struct rank *);
bool rank_unserved(struct rank *);

#endif
