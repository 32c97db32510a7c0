// until_told.cu: trains until a file (argument 1) exists, then all ranks end together. Every PERIOD
// steps it begins anew, so the bits that step k prints depend on k % PERIOD only: however long it
// ran, its output is known. Two streams, an event, a sum of floats whose order matters.
#include "common.h"

#include <unistd.h>

constexpr int PERIOD = 16, COUNT = 4096, THREADS = 128;

__global__ void begin(float *weights)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    weights[i] = 1.0f / float(i + 1);
}

__global__ void gradient(const float *weights, float *out, int rank, int step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = weights[(i * 7 + step) % COUNT] / float(3 + rank + i % 5) - 0.01f * float(rank);
}

__global__ void update(float *weights, const float *sum, float rate)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    weights[i] = 0.999f * weights[i] - rate * sum[i];
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    EXPECT(argc > 1, "usage: until_told FILE");
    float *weights = on_device<float>(COUNT), *sum = on_device<float>(COUNT);
    int *told = on_device<int>(1);
    cudaStream_t compute, network;
    cudaEvent_t ready, reduced;
    CUDA_CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&network, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int k = 0, stop = 0; !stop; k++) {
        if (k % PERIOD == 0)
            begin<<<COUNT / THREADS, THREADS, 0, compute>>>(weights);
        gradient<<<COUNT / THREADS, THREADS, 0, compute>>>(weights, sum, world.rank, k % PERIOD);
        CUDA_CHECK(cudaEventRecord(ready, compute));
        CUDA_CHECK(cudaStreamWaitEvent(network, ready, 0));
        NCCL_CHECK(ncclAllReduce(sum, sum, COUNT, ncclFloat, ncclSum, comm, network));
        CUDA_CHECK(cudaEventRecord(reduced, network));
        CUDA_CHECK(cudaStreamWaitEvent(compute, reduced, 0));
        update<<<COUNT / THREADS, THREADS, 0, compute>>>(weights, sum, 0.05f);
        report(k % PERIOD, "weights", weights, COUNT);
        stop = k % PERIOD == PERIOD - 1 && access(argv[1], F_OK) == 0;
        CUDA_CHECK(cudaMemcpy(told, &stop, sizeof stop, cudaMemcpyHostToDevice));
        NCCL_CHECK(ncclAllReduce(told, told, 1, ncclInt, ncclMax, comm, network));
        CUDA_CHECK(cudaStreamSynchronize(network));
        CUDA_CHECK(cudaMemcpy(&stop, told, sizeof stop, cudaMemcpyDeviceToHost));
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
