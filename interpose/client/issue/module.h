/* module.h: modules, for module.c and function.c. */
#ifndef RANKFOLD_MODULE_H
#define RANKFOLD_MODULE_H

#include "issue.h"

struct module {
	_Atomic uint64_t number; /* 0: not loaded */
	const void *image;       /* the program's memory until it is loaded */
	uint64_t bytes;
	enum rf_image kind;
	bool loading, loaded, unloaded; /* under MODULE_LOCK */
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

/* Under MODULE_LOCK, but for the loading: the server has it. A load that failed may be tried
 * again.
 */
int module_loaded(struct module *);
void module_wait(void); /* under MODULE_LOCK: until another thread has done something */
void module_moved(void);
bool module_note(const void *value); /* a new function: what a handle may be */
int module_say_why(int error, const char *what);

#endif
