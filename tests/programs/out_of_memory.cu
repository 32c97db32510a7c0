// out_of_memory.cu: allocates until memory is exhausted and expects cudaErrorMemoryAllocation;
// nothing else breaks, and what is freed can be had again. How much fits does not depend on
// what else happens on the device: it is printed.
#include "common.h"

__global__ void touch(char *data, size_t bytes) { data[bytes - 1] = 1; }

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 3);
    size_t piece = size_t(8) << 20, free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    EXPECT(free_bytes <= total && total > 0, "%zu free of %zu", free_bytes, total);
    for (int k = 0; k < steps; k++) {
        std::vector<char *> pieces;
        char *data;
        cudaError_t error;
        while ((error = cudaMalloc(&data, piece)) == cudaSuccess) {
            touch<<<1, 1>>>(data, piece);
            pieces.push_back(data);
            EXPECT(pieces.size() * piece <= total, "more than the device has");
        }
        EXPECT(error == cudaErrorMemoryAllocation, "%s", cudaGetErrorName(error));
        EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation, "the error is kept");
        EXPECT(cudaGetLastError() == cudaSuccess, "and is not sticky");
        CUDA_CHECK(cudaDeviceSynchronize());
        for (char *each : pieces)
            CUDA_CHECK(cudaFree(each));
        int count = int(pieces.size()), *counts = on_device<int>(1);
        CUDA_CHECK(cudaMemcpy(counts, &count, sizeof count, cudaMemcpyHostToDevice));
        NCCL_CHECK(ncclAllReduce(counts, counts, 1, ncclInt, ncclMax, comm, 0));
        EXPECT(report(k, "pieces", counts, 1)[0] == count, "rank %d: %d", world.rank, count);
        CUDA_CHECK(cudaFree(counts));
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
