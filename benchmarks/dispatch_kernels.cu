// dispatch_kernels.cu: the kernels that dispatch.py times, written as people write them;
// dispatch_kernels.c does the same on the host.
#define EXPORT extern "C" __global__ void

EXPORT vadd(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

__device__ float block_sum(float x, float *scratch)
{
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    x = scratch[0];
    __syncthreads();
    return x;
}

__device__ float block_max(float x, float *scratch)
{
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            scratch[threadIdx.x] = fmaxf(scratch[threadIdx.x], scratch[threadIdx.x + half]);
        __syncthreads();
    }
    x = scratch[0];
    __syncthreads();
    return x;
}

// One block per row.
EXPORT softmax(const float *in, float *out, int columns)
{
    __shared__ float scratch[256];
    const float *row = in + (size_t)blockIdx.x * columns;
    float *to = out + (size_t)blockIdx.x * columns, largest = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        largest = fmaxf(largest, row[i]);
    largest = block_max(largest, scratch);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += to[i] = expf(row[i] - largest);
    sum = block_sum(sum, scratch);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        to[i] /= sum;
}

EXPORT layernorm(const float *in, const float *gamma, const float *beta, float *out, int columns)
{
    __shared__ float scratch[256];
    const float *row = in + (size_t)blockIdx.x * columns;
    float *to = out + (size_t)blockIdx.x * columns, sum = 0, squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += row[i];
    float mean = block_sum(sum, scratch) / columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        squares += (row[i] - mean) * (row[i] - mean);
    float scale = 1 / sqrtf(block_sum(squares, scratch) / columns + 1e-5f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        to[i] = (row[i] - mean) * scale * gamma[i] + beta[i];
}

EXPORT adam(float *p, const float *g, float *m, float *v, float rate, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    p[i] -= rate * m[i] / (sqrtf(v[i]) + 1e-8f);
}

// C = A·B, n by n, n a multiple of TILE; one tile of C per block.
constexpr int TILE = 32;
EXPORT matmul(const float *a, const float *b, float *c, int n)
{
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        as[y][x] = a[row * n + k + x];
        bs[y][x] = b[(k + y) * n + col];
        __syncthreads();
        for (int j = 0; j < TILE; j++)
            sum += as[y][j] * bs[j][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
