// one_launch.cu: allocates, launches once, prints the first error's name and exits with 3 if there
// is one. Needs no communicator, so it can be linked in every way that nvcc knows.
#include <cstdio>

__global__ void set(int *value) { *value = 1; }

int main()
{
    int *value = nullptr, got = 0;
    cudaError_t error = cudaMalloc(&value, sizeof *value);
    if (error == cudaSuccess) {
        set<<<1, 1>>>(value);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpy(&got, value, sizeof got, cudaMemcpyDeviceToHost);
    printf("%s\n", cudaGetErrorName(error));
    return error == cudaSuccess && got == 1 ? 0 : 3;
}
