/* carried.c: launches kernels that this library carries as PTX. They are modules like the program's
 * own, launched in the program's streams: so captures, folding and moves need nothing special.
 */
#include "carried.h"

static int find_kernel(struct carried *c, const char *kernel, struct function **out)
{
	lock(CARRIED_LOCK);
	if (!c->module)
		c->module = module_register(c->image);
	unlock(CARRIED_LOCK);
	return c->module ? module_function(c->module, kernel, out) : OUT_OF_MEMORY;
}

int carried_launch(struct carried *c, const char *kernel, struct launch *l, const void *stream)
{
	int error = context_use_device();

	if (!error)
		error = stream_number(stream, &l->stream);
	if (!error)
		error = find_kernel(c, kernel, &l->function);
	return error ? error : enqueue_launch(l);
}
