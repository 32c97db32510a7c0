// amp.cu: data-parallel training in mixed precision. Weights, activations and their gradients are
// halves; the optimizer's weights, moments and sums of gradients over micro-batches are floats. The
// loss is scaled so that small gradients are no zeros: too much at first, so that some overflow.
// Whether they did, how far gradients are clipped, and the scale are decided on the device, and an
// update that is not to be does nothing. Buffers of floats are more than 4 MiB. An average of the
// weights is kept. Arguments: steps, rows of a micro-batch.
#include <cuda_fp16.h>

#include "common.h"

constexpr int LAYERS = 3, WIDTH = 640;
constexpr int MATRIX = WIDTH * WIDTH, LAYER = MATRIX + WIDTH;  // a bias behind each matrix
constexpr int PARAMETERS = LAYERS * LAYER;
constexpr int MICRO = 2;          // micro-batches of a step
constexpr int THREADS = 128, WARP = 32;
constexpr int PARTS = 256;        // blocks that sum squares
constexpr float SCALE = 0x1p29f;  // of the first step
constexpr float LARGEST = 1.0f;   // norm of the gradients, before they are clipped

struct Scale {
    float scale, factor;  // of the loss; of the gradients, at the update
    int overflowed, good;  // in this step, in any rank; steps in which none did
};

static int blocks(int threads) { return (threads + THREADS - 1) / THREADS; }

__device__ float sum_of_warp(float value)
{
    for (int step = WARP / 2; step; step /= 2)
        value += __shfl_xor_sync(~0u, value, step);
    return value;
}

__global__ void rounded(const float *w, __half *half, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        half[i] = __float2half(w[i]);
}

// Each row to mean 0 and variance 1: a warp for each. `kept`: what is needed on the way back.
__global__ void normalize(const __half *x, __half *y, float *kept, int rows)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < WIDTH; i += WARP)
        sum += __half2float(x[row * WIDTH + i]);
    float mean = sum_of_warp(sum) / WIDTH;
    for (int i = threadIdx.x; i < WIDTH; i += WARP) {
        float off = __half2float(x[row * WIDTH + i]) - mean;
        squares += off * off;
    }
    float by = rsqrtf(sum_of_warp(squares) / WIDTH + 1e-5f);
    for (int i = threadIdx.x; i < WIDTH; i += WARP)
        y[row * WIDTH + i] = __float2half((__half2float(x[row * WIDTH + i]) - mean) * by);
    if (threadIdx.x == 0)
        kept[row] = by;
}

__global__ void normalize_back(const __half *y, const __half *dy, const float *kept, __half *dx,
                               int rows)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    float sum = 0.0f, along = 0.0f;
    for (int i = threadIdx.x; i < WIDTH; i += WARP) {
        float d = __half2float(dy[row * WIDTH + i]);
        sum += d;
        along += d * __half2float(y[row * WIDTH + i]);
    }
    sum = sum_of_warp(sum) / WIDTH;
    along = sum_of_warp(along) / WIDTH;
    for (int i = threadIdx.x; i < WIDTH; i += WARP) {
        int at = row * WIDTH + i;
        float d = __half2float(dy[at]) - sum - __half2float(y[at]) * along;
        dx[at] = __float2half(d * kept[row]);
    }
}

__global__ void product(const __half *x, const __half *w, __half *y, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * WIDTH)
        return;
    float sum = 0.0f;
    for (int j = 0; j < WIDTH; j++)
        sum += __half2float(x[i / WIDTH * WIDTH + j]) * __half2float(w[j * WIDTH + i % WIDTH]);
    y[i] = __float2half(sum);
}

__global__ void product_back(const __half *dy, const __half *w, __half *dx, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * WIDTH)
        return;
    float sum = 0.0f;
    for (int j = 0; j < WIDTH; j++)
        sum += __half2float(dy[i / WIDTH * WIDTH + j]) * __half2float(w[i % WIDTH * WIDTH + j]);
    dx[i] = __float2half(sum);
}

__global__ void gradient(const __half *x, const __half *dy, float *dw, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= MATRIX)
        return;
    float sum = dw[i];
    for (int row = 0; row < rows; row++)
        sum += __half2float(x[row * WIDTH + i / WIDTH]) * __half2float(dy[row * WIDTH + i % WIDTH]);
    dw[i] = sum;
}

__global__ void add_bias(__half *y, const __half *bias, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = __hadd(y[i], bias[i % WIDTH]);
}

__global__ void bias_back(const __half *dy, float *dbias, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int row = 0; i < WIDTH && row < rows; row++)
        dbias[i] += __half2float(dy[row * WIDTH + i]);
}

__device__ float gate(float x) { return 1.0f / (1.0f + expf(-x)); }

__global__ void silu(const __half *x, __half *y, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = __hmul(x[i], __float2half(gate(__half2float(x[i]))));
}

__global__ void silu_back(const __half *x, __half *dx, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float at = __half2float(x[i]), open = gate(at);
    dx[i] = __float2half(__half2float(dx[i]) * open * (1.0f + at * (1.0f - open)));
}

// One of eight is dropped, in the forward pass and on the way back: the same ones of a step.
__global__ void drop(__half *x, int count, int step, int rank, int layer)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t h = (i * 0x9e3779b9u ^ step * 0x85ebca6bu ^ (rank * 16 + layer) * 0xc2b2ae35u);
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    if (i < count)
        x[i] = h >> 29 ? __hmul(x[i], __float2half(8.0f / 7.0f)) : __float2half(0.0f);
}

__global__ void lacking(const __half *y, const __half *x, __half *dy, float *losses,
                        const Scale *scale, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * WIDTH)
        return;
    int row = i / WIDTH;
    float lacks = __half2float(y[i]) - __half2float(x[row * WIDTH + (i + 1) % WIDTH]);
    dy[i] = __float2half(lacks / (rows * WIDTH) * scale->scale);
    if (i % WIDTH == 0)
        losses[row] = lacks * lacks;
}

__global__ void overflow(const float *dw, Scale *scale, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && !isfinite(dw[i]))
        atomicMax(&scale->overflowed, 1);
}

__global__ void squares(const float *dw, float *parts, int count)
{
    __shared__ float sums[THREADS / WARP];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        sum += dw[i] * dw[i];
    sum = sum_of_warp(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        parts[blockIdx.x] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Computes the factor for gradients in this update, and the next step's scale.
__global__ void decide(const float *parts, Scale *scale, int world)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < PARTS; i += WARP)
        sum += parts[i];
    sum = sum_of_warp(sum);
    if (threadIdx.x)
        return;
    float whole = 1.0f / (scale->scale * world * MICRO), norm = sqrtf(sum) * whole;
    scale->factor = norm > LARGEST ? whole * LARGEST / norm : whole;
    scale->good = scale->overflowed ? 0 : scale->good + 1;
    scale->scale *= scale->overflowed ? 0.25f : scale->good % 4 ? 1.0f : 2.0f;
}

__global__ void adamw(float *w, const float *dw, float *first, float *second, const Scale *scale,
                      int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count || scale->overflowed)
        return;
    float g = dw[i] * scale->factor;
    float m = first[i] = 0.9f * first[i] + 0.1f * g;
    float v = second[i] = 0.95f * second[i] + 0.05f * g * g;
    w[i] -= 1e-3f * (m / (sqrtf(v) + 1e-8f) + 0.01f * w[i]);
}

__global__ void average(const float *w, float *mean, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        mean[i] += 0.1f * (w[i] - mean[i]);
}

struct Net {
    World world;
    ncclComm_t comm;
    int rows;
    float *w, *dw, *first, *second, *mean, *parts, *losses, *kept[LAYERS];
    __half *half, *x[LAYERS + 1], *normal[LAYERS], *bent[LAYERS], *d[2];
    Scale *scale;
    __half *input;  // pinned
};

static Net make(World world, ncclComm_t comm, int rows)
{
    Net n = {};
    n.world = world;
    n.comm = comm;
    n.rows = rows;
    std::vector<float> initial(PARAMETERS);
    for (int i = 0; i < PARAMETERS; i++)
        initial[i] = i % LAYER < MATRIX ? (noise(i) - 0.5f) * 0.1f : 0.0f;
    n.w = on_device(initial);
    n.mean = on_device(initial);
    n.dw = on_device<float>(PARAMETERS);
    n.first = on_device<float>(PARAMETERS);
    n.second = on_device<float>(PARAMETERS);
    n.half = on_device<__half>(PARAMETERS);
    n.parts = on_device<float>(PARTS);
    n.losses = on_device<float>(rows);
    n.scale = on_device(std::vector<Scale>{{SCALE, 0.0f, 0, 0}});
    for (int l = 0; l <= LAYERS; l++)
        n.x[l] = on_device<__half>(rows * WIDTH);
    for (int l = 0; l < LAYERS; l++) {
        n.normal[l] = on_device<__half>(rows * WIDTH);
        n.bent[l] = on_device<__half>(rows * WIDTH);
        n.kept[l] = on_device<float>(rows);
    }
    for (__half *&d : n.d)
        d = on_device<__half>(rows * WIDTH);
    CUDA_CHECK(cudaMallocHost(&n.input, sizeof(__half) * rows * WIDTH));
    return n;
}

// One micro-batch: normalized, multiplied, bent, and dropped in part, layer after layer, and back.
static void learn(const Net &n, int step, int micro)
{
    int count = n.rows * WIDTH, ticket = step * MICRO + micro;
    dim3 warps(WARP, THREADS / WARP);
    for (int i = 0; i < count; i++)
        n.input[i] = __float2half(noise(i, ticket, n.world.rank) - 0.5f);
    CUDA_CHECK(cudaMemcpyAsync(n.x[0], n.input, sizeof(__half) * count, cudaMemcpyHostToDevice, 0));
    for (int l = 0; l < LAYERS; l++) {
        normalize<<<blocks(n.rows * WARP), warps>>>(n.x[l], n.normal[l], n.kept[l], n.rows);
        const __half *w = n.half + l * LAYER;
        product<<<blocks(count), THREADS>>>(n.normal[l], w, n.bent[l], n.rows);
        add_bias<<<blocks(count), THREADS>>>(n.bent[l], w + MATRIX, count);
        silu<<<blocks(count), THREADS>>>(n.bent[l], n.x[l + 1], count);
        drop<<<blocks(count), THREADS>>>(n.x[l + 1], count, ticket, n.world.rank, l);
    }
    __half *dy = n.d[0], *dx = n.d[1];
    lacking<<<blocks(count), THREADS>>>(n.x[LAYERS], n.x[0], dy, n.losses, n.scale, n.rows);
    for (int l = LAYERS; l-- > 0;) {
        drop<<<blocks(count), THREADS>>>(dy, count, ticket, n.world.rank, l);
        silu_back<<<blocks(count), THREADS>>>(n.bent[l], dy, count);
        float *dw = n.dw + l * LAYER;
        bias_back<<<blocks(WIDTH), THREADS>>>(dy, dw + MATRIX, n.rows);
        gradient<<<blocks(MATRIX), THREADS>>>(n.normal[l], dy, dw, n.rows);
        product_back<<<blocks(count), THREADS>>>(dy, n.half + l * LAYER, dx, n.rows);
        normalize_back<<<blocks(n.rows * WARP), warps>>>(n.normal[l], dx, n.kept[l], dy, n.rows);
    }
    CUDA_CHECK(cudaStreamSynchronize(0));  // before the host draws the next input
}

static void update(const Net &n)
{
    int all = blocks(PARAMETERS);
    CUDA_CHECK(cudaMemsetAsync(&n.scale->overflowed, 0, sizeof(int), 0));
    overflow<<<all, THREADS>>>(n.dw, n.scale, PARAMETERS);
    NCCL_CHECK(ncclAllReduce(&n.scale->overflowed, &n.scale->overflowed, 1, ncclInt32, ncclMax,
                             n.comm, 0));
    NCCL_CHECK(ncclAllReduce(n.dw, n.dw, PARAMETERS, ncclFloat, ncclSum, n.comm, 0));
    squares<<<PARTS, THREADS>>>(n.dw, n.parts, PARAMETERS);
    decide<<<1, WARP>>>(n.parts, n.scale, n.world.size);
    adamw<<<all, THREADS>>>(n.w, n.dw, n.first, n.second, n.scale, PARAMETERS);
    average<<<all, THREADS>>>(n.w, n.mean, PARAMETERS);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 8), overflows = 0;
    Net n = make(world, comm, argument(argc, argv, 2, 4));
    for (int step = 0; step < steps; step++) {
        rounded<<<blocks(PARAMETERS), THREADS>>>(n.w, n.half, PARAMETERS);
        CUDA_CHECK(cudaMemsetAsync(n.dw, 0, sizeof(float) * PARAMETERS, 0));
        for (int micro = 0; micro < MICRO; micro++)
            learn(n, step, micro);
        update(n);
        CUDA_CHECK(cudaGetLastError());
        report(step, "losses", n.losses, n.rows);
        overflows += report(step, "scale", n.scale, 1)[0].overflowed;
        report(step, "parameters", n.w, PARAMETERS);
        report(step, "average", n.mean, PARAMETERS);
    }
    EXPECT(steps < 5 || (overflows && overflows < steps), "%d of %d", overflows, steps);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
