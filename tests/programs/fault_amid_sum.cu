// fault_amid_sum.cu: rank 0's kernel faults on one stream while what it gives to an all-reduce on
// another is being added up.
#include "common.h"

__global__ void put(int *to) { *to = 1; }

int main()
{
    ncclComm_t comm;
    World world = start(&comm);
    const size_t n = 16 << 20;
    float *data = on_device<float>(n);
    cudaStream_t sums, other;
    CUDA_CHECK(cudaStreamCreateWithFlags(&sums, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (int k = 0; k < 20; k++) {
        NCCL_CHECK(ncclAllReduce(data, data, n, ncclFloat, ncclSum, comm, sums));
        if (k == 2 && world.rank == 0)
            put<<<1, 1, 0, other>>>((int *)16);
    }
    cudaError_t error = cudaDeviceSynchronize();
    printf("rank %d: %s\n", world.rank, cudaGetErrorName(error));
    return error != cudaSuccess;
}
