/* handle_module.c: requests for modules, their kernels and variables (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "handlers.h"

int on_module_data(struct rank *r, const struct rf_module_data *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	const uint8_t *from = ring_bulk(r, (uint64_t)a->bulk * RF_BULK_BYTES, a->bytes);
	int error = CU_OK;
	if (!m) {
		m = calloc(1, sizeof *m);
		if (m)
			m->o = (struct object){OBJ_MODULE, a->module};
		if (!m || !table_put(&r->objects, &m->o)) {
			free(m);
			m = NULL;
		}
	}
	if (!m || m->loaded || m->loading || !from || !a->bytes || a->bytes > RF_BULK_BYTES ||
	    a->offset != m->image_bytes || r->arriving + a->bytes > MODULE_BYTES_MAX) {
		error = CU_INVALID_VALUE;
	} else {
		if (a->offset + a->bytes > m->image_room) {
			uint64_t room = (a->offset + a->bytes) * 2;
			uint8_t *bigger = realloc(m->image, room);
			if (bigger) {
				m->image = bigger;
				m->image_room = room;
			} else {
				error = CU_OUT_OF_MEMORY;
			}
		}
		if (!error) {
			memcpy(m->image + a->offset, from, a->bytes);
			m->image_bytes += a->bytes;
			r->arriving += a->bytes;
		}
	}
	ring_release_bulk(r, a->bulk);
	return error;
}

int on_module_load(struct rank *r, const struct rf_module_load *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (!m || m->loaded || m->loading || a->bytes != m->image_bytes || !a->r.slot)
		return CU_INVALID_VALUE;
	m->loading = ask_module(r, m, a->image, a->r.slot);
	return m->loading ? ANSWERED : CU_OUT_OF_MEMORY;
}

/* A module of a moved rank is being loaded again; its requests wait for that. */
static bool coming_back(const struct rank *r, const struct module *m)
{
	return m && !m->loaded && m->hash[0] && !r->async_error;
}

int on_module_globals(struct rank *r, const struct rf_module_globals *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded || m->globals_addr)
		return CU_INVALID_VALUE;
	if (!m->globals_bytes)
		return CU_OK;
	if (!memory_valid(&r->memory, a->addr, m->globals_bytes))
		return CU_INVALID_VALUE;
	m->globals_addr = a->addr;
	struct transfer *t = calloc(1, sizeof *t);
	if (!t)
		return CU_OUT_OF_MEMORY;
	t->kind = TRANSFER_WRITE;
	t->memory = &r->memory;
	t->addr = a->addr;
	t->other.addr = (uintptr_t)m->globals_image;
	t->bytes = m->globals_bytes;
	transfer_push(&r->proxy->transfers, t);
	r->hold = true; /* until written: whatever comes next may read them */
	return CU_OK;
}

int on_module_unload(struct rank *r, const struct rf_handle *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->handle);
	if (!m)
		return CU_INVALID_HANDLE;
	module_unload(r, m);
	return CU_OK;
}

int on_function_get(struct rank *r, const struct rf_name *a, uint32_t extra)
{
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded || !a->r.slot)
		return CU_INVALID_HANDLE;
	if (!a->name_bytes || a->name_bytes > RF_NAME_MAX || a->name_bytes > extra ||
	    a->bulk >= RF_BULK_COUNT || memchr(a->name, 0, a->name_bytes))
		return CU_INVALID_VALUE;
	struct function *f = calloc(1, sizeof *f);
	if (f)
		f->name = strndup(a->name, a->name_bytes);
	if (!f || !f->name) {
		free(f);
		return CU_OUT_OF_MEMORY;
	}
	f->o = (struct object){OBJ_FUNCTION, a->handle};
	f->module = m;
	if (!table_put(&r->objects, &f->o)) {
		free(f->name);
		free(f);
		return CU_INVALID_HANDLE;
	}
	if (ask_function(r, f, a->r.slot, a->bulk))
		return ANSWERED;
	table_remove(&r->objects, a->handle);
	function_free(f);
	return CU_OUT_OF_MEMORY;
}

int on_global_get(struct rank *r, const struct rf_name *a, uint32_t extra)
{
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded)
		return CU_INVALID_HANDLE;
	if (a->name_bytes > extra)
		return CU_INVALID_VALUE;
	const char *name = m->global_names;
	for (uint32_t i = 0; i < m->global_count; i++, name += strlen(name) + 1) {
		if (strlen(name) != a->name_bytes || memcmp(name, a->name, a->name_bytes))
			continue;
		struct rf_global_reply reply = {m->globals_addr + m->global_offsets[i],
						m->global_sizes[i]};
		ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
		return ANSWERED;
	}
	return CU_NOT_FOUND;
}

int on_function_names(struct rank *r, const struct rf_function_names *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (coming_back(r, m))
		return RETRY;
	if (!m || !m->loaded)
		return CU_INVALID_HANDLE;
	uint8_t *to = ring_bulk(r, (uint64_t)a->bulk * RF_BULK_BYTES, RF_BULK_BYTES);
	if (!to || a->first > m->function_count)
		return CU_INVALID_VALUE;
	const char *name = m->function_names;
	for (uint32_t i = 0; i < a->first; i++)
		name += strlen(name) + 1;
	struct rf_function_names_reply reply = {0};
	for (uint64_t left = RF_BULK_BYTES; a->first + reply.count < m->function_count;
	     reply.count++) {
		uint64_t bytes = strlen(name) + 1;
		if (bytes > left)
			break;
		memcpy(to + RF_BULK_BYTES - left, name, bytes);
		name += bytes;
		left -= bytes;
	}
	ring_reply(r, a->r.slot, CU_OK, &reply, sizeof reply);
	return ANSWERED;
}
