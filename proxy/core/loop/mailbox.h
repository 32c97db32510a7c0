/* mailbox.h: calls into the loop, events out of it (mailbox.c). */
#ifndef RANKFOLD_MAILBOX_H
#define RANKFOLD_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

struct mailbox;
struct proxy;
struct proxy_event;

struct mailbox *mailbox_open(struct proxy *);
void mailbox_close(struct proxy *);
bool mailbox_start(struct proxy *);
void mailbox_stop(struct proxy *);
void mailbox_run_calls(struct proxy *);
void in_loop(struct proxy *, void (*run)(struct proxy *, void *), void *arg); /* and waits */
bool mailbox_stopping(const struct proxy *);
void mailbox_doorbell(struct proxy *, uint32_t **word, uint32_t *value);
void mailbox_sleep(struct proxy *, bool sleeping);
void mailbox_ring(void *proxy);                              /* from any thread */
void post_event(struct proxy *, const struct proxy_event *); /* copies data */

#endif
