// refused_kernel.cu: as CUB does, it does not launch a kernel whose attributes it cannot get, and
// ignores the error. The software GPU refuses an instruction of that kernel. Prints what the copy
// of the results that it has not computed returns.
#include "common.h"

__global__ void stops_for_a_debugger(int *result)
{
    *result = 7;
    __brkpt();
}

int main()
{
    start();
    int *result = on_device<int>(1), value = -1;
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, stops_for_a_debugger) == cudaSuccess)
        stops_for_a_debugger<<<1, 1>>>(result);
    cudaGetLastError();
    cudaError_t error = cudaMemcpy(&value, result, sizeof value, cudaMemcpyDeviceToHost);
    printf("%s %d\n", cudaGetErrorName(error), value);
    return 0;
}
