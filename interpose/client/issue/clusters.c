/* clusters.c: clusters of thread blocks, which only some devices have. No lock; a question to the
 * server blocks.
 */
#include "issue.h"

#define PORTABLE_MAX 8u

static int ask(struct function *f, struct rf_clusters *m, uint32_t *count)
{
	struct rf_clusters_reply reply = {0};
	int error = channel_enter();
	if (!error)
		error = function_ready(f);
	if (error)
		return error;
	m->function = f->number;
	m->large = f->large_clusters;
	error = channel_call(&m->r, RF_OP_CLUSTERS, sizeof *m, NULL, 0, &reply, sizeof reply);
	if (error == NOT_SUPPORTED)
		LOG_ONCE("thread block clusters are not supported by rankfold on this device");
	*count = reply.count;
	return error;
}

/* Asked once: a launch does not wait for the server. A rank that moves to a device without clusters
 * fails at its next launch with one. */
int clusters_supported(struct function *f)
{
	static _Atomic bool known;
	struct rf_clusters m = {
		.kind = RF_CLUSTERS_POTENTIAL, .grid = {1, 1, 1}, .block = {1, 1, 1}};
	uint32_t count;
	if (atomic_load_explicit(&known, memory_order_relaxed))
		return CUDA_OK;
	int error = ask(f, &m, &count);
	if (!error)
		atomic_store_explicit(&known, true, memory_order_relaxed);
	return error;
}

int cluster_check(struct function *f, const uint32_t grid[3], uint32_t cluster)
{
	uint32_t blocks = 1;
	int error = clusters_supported(f);
	for (int i = 0; !error && i < 3; i++) {
		uint32_t side = cluster >> 8 * i & 0xff;
		if (!side || grid[i] % side)
			error = INVALID_CLUSTER_SIZE;
		blocks *= side;
	}
	return !error && blocks > PORTABLE_MAX && !f->large_clusters ? INVALID_CLUSTER_SIZE : error;
}

int occupancy_clusters(int *count, struct function *f, const CUlaunchConfig *c,
		       enum rf_clusters_kind kind)
{
	struct launch l = {.function = f};
	uint32_t found = 0;
	int error = count && c ? launch_attributes(c->attrs, c->numAttrs, &l) : INVALID_VALUE;
	if (error)
		return error;
	struct rf_clusters m = {.grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
				.block = {c->blockDimX, c->blockDimY, c->blockDimZ},
				.shared_bytes = c->sharedMemBytes,
				.cluster = l.cluster,
				.kind = kind};
	error = ask(f, &m, &found);
	if (!error)
		*count = (int)found;
	return error;
}
