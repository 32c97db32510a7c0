/* handle_driver.c: requests that only the device's driver can answer (handlers.h). */
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

int on_clusters(struct rank *r, const struct rf_clusters *a, uint32_t extra)
{
	(void)extra;
	const struct device_memory *d = &r->proxy->device.memory;
	const struct function *f = get_function(r, a->function);
	struct rf_clusters_reply reply = {0};
	if (!d->hal->clusters)
		return CU_NOT_SUPPORTED;
	if (!f || f->error)
		return f ? f->error : CU_INVALID_HANDLE;
	if (!f->hal || !f->module->loaded) /* of a moved rank: it is being loaded again */
		return r->async_error ? CU_INVALID_HANDLE : RETRY;
	int error = d->hal->clusters(d->device, f->hal, a, &reply.count);
	if (error)
		return error;
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}
