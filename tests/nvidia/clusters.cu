// clusters.cu: launches with clusters of thread blocks. The fake driver has the kernel (kernels.c),
// which writes how many blocks a cluster has. The one here only has its parameters.
#include <cuda.h>

#include "../programs/behaviour.h"

extern "C" __global__ void put_cluster(uint32_t *at, uint32_t nothing) {}

struct Launch {
    cudaLaunchAttribute attributes[4] = {};
    cudaLaunchConfig_t config = {};

    Launch(dim3 grid, dim3 cluster)
    {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {cluster.x, cluster.y, cluster.z};
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        attributes[2].id = cudaLaunchAttributePriority;
        attributes[2].val.priority = -1;
        attributes[3].id = cudaLaunchAttributeMemSyncDomain;
        attributes[3].val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
        config.gridDim = grid;
        config.blockDim = 32;
        config.attrs = attributes;
        config.numAttrs = 4;
    }
};

static cudaError_t put(const Launch &launch, uint32_t *at, cudaStream_t stream = nullptr)
{
    cudaLaunchConfig_t config = launch.config;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, put_cluster, at, 0u);
}

static void expect(const uint32_t *at, uint32_t blocks)
{
    EXPECT(fetch(at, 1)[0] == blocks, "%u", fetch(at, 1)[0]);
}

static void refused(uint32_t *at)
{
    int count;
    Launch pairs(4, 2);
    FAILS(put(pairs, at), cudaErrorNotSupported);
    FAILS(cudaOccupancyMaxActiveClusters(&count, put_cluster, &pairs.config),
          cudaErrorNotSupported);
    FAILS(cudaOccupancyMaxPotentialClusterSize(&count, put_cluster, &pairs.config),
          cudaErrorNotSupported);
    FAILS(cudaFuncSetAttribute(put_cluster, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          cudaErrorNotSupported);
    CUDA_CHECK(put(Launch(4, 1), at));
    CUDA_CHECK(cudaDeviceSynchronize());
}

static void captured(uint32_t *at)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(put(Launch(dim3(4, 4), dim3(2, 2)), at, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(instance, stream));
    expect(at, 4);
}

static void launches(uint32_t *at)
{
    int count;
    CUDA_CHECK(put(Launch(4, 2), at));
    expect(at, 2);
    CUDA_CHECK(put(Launch(dim3(4, 3, 2), dim3(1, 3, 2)), at));
    expect(at, 6);
    CUDA_CHECK(put(Launch(4, 1), at));
    expect(at, 1);
    captured(at);
    FAILS(put(Launch(5, 2), at), cudaErrorInvalidClusterSize);
    FAILS(put(Launch(32, 32), at), cudaErrorInvalidClusterSize);
    Launch eight(64, 8);
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, put_cluster, &eight.config));
    EXPECT(count == 16, "%d", count);
}

int main(int argc, char **argv)
{
    start();
    uint32_t *at = on_device<uint32_t>(1);
    if (argc > 2) {
        refused(at);
        return 0;
    }
    Launch sixteen(64, 16);
    int count;
    CUDA_CHECK(cudaOccupancyMaxPotentialClusterSize(&count, put_cluster, &sixteen.config));
    EXPECT(count == 8, "%d", count);
    FAILS(put(sixteen, at), cudaErrorInvalidClusterSize);
    launches(at);
    CUDA_CHECK(
        cudaFuncSetAttribute(put_cluster, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    interlude(argc, argv);
    launches(at);
    CUDA_CHECK(put(sixteen, at));
    expect(at, 16);
    CUDA_CHECK(cudaOccupancyMaxPotentialClusterSize(&count, put_cluster, &sixteen.config));
    EXPECT(count == 16, "%d", count);
    return 0;
}
