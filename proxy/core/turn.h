/* turn.h: what one turn of the proxy's loop has come to. Whoever does something says so; only the
 * loop (loop/loop.c) looks, to find out whether to go on, and begins anew. */
#ifndef RANKFOLD_TURN_H
#define RANKFOLD_TURN_H

#include <stdbool.h>

struct turn {
	bool progress;
	bool settled; /* works ended that let nothing happen */
};

static inline void turn_begin(struct turn *t) { *t = (struct turn){false, false}; }
static inline void turn_progress(struct turn *t) { t->progress = true; }
static inline void turn_settled(struct turn *t) { t->settled = true; }

#endif
