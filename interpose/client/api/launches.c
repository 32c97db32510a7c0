/* launches.c: the APIs' kernel launches. */
#include "bodies.h"

/* ---- the runtime ---- */

/* The configuration that <<<…>>> sets for the next launch. It nests only if an argument launches: a
 * few levels. */
#define CALLS_MAX 16
struct call {
	dim3 grid, block;
	size_t shared;
	void *stream;
};
static _Thread_local struct call calls[CALLS_MAX];
static _Thread_local int call_count;

unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem, void *stream)
{
	if (call_count == CALLS_MAX)
		return (unsigned)runtime_result(INVALID_CONFIGURATION);
	calls[call_count++] = (struct call){gridDim, blockDim, sharedMem, stream};
	return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
				       void *stream)
{
	if (!call_count)
		return runtime_result(52); /* cudaErrorMissingConfiguration */
	const struct call *c = &calls[--call_count];
	*gridDim = c->grid;
	*blockDim = c->block;
	*sharedMem = c->shared;
	*(void **)stream = c->stream;
	return CUDA_OK;
}

static int launch_as(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		     const void *stream, const launch_attribute *attributes, unsigned count)
{
	struct launch l = {.function = function,
			   .grid = {grid.x, grid.y, grid.z},
			   .block = {block.x, block.y, block.z},
			   .shared_bytes = shared,
			   .args = args};
	int error = count ? launch_attributes(attributes, count, &l) : CUDA_OK;
	if (!error && !function)
		error = INVALID_HANDLE;
	if (!error)
		error = stream_number(stream, &l.stream);
	return error ? error : enqueue_launch(&l);
}

int launch_runtime(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		   const void *stream)
{
	return launch_as(function, grid, block, args, shared, stream, NULL, 0);
}

int launch_cooperative(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		       const void *stream)
{
	launch_attribute together = {.id = ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	return launch_as(function, grid, block, args, shared, stream, &together, 1);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
	if (!config)
		return runtime_result(INVALID_VALUE);
	return runtime_result(launch_as(function_of_host(func), config->gridDim, config->blockDim,
					args, config->dynamicSmemBytes, config->stream,
					config->attrs, config->numAttrs));
}

/* ---- the driver ---- */

int launch_driver(const CUlaunchConfig *c, void *function, void **args, void **extra)
{
	struct launch l = {.function = function,
			   .args = args,
			   .shared_bytes = c->sharedMemBytes,
			   .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
			   .block = {c->blockDimX, c->blockDimY, c->blockDimZ}};
	if (!function_is(function))
		return INVALID_HANDLE;
	int error = stream_number(c->hStream, &l.stream);
	if (!error)
		error = launch_attributes(c->attrs, c->numAttrs, &l);
	if (!error && args && extra)
		error = INVALID_VALUE;
	if (!error && !args)
		error = packed_parameters(extra, &l.packed, &l.packed_bytes);
	return error ? error : enqueue_launch(&l);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			void **kernelParams, void **extra)
{
	CUlaunchConfig c = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
			    blockDimZ, sharedMemBytes, hStream,  NULL,      0};
	return launch_driver(&c, f, kernelParams, extra);
}

int launch_driver_cooperative(CUlaunchConfig c, void *function, void **args)
{
	launch_attribute together = {.id = ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	c.attrs = &together;
	c.numAttrs = 1;
	return launch_driver(&c, function, args, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
			  void **extra)
{
	return config ? launch_driver(config, f, kernelParams, extra) : INVALID_VALUE;
}
