// ring.cu: broadcast, reduce, all-gather, and a ring of grouped sends and receives, all of
// integers, each from a changing root. After `world size` turns of the ring each block is home.
#include "common.h"

constexpr int COUNT = 300;

__global__ void number(int *data, int value)
{
    data[blockIdx.x * blockDim.x + threadIdx.x] = value + blockIdx.x * blockDim.x + threadIdx.x;
}

static void check(const char *what, const int *device, int value, int per_index = 1)
{
    std::vector<int> values = fetch(device, COUNT);
    for (int i = 0; i < COUNT; i++)
        EXPECT(values[i] == value + per_index * i, "%s[%d] is %d", what, i, values[i]);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40), n = world.size, rank = world.rank;
    int *data = on_device<int>(COUNT), *other = on_device<int>(COUNT);
    int *blocks = on_device<int>(size_t(COUNT) * n);
    for (int k = 0; k < steps; k++) {
        int root = k % n;
        number<<<3, COUNT / 3>>>(data, 1000 * rank + k);
        NCCL_CHECK(ncclReduce(data, other, COUNT, ncclInt, ncclSum, root, comm, 0));
        if (rank == root)
            check("reduce", other, 1000 * n * (n - 1) / 2 + n * k, n);
        NCCL_CHECK(ncclBroadcast(data, other, COUNT, ncclInt, root, comm, 0));
        check("broadcast", other, 1000 * root + k);
        NCCL_CHECK(ncclAllGather(data, blocks, COUNT, ncclInt, comm, 0));
        for (int r = 0; r < n; r++)
            check("all-gather", blocks + r * COUNT, 1000 * r + k);
        for (int turn = 1; turn <= n; turn++) {
            NCCL_CHECK(ncclGroupStart());
            NCCL_CHECK(ncclSend(data, COUNT, ncclInt, (rank + 1) % n, comm, 0));
            NCCL_CHECK(ncclRecv(other, COUNT, ncclInt, (rank + n - 1) % n, comm, 0));
            NCCL_CHECK(ncclGroupEnd());
            std::swap(data, other);
            check("ring", data, 1000 * ((rank + n - turn % n) % n) + k);
        }
        report(k, "blocks", blocks, size_t(COUNT) * n);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
