/* execution.c: when something that runs has completed. */
#include "loop/internal.h"

bool execution_over(const struct rank *r, const struct execution *e)
{
	switch (e->place) {
	case EXECUTION_DEVICE: return r->proxy->hal->completed(e->queue) >= e->number;
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
