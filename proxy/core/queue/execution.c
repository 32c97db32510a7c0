/* execution.c: when something that runs has completed. */
#include <stdio.h>
#include <string.h>

#include "queue/queue_parts.h"

static bool device_completed(const struct hal *hal, struct execution *e)
{
	char text[RF_FAULT_TEXT_BYTES] = "";
	e->reported = e->reported || hal->completed(e->queue) >= e->number;
	if (!e->reported || !e->memory)
		return e->reported;
	e->error = hal->space_error(e->memory->space, text, sizeof text);
	sharing_copied(e->memory);
	if (!e->error && e->memory->surprised) {
		e->error = CU_ILLEGAL_ADDRESS;
		snprintf(text, sizeof text,
			 "work that ran once for several ranks wrote outside its footprint: with "
			 "RANKFOLD_SQUASH=0 each rank runs its own");
	}
	e->why = e->error ? strdup(text) : NULL;
	e->memory = NULL;
	return true;
}

bool execution_done(const struct rank *r, struct execution *e)
{
	switch (e->place) {
	case EXECUTION_DEVICE: return device_completed(r->device->hal, e);
	case EXECUTION_ENGINE: return e->reported || r->async_error;
	case EXECUTION_CLIENT:
		/* If not sound, the number of calls is unknown. */
		return !ring_host_sound(r, r->queue->host_place) ||
		       (int32_t)(atomic_load(&r->ring.header->hostfunc_tail) -
				 (uint32_t)e->number) > 0;
	case EXECUTION_NONE: break;
	}
	return true;
}
