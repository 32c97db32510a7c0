/* image.c: the kind and the length of a module's image: a fatbin, PTX, or machine code. The proxy
 * reads their contents, and decides whether its device can run them.
 */
#include <elf.h>
#include <string.h>

#include "module.h"

#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u
#define WRAPPER_LINKED 2u /* version of a wrapper for linked device code */
#define ELF_MAGIC 0x464c457fu
#define ENTRY_PTX 1

struct fatbin_wrapper {
	uint32_t magic, version;
	const void *data;
	const void *const *linked; /* version 2: the fatbins of its objects, then NULL */
};
struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes;
};
struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes;
};

uint64_t image_fatbin_bytes(const void *image)
{
	struct fatbin_header header;
	memcpy(&header, image, sizeof header);
	return header.header_bytes + header.bytes;
}

uint64_t image_padding(uint64_t bytes) { return -bytes % IMAGE_ALIGNMENT; }

/* Whether a fatbin has PTX. */
static bool has_ptx(const void *image)
{
	struct fatbin_header header;
	struct fatbin_entry entry;
	uint64_t end = image_fatbin_bytes(image);
	memcpy(&header, image, sizeof header);
	for (uint64_t at = header.header_bytes; at + sizeof entry <= end;
	     at += entry.header_bytes + entry.bytes) {
		memcpy(&entry, (const uint8_t *)image + at, sizeof entry);
		if (entry.kind == ENTRY_PTX)
			return true;
		if (!entry.header_bytes)
			return false;
	}
	return false;
}

/* The image of a program whose device code was linked (nvcc -rdc=true) is machine code. The proxy
 * links the PTX of its objects instead, if they have PTX. */
static bool measure_linked(struct module *m, const void *const *fatbins)
{
	bool ptx = false;
	for (const void *const *fatbin = fatbins; *fatbin; fatbin++)
		ptx |= has_ptx(*fatbin);
	if (!ptx)
		return false;
	m->linked = fatbins;
	m->kind = RF_IMAGE_FATBIN;
	for (; *fatbins; fatbins++) {
		uint64_t bytes = image_fatbin_bytes(*fatbins);
		m->bytes += bytes + image_padding(bytes);
	}
	return true;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The end of what an ELF file's header and its list of sections name. */
static uint64_t elf_bytes(const void *image)
{
	Elf64_Ehdr header;
	memcpy(&header, image, sizeof header);
	uint64_t end = sizeof header;
	end = larger(end, header.e_phoff + (uint64_t)header.e_phnum * sizeof(Elf64_Phdr));
	end = larger(end, header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr));
	for (uint32_t n = 0; n < header.e_shnum; n++) {
		Elf64_Shdr section;
		memcpy(&section, (const uint8_t *)image + header.e_shoff + n * sizeof section,
		       sizeof section);
		if (section.sh_type != SHT_NOBITS)
			end = larger(end, section.sh_offset + section.sh_size);
	}
	return end;
}

int image_measure(const void *image, struct module *m)
{
	struct fatbin_wrapper wrapper = {0};
	uint32_t magic;
	if (!image)
		return INVALID_VALUE;
	memcpy(&magic, image, sizeof magic);
	if (magic == WRAPPER_MAGIC) {
		memcpy(&wrapper, image, sizeof wrapper);
		image = wrapper.data;
		memcpy(&magic, image, sizeof magic);
	}
	m->image = image;
	if (wrapper.version == WRAPPER_LINKED && wrapper.linked && wrapper.linked[0] &&
	    measure_linked(m, wrapper.linked))
		return CUDA_OK;
	if (magic == FATBIN_MAGIC) {
		m->kind = RF_IMAGE_FATBIN;
		m->bytes = image_fatbin_bytes(image);
		return CUDA_OK;
	}
	if (magic == ELF_MAGIC) {
		m->kind = RF_IMAGE_ELF;
		m->bytes = elf_bytes(image);
		return CUDA_OK;
	}
	m->kind = RF_IMAGE_PTX;
	m->bytes = strlen(image);
	if (!strncmp(image, RF_LIBRARY_TEXT, strlen(RF_LIBRARY_TEXT))) {
		m->kind = RF_IMAGE_LIBRARY;
		return CUDA_OK;
	}
	if (strstr(image, ".version"))
		return CUDA_OK;
	LOG_ONCE("a module is neither a fatbin nor PTX, so it cannot be loaded");
	return INVALID_IMAGE;
}
