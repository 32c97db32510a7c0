// splicing_conv.cu: trains a small convolutional net that tells horizontal from vertical stripes,
// data-parallel, with AdamW and one all-reduce per layer on a stream of its own.
//
// Two convolutions of 3 x 3 with ReLU, the mean over the picture, a linear layer. Argument: steps.
// Prints the loss's bits at each step, and a hash of the parameters at the end. Checkpoints of its
// own: see own_checkpoint.h.
#include <array>

#include "../examples/gpt/kernels.cuh"
#include "../tests/programs/common.h"
#include "own_checkpoint.h"

constexpr int SIDE = 8, PIXELS = SIDE * SIDE, BATCH = 4, CLASSES = 2, BLOCK = 128;
constexpr int CHANNELS[3] = {1, 64, 128};

__device__ inline float pixel(const float *plane, int y, int x)
{
    return y < 0 || y >= SIDE || x < 0 || x >= SIDE ? 0.0f : plane[y * SIDE + x];
}

// out[b][o] = relu(bias[o] + sum over i of in[b][i] * weight[o][i]); block: one plane.
extern "C" __global__ void conv_forward(const float *in, const float *weight, const float *bias,
                                        float *out, int inputs, int outputs)
{
    int b = blockIdx.x / outputs, o = blockIdx.x % outputs;
    int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    float sum = bias[o];
    for (int i = 0; i < inputs; i++)
        for (int k = 0; k < 9; k++)
            sum += pixel(in + (b * inputs + i) * PIXELS, y + k / 3 - 1, x + k % 3 - 1) *
                   weight[(o * inputs + i) * 9 + k];
    out[blockIdx.x * PIXELS + threadIdx.x] = fmaxf(sum, 0.0f);
}

// din[b][i] = sum over o of dout[b][o] * weight[o][i], turned round; block: one plane.
extern "C" __global__ void conv_backward_input(const float *dout, const float *weight, float *din,
                                               int inputs, int outputs)
{
    int b = blockIdx.x / inputs, i = blockIdx.x % inputs;
    int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    float sum = 0.0f;
    for (int o = 0; o < outputs; o++)
        for (int k = 0; k < 9; k++)
            sum += pixel(dout + (b * outputs + o) * PIXELS, y - k / 3 + 1, x - k % 3 + 1) *
                   weight[(o * inputs + i) * 9 + k];
    din[blockIdx.x * PIXELS + threadIdx.x] = sum;
}

// One thread per weight, and one per bias behind them.
extern "C" __global__ void conv_backward_weight(const float *in, const float *dout, float *dweight,
                                                float *dbias, int inputs, int outputs)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x, weights = outputs * inputs * 9;
    if (at >= weights + outputs)
        return;
    int o = at < weights ? at / 9 / inputs : at - weights, i = at / 9 % inputs, k = at % 9;
    float sum = 0.0f;
    for (int b = 0; b < BATCH; b++)
        for (int p = 0; p < PIXELS; p++) {
            float d = dout[(b * outputs + o) * PIXELS + p];
            if (at >= weights)
                sum += d;
            else
                sum += d * pixel(in + (b * inputs + i) * PIXELS, p / SIDE + k / 3 - 1,
                                 p % SIDE + k % 3 - 1);
        }
    (at < weights ? dweight[at] : dbias[o]) = sum;
}

// The gradient does not pass where ReLU gave zero.
extern "C" __global__ void relu_backward(const float *out, float *dout, int count)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count && out[at] <= 0.0f)
        dout[at] = 0.0f;
}

extern "C" __global__ void pool_forward(const float *in, float *out, int planes)
{
    int plane = blockIdx.x * blockDim.x + threadIdx.x;
    if (plane >= planes)
        return;
    float sum = 0.0f;
    for (int p = 0; p < PIXELS; p++)
        sum += in[plane * PIXELS + p];
    out[plane] = sum / PIXELS;
}

extern "C" __global__ void pool_backward(const float *dout, const float *in, float *din, int count)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        din[at] = in[at] > 0.0f ? dout[at / PIXELS] / PIXELS : 0.0f;
}

struct Range {
    size_t weight, bias, end;  // where in the parameters
};

struct Net {
    std::array<Range, 3> layers;  // two convolutions, the linear layer
    float *params, *grads, *first, *second;
    float *images, *hidden[2], *d_hidden[2], *pooled, *d_pooled, *logits, *losses, *loss;
    int *targets, *host_targets;  // what begins with host is pinned
    float *host_images;
    cudaStream_t compute, communication;
    std::array<cudaEvent_t, 3> computed, averaged;
};

static int blocks(size_t threads) { return int((threads + BLOCK - 1) / BLOCK); }

static Net make()
{
    Net net;
    size_t at = 0;
    for (int l = 0; l < 3; l++) {
        size_t inputs = CHANNELS[std::min(l, 2)], outputs = l < 2 ? CHANNELS[l + 1] : CLASSES;
        net.layers[l].weight = at;
        net.layers[l].bias = at += inputs * outputs * (l < 2 ? 9 : 1);
        net.layers[l].end = at += outputs;
    }
    std::vector<float> initial(at, 0.0f);
    for (const Range &layer : net.layers)
        for (size_t i = layer.weight; i < layer.bias; i++)
            initial[i] = (noise(uint32_t(i), 7) - 0.5f) * 0.4f;
    net.params = on_device(initial);
    net.grads = on_device<float>(at);
    net.first = on_device<float>(at);
    net.second = on_device<float>(at);
    net.images = on_device<float>(BATCH * PIXELS);
    for (int l = 0; l < 2; l++) {
        net.hidden[l] = on_device<float>(BATCH * CHANNELS[l + 1] * PIXELS);
        net.d_hidden[l] = on_device<float>(BATCH * CHANNELS[l + 1] * PIXELS);
    }
    net.pooled = on_device<float>(BATCH * CHANNELS[2]);
    net.d_pooled = on_device<float>(BATCH * CHANNELS[2]);
    net.logits = on_device<float>(BATCH * CLASSES);
    net.losses = on_device<float>(BATCH);
    net.loss = on_device<float>(1);
    net.targets = on_device<int>(BATCH);
    CUDA_CHECK(cudaMallocHost(&net.host_images, sizeof(float) * BATCH * PIXELS));
    CUDA_CHECK(cudaMallocHost(&net.host_targets, sizeof(int) * BATCH));
    CUDA_CHECK(cudaStreamCreateWithFlags(&net.compute, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&net.communication, cudaStreamNonBlocking));
    for (int l = 0; l < 3; l++) {
        CUDA_CHECK(cudaEventCreateWithFlags(&net.computed[l], cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&net.averaged[l], cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    return net;
}

static void upload(const Net &net, int rank, int step)
{
    for (int b = 0; b < BATCH; b++) {
        bool vertical = noise(uint32_t(step), uint32_t(rank), uint32_t(b)) < 0.5f;
        net.host_targets[b] = vertical;
        for (int p = 0; p < PIXELS; p++)
            net.host_images[b * PIXELS + p] =
                ((vertical ? p % SIDE : p / SIDE) % 2 ? 1.0f : -1.0f) +
                noise(uint32_t(p), uint32_t(step), uint32_t(b + 100 * rank)) - 0.5f;
    }
    CUDA_CHECK(cudaMemcpyAsync(net.images, net.host_images, sizeof(float) * BATCH * PIXELS,
                               cudaMemcpyHostToDevice, net.compute));
    CUDA_CHECK(cudaMemcpyAsync(net.targets, net.host_targets, sizeof(int) * BATCH,
                               cudaMemcpyHostToDevice, net.compute));
}

static void forward(const Net &net)
{
    const float *in = net.images;
    dim3 rows(WARP, ROWS_PER_BLOCK);
    for (int l = 0; l < 2; l++) {
        conv_forward<<<BATCH * CHANNELS[l + 1], PIXELS, 0, net.compute>>>(
            in, net.params + net.layers[l].weight, net.params + net.layers[l].bias, net.hidden[l],
            CHANNELS[l], CHANNELS[l + 1]);
        in = net.hidden[l];
    }
    pool_forward<<<blocks(BATCH * CHANNELS[2]), BLOCK, 0, net.compute>>>(in, net.pooled,
                                                                         BATCH * CHANNELS[2]);
    gemm_nn<<<dim3(1, 1), dim3(GEMM_SIDE, GEMM_SIDE), 0, net.compute>>>(
        {net.pooled, net.params + net.layers[2].weight, net.params + net.layers[2].bias, nullptr,
         net.logits, BATCH, CLASSES, CHANNELS[2]});
    cross_entropy<<<BATCH / ROWS_PER_BLOCK, rows, 0, net.compute>>>(net.logits, net.targets,
                                                                    net.losses, BATCH, CLASSES);
    mean<<<1, WARP, 0, net.compute>>>(net.losses, net.loss, BATCH);
}

// Starts the all-reduce of a layer's gradients while the backward pass continues.
static void average(const Net &net, int l, ncclComm_t comm)
{
    float *grads = net.grads + net.layers[l].weight;
    CUDA_CHECK(cudaEventRecord(net.computed[l], net.compute));
    CUDA_CHECK(cudaStreamWaitEvent(net.communication, net.computed[l], 0));
    NCCL_CHECK(ncclAllReduce(grads, grads, net.layers[l].end - net.layers[l].weight, ncclFloat,
                             ncclAvg, comm, net.communication));
    CUDA_CHECK(cudaEventRecord(net.averaged[l], net.communication));
}

static void backward(const Net &net, ncclComm_t comm)
{
    const Range &linear = net.layers[2];
    dim3 threads(GEMM_SIDE, GEMM_SIDE);
    int wide = BATCH * CHANNELS[2] * PIXELS;
    gemm_tn<<<dim3(1, 1), threads, 0, net.compute>>>(
        {net.pooled, net.logits, nullptr, nullptr, net.grads + linear.weight, CHANNELS[2], CLASSES,
         BATCH});
    column_sum<<<1, BLOCK, 0, net.compute>>>(net.logits, net.grads + linear.bias, BATCH, CLASSES);
    average(net, 2, comm);
    gemm_nt<<<dim3(1, 1), threads, 0, net.compute>>>(
        {net.logits, net.params + linear.weight, nullptr, nullptr, net.d_pooled, BATCH, CHANNELS[2],
         CLASSES});
    pool_backward<<<blocks(wide), BLOCK, 0, net.compute>>>(net.d_pooled, net.hidden[1],
                                                           net.d_hidden[1], wide);
    for (int l = 1; l >= 0; l--) {
        int i = CHANNELS[l], o = CHANNELS[l + 1], count = BATCH * i * PIXELS;
        conv_backward_weight<<<blocks(o * i * 9 + o), BLOCK, 0, net.compute>>>(
            l ? net.hidden[0] : net.images, net.d_hidden[l], net.grads + net.layers[l].weight,
            net.grads + net.layers[l].bias, i, o);
        average(net, l, comm);
        if (!l)
            break;
        conv_backward_input<<<BATCH * i, PIXELS, 0, net.compute>>>(
            net.d_hidden[1], net.params + net.layers[1].weight, net.d_hidden[0], i, o);
        relu_backward<<<blocks(count), BLOCK, 0, net.compute>>>(net.hidden[0], net.d_hidden[0],
                                                                count);
    }
}

static void update(const Net &net, int t)
{
    AdamW rule = {3e-3f, 0.9f, 0.95f, 1e-8f, 0.01f, 1.0f - powf(0.9f, float(t)),
                  1.0f - powf(0.95f, float(t))};
    for (int l = 2; l >= 0; l--) {
        size_t at = net.layers[l].weight;
        int count = int(net.layers[l].end - at);
        CUDA_CHECK(cudaStreamWaitEvent(net.compute, net.averaged[l], 0));
        adamw<<<blocks(count), BLOCK, 0, net.compute>>>(net.params + at, net.grads + at,
                                                        net.first + at, net.second + at, count,
                                                        rule);
    }
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    Net net = make();
    size_t count = net.layers[2].end;
    std::vector<Floats> own = {{net.params, count}, {net.first, count}, {net.second, count}};
    for (int n = first_step(own); n < steps; n++) {
        upload(net, world.rank, n);
        forward(net);
        backward(net, comm);
        update(net, n + 1);
        CUDA_CHECK(cudaGetLastError());
        report(n, "loss", net.loss, 1);
        save_own(world.rank, n, own);
    }
    std::vector<float> params = fetch(net.params, net.layers[2].end);
    printf("parameters %016" PRIx64 "\n", hash(params.data(), params.size() * sizeof(float)));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
