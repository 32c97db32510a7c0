/* pump.h: what becomes of the items in a rank's streams (pump.c). */
#ifndef RANKFOLD_PUMP_H
#define RANKFOLD_PUMP_H

#include <stdbool.h>
#include <stdint.h>

struct rank;

void rank_pump(struct rank *);             /* complete, then submit what can be */
bool rank_has_kernel(const struct rank *); /* a kernel could be submitted were it active */
void rank_sleep(struct rank *);            /* before the loop sleeps: which completions wake it */
void rank_drop_streams(struct rank *);     /* with all that is queued; nothing of it is in flight */
/* What is wrong with the rank's streams, or NULL (valid.c). Adds the works that use the rank's
 * memory and the requests that wait for an answer here. */
const char *queue_invalid(const struct rank *, uint32_t *inflight, uint32_t *slots);

/* launch.c */
void kernel_seen(struct rank *, uint64_t function); /* the client has launched it */
/* host.c */
void host_open(struct rank *); /* as many were called as the channel says */

#endif
