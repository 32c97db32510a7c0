/* fence.h: a fence completes when all streams have completed everything older (fence.c). */
#ifndef RANKFOLD_QUEUE_FENCE_H
#define RANKFOLD_QUEUE_FENCE_H

#include <stdbool.h>
#include <stdint.h>

struct rank;

struct fence {
	uint32_t left;      /* streams that have not reached it */
	uint16_t slot;      /* of the reply at completion, or 0 */
	uint64_t free_addr; /* of a FREE to be retired, or 0 */
	uint64_t free_seq;  /* its number */
	struct fence *next; /* in the rank's list of frees, oldest first */
};

struct fence *fence_new(uint16_t slot); /* NULL: host memory is short */
/* Adds the fence to every stream that has items; left is 0 if none has. */
void fence_push(struct rank *, uint64_t seq, struct fence *);
/* Adds a fence for a FREE, which is retired when it completes, in the order of frees. False: host
 * memory is short. */
bool fence_push_free(struct rank *, uint64_t addr, uint64_t seq, uint16_t slot);
void fence_retire(struct rank *); /* retires frees that have completed */
void fence_drop_frees(struct rank *);

#endif
