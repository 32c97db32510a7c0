/* function.c: the functions of modules. Their parameter layouts come from the server, once per
 * function.
 *
 * Lock: MODULE_LOCK while a function is announced to the server (module.c describes when it is
 * released in between).
 */
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "spin.h"

#define LONG_NS 2000000000ull /* waited for kernels, all in all, before that is reported */

/* Under MODULE_LOCK: a thread is writing the heap's address into a module. */
static bool writing_heap_address;

struct function *function_register(struct module *m, const char *name, const void *host)
{
	struct function *f = calloc(1, sizeof *f);
	if (!f || !module_note(f)) {
		free(f);
		return NULL;
	}
	*f = (struct function){.module = m,
			       .name = name,
			       .host = host,
			       .next = m->functions,
			       .max_dynamic_shared = -1,
			       .carveout = -1};
	m->functions = f;
	return f;
}

/* Under MODULE_LOCK: waits for the reply to FUNCTION_GET. Reports once that the program has waited
 * for its kernels for long: usually they are being compiled, one after another as it launches
 * them. */
static int await_function(const struct function *f, uint32_t slot, struct rf_function_reply *info)
{
	static uint64_t waited_ns;
	static bool reported;
	uint64_t begin = spin_now_ns();
	if (!reported && !channel_wait(slot, LONG_NS - waited_ns)) {
		log_message("the program has waited %llu s for its device to load kernels, now "
			    "for %s: a kernel is compiled when it is first used, and kept for the "
			    "next run; the device's log and `rankfold describe` have details",
			    LONG_NS / 1000000000u, f->name);
		reported = true;
	}
	int error = channel_finish(slot, info, sizeof *info);
	uint64_t now = spin_now_ns();
	waited_ns = now - begin < LONG_NS - waited_ns ? waited_ns + (now - begin) : LONG_NS;
	return error;
}

/* Under MODULE_LOCK: fetches the parameter layout and resource needs from the server. */
static int get_locked(struct function *f)
{
	struct rf_name request = {.module = f->module->number,
				  .handle = handle_number(),
				  .name_bytes = (uint32_t)strlen(f->name)};
	if (!request.name_bytes || request.name_bytes > RF_NAME_MAX)
		return NOT_FOUND;
	request.bulk = bulk_claim(true);
	bulk_data(request.bulk)[0] = 0;
	uint32_t slot = channel_begin(&request.r, RF_OP_FUNCTION_GET, sizeof request, f->name,
				      request.name_bytes);
	int error = await_function(f, slot, &f->info);
	uint64_t bytes = f->info.param_count * sizeof *f->params;
	if (!error && (bytes > RF_BULK_BYTES || f->info.param_bytes > RF_PARAM_MAX)) {
		log_message("kernel %s: its parameters take %u bytes, more than CUDA's %u", f->name,
			    f->info.param_bytes, RF_PARAM_MAX);
		error = INVALID_PTX;
	}
	if (!error && bytes) {
		free(f->params); /* from before a reset */
		f->params = malloc(bytes);
		if (f->params)
			memcpy(f->params, bulk_data(request.bulk), bytes);
		else
			error = OUT_OF_MEMORY;
	}
	/* Programs look for functions that their modules may not contain. */
	if (error && error != NOT_FOUND && bulk_data(request.bulk)[0] && !f->explained) {
		log_message("%.*s", (int)RF_BULK_BYTES, (const char *)bulk_data(request.bulk));
		f->explained = true;
	}
	bulk_release(request.bulk);
	if (!error) {
		f->number = request.handle;
		atomic_store_explicit(&f->ready, true, memory_order_release);
	}
	return error;
}

int function_ready(struct function *f)
{
	if (atomic_load_explicit(&f->ready, memory_order_acquire))
		return f->module->unloaded ? INVALID_HANDLE : CUDA_OK;
	int error = channel_open();
	if (error)
		return error;
	lock(MODULE_LOCK);
	error = f->module->unloaded ? INVALID_HANDLE : module_loaded(f->module);
	if (!error && !atomic_load(&f->ready))
		error = get_locked(f);
	unlock(MODULE_LOCK);
	return error;
}

/* Under MODULE_LOCK, except for the write itself, which one thread does at a time. */
static int write_heap_address_locked(struct module *m)
{
	while (writing_heap_address)
		module_wait();
	uint64_t heap_at = atomic_load(&m->heap_at);
	if (!heap_at)
		return CUDA_OK;
	writing_heap_address = true;
	unlock(MODULE_LOCK);
	int error = kernel_heap_write_address(heap_at);
	lock(MODULE_LOCK);
	writing_heap_address = false;
	if (!error)
		atomic_store(&m->heap_at, 0);
	module_moved();
	return error;
}

int function_can_run(struct function *f)
{
	int error = function_ready(f);
	if (error || !atomic_load_explicit(&f->module->heap_at, memory_order_acquire))
		return error;
	lock(MODULE_LOCK);
	error = write_heap_address_locked(f->module);
	unlock(MODULE_LOCK);
	return error;
}

/* Under MODULE_LOCK: the function of that name, whether or not the module contains it. */
static struct function *named_locked(struct module *m, const char *name)
{
	struct function *f = m->functions;
	while (f && strcmp(f->name, name))
		f = f->next;
	if (f)
		return f;
	char *copy = strdup(name);
	f = copy ? function_register(m, copy, NULL) : NULL;
	if (!f)
		free(copy);
	return f;
}

int module_function(struct module *m, const char *name, struct function **out)
{
	int error = channel_enter();
	if (error)
		return error;
	lock(MODULE_LOCK);
	struct function *f = named_locked(m, name);
	unlock(MODULE_LOCK);
	error = f ? function_ready(f) : OUT_OF_MEMORY;
	if (!error)
		*out = f;
	return error;
}

int module_function_count(struct module *m, unsigned *count)
{
	int error = channel_enter();
	if (error)
		return error;
	lock(MODULE_LOCK);
	error = m->unloaded ? INVALID_HANDLE : module_loaded(m);
	if (!error)
		*count = m->function_count;
	unlock(MODULE_LOCK);
	return error;
}

/* Under MODULE_LOCK: returns the functions after the first *at ones, as many as one reply names. */
static int enumerate_locked(struct module *m, void **out, unsigned capacity, unsigned *at)
{
	struct rf_function_names request = {
		.module = m->number, .first = *at, .bulk = bulk_claim(true)};
	struct rf_function_names_reply reply = {0};
	int error = channel_call(&request.r, RF_OP_FUNCTION_NAMES, sizeof request, NULL, 0, &reply,
				 sizeof reply);
	const char *name = (const char *)bulk_data(request.bulk);
	for (; !error && reply.count && *at < capacity; reply.count--, name += strlen(name) + 1) {
		struct function *f = named_locked(m, name);
		if (f)
			out[(*at)++] = f;
		else
			error = OUT_OF_MEMORY;
	}
	bulk_release(request.bulk);
	return error;
}

/* The functions are compiled at their first use, as in lazy loading. */
int module_enumerate(struct module *m, void **out, unsigned capacity)
{
	unsigned count, at = 0, before;
	int error = module_function_count(m, &count);
	if (capacity > count)
		capacity = count;
	while (!error && at < capacity) {
		before = at;
		lock(MODULE_LOCK);
		error = m->unloaded ? INVALID_HANDLE : enumerate_locked(m, out, capacity, &at);
		unlock(MODULE_LOCK);
		if (!error && at == before)
			error = NOT_SUPPORTED; /* a name that does not fit a bulk slot */
	}
	return error;
}

struct module *module_of(const struct function *f) { return f->module; }
