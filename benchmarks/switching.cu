// switching.cu: each rank has much memory, uses a word of it in each step, and then waits for the
// others. Arguments: steps, MiB. Prints a line for each step.
#include "../tests/programs/common.h"

// By this name the tests' fake driver has it, too (tests/nvidia/kernels.c).
extern "C" __global__ void increment(uint32_t *data, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        data[i]++;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 10), mib = argument(argc, argv, 2, 64);
    uint32_t *memory = on_device<uint32_t>((size_t(mib) << 20) / sizeof(uint32_t));
    uint32_t *sum = on_device<uint32_t>(1);
    for (int k = 0; k < steps; k++) {
        increment<<<1, 1>>>(memory, 1);
        NCCL_CHECK(ncclAllReduce(memory, sum, 1, ncclUint32, ncclSum, comm, 0));
        EXPECT(fetch(sum, 1)[0] == uint32_t(world.size) * (k + 1), "the sum of step %d", k);
        printf("step %d\n", k);
        fflush(stdout);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
