/* carried.h: kernels that this library carries as PTX (interpose/blas, interpose/dnn). */
#ifndef RANKFOLD_CARRIED_H
#define RANKFOLD_CARRIED_H

#include "enqueue.h"

/* A text of PTX. It becomes a module like the program's own at the first launch, and is never
 * unloaded. */
struct carried {
	const char *image;
	struct module *module; /* under CARRIED_LOCK */
};
/* Launches a kernel with one parameter, `l->packed`. Fills in l's function and stream. */
int carried_launch(struct carried *, const char *kernel, struct launch *l, const void *stream);

#endif
