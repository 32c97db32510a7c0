// subgroups.cu: two communicators over all ranks (the second in reverse order), and groups split
// from the first: even and odd ranks, and one that leaves rank 0 out. All sums are integers.
#include "common.h"

__global__ void fill(float *data, int count, float value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] = value + i;
}

constexpr int COUNT = 1000;

static ncclComm_t second_communicator(const World &world, ncclComm_t comm)
{
    ncclUniqueId id;
    if (world.rank == 0)
        NCCL_CHECK(ncclGetUniqueId(&id));
    char *box = on_device<char>(sizeof id);
    if (world.rank == 0)
        CUDA_CHECK(cudaMemcpy(box, &id, sizeof id, cudaMemcpyHostToDevice));
    NCCL_CHECK(ncclBroadcast(box, box, sizeof id, ncclChar, 0, comm, 0));
    CUDA_CHECK(cudaStreamSynchronize(0));
    CUDA_CHECK(cudaMemcpy(&id, box, sizeof id, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(box));
    ncclComm_t second;
    NCCL_CHECK(ncclCommInitRank(&second, world.size, id, world.size - 1 - world.rank));
    return second;
}

// Sums rank + 1 + step over a group and compares with what that must give.
static void check_sum(const char *name, int step, int value, int members, int expected_sum,
                      ncclComm_t comm, float *data, cudaStream_t stream)
{
    int count;
    NCCL_CHECK(ncclCommCount(comm, &count));
    EXPECT(count == members, "%s has %d members, not %d", name, count, members);
    fill<<<(COUNT + 127) / 128, 128, 0, stream>>>(data, COUNT, float(value));
    NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
    std::vector<float> sums = report(step, name, data, COUNT);
    for (int i = 0; i < COUNT; i++)
        EXPECT(sums[i] == float(expected_sum + i * members), "%s[%d] is %g", name, i, sums[i]);
}

int main(int argc, char **argv)
{
    ncclComm_t all, reversed, parity, without_first = nullptr;
    World world = start(&all);
    int steps = argument(argc, argv, 1, 40), n = world.size, rank = world.rank, place;
    reversed = second_communicator(world, all);
    NCCL_CHECK(ncclCommUserRank(reversed, &place));
    EXPECT(place == n - 1 - rank, "rank %d of the reversed communicator", place);
    NCCL_CHECK(ncclCommSplit(all, rank % 2, -rank, &parity, nullptr));
    NCCL_CHECK(ncclCommSplit(all, rank ? 0 : NCCL_SPLIT_NOCOLOR, rank, &without_first, nullptr));
    EXPECT((without_first == nullptr) == (rank == 0), "who is in the group without rank 0?");
    NCCL_CHECK(ncclCommUserRank(parity, &place));
    int same = (n + 1 - rank % 2) / 2, same_sum = 0, sum = n * (n + 1) / 2;
    EXPECT(place == same - 1 - rank / 2, "keys order a split: rank %d is at %d", rank, place);
    for (int r = rank % 2; r < n; r += 2)
        same_sum += r + 1;
    float *data = on_device<float>(COUNT);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (int k = 0; k < steps; k++) {
        check_sum("all", k, rank + 1 + k, n, sum + n * k, all, data, stream);
        check_sum("parity", k, rank + 1 + k, same, same_sum + same * k, parity, data, stream);
        if (without_first)
            check_sum("without_first", k, rank + 1, n - 1, sum - 1, without_first, data, 0);
        check_sum("reversed", k, rank + 1, n, sum, reversed, data, stream);
    }
    if (without_first)
        NCCL_CHECK(ncclCommDestroy(without_first));
    NCCL_CHECK(ncclCommDestroy(parity));
    NCCL_CHECK(ncclCommDestroy(reversed));
    NCCL_CHECK(ncclCommDestroy(all));
    return 0;
}
