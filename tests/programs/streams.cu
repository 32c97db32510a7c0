// streams.cu: many streams. Blocking streams order with the legacy default stream, non-blocking
// ones only through events; copies and memsets take their place in the order too.
#include "common.h"

constexpr int STREAMS = 12, COUNT = 512;

__global__ void scale_add(int *data, int factor, int add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = data[i] * factor + add;
}
__global__ void gather(int *const *parts, int *sum)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int s = 0; s < STREAMS; s++)
        sum[i] += parts[s][i];
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    cudaStream_t streams[STREAMS], loner;
    std::vector<int *> parts;
    for (cudaStream_t &stream : streams) {
        CUDA_CHECK(cudaStreamCreate(&stream));
        parts.push_back(on_device<int>(COUNT));
    }
    CUDA_CHECK(cudaStreamCreateWithFlags(&loner, cudaStreamNonBlocking));
    int **table = on_device(parts), *sum = on_device<int>(COUNT), *copy = on_device<int>(COUNT);
    cudaEvent_t summed, copied;
    CUDA_CHECK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    int expected[STREAMS] = {};
    for (int k = 0; k < steps; k++) {
        int total = 0;
        CUDA_CHECK(cudaStreamWaitEvent(0, copied, 0));     // `sum` has been copied
        CUDA_CHECK(cudaMemsetAsync(sum, 0, COUNT * sizeof(int), 0));
        for (int s = 0; s < STREAMS; s++) {
            scale_add<<<COUNT / 128, 128, 0, streams[s]>>>(parts[s], 3, s + k);
            scale_add<<<COUNT / 128, 128, 0, streams[s]>>>(parts[s], 1, -2 * world.rank);
            expected[s] = (expected[s] * 3 + s + k - 2 * world.rank) % 1000;
            total += expected[s];
        }
        gather<<<COUNT / 128, 128>>>(table, sum);          // after all of the above
        for (int s = 0; s < STREAMS; s++)                  // after the gathering
            CUDA_CHECK(cudaMemcpyAsync(parts[s], std::vector<int>(COUNT, expected[s]).data(),
                                       COUNT * sizeof(int), cudaMemcpyHostToDevice, streams[s]));
        CUDA_CHECK(cudaEventRecord(summed, 0));
        CUDA_CHECK(cudaStreamWaitEvent(loner, summed, 0));
        CUDA_CHECK(cudaMemcpyAsync(copy, sum, COUNT * sizeof(int), cudaMemcpyDeviceToDevice,
                                   loner));
        CUDA_CHECK(cudaEventRecord(copied, loner));
        NCCL_CHECK(ncclAllReduce(copy, copy, COUNT, ncclInt, ncclMax, comm, loner));
        std::vector<int> raw = fetch(sum, COUNT);
        for (int i = 0; i < COUNT; i++)
            EXPECT((raw[i] - total) % 1000 == 0, "step %d: sum[%d] is %d", k, i, raw[i]);
        print_line(k, "sum", raw.data(), COUNT * sizeof(int));
        report(k, "maximum", copy, COUNT);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
