/* pump.h: processes the items in a rank's streams (pump.c). */
#ifndef RANKFOLD_PUMP_H
#define RANKFOLD_PUMP_H

#include <stdbool.h>
#include <stdint.h>

struct device;
struct item;
struct rank;

void rank_pump(struct rank *); /* completes items, then submits those that may be */
/* The work that a rank could do if it were active. */
enum rank_work {
	WORK_NONE,
	WORK_WAITS,  /* continue, when others reach the same work (squash.c) */
	WORK_KERNEL, /* run a kernel */
};
enum rank_work rank_work(struct rank *);
void rank_continues_alone(struct rank *);       /* it does not wait for others any longer */
bool rank_runs_for_others(const struct rank *); /* other ranks' items complete on its works */
/* Marks the first item of each stream if it runs on the device; returns whether any of these still
 * runs. */
void rank_mark_running(struct rank *);
bool rank_runs_marked(const struct rank *);
bool rank_near(const struct rank *); /* its device will soon complete what something waits for */
uint64_t rank_done(const struct rank *); /* completed works of all its streams */
void rank_await(struct rank *);          /* while nothing happens: says which works are awaited */
void rank_sleep(struct rank *);          /* before the loop sleeps: sets what wakes it */
void rank_drop_streams(struct rank *);   /* drops all queued items; none is in flight */
/* Returns what is wrong with the rank's streams, or NULL (valid.c). Adds the works that use the
 * rank's memory, and the requests that wait for a reply here. */
const char *queue_invalid(const struct rank *, uint32_t *inflight, uint32_t *slots);
/* Checks all ranks: items of several may complete on one execution. */
const char *executions_invalid(const struct device *);

/* launch.c */
void kernel_seen(struct rank *, uint64_t function); /* the client has launched it */
/* host.c */
void host_open(struct rank *); /* continues from the number of calls in the channel */
/* A host function in which the rank has exited never returns, and what was issued after it does not
 * run. host_lets_run: may this item run; host_lets_consume: may more of the ring be consumed;
 * rank_unserved: is anything left that may. */
bool host_lets_run(struct rank *, const struct item *);
bool host_lets_consume(struct rank *);
bool rank_unserved(struct rank *);

#endif
