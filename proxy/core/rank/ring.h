/* ring.h: the server's end of one rank's channel (ring.c). */
#ifndef RANKFOLD_RING_H
#define RANKFOLD_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"

struct rank;

struct place {          /* in the ring, after some record */
	uint64_t bytes; /* up to there, as the header counts them */
	uint64_t seq;   /* of that record; 0: none yet */
};

struct rank_ring {
	uint8_t *map;
	struct rf_header *header;
	int channel_fd;
	struct place tail; /* what we have consumed */
	uint64_t head;     /* what the client has published when we looked last */
	uint32_t replies;  /* requests not answered yet */
	uint64_t reads;    /* records copied out of it: one that is held may be again */
	uint32_t aborts;   /* of the header's: taken */
	uint32_t errors;   /* of communicators, written so far */
};

int ring_open(struct rank *, int channel_fd, char *error, uint32_t error_bytes);
void ring_close(struct rank *);
/* The next record, checked for size and number and copied to `out` (RF_RECORD_MAX bytes), or 0
 * bytes if none is there; negative: the ring is broken. `at` is the place to look, moved behind the
 * record. */
#define RING_BROKEN (-1)
#define RING_NUMBER (-2) /* the record's number, in `out`, is not the next one */
int ring_peek(struct rank *, struct place *at, uint8_t *out);
void ring_consume(struct rank *, struct place upto);
void ring_tell_room(struct rank *); /* what was consumed is free: published once per turn */
bool ring_empty(const struct rank *);
bool ring_owned(const struct rank *);            /* no server of a later epoch has taken it */
void ring_from(struct rank *, uint64_t seq);     /* the number of the last record before */
void ring_asked(struct rank *, uint16_t slot);   /* a reply is owed, unless slot is 0 */
void ring_unasked(struct rank *, uint16_t slot); /* not yet: its record waits */
void ring_reply(struct rank *, uint16_t slot, int error, const void *data, uint32_t bytes);
void ring_release_bulk(struct rank *, uint32_t index);
uint8_t *ring_bulk(struct rank *, uint64_t at, uint64_t bytes); /* NULL: out of bounds */
void ring_retired(struct rank *, uint64_t seq);
/* The error of one communicator, for the client; 0: it is gone. The newest are kept. */
void ring_comm_error(struct rank *, uint64_t comm, int error);
/* Are there communicators to be aborted? Then each is taken once, with the slot of its reply. */
bool ring_aborts(const struct rank *);
bool ring_take_abort(struct rank *, uint32_t *at, uint64_t *comm, uint16_t *slot);
bool ring_host_function(struct rank *, uint64_t token, uint32_t place);
bool ring_host_sound(const struct rank *); /* not more have returned than were handed over */

#endif
