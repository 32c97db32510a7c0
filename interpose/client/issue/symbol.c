/* symbol.c: maps host addresses of the program's own kernels and variables to what they stand for.
 *
 * Lock: REGISTRY_LOCK around the table; a launch takes it briefly, to find its kernel.
 */
#include <stdlib.h>

#include "issue.h"

/* The device object that a host address of the program denotes. */
struct symbol {
	const void *host; /* NULL: an empty place */
	bool unloaded;
	struct module *module;
	const char *name;
	struct function *function; /* NULL: a variable */
	uint64_t address, bytes;   /* of a variable, once fetched */
	uint64_t loaded_as;        /* module number at that time; valid as long */
};

static struct symbol *symbols; /* open addressing */
static uint64_t symbol_capacity, symbol_count;

static struct symbol *symbol_place(const void *host)
{
	uint64_t i = ((uint64_t)host >> 2) * 0x9e3779b97f4a7c15ull >> 20;
	while (symbols[i & (symbol_capacity - 1)].host &&
	       symbols[i & (symbol_capacity - 1)].host != host)
		i++;
	return &symbols[i & (symbol_capacity - 1)];
}

/* Under REGISTRY_LOCK: keeps the table at most half full, including removed entries. */
static bool symbols_grow(void)
{
	if (2 * (symbol_count + 1) <= symbol_capacity)
		return true;
	struct symbol *old = symbols;
	uint64_t capacity = symbol_capacity, grown = capacity ? capacity * 2 : 256;
	struct symbol *more = calloc(grown, sizeof *more);
	if (!more)
		return false;
	symbols = more;
	symbol_capacity = grown;
	for (uint64_t i = 0; i < capacity; i++)
		if (old[i].host)
			*symbol_place(old[i].host) = old[i];
	free(old);
	return true;
}

void symbol_add(const void *host, struct module *m, const char *name, struct function *f)
{
	lock(REGISTRY_LOCK);
	if (host && symbols_grow()) {
		struct symbol *s = symbol_place(host);
		symbol_count += !s->host;
		*s = (struct symbol){.host = host, .module = m, .name = name, .function = f};
	}
	unlock(REGISTRY_LOCK);
}

static bool symbol_find(const void *host, struct symbol *out)
{
	lock(REGISTRY_LOCK);
	bool found = symbol_capacity && host && symbol_place(host)->host &&
		     !symbol_place(host)->unloaded;
	if (found)
		*out = *symbol_place(host);
	unlock(REGISTRY_LOCK);
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
	if (!s.address || s.loaded_as != module_number(s.module)) {
		int error = module_global(s.module, s.name, &s.address, &s.bytes);
		if (error)
			return error == NOT_FOUND ? INVALID_SYMBOL : error;
		s.loaded_as = module_number(s.module);
		lock(REGISTRY_LOCK);
		struct symbol *known = symbol_place(host);
		known->address = s.address;
		known->bytes = s.bytes;
		known->loaded_as = s.loaded_as;
		unlock(REGISTRY_LOCK);
	}
	*address = s.address;
	*bytes = s.bytes;
	return CUDA_OK;
}

void symbols_end(const struct module *m)
{
	lock(REGISTRY_LOCK);
	for (uint64_t i = 0; m && i < symbol_capacity; i++)
		if (symbols[i].module == m)
			symbols[i].unloaded = true;
	unlock(REGISTRY_LOCK);
}

int symbol_part(const void *symbol, size_t bytes, size_t offset, int kind, bool to, void **at)
{
	uint64_t address, size;
	int error = channel_enter();
	if (!error)
		error = symbol_address(symbol, &address, &size);
	if (!error && (offset > size || bytes > size - offset))
		error = INVALID_VALUE;
	if (!error && (kind == HOST_TO_HOST || kind == (to ? DEVICE_TO_HOST : HOST_TO_DEVICE)))
		error = INVALID_DIRECTION;
	if (!error)
		*at = (uint8_t *)address + offset;
	return error;
}
