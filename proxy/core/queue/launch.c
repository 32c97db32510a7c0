/* launch.c: kernels and matrix products, which only the active rank may run. */
#include <string.h>

#include "queue/queue_parts.h"
#include "queue/kinds.h"

void kernel_seen(struct rank *r, uint64_t function) { r->queue->last_function = function; }

enum item_ready kernel_ready(const struct item *i)
{
	const struct function *f = i->kernel.function;
	if (f->error)
		return ITEM_BROKEN;
	return f->hal && f->module->loaded ? ITEM_READY : ITEM_LATER;
}

static bool submit(struct rank *r, const struct stream *s, struct item *i,
		   const struct hal_work *work)
{
	uint64_t number = r->device->hal->submit(s->hal, work);
	item_on_device(r, s, i, number);
	if (!number)
		return false;
	rank_count_kernel(r);
	return true;
}

bool kernel_submit(struct rank *r, struct stream *s, struct item *i)
{
	const struct rf_launch *l = &i->kernel.launch;
	const struct function *f = i->kernel.function;
	if (f->error) {
		rank_fail(r, f->error, f->why_refused ? f->why_refused : f->name);
		return true;
	}
	struct hal_work w = {.kind = HAL_KERNEL};
	w.kernel.space = r->memory.space;
	w.kernel.function = f->hal;
	memcpy(w.kernel.grid, l->grid, sizeof l->grid);
	memcpy(w.kernel.block, l->block, sizeof l->block);
	w.kernel.shared_bytes = l->shared_bytes;
	w.kernel.params = i->data;
	w.kernel.param_bytes = l->param_bytes;
	w.kernel.globals_addr = f->module->globals_addr;
	w.kernel.globals_number = f->module->globals_number;
	w.kernel.globals_known = f->module->globals_known;
	w.kernel.cooperative = l->flags & RF_LAUNCH_COOPERATIVE;
	w.kernel.cluster = l->cluster;
	if (!submit(r, s, i, &w))
		rank_fail(r, CU_LAUNCH_OUT_OF_RESOURCES, f->name);
	return true;
}

void kernel_complete(struct rank *r, struct item *i)
{
	opaque_complete(r, i);
	module_release(r, i->kernel.function->module);
}

bool product_submit(struct rank *r, struct stream *s, struct item *i)
{
	struct hal_work w = {.kind = HAL_GEMM};
	w.gemm.space = r->memory.space;
	w.gemm.call = (const void *)i->data;
	if (!submit(r, s, i, &w))
		rank_fail(r, CU_NOT_SUPPORTED, "a matrix product of types that this device lacks");
	return true;
}
