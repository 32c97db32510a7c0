/* execution.h: something that runs once, somewhere, and that items complete on (execution.c).
 *
 * An item has an execution of its own, which lies in it: a launch allocates nothing but its item.
 * Another item may complete on the same one (item_share); then the memory that it lies in stays
 * until the last of them has released it.
 */
#ifndef RANKFOLD_QUEUE_EXECUTION_H
#define RANKFOLD_QUEUE_EXECUTION_H

#include <stdbool.h>
#include <stdint.h>

struct hal_stream;
struct rank;

enum execution_place {
	EXECUTION_NONE,   /* nothing runs */
	EXECUTION_DEVICE, /* until `queue` has completed its work `number` */
	EXECUTION_ENGINE, /* until the collective engine reports ticket `number` */
	EXECUTION_CLIENT, /* until the rank's host function `number` has returned */
};

struct execution {
	uint32_t refs; /* items that complete on it */
	enum execution_place place;
	bool told; /* ENGINE */
	int error; /* reported with it: ncclResult_t */
	struct hal_stream *queue;
	uint64_t number;
};

/* Does what runs for an item of this rank run no longer? Nobody waits for what was given away of a
 * rank that has failed, but for its device work, which may use its memory. */
bool execution_over(const struct rank *, const struct execution *);

#endif
