/* module.h: a rank's modules and their functions (module.c). */
#ifndef RANKFOLD_MODULE_H
#define RANKFOLD_MODULE_H

#define MODULE_BYTES_MAX (1ull << 30) /* of the images of one rank that are on their way */

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "rank/table.h"
#include "versions/digest.h"

struct hal_function;
struct proxy_access;
struct proxy_function;
struct rank;
struct reaches;

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

struct function {
	struct object o;
	struct module *module;
	const struct hal_function *hal; /* NULL until compiled */
	int error;                      /* of a compilation after a restore */
	uint32_t param_bytes, max_threads, static_shared_bytes;
	/* Known while it is compiled, and requested again after a restore: */
	uint32_t param_count;
	struct rf_param *params; /* where each lies in a launch's parameters */
	/* What it reads and writes (proxy.h); not closed: anything. */
	bool closed, hidden;     /* hidden: it may be found out (opaque/opaque.h) */
	struct version identity; /* of the code, on every device */
	uint32_t word_count, variable_count;
	struct proxy_access *words, *variables;
	struct reaches *reaches; /* how far from its words it goes */
	char *why_open;          /* NULL: closed, or not compiled */
	char *name;
};

/* It is compiled. CUresult: host memory is short, or what it says lies behind the
 * parameters' or the globals' end. */
int function_fill(struct function *, const struct proxy_function *, const uint32_t *params);
/* Nothing is said of it, as of machine code, if it says all of it. */
void function_hide(struct function *);
void function_free(struct function *);

struct function *function_new(uint64_t id, struct module *, const char *name, uint32_t bytes);
/* Of what it was elsewhere: launches are checked before it is compiled again. */
void function_from(struct function *, uint32_t param_bytes, uint32_t max_threads,
		   uint32_t static_shared_bytes);
void function_refuse(struct function *, int error); /* it could not be compiled */

struct module *module_new(struct rank *, uint64_t id); /* NULL: no such handle, or no memory */
/* In no table yet. NULL: host memory is short. */
struct module *module_restored(uint64_t id, const char *hash, uint64_t globals_addr,
			       const void *image, uint64_t image_bytes);
/* More of its image. CUresult: it is not the next part, is too much, or host memory is short. */
int module_append(struct rank *, struct module *, uint64_t offset, const uint8_t *, uint64_t bytes);
void module_arrives(struct rank *, const struct module *); /* restored, with its image so far */
void module_ask(struct module *);                          /* it is to be loaded; a use of it */
void module_place(struct module *, uint64_t globals_addr);
/* The answer: what it has, or CUresult. Returns that, or that host memory is short. */
struct module_contents {
	const char *hash;
	uint64_t globals_bytes;
	const uint8_t *globals;
	uint32_t function_count, global_count;
	const char *function_names, *global_names;
	const uint64_t *global_offsets, *global_sizes;
};
int module_answered(struct rank *, struct module *, int error, const struct module_contents *);
void module_use(struct module *); /* until module_release */
void module_unload(struct rank *, struct module *);
void module_release(struct rank *, struct module *); /* one use has ended; may free it */
void module_free(struct module *);

#endif
