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

static const struct {
	const char *soname, *link;
} ours[] = {
	{"libcudart.so.13", "libcudart.so"}, {"libcuda.so.1", "libcuda.so"},
	{"libnccl.so.2", "libnccl.so"},      {"libnvidia-ml.so.1", "libnvidia-ml.so"},
	{"libcublas.so.13", "libcublas.so"}, {"libcublasLt.so.13", "libcublasLt.so"},
};

/* ---- tables ---- */

static const struct api_entry *find_in(const struct api_entry *table, size_t count,
				       const char *name)
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

const struct api_entry *api_find(const char *name)
{
	if (!strncmp(name, "nccl", 4) || !strncmp(name, "pnccl", 5))
		return find_in(api_nccl, api_nccl_count, name);
	if (!strncmp(name, "cublasLt", 8))
		return find_in(api_cublasLt, api_cublasLt_count, name);
	if (!strncmp(name, "cublas", 6))
		return find_in(api_cublas, api_cublas_count, name);
	if (!strncmp(name, "cuda", 4) || !strncmp(name, "__cuda", 6))
		return find_in(api_cudart, api_cudart_count, name);
	if (!strncmp(name, "cu", 2))
		return find_in(api_cuda, api_cuda_count, name);
	if (!strncmp(name, "nvml", 4))
		return find_in(api_nvml, api_nvml_count, name);
	return NULL;
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
						    ? find_in(api_cuda, api_cuda_count, full)
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
	static void *_Atomic kept;
	return (dlsym_function)libc_kept(&kept, "dlsym");
}

static dlvsym_function libc_dlvsym(void)
{
	static void *_Atomic kept;
	return (dlvsym_function)libc_kept(&kept, "dlvsym");
}

static bool is_ours(const char *path, size_t *which)
{
	const char *base = strrchr(path, '/');
	base = base ? base + 1 : path;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		if (!strcmp(base, ours[i].soname) || !strcmp(base, ours[i].link)) {
			*which = i;
			return true;
		}
	}
	return false;
}

/* Replaces a function that was found in a library with one of our names (ours or NVIDIA's) by
 * ours. */
static void *replace_function(void *found, const char *name)
{
	const struct api_entry *e = api_find(name);
	Dl_info info;
	const char *base;
	if (!e || !found || e->function == found || !dladdr(found, &info) || !info.dli_fname)
		return found;
	base = strrchr(info.dli_fname, '/');
	base = base ? base + 1 : info.dli_fname;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (!strncmp(base, ours[i].link, strlen(ours[i].link)))
			return e->function;
	return found;
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
static __attribute__((noinline)) void *open_shim(dlopen_function open, size_t which, int mode)
{
	char path[4096];
	Dl_info info;
	if (!dladdr((void *)open_shim, &info) || !info.dli_fname)
		return NULL;
	const char *slash = strrchr(info.dli_fname, '/');
	int folder = slash ? (int)(slash - info.dli_fname) : 1;
	int n = snprintf(path, sizeof path, "%.*s/%s", folder, slash ? info.dli_fname : ".",
			 ours[which].soname);
	return n > 0 && (size_t)n < sizeof path ? open(path, mode) : NULL;
}

RF_API void *dlopen(const char *file, int mode)
{
	static void *_Atomic kept;
	size_t which;
	dlopen_function open = (dlopen_function)libc_kept(&kept, "dlopen");
	if (file && is_ours(file, &which)) {
		void *handle = open_shim(open, which, mode);
		if (handle)
			return handle;
	}
	return open(file, mode);
}
