/* execution.c: when something that runs has completed. */
#include <string.h>

#include "loop/internal.h"

static bool seen(const struct hal *hal, struct execution *e)
{
	char text[RF_FAULT_BYTES] = "";
	e->told = e->told || hal->completed(e->queue) >= e->number;
	if (!e->told || !e->space)
		return e->told;
	e->error = hal->space_error(e->space, text, sizeof text);
	e->why = e->error ? strdup(text) : NULL;
	e->space = NULL;
	return true;
}

bool execution_over(const struct rank *r, struct execution *e)
{
	switch (e->place) {
	case EXECUTION_DEVICE: return seen(r->proxy->hal, e);
	case EXECUTION_ENGINE: return e->told || r->async_error;
	case EXECUTION_CLIENT:
		/* Or nobody is there to call it, or nobody knows how many were called. */
		return r->end.exited || !ring_host_sound(r) ||
		       (int32_t)(atomic_load(&r->ring.header->hostfunc_tail) -
				 (uint32_t)e->number) > 0;
	case EXECUTION_NONE: break;
	}
	return true;
}
