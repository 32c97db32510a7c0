/* module.c: fatbins, modules, functions and launches.
 *
 * A program's own modules are only noted when its constructors register them, and sent when the
 * first of their kernels or variables is used. Parameter layouts come from the server, once per
 * function. A module's global variables lie in an allocation of ours; the server fills it.
 *
 * Locks: module_lock while a function is made known to the server (blocks on its replies, which
 * depend on nobody's work), not while a module is loaded: its variables may have to wait for memory
 * until the device is done with something, and so for a thread that loads another module.
 * registry_lock around the tables of host addresses. A launch takes neither once its
 * function is ready. Modules and functions are never freed: kernel handles live in static
 * variables of the program.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u
#define ELF_MAGIC 0x464c457fu
#define PARAM_BYTES_USUAL 4096 /* more than that need memory of their own */

struct fatbin_wrapper {
	uint32_t magic, version;
	const void *data;
	void *unused;
};
struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes;
};

struct module {
	uint64_t number;
	const void *image; /* the program's memory until it is loaded */
	uint64_t bytes;
	enum rf_image kind;
	bool loading, loaded, unloaded; /* under module_lock */
	bool own;                       /* the program registered it */
	bool managed;                   /* host and kernels use its variables alike */
	uint64_t context;               /* in which it was loaded */
	struct module *next;            /* of all */
	uint64_t globals;
	_Atomic uint64_t
		heap_at; /* where the address of kernels' heap is still to be written, or 0 */
	uint32_t function_count;
	struct function *functions;
};

/* What a host address of the program stands for. */
struct symbol {
	const void *host; /* NULL: an empty place, unless `gone` */
	bool gone;
	struct module *module;
	const char *name;
	struct function *function; /* NULL: a variable */
	uint64_t address, bytes;   /* of a variable, once asked */
};

static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t module_moved = PTHREAD_COND_INITIALIZER; /* one is not loading any more */
static bool telling; /* under module_lock: a thread tells a module of kernels' heap */
pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct symbol *symbols; /* open addressing */
static uint64_t symbol_room, symbol_count;
static const void **made; /* all modules and functions, sorted: what a handle may be */
static uint64_t made_count, made_room;
static struct module *modules; /* all; under registry_lock */

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

/* Remember a new module or function; its low bit tells which. */
static bool note_made(const void *value)
{
	pthread_mutex_lock(&registry_lock);
	if (made_count == made_room) {
		uint64_t room = made_room ? made_room * 2 : 64;
		const void **more = realloc(made, room * sizeof *more);
		if (!more) {
			pthread_mutex_unlock(&registry_lock);
			return false;
		}
		made = more;
		made_room = room;
	}
	uint64_t at = made_place(value);
	memmove(made + at + 1, made + at, (made_count++ - at) * sizeof *made);
	made[at] = value;
	pthread_mutex_unlock(&registry_lock);
	return true;
}

static bool was_made(const void *value)
{
	pthread_mutex_lock(&registry_lock);
	uint64_t at = made_place(value);
	bool found = at < made_count && made[at] == value;
	pthread_mutex_unlock(&registry_lock);
	return found;
}

#define TAGGED(module) ((const void *)((const char *)(module) + 1))

bool module_is(const void *value) { return value && was_made(TAGGED(value)); }

bool function_is(const void *value) { return value && was_made(value); }

/* ---- images ---- */

/* What kind of image this is, and how long. */
static int measure(const void *image, struct module *m)
{
	struct fatbin_wrapper wrapper;
	struct fatbin_header header;
	uint32_t magic;
	if (!image)
		return INVALID_VALUE;
	memcpy(&magic, image, sizeof magic);
	if (magic == WRAPPER_MAGIC) {
		memcpy(&wrapper, image, sizeof wrapper);
		image = wrapper.data;
		memcpy(&magic, image, sizeof magic);
	}
	m->image = image;
	if (magic == FATBIN_MAGIC) {
		memcpy(&header, image, sizeof header);
		m->kind = RF_IMAGE_FATBIN;
		m->bytes = header.header_bytes + header.bytes;
		return CUDA_OK;
	}
	if (magic == ELF_MAGIC) {
		SAY_ONCE("a module is machine code only: kernels must come as PTX "
			 "(nvcc -arch=compute_75)");
		return NO_BINARY_FOR_GPU;
	}
	m->kind = RF_IMAGE_PTX;
	m->bytes = strlen(image);
	m->managed = strstr(image, ".attribute(.managed)") != NULL;
	return strstr(image, ".version") ? CUDA_OK : INVALID_IMAGE;
}

static struct module *module_new(const void *image, int *error)
{
	struct module *m = calloc(1, sizeof *m);
	*error = m ? measure(image, m) : OUT_OF_MEMORY;
	if (!*error && !note_made(TAGGED(m)))
		*error = OUT_OF_MEMORY;
	if (*error) {
		free(m);
		return NULL;
	}
	m->context = context_owner();
	pthread_mutex_lock(&registry_lock);
	m->next = modules;
	modules = m;
	pthread_mutex_unlock(&registry_lock);
	return m;
}

static int say_why(int error, const char *what)
{
	if (error == NO_BINARY_FOR_GPU)
		SAY_ONCE(
			"%s: the program has machine code only, or PTX of a later architecture than "
			"the device: rebuild it with PTX (nvcc -arch=compute_75, without -rdc=true)",
			what);
	return error;
}

static void send_image(const struct module *m)
{
	for (uint64_t offset = 0; offset < m->bytes;) {
		uint64_t piece = m->bytes - offset < RF_BULK_BYTES ? m->bytes - offset
								   : RF_BULK_BYTES;
		uint32_t bulk = bulk_claim(true);
		memcpy(bulk_data(bulk), (const uint8_t *)m->image + offset, piece);
		struct rf_module_data data = {.module = m->number,
					      .offset = offset,
					      .bytes = (uint32_t)piece,
					      .bulk = bulk};
		channel_post(&data.r, RF_OP_MODULE_DATA, sizeof data, NULL, 0);
		offset += piece;
	}
}

/* What the module wants filled in, if it does. */
static int set_up(struct module *m)
{
	struct rf_name ask = {.module = m->number, .name_bytes = strlen(RF_SETUP_NAME)};
	struct rf_global_reply reply;
	int error = channel_call(&ask.r, RF_OP_GLOBAL_GET, sizeof ask, RF_SETUP_NAME,
				 ask.name_bytes, &reply, sizeof reply);
	if (error == NOT_FOUND)
		return CUDA_OK;
	uint64_t heap_at = 0;
	if (!error)
		error = module_set_up(m->globals, reply.addr, reply.bytes, &heap_at);
	atomic_store(&m->heap_at, heap_at);
	return error;
}

/* Where its variables lie; managed ones are still there after a reset, since the
 * program has their addresses. */
static int place_globals(struct module *m, uint64_t bytes)
{
	if (!m->managed)
		return memory_alloc(bytes, &m->globals);
	return m->globals ? CUDA_OK : managed_place(bytes, 0, (void **)&m->globals);
}

static void free_globals(const struct module *m)
{
	if (m->globals && m->managed)
		managed_free((void *)m->globals);
	else if (m->globals)
		memory_free((void *)m->globals);
}

void module_has_managed(struct module *m) { m->managed = true; }

/* By one thread at a time, without a lock. */
static int load(struct module *m)
{
	struct rf_module_reply reply;
	m->number = handle_number();
	send_image(m);
	struct rf_module_load ask = {.module = m->number, .bytes = m->bytes, .image = m->kind};
	int error = channel_call(&ask.r, RF_OP_MODULE_LOAD, sizeof ask, NULL, 0, &reply,
				 sizeof reply);
	if (error)
		return say_why(error, "a module cannot be loaded");
	m->function_count = reply.function_count;
	if (reply.globals_bytes) {
		error = place_globals(m, reply.globals_bytes);
		if (error)
			return error;
		struct rf_module_globals globals = {.module = m->number, .addr = m->globals};
		channel_post(&globals.r, RF_OP_MODULE_GLOBALS, sizeof globals, NULL, 0);
		error = set_up(m);
		if (error)
			return say_why(error, "a module cannot be set up");
	}
	return CUDA_OK;
}

/* Under module_lock, but for the loading. A load that failed may be tried again, under another
 * number. */
static int load_locked(struct module *m)
{
	while (m->loading)
		pthread_cond_wait(&module_moved, &module_lock);
	if (m->loaded)
		return CUDA_OK;
	m->loading = true;
	pthread_mutex_unlock(&module_lock);
	int error = load(m);
	pthread_mutex_lock(&module_lock);
	m->loading = false;
	m->loaded = !error;
	pthread_cond_broadcast(&module_moved);
	return error;
}

int module_load(const void *image, struct module **out)
{
	int error = channel_enter();
	if (error)
		return error;
	struct module *m = module_new(image, &error);
	if (!m)
		return error;
	pthread_mutex_lock(&module_lock);
	error = load_locked(m);
	pthread_mutex_unlock(&module_lock);
	if (!error)
		*out = m;
	return error;
}

int module_unload(struct module *m)
{
	int error = channel_open();
	if (error)
		return error;
	pthread_mutex_lock(&module_lock);
	if (m->unloaded || !m->loaded) {
		error = INVALID_HANDLE;
	} else {
		struct rf_handle gone = {.handle = m->number};
		channel_post(&gone.r, RF_OP_MODULE_UNLOAD, sizeof gone, NULL, 0);
		m->unloaded = true;
	}
	pthread_mutex_unlock(&module_lock);
	if (!error)
		free_globals(m);
	int sticky = channel_enter();
	return sticky ? sticky : error;
}

static struct module *first_module(void)
{
	pthread_mutex_lock(&registry_lock);
	struct module *m = modules;
	pthread_mutex_unlock(&registry_lock);
	return m;
}

void module_end(uint64_t context)
{
	for (struct module *m = first_module(); m; m = m->next)
		if (!m->own && m->context == context)
			module_unload(m); /* unless it was */
}

/* Under module_lock: the next use loads it again, with its variables as they were at first. */
static void reset_locked(struct module *m)
{
	struct rf_handle gone = {.handle = m->number};
	channel_post(&gone.r, RF_OP_MODULE_UNLOAD, sizeof gone, NULL, 0);
	if (!m->managed) {
		free_globals(m);
		m->globals = 0;
	}
	m->loaded = false;
	for (struct function *f = m->functions; f; f = f->next) {
		atomic_store(&f->ready, false);
		f->max_dynamic_shared = f->carveout = -1;
	}
	pthread_mutex_lock(&registry_lock);
	for (uint64_t i = 0; i < symbol_room; i++)
		if (symbols[i].module == m)
			symbols[i].address = 0;
	pthread_mutex_unlock(&registry_lock);
}

void module_reset(void)
{
	pthread_mutex_lock(&module_lock);
	for (struct module *m = first_module(); m; m = m->next)
		if (m->own && m->loaded)
			reset_locked(m);
	pthread_mutex_unlock(&module_lock);
}

int module_global(struct module *m, const char *name, uint64_t *address, uint64_t *bytes)
{
	struct rf_name ask = {.name_bytes = (uint32_t)strlen(name)};
	struct rf_global_reply reply;
	int error = channel_enter();
	if (!error && (!ask.name_bytes || ask.name_bytes > RF_NAME_MAX))
		error = NOT_FOUND;
	if (error)
		return error;
	pthread_mutex_lock(&module_lock);
	error = m->unloaded ? INVALID_HANDLE : load_locked(m);
	ask.module = m->number;
	pthread_mutex_unlock(&module_lock);
	if (!error)
		error = channel_call(&ask.r, RF_OP_GLOBAL_GET, sizeof ask, name, ask.name_bytes,
				     &reply, sizeof reply);
	if (!error) {
		*address = reply.addr;
		*bytes = reply.bytes;
	}
	return error;
}

/* ---- functions ---- */

static struct function *function_new(struct module *m, const char *name, const void *host)
{
	struct function *f = calloc(1, sizeof *f);
	if (!f || !note_made(f)) {
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

/* Under module_lock: its parameter layout and needs, from the server. */
static int get_locked(struct function *f)
{
	struct rf_name ask = {.module = f->module->number,
			      .handle = handle_number(),
			      .name_bytes = (uint32_t)strlen(f->name)};
	if (!ask.name_bytes || ask.name_bytes > RF_NAME_MAX)
		return NOT_FOUND;
	ask.bulk = bulk_claim(true);
	bulk_data(ask.bulk)[0] = 0;
	int error = channel_call(&ask.r, RF_OP_FUNCTION_GET, sizeof ask, f->name, ask.name_bytes,
				 &f->info, sizeof f->info);
	uint64_t bytes = f->info.param_count * sizeof *f->params;
	if (!error && (bytes > RF_BULK_BYTES || f->info.param_bytes > RF_PARAM_MAX)) {
		say("kernel %s: its parameters take %u bytes, more than CUDA's %u", f->name,
		    f->info.param_bytes, RF_PARAM_MAX);
		error = INVALID_PTX;
	}
	if (!error && bytes) {
		free(f->params); /* of before a reset */
		f->params = malloc(bytes);
		if (f->params)
			memcpy(f->params, bulk_data(ask.bulk), bytes);
		else
			error = OUT_OF_MEMORY;
	}
	if (error == NOT_SUPPORTED && bulk_data(ask.bulk)[0] && !f->explained) {
		say("%.*s", (int)RF_BULK_BYTES, (const char *)bulk_data(ask.bulk));
		f->explained = true;
	}
	bulk_release(ask.bulk);
	if (!error) {
		f->number = ask.handle;
		atomic_store_explicit(&f->ready, true, memory_order_release);
	}
	return say_why(error, f->name);
}

int function_ready(struct function *f)
{
	if (atomic_load_explicit(&f->ready, memory_order_acquire))
		return f->module->unloaded ? INVALID_HANDLE : CUDA_OK;
	int error = channel_open();
	if (error)
		return error;
	pthread_mutex_lock(&module_lock);
	error = f->module->unloaded ? INVALID_HANDLE : load_locked(f->module);
	if (!error && !atomic_load(&f->ready))
		error = get_locked(f);
	pthread_mutex_unlock(&module_lock);
	return error;
}

/* Under module_lock, but for the telling, which is one thread's at a time. */
static int tell_heap_locked(struct module *m)
{
	while (telling)
		pthread_cond_wait(&module_moved, &module_lock);
	uint64_t heap_at = atomic_load(&m->heap_at);
	if (!heap_at)
		return CUDA_OK;
	telling = true;
	pthread_mutex_unlock(&module_lock);
	int error = kernel_heap_tell(heap_at);
	pthread_mutex_lock(&module_lock);
	telling = false;
	if (!error)
		atomic_store(&m->heap_at, 0);
	pthread_cond_broadcast(&module_moved);
	return error;
}

int function_can_run(struct function *f)
{
	int error = function_ready(f);
	if (error || !atomic_load_explicit(&f->module->heap_at, memory_order_acquire))
		return error;
	pthread_mutex_lock(&module_lock);
	error = tell_heap_locked(f->module);
	pthread_mutex_unlock(&module_lock);
	return error;
}

/* Under module_lock: the one of that name, whether or not the module has it. */
static struct function *named_locked(struct module *m, const char *name)
{
	struct function *f = m->functions;
	while (f && strcmp(f->name, name))
		f = f->next;
	if (f)
		return f;
	char *copy = strdup(name);
	f = copy ? function_new(m, copy, NULL) : NULL;
	if (!f)
		free(copy);
	return f;
}

int module_function(struct module *m, const char *name, struct function **out)
{
	int error = channel_enter();
	if (error)
		return error;
	pthread_mutex_lock(&module_lock);
	struct function *f = named_locked(m, name);
	pthread_mutex_unlock(&module_lock);
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
	pthread_mutex_lock(&module_lock);
	error = m->unloaded ? INVALID_HANDLE : load_locked(m);
	if (!error)
		*count = m->function_count;
	pthread_mutex_unlock(&module_lock);
	return error;
}

/* Under module_lock: those behind the first *at ones, as many as one answer names. */
static int enumerate_locked(struct module *m, void **out, unsigned room, unsigned *at)
{
	struct rf_function_names ask = {
		.module = m->number, .first = *at, .bulk = bulk_claim(true)};
	struct rf_function_names_reply reply = {0};
	int error = channel_call(&ask.r, RF_OP_FUNCTION_NAMES, sizeof ask, NULL, 0, &reply,
				 sizeof reply);
	const char *name = (const char *)bulk_data(ask.bulk);
	for (; !error && reply.count && *at < room; reply.count--, name += strlen(name) + 1) {
		struct function *f = named_locked(m, name);
		if (f)
			out[(*at)++] = f;
		else
			error = OUT_OF_MEMORY;
	}
	bulk_release(ask.bulk);
	return error;
}

/* They are compiled when they are first used, as lazy loading does. */
int module_enumerate(struct module *m, void **out, unsigned room)
{
	unsigned count, at = 0, before;
	int error = module_function_count(m, &count);
	if (room > count)
		room = count;
	while (!error && at < room) {
		before = at;
		pthread_mutex_lock(&module_lock);
		error = m->unloaded ? INVALID_HANDLE : enumerate_locked(m, out, room, &at);
		pthread_mutex_unlock(&module_lock);
		if (!error && at == before)
			error = NOT_SUPPORTED; /* a name that no bulk slot holds */
	}
	return error;
}

struct module *module_of(const struct function *f) { return f->module; }

/* ---- the program's own symbols ---- */

static struct symbol *symbol_place(const void *host)
{
	uint64_t i = ((uint64_t)host >> 2) * 0x9e3779b97f4a7c15ull >> 20;
	while (symbols[i & (symbol_room - 1)].host && symbols[i & (symbol_room - 1)].host != host)
		i++;
	return &symbols[i & (symbol_room - 1)];
}

/* Under registry_lock: at most half full, gone ones included. */
static bool symbols_grow(void)
{
	if (2 * (symbol_count + 1) <= symbol_room)
		return true;
	struct symbol *old = symbols;
	uint64_t room = symbol_room, grown = room ? room * 2 : 256;
	struct symbol *more = calloc(grown, sizeof *more);
	if (!more)
		return false;
	symbols = more;
	symbol_room = grown;
	for (uint64_t i = 0; i < room; i++)
		if (old[i].host)
			*symbol_place(old[i].host) = old[i];
	free(old);
	return true;
}

static void symbol_add(const void *host, struct module *m, const char *name, struct function *f)
{
	pthread_mutex_lock(&registry_lock);
	if (host && symbols_grow()) {
		struct symbol *s = symbol_place(host);
		symbol_count += !s->host;
		*s = (struct symbol){.host = host, .module = m, .name = name, .function = f};
	}
	pthread_mutex_unlock(&registry_lock);
}

static bool symbol_find(const void *host, struct symbol *out)
{
	pthread_mutex_lock(&registry_lock);
	bool found = symbol_room && host && symbol_place(host)->host && !symbol_place(host)->gone;
	if (found)
		*out = *symbol_place(host);
	pthread_mutex_unlock(&registry_lock);
	return found;
}

struct function *function_of_host(const void *host)
{
	struct symbol s;
	if (symbol_find(host, &s))
		return s.function;
	return function_is(host) ? (struct function *)host : NULL; /* a cudaKernel_t */
}

int symbol_address(const void *host, uint64_t *address, uint64_t *bytes)
{
	struct symbol s;
	if (managed_variable(host, address, bytes))
		return CUDA_OK;
	if (!symbol_find(host, &s) || s.function)
		return INVALID_SYMBOL;
	if (!s.address) {
		int error = module_global(s.module, s.name, &s.address, &s.bytes);
		if (error)
			return error == NOT_FOUND ? INVALID_SYMBOL : error;
		pthread_mutex_lock(&registry_lock);
		struct symbol *kept = symbol_place(host);
		kept->address = s.address;
		kept->bytes = s.bytes;
		pthread_mutex_unlock(&registry_lock);
	}
	*address = s.address;
	*bytes = s.bytes;
	return CUDA_OK;
}

#include "api.h"

void **__cudaRegisterFatBinary(void *fatCubin)
{
	int error;
	struct module *m = module_new(fatCubin, &error);
	if (m)
		m->own = true;
	return (void **)m;
}

void __cudaRegisterFatBinaryEnd(void **fatCubinHandle) { (void)fatCubinHandle; }

/* At exit, or when a shared object goes. Nothing is sent: the process must not wait here. */
void __cudaUnregisterFatBinary(void **fatCubinHandle)
{
	struct module *m = (struct module *)fatCubinHandle;
	pthread_mutex_lock(&registry_lock);
	for (uint64_t i = 0; m && i < symbol_room; i++)
		if (symbols[i].module == m)
			symbols[i].gone = true;
	pthread_mutex_unlock(&registry_lock);
}

void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
			    const char *deviceName, int thread_limit, uint3 *tid, uint3 *bid,
			    dim3 *bDim, dim3 *gDim, int *wSize)
{
	(void)deviceFun, (void)thread_limit, (void)tid, (void)bid, (void)bDim, (void)gDim,
		(void)wSize;
	struct module *m = (struct module *)fatCubinHandle;
	struct function *f = m ? function_new(m, deviceName, hostFun) : NULL;
	if (f)
		symbol_add(hostFun, m, deviceName, f);
}

void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress,
		       const char *deviceName, int ext, size_t size, int constant, int global)
{
	(void)deviceAddress, (void)ext, (void)size, (void)constant, (void)global;
	if (fatCubinHandle)
		symbol_add(hostVar, (struct module *)fatCubinHandle, deviceName, NULL);
}

/* ---- launches ---- */

static bool grid_valid(const struct launch *l, uint32_t max_threads)
{
	const uint32_t *g = l->grid, *b = l->block;
	return g[0] && g[1] && g[2] && b[0] && b[1] && b[2] && g[0] <= 0x7fffffff &&
	       g[1] <= 65535 && g[2] <= 65535 && b[0] <= 1024 && b[1] <= 1024 && b[2] <= 64 &&
	       (uint64_t)b[0] * b[1] * b[2] <= max_threads;
}

static int check_launch(const struct launch *l)
{
	const struct rf_welcome *welcome;
	const struct function *f = l->function;
	int error = channel_welcome(&welcome);
	if (error)
		return error;
	const struct rf_device *d = &welcome->device;
	if (!grid_valid(l, d->max_threads_per_block))
		return INVALID_CONFIGURATION;
	if (!grid_valid(l, f->info.max_threads))
		return LAUNCH_OUT_OF_RESOURCES;
	uint64_t dynamic = f->max_dynamic_shared >= 0
				   ? (uint64_t)f->max_dynamic_shared
				   : d->shared_per_block -
					     (f->info.static_shared_bytes < d->shared_per_block
						      ? f->info.static_shared_bytes
						      : d->shared_per_block);
	return l->shared_bytes > dynamic ? INVALID_VALUE : CUDA_OK;
}

/* All blocks of a cooperative launch must be resident at once. */
static int check_cooperative(const struct launch *l)
{
	const struct rf_welcome *welcome;
	int blocks, threads = (int)(l->block[0] * l->block[1] * l->block[2]);
	int error = occupancy_blocks(&blocks, l->function, threads, l->shared_bytes);
	if (error)
		return error;
	channel_welcome(&welcome);
	return (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] >
			       (uint64_t)blocks * welcome->device.sm_count
		       ? COOPERATIVE_LAUNCH_TOO_LARGE
		       : CUDA_OK;
}

/* All parameters, in the kernel's own layout. */
static int pack(const struct launch *l, uint8_t *to)
{
	const struct function *f = l->function;
	memset(to, 0, f->info.param_bytes);
	if (l->packed) {
		uint32_t n = f->info.param_count;
		if (n && l->packed_bytes < f->params[n - 1].offset + f->params[n - 1].bytes)
			return INVALID_VALUE;
		memcpy(to, l->packed,
		       l->packed_bytes < f->info.param_bytes ? l->packed_bytes
							     : f->info.param_bytes);
		return CUDA_OK;
	}
	if (f->info.param_count && !l->args)
		return INVALID_VALUE;
	for (uint32_t i = 0; i < f->info.param_count; i++)
		memcpy(to + f->params[i].offset, l->args[i], f->params[i].bytes);
	return CUDA_OK;
}

/* What is checked already, with room for its parameters. */
static int launch_with(const struct launch *l, uint8_t *params)
{
	struct rf_launch m = {.stream = l->stream,
			      .shared_bytes = (uint32_t)l->shared_bytes,
			      .flags = l->cooperative};
	int error = pack(l, params);
	if (error)
		return error;
	if (capturing(l->stream))
		return capture_add(l->stream,
				   node_launch(l, params, l->function->info.param_bytes));
	memory_first_launch();
	print_kernels_output();
	m.function = l->function->number;
	memcpy(m.grid, l->grid, sizeof m.grid);
	memcpy(m.block, l->block, sizeof m.block);
	m.param_bytes = l->function->info.param_bytes;
	channel_post(&m.r, RF_OP_LAUNCH, sizeof m, params, m.param_bytes);
	return CUDA_OK;
}

static __attribute__((noinline)) int launch_large(const struct launch *l)
{
	uint8_t *params = malloc(l->function->info.param_bytes);
	int error = params ? launch_with(l, params) : OUT_OF_MEMORY;
	free(params);
	return error;
}

int launch(const struct launch *l)
{
	uint8_t params[PARAM_BYTES_USUAL];
	int error = channel_use_device();
	if (!error)
		error = function_can_run(l->function);
	if (!error)
		error = check_launch(l);
	if (!error && l->cooperative)
		error = check_cooperative(l);
	if (error)
		return error;
	return l->function->info.param_bytes <= sizeof params ? launch_with(l, params)
							      : launch_large(l);
}
