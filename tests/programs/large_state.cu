// large_state.cu: each rank keeps large buffers and changes all of them at every step, so that a
// few ranks together exceed a small device. Arguments: steps, MiB per rank, buffers.
#include "common.h"

__global__ void advance(uint32_t *data, size_t count, uint32_t salt)
{
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        data[i] = data[i] * 1664525u + uint32_t(i) + salt;
}

// digest[t]: the sum of every 256th word from t on; unsigned, so any order gives the same.
__global__ void sum_up(const uint32_t *data, size_t count, uint32_t *digest)
{
    uint32_t sum = 0;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += data[i];
    digest[threadIdx.x] += sum;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 10), mib = argument(argc, argv, 2, 24);
    int buffers = argument(argc, argv, 3, 3);
    size_t count = (size_t(mib) << 20) / sizeof(uint32_t) / buffers;
    std::vector<uint32_t *> state;
    for (int i = 0; i < buffers; i++)
        state.push_back(on_device<uint32_t>(count));
    uint32_t *digest = on_device<uint32_t>(256);
    std::vector<uint32_t> twin(count, 0);  // of the first buffer, on the host
    for (int k = 0; k < steps; k++) {
        CUDA_CHECK(cudaMemset(digest, 0, 256 * sizeof(uint32_t)));
        for (int i = 0; i < buffers; i++) {
            uint32_t salt = 1000u * world.rank + 10u * i + k;
            advance<<<8, 256>>>(state[i], count, salt);
            sum_up<<<1, 256>>>(state[i], count, digest);
        }
        NCCL_CHECK(ncclAllReduce(digest, digest, 256, ncclUint32, ncclSum, comm, 0));
        report(k, "digest", digest, 256);
        for (size_t i = 0; i < count; i++)
            twin[i] = twin[i] * 1664525u + uint32_t(i) + 1000u * world.rank + k;
    }
    EXPECT(fetch(state[0], count) == twin, "the first buffer differs from the host's");
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
