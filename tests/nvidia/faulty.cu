// faulty.cu: a kernel that touches what is not there, which ends a GPU's context for all its ranks.
// Arguments: a file that is made first, and if it is there already, nothing is wrong; and `stays`,
// if the program takes no notice.
#include "../programs/common.h"

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        data[i]++;
}

extern "C" __global__ void fault() { *(volatile int *)nullptr = 1; }

int main(int argc, char **argv)
{
    uint32_t *memory = on_device(std::vector<uint32_t>(4, 41)), got;
    bool first = argc > 1 && access(argv[1], F_OK);
    if (first)
        fclose(fopen(argv[1], "w"));
    increment<<<1, 128>>>(memory, 4);
    if (first)
        fault<<<1, 1>>>();
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(error));
    fflush(stdout);
    while (first && argc > 2)
        pause();
    CUDA_CHECK(cudaMemcpy(&got, memory, sizeof got, cudaMemcpyDeviceToHost));
    return got == 42 ? 0 : 1;
}
