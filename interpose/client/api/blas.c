/* blas.c: runs the routines of BLAS, except plain products, on the device.
 *
 * This library carries their kernels (interpose/blas), one text of PTX for each type, and
 * launches them in the handle's stream. Scalars in host memory pass through a few bytes of device
 * memory, and the call waits for a result, as in cuBLAS.
 *
 * Where the job's device has NVIDIA's cuBLAS, that runs them instead (remote.c), and what is here
 * only checks their parameters before (blas_checking).
 */
#include "blas.h"

#include <string.h>

#include "carried.h"

#define THREADS 128
#define BLOCKS_MAX (1 << 20)
#define BATCH_MAX 65535
#define NUMBERS_BYTES 256

_Thread_local bool blas_checking;

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
	[KERNEL_FACTOR] = "factor",
	[KERNEL_SWAP_ROWS] = "swap_rows",
	[KERNEL_COMBINE] = "combine",
	[KERNEL_ROTATION] = "rotation",
};
static struct {
	int type;
	size_t bytes;
	struct carried kernels;
} types[] = {
	{CUDA_R_32F, 4, {blas_ptx_s, NULL}},
	{CUDA_R_64F, 8, {blas_ptx_d, NULL}},
	{CUDA_C_32F, 8, {blas_ptx_c, NULL}},
	{CUDA_C_64F, 16, {blas_ptx_z, NULL}},
};
#define TYPES (sizeof types / sizeof *types)

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
		if (!blas_checking)
			LOG_ONCE("a BLAS routine in cudaDataType %d, or in several types, is not "
				 "supported by rankfold",
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
	size_t i = 0;

	if (of_one_block(kernel)) {
		l.grid[0] = l.grid[1] = 1;
		l.block[0] = kernel == KERNEL_ROTATION ? 1 : BLAS_REDUCERS;
	}
	if (kernel == KERNEL_FACTOR) { /* a block of one thread for each matrix */
		l.grid[0] = (uint32_t)(batch < BLOCKS_MAX ? batch : BLOCKS_MAX);
		l.grid[1] = l.block[0] = 1;
	}
	while (types[i].type != c->type)
		i++;
	return carried_launch(&types[i].kernels, names[kernel], &l, c->handle->stream);
}

int blas_launch(struct blas_call *c, enum blas_kernel kernel, int64_t work)
{
	if (blas_checking)
		return CUBLAS_STATUS_SUCCESS;
	return launch_error(c, kernel, work) ? CUBLAS_STATUS_EXECUTION_FAILED
					     : CUBLAS_STATUS_SUCCESS;
}

static int blas_copy(const struct blas_call *c, void *to, const void *from, size_t bytes, int kind)
{
	return memory_copy_1d(to, from, bytes, kind, c->handle->stream, false);
}

/* Stores the numbers in `place`, each aligned for any type, runs the kernel, and copies the results
 * back. */
static int run_with_numbers(struct blas_call *c, enum blas_kernel kernel,
			    struct blas_number *numbers, size_t count, char *place)
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
	if (c->on_device || blas_checking)
		return blas_launch(c, kernel, 1);
	error = stream_idle_number(c->handle->stream, &stream); /* a capture cannot wait */
	if (error)
		return CUBLAS_STATUS_EXECUTION_FAILED;
	if (pool_alloc(&place, 2 * NUMBERS_BYTES, NULL, c->handle->stream))
		return CUBLAS_STATUS_ALLOC_FAILED;
	error = run_with_numbers(c, kernel, numbers, count, place);
	last = pool_free(place, c->handle->stream);
	return error || last ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
