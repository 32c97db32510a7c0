// crash.cu: one rank dies of a segmentation fault in mid-run. Arguments: steps, rank, step.
#include "common.h"

#include <csignal>

__global__ void increment(float *data) { data[threadIdx.x] += 1.0f; }

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 20), victim = argument(argc, argv, 2, 1);
    int when = argument(argc, argv, 3, 7);
    float *data = on_device<float>(64);
    for (int k = 0; k < steps; k++) {
        increment<<<1, 64>>>(data);
        if (world.rank == victim && k == when)
            raise(SIGSEGV);
        NCCL_CHECK(ncclAllReduce(data, data, 64, ncclFloat, ncclMax, comm, 0));
        EXPECT(report(k, "data", data, 64)[63] == float(k + 1), "step %d", k);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
