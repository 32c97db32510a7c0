// mbarriers.cu: kernels that use libcu++'s barriers, pipelines and asynchronous copies, each of
// which reverses rows of 128 floats; one block of as many threads. For test_mbarrier_rows.py.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
constexpr int WIDTH = 128, DEPTH = 3;

#pragma nv_diag_suppress static_var_with_dynamic_init

extern "C" __global__ void by_barrier(const float *in, float *out, int rows)
{
    __shared__ barrier full, free;
    __shared__ alignas(16) float row[WIDTH];
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) {
        init(&full, block.size());
        init(&free, block.size());
    }
    block.sync();
    for (int i = 0; i < rows; i++) {
        cuda::memcpy_async(block, row, in + i * WIDTH, cuda::aligned_size_t<16>(sizeof row), full);
        full.arrive_and_wait();
        out[i * WIDTH + threadIdx.x] = row[WIDTH - 1 - threadIdx.x];
        auto token = free.arrive();
        free.wait(std::move(token));
    }
}

extern "C" __global__ void by_pipeline(const float *in, float *out, int rows)
{
    extern __shared__ float buffer[];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, DEPTH> state;
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    for (int i = 0, fetched = 0; i < rows; i++) {
        for (; fetched < rows && fetched < i + DEPTH; fetched++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, buffer + fetched % DEPTH * WIDTH, in + fetched * WIDTH,
                               sizeof(float) * WIDTH, pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        out[i * WIDTH + threadIdx.x] = buffer[i % DEPTH * WIDTH + WIDTH - 1 - threadIdx.x];
        pipeline.consumer_release();
    }
}

// Each thread copies for itself; groups of copies are waited for one by one.
extern "C" __global__ void by_thread(const float *in, float *out, int rows)
{
    extern __shared__ float buffer[];
    auto fetch = [&](int row) {
        if (row < rows)
            __pipeline_memcpy_async(buffer + row % DEPTH * WIDTH + threadIdx.x,
                                    in + row * WIDTH + threadIdx.x, sizeof(float));
        __pipeline_commit();
    };
    for (int i = 0; i < DEPTH - 1; i++)
        fetch(i);
    for (int i = 0; i < rows; i++) {
        fetch(i + DEPTH - 1);
        __pipeline_wait_prior(DEPTH - 1);
        __syncthreads();
        out[i * WIDTH + threadIdx.x] = buffer[i % DEPTH * WIDTH + WIDTH - 1 - threadIdx.x];
        __syncthreads();
    }
}

// In each row one thread more has left for good: those that stay do its work.
extern "C" __global__ void dropping(const float *in, float *out, int rows)
{
    __shared__ barrier here;
    __shared__ float row[WIDTH];
    if (threadIdx.x == 0)
        init(&here, blockDim.x);
    __syncthreads();
    for (int i = 0; i < rows; i++) {
        int there = WIDTH - i;
        for (int x = threadIdx.x; x < WIDTH; x += there)
            row[x] = in[i * WIDTH + x];
        here.arrive_and_wait();
        for (int x = threadIdx.x; x < WIDTH; x += there)
            out[i * WIDTH + x] = row[WIDTH - 1 - x];
        if (threadIdx.x == there - 1) {
            here.arrive_and_drop();
            return;
        }
        here.arrive_and_wait();
    }
}

// One warp fetches, the others write.
extern "C" __global__ void specialised(const float *in, float *out, int rows)
{
    extern __shared__ float buffer[];
    __shared__ barrier full[2], free[2];
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            init(&full[i], blockDim.x);
            init(&free[i], blockDim.x);
        }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < rows; i++) {
            free[i % 2].arrive_and_wait();
            for (int x = threadIdx.x; x < WIDTH; x += 32)
                cuda::memcpy_async(buffer + i % 2 * WIDTH + x, in + i * WIDTH + x,
                                   cuda::aligned_size_t<4>(4), full[i % 2]);
            (void)full[i % 2].arrive();
        }
        return;
    }
    for (int i = 0; i < 2; i++)
        (void)free[i].arrive();
    for (int i = 0; i < rows; i++) {
        full[i % 2].arrive_and_wait();
        for (int x = threadIdx.x - 32; x < WIDTH; x += WIDTH - 32)
            out[i * WIDTH + x] = buffer[i % 2 * WIDTH + WIDTH - 1 - x];
        (void)free[i % 2].arrive();
    }
}
