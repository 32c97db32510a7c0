/* lookup.c: looks functions up: dlsym, dlvsym, dlopen, cuGetProcAddress and the runtime's form of
 * it.
 *
 * A program that looks functions up must get ours, whatever library its handle refers to: some
 * programs have a search path that finds NVIDIA's own library before ours. All other look-ups are
 * passed on unchanged, by tail calls, because libc inspects the caller (RTLD_NEXT, $ORIGIN). No
 * lock; errno and dlerror are libc's.
 */
#pragma GCC optimize("O2") /* for the tail calls, in every build */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "bodies.h"

#define PER_THREAD_STREAM 2ull /* flag of cuGetProcAddress and cudaGetDriverEntryPoint */
#define LEGACY_STREAM 1ull

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlopen_function)(const char *, int);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

/* All versions of all libraries, in the order of the table: the newest of a library first. */
static const struct version {
	const char *soname;
	const struct api_entry *table;
	const size_t *count;
} versions[] = {
#define RF_SONAME(name, cuda, soname) {soname, api_##name##_##cuda, &api_##name##_##cuda##_count},
#include "../../api/libraries.def"
};
static const struct library {
	const char *prefixes; /* words */
	const struct api_entry *table;
	const size_t *count;
} libraries[] = {
#define RF_LIBRARY(name, header, versioned, prefixes) {prefixes, api_##name, &api_##name##_count},
#include "../../api/libraries.def"
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- tables ---- */

const struct api_entry *api_find_in(const struct api_entry *table, size_t count, const char *name)
{
	size_t low = 0, high = count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(name, table[middle].name);
		if (!order)
			return &table[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* The number of the name's first bytes that are one of the prefixes: the longest one. */
static size_t prefix_length(const char *prefixes, const char *name)
{
	size_t longest = 0;
	for (size_t n; *prefixes; prefixes += n + (prefixes[n] == ' ')) {
		n = strcspn(prefixes, " ");
		if (n > longest && !strncmp(name, prefixes, n))
			longest = n;
	}
	return longest;
}

const struct api_entry *api_find(const char *name)
{
	const struct library *found = NULL;
	size_t longest = 0;
	for (size_t i = 0; i < COUNT(libraries); i++) {
		size_t n = prefix_length(libraries[i].prefixes, name);
		if (n > longest) {
			longest = n;
			found = &libraries[i];
		}
	}
	return found ? api_find_in(found->table, *found->count, name) : NULL;
}

/* Finds a name with one version suffix (_v2, …), with or without the suffix for per-thread
 * streams. */
static const struct api_entry *driver_form(const char *name, const char *form, bool per_thread)
{
	static const char *const suffixes[] = {"", "_ptsz", "_ptds"};
	const struct api_entry *found = NULL;
	char full[128];
	for (size_t i = 0; i < (per_thread ? 3 : 1); i++) {
		int n = snprintf(full, sizeof full, "%s%s%s", name, form, suffixes[i]);
		const struct api_entry *e = n > 0 && (size_t)n < sizeof full
						    ? api_find_in(api_cuda, api_cuda_count, full)
						    : NULL;
		found = e ? e : found;
	}
	return found;
}

/* Finds the newest form that is not newer than the version for which the caller was compiled.
 * *too_new: only newer ones exist. */
static const struct api_entry *driver_entry(const char *name, int version, bool per_thread,
					    bool *too_new)
{
	static const char *const forms[] = {"_v4", "_v3", "_v2", ""};
	const struct api_entry *best = NULL;
	bool any = false;
	if (!strcmp(name, "cuGraphInstantiate") && version >= 12000)
		name = "cuGraphInstantiateWithFlags"; /* the one name whose meaning changed */
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		const struct api_entry *e = driver_form(name, forms[i], per_thread);
		any |= e != NULL;
		if (e && e->since <= (uint32_t)version && (!best || e->since > best->since))
			best = e;
	}
	*too_new = any && !best;
	return best;
}

int entry_point(const char *symbol, void **function, int version, unsigned long long flags,
		int *status)
{
	if (!symbol || !function || flags & ~(PER_THREAD_STREAM | LEGACY_STREAM))
		return INVALID_VALUE;
	bool per_thread = flags & PER_THREAD_STREAM ||
			  (!flags && default_stream == RF_STREAM_PER_THREAD);
	bool too_new;
	const struct api_entry *e = driver_entry(symbol, version, per_thread, &too_new);
	*function = e ? e->function : NULL;
	if (status)
		*status = e ? 0 : too_new ? 2 : 1; /* success, version not sufficient, not found */
	return e || status ? CUDA_OK : NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	return entry_point(symbol, pfn, cudaVersion, flags, symbolStatus);
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return entry_point(symbol, pfn, cudaVersion, flags, NULL);
}

/* ---- libc's look-ups ---- */

static dlsym_function libc_dlsym(void)
{
	static void *_Atomic cached;
	return (dlsym_function)libc_cached(&cached, "dlsym");
}

static dlvsym_function libc_dlvsym(void)
{
	static void *_Atomic cached;
	return (dlvsym_function)libc_cached(&cached, "dlvsym");
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* The length of a library's name without its version: libcudart.so. */
static size_t link_length(const char *soname) { return strstr(soname, ".so") + 3 - soname; }

/* The length of its name with the major version only: libcudart.so.11 of libcudart.so.11.0. */
static size_t major_length(const char *soname)
{
	size_t link = link_length(soname) + 1;
	return link + strcspn(soname + link, ".");
}

static bool has_soname(const char *file, const char *soname, size_t bytes)
{
	return !strncmp(file, soname, bytes) && (!file[bytes] || file[bytes] == '.');
}

/* The version of one of our libraries that has this SONAME, or this name without a version. */
static const struct version *version_named(const char *path)
{
	const char *base = base_name(path);
	for (size_t i = 0; i < COUNT(versions); i++) {
		size_t link = link_length(versions[i].soname);
		if (!strcmp(base, versions[i].soname) ||
		    (!strncmp(base, versions[i].soname, link) && !base[link]))
			return &versions[i];
	}
	return NULL;
}

/* The version of the library in a file, ours or NVIDIA's: the one with its major version, or else
 * the newest. NULL: another library. */
static const struct version *version_in(const char *path)
{
	const char *base = base_name(path);
	const struct version *found = NULL;
	for (size_t i = 0; i < COUNT(versions); i++) {
		const char *soname = versions[i].soname;
		if (has_soname(base, soname, major_length(soname)))
			return &versions[i];
		if (!found && has_soname(base, soname, link_length(soname)))
			found = &versions[i];
	}
	return found;
}

/* Replaces a function that was found in a library with one of our names (ours or NVIDIA's) by ours
 * of the same version. */
static void *replace_function(void *found, const char *name)
{
	Dl_info info;
	if (!found || !dladdr(found, &info) || !info.dli_fname)
		return found;
	const struct version *v = version_in(info.dli_fname);
	const struct api_entry *e = v ? api_find_in(v->table, *v->count, name) : NULL;
	return e ? e->function : found;
}

RF_API void *dlsym(void *handle, const char *name)
{
	if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !api_find(name))
		return libc_dlsym()(handle, name);
	return replace_function(libc_dlsym()(handle, name), name);
}

RF_API void *dlvsym(void *handle, const char *name, const char *version)
{
	if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !api_find(name))
		return libc_dlvsym()(handle, name, version);
	return replace_function(libc_dlvsym()(handle, name, version), name);
}

/* Opens our library of that name, which is next to this one. A separate function, because its
 * buffer would prevent a tail call in dlopen. */
static __attribute__((noinline)) void *open_shim(dlopen_function open, const struct version *which,
						 int mode)
{
	char path[4096];
	Dl_info info;
	if (!dladdr((void *)open_shim, &info) || !info.dli_fname)
		return NULL;
	const char *slash = strrchr(info.dli_fname, '/');
	int folder = slash ? (int)(slash - info.dli_fname) : 1;
	int n = snprintf(path, sizeof path, "%.*s/%s", folder, slash ? info.dli_fname : ".",
			 which->soname);
	return n > 0 && (size_t)n < sizeof path ? open(path, mode) : NULL;
}

RF_API void *dlopen(const char *file, int mode)
{
	static void *_Atomic cached;
	const struct version *which = file ? version_named(file) : NULL;
	dlopen_function open = (dlopen_function)libc_cached(&cached, "dlopen");
	if (which) {
		void *handle = open_shim(open, which, mode);
		if (handle)
			return handle;
	}
	return open(file, mode);
}
