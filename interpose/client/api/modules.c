/* modules.c: modules; libraries, which are modules that a reset does not end; their functions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bodies.h"

/* ---- loading ---- */

/* Modules and libraries are loaded by functions of one type. */
typedef int (*loader)(const void *image, struct module **out);

static int load_with(loader load, void **out, const void *code)
{
	return out && code ? load(code, (struct module **)out) : INVALID_VALUE;
}

int module_from(void **module, const void *code) { return load_with(module_load, module, code); }

/* Numbers of the CUjit_options with a result. All others tune a compiler that does not exist
 * here. */
enum { JIT_WALL_TIME = 2, JIT_INFO_LOG, JIT_INFO_BYTES, JIT_ERROR_LOG, JIT_ERROR_BYTES };

void fill_logs(int error, unsigned count, const int *options, void **values)
{
	char *info = NULL, *log = NULL;
	size_t info_capacity = 0, capacity = 0, wrote = 0;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == JIT_INFO_LOG)
			info = values[i];
		else if (options[i] == JIT_INFO_BYTES)
			info_capacity = (size_t)values[i];
		else if (options[i] == JIT_ERROR_LOG)
			log = values[i];
		else if (options[i] == JIT_ERROR_BYTES)
			capacity = (size_t)values[i];
		if (options[i] == JIT_WALL_TIME || options[i] == JIT_INFO_BYTES)
			values[i] = NULL; /* zero, in either type of number */
	}
	if (info && info_capacity)
		*info = 0;
	if (log && capacity) {
		*log = 0;
		if (error)
			snprintf(log, capacity,
				 "the module cannot be loaded: %s; the log of the device's proxy "
				 "has the reason",
				 error_text(error) ? error_text(error)->text : error_name(error));
		wrote = strlen(log);
	}
	for (unsigned i = 0; i < count; i++)
		if (options[i] == JIT_ERROR_BYTES)
			values[i] = (void *)wrote;
}

static int load_with_options(loader load, void **out, const void *code, unsigned count,
			     const int *options, void **values)
{
	if (count && (!options || !values))
		return INVALID_VALUE;
	int error = load_with(load, out, code);
	fill_logs(error, count, options, values);
	return error;
}

int module_from_options(void **module, const void *code, unsigned count, const int *options,
			void **values)
{
	return load_with_options(module_load, module, code, count, options, values);
}

int library_load(void **library, const void *code, unsigned count, const int *options,
		 void **values)
{
	return load_with_options(module_load_library, library, code, count, options, values);
}

/* Returns a file's bytes, followed by a zero byte as in PTX; the caller frees them. NULL:
 * unreadable. */
char *file_content(const char *path, size_t *bytes)
{
	int saved_errno = errno;
	char *content = NULL;
	long length;
	FILE *file = fopen(path, "rbe");
	if (file && !fseek(file, 0, SEEK_END) && (length = ftell(file)) > 0) {
		rewind(file);
		*bytes = (size_t)length;
		content = calloc(1, *bytes + 1);
		if (content && fread(content, 1, *bytes, file) != *bytes) {
			free(content);
			content = NULL;
		}
	}
	if (file)
		fclose(file);
	errno = saved_errno;
	return content;
}

static int load_file(loader load, void **out, const char *path)
{
	size_t bytes;
	if (!out || !path)
		return INVALID_VALUE;
	char *image = file_content(path, &bytes);
	int error = image ? load_with(load, out, image) : FILE_NOT_FOUND;
	free(image);
	return error;
}

int module_from_file(void **module, const char *path)
{
	return load_file(module_load, module, path);
}

int library_load_file(void **library, const char *path)
{
	return load_file(module_load_library, library, path);
}

/* ---- libraries ---- */

int library_unload(void *library)
{
	return module_is(library) ? module_drop(library) : INVALID_HANDLE;
}

int library_function(void **function, void *library, const char *name)
{
	if (!function || !name)
		return INVALID_VALUE;
	return module_is(library) ? module_function(library, name, (struct function **)function)
				  : INVALID_HANDLE;
}

int library_count(unsigned *count, void *library)
{
	if (!count)
		return INVALID_VALUE;
	return module_is(library) ? module_function_count(library, count) : INVALID_HANDLE;
}

int library_enumerate(void **functions, unsigned capacity, void *library)
{
	if (!functions && capacity)
		return INVALID_VALUE;
	return module_is(library) ? module_enumerate(library, functions, capacity) : INVALID_HANDLE;
}

static int variable_of(int (*find)(struct module *, const char *, uint64_t *, uint64_t *),
		       void *library, const char *name, CUdeviceptr *address, size_t *bytes)
{
	uint64_t at, size;
	int error = !name ? INVALID_VALUE : module_is(library) ? CUDA_OK : INVALID_HANDLE;
	if (!error)
		error = find(library, name, &at, &size);
	if (!error && address)
		*address = at;
	if (!error && bytes)
		*bytes = size;
	return error;
}

int library_global(CUdeviceptr *address, size_t *bytes, void *library, const char *name)
{
	return variable_of(module_global, library, name, address, bytes);
}

int library_managed(CUdeviceptr *address, size_t *bytes, void *library, const char *name)
{
	return variable_of(module_managed, library, name, address, bytes);
}

/* ---- modules ---- */

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return INVALID_VALUE;
	*mode = 2; /* lazy */
	return CUDA_OK;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	if (!pMod || !module_is(library))
		return pMod ? INVALID_HANDLE : INVALID_VALUE;
	*pMod = library;
	return CUDA_OK;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	if (!pFunc || !function_is(kernel))
		return pFunc ? INVALID_HANDLE : INVALID_VALUE;
	*pFunc = kernel;
	return CUDA_OK;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
	if (!hmod || !function_is(hfunc))
		return hmod ? INVALID_HANDLE : INVALID_VALUE;
	*hmod = module_of(hfunc);
	return CUDA_OK;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
	if (!name || !function_is(hfunc))
		return name ? INVALID_HANDLE : INVALID_VALUE;
	*name = ((struct function *)hfunc)->name;
	return CUDA_OK;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	if (!state || !function_is(function))
		return state ? INVALID_HANDLE : INVALID_VALUE;
	*state = atomic_load(&((struct function *)function)->ready);
	return CUDA_OK;
}

/* ---- functions of the runtime ---- */

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *hostFun)
{
	struct function *f = function_of_host(hostFun);
	if (!kernel || !f)
		return runtime_result(kernel ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
	*kernel = f;
	return CUDA_OK;
}

cudaError_t cudaFuncGetName(const char **name, const void *func)
{
	struct function *f = function_of_host(func);
	if (!name || !f)
		return runtime_result(name ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
	*name = f->name;
	return CUDA_OK;
}

int function_param(struct function *f, size_t index, size_t *offset, size_t *bytes)
{
	int error = f ? channel_enter() : INVALID_HANDLE;
	if (!error)
		error = function_ready(f);
	if (!error && (!offset || index >= f->info.param_count))
		error = INVALID_VALUE;
	if (error)
		return error;
	*offset = f->params[index].offset;
	if (bytes)
		*bytes = f->params[index].bytes;
	return CUDA_OK;
}

int function_attributes(cudaFuncAttributes *attr, const void *func)
{
	struct function *f = function_of_host(func);
	int value[10] = {0};
	int error = attr ? CUDA_OK : INVALID_VALUE;
	if (!error && !f)
		error = INVALID_HANDLE;
	for (int i = 0; !error && i < 10; i++)
		error = function_attribute(&value[i], i, f);
	if (error)
		return error;
	memset(attr, 0, sizeof *attr);
	attr->maxThreadsPerBlock = value[0];
	attr->sharedSizeBytes = (size_t)value[1];
	attr->constSizeBytes = (size_t)value[2];
	attr->localSizeBytes = (size_t)value[3];
	attr->numRegs = value[4];
	attr->ptxVersion = value[5];
	attr->binaryVersion = value[6];
	attr->maxDynamicSharedSizeBytes = value[8];
	attr->preferredShmemCarveout = value[9];
	return CUDA_OK;
}

int function_attributes_11(cudaFuncAttributes_11 *attr, const void *func)
{
	cudaFuncAttributes newer;
	int error = attr ? function_attributes(&newer, func) : INVALID_VALUE;
	if (!error)
		memcpy(attr, &newer, sizeof *attr);
	return error;
}

int host_function_set(const void *function, int attribute, int value)
{
	struct function *f = function_of_host(function);
	return f ? function_set_attribute(f, attribute, value) : INVALID_HANDLE;
}

int host_occupancy(int *blocks, const void *function, int block_size, size_t dynamic_shared)
{
	struct function *f = function_of_host(function);
	return f ? occupancy_blocks(blocks, f, block_size, dynamic_shared) : INVALID_HANDLE;
}

int host_clusters(int *count, const void *function, const cudaLaunchConfig_t *c,
		  enum rf_clusters_kind kind)
{
	struct function *f = function_of_host(function);
	if (!f || !c)
		return f ? INVALID_VALUE : INVALID_HANDLE;
	CUlaunchConfig driver = {.gridDimX = c->gridDim.x,
				 .gridDimY = c->gridDim.y,
				 .gridDimZ = c->gridDim.z,
				 .blockDimX = c->blockDim.x,
				 .blockDimY = c->blockDim.y,
				 .blockDimZ = c->blockDim.z,
				 .sharedMemBytes = (unsigned)c->dynamicSmemBytes,
				 .attrs = c->attrs,
				 .numAttrs = c->numAttrs};
	return occupancy_clusters(count, f, &driver, kind);
}
