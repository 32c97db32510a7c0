/* module.c: modules and kernels, for the Python part (modules.py).
 *
 * Called from any thread while the device is open; may take seconds, because the driver compiles
 * PTX here. Loaded modules stay until the device is closed. The driver loads a kernel at the latest
 * when its handle is taken, so that happens here and not at its first launch, which might wait for
 * running kernels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvidia_hal.h"

#define LOG_BYTES 2048

/* As declared in modules.py. */
struct nvidia_function {
	uint64_t address; /* of the struct hal_function */
	int32_t max_threads, shared_bytes, const_bytes, local_bytes, registers, ptx_version;
};

#pragma GCC visibility push(default)
int rankfold_nvidia_module(const char *ptx, void **module, char *text, uint32_t text_bytes);
int rankfold_nvidia_function(void *module, const char *name, uint32_t param_bytes,
			     uint32_t globals_at, struct nvidia_function *out);
#pragma GCC visibility pop

/* Returns a CUresult; on an error `text` has the reason, in the compiler's words. */
int rankfold_nvidia_module(const char *ptx, void **module, char *text, uint32_t text_bytes)
{
	struct hal_device *device = atomic_load(&nvidia_open_device);
	char compiler[LOG_BYTES] = "";
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {compiler, (void *)(uintptr_t)sizeof compiler};
	CUmodule loaded = NULL;
	CUresult error;

	if (!device)
		return CUDA_ERROR_NO_DEVICE;
	error = nvidia_bind(device);
	if (!error)
		error = device->driver->cuModuleLoadDataEx(&loaded, ptx, 2, options, values);
	if (error)
		snprintf(text, text_bytes, "%s: %.*s", nvidia_error_name(device, error),
			 (int)sizeof compiler - 1, compiler);
	*module = loaded;
	return (int)error;
}

static CUresult describe(const struct hal_device *device, CUfunction f, struct nvidia_function *out)
{
	const struct {
		CUfunction_attribute attribute;
		int32_t *to;
	} queried[] = {
		{CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &out->max_threads},
		{CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &out->shared_bytes},
		{CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &out->const_bytes},
		{CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &out->local_bytes},
		{CU_FUNC_ATTRIBUTE_NUM_REGS, &out->registers},
		{CU_FUNC_ATTRIBUTE_PTX_VERSION, &out->ptx_version},
	};
	CUresult error = CUDA_SUCCESS;

	for (size_t i = 0; !error && i < sizeof queried / sizeof *queried; i++)
		error = device->driver->cuFuncGetAttribute(queried[i].to, queried[i].attribute, f);
	return error;
}

int rankfold_nvidia_function(void *module, const char *name, uint32_t param_bytes,
			     uint32_t globals_at, struct nvidia_function *out)
{
	struct hal_device *device = atomic_load(&nvidia_open_device);
	struct hal_function *made;
	CUfunction f;
	CUresult error;

	if (!device)
		return CUDA_ERROR_NO_DEVICE;
	error = nvidia_bind(device);
	if (!error)
		error = device->driver->cuModuleGetFunction(&f, module, name);
	if (!error)
		error = describe(device, f, out);
	if (error)
		return (int)error;
	made = malloc(sizeof *made + strlen(name) + 1);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct hal_function){f, param_bytes, globals_at, (uint32_t)out->shared_bytes};
	strcpy(made->name, name);
	out->address = (uint64_t)(uintptr_t)made;
	return CUDA_SUCCESS;
}
