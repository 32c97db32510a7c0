// any_memory.cu: NCCL's operations from and to every kind of memory that a device reaches: device,
// pinned, managed, and registered memory, in all pairs, and in place. And what real NCCL lets pass:
// a size that is rounded up, which ends in the multiple of 512 bytes that an allocation has.
#include <algorithm>
#include <cstdlib>

#include "common.h"

constexpr int COUNT = 300, KINDS = 4, PAGE = 4096;
enum { OF_DEVICE, PINNED, MANAGED, REGISTERED };

struct Job {
    World world;
    ncclComm_t comm;
    cudaStream_t stream;
    int step;
    int value(int rank, int i) const { return (step * 31 + rank * 1000 + i) % 100000; }
};

// `ints` numbers in memory of a kind.
struct Memory {
    int kind, ints, *data;
    Memory(int kind, int ints) : kind(kind), ints(ints)
    {
        size_t bytes = ints * sizeof(int), pages = (bytes + PAGE - 1) / PAGE * PAGE;
        if (kind == OF_DEVICE)
            CUDA_CHECK(cudaMalloc(&data, bytes));
        else if (kind == PINNED)
            CUDA_CHECK(cudaMallocHost(&data, bytes));
        else if (kind == MANAGED)
            CUDA_CHECK(cudaMallocManaged(&data, bytes));
        else
            data = static_cast<int *>(aligned_alloc(PAGE, pages));
        if (kind == REGISTERED)
            CUDA_CHECK(cudaHostRegister(data, pages, cudaHostRegisterDefault));
    }
    ~Memory()
    {
        if (kind == REGISTERED) {
            CUDA_CHECK(cudaHostUnregister(data));
            free(data);
        } else {
            CUDA_CHECK(kind == PINNED ? cudaFreeHost(data) : cudaFree(data));
        }
    }
    void put(const std::vector<int> &values, cudaStream_t stream)
    {
        CUDA_CHECK(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(int),
                                   cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    std::vector<int> get(cudaStream_t stream)
    {
        std::vector<int> values(ints);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaMemcpy(values.data(), data, ints * sizeof(int), cudaMemcpyDefault));
        return values;
    }
};

// COUNT numbers of each rank, one after the other; or only those of one.
static std::vector<int> of_all(const Job &j, int first, int last)
{
    std::vector<int> values;
    for (int rank = first; rank < last; rank++)
        for (int i = 0; i < COUNT; i++)
            values.push_back(j.value(rank, i));
    return values;
}

static void expect(const Job &j, Memory &memory, int from, const std::vector<int> &right,
                   const char *what, int send_kind)
{
    std::vector<int> got = memory.get(j.stream);
    for (size_t i = 0; i < right.size(); i++)
        EXPECT(got[from + i] == right[i], "%s from %d to %d: [%zu] is %d, not %d", what, send_kind,
               memory.kind, i, got[from + i], right[i]);
}

static std::vector<int> sums(const Job &j, size_t count)
{
    std::vector<int> right(count);
    for (size_t i = 0; i < count; i++)
        for (int rank = 0; rank < j.world.size; rank++)
            right[i] += j.value(rank, int(i));
    return right;
}

static void between(const Job &j, int send_kind, int recv_kind)
{
    int n = j.world.size, me = j.world.rank, next = (me + 1) % n, previous = (me + n - 1) % n;
    Memory one(send_kind, COUNT), many(send_kind, n * COUNT), to(recv_kind, n * COUNT);
    std::vector<int> mine = of_all(j, me, me + 1), all = of_all(j, 0, n), sum = sums(j, COUNT);
    std::vector<int> long_sum;
    one.put(mine, j.stream);
    many.put(all, j.stream);
    for (int value : all)
        long_sum.push_back(value * n);
    NCCL_CHECK(ncclAllReduce(one.data, to.data, COUNT, ncclInt, ncclSum, j.comm, j.stream));
    expect(j, to, 0, sum, "allreduce", send_kind);
    NCCL_CHECK(ncclReduce(one.data, to.data, COUNT, ncclInt, ncclSum, 1, j.comm, j.stream));
    if (me == 1)
        expect(j, to, 0, sum, "reduce", send_kind);
    NCCL_CHECK(ncclBroadcast(one.data, to.data, COUNT, ncclInt, 1, j.comm, j.stream));
    expect(j, to, 0, of_all(j, 1, 2), "broadcast", send_kind);
    NCCL_CHECK(ncclAllGather(one.data, to.data, COUNT, ncclInt, j.comm, j.stream));
    expect(j, to, 0, all, "allgather", send_kind);
    NCCL_CHECK(ncclReduceScatter(many.data, to.data, COUNT, ncclInt, ncclSum, j.comm, j.stream));
    expect(j, to, 0, {long_sum.begin() + me * COUNT, long_sum.begin() + (me + 1) * COUNT},
           "reducescatter", send_kind);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(one.data, COUNT, ncclInt, next, j.comm, j.stream));
    NCCL_CHECK(ncclRecv(to.data, COUNT, ncclInt, previous, j.comm, j.stream));
    NCCL_CHECK(ncclGroupEnd());
    expect(j, to, 0, of_all(j, previous, previous + 1), "send and receive", send_kind);
}

static void in_place(const Job &j, int kind)
{
    int n = j.world.size, me = j.world.rank;
    Memory memory(kind, n * COUNT);
    std::vector<int> mine = of_all(j, me, me + 1), sum = sums(j, COUNT);
    memory.put(mine, j.stream);
    NCCL_CHECK(ncclAllReduce(memory.data, memory.data, COUNT, ncclInt, ncclSum, j.comm, j.stream));
    expect(j, memory, 0, sum, "allreduce in place", kind);
    memory.put(mine, j.stream);
    NCCL_CHECK(ncclReduce(memory.data, memory.data, COUNT, ncclInt, ncclSum, 0, j.comm, j.stream));
    expect(j, memory, 0, me == 0 ? sum : mine, "reduce in place", kind);
    memory.put(mine, j.stream);
    NCCL_CHECK(ncclBroadcast(memory.data, memory.data, COUNT, ncclInt, 0, j.comm, j.stream));
    expect(j, memory, 0, of_all(j, 0, 1), "broadcast in place", kind);
    std::vector<int> placed(n * COUNT);
    std::copy(mine.begin(), mine.end(), placed.begin() + me * COUNT);
    memory.put(placed, j.stream);
    NCCL_CHECK(ncclAllGather(memory.data + me * COUNT, memory.data, COUNT, ncclInt, j.comm,
                             j.stream));
    expect(j, memory, 0, of_all(j, 0, n), "allgather in place", kind);
    NCCL_CHECK(ncclReduceScatter(memory.data, memory.data + me * COUNT, COUNT, ncclInt, ncclSum,
                                 j.comm, j.stream));
    std::vector<int> right = mine;
    for (int &value : right)
        value *= n;
    expect(j, memory, me * COUNT, right, "reducescatter in place", kind);
}

__global__ void write(int *to, const int *from) { to[threadIdx.x] = from[threadIdx.x]; }

// 4 numbers where one was asked for, as llm.c's barrier does; 128 where 100 were. Kernels, too.
static void rounded_up(const Job &j)
{
    std::vector<int> mine = of_all(j, j.world.rank, j.world.rank + 1), right = sums(j, 128), got;
    int *numbers = on_device(mine), *read = on_device<int>(128);
    for (int kind : {OF_DEVICE, PINNED, MANAGED}) {
        Memory one(kind, 1), hundred(kind, 100);
        write<<<1, 4, 0, j.stream>>>(one.data, numbers);
        NCCL_CHECK(ncclAllReduce(one.data, one.data, 4, ncclInt, ncclSum, j.comm, j.stream));
        write<<<1, 4, 0, j.stream>>>(read, one.data);
        got = fetch(read, 4);
        EXPECT(std::equal(got.begin(), got.end(), right.begin()), "kind %d: %d", kind, got[3]);
        write<<<1, 128, 0, j.stream>>>(hundred.data, numbers);
        NCCL_CHECK(ncclAllReduce(hundred.data, hundred.data, 128, ncclInt, ncclSum, j.comm,
                                 j.stream));
        write<<<1, 128, 0, j.stream>>>(read, hundred.data);
        got = fetch(read, 128);
        EXPECT(got == right, "kind %d: the last is %d, not %d", kind, got[127], right[127]);
        ncclResult_t beyond = ncclAllReduce(hundred.data, hundred.data, 129,
                                            ncclInt, ncclSum, j.comm, j.stream);
        EXPECT(beyond == ncclInvalidArgument, "memory beyond it has another owner");
    }
    CUDA_CHECK(cudaFree(numbers));
    CUDA_CHECK(cudaFree(read));
}

int main(int argc, char **argv)
{
    Job j = {};
    j.world = start(&j.comm);
    CUDA_CHECK(cudaStreamCreate(&j.stream));
    int steps = argument(argc, argv, 1, 3);
    for (j.step = 0; j.step < steps; j.step++) {
        for (int send_kind = 0; send_kind < KINDS; send_kind++) {
            for (int recv_kind = 0; recv_kind < KINDS; recv_kind++)
                between(j, send_kind, recv_kind);
            in_place(j, send_kind);
            std::vector<int> right = sums(j, COUNT);
            print_line(j.step, "sums", right.data(), COUNT * sizeof(int));
        }
        rounded_up(j);
    }
    NCCL_CHECK(ncclCommDestroy(j.comm));
    return 0;
}
