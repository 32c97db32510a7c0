/* peer.h: messages and memory between the proxies of one node, for one job epoch.
 *
 * The lowest device makes a segment (a sealed, sparse memfd) and hands it to the others. In it: for
 * each ordered pair of devices a ring of messages, for each device a doorbell, and for each device
 * an outbox, memory that it fills and all read.
 *
 * No call blocks. A full ring is continued by a list in the sender's own memory.
 */
#ifndef RANKFOLD_PEER_H
#define RANKFOLD_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/collective.h"

struct peer;

enum peer_tag { PEER_BARRIER = 1, PEER_COLLECTIVE = 2, PEER_GUARD = 3 };

/* A fresh segment: its descriptor, or -errno. Also called by Python. */
__attribute__((visibility("default"))) int peer_segment_create(uint32_t device_count);

/* This device's end; the descriptor is duplicated. NULL, with `error`, if it is no such segment. */
struct peer *peer_new(int segment_fd, uint32_t device, uint32_t device_count, char *error,
		      uint32_t error_bytes);
void peer_free(struct peer *);

/* In order for each receiver; never lost. `to` is not this device. */
void peer_send(struct peer *, uint32_t to, uint32_t tag, const struct peer_message *);
/* The next message of any sender; also continues full rings: call it every turn. */
bool peer_receive(struct peer *, uint32_t *from, uint32_t *tag, struct peer_message *);

/* Has a peer put into its ring what cannot be? It is not read any more: fail the job. */
bool peer_broken(const struct peer *);

/* The word to sleep on, and the promise to senders that they must wake us. */
uint32_t *peer_doorbell(struct peer *);
void peer_sleep(struct peer *, bool sleeping);

/* Memory of our outbox; NULL when it is full. Freed by the same offset and size. */
void *peer_outbox_alloc(struct peer *, uint64_t bytes, uint64_t *offset);
void peer_outbox_free(struct peer *, uint64_t offset, uint64_t bytes);
/* Bytes of `device`'s outbox, which its proxy keeps until they are released: see
 * coll_io.fetch. Shared memory: they lie at `place` at once, nothing is copied and nothing comes
 * later; ncclInvalidArgument (4) if out of bounds, ncclSystemError (2) if it cannot be mapped. */
int peer_fetch(struct peer *, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
	       struct hal_ref *place);
void peer_release(struct peer *, uint32_t device, struct hal_ref place, uint64_t bytes);

#endif
