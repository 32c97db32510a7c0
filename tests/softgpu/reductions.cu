// reductions.cu: sums and extremes of a block's values through shared memory, in the forms in which
// people write them: none of their threads has to meet others but at a barrier.
#define EXPORT extern "C" __global__ void
constexpr int THREADS = 256;

// Halves in a loop, as long as the block has them.
EXPORT halving(const float *in, float *out)
{
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned h = blockDim.x / 2; h > 0; h >>= 1) {
        if (t < h)
            s[t] += s[t + h];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = s[0];
}

// The same in memory whose size the launch says, with signed numbers.
EXPORT launched(const float *in, float *out)
{
    extern __shared__ float s[];
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int h = blockDim.x / 2; h > 0; h /= 2) {
        if (t < h)
            s[t] = s[t] + s[t + h];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = s[0];
}

// Unrolled: the halves are constants.
EXPORT unrolled(const float *in, float *out)
{
    __shared__ float s[THREADS];
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * THREADS + t];
    __syncthreads();
#pragma unroll
    for (int h = THREADS / 2; h > 0; h /= 2) {
        if (t < h)
            s[t] += s[t + h];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = s[0];
}

// By hand, with the last warp's halves through shuffles.
EXPORT shuffled(const float *in, float *out)
{
    __shared__ float s[THREADS];
    int t = threadIdx.x;
    float x = in[blockIdx.x * THREADS + t];
    s[t] = x;
    __syncthreads();
    if (t < 128)
        s[t] = x = x + s[t + 128];
    __syncthreads();
    if (t < 64)
        s[t] = x = x + s[t + 64];
    __syncthreads();
    if (t < 32) {
        x += s[t + 32];
        for (int step = 16; step > 0; step /= 2)
            x += __shfl_down_sync(0xffffffffu, x, step);
        if (t == 0)
            out[blockIdx.x] = x;
    }
}

// Where the greatest value is, in two arrays.
EXPORT greatest(const float *in, float *out)
{
    __shared__ float s[THREADS];
    __shared__ int at[THREADS];
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    at[t] = t;
    __syncthreads();
    for (int h = blockDim.x / 2; h > 0; h /= 2) {
        if (t < h && s[t + h] > s[t]) {
            s[t] = s[t + h];
            at[t] = at[t + h];
        }
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = at[0];
}

// Two sums at once, in blocks of two dimensions.
EXPORT paired(const float *in, float *out)
{
    __shared__ float s[THREADS];
    __shared__ double squares[THREADS];
    int t = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    s[t] = in[blockIdx.x * threads + t];
    squares[t] = s[t] * s[t];
    __syncthreads();
    for (int h = threads / 2; h > 0; h /= 2) {
        if (t < h) {
            s[t] += s[t + h];
            squares[t] += squares[t + h];
        }
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = squares[0] - s[0];
}
