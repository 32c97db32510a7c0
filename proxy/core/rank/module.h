/* module.h: a rank's modules and their functions (module.c). */
#ifndef RANKFOLD_MODULE_H
#define RANKFOLD_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "rank/table.h"

struct hal_function;
struct proxy_function;
struct rank;

struct module {
	struct object o;
	uint8_t *image; /* while it arrives */
	uint64_t image_bytes, image_room;
	bool loading, loaded; /* requested; answered */
	bool doomed;          /* unloaded: goes when nothing uses it */
	uint32_t uses;        /* queued kernels and open questions, also its functions' */
	char hash[65];
	uint64_t globals_bytes, globals_addr;
	uint8_t *globals_image;
	uint32_t function_count, global_count;
	char *function_names, *global_names; /* zero-terminated, one after another */
	uint64_t *global_offsets, *global_sizes;
};

/* What a kernel does with the memory that a parameter points to. */
enum param_use { PARAM_READ = 1, PARAM_WRITTEN = 2 };

struct function {
	struct object o;
	struct module *module;
	const struct hal_function *hal; /* NULL until compiled */
	int error;                      /* of a compilation after a restore */
	uint32_t param_bytes, max_threads, static_shared_bytes;
	/* Known while it is compiled, and requested again after a restore: */
	uint32_t param_count;
	struct rf_param *params; /* where each lies in a launch's parameters */
	uint8_t *uses;           /* enum param_use of each; NULL: not known, it may be any */
	char *name;
};

/* It is compiled. CUresult: host memory is short, or a parameter lies behind the last one's end. */
int function_fill(struct function *, const struct proxy_function *, const uint32_t *params);
void function_free(struct function *);

void module_unload(struct rank *, struct module *);
void module_release(struct rank *, struct module *); /* one use has ended; may free it */
void module_free(struct module *);

#endif
