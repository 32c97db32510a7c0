/* broken_inside.h: invariants of structures that only their own file knows (broken.c). */
#ifndef RANKFOLD_HOSTILE_BROKEN_INSIDE_H
#define RANKFOLD_HOSTILE_BROKEN_INSIDE_H

struct coll;
struct launches;

void broken_peers(void);
/* `check` looks at the whole core; the structures belong to it. */
void broken_launches(struct launches *, void (*check)(void));
void broken_collectives(struct coll *, void (*check)(void));

#endif
