/* module.c: the lifetime of a rank's modules and their functions.
 *
 * Each queued kernel of a module uses it, and so does each request about it or its functions that
 * Python has not answered. After an unload, the module and its functions cannot be referred to any
 * more; they are freed when the last use has ended, so that a rank's memory does not grow with its
 * history. Nothing waits for that: a kernel may be queued behind work that depends on other ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "rank/rank_parts.h"
#include "rank/bounds.h"

static bool is_function_of(const struct object *o, const struct module *m)
{
	return o->kind == OBJ_FUNCTION && ((const struct function *)o)->module == m;
}

/* Copies accesses. Sets `error` if one of them is not within `end` bytes. */
static struct proxy_access *copy_accesses(const struct proxy_access *from, uint32_t count,
					  uint64_t end, int *error)
{
	struct proxy_access *copy = malloc(count * sizeof *copy + 1);
	if (!copy)
		*error = CU_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < count && copy; i++) {
		copy[i] = from[i];
		if (from[i].bytes > end || from[i].at > end - from[i].bytes)
			*error = CU_INVALID_IMAGE;
	}
	return copy;
}

static struct rf_param *copy_layout(const struct proxy_function *from, const uint32_t *params,
				    int *error)
{
	struct rf_param *copy = malloc(from->param_count * sizeof *copy + 1);
	if (!copy)
		*error = CU_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < from->param_count && copy; i++) {
		copy[i] = (struct rf_param){params[2 * i], params[2 * i + 1]};
		if (copy[i].bytes > from->param_bytes ||
		    copy[i].offset > from->param_bytes - copy[i].bytes)
			*error = CU_INVALID_IMAGE;
	}
	return copy;
}

static void forget_function(struct function *f)
{
	free(f->params);
	free(f->words);
	free(f->variables);
	bounds_free(f->reaches);
	free(f->why_open);
}

static struct version function_identity(const struct function *f)
{
	struct digest d;
	digest_begin(&d);
	digest_bytes(&d, f->module->hash, sizeof f->module->hash);
	digest_bytes(&d, f->name, strlen(f->name));
	return digest_end(&d);
}

int function_fill(struct function *f, const struct proxy_function *from, const uint32_t *params)
{
	int error = CU_OK;
	/* After a restore, a function may be known before its module. */
	uint64_t globals_bytes = f->module->loaded ? f->module->globals_bytes : UINT64_MAX;
	struct function new = {
		.params = copy_layout(from, params, &error),
		.words = copy_accesses(from->words, from->word_count, from->param_bytes, &error),
		.variables = copy_accesses(from->variables, from->variable_count, globals_bytes,
					   &error),
		.reaches = bounds_copy(from, &error),
		.why_open = from->why_open ? strdup(from->why_open) : NULL,
	};
	if (from->why_open && !new.why_open)
		error = CU_OUT_OF_MEMORY;
	if (error) {
		forget_function(&new);
		return error;
	}
	forget_function(f);
	f->params = new.params;
	f->param_count = from->param_count;
	f->words = new.words;
	f->word_count = from->word_count;
	f->variables = new.variables;
	f->reaches = new.reaches;
	f->variable_count = from->variable_count;
	f->closed = from->closed;
	f->opaque = false;
	f->identity = function_identity(f);
	f->why_open = new.why_open;
	f->hal = (const struct hal_function *)(uintptr_t)from->address;
	f->param_bytes = from->param_bytes;
	f->max_threads = from->max_threads;
	f->static_shared_bytes = from->static_shared_bytes;
	return CU_OK;
}

const char *function_unfit(int error)
{
	if (error == CU_OUT_OF_MEMORY)
		return "the proxy is out of host memory";
	return "what it reads and writes goes beyond its parameters or its module's variables, "
	       "which is a defect of rankfold";
}

struct function *function_new(uint64_t id, struct module *m, const char *name, uint32_t bytes)
{
	struct function *f = calloc(1, sizeof *f);
	if (f)
		f->name = strndup(name, bytes);
	if (!f || !f->name) {
		free(f);
		return NULL;
	}
	f->o = (struct object){OBJ_FUNCTION, id};
	f->module = m;
	return f;
}

void function_from(struct function *f, uint32_t param_bytes, uint32_t max_threads,
		   uint32_t static_shared_bytes)
{
	f->param_bytes = param_bytes;
	f->max_threads = max_threads;
	f->static_shared_bytes = static_shared_bytes;
}

void function_hide(struct function *f)
{
	f->opaque |= f->closed;
	f->closed = false;
}

void function_refuse(struct function *f, int error, const char *why)
{
	f->error = error;
	free(f->why_refused);
	f->why_refused = why ? strdup(why) : NULL;
}

void function_free(struct function *f)
{
	forget_function(f);
	free(f->why_refused);
	free(f->name);
	free(f);
}

/* ---- modules ---- */

/* The loop's thread makes all modules. */
static uint64_t next_globals(void)
{
	static uint64_t last;
	return ++last;
}

struct module *module_new(struct rank *r, uint64_t id)
{
	struct module *m = calloc(1, sizeof *m);
	if (m) {
		m->o = (struct object){OBJ_MODULE, id};
		m->globals_number = next_globals();
	}
	if (m && table_put(&r->objects, &m->o))
		return m;
	free(m);
	return NULL;
}

struct module *module_restored(uint64_t id, const char *hash, uint64_t globals_addr,
			       const void *image, uint64_t image_bytes)
{
	struct module *m = calloc(1, sizeof *m);
	if (m && image_bytes)
		m->image = malloc(image_bytes);
	if (!m || (image_bytes && !m->image)) {
		free(m);
		return NULL;
	}
	m->o = (struct object){OBJ_MODULE, id};
	m->globals_addr = globals_addr;
	m->globals_number = next_globals();
	m->globals_known = true; /* perhaps */
	snprintf(m->hash, sizeof m->hash, "%s", hash);
	m->image_bytes = m->image_capacity = image_bytes;
	if (image_bytes)
		memcpy(m->image, image, image_bytes);
	return m;
}

int module_append(struct rank *r, struct module *m, uint64_t offset, const uint8_t *from,
		  uint64_t bytes)
{
	if (m->loaded || m->loading || offset != m->image_bytes ||
	    r->arriving + bytes > MODULE_BYTES_MAX)
		return CU_INVALID_VALUE;
	if (offset + bytes > m->image_capacity) {
		uint64_t capacity = (offset + bytes) * 2;
		uint8_t *bigger = realloc(m->image, capacity);
		if (!bigger)
			return CU_OUT_OF_MEMORY;
		m->image = bigger;
		m->image_capacity = capacity;
	}
	memcpy(m->image + offset, from, bytes);
	m->image_bytes += bytes;
	r->arriving += bytes;
	return CU_OK;
}

void module_arrives(struct rank *r, const struct module *m) { r->arriving += m->image_bytes; }

void module_request(struct module *m)
{
	m->loading = true;
	module_use(m);
}

void module_place(struct module *m, uint64_t globals_addr) { m->globals_addr = globals_addr; }

/* Copies this many zero-terminated names, one after another. NULL: host memory is short. */
static char *copy_names(const char *names, uint32_t count)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++)
		bytes += strlen(names + bytes) + 1;
	char *copy = malloc(bytes + 1);
	return copy ? memcpy(copy, names, bytes) : NULL;
}

static bool fill_module(struct module *m, const struct module_contents *c)
{
	const uint64_t bytes = c->global_count * sizeof(uint64_t);
	m->globals_image = malloc(c->globals_bytes + 1);
	m->function_names = copy_names(c->function_names, c->function_count);
	m->global_names = copy_names(c->global_names, c->global_count);
	m->global_offsets = malloc(bytes + 1);
	m->global_sizes = malloc(bytes + 1);
	if (!m->globals_image || !m->function_names || !m->global_names || !m->global_offsets ||
	    !m->global_sizes)
		return false;
	memcpy(m->globals_image, c->globals, c->globals_bytes);
	memcpy(m->global_offsets, c->global_offsets, bytes);
	memcpy(m->global_sizes, c->global_sizes, bytes);
	snprintf(m->hash, sizeof m->hash, "%s", c->hash);
	m->globals_bytes = c->globals_bytes;
	m->function_count = c->function_count;
	m->global_count = c->global_count;
	m->managed_count = c->managed_count;
	free(m->image);
	m->image = NULL;
	m->loaded = true;
	return true;
}

int module_answered(struct rank *r, struct module *m, int error, const struct module_contents *c)
{
	m->loading = false;
	if (error)
		return error;
	if (!fill_module(m, c))
		return CU_OUT_OF_MEMORY;
	INVARIANT(r->arriving >= m->image_bytes, "a module that has arrived was counted");
	r->arriving -= m->image_bytes;
	return CU_OK;
}

void module_use(struct module *m) { m->uses++; }

void module_free(struct module *m)
{
	free(m->image);
	free(m->globals_image);
	free(m->function_names);
	free(m->global_names);
	free(m->global_offsets);
	free(m->global_sizes);
	free(m);
}

static void drop_module(struct rank *r, struct module *m)
{
	uint32_t at = 0;
	for (struct object *o; (o = table_next(&r->objects, &at));) {
		if (!is_function_of(o, m))
			continue;
		table_remove(&r->objects, o->id);
		function_free((struct function *)o);
	}
	table_remove(&r->objects, m->o.id);
	if (!m->loaded)
		r->arriving -= m->image_bytes;
	module_free(m);
}

void module_unload(struct rank *r, struct module *m)
{
	m->doomed = true;
	if (!m->uses)
		drop_module(r, m);
}

void module_release(struct rank *r, struct module *m)
{
	INVARIANT(m->uses, "a module counts its uses");
	m->uses--;
	if (!m->uses && m->doomed)
		drop_module(r, m);
}
