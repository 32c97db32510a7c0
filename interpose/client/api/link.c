/* link.c: the driver's linker. Inputs are PTX texts; the image is a fatbin with all of them, which
 * the proxy links and compiles when it is loaded. Machine code, LTO-IR and archives are refused.
 *
 * A state lives from its creation to its destruction; LINK_LOCK protects the list of live states
 * and their content. No channel, no device; errno is preserved.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bodies.h"

enum { INPUT_PTX = 1 };

enum { FATBIN_MAGIC = 0xba55ed50, ENTRY_PTX = 1, ENTRY_VERSION = 0x101, ALIGNMENT = 8 };

struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* of the entries */
};
struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes; /* of the text, padded */
	uint32_t unused[3];
	uint32_t arch; /* 0: of an input of the linker (ARCH_LINKED of fatbin.py) */
	uint32_t unused_too[8];
};
_Static_assert(sizeof(struct fatbin_header) == 16 && sizeof(struct fatbin_entry) == 64, "fatbin");

struct link {
	struct link *next;
	uint8_t *image; /* a fatbin; NULL: no input yet */
	size_t bytes;
};

static struct link *links;

/* Under LINK_LOCK: the link to the state in the list; NULL: no live state. */
static struct link **link_place(const void *state)
{
	for (struct link **place = &links; *place; place = &(*place)->next)
		if (*place == state)
			return place;
	return NULL;
}

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
			 CUlinkState *stateOut)
{
	if (!stateOut || (numOptions && (!options || !optionValues)))
		return INVALID_VALUE;
	int saved_errno = errno;
	struct link *link = calloc(1, sizeof *link);
	errno = saved_errno;
	if (!link)
		return OUT_OF_MEMORY;
	fill_logs(CUDA_OK, numOptions, options, optionValues); /* later calls write no logs */
	lock(LINK_LOCK);
	link->next = links;
	links = link;
	unlock(LINK_LOCK);
	*stateOut = link;
	return CUDA_OK;
}

/* Under LINK_LOCK. */
static int append_text(struct link *link, const char *text, size_t bytes)
{
	if (!memmem(text, bytes, ".version", 8))
		return INVALID_IMAGE;
	size_t first = link->bytes ? link->bytes : sizeof(struct fatbin_header);
	size_t padded = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT; /* at least one zero byte */
	struct fatbin_entry entry = {.kind = ENTRY_PTX,
				     .version = ENTRY_VERSION,
				     .header_bytes = sizeof entry,
				     .bytes = padded};
	uint8_t *more = realloc(link->image, first + sizeof entry + padded);
	if (!more)
		return OUT_OF_MEMORY;
	memcpy(more + first, &entry, sizeof entry);
	memcpy(more + first + sizeof entry, text, bytes);
	memset(more + first + sizeof entry + bytes, 0, padded - bytes);
	link->image = more;
	link->bytes = first + sizeof entry + padded;
	return CUDA_OK;
}

/* Under LINK_LOCK. */
static void write_header(const struct link *link)
{
	struct fatbin_header header = {.magic = FATBIN_MAGIC,
				       .version = 1,
				       .header_bytes = sizeof header,
				       .bytes = link->bytes - sizeof header};
	memcpy(link->image, &header, sizeof header);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
			  const char *name, unsigned int numOptions, CUjit_option *options,
			  void **optionValues)
{
	(void)name, (void)numOptions, (void)options, (void)optionValues;
	if (!data || !size)
		return INVALID_VALUE;
	if (type != INPUT_PTX) {
		LOG_ONCE("cuLinkAddData: only PTX can be linked (input type %d was given)", type);
		return NOT_SUPPORTED;
	}
	int saved_errno = errno;
	lock(LINK_LOCK);
	struct link **place = link_place(state);
	int error = place ? append_text(*place, data, strnlen(data, size)) : INVALID_HANDLE;
	unlock(LINK_LOCK);
	errno = saved_errno;
	return error;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
			  unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	size_t bytes;
	if (!path)
		return INVALID_VALUE;
	char *content = file_content(path, &bytes);
	if (!content)
		return FILE_NOT_FOUND;
	int error = cuLinkAddData_v2(state, type, content, bytes, path, numOptions, options,
				     optionValues);
	free(content);
	return error;
}

/* The image belongs to the state. */
CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	if (!cubinOut)
		return INVALID_VALUE;
	lock(LINK_LOCK);
	struct link **place = link_place(state);
	int error = !place ? INVALID_HANDLE : (*place)->bytes ? CUDA_OK : INVALID_IMAGE;
	if (!error) {
		write_header(*place);
		*cubinOut = (*place)->image;
		if (sizeOut)
			*sizeOut = (*place)->bytes;
	}
	unlock(LINK_LOCK);
	return error;
}

CUresult cuLinkDestroy(CUlinkState state)
{
	lock(LINK_LOCK);
	struct link **place = link_place(state), *link = place ? *place : NULL;
	if (link)
		*place = link->next;
	unlock(LINK_LOCK);
	if (!link)
		return INVALID_HANDLE;
	free(link->image);
	free(link);
	return CUDA_OK;
}
