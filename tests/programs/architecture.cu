// architecture.cu: prints the architecture that its kernel was compiled for, and the compute
// capability of the device. With an argument it waits for that file before its first launch.
#include <cstdio>
#include <unistd.h>

__global__ void which(int *value)
{
#ifdef __CUDA_ARCH__
    *value = __CUDA_ARCH__;
#endif
}

int main(int argc, char **argv)
{
    int *value = nullptr, got = 0;
    cudaDeviceProp told = {};
    cudaError_t error = cudaGetDeviceProperties(&told, 0);
    while (argc > 1 && access(argv[1], F_OK) != 0)
        usleep(10000);
    if (error == cudaSuccess)
        error = cudaMalloc(&value, sizeof *value);
    if (error == cudaSuccess) {
        which<<<1, 1>>>(value);
        error = cudaMemcpy(&got, value, sizeof got, cudaMemcpyDeviceToHost);
    }
    printf("%s %d %d\n", cudaGetErrorName(error), got, told.major * 100 + told.minor * 10);
    return error == cudaSuccess ? 0 : 3;
}
