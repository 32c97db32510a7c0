/* object_file.c: reads the file of a loaded object, and writes jumps into the object's code.
 *
 * Runs while the dynamic linker initialises the object, under the linker's lock and perhaps before
 * a sanitizer's runtime is ready. So what is called for every object (object_refers_to) reads
 * memory only, and calls nothing. errno may change.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "object_file.h"

static bool equal_strings(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* ---- what is loaded ---- */

struct references {
	const ElfW(Sym) * symbols;
	const char *strings;
	const ElfW(Rela) * data, *calls; /* DT_RELA without relative ones; DT_JMPREL */
	size_t data_bytes, call_bytes, relative_count;
};

static struct references references_of(const ElfW(Dyn) * d)
{
	struct references r = {0};
	for (; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB: r.symbols = (const void *)d->d_un.d_ptr; break;
		case DT_STRTAB: r.strings = (const void *)d->d_un.d_ptr; break;
		case DT_RELA: r.data = (const void *)d->d_un.d_ptr; break;
		case DT_RELASZ: r.data_bytes = d->d_un.d_val; break;
		case DT_RELACOUNT: r.relative_count = d->d_un.d_val; break;
		case DT_JMPREL: r.calls = (const void *)d->d_un.d_ptr; break;
		case DT_PLTRELSZ: r.call_bytes = d->d_un.d_val; break;
		}
	}
	return r;
}

static bool names_one(const struct references *r, const ElfW(Rela) * list, size_t from,
		      size_t bytes, const char *name)
{
	for (size_t i = from; list && i < bytes / sizeof *list; i++) {
		size_t symbol = ELF64_R_SYM(list[i].r_info);
		if (symbol && equal_strings(r->strings + r->symbols[symbol].st_name, name))
			return true;
	}
	return false;
}

bool object_refers_to(const struct link_map *object, const char *name)
{
	struct references r = references_of(object->l_ld);
	return r.symbols && r.strings &&
	       (names_one(&r, r.calls, 0, r.call_bytes, name) ||
		names_one(&r, r.data, r.relative_count, r.data_bytes, name));
}

/* ---- its file ---- */

static bool in_file(const struct object_file *f, uint64_t offset, uint64_t bytes)
{
	return offset <= f->length && bytes <= f->length - offset;
}

static const ElfW(Ehdr) * header_of(const struct object_file *f)
{
	return (const ElfW(Ehdr) *)f->bytes;
}

static const ElfW(Phdr) * segments_of(const struct object_file *f)
{
	return (const ElfW(Phdr) *)(f->bytes + header_of(f)->e_phoff);
}

static bool is_loaded(const struct object_file *f, const ElfW(Phdr) * part)
{
	const ElfW(Phdr) *p = segments_of(f);
	for (int i = 0; i < header_of(f)->e_phnum; i++)
		if (p[i].p_type == PT_LOAD && part->p_offset >= p[i].p_offset &&
		    part->p_filesz <= p[i].p_filesz &&
		    part->p_offset - p[i].p_offset == part->p_vaddr - p[i].p_vaddr &&
		    part->p_offset - p[i].p_offset <= p[i].p_filesz - part->p_filesz)
			return true;
	return false;
}

/* Compares the headers, which include the addresses and sizes of all segments, and the build ID if
 * there is one: a file may have been replaced since it was loaded. */
static bool is_what_was_loaded(const struct object_file *f, const uint8_t *start)
{
	const ElfW(Ehdr) *e = header_of(f);
	if (f->length < sizeof *e || memcmp(f->bytes, ELFMAG, SELFMAG) ||
	    e->e_phentsize != sizeof(ElfW(Phdr)) ||
	    !in_file(f, e->e_phoff, e->e_phnum * sizeof(ElfW(Phdr))) ||
	    memcmp(f->bytes, start, sizeof *e))
		return false;
	const ElfW(Phdr) *p = segments_of(f);
	bool headers_loaded = false;
	for (int i = 0; i < e->e_phnum; i++)
		headers_loaded |= p[i].p_type == PT_LOAD && !p[i].p_offset &&
				  p[i].p_filesz >= e->e_phoff + e->e_phnum * sizeof *p;
	if (!headers_loaded || memcmp(p, start + e->e_phoff, e->e_phnum * sizeof *p))
		return false;
	for (int i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_NOTE && in_file(f, p[i].p_offset, p[i].p_filesz) &&
		    is_loaded(f, &p[i]) &&
		    memcmp(f->bytes + p[i].p_offset, (const void *)(f->base + p[i].p_vaddr),
			   p[i].p_filesz))
			return false;
	return true;
}

static bool find_symbols(struct object_file *f)
{
	const ElfW(Ehdr) *e = header_of(f);
	if (!e->e_shoff || e->e_shentsize != sizeof(ElfW(Shdr)) ||
	    !in_file(f, e->e_shoff, e->e_shnum * sizeof(ElfW(Shdr))))
		return false;
	const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(f->bytes + e->e_shoff);
	for (int i = 0; i < e->e_shnum; i++) {
		const ElfW(Shdr) *s = &sections[i];
		if (s->sh_type != SHT_SYMTAB || s->sh_link >= e->e_shnum ||
		    !in_file(f, s->sh_offset, s->sh_size))
			continue;
		const ElfW(Shdr) *names = &sections[s->sh_link];
		if (!in_file(f, names->sh_offset, names->sh_size) || !names->sh_size ||
		    f->bytes[names->sh_offset + names->sh_size - 1])
			continue;
		f->symbols = (const ElfW(Sym) *)(f->bytes + s->sh_offset);
		f->symbol_count = s->sh_size / sizeof *f->symbols;
		f->names = (const char *)f->bytes + names->sh_offset;
		f->names_length = names->sh_size;
		return true;
	}
	return false;
}

static bool open_path(struct object_file *f, const char *path, const void *start)
{
	struct stat about;
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0)
		return false;
	void *bytes = MAP_FAILED;
	if (!fstat(f->fd, &about) && about.st_size > 0) {
		f->length = (size_t)about.st_size;
		bytes = mmap(NULL, f->length, PROT_READ, MAP_PRIVATE, f->fd, 0);
	}
	f->bytes = bytes == MAP_FAILED ? NULL : bytes;
	if (f->bytes && is_what_was_loaded(f, start) && find_symbols(f))
		return true;
	object_file_close(f);
	return false;
}

bool object_file_open(struct object_file *f, const struct link_map *object, const void *start)
{
	Dl_info about;
	bool program = !object->l_name[0];
	*f = (struct object_file){.path = program ? "the program" : object->l_name,
				  .base = object->l_addr};
	if (!program)
		return open_path(f, object->l_name, start);
	/* Where the program was started as an argument of the dynamic linker, that is the process's
	 * executable, and the linker has the program's path. */
	return open_path(f, "/proc/self/exe", start) ||
	       (dladdr(start, &about) && open_path(f, about.dli_fname, start));
}

void object_file_close(struct object_file *f)
{
	if (f->bytes)
		munmap((void *)f->bytes, f->length);
	close(f->fd);
}

const char *object_function(const struct object_file *f, const ElfW(Sym) * s)
{
	bool defined = ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_shndx != SHN_UNDEF &&
		       s->st_shndx < SHN_LORESERVE;
	return defined && s->st_name < f->names_length ? f->names + s->st_name : NULL;
}

/* ---- its code ---- */

#ifdef __x86_64__

/* endbr64, for programs that check targets of indirect calls; movabs $to, %rax; jmp *%rax. No
 * function of the API has a variable number of arguments, so %rax is free. */
static void write_jump(uint8_t *at, const void *to)
{
	static const uint8_t code[JUMP_BYTES] = {0xf3, 0x0f, 0x1e,        0xfa,
						 0x48, 0xb8, [14] = 0xff, 0xe0};
	memcpy(at, code, sizeof code);
	memcpy(at + 6, &to, sizeof to);
}

/* The segment of code with all these bytes of memory. */
static const ElfW(Phdr) *
	segment_with(const struct object_file *f, const uint8_t *from, const uint8_t *to)
{
	const ElfW(Phdr) *p = segments_of(f);
	for (int i = 0; i < header_of(f)->e_phnum; i++) {
		const uint8_t *begin = (const uint8_t *)(f->base + p[i].p_vaddr);
		if (p[i].p_type == PT_LOAD && p[i].p_flags & PF_X && from >= begin &&
		    to <= begin + p[i].p_filesz)
			return &p[i];
	}
	return NULL;
}

/* A changed copy of the pages takes their place in one step, because other threads may run code of
 * the same pages: an allocator of the program, for example, in a thread of a library. The copy is a
 * mapping of the same file, as the pages were. */
const char *object_write_jumps(const struct object_file *f, const struct jump *jumps, size_t count)
{
	const uint8_t *last = jumps[count - 1].at + JUMP_BYTES;
	const ElfW(Phdr) *segment = segment_with(f, jumps[0].at, last);
	if (!segment)
		return "its code is not in one segment";
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	uint8_t *begin = (uint8_t *)((uintptr_t)jumps[0].at & ~page);
	size_t bytes = (((uintptr_t)last + page) & ~page) - (uintptr_t)begin;
	off_t offset = (off_t)(segment->p_offset + (uintptr_t)begin - (f->base + segment->p_vaddr));
	int protection = (segment->p_flags & PF_R ? PROT_READ : 0) |
			 (segment->p_flags & PF_W ? PROT_WRITE : 0) | PROT_EXEC;
	uint8_t *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, f->fd, offset);
	if (copy == MAP_FAILED)
		return strerror(errno);
	memcpy(copy, begin, bytes); /* not the file's content, where the loader has relocated it */
	for (size_t i = 0; i < count; i++)
		write_jump(copy + (jumps[i].at - begin), jumps[i].to);
	if (mprotect(copy, bytes, protection) ||
	    mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
		const char *why = strerror(errno);
		munmap(copy, bytes);
		return why;
	}
	return NULL;
}

#else

const char *object_write_jumps(const struct object_file *f, const struct jump *jumps, size_t count)
{
	(void)f, (void)jumps, (void)count;
	return "rankfold does so on x86-64 only";
}

#endif
