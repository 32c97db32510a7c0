/* broken_peer.c: ranges of the outbox (broken.c). */
#include "peer/peer.c"

#include "broken.h"
#include "broken_inside.h"

void broken_peers(void)
{
	struct outbox_range free_range = {PEER_OUTBOX_BYTES, 8192};
	struct peer p = {.fd = -1,
			 .host = {.pieces = &free_range, .count = 1, .bytes = PEER_OUTBOX_BYTES}};
	uint64_t offset;
	p.outbox[0] = malloc(1); /* is never written to */
	BREAKS("a range is in the outbox", , peer_outbox_alloc(&p, 4096, 2, &offset));
	BREAKS("a range of the outbox that is given back was not free", ,
	       peer_outbox_free(&p, PEER_OUTBOX_BYTES - 4096, 8192));
	p.second[0] = (struct hal_outbox){.addr = 4096, .bytes = 4096};
	BREAKS("a device has one second outbox", , peer_outbox_set(&p, 0, &p.second[0]));
	free(p.outbox[0]);
}
