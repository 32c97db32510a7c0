/* context.h: the driver's contexts, for context.c and for api/contexts.c. */
#ifndef RANKFOLD_CONTEXT_H
#define RANKFOLD_CONTEXT_H

#include "base.h"

struct context {
	_Atomic uint64_t number; /* a handle's; 0: a primary one that was never retained */
	int device;
	unsigned flags;
	_Atomic bool lives;
	_Atomic bool of_runtime;   /* a primary one: the runtime uses it */
	_Atomic unsigned retained; /* a primary one: how often */
	struct context *next;
};

/* The primary one of a device, which has a number from the first question on. */
struct context *context_primary(int device);
struct context *context_now(void); /* the calling thread's current one, or NULL */
int context_find(const void *value, struct context **out);
void context_add(struct context *); /* for good: programs may still name it */
int context_push(struct context *);
int context_replace(struct context *); /* the current one, if there is one */
void context_pop(void);                /* there is a current one */
int context_begin(int device);         /* as the runtime does before it uses a device */

#endif
