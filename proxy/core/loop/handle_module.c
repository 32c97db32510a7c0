/* handle_module.c: requests for modules, their kernels and variables (handlers.h). */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/handlers.h"
#include "loop/intake.h"
#include "loop/internal.h"
#include "loop/python_request.h"

int on_module_data(struct rank *r, const struct rf_module_data *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	const uint8_t *from = ring_bulk(r, (uint64_t)a->bulk * RF_BULK_BYTES, a->bytes);
	int error = CU_INVALID_VALUE;
	if (!m)
		m = module_new(r, a->module);
	if (m && from && a->bytes && a->bytes <= RF_BULK_BYTES)
		error = module_append(r, m, a->offset, from, a->bytes);
	ring_release_bulk(r, a->bulk);
	return error;
}

int on_module_load(struct rank *r, const struct rf_module_load *a, uint32_t extra)
{
	(void)extra;
	struct module *m = get_module(r, a->module);
	if (!m || m->loaded || m->loading || a->bytes != m->image_bytes || !a->r.slot ||
	    a->why > RF_BULK_COUNT)
		return CU_INVALID_VALUE;
	return python_request_module(r, m, a->image, a->r.slot, a->why) ? ANSWERED
									: CU_OUT_OF_MEMORY;
}

/* True if a module of a moved rank is being loaded again; requests for it wait for that. */
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
	struct transfer *t = calloc(1, sizeof *t);
	if (!t)
		return CU_OUT_OF_MEMORY;
	module_place(m, a->addr);
	t->kind = TRANSFER_WRITE;
	t->memory = &r->memory;
	t->addr = a->addr;
	t->other.addr = (uintptr_t)m->globals_image;
	t->bytes = m->globals_bytes;
	t->named = true;
	t->content = content_of_bytes(m->globals_image, m->globals_bytes);
	transfer_push(&r->proxy->transfers, t);
	/* Later records may read the globals. */
	intake_wait_for_transfers(r);
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
	struct function *f = function_new(a->handle, m, a->name, a->name_bytes);
	if (!f)
		return CU_OUT_OF_MEMORY;
	if (!table_put(&r->objects, &f->o)) {
		function_free(f);
		return CU_INVALID_HANDLE;
	}
	if (python_request_function(r, f, a->r.slot, a->bulk))
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
		if (a->bulk && i >= m->managed_count)
			return CU_NOT_FOUND;
		m->globals_known = true;
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
