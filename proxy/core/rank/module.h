/* module.h: a rank's modules and their functions (module.c). */
#ifndef RANKFOLD_MODULE_H
#define RANKFOLD_MODULE_H

#define MODULE_BYTES_MAX (1ull << 30) /* of the images of one rank that are arriving */

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
	uint64_t image_bytes, image_capacity;
	bool loading, loaded; /* requested; answered */
	bool doomed;          /* unloaded: freed when nothing uses it */
	uint32_t uses;        /* queued kernels and open requests, including those of its
			       * functions */
	char hash[65];
	uint64_t globals_bytes, globals_addr;
	uint64_t globals_number; /* in this process; never reused */
	bool globals_known;      /* the program got the address of one of them */
	uint8_t *globals_image;
	uint32_t function_count, global_count;
	uint32_t managed_count;              /* the host, too, accesses the first globals */
	char *function_names, *global_names; /* zero-terminated, one after another */
	uint64_t *global_offsets, *global_sizes;
};

struct function {
	struct object o;
	struct module *module;
	const struct hal_function *hal; /* NULL until compiled */
	int error;                      /* of a compilation after a restore */
	uint32_t param_bytes, max_threads, static_shared_bytes;
	/* Set when it is compiled, and requested again after a restore: */
	uint32_t param_count;
	struct rf_param *params; /* offset and size of each in a launch's parameters */
	/* The ranges that it reads and writes (proxy.h); not closed: anything. */
	bool closed, opaque;     /* opaque: opaque, may be measured (opaque/opaque.h) */
	struct version identity; /* of the code, the same on every device */
	uint32_t word_count, variable_count;
	struct proxy_access *words, *variables;
	struct reaches *reaches; /* how far from its words it reads and writes */
	char *why_open;          /* NULL: closed, or not compiled */
	char *why_refused;       /* with `error`, for people; NULL: no reason is known */
	char *name;
};

/* Sets what compilation found. CUresult: CU_OUT_OF_MEMORY, or CU_INVALID_IMAGE if something is
 * beyond the end of the parameters or globals. */
int function_fill(struct function *, const struct proxy_function *, const uint32_t *params);
const char *function_unfit(int error); /* the reason of that error, for people */
/* Makes a closed function opaque, as if it were machine code. An open one stays open. */
void function_hide(struct function *);
void function_free(struct function *);

struct function *function_new(uint64_t id, struct module *, const char *name, uint32_t bytes);
/* Sets what was known before the restore: launches are checked before it is compiled again. */
void function_from(struct function *, uint32_t param_bytes, uint32_t max_threads,
		   uint32_t static_shared_bytes);
void function_refuse(struct function *, int error, const char *why); /* compilation failed */

struct module *module_new(struct rank *, uint64_t id); /* NULL: bad handle, or no memory */
/* Not in a table yet. NULL: host memory is short. */
struct module *module_restored(uint64_t id, const char *hash, uint64_t globals_addr,
			       const void *image, uint64_t image_bytes);
/* Appends to its image. CUresult: CU_INVALID_VALUE if this is not the next part, or too much;
 * CU_OUT_OF_MEMORY. */
int module_append(struct rank *, struct module *, uint64_t offset, const uint8_t *, uint64_t bytes);
void module_arrives(struct rank *, const struct module *); /* restored, with its image so far */
void module_request(struct module *);                      /* loading was requested: a use */
void module_place(struct module *, uint64_t globals_addr);
/* Python's answer: its contents, or a CUresult. Returns that error, or CU_OUT_OF_MEMORY. */
struct module_contents {
	const char *hash;
	uint64_t globals_bytes;
	const uint8_t *globals;
	uint32_t function_count, global_count, managed_count;
	const char *function_names, *global_names;
	const uint64_t *global_offsets, *global_sizes;
};
int module_answered(struct rank *, struct module *, int error, const struct module_contents *);
void module_use(struct module *); /* until module_release */
void module_unload(struct rank *, struct module *);
void module_release(struct rank *, struct module *); /* ends a use; may free it */
void module_free(struct module *);

#endif
