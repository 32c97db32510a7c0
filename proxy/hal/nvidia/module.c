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

#define SHARED_WITHOUT_ASKING (48u << 10)
#define LOG_BYTES 2048

/* As declared in modules.py. */
struct nvidia_variable_place {
	const char *name;
	uint64_t offset, bytes; /* in the module's globals */
	int32_t constant, section;
};
struct nvidia_function {
	uint64_t address; /* of the struct hal_function */
	int32_t max_threads, shared_bytes, const_bytes, local_bytes, registers, ptx_version;
};

#pragma GCC visibility push(default)
int rankfold_nvidia_capability(void);
uint32_t rankfold_nvidia_facts(const char **names, int32_t *values, uint32_t most);
int rankfold_nvidia_module(const char *code, void **module, char *text, uint32_t text_bytes);
int rankfold_nvidia_variables(void *module, const struct nvidia_variable_place *places,
			      uint32_t count, void **variables, uint32_t *failed);
int rankfold_nvidia_function(void *module, const char *name, uint32_t param_bytes,
			     uint32_t globals_at, void *variables, struct nvidia_function *out);
#pragma GCC visibility pop

/* The compute capability of the GPU: 90 for 9.0; 0: no device is open. */
int rankfold_nvidia_capability(void)
{
	const struct hal_device *device = atomic_load(&nvidia_open_device);

	return device ? device->capability : 0;
}

/* The numbers that a rank sees of its device (struct rf_device), as the GPU has them. Returns how
 * many. A number that the driver does not tell, or that is 0 there, is left out. */
uint32_t rankfold_nvidia_facts(const char **names, int32_t *values, uint32_t most)
{
	static const struct {
		const char *name;
		CUdevice_attribute attribute;
	} queried[] = {
		{"sm_count", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
		{"max_threads_per_sm", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
		{"blocks_per_sm", CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
		{"shared_per_block_optin", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
		{"shared_per_sm", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
		{"regs_per_block", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
		{"regs_per_sm", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
		{"clock_khz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
		{"memory_clock_khz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
		{"memory_bus_bits", CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
		{"l2_bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
	};
	const struct hal_device *device = atomic_load(&nvidia_open_device);
	uint32_t count = 0;

	for (uint32_t i = 0; device && i < sizeof queried / sizeof *queried && count < most; i++) {
		int value = 0;

		if (device->driver->cuDeviceGetAttribute(&value, queried[i].attribute,
							 device->ordinal) ||
		    value <= 0)
			continue;
		names[count] = queried[i].name;
		values[count++] = value;
	}
	return count;
}

/* `code`: PTX or machine code. Returns a CUresult; on an error `text` has the reason, in the
 * compiler's words. */
int rankfold_nvidia_module(const char *code, void **module, char *text, uint32_t text_bytes)
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
		error = device->driver->cuModuleLoadDataEx(&loaded, code, 2, options, values);
	if (error)
		snprintf(text, text_bytes, "%s: %.*s", nvidia_error_name(device, error),
			 (int)sizeof compiler - 1, compiler);
	*module = loaded;
	return (int)error;
}

/* Adds a variable to the parts that are copied. The driver keeps a section together, and so do the
 * globals: with what is between it and the last variable, it is one part. */
static void add_part(struct nvidia_variables *made, const struct nvidia_variable_place *place,
		     CUdeviceptr at, bool same_section)
{
	struct nvidia_part *last = made->count ? &made->all[made->count - 1] : NULL;

	made->changing |= !place->constant;
	if (last && same_section && at - last->at == place->offset - last->offset) {
		uint64_t end = place->offset + place->bytes - last->offset;

		last->bytes = end > last->bytes ? end : last->bytes;
	} else {
		made->all[made->count++] = (struct nvidia_part){at, place->offset, place->bytes,
								place->constant};
	}
}

/* Finds the driver's variables of a module of machine code. `variables` is NULL if there are none,
 * and otherwise lives as long as the device. `places`: in the order of their offsets. Returns a
 * CUresult; `failed`: the index of the variable that the driver does not have, or `count`. */
int rankfold_nvidia_variables(void *module, const struct nvidia_variable_place *places,
			      uint32_t count, void **variables, uint32_t *failed)
{
	struct hal_device *device = atomic_load(&nvidia_open_device);
	struct nvidia_variables *made;
	CUresult error;

	*variables = NULL;
	*failed = count;
	if (!count)
		return CUDA_SUCCESS;
	if (!device)
		return CUDA_ERROR_NO_DEVICE;
	made = calloc(1, sizeof *made + count * sizeof *made->all);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	error = nvidia_bind(device);
	if (!error)
		error = device->driver->cuEventCreate(&made->copied, CU_EVENT_DISABLE_TIMING);
	for (uint32_t i = 0; !error && i < count; i++) {
		CUdeviceptr at = 0;
		size_t bytes = 0;

		*failed = i;
		error = device->driver->cuModuleGetGlobal_v2(&at, &bytes, module, places[i].name);
		if (!error && bytes != places[i].bytes)
			error = CUDA_ERROR_INVALID_VALUE;
		if (!error)
			add_part(made, &places[i], at,
				 i && places[i].section == places[i - 1].section);
	}
	if (error)
		free(made);
	else
		*variables = made;
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
			     uint32_t globals_at, void *variables, struct nvidia_function *out)
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
	*made = (struct hal_function){
		f, param_bytes, globals_at, (uint32_t)out->shared_bytes, variables, NULL};
	strcpy(made->name, name);
	out->address = (uint64_t)(uintptr_t)made;
	return CUDA_SUCCESS;
}

CUlaunchAttribute nvidia_cluster_of(uint32_t cluster)
{
	return (CUlaunchAttribute){
		.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
		.value.clusterDim = {cluster & 0xff, cluster >> 8 & 0xff, cluster >> 16 & 0xff}};
}

CUresult nvidia_allow(const struct nvidia_driver *d, const struct hal_function *f,
		      uint32_t shared_bytes, bool large)
{
	CUresult error = CUDA_SUCCESS;

	if ((uint64_t)f->shared_bytes + shared_bytes > SHARED_WITHOUT_ASKING)
		error = d->cuFuncSetAttribute(f->function,
					      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
					      (int)shared_bytes);
	if (!error && large)
		error = d->cuFuncSetAttribute(
			f->function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
	return error;
}

int nvidia_clusters(struct hal_device *device, const struct hal_function *f,
		    const struct rf_clusters *a, uint32_t *count)
{
	const struct nvidia_driver *d = device->driver;
	CUlaunchAttribute cluster = nvidia_cluster_of(a->cluster);
	CUlaunchConfig config = {.gridDimX = a->grid[0],
				 .gridDimY = a->grid[1],
				 .gridDimZ = a->grid[2],
				 .blockDimX = a->block[0],
				 .blockDimY = a->block[1],
				 .blockDimZ = a->block[2],
				 .sharedMemBytes = a->shared_bytes,
				 .attrs = &cluster,
				 .numAttrs = a->cluster ? 1 : 0};
	CUresult error = nvidia_bind(device);
	int value = 0;

	if (!error)
		error = nvidia_allow(d, f, a->shared_bytes, a->large);
	if (!error)
		error = a->kind == RF_CLUSTERS_ACTIVE
				? d->cuOccupancyMaxActiveClusters(&value, f->function, &config)
			: a->kind == RF_CLUSTERS_POTENTIAL ? d->cuOccupancyMaxPotentialClusterSize(
								     &value, f->function, &config)
							   : CUDA_ERROR_INVALID_VALUE;
	*count = (uint32_t)value;
	return (int)error;
}
