// fault_amid_sum.cu: a rank's kernel ends the GPU's context while an all-reduce waits for another
// GPU's rank, which comes late. It must not hear that all is well.
#include "../programs/common.h"

extern "C" __global__ void fault() { *(volatile int *)nullptr = 1; }

int main()
{
    ncclComm_t comm;
    World world = start(&comm);
    const size_t n = 3 << 20;
    uint32_t *data = on_device(std::vector<uint32_t>(n, world.rank + 1));
    cudaStream_t other;
    CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    NCCL_CHECK(ncclAllReduce(data, data, n, ncclUint32, ncclSum, comm, nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    printf("begins\n");
    fflush(stdout);
    if (world.rank == world.size - 1)
        usleep(1500000);
    NCCL_CHECK(ncclAllReduce(data, data, n, ncclUint32, ncclSum, comm, nullptr));
    if (world.rank == 1) { // what is here has been added up by then
        usleep(700000);
        fault<<<1, 1, 0, other>>>();
    }
    cudaError_t error = cudaDeviceSynchronize();
    std::vector<uint32_t> got(n);
    if (error == cudaSuccess)
        error = cudaMemcpy(got.data(), data, n * sizeof got[0], cudaMemcpyDeviceToHost);
    uint32_t sum = world.size * (world.size + 1) / 2 * world.size, wrong = 0;
    for (uint32_t each : got)
        wrong += each != sum;
    if (error == cudaSuccess)
        printf("%u wrong\n", wrong);
    fflush(stdout);
    while (error != cudaSuccess) // and takes no notice
        pause();
    return error != cudaSuccess;
}
