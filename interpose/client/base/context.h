/* context.h: the driver's contexts, for context.c and api/contexts.c. */
#ifndef RANKFOLD_CONTEXT_H
#define RANKFOLD_CONTEXT_H

#include "base.h"

struct context {
	_Atomic uint64_t number; /* a handle's; 0: a primary one, never retained */
	int device;
	unsigned flags;
	_Atomic bool lives;
	_Atomic bool of_runtime;   /* primary context: the runtime uses it */
	_Atomic unsigned retained; /* primary context: how often */
	struct context *next;
};

/* The primary context of a device; it has a number from the first call on. */
struct context *context_primary(int device);
struct context *context_now(void); /* the calling thread's current context, or NULL */
int context_find(const void *value, struct context **out);
void context_add(struct context *); /* permanently: programs may still name it */
int context_push(struct context *);
int context_replace(struct context *); /* pushes if there is no current context */
void context_pop(void);                /* requires a current context */
int context_begin(int device);         /* as the runtime does before it uses a device */

#endif
