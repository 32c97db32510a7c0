/* turn.h: the result of one turn of the proxy's loop. The code that does something records it here;
 * only the loop (loop/loop.c) reads it, to decide whether to continue, and resets it. */
#ifndef RANKFOLD_TURN_H
#define RANKFOLD_TURN_H

#include <stdbool.h>

struct turn {
	bool progress;
	bool completed; /* works completed, and nothing waits for their completion */
};

static inline void turn_begin(struct turn *t) { *t = (struct turn){false, false}; }
static inline void turn_progress(struct turn *t) { t->progress = true; }
static inline void turn_completed(struct turn *t) { t->completed = true; }

#endif
