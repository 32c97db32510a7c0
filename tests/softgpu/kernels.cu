// Kernels in the ways people write them, for test_kernels.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define EXPORT extern "C" __global__ void

EXPORT saxpy(float a, const float *x, float *y, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

EXPORT matmul(const float *A, const float *B, float *C, int M, int N, int K)
{
    __shared__ float as[16][16], bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
        as[threadIdx.y][threadIdx.x] =
            row < M && k + threadIdx.x < K ? A[row * K + k + threadIdx.x] : 0;
        bs[threadIdx.y][threadIdx.x] =
            col < N && k + threadIdx.y < K ? B[(k + threadIdx.y) * N + col] : 0;
        __syncthreads();
        for (int j = 0; j < 16; j++)
            sum += as[threadIdx.y][j] * bs[j][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N)
        C[row * N + col] = sum;
}

__device__ float block_sum(float x, float *scratch)
{
    for (int o = 16; o; o >>= 1)
        x += __shfl_down_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = threadIdx.x < blockDim.x / 32 ? scratch[threadIdx.x] : 0;
        for (int o = 16; o; o >>= 1)
            x += __shfl_xor_sync(~0u, x, o);
        if (threadIdx.x == 0)
            scratch[0] = x;
    }
    __syncthreads();
    x = scratch[0];
    __syncthreads();
    return x;
}

EXPORT softmax(const float *in, float *out, int columns)
{
    extern __shared__ float scratch[];
    const float *row = in + (size_t)blockIdx.x * columns;
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < columns; i++)
        largest = fmaxf(largest, row[i]);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += expf(row[i] - largest);
    sum = block_sum(sum, scratch);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[(size_t)blockIdx.x * columns + i] = expf(row[i] - largest) / sum;
}

EXPORT layernorm(const float *in, const float *gamma, const float *beta, float *out, int columns)
{
    __shared__ float scratch[32];
    const float *row = in + (size_t)blockIdx.x * columns;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += row[i];
    float mean = block_sum(sum, scratch) / columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        squares += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(block_sum(squares, scratch) / columns + 1e-5f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[(size_t)blockIdx.x * columns + i] = (row[i] - mean) * scale * gamma[i] + beta[i];
}

struct Adam { float rate, beta1, beta2, epsilon, decay; int step; };
EXPORT adam(float *p, const float *g, float *m, float *v, Adam a, long n)
{
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g[i];
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
    float mh = m[i] / (1 - powf(a.beta1, a.step)), vh = v[i] / (1 - powf(a.beta2, a.step));
    p[i] -= a.rate * (mh / (sqrtf(vh) + a.epsilon) + a.decay * p[i]);
}

EXPORT functions(const float *x, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float a = x[i];
    out[i] = expf(a);
    out[n + i] = logf(fabsf(a));
    out[2 * n + i] = sinf(a);
    out[3 * n + i] = cosf(a * 1e6f); // the slow path: local memory
    out[4 * n + i] = tanhf(a);
    out[5 * n + i] = erff(a);
    out[6 * n + i] = powf(fabsf(a), 1.7f);
    out[7 * n + i] = (float)exp((double)a);
    out[8 * n + i] = __expf(a);
}

// Lanes of a warp go round a loop different numbers of times and meet again.
EXPORT divergent(const int *times, int *out)
{
    int t = threadIdx.x, sum = 0;
    for (int i = 0; i < times[t]; i++)
        sum += i * (t + 1);
    __syncwarp();
    int all = sum;
    for (int o = 16; o; o >>= 1)
        all += __shfl_xor_sync(~0u, all, o);
    unsigned even = __ballot_sync(~0u, sum % 2 == 0);
    int inside = 0;
    if (t % 32 < 10) // a shuffle among ten lanes
        inside = __shfl_sync(0x3ff, sum, 3);
    else if (t % 3 == 0)
        inside = __popc(__activemask()) > 0 ? -1 : 0;
    out[4 * t] = sum, out[4 * t + 1] = all, out[4 * t + 2] = even, out[4 * t + 3] = inside;
}

// A barrier in a loop, some threads gone before it, and the exit inside the loop.
EXPORT barrier_loop(int *data, int n, int rounds)
{
    extern __shared__ int line[];
    int t = threadIdx.x;
    if (t >= n)
        return;
    line[t] = data[blockIdx.x * n + t];
    for (int r = 0; r < rounds; r++) {
        __syncthreads();
        int next = line[(t + 1) % n] + (t & 1 ? 1 : 2);
        __syncthreads();
        line[t] = next;
    }
    data[blockIdx.x * n + t] = line[t];
}

EXPORT barrier_votes(const int *in, int *out)
{
    int t = threadIdx.x, x = in[t];
    out[3 * t] = __syncthreads_count(x > 0);
    out[3 * t + 1] = __syncthreads_and(x > -100);
    out[3 * t + 2] = __syncthreads_or(x > 1000);
}

// A producer and a consumer half, by named barriers.
EXPORT named_barriers(const int *in, int *out, int rounds)
{
    __shared__ int slot[64];
    int t = threadIdx.x;
    for (int r = 0; r < rounds; r++) {
        if (t < 64) {
            slot[t] = in[r * 64 + t];
            asm volatile("bar.arrive 1, 128;" ::: "memory");
            asm volatile("bar.sync 2, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[r * 64 + 127 - t] = slot[t - 64] * 2;
            asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
    }
}

EXPORT warp_operations(const unsigned *in, unsigned *out)
{
    unsigned t = threadIdx.x, x = in[t], *o = out + t * 14;
    o[0] = __shfl_up_sync(~0u, x, 3);
    o[1] = __shfl_down_sync(~0u, x, 5, 8);
    o[2] = __shfl_sync(~0u, x, x);
    o[3] = __shfl_xor_sync(~0u, x, 9, 16);
    o[4] = __any_sync(~0u, x > 100);
    o[5] = __all_sync(~0u, x > 0);
    o[6] = __match_any_sync(~0u, x & 3);
    int same;
    o[7] = __match_all_sync(~0u, x & 3, &same);
    o[7] -= 2 * same;
#ifndef NO_REDUX
    o[8] = __reduce_add_sync(~0u, x);
    o[9] = __reduce_max_sync(~0u, x);
    o[10] = (unsigned)__reduce_min_sync(~0u, (int)x);
    o[11] = __reduce_xor_sync(~0u, x);
#endif
    o[12] = __activemask();
    o[13] = (unsigned)__match_any_sync(~0u, (unsigned long long)(x & 1) << 40);
}

__device__ unsigned total = 5;
__constant__ int weights[4] = {1, 10, 100, 1000};
EXPORT atomics(const unsigned *in, unsigned *out, float *fout, unsigned long long *wide,
               double *dout, int n)
{
    __shared__ unsigned bins[8];
    __shared__ float fsum;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 8)
        bins[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        fsum = 0;
    __syncthreads();
    if (i < n) {
        unsigned x = in[i];
        atomicAdd(&bins[x & 7], 1);
        atomicAdd(&fsum, 0.5f);
        atomicAdd(&out[0], x);
        atomicMin(&out[1], x);
        atomicMax(&out[2], x);
        atomicAnd(&out[3], x | 0xff);
        atomicOr(&out[4], x & 0xff00);
        atomicXor(&out[5], x);
        atomicInc(&out[6], 6);
        atomicDec(&out[7], 9);
        atomicMax((int *)&out[8], (int)x);
        atomicAdd(fout, 0.25f);
        atomicAdd(wide, (unsigned long long)x << 8);
        atomicAdd(dout, 0.125);
        atomicAdd(&total, weights[x & 3]);
        unsigned seen = out[9];
        do // a maximum by compare and swap
            if (seen >= x)
                break;
        while ((seen = atomicCAS(&out[9], seen, x)) < x);
    }
    __syncthreads();
    if (threadIdx.x < 8)
        atomicAdd(&out[16 + threadIdx.x], bins[threadIdx.x]);
    if (threadIdx.x == 0)
        atomicAdd(fout + 1, fsum);
}
EXPORT read_total(unsigned *out) { *out = atomicExch(&total, 7u) + weights[3]; }

__device__ __noinline__ float polynomial(const float *c, int n, float x)
{
    float y = 0;
    for (int i = 0; i < n; i++)
        y = y * x + c[i];
    return y;
}
struct Pair { float first; int second[3]; };
__device__ __noinline__ Pair make_pair(Pair p, int k)
{
    __syncthreads(); // a barrier inside a function that is called
    p.first *= k;
    p.second[k % 3] += k;
    return p;
}
EXPORT calls(const float *c, float *x, int *y)
{
    int t = threadIdx.x;
    Pair p = {polynomial(c, 4, x[t]), {t, 2 * t, 3 * t}};
    p = make_pair(p, 2 + t % 2);
    x[t] = p.first;
    y[t] = p.second[0] + p.second[1] * 1000 + p.second[2] * 1000000;
}

EXPORT local_array(const int *in, int *out, int n)
{
    int table[16], t = threadIdx.x;
    for (int i = 0; i < 16; i++)
        table[i] = in[i] * t;
    for (int i = 0; i < n; i++)
        table[(i * 7 + t) & 15] += i;
    int sum = 0;
    for (int i = 0; i < 16; i++)
        sum = sum * 3 + table[i];
    out[t] = sum;
}

// Pointers whose address space the compiler does not know.
EXPORT generic_pointers(int *out, int which)
{
    __shared__ int s[32];
    int local[4] = {1, 2, 3, (int)threadIdx.x}, t = threadIdx.x;
    s[t] = t * 5;
    __syncwarp();
    volatile int *p = which == 0 ? &s[(t + 1) & 31] : which == 1 ? &local[t & 3] : &out[32 + t];
    *p += 100;
    out[t] = *p;
}

EXPORT vectors(const float4 *in, float4 *out, const short2 *s, short2 *so)
{
    int t = threadIdx.x;
    float4 v = in[t];
    out[t] = make_float4(v.w, v.z + v.y, v.y, v.x);
    so[t] = make_short2(s[t].y, s[t].x + s[t].y);
}

EXPORT halves(const __half2 *a, const __half2 *b, __half2 *out, __nv_bfloat16 *bf, float *f)
{
    int t = threadIdx.x;
    out[t] = __hfma2(a[t], b[t], __hadd2(a[t], b[t]));
    bf[t] = __float2bfloat16(__half2float(__low2half(a[t])) * 3.0f);
    f[t] = __half2float(__hmul(__high2half(a[t]), __low2half(b[t])));
}

EXPORT shapes(int *out)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    __shared__ int first;
    if (thread == threads - 1)
        first = block;
    __syncthreads();
    out[block * threads + thread] =
        first * 1000000 + threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z;
}

EXPORT write_at(int *p, long offset) { p[offset] = 1; }
EXPORT read_at(int *p, const int *q, long offset) { *p = q[offset]; }
EXPORT shared_at(int *out, int offset)
{
    extern __shared__ int memory[];
    memory[offset] = 1;
    *out = memory[offset];
}
EXPORT endless(volatile int *p)
{
    while (*p == 0)
        ;
}
EXPORT stuck_barrier(int *p)
{
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;");
    *p = 1;
}
EXPORT asserts(int *p, int limit)
{
    if (p[threadIdx.x] > limit)
        __trap();
    p[threadIdx.x] = 9;
}

// Thread 32 waits for what thread 0 writes, and thread 0 for what thread 33 writes.
EXPORT spin(volatile int *flag, int *out)
{
    if (threadIdx.x == 0) {
        while (flag[1] == 0)
            ;
        flag[0] = 1;
    }
    if (threadIdx.x == 33)
        flag[1] = 1;
    if (threadIdx.x == 32)
        while (flag[0] == 0)
            ;
    out[threadIdx.x] = flag[0] + 1;
}

__device__ __noinline__ void look(volatile int *flag, int *seen)
{
    *seen = *flag;
}

// As spin, and what was seen comes back by way of the thread's own memory.
EXPORT spin_by_reference(volatile int *flag, int *out)
{
    int seen = 0;
    if (threadIdx.x == blockDim.x - 1)
        *flag = 7;
    do
        look(flag, &seen);
    while (!seen);
    out[threadIdx.x] = seen;
}
