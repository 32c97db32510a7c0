/* managed_variables.c: the __managed__ variables of the program's own modules.
 *
 * The program reads the address of each from a pointer, which it asks to have filled in before the
 * first access (__cudaInitModule). All variables of such a module lie in managed memory (module.c),
 * so that the address is the one that kernels know.
 *
 * Lock: variables_lock around the list; nothing is asked of the server under it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "bodies.h"

struct variable {
	struct module *module;
	void **host; /* the program's pointer to it */
	const char *name;
	struct variable *next;
};
pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER;
static struct variable *variables; /* never freed: constructors of the program note them */

static struct variable *first(void)
{
	pthread_mutex_lock(&variables_lock);
	struct variable *v = variables;
	pthread_mutex_unlock(&variables_lock);
	return v;
}

void __cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress,
			      const char *deviceName, int ext, size_t size, int constant,
			      int global)
{
	(void)deviceAddress, (void)ext, (void)size, (void)constant, (void)global;
	struct variable *v = fatCubinHandle ? malloc(sizeof *v) : NULL;
	if (!v)
		return;
	*v = (struct variable){(struct module *)fatCubinHandle, hostVarPtrAddress, deviceName,
			       NULL};
	module_has_managed(v->module);
	pthread_mutex_lock(&variables_lock);
	v->next = variables;
	variables = v;
	pthread_mutex_unlock(&variables_lock);
}

/* Before the program's first look at one of the module's. */
char __cudaInitModule(void **fatCubinHandle)
{
	uint64_t address, bytes;
	context_of_runtime();
	for (struct variable *v = first(); v; v = v->next) {
		if ((void **)v->module != fatCubinHandle)
			continue;
		int error = module_global(v->module, v->name, &address, &bytes);
		if (error)
			say("__managed__ variable %s has no memory: error %d", v->name, error);
		else
			*v->host = (void *)address;
	}
	return 1;
}

bool managed_variable(const void *host, uint64_t *address, uint64_t *bytes)
{
	for (struct variable *v = first(); host && v; v = v->next)
		if (*v->host == host)
			return !module_global(v->module, v->name, address, bytes);
	return false;
}
