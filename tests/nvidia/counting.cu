// counting.cu: ranks that add and average, with kernels that the fake driver knows too (kernels.c).
#include "../programs/common.h"

__device__ uint32_t counter = 41;

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        data[i]++;
}

extern "C" __global__ void count(uint32_t *out) { *out = ++counter; }

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    const uint32_t n = 1 << 20;
    uint32_t *data = on_device(std::vector<uint32_t>(n, world.rank));
    uint32_t *counted = on_device<uint32_t>(1), *pinned;
    CUDA_CHECK(cudaMallocHost(&pinned, n * sizeof *pinned));
    for (int k = 0; k < steps; k++) {
        increment<<<1, 128>>>(data, n);
        count<<<1, 1>>>(counted);
        NCCL_CHECK(ncclAllReduce(data, data, n, ncclUint32, ncclMax, comm, nullptr));
        CUDA_CHECK(cudaMemcpyAsync(pinned, data, n * sizeof *pinned, cudaMemcpyDeviceToHost));
        auto counts = report(k, "counted", counted, 1);
        EXPECT(counts[0] == 42u + k, "the variable is %u", counts[0]);
        print_line(k, "data", pinned, n * sizeof *pinned);
        EXPECT(pinned[n - 1] == uint32_t(world.size + k), "the data are %u", pinned[n - 1]);
    }
    return 0;
}
