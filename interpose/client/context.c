/* context.c: the driver's contexts, and what ends with one.
 *
 * A context is an owner: streams, events, modules and memory belong to the one that was current
 * when they were made, and end with it. All of a rank's contexts are on its one device and share
 * the rest: addresses and handles of one are good in the others, a fault in one is one in all.
 * A call without a context works in the primary one, which is what the runtime would make current.
 *
 * The calling thread's current device follows its context. Lock: list_lock around the list of
 * contexts, innermost; contexts themselves are never freed, since programs may still name them.
 * Blocks only while the device ends its work, before anything is destroyed.
 */
#include <pthread.h>
#include <stdlib.h>

#include "bodies.h"

#define STACK_MAX 32
#define FLAGS_MASK 0xffu /* CU_CTX_FLAGS_MASK */
#define MAP_HOST 8u

struct context {
	_Atomic uint64_t number; /* a handle's; 0: a primary one that nobody has asked for */
	int device;
	unsigned flags;
	_Atomic bool gone;
	struct context *next;
};

static struct context primary[DEVICES_MAX];
static struct context *created;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

/* The last one is current. */
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local int depth;

static struct context *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static struct context *primary_of(int device)
{
	struct context *c = &primary[device % DEVICES_MAX];
	uint64_t none = 0;
	if (!atomic_load(&c->number))
		atomic_compare_exchange_strong(&c->number, &none, handle_number());
	c->device = device;
	return c;
}

static struct context *first_created(void)
{
	pthread_mutex_lock(&list_lock);
	struct context *c = created;
	pthread_mutex_unlock(&list_lock);
	return c;
}

static int find(const void *value, struct context **out)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (value == &primary[i]) {
			*out = primary_of(i);
			return CUDA_OK;
		}
	for (struct context *c = first_created(); c; c = c->next)
		if (value == c) {
			*out = c;
			return atomic_load(&c->gone) ? CONTEXT_IS_DESTROYED : CUDA_OK;
		}
	return INVALID_CONTEXT;
}

static int push(struct context *c)
{
	if (depth == STACK_MAX)
		return INVALID_VALUE;
	stack[depth++] = c;
	current_device = c->device;
	return CUDA_OK;
}

/* Replaces the current one. */
static int make_current(struct context *c)
{
	depth -= depth > 0;
	return push(c);
}

static void pop(void)
{
	depth--;
	if (depth)
		current_device = stack[depth - 1]->device;
}

uint64_t context_owner(void)
{
	struct context *c = current();
	return atomic_load(&(c ? c : primary_of(current_device))->number);
}

void *context_numbered(uint64_t number)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (number && atomic_load(&primary[i].number) == number)
			return &primary[i];
	for (struct context *c = first_created(); c; c = c->next)
		if (atomic_load(&c->number) == number)
			return c;
	return current() ? current() : primary_of(current_device);
}

int context_set_device(int device)
{
	return device < DEVICES_MAX ? make_current(primary_of(device)) : INVALID_DEVICE;
}

/* ---- beginning and end ---- */

int context_create(void **out, int device, unsigned flags)
{
	int error = out && device < DEVICES_MAX ? device_check(device) : INVALID_VALUE;
	struct context *c = error ? NULL : calloc(1, sizeof *c);
	if (!error && !c)
		error = OUT_OF_MEMORY;
	if (error)
		return error;
	*c = (struct context){.number = handle_number(), .device = device, .flags = flags};
	error = push(c);
	if (error) {
		free(c);
		return error;
	}
	pthread_mutex_lock(&list_lock);
	c->next = created;
	created = c;
	pthread_mutex_unlock(&list_lock);
	*out = c;
	return CUDA_OK;
}

int context_create_with(void **out, int device, unsigned flags, const CUctxCreateParams *with)
{
	if (with && (with->count || with->cig)) {
		SAY_ONCE("cuCtxCreate: contexts with execution affinity or for graphics are not supported "
			 "by rankfold: create one without parameters");
		return NOT_SUPPORTED;
	}
	return context_create(out, device, flags);
}

/* Waits for the device, whose errors do not keep anything alive. */
static int end(uint64_t number)
{
	struct rf_record sync;
	int error = channel_open();
	if (!error)
		error = capture_forbids_device();
	if (error)
		return error;
	int failed = channel_call(&sync, RF_OP_DEVICE_SYNC, sizeof sync, NULL, 0, NULL, 0);
	stream_end(number);
	module_end(number);
	error = memory_end(number);
	return failed ? failed : error;
}

int context_reset(int device)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	if (error || !channel_header || (channel_device() >= 0 && channel_device() != device))
		return error; /* nothing was ever made there */
	error = end(atomic_load(&primary_of(device)->number));
	module_reset();
	return error;
}

/* With another context current nothing but the runtime's own state may go. */
cudaError_t cudaDeviceReset(void)
{
	struct context *c = current();
	bool own = !c || c == primary_of(c->device);
	return runtime_result(own ? context_reset(current_device) : device_sync());
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	struct context *c;
	int error = find(ctx, &c);
	if (error)
		return error;
	if (c == primary_of(c->device))
		return INVALID_CONTEXT; /* it is released, or reset */
	error = channel_header ? end(atomic_load(&c->number)) : CUDA_OK;
	atomic_store(&c->gone, true);
	if (current() == c)
		pop();
	return error;
}

/* ---- the primary one ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	int error = pctx && dev < DEVICES_MAX ? device_check(dev) : INVALID_VALUE;
	if (!error)
		*pctx = primary_of(dev);
	return error;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	int error = flags && active && dev < DEVICES_MAX ? device_check(dev) : INVALID_VALUE;
	if (error)
		return error;
	*flags = primary_of(dev)->flags;
	*active = channel_header && dev == (channel_device() < 0 ? current_device : channel_device());
	return CUDA_OK;
}

/* ---- which one is current ---- */

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	struct context *c;
	int error = ctx ? find(ctx, &c) : CUDA_OK;
	if (!error && ctx)
		error = make_current(c);
	else if (!error && depth)
		pop();
	return error;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	if (!pctx)
		return INVALID_VALUE;
	*pctx = current();
	return CUDA_OK;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	struct context *c;
	int error = find(ctx, &c);
	return error ? error : push(c);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	if (!depth)
		return INVALID_CONTEXT;
	if (pctx)
		*pctx = current();
	pop();
	return CUDA_OK;
}

/* ---- facts ---- */

CUresult cuCtxGetDevice(CUdevice *device)
{
	if (!device || !depth)
		return device ? INVALID_CONTEXT : INVALID_VALUE;
	*device = current()->device;
	return CUDA_OK;
}

int context_device_get(int *device, const void *context)
{
	struct context *c;
	int error = !device ? INVALID_VALUE : context ? find(context, &c) : cuCtxGetDevice(device);
	if (!error && context)
		*device = c->device;
	return error;
}

/* How a thread waits is not theirs to say here: they are noted. */
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
	return depth ? note_flags(current(), flags) : INVALID_CONTEXT;
}

int context_set_primary_flags(int device, unsigned flags)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	return error ? error : note_flags(primary_of(device), flags);
}

int context_init_device(int device, unsigned flags, unsigned which)
{
	if (which > 1)
		return INVALID_VALUE;
	return which ? context_set_primary_flags(device, flags) : device_check(device);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
	struct context *c = current();
	return runtime_result(note_flags(c ? c : primary_of(current_device), flags));
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
	struct context *c = current();
	if (!flags)
		return runtime_result(INVALID_VALUE);
	*flags = (c ? c : primary_of(current_device))->flags | MAP_HOST; /* it always can be */
	return CUDA_OK;
}

int context_flags(unsigned *flags)
{
	if (!flags || !depth)
		return flags ? INVALID_CONTEXT : INVALID_VALUE;
	*flags = current()->flags;
	return CUDA_OK;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
	struct context *c = current();
	int error = !ctxId ? INVALID_VALUE : ctx ? find(ctx, &c) : c ? CUDA_OK : INVALID_CONTEXT;
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

/* Copies that name the contexts of both sides: they have one device. */
int same_context(const void *dst, const void *src)
{
	struct context *to, *from;
	int error = find(dst, &to);
	if (!error)
		error = find(src, &from);
	return error ? error : same_device(to->device, from->device);
}
