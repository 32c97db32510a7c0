/* peer.h: messages and memory between the proxies of one node, for one job epoch.
 *
 * The lowest device creates a segment (a sealed, sparse memfd) and passes it to the others. The
 * segment contains a ring of messages for each ordered pair of devices, a doorbell for each device,
 * and an outbox for each device: memory that the device writes and all devices read.
 *
 * A device may have a second outbox, in its own memory (hal_outbox). Devices that can read it say
 * so once; from then on data for such devices only are there, as long as it has space. Offsets
 * beyond those of the first outbox are in the second.
 *
 * No call blocks. When a ring is full, the sender queues further messages in its own memory.
 */
#ifndef RANKFOLD_PEER_H
#define RANKFOLD_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/collective.h"

struct peer;

enum peer_tag {
	PEER_BARRIER = 1,
	PEER_COLLECTIVE = 2,
	PEER_CROSSCHECK = 3,
	PEER_READS = 4, /* the sender has opened the second outbox of the receiver */
};

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

/* Allocates memory in our outboxes for these readers (a bit for each device); 0 when they are full.
 * Free it with the same offset and size. */
uint64_t peer_outbox_alloc(struct peer *, uint64_t bytes, uint64_t readers, uint64_t *offset);
void peer_outbox_free(struct peer *, uint64_t offset, uint64_t bytes);
/* Bytes that were allocated in the first outbox, and in the second. */
void peer_outbox_counts(const struct peer *, uint64_t *host, uint64_t *direct);

/* The second outbox of a device: ours, or one that we have opened. addr 0: none. */
const struct hal_outbox *peer_outbox(const struct peer *, uint32_t device);
/* Sets it, once. If it is another device's, tells that device. */
void peer_outbox_set(struct peer *, uint32_t device, const struct hal_outbox *);
/* PEER_READS has arrived. */
void peer_outbox_opened(struct peer *, uint32_t by);
uint64_t peer_outbox_readers(const struct peer *); /* of our second outbox */

/* Finds bytes of `device`'s outbox; its proxy keeps them until they are released: see
 * coll_io.fetch. The memory is shared, so `place` is valid at once: nothing is copied and nothing
 * arrives later. Returns ncclInvalidArgument (4) if out of bounds, ncclSystemError (2) if it cannot
 * be mapped. */
int peer_fetch(struct peer *, uint32_t device, uint64_t offset, uint64_t bytes, uint64_t token,
	       struct hal_ref *place);
void peer_release(struct peer *, uint32_t device, struct hal_ref place, uint64_t bytes);

#endif
