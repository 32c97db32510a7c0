/* races.h: reports what the check of a rank's order finds as events (races.c). */
#ifndef RANKFOLD_RACES_H
#define RANKFOLD_RACES_H

#include <stdbool.h>

struct rank;

/* Starts the check if the rank's job requests it; call it before any item is queued. Returns false
 * if host memory is short. */
bool races_open(struct rank *);

#endif
