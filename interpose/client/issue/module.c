/* module.c: fatbins and modules.
 *
 * When the program's constructors register its own modules, they are only recorded; a module is
 * sent at the first use of one of its kernels or variables. A module's global variables are in an
 * allocation of the client; the server fills it.
 *
 * Locks: MODULE_LOCK while a module or a function is announced to the server (blocks on its
 * replies, which need no other work). It is not held while a module is loaded: memory for its
 * variables may become free only when the device has completed something, which may need a thread
 * that loads another module. REGISTRY_LOCK around the table of valid handles. Modules and functions
 * are never freed: kernel handles are in static variables of the program.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* a load, or a write of heap_at, ended */
static const void **made; /* all modules and functions, sorted: the valid handles */
static uint64_t made_count, made_capacity;
static struct module *modules; /* all; under REGISTRY_LOCK */

void module_wait(void) { lock_wait(&moved, MODULE_LOCK); }

void module_moved(void) { pthread_cond_broadcast(&moved); }

/* ---- handles ---- */

static uint64_t made_place(const void *value)
{
	uint64_t low = 0, high = made_count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (made[middle] < value)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Adds a new module or function; a module has the low bit set. */
bool module_note(const void *value)
{
	lock(REGISTRY_LOCK);
	if (made_count == made_capacity) {
		uint64_t capacity = made_capacity ? made_capacity * 2 : 64;
		const void **more = realloc(made, capacity * sizeof *more);
		if (!more) {
			unlock(REGISTRY_LOCK);
			return false;
		}
		made = more;
		made_capacity = capacity;
	}
	uint64_t at = made_place(value);
	memmove(made + at + 1, made + at, (made_count++ - at) * sizeof *made);
	made[at] = value;
	unlock(REGISTRY_LOCK);
	return true;
}

static bool was_made(const void *value)
{
	lock(REGISTRY_LOCK);
	uint64_t at = made_place(value);
	bool found = at < made_count && made[at] == value;
	unlock(REGISTRY_LOCK);
	return found;
}

#define TAGGED(module) ((const void *)((const char *)(module) + 1))

bool module_is(const void *value) { return value && was_made(TAGGED(value)); }

bool function_is(const void *value) { return value && was_made(value); }

/* ---- modules ---- */

static struct module *module_make(const void *image, int *error)
{
	struct module *m = calloc(1, sizeof *m);
	*error = m ? image_measure(image, m) : OUT_OF_MEMORY;
	if (!*error && !module_note(TAGGED(m)))
		*error = OUT_OF_MEMORY;
	if (*error) {
		free(m);
		return NULL;
	}
	m->context = context_owner();
	lock(REGISTRY_LOCK);
	m->next = modules;
	modules = m;
	unlock(REGISTRY_LOCK);
	return m;
}

/* Sends bytes of the image that begin at `offset` of it; returns the offset of their end. */
static uint64_t send_bytes(const struct module *m, uint64_t offset, const void *from,
			   uint64_t bytes)
{
	for (uint64_t sent = 0; sent < bytes;) {
		uint64_t piece = bytes - sent < RF_BULK_BYTES ? bytes - sent : RF_BULK_BYTES;
		uint32_t bulk = bulk_claim(true);
		memcpy(bulk_data(bulk), (const uint8_t *)from + sent, piece);
		struct rf_module_data data = {.module = m->number,
					      .offset = offset + sent,
					      .bytes = (uint32_t)piece,
					      .bulk = bulk};
		channel_post(&data.r, RF_OP_MODULE_DATA, sizeof data, NULL, 0);
		sent += piece;
	}
	return offset + bytes;
}

static void send_image(const struct module *m)
{
	static const uint8_t zeros[IMAGE_ALIGNMENT];
	uint64_t offset = 0;
	if (!m->linked)
		send_bytes(m, 0, m->image, m->bytes);
	for (const void *const *fatbin = m->linked; fatbin && *fatbin; fatbin++) {
		uint64_t bytes = image_fatbin_bytes(*fatbin);
		offset = send_bytes(m, offset, *fatbin, bytes);
		offset = send_bytes(m, offset, zeros, image_padding(bytes));
	}
}

/* Fills in the module's struct rf_setup, if it has one. */
static int set_up(struct module *m)
{
	struct rf_name request = {.module = m->number, .name_bytes = strlen(RF_SETUP_NAME)};
	struct rf_global_reply reply;
	int error = channel_call(&request.r, RF_OP_GLOBAL_GET, sizeof request, RF_SETUP_NAME,
				 request.name_bytes, &reply, sizeof reply);
	if (error == NOT_FOUND)
		return CUDA_OK;
	uint64_t heap_at = 0;
	if (!error)
		error = module_set_up(m->globals, reply.addr, reply.bytes, &heap_at);
	atomic_store(&m->heap_at, heap_at);
	return error;
}

/* Allocates the module's variables. Managed ones survive a reset, because the program has their
 * addresses. */
static int place_globals(struct module *m, uint64_t bytes)
{
	if (!m->managed)
		return allocation_new(MEMORY_VARIABLES, m->bytes, bytes, &m->globals);
	return m->globals ? CUDA_OK : managed_place(bytes, 0, (void **)&m->globals);
}

static void free_globals(const struct module *m)
{
	if (m->globals && m->managed)
		managed_free((void *)m->globals);
	else if (m->globals)
		allocation_free((void *)m->globals);
}

/* Reports once why the module cannot be loaded, and names the file that contains it. */
void module_is_optional(struct module *m)
{
	lock(MODULE_LOCK);
	m->explained = true;
	unlock(MODULE_LOCK);
}

static void name_reason(struct module *m, int error, const char *why)
{
	Dl_info file;
	if (!why[0] && error == NO_BINARY_FOR_GPU)
		why = "it contains no code for this device: build it with PTX (nvcc "
		      "-arch=compute_75)";
	if (!why[0] || m->explained)
		return;
	m->explained = true;
	bool known = dladdr(m->image, &file) && file.dli_fname;
	log_message("a module%s%s cannot be loaded: %.*s", known ? " of " : "",
		    known ? file.dli_fname : "", (int)RF_BULK_BYTES, why);
}

/* Sends the image and has it loaded. */
static int request_load(struct module *m, struct rf_module_reply *reply)
{
	m->number = handle_number();
	send_image(m);
	uint32_t bulk = bulk_claim(true);
	char *why = (char *)bulk_data(bulk);
	why[0] = 0;
	struct rf_module_load request = {
		.module = m->number, .bytes = m->bytes, .image = m->kind, .why = bulk + 1};
	int error = channel_call(&request.r, RF_OP_MODULE_LOAD, sizeof request, NULL, 0, reply,
				 sizeof *reply);
	if (error)
		name_reason(m, error, why);
	bulk_release(bulk);
	return error;
}

/* By one thread at a time, without a lock. */
static int load_module(struct module *m)
{
	struct rf_module_reply reply;
	int error = request_load(m, &reply);
	if (error)
		return error;
	m->function_count = reply.function_count;
	m->managed = reply.global_count & RF_GLOBALS_MANAGED;
	if (reply.globals_bytes) {
		error = place_globals(m, reply.globals_bytes);
		if (error)
			return error;
		struct rf_module_globals globals = {.module = m->number, .addr = m->globals};
		channel_post(&globals.r, RF_OP_MODULE_GLOBALS, sizeof globals, NULL, 0);
		error = set_up(m);
		if (error)
			name_reason(m, error, error_name(error));
	}
	return error;
}

int module_loaded(struct module *m)
{
	while (m->loading)
		module_wait();
	if (m->loaded)
		return CUDA_OK;
	m->loading = true;
	unlock(MODULE_LOCK);
	int error = load_module(m);
	lock(MODULE_LOCK);
	m->loading = false;
	m->loaded = !error;
	module_moved();
	return error;
}

struct module *module_register(const void *image)
{
	int error;
	struct module *m = module_make(image, &error);
	if (m)
		m->lasting = true;
	return m;
}

uint64_t module_number(struct module *m) { return atomic_load(&m->number); }

static int load_now(struct module *m, struct module **out)
{
	lock(MODULE_LOCK);
	int error = module_loaded(m);
	unlock(MODULE_LOCK);
	if (!error)
		*out = m;
	return error;
}

int module_load(const void *image, struct module **out)
{
	int error = channel_enter();
	struct module *m = error ? NULL : module_make(image, &error);
	return m ? load_now(m, out) : error;
}

/* The module's own copy of its image, which the program may free. */
static bool copy_image(struct module *m)
{
	m->copy = malloc(m->bytes + 1);
	if (!m->copy)
		return false;
	memcpy(m->copy, m->image, m->bytes);
	m->copy[m->bytes] = 0; /* PTX is a text */
	m->image = m->copy;
	return true;
}

int module_load_library(const void *image, struct module **out)
{
	int error = channel_enter();
	struct module *m = error ? NULL : module_make(image, &error);
	if (!m)
		return error;
	m->library = m->lasting = copy_image(m);
	return m->lasting ? load_now(m, out) : OUT_OF_MEMORY;
}

int module_drop(struct module *m)
{
	int error = channel_open();
	if (error)
		return error;
	lock(MODULE_LOCK);
	while (m->loading)
		module_wait();
	bool there = m->loaded || m->library; /* after a reset a library is not loaded */
	if (m->unloaded || !there) {
		error = INVALID_HANDLE;
	} else {
		struct rf_handle destroy = {.handle = m->number};
		if (m->loaded)
			channel_post(&destroy.r, RF_OP_MODULE_UNLOAD, sizeof destroy, NULL, 0);
		m->unloaded = true;
		free(m->copy);
		m->copy = NULL;
	}
	unlock(MODULE_LOCK);
	if (!error)
		free_globals(m);
	int sticky = channel_enter();
	return sticky ? sticky : error;
}

static struct module *first_module(void)
{
	lock(REGISTRY_LOCK);
	struct module *m = modules;
	unlock(REGISTRY_LOCK);
	return m;
}

void module_end(uint64_t context)
{
	for (struct module *m = first_module(); m; m = m->next)
		if (!m->lasting && m->context == context)
			module_drop(m); /* fails if it was unloaded already */
}

/* Under MODULE_LOCK: the next use loads the module again, with its variables in their initial
 * state. */
static void reset_locked(struct module *m)
{
	struct rf_handle destroy = {.handle = m->number};
	channel_post(&destroy.r, RF_OP_MODULE_UNLOAD, sizeof destroy, NULL, 0);
	if (!m->managed) {
		free_globals(m);
		m->globals = 0;
	}
	m->loaded = false;
	m->number = 0;
	for (struct function *f = m->functions; f; f = f->next) {
		atomic_store(&f->ready, false);
		f->max_dynamic_shared = f->carveout = -1;
	}
}

void module_reset(void)
{
	lock(MODULE_LOCK);
	for (struct module *m = first_module(); m; m = m->next)
		if (m->lasting && m->loaded && !m->unloaded)
			reset_locked(m);
	unlock(MODULE_LOCK);
}

static int find_variable(struct module *m, const char *name, bool managed, uint64_t *address,
			 uint64_t *bytes)
{
	struct rf_name request = {.bulk = managed, .name_bytes = (uint32_t)strlen(name)};
	struct rf_global_reply reply;
	int error = channel_enter();
	if (!error && (!request.name_bytes || request.name_bytes > RF_NAME_MAX))
		error = NOT_FOUND;
	if (error)
		return error;
	lock(MODULE_LOCK);
	error = m->unloaded ? INVALID_HANDLE : module_loaded(m);
	request.module = m->number;
	unlock(MODULE_LOCK);
	if (!error)
		error = channel_call(&request.r, RF_OP_GLOBAL_GET, sizeof request, name,
				     request.name_bytes, &reply, sizeof reply);
	if (!error) {
		*address = reply.addr;
		*bytes = reply.bytes;
	}
	return error;
}

int module_global(struct module *m, const char *name, uint64_t *address, uint64_t *bytes)
{
	return find_variable(m, name, false, address, bytes);
}

int module_managed(struct module *m, const char *name, uint64_t *address, uint64_t *bytes)
{
	return find_variable(m, name, true, address, bytes);
}
