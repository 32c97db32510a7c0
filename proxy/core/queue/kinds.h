/* kinds.h: the functions of each kind of item, for the table in kinds.c and the files that
 * implement them. */
#ifndef RANKFOLD_QUEUE_KINDS_H
#define RANKFOLD_QUEUE_KINDS_H

#include "queue/item.h"

/* launch.c */
enum item_ready kernel_ready(const struct item *);
bool kernel_submit(struct rank *, struct stream *, struct item *);
void kernel_complete(struct rank *, struct item *);
bool product_submit(struct rank *, struct stream *, struct item *);

/* copy.c */
#define COPY_NEEDS (NEEDS_STILL | NEEDS_SLOT) /* of copies and fills, for each piece */
bool copy_submit(struct rank *, struct stream *, struct item *);
void copy_complete(struct rank *, struct item *);
bool copy_awaited(const struct item *);
uint64_t copy_works(const struct item *);
bool fill_submit(struct rank *, struct stream *, struct item *);
uint64_t fill_works(const struct item *);

/* event.c */
void record_complete(struct rank *, struct item *);
bool record_awaited(const struct item *);
enum item_ready wait_ready(const struct item *);
void wait_complete(struct rank *, struct item *);
void event_drop(struct item *);

/* collective.c */
bool collective_submit(struct rank *, struct stream *, struct item *);
bool collective_awaited(const struct item *);
void collective_complete(struct rank *, struct item *);

/* host.c */
bool host_submit(struct rank *, struct stream *, struct item *);

/* fence.c */
void fence_complete(struct rank *, struct item *);
void fence_drop(struct item *);

#endif
