// launch_bound.cu: hundreds of tiny kernels per step, each depending on the one before, and one
// small all-reduce. The result of every step is known exactly: integers in floats.
// Arguments: steps, and turns of a loop without effect in each kernel, to make it less tiny.
#include "common.h"

constexpr int WIDTH = 64, LAUNCHES = 400;

__global__ void rotate(const float *in, float *out, float add, int turns)
{
    unsigned x = 2 * threadIdx.x + 1;
    for (int i = 0; i < turns; i++)
        x = x * 1664525u + (x >> 7 << 1); // stays odd
    out[threadIdx.x] = in[(threadIdx.x + 1) % WIDTH] + (x ? add : NAN);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40), turns = argument(argc, argv, 2, 0), n = world.size;
    float *a = on_device<float>(WIDTH), *b = on_device<float>(WIDTH);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int k = 0; k < steps; k++) {
        for (int i = 0; i < LAUNCHES; i++) {
            rotate<<<1, WIDTH, 0, stream>>>(a, b, i % (n + 1) == world.rank ? 1.0f : 0.0f,
                                            turns);
            std::swap(a, b);
        }
        // Launch i adds 1 on rank i % (n + 1), if there is one: the sum counts these launches.
        NCCL_CHECK(ncclAllReduce(a, a, WIDTH, ncclFloat, ncclSum, comm, stream));
        std::vector<float> got = report(k, "sum", a, WIDTH);
        int added = 0;
        for (int i = 0; i < LAUNCHES; i++)
            added += i % (n + 1) < n;
        for (float each : got)
            EXPECT(each == float(added), "step %d: %g instead of %d", k, each, added);
        CUDA_CHECK(cudaMemsetAsync(a, 0, WIDTH * sizeof(float), stream));
    }
    CUDA_CHECK(cudaGetLastError());
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
