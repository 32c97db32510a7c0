/* handle_tensor_map.c: requests for descriptions of tensors (handlers.h). */
#include "codes.h"
#include "loop/handlers.h"
#include "loop/internal.h"

int on_tensor_map(struct rank *r, const struct rf_tensor_map *a, uint32_t extra)
{
	(void)extra;
	const struct device_memory *d = &r->proxy->device.memory;
	struct rf_tensor_map_reply reply;
	if (!d->hal->tensor_map)
		return CU_NOT_SUPPORTED;
	int error = d->hal->tensor_map(d->device, a, reply.map);
	if (error)
		return error;
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}
