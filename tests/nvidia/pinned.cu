// pinned.cu: pinned memory of several sizes that comes and goes, which a kernel and copies reach.
#include "../programs/common.h"

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        data[i]++;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 12);
    const uint32_t sizes[] = {1000, 1 << 20, 1 << 19, 700000};
    uint32_t *data = on_device<uint32_t>(1 << 20), *kept, *blocks[4] = {};
    CUDA_CHECK(cudaMallocHost(&kept, 4096));
    kept[0] = 100 * world.rank;
    for (int k = 0; k < steps; k++) {
        uint32_t n = sizes[k % 4], *&at = blocks[(k * k) % 4];
        if (at)
            CUDA_CHECK(cudaFreeHost(at));
        CUDA_CHECK(cudaMallocHost(&at, n * sizeof *at));
        EXPECT(at[0] == 0 && at[n - 1] == 0, "new memory has %u and %u", at[0], at[n - 1]);
        for (uint32_t i = 0; i < n; i++)
            at[i] = i * (k + 1) + world.rank;
        increment<<<1, 128>>>(at, n);
        increment<<<1, 128>>>(kept, 1);
        CUDA_CHECK(cudaMemcpyAsync(data, at, n * sizeof *at, cudaMemcpyHostToDevice));
        increment<<<1, 128>>>(data, n);
        CUDA_CHECK(cudaMemcpyAsync(at, data, n * sizeof *at, cudaMemcpyDeviceToHost));
        NCCL_CHECK(ncclAllReduce(data, data, 1000, ncclUint32, ncclSum, comm, nullptr));
        CUDA_CHECK(cudaDeviceSynchronize());
        for (uint32_t i = 0; i < n; i += 499)
            EXPECT(at[i] == i * (k + 1) + world.rank + 2, "word %u is %u", i, at[i]);
        print_line(k, "data", at, n * sizeof *at);
    }
    EXPECT(kept[0] == 100u * world.rank + steps, "what was kept is %u", kept[0]);
    return 0;
}
