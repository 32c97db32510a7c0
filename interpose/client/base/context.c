/* context.c: the driver's contexts, and what ends with one.
 *
 * A context is an owner: streams, events, modules and memory belong to the one that was current
 * when they were made, and end with it. All of a rank's contexts are on its one device and share
 * the rest: addresses and handles of one are good in the others, a fault in one is one in all.
 * The driver's calls need a context that is current and lives, which their entries ask for; the
 * runtime's make the primary one current. What gets here without one (a stream's work, the helper
 * thread's) belongs to the primary one.
 *
 * A primary context lives from when it is first retained, or used by the runtime, to a reset or its
 * last release; others to their destruction.
 *
 * The calling thread's current device follows its context. Lock: context_lock around the list of
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
	_Atomic bool lives;
	_Atomic bool of_runtime;   /* a primary one: the runtime uses it */
	_Atomic unsigned retained; /* a primary one: how often */
	struct context *next;
};

static struct context primary[DEVICES_MAX];
static struct context *created;
pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* The last one is current. */
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local int depth;
static const _Atomic bool none_lives;
_Thread_local const _Atomic bool *context_lives = &none_lives;
_Atomic bool context_driver;

static struct context *current(void) { return depth ? stack[depth - 1] : NULL; }

bool context_current(void) { return depth; }

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
	pthread_mutex_lock(&context_lock);
	struct context *c = created;
	pthread_mutex_unlock(&context_lock);
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
			return atomic_load(&c->lives) ? CUDA_OK : CONTEXT_IS_DESTROYED;
		}
	return INVALID_CONTEXT;
}

static int push(struct context *c)
{
	if (depth == STACK_MAX)
		return INVALID_VALUE;
	stack[depth++] = c;
	current_device = c->device;
	context_lives = &c->lives;
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
	context_lives = depth ? &stack[depth - 1]->lives : &none_lives;
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

/* As the runtime does before it uses a device. */
static int begin(int device)
{
	if (device >= DEVICES_MAX)
		return INVALID_DEVICE;
	struct context *c = primary_of(device);
	atomic_store(&c->of_runtime, true);
	atomic_store(&c->lives, true);
	atomic_store(&context_driver, true);
	return CUDA_OK;
}

int context_set_device(int device)
{
	int error = begin(device);
	return error ? error : make_current(primary_of(device));
}

/* ---- what entries ask, if the thread has no context that lives ---- */

int context_missing(void)
{
	if (in_host_function)
		return CUDA_OK; /* the body knows why not */
	if (!atomic_load(&context_driver))
		return NOT_INITIALIZED;
	return depth ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT;
}

int context_make_current(void)
{
	struct context *c = current();
	if (in_host_function || device_check(current_device))
		return CUDA_OK; /* the body knows why not */
	if (c && c != primary_of(c->device))
		return CONTEXT_IS_DESTROYED;
	return context_set_device(current_device);
}

int context_begin_driver(void)
{
	if (!atomic_load_explicit(&context_driver, memory_order_relaxed))
		cuInit(0);
	return CUDA_OK;
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
	*c = (struct context){
		.number = handle_number(), .device = device, .flags = flags, .lives = true};
	error = push(c);
	if (error) {
		free(c);
		return error;
	}
	pthread_mutex_lock(&context_lock);
	c->next = created;
	created = c;
	pthread_mutex_unlock(&context_lock);
	*out = c;
	return CUDA_OK;
}

int context_create_with(void **out, int device, unsigned flags, const CUctxCreateParams *with)
{
	if (with && (with->count || with->cig)) {
		SAY_ONCE(
			"cuCtxCreate: contexts with execution affinity or for graphics are not supported "
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
	if (error)
		return error;
	struct context *c = primary_of(device);
	atomic_store(&c->lives, false);
	atomic_store(&c->of_runtime, false);
	if (!channel_header || (channel_device() >= 0 && channel_device() != device))
		return CUDA_OK; /* nothing was ever made there */
	error = end(atomic_load(&c->number));
	module_reset();
	kernel_heap_reset();
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
	atomic_store(&c->lives, false);
	if (current() == c)
		pop();
	return error;
}

/* ---- the primary one ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	int error = pctx && dev < DEVICES_MAX ? device_check(dev) : INVALID_VALUE;
	if (error)
		return error;
	struct context *c = primary_of(dev);
	atomic_fetch_add(&c->retained, 1);
	atomic_store(&c->lives, true);
	*pctx = c;
	return CUDA_OK;
}

/* The last one resets it, unless the runtime uses it too. */
int context_release(int device)
{
	int error = device < DEVICES_MAX ? device_check(device) : INVALID_DEVICE;
	if (error)
		return error;
	struct context *c = primary_of(device);
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
	*flags = primary_of(dev)->flags;
	*active = atomic_load(&primary_of(dev)->lives);
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

/* The one that is named, or else the current one. */
static int named(const void *context, struct context **out)
{
	*out = current();
	return context ? find(context, out) : context_needed();
}

int context_sync(const void *context)
{
	struct context *c;
	int error = named(context, &c);
	return error ? error : device_sync();
}

int context_version(const void *context, unsigned *version)
{
	struct context *c;
	int error = named(context, &c);
	return error ? error : version_get((int *)version);
}

int context_device_get(int *device, const void *context)
{
	struct context *c;
	int error = device ? named(context, &c) : INVALID_VALUE;
	if (!error)
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
	int error = which ? context_set_primary_flags(device, flags) : device_check(device);
	return error ? error : begin(device);
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
	struct context *c;
	int error = ctxId ? named(ctx, &c) : INVALID_VALUE;
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
