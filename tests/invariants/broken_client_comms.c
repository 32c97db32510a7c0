/* broken_client_comms.c: communicators (broken_client.c). */
#include "api/nccl_comm.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_comms(void)
{
	struct comm c = {.pending = 4, .nonblocking = true};
	struct rf_record record;
	BREAK("a request that is answered was counted",
	      c.pending = channel_begin(&record, RF_OP_DEVICE_SYNC, sizeof record, NULL, 0) + 1;
	      ((struct rf_slot *)(void *)((uint8_t *)channel_header + RF_OFF_SLOTS))->state =
		      RF_SLOT_ANSWERED;
	      under_way(&c));
}
