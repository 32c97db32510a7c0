// symbols.cu: constant memory and device variables, by name and by address; an all-reduce works
// directly on a device variable. Their contents must survive everything that happens between.
#include "common.h"

constexpr int COUNT = 128;
__constant__ float coefficients[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ float accumulator[COUNT];
__device__ int launches = 40;

__global__ void accumulate(float x)
{
    int i = threadIdx.x;
    float value = coefficients[3];
    for (int k = 2; k >= 0; k--)
        value = value * x + coefficients[k];
    accumulator[i] += value * i;
    if (i == 0)
        launches++;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40), n = world.size, count;
    void *address;
    size_t bytes;
    CUDA_CHECK(cudaGetSymbolAddress(&address, accumulator));
    CUDA_CHECK(cudaGetSymbolSize(&bytes, accumulator));
    EXPECT(bytes == COUNT * sizeof(float), "accumulator has %zu bytes", bytes);
    float *sums = on_device<float>(COUNT), zeros[COUNT] = {};
    for (int k = 0; k < steps; k++) {
        float first = float(k % 7);  // replaces coefficients[0]
        CUDA_CHECK(cudaMemcpyToSymbol(coefficients, &first, sizeof first, 0));
        accumulate<<<1, COUNT>>>(float(world.rank + 1));
        NCCL_CHECK(ncclAllReduce(address, sums, COUNT, ncclFloat, ncclSum, comm, 0));
        std::vector<float> got = report(k, "sums", sums, COUNT);
        float expected = 0.0f;
        for (int r = 1; r <= n; r++)
            expected += first + r * (2.0f + r * (3.0f + r * 4.0f));
        for (int i = 0; i < COUNT; i++)
            EXPECT(got[i] == expected * i, "sums[%d] is %g at step %d", i, got[i], k);
        CUDA_CHECK(cudaMemcpyToSymbol(accumulator, zeros, sizeof zeros));
    }
    CUDA_CHECK(cudaMemcpyFromSymbol(&count, launches, sizeof count));
    EXPECT(count == 40 + steps, "launches is %d", count);
    float kept[4];
    CUDA_CHECK(cudaMemcpyFromSymbol(kept, coefficients, sizeof kept));
    EXPECT(kept[1] == 2.0f && kept[3] == 4.0f, "coefficients %g %g", kept[1], kept[3]);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
