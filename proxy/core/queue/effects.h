/* effects.h: footprints of items and the content that they leave in memory (effects.c). */
#ifndef RANKFOLD_QUEUE_EFFECTS_H
#define RANKFOLD_QUEUE_EFFECTS_H

#include "queue/item.h"

/* Compute the item's footprint as if it were submitted now. */
void copy_footprint(struct rank *, const struct item *, struct footprint *);
void fill_footprint(struct rank *, const struct item *, struct footprint *);
void kernel_footprint(struct rank *, const struct item *, struct footprint *);
void product_footprint(struct rank *, const struct item *, struct footprint *);
/* Record the content that the item leaves; all of it was just submitted. */
void copy_effect(struct rank *, const struct item *, const struct footprint *);
void fill_effect(struct rank *, const struct item *, const struct footprint *);
void kernel_effect(struct rank *, const struct item *, const struct footprint *);
void run_effect(struct rank *, const struct item *, const struct footprint *);
/* Return whether memory already holds what the item would write. */
bool copy_there(struct rank *, const struct item *);
bool fill_there(struct rank *, const struct item *);
/* Records the content of a collective's results, which are in place. */
void collective_effect(struct rank *, struct item *, const struct coll_place *);

#endif
