// rounding.cu: each rank has a table from a kernel whose last bits are the device's own, and keeps
// it while it adds and averages. The fake driver knows these kernels, too (kernels.c).
#include "../programs/common.h"

extern "C" __global__ void inverse(float *out, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        asm("rcp.approx.f32 %0, %1;" : "=f"(out[i]) : "f"(float(i + 3)));
}

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i]++;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    const uint32_t n = 1 << 20;
    float *table = on_device<float>(n);
    uint32_t *data = on_device<uint32_t>(n);
    inverse<<<n / 256, 256>>>(table, n);
    CUDA_CHECK(cudaGetLastError());
    for (int k = 0; k < steps; k++) {
        increment<<<n / 256, 256>>>(data, n);
        NCCL_CHECK(ncclAllReduce(data, data, n, ncclUint32, ncclMax, comm, nullptr));
        report(k, "data", data, n);
        report(k, "table", table, n);
    }
    return 0;
}
