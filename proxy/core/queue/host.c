/* host.c: host functions, which the client calls for us, one after another. */
#include "loop/internal.h"
#include "queue/kinds.h"

void host_open(struct rank *r)
{
	r->queue.host_place = atomic_load(&r->ring.header->hostfunc_head);
}

bool host_submit(struct rank *r, struct stream *s, struct item *i)
{
	(void)s;
	struct execution *e = i->execution;
	e->place = EXECUTION_CLIENT;
	e->number = r->queue.host_place;
	if (!ring_host_function(r, i->token, r->queue.host_place))
		return !ring_host_sound(r); /* no room; or the client's count is nonsense */
	r->queue.host_place++;
	return true;
}
