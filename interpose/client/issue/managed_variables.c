/* managed_variables.c: the __managed__ variables of the program's own modules.
 *
 * The program reads the address of each variable from a pointer, which it has filled in before the
 * first access. All variables of such a module are in managed memory (module.c), so that the
 * address is the one that kernels use.
 *
 * Lock: VARIABLES_LOCK around the list; no request is sent under it.
 */
#include <stdlib.h>

#include "issue.h"

struct variable {
	struct module *module;
	void **host; /* the program's pointer to it */
	const char *name;
	struct variable *next;
};
static struct variable *variables; /* never freed: constructors of the program add to it */

static struct variable *first_variable(void)
{
	lock(VARIABLES_LOCK);
	struct variable *v = variables;
	unlock(VARIABLES_LOCK);
	return v;
}

void managed_variable_add(struct module *module, void **host, const char *name)
{
	struct variable *v = malloc(sizeof *v);
	if (!v)
		return;
	*v = (struct variable){module, host, name, NULL};
	lock(VARIABLES_LOCK);
	v->next = variables;
	variables = v;
	unlock(VARIABLES_LOCK);
}

void managed_variables_fill(const struct module *module)
{
	uint64_t address, bytes;
	for (struct variable *v = first_variable(); v; v = v->next) {
		if (v->module != module)
			continue;
		int error = module_global(v->module, v->name, &address, &bytes);
		if (error)
			log_message("__managed__ variable %s has no memory: error %d", v->name,
				    error);
		else
			*v->host = (void *)address;
	}
}

bool managed_variable(const void *host, uint64_t *address, uint64_t *bytes)
{
	for (struct variable *v = first_variable(); host && v; v = v->next)
		if (*v->host == host)
			return !module_global(v->module, v->name, address, bytes);
	return false;
}
