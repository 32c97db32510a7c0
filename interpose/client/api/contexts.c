/* contexts.c: creates, destroys and queries the driver's contexts.
 *
 * A primary context lives from its first retain, or its first use by the runtime, to a reset or its
 * last release; other contexts live until they are destroyed. A context's objects end with it.
 * Blocks only before objects are destroyed, until the device has completed its work.
 */
#include <stdlib.h>

#include "bodies.h"
#include "context.h"

#define FLAGS_MASK 0xffu /* CU_CTX_FLAGS_MASK */
#define MAP_HOST 8u

/* ---- creation and destruction ---- */

int context_create(void **out, int device, unsigned flags)
{
	int error = out && device < DEVICES_MAX ? device_check(device) : INVALID_VALUE;
	struct context *c = error ? NULL : calloc(1, sizeof *c);
	if (!error && !c)
		error = OUT_OF_MEMORY;
	if (error)
		return error;
	*c = (struct context){
		.number = handle_number(), .device = device, .flags = flags, .lives = true};
	error = context_push(c);
	if (error) {
		free(c);
		return error;
	}
	context_add(c);
	*out = c;
	return CUDA_OK;
}

int context_create_with(void **out, int device, unsigned flags, const CUctxCreateParams *with)
{
	if (with && (with->count || with->cig)) {
		LOG_ONCE(
			"cuCtxCreate: contexts with execution affinity or for graphics are not supported "
			"by rankfold: create one without parameters");
		return NOT_SUPPORTED;
	}
	return context_create(out, device, flags);
}

/* Waits for the device; an error of the device does not keep the objects. */
static int end_context(uint64_t number)
{
	int error = channel_open();
	if (!error)
		error = capture_forbids_device();
	if (error)
		return error;
	int failed = wait_for_device();
	stream_end(number);
	module_end(number);
	error = memory_end(number);
	return failed ? failed : error;
}

int context_reset(int device)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	if (error)
		return error;
	struct context *c = context_primary(device);
	atomic_store(&c->lives, false);
	atomic_store(&c->of_runtime, false);
	int used = context_used_ordinal();
	if (!channel_header || (used >= 0 && used != device))
		return CUDA_OK; /* nothing was ever created there */
	error = end_context(atomic_load(&c->number));
	module_reset();
	kernel_heap_reset();
	return error;
}

/* If another context is current, only the runtime's own state may be destroyed. */
cudaError_t cudaDeviceReset(void)
{
	struct context *c = context_now();
	bool own = !c || c == context_primary(c->device);
	return runtime_result(own ? context_reset(current_device) : device_sync());
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	struct context *c;
	int error = context_find(ctx, &c);
	if (error)
		return error;
	if (c == context_primary(c->device))
		return INVALID_CONTEXT; /* it must be released, or reset */
	error = channel_header ? end_context(atomic_load(&c->number)) : CUDA_OK;
	atomic_store(&c->lives, false);
	if (context_now() == c)
		context_pop();
	return error;
}

/* ---- the primary context ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	int error = pctx && dev < DEVICES_MAX ? device_check(dev) : INVALID_VALUE;
	if (error)
		return error;
	struct context *c = context_primary(dev);
	atomic_fetch_add(&c->retained, 1);
	atomic_store(&c->lives, true);
	*pctx = c;
	return CUDA_OK;
}

/* The last release resets the context, unless the runtime also uses it. */
int context_release(int device)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	if (error)
		return error;
	struct context *c = context_primary(device);
	unsigned before = atomic_load(&c->retained);
	do {
		if (!before)
			return INVALID_CONTEXT;
	} while (!atomic_compare_exchange_weak(&c->retained, &before, before - 1));
	return before == 1 && !atomic_load(&c->of_runtime) ? context_reset(device) : CUDA_OK;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	int error = flags && active && dev < DEVICES_MAX ? device_check(dev) : INVALID_VALUE;
	if (error)
		return error;
	*flags = context_primary(dev)->flags;
	*active = atomic_load(&context_primary(dev)->lives);
	return CUDA_OK;
}

/* ---- the current context ---- */

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	struct context *c;
	int error = ctx ? context_find(ctx, &c) : CUDA_OK;
	if (!error && ctx)
		error = context_replace(c);
	else if (!error && context_current())
		context_pop();
	return error;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	if (!pctx)
		return INVALID_VALUE;
	*pctx = context_now();
	return CUDA_OK;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	struct context *c;
	int error = context_find(ctx, &c);
	return error ? error : context_push(c);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	if (!context_current())
		return INVALID_CONTEXT;
	if (pctx)
		*pctx = context_now();
	context_pop();
	return CUDA_OK;
}

/* ---- queries ---- */

CUresult cuCtxGetDevice(CUdevice *device)
{
	if (!device || !context_current())
		return device ? INVALID_CONTEXT : INVALID_VALUE;
	*device = context_now()->device;
	return CUDA_OK;
}

/* The named context, or the current one if the name is NULL. */
static int context_or_current(const void *context, struct context **out)
{
	*out = context_now();
	return context ? context_find(context, out) : context_needed();
}

int context_sync(const void *context)
{
	struct context *c;
	int error = context_or_current(context, &c);
	return error ? error : device_sync();
}

int context_version(const void *context, unsigned *version)
{
	struct context *c;
	int error = context_or_current(context, &c);
	return error ? error : version_get((int *)version);
}

int context_device_get(int *device, const void *context)
{
	struct context *c;
	int error = device ? context_or_current(context, &c) : INVALID_VALUE;
	if (!error)
		*device = c->device;
	return error;
}

/* Flags do not change how a thread waits here: they are only stored. */
static int note_flags(struct context *c, unsigned flags)
{
	unsigned schedule = flags & 7;
	if (flags & ~FLAGS_MASK || (schedule & (schedule - 1)))
		return INVALID_VALUE;
	c->flags = flags;
	return CUDA_OK;
}

int context_set_flags(unsigned flags)
{
	return context_current() ? note_flags(context_now(), flags) : INVALID_CONTEXT;
}

int context_set_primary_flags(int device, unsigned flags)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	return error ? error : note_flags(context_primary(device), flags);
}

int context_init_device(int device, unsigned flags, unsigned which)
{
	if (which > 1)
		return INVALID_VALUE;
	int error = which ? context_set_primary_flags(device, flags) : device_check(device);
	return error ? error : context_begin(device);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
	struct context *c = context_now();
	return runtime_result(note_flags(c ? c : context_primary(current_device), flags));
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
	struct context *c = context_now();
	if (!flags)
		return runtime_result(INVALID_VALUE);
	*flags = (c ? c : context_primary(current_device))->flags | MAP_HOST; /* always possible */
	return CUDA_OK;
}

int context_flags(unsigned *flags)
{
	if (!flags || !context_current())
		return flags ? INVALID_CONTEXT : INVALID_VALUE;
	*flags = context_now()->flags;
	if (context_now() == context_primary(context_now()->device))
		*flags |= MAP_HOST; /* set by the runtime for its context */
	return CUDA_OK;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
	struct context *c;
	int error = ctxId ? context_or_current(ctx, &c) : INVALID_VALUE;
	if (!error)
		*ctxId = atomic_load(&c->number);
	return error;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	uint64_t number;
	int error = pctx ? stream_number(hStream, &number) : INVALID_VALUE;
	if (error)
		return error;
	const struct handle *h = handle_get(HANDLE_STREAM, hStream);
	*pctx = context_numbered(h ? h->context : 0);
	return CUDA_OK;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	if (pGreenCtx)
		*pGreenCtx = NULL;
	return cuStreamGetCtx(hStream, pCtx);
}

/* For copies that name the contexts of both sides: both must be on one device. */
int same_context(const void *dst, const void *src)
{
	struct context *to, *from;
	int error = context_find(dst, &to);
	if (!error)
		error = context_find(src, &from);
	return error ? error : same_device(to->device, from->device);
}
