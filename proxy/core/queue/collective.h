/* collective.h: queries about queued collectives, and their completion (collective.c). */
#ifndef RANKFOLD_QUEUE_COLLECTIVE_H
#define RANKFOLD_QUEUE_COLLECTIVE_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct rank;

void collective_told(struct rank *, uint64_t ticket, int error); /* ncclResult_t */
/* Something that was queued for it may have ended: answers the client if it waits for that, and
 * drops the communicator if it is to go. */
void collective_settle(struct rank *, struct comm *);
bool collective_queued(const struct rank *, const struct comm *);
/* Does one that the engine has not seen yet use the reduction operation? */
bool collective_awaits(const struct rank *, uint64_t redop);

#endif
