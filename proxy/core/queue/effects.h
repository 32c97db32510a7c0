/* effects.h: what items do to what their rank's memory holds (effects.c). */
#ifndef RANKFOLD_QUEUE_EFFECTS_H
#define RANKFOLD_QUEUE_EFFECTS_H

#include "queue/item.h"

/* All of the item has just been submitted. */
void copy_effect(struct rank *, const struct item *);
void fill_effect(struct rank *, const struct item *);
void kernel_effect(struct rank *, const struct item *);
void product_effect(struct rank *, const struct item *);
/* Its results lie where they should. */
void collective_effect(struct rank *, struct item *, const struct coll_place *);

#endif
