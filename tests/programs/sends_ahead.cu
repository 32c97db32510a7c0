// sends_ahead.cu: rank 0 enqueues many more sends than are buffered (argument 2: how many, of
// 16 MiB each) and says which have left; rank 1 begins to receive when a file (argument 1) exists,
// and ends when it has received all, or as many as argument 3 says.
#include "common.h"

#include <unistd.h>

constexpr int COUNT = 4 << 20, THREADS = 256;

__global__ void number(int *data, int k)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = i * 31 + k * 1000003;
}

__global__ void count_wrong(const int *data, int k, int *wrong)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (data[i] != i * 31 + k * 1000003)
        atomicAdd(wrong, 1);
}

static void say(const char *what, int k)
{
    printf("%s %d\n", what, k);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    EXPECT(argc > 2 && world.size == 2, "usage: sends_ahead FILE SENDS, two ranks");
    int sends = argument(argc, argv, 2, 0), receives = argument(argc, argv, 3, sends);
    int *data = on_device<int>(COUNT);
    int *wrong = on_device<int>(1), count = world.rank == 0 ? sends : receives;
    std::vector<cudaEvent_t> left(sends);
    for (int k = 0; k < sends && world.rank == 0; k++) {
        number<<<COUNT / THREADS, THREADS>>>(data, k);
        NCCL_CHECK(ncclSend(data, COUNT, ncclInt, 1, comm, 0));
        CUDA_CHECK(cudaEventCreate(&left[k]));
        CUDA_CHECK(cudaEventRecord(left[k], 0));
    }
    while (world.rank == 1 && access(argv[1], F_OK))
        usleep(1000);
    for (int k = 0; k < count; k++) {
        if (world.rank == 0) {
            CUDA_CHECK(cudaEventSynchronize(left[k]));
            say("sent", k);
            continue;
        }
        NCCL_CHECK(ncclRecv(data, COUNT, ncclInt, 0, comm, 0));
        count_wrong<<<COUNT / THREADS, THREADS>>>(data, k, wrong);
        int found = fetch(wrong, 1)[0];
        EXPECT(found == 0, "%d numbers of send %d are wrong", found, k);
        say("received", k);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
