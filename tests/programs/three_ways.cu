// three_ways.cu: training that is parallel in three ways, over eight ranks (or a multiple): two
// stages of a pipeline, each with one block whose matrices are split over two ranks, and the rest
// are replicas. Only replicas have the same parameters; activations, gradients of activations and
// of parameters travel in three kinds of communicators, the last while the next gradients are
// still computed. A rank's parameters are more than 4 MiB. Arguments: steps, rows of a micro-batch.
#include "common.h"

constexpr int STAGES = 2, SPLIT = 2;              // ranks of a pipeline, and of a block
constexpr int WIDTH = 512, HIDDEN = 1024;         // of the block; of its part in one rank
constexpr int MATRIX = WIDTH * HIDDEN;            // of each of both
constexpr int PARAMETERS = 2 * MATRIX + HIDDEN;  // and the bias between them
constexpr int MICRO = 2;                          // micro-batches of a step
constexpr int THREADS = 128;

struct Rank {
    int stage, replica, part;
    ncclComm_t all, block, replicas;
    cudaStream_t compute, exchange;
    int ahead, behind;  // ranks of the neighbouring stages, or -1
};

static int blocks(int threads) { return (threads + THREADS - 1) / THREADS; }

// y[rows][n] = x[rows][k] w[k][n]
__global__ void product(const float *x, const float *w, float *y, int rows, int k, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * n)
        return;
    float sum = 0.0f;
    for (int j = 0; j < k; j++)
        sum += x[i / n * k + j] * w[j * n + i % n];
    y[i] = sum;
}

// dx[rows][k] = dy[rows][n] wᵀ
__global__ void product_back(const float *dy, const float *w, float *dx, int rows, int k, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * k)
        return;
    float sum = 0.0f;
    for (int j = 0; j < n; j++)
        sum += dy[i / k * n + j] * w[i % k * n + j];
    dx[i] = sum;
}

// dw[k][n] += xᵀ dy
__global__ void gradient(const float *x, const float *dy, float *dw, int rows, int k, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= k * n)
        return;
    float sum = dw[i];
    for (int row = 0; row < rows; row++)
        sum += x[row * k + i / n] * dy[row * n + i % n];
    dw[i] = sum;
}

__global__ void bend(float *hidden, const float *bias, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        hidden[i] = fmaxf(hidden[i] + bias[i % HIDDEN], 0.0f);
}

__global__ void bend_back(const float *hidden, float *dhidden, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && hidden[i] <= 0.0f)
        dhidden[i] = 0.0f;
}

__global__ void bias_back(const float *dhidden, float *dbias, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int row = 0; i < HIDDEN && row < rows; row++)
        dbias[i] += dhidden[row * HIDDEN + i];
}

__global__ void add(float *to, const float *what, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] += what[i];
}

// Half the squared difference between y and the target, which is the input reversed.
__global__ void lacking(const float *y, const float *first, float *dy, float *loss, int rows)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * WIDTH)
        dy[i] = (y[i] - first[i / WIDTH * WIDTH + WIDTH - 1 - i % WIDTH]) / float(rows);
    if (i == 0)
        *loss += dy[0] * dy[0];
}

__global__ void adam(float *w, const float *dw, float *first, float *second, int count, float scale)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float g = dw[i] * scale;
    float m = first[i] = 0.9f * first[i] + 0.1f * g;
    float v = second[i] = 0.99f * second[i] + 0.01f * g * g;
    w[i] -= 1e-3f * m / (sqrtf(v) + 1e-6f);
}

struct Block {
    float *w, *dw, *first, *second;          // both matrices, then the bias
    float *x[MICRO], *hidden[MICRO];         // what came in, and what the first matrix made of it
    float *y, *dy, *dhidden, *part, *target, *loss;
    float *input;                            // pinned
};

static Block make(const Rank &r, int rows)
{
    Block b;
    std::vector<float> initial(PARAMETERS, 0.0f);
    for (int i = 0; i < 2 * MATRIX; i++)
        initial[i] = (noise(i, r.stage, r.part) - 0.5f) * 0.05f;
    b.w = on_device(initial);
    b.dw = on_device<float>(PARAMETERS);
    b.first = on_device<float>(PARAMETERS);
    b.second = on_device<float>(PARAMETERS);
    for (int m = 0; m < MICRO; m++) {
        b.x[m] = on_device<float>(rows * WIDTH);
        b.hidden[m] = on_device<float>(rows * HIDDEN);
    }
    for (float **each : {&b.y, &b.dy, &b.part, &b.target})
        *each = on_device<float>(rows * WIDTH);
    b.dhidden = on_device<float>(rows * HIDDEN);
    b.loss = on_device<float>(1);
    CUDA_CHECK(cudaMallocHost(&b.input, sizeof(float) * MICRO * rows * WIDTH));
    return b;
}

// Each step's rows of this replica, the same in both parts.
static void draw(const Rank &r, const Block &b, int step, int rows)
{
    for (int i = 0; i < MICRO * rows * WIDTH; i++)
        b.input[i] = noise(i, step, r.replica) - 0.5f;
}

static void forward(const Rank &r, const Block &b, int m, int rows)
{
    int in = rows * WIDTH, mid = rows * HIDDEN;
    const float *from = b.input + m * in;
    if (r.behind < 0)
        CUDA_CHECK(cudaMemcpyAsync(b.x[m], from, sizeof(float) * in, cudaMemcpyHostToDevice,
                                   r.compute));
    else
        NCCL_CHECK(ncclRecv(b.x[m], in, ncclFloat, r.behind, r.all, r.compute));
    product<<<blocks(mid), THREADS, 0, r.compute>>>(b.x[m], b.w, b.hidden[m], rows, WIDTH, HIDDEN);
    bend<<<blocks(mid), THREADS, 0, r.compute>>>(b.hidden[m], b.w + 2 * MATRIX, mid);
    product<<<blocks(in), THREADS, 0, r.compute>>>(b.hidden[m], b.w + MATRIX, b.y, rows, HIDDEN,
                                                   WIDTH);
    NCCL_CHECK(ncclAllReduce(b.y, b.y, in, ncclFloat, ncclSum, r.block, r.compute));
    add<<<blocks(in), THREADS, 0, r.compute>>>(b.y, b.x[m], in);
    if (r.ahead >= 0) {
        NCCL_CHECK(ncclSend(b.y, in, ncclFloat, r.ahead, r.all, r.compute));
        return;
    }
    CUDA_CHECK(cudaMemcpyAsync(b.target, from, sizeof(float) * in, cudaMemcpyHostToDevice,
                               r.compute));
    lacking<<<blocks(in), THREADS, 0, r.compute>>>(b.y, b.target, b.dy, b.loss, rows);
}

// `last`: of this step; then the second matrix's gradient is summed while the first's is computed.
static void backward(const Rank &r, const Block &b, int m, int rows, bool last)
{
    int in = rows * WIDTH, mid = rows * HIDDEN;
    if (r.ahead >= 0)
        NCCL_CHECK(ncclRecv(b.dy, in, ncclFloat, r.ahead, r.all, r.compute));
    gradient<<<blocks(MATRIX), THREADS, 0, r.compute>>>(b.hidden[m], b.dy, b.dw + MATRIX, rows,
                                                        HIDDEN, WIDTH);
    cudaEvent_t ready, summed;
    CUDA_CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    if (last) {
        CUDA_CHECK(cudaEventRecord(ready, r.compute));
        CUDA_CHECK(cudaStreamWaitEvent(r.exchange, ready, 0));
        NCCL_CHECK(ncclAllReduce(b.dw + MATRIX, b.dw + MATRIX, MATRIX, ncclFloat, ncclSum,
                                 r.replicas, r.exchange));
        CUDA_CHECK(cudaEventRecord(summed, r.exchange));
    }
    product_back<<<blocks(mid), THREADS, 0, r.compute>>>(b.dy, b.w + MATRIX, b.dhidden, rows,
                                                         HIDDEN, WIDTH);
    bend_back<<<blocks(mid), THREADS, 0, r.compute>>>(b.hidden[m], b.dhidden, mid);
    bias_back<<<blocks(HIDDEN), THREADS, 0, r.compute>>>(b.dhidden, b.dw + 2 * MATRIX, rows);
    gradient<<<blocks(MATRIX), THREADS, 0, r.compute>>>(b.x[m], b.dhidden, b.dw, rows, WIDTH,
                                                        HIDDEN);
    if (r.behind >= 0) {
        product_back<<<blocks(in), THREADS, 0, r.compute>>>(b.dhidden, b.w, b.part, rows, WIDTH,
                                                            HIDDEN);
        NCCL_CHECK(ncclAllReduce(b.part, b.part, in, ncclFloat, ncclSum, r.block, r.compute));
        add<<<blocks(in), THREADS, 0, r.compute>>>(b.part, b.dy, in);
        NCCL_CHECK(ncclSend(b.part, in, ncclFloat, r.behind, r.all, r.compute));
    }
    if (last)
        CUDA_CHECK(cudaStreamWaitEvent(r.compute, summed, 0));
    CUDA_CHECK(cudaEventDestroy(ready));
    CUDA_CHECK(cudaEventDestroy(summed));
}

static void update(const Rank &r, const Block &b, int replicas)
{
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclAllReduce(b.dw, b.dw, MATRIX, ncclFloat, ncclSum, r.replicas, r.compute));
    NCCL_CHECK(ncclAllReduce(b.dw + 2 * MATRIX, b.dw + 2 * MATRIX, PARAMETERS - 2 * MATRIX,
                             ncclFloat, ncclSum, r.replicas, r.compute));
    NCCL_CHECK(ncclGroupEnd());
    adam<<<blocks(PARAMETERS), THREADS, 0, r.compute>>>(b.w, b.dw, b.first, b.second, PARAMETERS,
                                                        1.0f / float(replicas));
}

int main(int argc, char **argv)
{
    Rank r;
    World world = start(&r.all);
    int steps = argument(argc, argv, 1, 6), rows = argument(argc, argv, 2, 8);
    int replicas = world.size / (STAGES * SPLIT);
    EXPECT(replicas * STAGES * SPLIT == world.size, "%d ranks", world.size);
    r.part = world.rank % SPLIT;
    r.replica = world.rank / SPLIT % replicas;
    r.stage = world.rank / SPLIT / replicas;
    r.ahead = r.stage + 1 < STAGES ? world.rank + SPLIT * replicas : -1;
    r.behind = r.stage > 0 ? world.rank - SPLIT * replicas : -1;
    NCCL_CHECK(ncclCommSplit(r.all, world.rank / SPLIT, r.part, &r.block, nullptr));
    NCCL_CHECK(ncclCommSplit(r.all, r.stage * SPLIT + r.part, r.replica, &r.replicas, nullptr));
    CUDA_CHECK(cudaStreamCreateWithFlags(&r.compute, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&r.exchange, cudaStreamNonBlocking));
    Block b = make(r, rows);
    for (int step = 0; step < steps; step++) {
        draw(r, b, step, rows);
        CUDA_CHECK(cudaMemsetAsync(b.dw, 0, sizeof(float) * PARAMETERS, r.compute));
        CUDA_CHECK(cudaMemsetAsync(b.loss, 0, sizeof(float), r.compute));
        for (int m = 0; m < MICRO; m++) {
            forward(r, b, m, rows);
            if (r.ahead < 0)
                backward(r, b, m, rows, m + 1 == MICRO);
        }
        for (int m = 0; r.ahead >= 0 && m < MICRO; m++)
            backward(r, b, m, rows, m + 1 == MICRO);
        update(r, b, replicas);
        CUDA_CHECK(cudaGetLastError());
        report(step, "loss", b.loss, 1);
        report(step, "parameters", b.w, PARAMETERS);
    }
    for (ncclComm_t comm : {r.block, r.replicas, r.all})
        NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
