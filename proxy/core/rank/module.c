/* module.c: how long a rank's modules and their functions live.
 *
 * A module is used by every queued kernel of it and by every question about it or its functions
 * that Python has not answered. Unloaded, it and its functions cannot be named any more; they go
 * when the last use has ended, so that what a rank keeps does not grow with its history. Nothing
 * waits for that: a kernel may be queued behind what other ranks have yet to do.
 */
#include <stdlib.h>

#include "loop/internal.h"

static bool is_function_of(const struct object *o, const struct module *m)
{
	return o->kind == OBJ_FUNCTION && ((const struct function *)o)->module == m;
}

int function_fill(struct function *f, const struct proxy_function *from, const uint32_t *params)
{
	struct rf_param *copy = malloc(from->param_count * sizeof *copy + 1);
	if (!copy)
		return CU_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < from->param_count; i++) {
		copy[i] = (struct rf_param){params[2 * i], params[2 * i + 1]};
		if (copy[i].bytes > from->param_bytes ||
		    copy[i].offset > from->param_bytes - copy[i].bytes) {
			free(copy);
			return CU_INVALID_IMAGE;
		}
	}
	free(f->params);
	f->params = copy;
	f->param_count = from->param_count;
	f->hal = (const struct hal_function *)(uintptr_t)from->address;
	f->param_bytes = from->param_bytes;
	f->max_threads = from->max_threads;
	f->static_shared_bytes = from->static_shared_bytes;
	return CU_OK;
}

void function_free(struct function *f)
{
	free(f->params);
	free(f->uses);
	free(f->name);
	free(f);
}

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

static void drop(struct rank *r, struct module *m)
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
		drop(r, m);
}

void module_release(struct rank *r, struct module *m)
{
	m->uses--;
	if (!m->uses && m->doomed)
		drop(r, m);
}
