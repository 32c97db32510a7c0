/* ring.h: the proxy's end of one rank's channel (ring.c). */
#ifndef RANKFOLD_RING_H
#define RANKFOLD_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"

struct rank;

struct place {          /* in the ring, after some record */
	uint64_t bytes; /* up to this place, as the header counts them */
	uint64_t seq;   /* of that record; 0: none yet */
};

struct rank_ring {
	uint8_t *map;
	struct rf_header *header;
	int channel_fd;
	struct place tail; /* consumed up to here */
	uint64_t head;     /* what the client had published at the last check */
	uint32_t replies;  /* requests not answered yet */
	uint64_t reads;    /* records copied out of it; a held one may be copied again */
	uint32_t urgents;  /* of the header's count: taken */
	uint32_t errors;   /* of communicators, written so far */
};

int ring_open(struct rank *, int channel_fd, char *error, uint32_t error_bytes);
void ring_close(struct rank *);
/* Copies the next record to `out` (RF_RECORD_MAX bytes), after checking its size and number.
 * Returns its bytes; 0 if there is none; negative if the ring is broken. `at`: the place to read
 * from, which moves behind the record. */
#define RING_BROKEN (-1)
#define RING_NUMBER (-2) /* the record's number, in `out`, is not the next one */
int ring_peek(struct rank *, struct place *at, uint8_t *out);
void ring_consume(struct rank *, struct place upto);
void ring_report_space(struct rank *); /* publishes consumed space as free; once per turn */
bool ring_empty(const struct rank *);
bool ring_owned(const struct rank *);                 /* no proxy of a later epoch has taken it */
void ring_from(struct rank *, uint64_t seq);          /* the number of the last record before */
void ring_expect_reply(struct rank *, uint16_t slot); /* a reply is due, unless slot is 0 */
void ring_cancel_reply(struct rank *, uint16_t slot); /* not yet due: its record waits */
void ring_reply(struct rank *, uint16_t slot, int error, const void *data, uint32_t bytes);
void ring_release_bulk(struct rank *, uint32_t index);
uint8_t *ring_bulk(struct rank *, uint64_t at, uint64_t bytes); /* NULL: out of bounds */
void ring_retired(struct rank *, uint64_t seq);
/* Publishes the error of one communicator for the client; 0: it is gone. The newest are kept. */
void ring_comm_error(struct rank *, uint64_t comm, int error);
/* Writes the description of an error that is published next; what does not fit is cut. */
void ring_fault_text(struct rank *, const char *text);
/* ring_urgent: are there requests outside of the ring. ring_take_urgent takes each once, with the
 * slot for its reply. */
bool ring_urgent(const struct rank *);
bool ring_take_urgent(struct rank *, uint32_t *at, uint64_t *request, uint16_t *slot);
struct rf_events ring_events(const struct rank *, uint16_t slot); /* of RF_URGENT_ELAPSED */
bool ring_host_function(struct rank *, uint64_t token, uint32_t place);
bool ring_host_sound(const struct rank *, uint32_t called); /* no more have returned */

#endif
