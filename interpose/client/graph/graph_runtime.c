/* graph_runtime.c: the runtime API's forms of graph functions, where its structures differ from the
 * driver's. No lock; nothing blocks.
 */
#include "graph.h"

static CUDA_KERNEL_NODE_PARAMS kernel_of(const cudaKernelNodeParams *p)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function_of_host(p->func),
					 .gridDimX = p->gridDim.x,
					 .gridDimY = p->gridDim.y,
					 .gridDimZ = p->gridDim.z,
					 .blockDimX = p->blockDim.x,
					 .blockDimY = p->blockDim.y,
					 .blockDimZ = p->blockDim.z,
					 .sharedMemBytes = p->sharedMemBytes,
					 .kernelParams = p->kernelParams,
					 .extra = p->extra};
}

int graph_add_kernel(void **out, void *graph, const CUgraphNode *needs, size_t count,
		     const cudaKernelNodeParams *p)
{
	if (!p)
		return INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS driver = kernel_of(p);
	return driver.func ? cuGraphAddKernelNode(out, graph, needs, count, &driver)
			   : INVALID_HANDLE;
}

int graph_set_kernel(void *exec, void *node, const cudaKernelNodeParams *p)
{
	if (!p)
		return INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS driver = kernel_of(p);
	if (!driver.func)
		return INVALID_HANDLE;
	return exec ? cuGraphExecKernelNodeSetParams(exec, node, &driver)
		    : cuGraphKernelNodeSetParams(node, &driver);
}

/* Fails for kernels that have no name in the runtime: a library's, or the driver API's. */
int graph_get_kernel(void *node, cudaKernelNodeParams *p)
{
	CUDA_KERNEL_NODE_PARAMS d;
	if (!p || !node)
		return INVALID_VALUE;
	if (node_of(node, NODE_GEMM))
		return INVALID_DEVICE_FUNCTION;
	int error = node_kernel(node, &d, sizeof d);
	void *host = error ? NULL : (void *)((struct function *)d.func)->host;
	if (error || !host)
		return error ? error : INVALID_DEVICE_FUNCTION;
	*p = (cudaKernelNodeParams){host,
				    {d.gridDimX, d.gridDimY, d.gridDimZ},
				    {d.blockDimX, d.blockDimY, d.blockDimZ},
				    d.sharedMemBytes,
				    d.kernelParams,
				    d.extra};
	return CUDA_OK;
}

/* The memory types of a copy's operands, by its kind. */
static const int src_types[] = {CU_HOST, CU_HOST, CU_DEVICE, CU_DEVICE, CU_UNIFIED};
static const int dst_types[] = {CU_HOST, CU_DEVICE, CU_HOST, CU_DEVICE, CU_UNIFIED};

/* Converts a runtime copy to the driver's description. */
static int description_of(const cudaMemcpy3DParms *p, CUDA_MEMCPY3D *d)
{
	struct copy c;
	struct slices s;
	int error = copy_of_runtime(p, &c, &s);
	if (!error && (p->kind < HOST_TO_HOST || p->kind > BY_ADDRESS))
		error = INVALID_DIRECTION;
	if (error)
		return error;
	int src = src_types[p->kind], dst = dst_types[p->kind];
	*d = (CUDA_MEMCPY3D){.srcXInBytes = p->srcPos.x,
			     .srcY = p->srcPos.y,
			     .srcZ = p->srcPos.z,
			     .srcMemoryType = src,
			     .srcHost = src == CU_HOST ? p->srcPtr.ptr : NULL,
			     .srcDevice = src == CU_HOST ? 0 : (CUdeviceptr)p->srcPtr.ptr,
			     .srcPitch = p->srcPtr.pitch,
			     .srcHeight = p->srcPtr.ysize,
			     .dstXInBytes = p->dstPos.x,
			     .dstY = p->dstPos.y,
			     .dstZ = p->dstPos.z,
			     .dstMemoryType = dst,
			     .dstHost = dst == CU_HOST ? p->dstPtr.ptr : NULL,
			     .dstDevice = dst == CU_HOST ? 0 : (CUdeviceptr)p->dstPtr.ptr,
			     .dstPitch = p->dstPtr.pitch,
			     .dstHeight = p->dstPtr.ysize,
			     .WidthInBytes = p->extent.width,
			     .Height = p->extent.height,
			     .Depth = p->extent.depth};
	return CUDA_OK;
}

static void *driver_address(int type, const void *host, CUdeviceptr device)
{
	return type == CU_HOST ? (void *)host : (void *)device;
}

int graph_get_copy(void *node, cudaMemcpy3DParms *p)
{
	CUDA_MEMCPY3D d;
	int error = p ? cuGraphMemcpyNodeGetParams(node, &d) : INVALID_VALUE;
	if (error)
		return error;
	*p = (cudaMemcpy3DParms){.srcPos = {d.srcXInBytes, d.srcY, d.srcZ},
				 .srcPtr = {driver_address(d.srcMemoryType, d.srcHost, d.srcDevice),
					    d.srcPitch, d.srcPitch, d.srcHeight},
				 .dstPos = {d.dstXInBytes, d.dstY, d.dstZ},
				 .dstPtr = {driver_address(d.dstMemoryType, d.dstHost, d.dstDevice),
					    d.dstPitch, d.dstPitch, d.dstHeight},
				 .extent = {d.WidthInBytes, d.Height, d.Depth},
				 .kind = BY_ADDRESS};
	for (int kind = HOST_TO_HOST; kind < BY_ADDRESS; kind++)
		if (src_types[kind] == d.srcMemoryType && dst_types[kind] == d.dstMemoryType)
			p->kind = kind;
	return CUDA_OK;
}

static cudaMemcpy3DParms one_row(void *dst, const void *src, size_t bytes, int kind)
{
	return (cudaMemcpy3DParms){.srcPtr = {(void *)src, bytes, bytes, 1},
				   .dstPtr = {dst, bytes, bytes, 1},
				   .extent = {bytes, 1, 1},
				   .kind = kind};
}

int graph_add_copy(void **out, void *graph, const CUgraphNode *needs, size_t count,
		   const cudaMemcpy3DParms *p)
{
	CUDA_MEMCPY3D d;
	int error = description_of(p, &d);
	return error ? error : cuGraphAddMemcpyNode(out, graph, needs, count, &d, NULL);
}

int graph_set_copy(void *exec, void *node, const cudaMemcpy3DParms *p)
{
	CUDA_MEMCPY3D d;
	int error = description_of(p, &d);
	if (error)
		return error;
	return exec ? cuGraphExecMemcpyNodeSetParams(exec, node, &d, NULL)
		    : cuGraphMemcpyNodeSetParams(node, &d);
}

int graph_add_copy_1d(void **out, void *graph, const CUgraphNode *needs, size_t count, void *dst,
		      const void *src, size_t bytes, int kind)
{
	cudaMemcpy3DParms p = one_row(dst, src, bytes, kind);
	return graph_add_copy(out, graph, needs, count, &p);
}

int graph_set_copy_1d(void *exec, void *node, void *dst, const void *src, size_t bytes, int kind)
{
	cudaMemcpy3DParms p = one_row(dst, src, bytes, kind);
	return graph_set_copy(exec, node, &p);
}

int graph_add_to_symbol(void **out, void *graph, const CUgraphNode *needs, size_t count,
			const void *symbol, const void *src, size_t bytes, size_t offset, int kind)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, true, &at);
	return error ? error : graph_add_copy_1d(out, graph, needs, count, at, src, bytes, kind);
}

int graph_add_from_symbol(void **out, void *graph, const CUgraphNode *needs, size_t count,
			  void *dst, const void *symbol, size_t bytes, size_t offset, int kind)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, false, &at);
	return error ? error : graph_add_copy_1d(out, graph, needs, count, dst, at, bytes, kind);
}

int graph_set_to_symbol(void *exec, void *node, const void *symbol, const void *src, size_t bytes,
			size_t offset, int kind)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, true, &at);
	return error ? error : graph_set_copy_1d(exec, node, at, src, bytes, kind);
}

int graph_set_from_symbol(void *exec, void *node, void *dst, const void *symbol, size_t bytes,
			  size_t offset, int kind)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, false, &at);
	return error ? error : graph_set_copy_1d(exec, node, dst, at, bytes, kind);
}

/* ---- nodes of any kind ---- */

static int params_of(const cudaGraphNodeParams *p, CUgraphNodeParams *d)
{
	static const size_t used[NODE_KINDS] = {
		[NODE_KERNEL] = sizeof p->kernel,      [NODE_COPY] = sizeof p->memcpy,
		[NODE_FILL] = sizeof p->memset,        [NODE_HOST] = sizeof p->host,
		[NODE_CHILD] = sizeof p->graph,        [NODE_WAIT] = sizeof p->eventWait,
		[NODE_RECORD] = sizeof p->eventRecord,
	};
	int error = node_params_check(p, used);
	if (error)
		return error;
	*d = (CUgraphNodeParams){.type = p->type};
	switch (p->type) {
	case NODE_KERNEL:
		d->kernel = kernel_of(&p->kernel);
		return d->kernel.func ? CUDA_OK : INVALID_HANDLE;
	case NODE_COPY:
		if (p->memcpy.flags || p->memcpy.reserved[0] || p->memcpy.reserved[1] ||
		    p->memcpy.reserved[2])
			return INVALID_VALUE;
		return description_of(&p->memcpy.copyParams, &d->memcpy.copyParams);
	case NODE_FILL: d->memset.params = p->memset; break;
	case NODE_HOST: d->host = p->host; break;
	case NODE_CHILD: d->graph = p->graph; break;
	case NODE_WAIT:
	case NODE_RECORD:
		d->eventWait = p->eventWait; /* eventRecord is at the same place */
		break;
	}
	return CUDA_OK;
}

int graph_add_any(void **out, void *graph, const CUgraphNode *needs, const cudaGraphEdgeData *data,
		  size_t count, const cudaGraphNodeParams *p)
{
	CUgraphNodeParams d;
	int error = params_of(p, &d);
	return error ? error : graph_add_node(out, graph, needs, data, count, &d);
}

int graph_set_any(void *exec, void *node, const cudaGraphNodeParams *p)
{
	CUgraphNodeParams d;
	int error = params_of(p, &d);
	if (error)
		return error;
	return exec ? cuGraphExecNodeSetParams(exec, node, &d) : cuGraphNodeSetParams(node, &d);
}
