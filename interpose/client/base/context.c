/* context.c: the driver's contexts, and which of them is current in the calling thread.
 *
 * A context is an owner: streams, events, modules and memory belong to the context that was current
 * when they were created, and end with it. All of a rank's contexts are on its one device and share
 * the rest: addresses and handles of one are valid in the others, and a fault in one is a fault in
 * all. The driver's calls need a current, live context, which their entries check; the runtime's
 * make the primary context current. An object that is created without a current context (by a
 * stream's work or the helper thread) belongs to the primary one.
 *
 * The calling thread's current device follows its context. Lock: CONTEXT_LOCK around the list of
 * contexts. Contexts are never freed, because programs may still name them.
 */
#include "context.h"
#include "invariant.h"

#define STACK_MAX 32

static struct context primary[DEVICES_MAX];
static struct context *created;

/* The last entry is current. */
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local int depth;
static const _Atomic bool none_lives;
_Thread_local const _Atomic bool *context_lives = &none_lives;
_Atomic bool context_driver;

struct context *context_now(void) { return depth ? stack[depth - 1] : NULL; }

bool context_current(void) { return depth; }

struct context *context_primary(int device)
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
	lock(CONTEXT_LOCK);
	struct context *c = created;
	unlock(CONTEXT_LOCK);
	return c;
}

void context_add(struct context *c)
{
	lock(CONTEXT_LOCK);
	c->next = created;
	created = c;
	unlock(CONTEXT_LOCK);
}

int context_find(const void *value, struct context **out)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (value == &primary[i]) {
			*out = context_primary(i);
			return CUDA_OK;
		}
	for (struct context *c = first_created(); c; c = c->next)
		if (value == c) {
			*out = c;
			return atomic_load(&c->lives) ? CUDA_OK : CONTEXT_IS_DESTROYED;
		}
	return INVALID_CONTEXT;
}

int context_push(struct context *c)
{
	if (depth == STACK_MAX)
		return INVALID_VALUE;
	stack[depth++] = c;
	current_device = c->device;
	context_lives = &c->lives;
	return CUDA_OK;
}

/* Replaces the current context. */
int context_replace(struct context *c)
{
	depth -= depth > 0;
	return context_push(c);
}

void context_pop(void)
{
	INVARIANT(depth > 0, "a context that is popped was pushed");
	depth--;
	context_lives = depth ? &stack[depth - 1]->lives : &none_lives;
	if (depth)
		current_device = stack[depth - 1]->device;
}

uint64_t context_owner(void)
{
	struct context *c = context_now();
	return atomic_load(&(c ? c : context_primary(current_device))->number);
}

void *context_numbered(uint64_t number)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (number && atomic_load(&primary[i].number) == number)
			return &primary[i];
	for (struct context *c = first_created(); c; c = c->next)
		if (atomic_load(&c->number) == number)
			return c;
	return context_now() ? context_now() : context_primary(current_device);
}

/* Does what the runtime does before it uses a device. */
int context_begin(int device)
{
	if (device >= DEVICES_MAX)
		return INVALID_DEVICE;
	struct context *c = context_primary(device);
	atomic_store(&c->of_runtime, true);
	atomic_store(&c->lives, true);
	atomic_store(&context_driver, true);
	return CUDA_OK;
}

int context_set_device(int device)
{
	int error = context_begin(device);
	return error ? error : context_replace(context_primary(device));
}

/* ---- checks of the entries, if the thread has no live context ---- */

int context_missing(void)
{
	if (in_host_function)
		return CUDA_OK; /* the body returns the reason */
	if (!atomic_load(&context_driver))
		return NOT_INITIALIZED;
	return depth ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT;
}

int context_make_current(void)
{
	struct context *c = context_now();
	if (in_host_function)
		return CUDA_OK; /* the body returns the reason */
	int error = device_check(current_device);
	if (error)
		return error == NO_DEVICE ? error : CUDA_OK; /* likewise */
	if (c && c != context_primary(c->device))
		return CONTEXT_IS_DESTROYED;
	return context_set_device(current_device);
}

/* ---- the device that this process uses ---- */

static _Atomic int bound_device = -1; /* its ordinal */

int context_used_ordinal(void)
{
	bool mine = !channel_forked();
	return mine ? atomic_load_explicit(&bound_device, memory_order_relaxed) : -1;
}

int context_used_number(void)
{
	int ordinal = context_used_ordinal();
	return ordinal < 0 ? -1 : visible_number(ordinal);
}

int context_use_device(void)
{
	int error = channel_enter();
	int bound = atomic_load_explicit(&bound_device, memory_order_relaxed);
	if (error || bound == current_device || (bound >= 0 && !depth))
		return error; /* without a context it is a stream that is used, and its device */
	if (bound < 0 && atomic_compare_exchange_strong(&bound_device, &bound, current_device))
		return CUDA_OK;
	if (bound == current_device)
		return CUDA_OK;
	LOG_ONCE(
		"rank %u uses device %d already and cannot use device %d too: a rank has one device; "
		"start as many ranks as there are devices, or let each see its own "
		"(CUDA_VISIBLE_DEVICES=$LOCAL_RANK)",
		channel_header->rank, bound, current_device);
	return NOT_SUPPORTED;
}
