/* peer.h: messages and memory between the proxies of one node, for one job epoch.
 *
 * The lowest device creates a segment (a sealed, sparse memfd) and passes it to the others. The
 * segment contains a ring of messages for each ordered pair of devices, a doorbell for each device,
 * and an outbox for each device: memory that the device writes and all devices read.
 *
 * No call blocks. When a ring is full, the sender queues further messages in its own memory.
 */
#ifndef RANKFOLD_PEER_H
#define RANKFOLD_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/collective.h"

struct peer;

enum peer_tag { PEER_BARRIER = 1, PEER_COLLECTIVE = 2, PEER_CROSSCHECK = 3 };

/* Creates a segment. Returns its descriptor, or -errno. Python calls this, too. */
__attribute__((visibility("default"))) int peer_segment_create(uint32_t device_count);

/* Opens this device's end; duplicates the descriptor. Returns NULL, with `error`, if the descriptor
 * is not such a segment. */
struct peer *peer_new(int segment_fd, uint32_t device, uint32_t device_count, char *error,
		      uint32_t error_bytes);
void peer_free(struct peer *);

/* Messages arrive in order for each receiver and are never lost. `to` must be another device. */
void peer_send(struct peer *, uint32_t to, uint32_t tag, const struct peer_message *);
/* Takes the next message of any sender, and continues full rings: call it every turn. */
bool peer_receive(struct peer *, uint32_t *from, uint32_t *tag, struct peer_message *);

/* True if a peer has put something impossible into its ring. The ring is not read any more: fail
 * the job. */
bool peer_broken(const struct peer *);

/* peer_doorbell: the word to sleep on. peer_sleep: whether senders must wake us. */
_Atomic uint32_t *peer_doorbell(struct peer *);
void peer_sleep(struct peer *, bool sleeping);

/* Allocates memory in our outbox; NULL when it is full. Free it with the same offset and size. */
void *peer_outbox_alloc(struct peer *, uint64_t bytes, uint64_t *offset);
void peer_outbox_free(struct peer *, uint64_t offset, uint64_t bytes);
/* Finds bytes of `device`'s outbox; its proxy keeps them until they are released: see
 * coll_io.fetch. The memory is shared, so `place` is valid at once: nothing is copied and nothing
 * arrives later. Returns ncclInvalidArgument (4) if out of bounds, ncclSystemError (2) if it cannot
 * be mapped. */
int peer_fetch(struct peer *, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
	       struct hal_ref *place);
void peer_release(struct peer *, uint32_t device, struct hal_ref place, uint64_t bytes);

#endif
