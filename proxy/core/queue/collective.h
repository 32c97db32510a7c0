/* collective.h: queries about queued collectives, and their completion (collective.c). */
#ifndef RANKFOLD_QUEUE_COLLECTIVE_H
#define RANKFOLD_QUEUE_COLLECTIVE_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct rank;

void collective_report(struct rank *, uint64_t ticket, int error); /* completes it; ncclResult_t */
/* Something queued for the communicator may have ended: replies to the client if it waits for that,
 * and drops the communicator if it is doomed. */
void collective_settle(struct rank *, struct comm *);
bool collective_queued(const struct rank *, const struct comm *);
/* True if an operation that the engine has not received yet uses the reduction operator. */
bool collective_awaits(const struct rank *, uint64_t redop);

#endif
