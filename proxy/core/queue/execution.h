/* execution.h: something that runs once, somewhere, and on which items complete (execution.c).
 *
 * An item contains an execution of its own, so a launch allocates only its item. Another item,
 * possibly of another rank, may complete on the same execution (item_share); the item that contains
 * it then stays allocated until the last of them has released it. The rank whose work it is may be
 * gone before the others have checked: so the first check that finds it complete records how it
 * ended.
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
	bool reported; /* ENGINE: the engine has reported it. DEVICE: its completion was seen:
		    * `queue` may be gone */
	int error;     /* ENGINE: reported, ncclResult_t; DEVICE: CUresult */
	char *why;     /* or NULL: a line of text about the error */
	struct rank_memory
		*memory; /* DEVICE, for items of several ranks: the memory that it uses; else
			  * NULL */
	struct hal_stream *queue;
	uint64_t number;
};

/* True if the execution has ended for an item of this rank. For a failed rank, only device work
 * still counts, because it may use the rank's memory. */
bool execution_done(const struct rank *, struct execution *);

#endif
