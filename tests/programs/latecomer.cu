// latecomer.cu: ranks that never communicate; all but rank 0 make their first call of CUDA when a
// file (argument 2) exists. Each adds one to MIB (argument 3) of numbers in every step, until
// another file (argument 4) exists, and checks them all.
#include "common.h"

#include <unistd.h>

__global__ void add_one(unsigned *numbers, size_t count)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        numbers[i]++;
}

int main(int argc, char **argv)
{
    EXPECT(argc > 4, "usage: latecomer STEPS BEGIN MIB END");
    World world = world_from_env();
    while (world.rank && access(argv[2], F_OK))
        usleep(200);
    world = start();
    size_t count = size_t(argument(argc, argv, 3, 1)) << 18;
    unsigned *numbers = on_device<unsigned>(count);
    unsigned k = 0;
    for (int left = argument(argc, argv, 1, 1); left > 0 || access(argv[4], F_OK); left--, k++) {
        add_one<<<16, 128>>>(numbers, count);
        CUDA_CHECK(cudaDeviceSynchronize());
        if (k == 0) {
            printf("begun\n");
            fflush(stdout);
        }
    }
    for (unsigned each : fetch(numbers, count))
        EXPECT(each == k, "%u instead of %u", each, k);
    return 0;
}
