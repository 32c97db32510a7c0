/* races.h: what the check of a rank's order finds, as events (races.c). */
#ifndef RANKFOLD_RACES_H
#define RANKFOLD_RACES_H

#include <stdbool.h>

struct rank;

/* Where its job asks for it; before anything is in its streams. False: host memory is short. */
bool races_open(struct rank *);

#endif
