// CUDA C++ as people write it, one kernel per family of intrinsics, for test_intrinsics.py.
// Result k of thread i goes to out[k * 64 + i]; a, b, c are the thread's operands.
#ifndef __CUDACC_RTC__
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#endif

#define THREADS 64
#define EXPORT extern "C" __global__ void
#define RESULT(k) out[(k) * THREADS + threadIdx.x]
#define OPERANDS                                                                              \
    unsigned a = in[threadIdx.x], b = in[THREADS + threadIdx.x], c = in[2 * THREADS + threadIdx.x]

EXPORT bits(const unsigned *in, unsigned *out)
{
    OPERANDS;
    unsigned long long ab = (unsigned long long)a << 32 | b;
    RESULT(0) = __brev(a);
    RESULT(1) = __clz(a);
    RESULT(2) = __ffs(a);
    RESULT(3) = __popc(a) + 100 * __popcll(ab) + 10000 * __clzll(ab);
    RESULT(4) = __byte_perm(a, b, c);
    RESULT(5) = __funnelshift_l(a, b, c);
    RESULT(6) = __funnelshift_rc(a, b, c);
    RESULT(7) = __dp4a((int)a, (int)b, (int)c);
    RESULT(8) = __usad(a, b, c);
    RESULT(9) = __umulhi(a, b) ^ (unsigned)__mulhi((int)a, (int)b);
    RESULT(10) = __vadd2(a, b);
    RESULT(11) = __vaddus4(a, b);
    RESULT(12) = __vabsdiffu4(a, b);
    RESULT(13) = __vcmpgtu4(a, b);
    RESULT(14) = __vmins2(a, b);
    RESULT(15) = (unsigned)(ab / (c | 1)) ^ (unsigned)(ab % (c | 1));
    RESULT(16) = (unsigned)__umul64hi(ab, ab);
    RESULT(17) = __uhadd(a, b);
}

EXPORT warps(const unsigned *in, unsigned *out)
{
    OPERANDS;
    RESULT(0) = __shfl_xor_sync(~0u, a, 5);
    RESULT(1) = __shfl_up_sync(~0u, a, 3, 8);
    RESULT(2) = __ballot_sync(~0u, a & 1);
    RESULT(3) = __match_any_sync(~0u, b & 3);
    RESULT(4) = __all_sync(~0u, a != 0) + 2 * __any_sync(~0u, c == 0);
    if (b & 4) // the others come past
        RESULT(5) = __popc(__activemask());
    __syncwarp();
    unsigned sum = a;
#if __CUDA_ARCH__ >= 800
    sum = __reduce_add_sync(~0u, a);
#else
    for (int o = 16; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
#endif
    RESULT(6) = sum;
    __nanosleep(10);
    RESULT(7) = __ldg(&in[threadIdx.x]) + __syncthreads_count(a & 1);
}

EXPORT rounding(const float *in, float *out)
{
    float a = in[threadIdx.x], b = in[THREADS + threadIdx.x], c = in[2 * THREADS + threadIdx.x];
    RESULT(0) = __fmaf_rz(a, b, c);
    RESULT(1) = __fadd_ru(a, b);
    RESULT(2) = __fmul_rd(a, b);
    RESULT(3) = __fdiv_rz(a, b);
    RESULT(4) = __fsqrt_ru(fabsf(a));
    RESULT(5) = (float)__double2int_rd(a * 0.37) + __float2int_rn(b);
    RESULT(6) = __double2float_rd(__dmul_ru(a, b));
    RESULT(7) = __saturatef(a);
    RESULT(8) = rintf(a) + floorf(b) + truncf(c);
    RESULT(9) = fminf(a, b) - fmaxf(b, c);
}

EXPORT device_code(const unsigned *in, unsigned *out)
{
    extern __shared__ unsigned shared[];
    __shared__ unsigned counts[4];
    OPERANDS;
    if (threadIdx.x < 4)
        counts[threadIdx.x] = 0;
    shared[threadIdx.x] = a;
    __syncthreads();
    atomicAdd(&counts[b & 3], a & 255);
    atomicMax(&out[2 * THREADS], b & 0xffff);
    atomicInc(&out[2 * THREADS + 1], 9);
    atomicCAS(&out[2 * THREADS + 2], 0u, 5u);
    atomicXor(&out[2 * THREADS + 3], c);
    __syncthreads();
    RESULT(0) = shared[(threadIdx.x + 7) % THREADS];
    RESULT(1) = counts[b & 3];
    unsigned local[8];
    for (int i = 0; i < 8; i++)
        local[(i + b) & 7] = i * a;
    RESULT(3) = local[c & 7];
    out[4 * THREADS + (threadIdx.x ^ 1)] = __ldcg(&in[threadIdx.x]);
}

#ifndef __CUDACC_RTC__
namespace cg = cooperative_groups;

EXPORT halves(const unsigned *in, unsigned *out)
{
    OPERANDS;
    __half2 x = __halves2half2(__uint2half_rn(a & 63), __uint2half_rn(b & 63));
    __half2 y = __halves2half2(__uint2half_rn(c & 15), __uint2half_rn(3));
    __nv_bfloat162 v = __floats2bfloat162_rn((float)(a & 63), (float)(b & 63));
    __nv_bfloat162 w = __floats2bfloat162_rn((float)(c & 15), 3.0f);
    __half2 product = __hfma2(x, y, __float2half2_rn(1.0f));
    __nv_bfloat162 sum = __hadd2(v, w);
    RESULT(0) = (unsigned)__low2float(product) * 10000 + (unsigned)__high2float(product);
    RESULT(1) = (unsigned)__low2float(sum) * 1000 + (unsigned)__high2float(sum);
    RESULT(2) = __half2uint_rd(hsqrt(__uint2half_rn(a & 1023)));
    RESULT(3) = __hgt(__low2half(x), __high2half(x)) + 2 * __hbeq2(x, x);
    atomicAdd((__half2 *)&out[4 * THREADS], __floats2half2_rn(1.0f, 2.0f));
    atomicAdd((__nv_bfloat162 *)&out[4 * THREADS + 1], __floats2bfloat162_rn(1.0f, 2.0f));
    atomicAdd((float *)&out[4 * THREADS + 2], 0.5f);
    atomicAdd((double *)&out[4 * THREADS + 4], 0.25);
#if __CUDA_ARCH__ >= 900
    atomicAdd((float2 *)&out[4 * THREADS + 6], make_float2(1.0f, 3.0f));
#endif
}

EXPORT groups(const unsigned *in, unsigned *out)
{
    __shared__ cg::block_tile_memory<THREADS> memory;
    OPERANDS;
    cg::thread_block block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<16>(block);
    RESULT(0) = cg::reduce(tile, a & 0xffff, cg::plus<unsigned>());
    RESULT(1) = tile.shfl(a, 3) + tile.meta_group_rank();
    auto large = cg::tiled_partition<64>(block);
    RESULT(2) = large.any((a & 1023) == 7) + 2 * large.thread_rank();
    if (a & 1) {
        auto some = cg::coalesced_threads();
        RESULT(3) = some.size() * 100 + some.thread_rank();
    }
    auto binary = cg::binary_partition(tile, (b & 1) != 0);
    RESULT(4) = binary.size();
    block.sync();
}

EXPORT library_atomics(const unsigned *in, unsigned *out)
{
    __shared__ unsigned ready, value;
    OPERANDS;
    if (threadIdx.x == 0)
        ready = value = 0;
    __syncthreads();
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> total(out[2 * THREADS]);
    total.fetch_add(a & 0xff, cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> flag(ready), held(value);
    if (threadIdx.x == 40) {
        held.store(in[40], cuda::memory_order_relaxed);
        flag.store(1, cuda::memory_order_release);
    }
    while (flag.load(cuda::memory_order_acquire) == 0) // a warp waits for another one
        __nanosleep(20);
    RESULT(0) = held.load(cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned long long> most(*(unsigned long long *)&out[2 * THREADS + 2]);
    most.fetch_max((unsigned long long)a << 8);
    unsigned expected = b;
    RESULT(1) = a + b + c;
    cuda::atomic_ref<unsigned> own(out[3 * THREADS + threadIdx.x]);
    own.store(b);
    RESULT(1) = own.compare_exchange_strong(expected, c) + own.fetch_xor(a);
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst);
}

EXPORT copies(const unsigned *in, unsigned *out)
{
    __shared__ alignas(16) unsigned staged[THREADS], group[THREADS];
    __pipeline_memcpy_async(&staged[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, group, in + THREADS, sizeof group);
    __pipeline_wait_prior(0);
    cg::wait(block);
    __syncthreads();
    RESULT(0) = staged[threadIdx.x ^ 3];
    RESULT(1) = group[threadIdx.x ^ 5];
}
#endif
