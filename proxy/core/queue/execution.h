/* execution.h: something that runs once, somewhere, and that items complete on (execution.c).
 *
 * An item has an execution of its own, which lies in it: a launch allocates nothing but its item.
 * Another item may complete on the same one (item_share), also one of another rank; then the memory
 * that it lies in stays until the last of them has released it. Whose work it is may be gone before
 * the others have looked: so the first who sees that it is over notes how it ended.
 */
#ifndef RANKFOLD_QUEUE_EXECUTION_H
#define RANKFOLD_QUEUE_EXECUTION_H

#include <stdbool.h>
#include <stdint.h>

struct hal_stream;
struct rank;
struct rank_memory;

enum execution_place {
	EXECUTION_NONE,   /* nothing runs */
	EXECUTION_DEVICE, /* until `queue` has completed its work `number` */
	EXECUTION_ENGINE, /* until the collective engine reports ticket `number` */
	EXECUTION_CLIENT, /* until the rank's host function `number` has returned */
};

struct execution {
	uint32_t refs; /* items that complete on it */
	enum execution_place place;
	bool told; /* ENGINE: it was reported; DEVICE: it was seen: `queue` may be gone */
	int error; /* ENGINE: reported with it, ncclResult_t; DEVICE: CUresult */
	char *why; /* or NULL: a line about the error, for people */
	struct rank_memory
		*memory; /* DEVICE, for items of several ranks: whose it uses; else NULL */
	struct hal_stream *queue;
	uint64_t number;
};

/* Does what runs for an item of this rank run no longer? Nobody waits for what was given away of a
 * rank that has failed, but for its device work, which may use its memory. */
bool execution_over(const struct rank *, struct execution *);

#endif
