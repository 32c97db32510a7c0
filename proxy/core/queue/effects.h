/* effects.h: what items do to what their rank's memory holds (effects.c). */
#ifndef RANKFOLD_QUEUE_EFFECTS_H
#define RANKFOLD_QUEUE_EFFECTS_H

#include "queue/item.h"

/* What the item will have done, were it submitted now. */
void copy_foresee(struct rank *, const struct item *, struct foreseen *);
void fill_foresee(struct rank *, const struct item *, struct foreseen *);
void kernel_foresee(struct rank *, const struct item *, struct foreseen *);
void product_foresee(struct rank *, const struct item *, struct foreseen *);
/* All of the item has just been submitted. */
void copy_effect(struct rank *, const struct item *, const struct foreseen *);
void fill_effect(struct rank *, const struct item *, const struct foreseen *);
void kernel_effect(struct rank *, const struct item *, const struct foreseen *);
void run_effect(struct rank *, const struct item *, const struct foreseen *);
/* What it will have written lies there already. */
bool copy_there(struct rank *, const struct item *);
bool fill_there(struct rank *, const struct item *);
/* Its results lie where they should. */
void collective_effect(struct rank *, struct item *, const struct coll_place *);

#endif
