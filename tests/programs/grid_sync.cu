// grid_sync.cu: cooperative launches. Blocks that meet in the middle of a kernel, with shared
// memory and registers that last over the meeting; a grid that is too large is refused. One rank.
#include <cooperative_groups.h>
#include <cstdio>
#include <vector>

namespace cg = cooperative_groups;

// Each round everybody adds its right neighbour's value of the round before.
__global__ void rounds(long *values, long *copy, int count)
{
    cg::grid_group grid = cg::this_grid();
    __shared__ long mine[64];
    unsigned i = grid.thread_rank(), n = grid.size();
    mine[threadIdx.x] = values[i];
    for (int k = 0; k < count; k++) {
        copy[i] = mine[threadIdx.x];
        grid.sync();
        mine[threadIdx.x] += copy[(i + 1) % n];
        grid.sync();
    }
    values[i] = mine[threadIdx.x];
}

static int check(dim3 blocks, int threads, int count)
{
    int n = int(blocks.x * blocks.y) * threads, wrong = 0;
    std::vector<long> values(n), next(n), got(n);
    long *device, *copy;
    cudaMalloc(&device, n * sizeof(long));
    cudaMalloc(&copy, n * sizeof(long));
    for (int i = 0; i < n; i++)
        values[i] = i * i % 101;
    cudaMemcpy(device, values.data(), n * sizeof(long), cudaMemcpyHostToDevice);
    void *args[] = {&device, &copy, &count};
    cudaError_t error = cudaLaunchCooperativeKernel(rounds, blocks, dim3(threads), args);
    if (error == cudaSuccess)
        error = cudaMemcpy(got.data(), device, n * sizeof(long), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) {
        printf("%s\n", cudaGetErrorName(error));
        return 1;
    }
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < n; i++)
            next[i] = values[i] + values[(i + 1) % n];
        values.swap(next);
    }
    for (int i = 0; i < n; i++)
        wrong += got[i] != values[i];
    cudaFree(device);
    cudaFree(copy);
    return wrong;
}

int main()
{
    int supported, fits, processors;
    cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, rounds, 64, 0);
    printf("supported %d\n", supported);
    printf("wrong %d %d %d %d\n", check(1, 1, 3), check(7, 1, 5), check(dim3(3, 5), 64, 20),
           check(10, 33, 4));
    long *none = nullptr;
    int count = 0;
    void *args[] = {&none, &none, &count};
    printf("%s\n", cudaGetErrorName(cudaLaunchCooperativeKernel(rounds, dim3(fits * processors + 1),
                                                                 dim3(64), args)));
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    rounds<<<1, 32>>>(nullptr, nullptr, 0);  // not cooperative, but no meeting either
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    return 0;
}
