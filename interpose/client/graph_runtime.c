/* graph_runtime.c: the runtime API's forms of graph functions, where its structures differ from the
 * driver's. No lock, nothing that blocks.
 */
#include "graph.h"

static CUDA_KERNEL_NODE_PARAMS kernel_of(const cudaKernelNodeParams *p)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = function_of_host(p->func), .gridDimX = p->gridDim.x, .gridDimY = p->gridDim.y,
		.gridDimZ = p->gridDim.z, .blockDimX = p->blockDim.x, .blockDimY = p->blockDim.y,
		.blockDimZ = p->blockDim.z, .sharedMemBytes = p->sharedMemBytes,
		.kernelParams = p->kernelParams, .extra = p->extra};
}

int graph_add_kernel(void **out, void *graph, const CUgraphNode *needs, size_t count,
		     const cudaKernelNodeParams *p)
{
	if (!p)
		return INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS driver = kernel_of(p);
	return driver.func ? cuGraphAddKernelNode(out, graph, needs, count, &driver)
			   : INVALID_DEVICE_FUNCTION;
}

int graph_set_kernel(void *exec, void *node, const cudaKernelNodeParams *p)
{
	if (!p)
		return INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS driver = kernel_of(p);
	return driver.func ? cuGraphExecKernelNodeSetParams(exec, node, &driver)
			   : INVALID_DEVICE_FUNCTION;
}

/* The driver's description of a runtime copy: all of it by address. */
static int description_of(const cudaMemcpy3DParms *p, CUDA_MEMCPY3D *d)
{
	struct copy c;
	struct slices s;
	int error = copy_of_runtime(p, &c, &s);
	if (error)
		return error;
	*d = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_UNIFIED, .srcDevice = (CUdeviceptr)c.src, .srcPitch = c.src_pitch,
		.srcHeight = p->srcPtr.ysize, .dstMemoryType = CU_UNIFIED,
		.dstDevice = (CUdeviceptr)c.dst, .dstPitch = c.dst_pitch,
		.dstHeight = p->dstPtr.ysize, .WidthInBytes = c.width, .Height = c.height,
		.Depth = s.count};
	return CUDA_OK;
}

static cudaMemcpy3DParms flat(void *dst, const void *src, size_t bytes, int kind)
{
	return (cudaMemcpy3DParms){.srcPtr = {(void *)src, bytes, bytes, 1},
				   .dstPtr = {dst, bytes, bytes, 1}, .extent = {bytes, 1, 1},
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
	return error ? error : cuGraphExecMemcpyNodeSetParams(exec, node, &d, NULL);
}

int graph_add_copy_1d(void **out, void *graph, const CUgraphNode *needs, size_t count, void *dst,
		      const void *src, size_t bytes, int kind)
{
	cudaMemcpy3DParms p = flat(dst, src, bytes, kind);
	return graph_add_copy(out, graph, needs, count, &p);
}

int graph_set_copy_1d(void *exec, void *node, void *dst, const void *src, size_t bytes, int kind)
{
	cudaMemcpy3DParms p = flat(dst, src, bytes, kind);
	return graph_set_copy(exec, node, &p);
}
