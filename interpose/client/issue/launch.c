/* launch.c: launches kernels and matrix products. A launch takes no lock of this layer once its
 * function is ready.
 */
#include <stdlib.h>
#include <string.h>

#include "issue.h"

#define PARAM_BYTES_USUAL 4096 /* larger parameters are packed into allocated memory */

static bool grid_valid(const struct launch *l, uint32_t max_threads)
{
	const uint32_t *g = l->grid, *b = l->block;
	return g[0] && g[1] && g[2] && b[0] && b[1] && b[2] && g[0] <= 0x7fffffff &&
	       g[1] <= 65535 && g[2] <= 65535 && b[0] <= 1024 && b[1] <= 1024 && b[2] <= 64 &&
	       (uint64_t)b[0] * b[1] * b[2] <= max_threads;
}

static int check_shape(const struct launch *l)
{
	const struct rf_welcome *welcome;
	const struct function *f = l->function;
	int error = channel_welcome(&welcome);
	if (error)
		return error;
	const struct rf_device *d = &welcome->device;
	if (!grid_valid(l, f->info.max_threads) || !grid_valid(l, d->max_threads_per_block))
		return INVALID_VALUE; /* as in CUDA 13, not in earlier runtimes */
	uint64_t dynamic = f->max_dynamic_shared >= 0
				   ? (uint64_t)f->max_dynamic_shared
				   : d->shared_per_block -
					     (f->info.static_shared_bytes < d->shared_per_block
						      ? f->info.static_shared_bytes
						      : d->shared_per_block);
	return l->shared_bytes > dynamic ? INVALID_VALUE : CUDA_OK;
}

/* All blocks of a cooperative launch must be resident at once. */
static int check_cooperative(const struct launch *l)
{
	const struct rf_welcome *welcome;
	int blocks, threads = (int)(l->block[0] * l->block[1] * l->block[2]);
	int error = occupancy_blocks(&blocks, l->function, threads, l->shared_bytes);
	if (error)
		return error;
	channel_welcome(&welcome);
	return (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] >
			       (uint64_t)blocks * welcome->device.sm_count
		       ? COOPERATIVE_LAUNCH_TOO_LARGE
		       : CUDA_OK;
}

int launch_check(const struct launch *l)
{
	int error = context_use_device();
	if (!error)
		error = function_can_run(l->function);
	if (!error)
		error = check_shape(l);
	if (!error && l->cooperative)
		error = check_cooperative(l);
	if (!error && l->cluster)
		error = cluster_check(l->function, l->grid, l->cluster);
	return error;
}

int launch_pack(const struct launch *l, uint8_t *to)
{
	const struct function *f = l->function;
	memset(to, 0, f->info.param_bytes);
	if (l->packed) { /* CUDA reports no error if there are fewer bytes than parameters */
		memcpy(to, l->packed,
		       l->packed_bytes < f->info.param_bytes ? l->packed_bytes
							     : f->info.param_bytes);
		return CUDA_OK;
	}
	if (f->info.param_count && !l->args)
		return INVALID_VALUE;
	for (uint32_t i = 0; i < f->info.param_count; i++)
		memcpy(to + f->params[i].offset, l->args[i], f->params[i].bytes);
	return CUDA_OK;
}

/* `params` has space for the parameters. */
static int send_launch(const struct launch *l, uint8_t *params)
{
	struct rf_launch m = {.stream = l->stream,
			      .shared_bytes = (uint32_t)l->shared_bytes,
			      .flags = l->cooperative,
			      .cluster = l->cluster};
	int error = launch_pack(l, params);
	if (error)
		return error;
	print_kernels_output();
	m.function = l->function->number;
	memcpy(m.grid, l->grid, sizeof m.grid);
	memcpy(m.block, l->block, sizeof m.block);
	m.param_bytes = l->function->info.param_bytes;
	channel_post_work(&m.r, RF_OP_LAUNCH, sizeof m, params, m.param_bytes, m.stream);
	return CUDA_OK;
}

static __attribute__((noinline)) int send_large(const struct launch *l)
{
	uint8_t *params = malloc(l->function->info.param_bytes);
	int error = params ? send_launch(l, params) : OUT_OF_MEMORY;
	free(params);
	return error;
}

int issue_launch(const struct launch *l)
{
	uint8_t params[PARAM_BYTES_USUAL];
	return l->function->info.param_bytes <= sizeof params ? send_launch(l, params)
							      : send_large(l);
}

/* ---- matrix products ---- */

#define OLD_FLAGS (RF_GEMM_POINTERS | RF_GEMM_SCALARS | RF_GEMM_RELU | RF_GEMM_GELU)

void issue_gemm(struct rf_gemm_call *m)
{
	if (m->how.api)
		channel_post_work(&m->g.r, RF_OP_GEMM_CALL, sizeof *m, NULL, 0, m->g.stream);
	else if (m->g.flags & ~(uint32_t)OLD_FLAGS)
		channel_post_work(&m->g.r, RF_OP_GEMM_AUX, sizeof(struct rf_gemm_aux), NULL, 0,
				  m->g.stream);
	else
		channel_post_work(&m->g.r, RF_OP_GEMM, sizeof m->g, NULL, 0, m->g.stream);
}

/* ---- parameters ---- */

/* Parses the list form of parameters: pairs, terminated by CU_LAUNCH_PARAM_END. */
int packed_parameters(void **extra, const void **packed, size_t *bytes)
{
	const size_t *size = NULL;
	*packed = NULL;
	*bytes = 0;
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*packed = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = extra[1];
		else
			return INVALID_VALUE;
	}
	if (size)
		*bytes = *size;
	return *packed && !size ? INVALID_VALUE : CUDA_OK;
}
