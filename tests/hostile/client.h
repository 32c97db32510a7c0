/* client.h: a rank's end of a channel in C, for programs that drive the proxy's core themselves;
 * and what Python would answer to the core's questions.
 *
 * A client is used by one thread at a time. Failures of the test itself (no memory, no descriptor)
 * abort. */
#ifndef RANKFOLD_HOSTILE_CLIENT_H
#define RANKFOLD_HOSTILE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "proxy.h"

struct client {
	int channel, image;
	uint8_t *map;
	struct rf_header *header;
	uint64_t head, seq;
};

void client_open(struct client *, uint32_t rank, uint32_t world_size);
void client_close(struct client *);
bool client_room(const struct client *, uint64_t bytes);
/* Any bytes as a record, padded to 64. */
void client_raw(struct client *, const void *record, uint32_t bytes);
void client_post(struct client *, void *record, uint32_t bytes, uint16_t opcode, uint16_t slot);
/* The same with reply slot 1, which must be free; then `client_answered` says when it is there. */
void client_ask(struct client *, void *record, uint32_t bytes, uint16_t opcode);
bool client_answered(const struct client *);
struct rf_slot *client_slot(const struct client *);

/* Modules are what they say they are unless their first byte is 0xff, and have one function, which
 * adds 1 to the byte at the address that is its parameter; none has a name that begins with x. */
void client_answer(struct proxy *, const struct proxy_event *);

#endif
