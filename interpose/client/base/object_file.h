/* object_file.h: the file of an object that the dynamic linker has loaded. */
#ifndef RANKFOLD_OBJECT_FILE_H
#define RANKFOLD_OBJECT_FILE_H

#include <elf.h>
#include <link.h>

#include "base.h"

struct object_file {
	const char *path; /* for people */
	const uint8_t *bytes;
	size_t length;
	uintptr_t base; /* what the loader added to the file's addresses */
	int fd;
	const ElfW(Sym) * symbols; /* from .symtab, which is not loaded */
	size_t symbol_count;
	const char *names;
	size_t names_length;
};

/* True if the object refers to a function `name` of another object. Reads only what is loaded. */
bool object_refers_to(const struct link_map *, const char *name);
/* Maps the file of the object whose first byte is loaded at `start`. False: there is no such file,
 * it is not what was loaded, or it has no symbol table. */
bool object_file_open(struct object_file *, const struct link_map *, const void *start);
void object_file_close(struct object_file *);
/* The name of a function that the object defines; NULL: the symbol is something else. */
const char *object_function(const struct object_file *, const ElfW(Sym) *);

/* A jump from one function to another, which replaces the first bytes of the former. */
#define JUMP_BYTES 16
struct jump {
	uint8_t *at;
	const void *to;
};
/* Writes the jumps, sorted by address, into the object's code. No thread sees a page that is not
 * executable, or that can be both written and executed. Returns NULL, or the reason why nothing was
 * written. */
const char *object_write_jumps(const struct object_file *, const struct jump *, size_t count);

#endif
