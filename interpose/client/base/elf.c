/* elf.c: finds libc's own functions of those names that this library replaces (dlsym, syscall, …).
 *
 * This library defines those names, and every look-up that libc offers finds ours: even a request
 * for one of the versions that libc's has is satisfied by ours, which has none. So this file reads
 * libc's dynamic symbol table itself, as the dynamic linker does. It takes no lock and calls no
 * function: a sanitizer's runtime finds the functions that it replaces (such as dl_iterate_phdr)
 * through our dlsym, and crashes in any of them that is called earlier. libc is loaded before any
 * code runs and never unloaded, so the list of objects can be read up to libc at any time.
 */
#include <elf.h>
#include <link.h>

#include "base.h"

static uint32_t hash_of(const char *name)
{
	uint32_t h = 5381;
	for (; *name; name++)
		h = h * 33 + (unsigned char)*name;
	return h;
}

struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *hash;        /* DT_GNU_HASH */
	const ElfW(Versym) * hidden; /* DT_VERSYM */
};

#define HIDDEN 0x8000 /* a version that programs are no longer linked to */

/* glibc's dynamic linker has made these addresses absolute. */
static struct tables tables_of(const ElfW(Dyn) * d)
{
	struct tables t = {0};
	for (; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			t.symbols = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			t.strings = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_GNU_HASH)
			t.hash = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_VERSYM)
			t.hidden = (const void *)d->d_un.d_ptr;
	}
	return t;
}

static bool equal_strings(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static const ElfW(Sym) * find(const struct tables *t, const char *name)
{
	uint32_t bucket_count = t->hash[0], first = t->hash[1], bloom_words = t->hash[2];
	const uint32_t *buckets = t->hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chains = buckets + bucket_count;
	uint32_t hash = hash_of(name), i = bucket_count ? buckets[hash % bucket_count] : 0;
	for (; i >= first && i; i++) {
		uint32_t other = chains[i - first];
		const ElfW(Sym) *s = &t->symbols[i];
		if ((other | 1) == (hash | 1) && equal_strings(t->strings + s->st_name, name) &&
		    s->st_shndx != SHN_UNDEF && !(t->hidden && t->hidden[i] & HIDDEN))
			return s;
		if (other & 1)
			break;
	}
	return NULL;
}

static bool is_libc(const char *path)
{
	const char *base = path;
	for (const char *c = path; *c; c++)
		base = *c == '/' ? c + 1 : base;
	return equal_strings(base, "libc.so.6") || equal_strings(base, "libdl.so.2") ||
	       equal_strings(base, "librt.so.1");
}

void *libc_function(const char *name)
{
	for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next) {
		if (!is_libc(object->l_name))
			continue;
		struct tables t = tables_of(object->l_ld);
		const ElfW(Sym) *s = t.symbols && t.strings && t.hash ? find(&t, name) : NULL;
		if (s)
			return (void *)(object->l_addr + s->st_value);
	}
	return NULL;
}

void *libc_cached(void *_Atomic *cached, const char *name)
{
	void *f = atomic_load_explicit(cached, memory_order_relaxed);
	if (!f)
		atomic_store(cached, f = libc_function(name));
	return f;
}
