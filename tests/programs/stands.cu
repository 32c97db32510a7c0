// stands.cu: two ranks that get no further until a file (argument 2) exists. Argument 1 says why:
// rank 1 waits on the host, its kernel (or that of both) waits for a word, or it waits to receive,
// while rank 0 sums with it; both wait in sums of two communicators that they began in different
// order, forever; or rank 1 does not join.
#include <cstring>
#include <string>

#include "common.h"

__global__ void until_set(const volatile int *word)
{
    while (!*word)
        ;
}

int main(int argc, char **argv)
{
    EXPECT(argc > 2, "usage: stands host|kernel|kernels|receive|crossed|join FILE");
    std::string how = argv[1];
    auto wait = [&] {
        while (access(argv[2], F_OK))
            usleep(1000);
    };
    World world = start();
    ncclComm_t comm, other;
    ncclUniqueId id;
    if (world.rank == 0)
        NCCL_CHECK(ncclGetUniqueId(&id));
    share(world, &id, sizeof id);
    CUDA_CHECK(cudaFree(nullptr)); // it has its device
    if (how == "join" && world.rank == 1)
        wait();
    NCCL_CHECK(ncclCommInitRank(&comm, world.size, id, world.rank));
    NCCL_CHECK(ncclCommSplit(comm, 0, world.rank, &other, nullptr));
    cudaStream_t stream, beside;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    int *numbers = on_device<int>(1), *word;
    CUDA_CHECK(cudaMallocHost(&word, sizeof *word));
    *word = 0;
    printf("begun\n");
    fflush(stdout);
    auto sum = [&](ncclComm_t each) {
        NCCL_CHECK(ncclAllReduce(numbers, numbers, 1, ncclInt, ncclSum, each, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
    };
    if (how == "crossed") {
        sum(world.rank ? other : comm);
        sum(world.rank ? comm : other);
    }
    if (how == "receive") {
        if (world.rank)
            NCCL_CHECK(ncclRecv(numbers, 1, ncclInt, 0, other, beside));
        else
            wait();
        if (!world.rank)
            NCCL_CHECK(ncclSend(numbers, 1, ncclInt, 1, other, beside));
        CUDA_CHECK(cudaStreamSynchronize(beside));
    } else if (world.rank == 1 || how == "kernels") {
        if (how == "kernel" || how == "kernels")
            until_set<<<1, 1, 0, beside>>>(word);
        wait();
        *reinterpret_cast<volatile int *>(word) = 1;
        CUDA_CHECK(cudaStreamSynchronize(beside));
    }
    sum(comm);
    printf("over\n");
    return 0;
}
