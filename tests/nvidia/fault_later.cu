// fault_later.cu: ranks that add. While a file exists, the kernel of the last rank writes where
// nothing is mapped. Arguments: the number of steps, the file, and another file, without which the
// last step waits.
#include "../programs/common.h"

__device__ uint32_t counter = 41;

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        data[i]++;
}

extern "C" __global__ void count(uint32_t *out) { *out = ++counter; }

extern "C" __global__ void fault() { *(volatile int *)nullptr = 1; }

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    const uint32_t n = 1 << 20;
    uint32_t *data = on_device(std::vector<uint32_t>(n, 1000 * world.rank));
    uint32_t *counted = on_device<uint32_t>(1), *pinned;
    CUDA_CHECK(cudaMallocHost(&pinned, n * sizeof *pinned));
    for (int k = 0; k < steps; k++) {
        while (k == steps - 1 && access(argv[3], F_OK))
            usleep(5000);
        if (world.rank == world.size - 1 && !access(argv[2], F_OK))
            fault<<<1, 1>>>();
        increment<<<1, 128>>>(data, n);
        count<<<1, 1>>>(counted);
        NCCL_CHECK(ncclAllReduce(data, data, n, ncclUint32, ncclSum, comm, nullptr));
        CUDA_CHECK(cudaMemcpyAsync(pinned, data, n * sizeof *pinned, cudaMemcpyDeviceToHost));
        report(k, "counted", counted, 1);
        print_line(k, "data", pinned, n * sizeof *pinned);
        usleep(20000);
    }
    return 0;
}
