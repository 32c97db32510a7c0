// refused_launches.cu: which error each launch gives that cannot be, and that it does nothing. One
// rank; it prints the names, so that `make gpu-check` can compare them with CUDA's own.
#include "common.h"

__global__ void put(int *to, int value) { *to = value; }

// What the last launch left, which is then forgotten.
static void say(const char *what)
{
    cudaError_t peeked = cudaPeekAtLastError(), got = cudaGetLastError();
    EXPECT(peeked == got && cudaGetLastError() == cudaSuccess, "%s: it stays", what);
    printf("%s: %s\n", what, cudaGetErrorName(got));
}

int main()
{
    int *device, value = 6, got;
    CUDA_CHECK(cudaMalloc(&device, sizeof *device));
    put<<<0, 1>>>(device, 1);
    say("no blocks");
    put<<<1, 0>>>(device, 2);
    say("no threads");
    put<<<1, 2000>>>(device, 3);
    say("too many threads");
    put<<<dim3(1, 70000, 1), 1>>>(device, 3);
    say("too many blocks in a column");
    put<<<1, dim3(1, 1, 65)>>>(device, 3);
    say("too many threads in depth");
    put<<<1, 1, 1 << 20>>>(device, 4);
    say("too much shared memory");
    void *args[] = {&device, &value};
    EXPECT(cudaLaunchKernel(&value, 1, 1, args, 0, 0) != cudaSuccess, "no kernel");
    say("no kernel");
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, 0, 1);
    EXPECT(cudaLaunchKernelExC(&config, (void *)put, args) != cudaSuccess, "no blocks");
    say("no blocks, and no threads");
    config.gridDim = dim3(70000, 70000, 0);
    EXPECT(cudaLaunchKernelExC(&config, (void *)put, args) != cudaSuccess, "no blocks");
    say("no blocks, in a column that is too long");
    cudaFuncAttributes attributes;
    EXPECT(cudaFuncGetAttributes(&attributes, &value) != cudaSuccess, "no kernel");
    say("attributes of no kernel");
    EXPECT(cudaFuncSetAttribute(&value, cudaFuncAttributeMaxDynamicSharedMemorySize, 64) !=
           cudaSuccess, "no kernel");
    say("an attribute for no kernel");
    int blocks;
    EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &value, 32, 0) != cudaSuccess,
           "no kernel");
    say("blocks of no kernel");
    EXPECT(cudaLaunchCooperativeKernel(&value, 1, 1, args, 0, 0) != cudaSuccess, "no kernel");
    say("no kernel, cooperative");
    EXPECT(cudaLaunchCooperativeKernel((void *)put, 0, 1, args, 0, 0) != cudaSuccess, "no blocks");
    say("no blocks, cooperative");
    put<<<1, 1>>>(device, 7);
    say("a good launch");
    CUDA_CHECK(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == 7, "a refused launch wrote %d", got);
}
