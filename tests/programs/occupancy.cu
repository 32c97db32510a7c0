// occupancy.cu: what a kernel needs, how much of it fits, and dynamic shared memory beyond 48 KiB.
#include <cuda.h>

#include "behaviour.h"

__global__ void plain(int *to) { to[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }
__global__ void __launch_bounds__(128) bounded(int *to) { *to = blockDim.x; }
__global__ void sharing(int *to)
{
    __shared__ int fixed[3000];
    fixed[threadIdx.x] = threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = fixed[blockDim.x - 1 - threadIdx.x];
}
// They keep more values than any thread has registers.
__device__ void keep_many(const int *from, int *to)
{
    int x[200];
#pragma unroll
    for (int i = 0; i < 200; i++)
        x[i] = from[i * 3];
#pragma unroll
    for (int i = 0; i < 200; i++)
        to[i] = x[i] * x[199 - i];
}
__global__ void greedy(const int *from, int *to) { keep_many(from, to); }
__global__ void __launch_bounds__(384) greedy_384(const int *from, int *to) { keep_many(from, to); }
__global__ void __launch_bounds__(256, 3) greedy_thrice(const int *from, int *to)
{
    keep_many(from, to);
}
__global__ void dynamic(int *to, int count)
{
    extern __shared__ int room[];
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        room[i] = i * 3;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < count; i += 1000)
            *to += room[i] + room[count - 1 - i];
}

static cudaDeviceProp p;

static int blocks_of(const void *kernel, int threads, size_t shared = 0)
{
    int blocks, flagged;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &flagged, kernel, threads, shared, cudaOccupancyDisableCachingOverride));
    EXPECT(blocks == flagged, "%d, with flags %d", blocks, flagged);
    EXPECT(blocks * threads <= p.maxThreadsPerMultiProcessor, "%d blocks of %d", blocks, threads);
    EXPECT(blocks <= p.maxBlocksPerMultiProcessor, "%d blocks", blocks);
    return blocks;
}

static void attributes()
{
    cudaFuncAttributes a, b, c;
    CUDA_CHECK(cudaFuncGetAttributes(&a, plain));
    CUDA_CHECK(cudaFuncGetAttributes(&b, bounded));
    CUDA_CHECK(cudaFuncGetAttributes(&c, sharing));
    EXPECT(a.maxThreadsPerBlock == p.maxThreadsPerBlock, "%d threads", a.maxThreadsPerBlock);
    EXPECT(b.maxThreadsPerBlock == 128, "%d threads", b.maxThreadsPerBlock);
    EXPECT(a.sharedSizeBytes == 0 && c.sharedSizeBytes == 12000, "%zu", c.sharedSizeBytes);
    EXPECT(a.numRegs > 0 && a.numRegs <= 255, "%d registers", a.numRegs);
    EXPECT(a.binaryVersion == 10 * p.major + p.minor, "binary %d", a.binaryVersion);
    EXPECT(a.ptxVersion > 0 && a.ptxVersion <= a.binaryVersion, "PTX %d", a.ptxVersion);
    EXPECT(a.maxDynamicSharedSizeBytes == int(p.sharedMemPerBlock), "%d",
           a.maxDynamicSharedSizeBytes);
    EXPECT(c.maxDynamicSharedSizeBytes == int(p.sharedMemPerBlock) - 12000, "%d",
           c.maxDynamicSharedSizeBytes);
    FAILS(cudaFuncGetAttributes(&a, &p), cudaErrorInvalidResourceHandle);
    FAILS(cudaFuncGetAttributes(nullptr, plain), cudaErrorInvalidValue);
    CUDA_CHECK(cudaFuncSetCacheConfig(plain, cudaFuncCachePreferL1));
    CUDA_CHECK(cudaFuncSetCacheConfig(plain, cudaFuncCachePreferNone));
    FAILS(cudaFuncSetCacheConfig(plain, cudaFuncCache(17)), cudaErrorInvalidValue);
    FAILS(cudaFuncSetCacheConfig(&p, cudaFuncCachePreferL1), cudaErrorInvalidResourceHandle);
    bounded<<<1, 129>>>(nullptr);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "more than its launch bounds");
}

static size_t shared_per_thread(int threads) { return 256 * size_t(threads); }

static void occupancy()
{
    int small = blocks_of((void *)plain, 32), large = blocks_of((void *)plain, 1024);
    EXPECT(small == p.maxBlocksPerMultiProcessor, "%d small blocks", small);
    EXPECT(large >= 1, "%d large blocks", large);
    EXPECT(blocks_of((void *)plain, 33) <= p.maxThreadsPerMultiProcessor / 64, "whole warps");
    size_t quarter = p.sharedMemPerMultiprocessor / 4 - p.reservedSharedMemPerBlock;
    EXPECT(blocks_of((void *)plain, 32, quarter) == (quarter <= p.sharedMemPerBlock ? 4 : 0),
           "%zu bytes each", quarter);
    EXPECT(blocks_of((void *)plain, 32, p.sharedMemPerBlock + 1) == 0, "not asked for");
    EXPECT(blocks_of((void *)bounded, 129) > 0, "bounds are not asked here");
    int fixed = blocks_of((void *)sharing, 32);
    EXPECT(size_t(fixed) == p.sharedMemPerMultiprocessor / (12000 + p.reservedSharedMemPerBlock),
           "%d blocks of 12000 bytes", fixed);
    cudaFuncAttributes of;
    CUDA_CHECK(cudaFuncGetAttributes(&of, greedy));
    EXPECT(blocks_of((void *)greedy, of.maxThreadsPerBlock) >= 1, "no block that may be launched");
    EXPECT(blocks_of((void *)greedy_384, 384) >= 1, "not the block of its launch bounds");
    EXPECT(blocks_of((void *)greedy_thrice, 256) >= 3, "not the blocks of its launch bounds");
    int grid, block, blocks;
    FAILS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 0, 0),
          cudaErrorInvalidValue);
    CUDA_CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain));
    blocks = blocks_of((void *)plain, block);
    EXPECT(grid == blocks * p.multiProcessorCount, "%d of %d", grid, block);
    CUDA_CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded));
    EXPECT(block > 0 && block <= 128, "blocks of %d", block);
    CUDA_CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 96));
    EXPECT(block > 0 && block <= 96, "blocks of %d", block);
    CUDA_CHECK(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&grid, &block, plain,
                                                              shared_per_thread));
    EXPECT(shared_per_thread(block) <= p.sharedMemPerBlock, "blocks of %d", block);
    for (int wanted = 1; wanted <= 3; wanted++) {
        size_t available;
        CUDA_CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&available, plain, wanted, 64));
        EXPECT(blocks_of((void *)plain, 64, available) >= wanted, "%zu bytes each", available);
        EXPECT(available == p.sharedMemPerBlock ||
                   blocks_of((void *)plain, 64, available + 1) < wanted,
               "one more byte than %zu fits %d blocks", available, wanted);
    }
}

static void of_the_driver()
{
    CUfunction kernel;
    int blocks, grid, block, value;
    size_t available;
    CUDA_CHECK(cudaGetFuncBySymbol(&kernel, (void *)sharing));
    DRIVER_CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 64, 100));
    EXPECT(blocks == blocks_of((void *)sharing, 64, 100), "%d blocks", blocks);
    DRIVER_CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel, nullptr, 0, 0));
    EXPECT(grid > 0 && block > 0, "%d of %d", grid, block);
    DRIVER_CHECK(cuOccupancyAvailableDynamicSMemPerBlock(&available, kernel, 1, 64));
    EXPECT(available <= p.sharedMemPerBlockOptin - 12000, "%zu bytes", available);
    DRIVER_CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel));
    EXPECT(value == 12000, "%d bytes", value);
    DRIVER_CHECK(cuFuncSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_SHARED));
}

// More than 48 KiB must be asked for.
static void much_shared_memory(int *device)
{
    int bytes = int(p.sharedMemPerBlockOptin), count = bytes / 4, got, expected = 0;
    if (bytes <= int(p.sharedMemPerBlock))
        return;
    CUDA_CHECK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(p.sharedMemPerBlock)));
    dynamic<<<1, 64, bytes>>>(device, count);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "without asking");
    CUDA_CHECK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CUDA_CHECK(cudaMemset(device, 0, sizeof *device));
    dynamic<<<1, 64, bytes>>>(device, count);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i += 1000)
        expected += 3 * i + 3 * (count - 1 - i);
    EXPECT(got == expected, "%d, not %d", got, expected);
    FAILS(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes + 1),
          cudaErrorInvalidValue);
    CUDA_CHECK(cudaFuncSetAttribute(dynamic, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    cudaFuncAttributes told;
    CUDA_CHECK(cudaFuncGetAttributes(&told, dynamic));
    EXPECT(told.preferredShmemCarveout == cudaSharedmemCarveoutMaxShared, "%d percent",
           told.preferredShmemCarveout);
}

int main(int argc, char **argv)
{
    int device = start().local_rank;
    CUDA_CHECK(cudaGetDeviceProperties(&p, device));
    int *memory = on_device<int>(1024);
    for (int half = 0; half < 2; half++) {
        attributes();
        occupancy();
        of_the_driver();
        much_shared_memory(memory);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
