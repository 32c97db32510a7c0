// poll.cu: ranks that never block: they ask again and again whether an event, or a stream, is over,
// which it is only when their neighbours have run a kernel too. On one device the one that asks
// has to give way to them.
#include "common.h"

constexpr int COUNT = 256;

__global__ void contribute(float *values, int rank, int step)
{
    values[threadIdx.x] = float((rank + 1) * (step + threadIdx.x));
}

static void poll(cudaError_t (*ask)(void *), void *what)
{
    cudaError_t answer;
    while ((answer = ask(what)) == cudaErrorNotReady)
        continue;
    CUDA_CHECK(answer);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    float *values = on_device<float>(COUNT);
    cudaStream_t stream;
    cudaEvent_t event;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int k = 0; k < steps; k++) {
        contribute<<<1, COUNT, 0, stream>>>(values, world.rank, k);
        NCCL_CHECK(ncclAllReduce(values, values, COUNT, ncclFloat, ncclSum, comm, stream));
        CUDA_CHECK(cudaEventRecord(event, stream));
        if (k % 2)
            poll([](void *e) { return cudaEventQuery(static_cast<cudaEvent_t>(e)); }, event);
        else
            poll([](void *s) { return cudaStreamQuery(static_cast<cudaStream_t>(s)); }, stream);
        std::vector<float> sum = report(k, "sum", values, COUNT);
        int ranks = world.size * (world.size + 1) / 2;
        EXPECT(sum[1] == float(ranks * (k + 1)), "step %d: %f", k, sum[1]);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
