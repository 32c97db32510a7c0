// ignored_errors.cu: as CUB does, it does not launch a kernel whose attributes it cannot get, and
// ignores the error. Prints what the copy of the results that it has not computed returns.
#include "common.h"

__global__ void unlucky(int *found) { *found = 7; }
__global__ void add(int *to, const int *from) { *to += *from; }

int main()
{
    start();
    int *found = on_device<int>(1), *sum = on_device<int>(1), value = -1;
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, unlucky) == cudaSuccess)
        unlucky<<<1, 1>>>(found);
    cudaGetLastError();
    add<<<1, 1>>>(sum, found);
    cudaGetLastError();
    cudaError_t error = cudaMemcpy(&value, sum, sizeof value, cudaMemcpyDeviceToHost);
    printf("%s %d\n", cudaGetErrorName(error), value);
    return 0;
}
