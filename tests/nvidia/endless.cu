// endless.cu: a kernel that waits for a value that is never written.
#include "../programs/common.h"

extern "C" __global__ void until_set(uint32_t *word)
{
    while (!*(volatile uint32_t *)word)
        ;
}

int main()
{
    uint32_t *word = on_device(std::vector<uint32_t>(1, 0));
    until_set<<<1, 1>>>(word);
    printf("waits\n");
    fflush(stdout);
    CUDA_CHECK(cudaDeviceSynchronize());
    return 0;
}
