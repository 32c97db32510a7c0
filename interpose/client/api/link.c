/* link.c: the driver's linker. Inputs are PTX texts; the image is one PTX text of all of them,
 * which is compiled when it is loaded. Machine code, LTO-IR and archives are refused.
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

struct link {
	struct link *next;
	char *text; /* ends with a zero byte */
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
	int kept = errno;
	struct link *link = calloc(1, sizeof *link);
	errno = kept;
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

/* Skips a later module's own .version, .target and .address_size: one text has them only once. */
static const char *past_header(const char *text, const char *end)
{
	static const char last[] = ".address_size";
	const char *found = memmem(text, (size_t)(end - text), last, sizeof last - 1);
	const char *line = found ? memchr(found, '\n', (size_t)(end - found)) : NULL;
	return line ? line : text;
}

/* Under LINK_LOCK. */
static int append(struct link *link, const char *text, size_t bytes)
{
	const char *end = text + bytes;
	if (!memmem(text, bytes, ".version", 8))
		return INVALID_IMAGE;
	if (link->bytes)
		text = past_header(text, end);
	size_t added = (size_t)(end - text);
	char *more = realloc(link->text, link->bytes + added + 2);
	if (!more)
		return OUT_OF_MEMORY;
	memcpy(more + link->bytes, text, added);
	link->text = more;
	link->bytes += added;
	memcpy(more + link->bytes, "\n", 2);
	link->bytes++;
	return CUDA_OK;
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
	int kept = errno;
	lock(LINK_LOCK);
	struct link **place = link_place(state);
	int error = place ? append(*place, data, strnlen(data, size)) : INVALID_HANDLE;
	unlock(LINK_LOCK);
	errno = kept;
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
		*cubinOut = (*place)->text;
		if (sizeOut)
			*sizeOut = (*place)->bytes + 1; /* includes the zero byte that ends PTX */
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
	free(link->text);
	free(link);
	return CUDA_OK;
}
