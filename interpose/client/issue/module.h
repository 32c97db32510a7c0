/* module.h: modules, for image.c, module.c and function.c. */
#ifndef RANKFOLD_MODULE_H
#define RANKFOLD_MODULE_H

#include "issue.h"

struct module {
	_Atomic uint64_t number;   /* 0: not loaded */
	const void *image;         /* the program's memory until the module is loaded, or `copy` */
	const void *const *linked; /* the fatbins that are linked into it, then NULL; NULL: none */
	char *copy;                /* owned; NULL: none */
	uint64_t bytes;
	enum rf_image kind;
	bool loading, loaded, unloaded; /* under MODULE_LOCK */
	bool lasting; /* a reset does not end it: the program registered it, or it is a library */
	bool library;
	bool managed;        /* host and kernels both access its variables */
	uint64_t context;    /* in which it was loaded */
	struct module *next; /* list of all modules */
	uint64_t globals;
	_Atomic uint64_t
		heap_at; /* where to write the address of the kernels' heap; 0: nowhere, or done */
	uint32_t function_count;
	struct function *functions;
	bool explained; /* the reason why it cannot be loaded was reported */
};

/* Under MODULE_LOCK, except while it loads: ensures that the server has the module. A failed load
 * may be tried again.
 */
int module_loaded(struct module *);
void module_wait(void); /* under MODULE_LOCK: until another thread calls module_moved */
void module_moved(void);
bool module_note(const void *value); /* records a new function as a valid handle */

#define IMAGE_ALIGNMENT 8u /* of a fatbin that follows another one */

/* image.c: determines the kind of an image and its length. An error of the CUDA driver API. */
int image_measure(const void *image, struct module *);
uint64_t image_fatbin_bytes(const void *image);
uint64_t image_padding(uint64_t bytes); /* bytes of padding behind a fatbin that others follow */

#endif
