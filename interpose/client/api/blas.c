/* blas.c: runs the routines of BLAS, except plain products, on the device.
 *
 * This library contains their kernels (interpose/blas) as PTX. They are a module like the program's
 * own, loaded at the first call for its type, and launched in the handle's stream: so captures,
 * folding and moves need nothing special. Scalars in host memory pass through a few bytes of device
 * memory, and the call waits for a result, as in cuBLAS.
 */
#include "blas.h"

#include <string.h>

#define THREADS 128
#define BLOCKS_MAX (1 << 20)
#define BATCH_MAX 65535
#define NUMBERS_BYTES 256

extern const char blas_ptx_s[], blas_ptx_d[], blas_ptx_c[], blas_ptx_z[]; /* images.S */

static const char *const names[BLAS_KERNELS] = {
	[KERNEL_EACH] = "each",
	[KERNEL_REDUCE] = "reduce",
	[KERNEL_TIMES_VECTOR] = "times_vector",
	[KERNEL_TRIANGLE_TIMES_VECTOR] = "triangle_times_vector",
	[KERNEL_SOLVE_VECTOR] = "solve_vector",
	[KERNEL_UPDATE] = "update",
	[KERNEL_TIMES_MATRIX] = "times_matrix",
	[KERNEL_TRIANGLE_TIMES_MATRIX] = "triangle_times_matrix",
	[KERNEL_SOLVE_MATRIX] = "solve_matrix",
	[KERNEL_COMBINE] = "combine",
	[KERNEL_ROTATION] = "rotation",
};
static const struct {
	int type;
	size_t bytes;
	const char *image;
} types[] = {
	{CUDA_R_32F, 4, blas_ptx_s},
	{CUDA_R_64F, 8, blas_ptx_d},
	{CUDA_C_32F, 8, blas_ptx_c},
	{CUDA_C_64F, 16, blas_ptx_z},
};
#define TYPES (sizeof types / sizeof *types)

static struct module *modules[TYPES]; /* never unloaded; under BLAS_LOCK */

int blas_begin(struct blas_call *c, const void *handle, int type)
{
	memset(c, 0, sizeof *c);
	c->handle = handle_get(HANDLE_BLAS, handle);
	if (!c->handle)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	for (size_t i = 0; i < TYPES; i++)
		if (types[i].type == type)
			c->bytes = types[i].bytes;
	if (!c->bytes) {
		LOG_ONCE(
			"a BLAS routine in cudaDataType %d, or in several types, is not supported by "
			"rankfold",
			type);
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	c->type = type;
	c->real = type == CUDA_R_32F || type == CUDA_R_64F;
	c->on_device = c->handle->modes[BLAS_POINTERS];
	c->args.flags = c->on_device ? BLAS_ON_DEVICE : 0;
	c->args.count = 1;
	return CUBLAS_STATUS_SUCCESS;
}

static int put_scalar(const struct blas_call *c, uint64_t *to, const void *value, bool real)
{
	if (!value)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (c->on_device)
		*to = (uint64_t)value;
	else
		memcpy(to, value, real && !c->real ? c->bytes / 2 : c->bytes);
	return CUBLAS_STATUS_SUCCESS;
}

int blas_alpha(struct blas_call *c, const void *alpha, bool real)
{
	c->args.flags |= real ? BLAS_REAL_ALPHA : 0;
	return put_scalar(c, c->args.alpha, alpha, real);
}

int blas_beta(struct blas_call *c, const void *beta, bool real)
{
	c->args.flags |= real ? BLAS_REAL_BETA : 0;
	return put_scalar(c, c->args.beta, beta, real);
}

static int find_kernel(int type, enum blas_kernel kernel, struct function **out)
{
	size_t i = 0;

	while (types[i].type != type)
		i++;
	lock(BLAS_LOCK);
	if (!modules[i])
		modules[i] = module_register(types[i].image);
	unlock(BLAS_LOCK);
	return modules[i] ? module_function(modules[i], names[kernel], out) : OUT_OF_MEMORY;
}

static bool of_one_block(enum blas_kernel kernel)
{
	return kernel == KERNEL_REDUCE || kernel == KERNEL_TRIANGLE_TIMES_VECTOR ||
	       kernel == KERNEL_SOLVE_VECTOR || kernel == KERNEL_ROTATION;
}

static int launch_error(struct blas_call *c, enum blas_kernel kernel, int64_t work)
{
	int64_t blocks = (work + THREADS - 1) / THREADS, batch = c->args.count;
	struct launch l = {.grid = {(uint32_t)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX),
				    (uint32_t)(batch < BATCH_MAX ? batch : BATCH_MAX), 1},
			   .block = {THREADS, 1, 1},
			   .packed = &c->args,
			   .packed_bytes = sizeof c->args};
	int error = context_use_device();

	if (of_one_block(kernel)) {
		l.grid[0] = l.grid[1] = 1;
		l.block[0] = kernel == KERNEL_ROTATION ? 1 : BLAS_REDUCERS;
	}
	if (!error)
		error = stream_number(c->handle->stream, &l.stream);
	if (!error)
		error = find_kernel(c->type, kernel, &l.function);
	return error ? error : enqueue_launch(&l);
}

int blas_launch(struct blas_call *c, enum blas_kernel kernel, int64_t work)
{
	return launch_error(c, kernel, work) ? CUBLAS_STATUS_EXECUTION_FAILED
					     : CUBLAS_STATUS_SUCCESS;
}

static int blas_copy(const struct blas_call *c, void *to, const void *from, size_t bytes, int kind)
{
	return memory_copy_1d(to, from, bytes, kind, c->handle->stream, false);
}

/* Stores the numbers in `place`, each aligned for any type, runs the kernel, and copies the results
 * back. */
static int through(struct blas_call *c, enum blas_kernel kernel, struct blas_number *numbers,
		   size_t count, char *place)
{
	int error = CUDA_OK;

	for (size_t i = 0; i < count && !error; i++) {
		char *at = place + i * (NUMBERS_BYTES / 4);

		*numbers[i].device = (uint64_t)at;
		if (numbers[i].in)
			error = blas_copy(c, at, numbers[i].at, numbers[i].bytes, HOST_TO_DEVICE);
	}
	if (!error)
		error = launch_error(c, kernel, 1);
	for (size_t i = 0; i < count && !error; i++)
		if (numbers[i].out)
			error = blas_copy(c, numbers[i].at, place + i * (NUMBERS_BYTES / 4),
					  numbers[i].bytes, DEVICE_TO_HOST);
	return error;
}

int blas_with_numbers(struct blas_call *c, enum blas_kernel kernel, struct blas_number *numbers,
		      size_t count)
{
	void *place = NULL;
	uint64_t stream;
	int error, last;

	for (size_t i = 0; i < count; i++) {
		if (!numbers[i].at)
			return CUBLAS_STATUS_INVALID_VALUE;
		*numbers[i].device = (uint64_t)numbers[i].at;
	}
	if (c->on_device)
		return blas_launch(c, kernel, 1);
	error = stream_idle_number(c->handle->stream, &stream); /* a capture cannot wait */
	if (error)
		return CUBLAS_STATUS_EXECUTION_FAILED;
	if (pool_alloc(&place, 2 * NUMBERS_BYTES, NULL, c->handle->stream))
		return CUBLAS_STATUS_ALLOC_FAILED;
	error = through(c, kernel, numbers, count, place);
	last = pool_free(place, c->handle->stream);
	return error || last ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
