// splicing_mlp.cu: trains a multi-layer perceptron, data-parallel, with AdamW.
//
// Parameters, gradients and both moments have one allocation each; the gradients are averaged in
// one all-reduce, on the one stream there is; each step ends with its loss on the host. Arguments:
// steps, samples per rank and step, rows of an embedding (0: none), then the widths of the layers.
// With an embedding each sample adds one of its rows to its inputs: many parameters, little work.
// Prints the loss's bits at each step, and a hash of the parameters at the end. Checkpoints of its
// own: see own_checkpoint.h.
#include "../examples/gpt/kernels.cuh"
#include "../tests/programs/common.h"
#include "own_checkpoint.h"

constexpr int BLOCK = 128;

struct Layer {
    int inputs, outputs;
    size_t weight, bias;  // where in the parameters
    float *in, *out;      // activations: in is the previous layer's, behind gelu
};

struct Net {
    int batch, rows;  // of the embedding, whose parameters are the first ones
    std::vector<Layer> layers;
    size_t parameters = 0;
    float *params, *grads, *first, *second, *delta[2], *losses, *loss;
    int *targets, *picked;  // of each sample: its class, and its row
    float *host_x;          // pinned
    int *host_targets, *host_picked;
};

extern "C" __global__ void add_rows(const int *picked, const float *table, float *in, int batch,
                                    int width)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < batch * width)
        in[i] += table[size_t(picked[i / width]) * width + i % width];
}

// One thread for each column, so that samples with the same row are added in order.
extern "C" __global__ void add_rows_backward(const int *picked, const float *dx, float *dtable,
                                             int batch, int width)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width)
        return;
    for (int b = 0; b < batch; b++)
        dtable[size_t(picked[b]) * width + i] += dx[b * width + i];
}

static int blocks(size_t threads) { return int((threads + BLOCK - 1) / BLOCK); }
static dim3 tiles(int m, int n) { return dim3((n + TILE - 1) / TILE, (m + TILE - 1) / TILE); }

static Net make(int batch, int rows, const std::vector<int> &widths)
{
    Net net;
    size_t widest = 0;
    net.batch = batch;
    net.rows = rows;
    net.parameters = size_t(rows) * widths[0];
    for (size_t l = 0; l + 1 < widths.size(); l++) {
        Layer layer = {widths[l], widths[l + 1], net.parameters, 0, nullptr, nullptr};
        layer.bias = layer.weight + size_t(layer.inputs) * layer.outputs;
        net.parameters = layer.bias + layer.outputs;
        net.layers.push_back(layer);
    }
    std::vector<float> initial(net.parameters, 0.0f);
    for (const Layer &layer : net.layers)
        for (size_t i = layer.weight; i < layer.bias; i++)
            initial[i] = (noise(uint32_t(i)) - 0.5f) * 2.0f / sqrtf(float(layer.inputs));
    net.params = on_device(initial);
    net.first = on_device<float>(net.parameters);
    net.second = on_device<float>(net.parameters);
    net.grads = on_device<float>(net.parameters);
    for (Layer &layer : net.layers) {
        layer.in = on_device<float>(size_t(batch) * layer.inputs);
        layer.out = on_device<float>(size_t(batch) * layer.outputs);
    }
    for (int width : widths)
        widest = std::max(widest, size_t(width));
    for (float *&delta : net.delta)
        delta = on_device<float>(batch * widest);
    net.losses = on_device<float>(batch);
    net.loss = on_device<float>(1);
    net.targets = on_device<int>(batch);
    net.picked = on_device<int>(batch);
    CUDA_CHECK(cudaMallocHost(&net.host_x, sizeof(float) * batch * widths[0]));
    CUDA_CHECK(cudaMallocHost(&net.host_targets, sizeof(int) * batch));
    CUDA_CHECK(cudaMallocHost(&net.host_picked, sizeof(int) * batch));
    return net;
}

// Samples of this rank, and which of their inputs is the largest: that is to be learnt.
static void upload(const Net &net, int rank, int step)
{
    int inputs = net.layers.front().inputs, classes = net.layers.back().outputs;
    for (int b = 0; b < net.batch; b++) {
        float *row = net.host_x + size_t(b) * inputs;
        int &target = net.host_targets[b] = 0;
        for (int i = 0; i < inputs; i++)
            row[i] = noise(uint32_t(i), uint32_t(step), uint32_t(rank * net.batch + b)) - 0.5f;
        for (int i = 1; i < std::min(inputs, classes); i++)
            if (row[i] > row[target])
                target = i;
    }
    CUDA_CHECK(cudaMemcpyAsync(net.layers.front().in, net.host_x,
                               sizeof(float) * net.batch * inputs, cudaMemcpyHostToDevice, 0));
    CUDA_CHECK(cudaMemcpyAsync(net.targets, net.host_targets, sizeof(int) * net.batch,
                               cudaMemcpyHostToDevice, 0));
    if (!net.rows)
        return;
    for (int b = 0; b < net.batch; b++)
        net.host_picked[b] =
            int(noise(uint32_t(step), uint32_t(rank * net.batch + b)) * float(net.rows)) % net.rows;
    CUDA_CHECK(cudaMemcpyAsync(net.picked, net.host_picked, sizeof(int) * net.batch,
                               cudaMemcpyHostToDevice, 0));
    int count = net.batch * inputs;
    add_rows<<<blocks(count), BLOCK>>>(net.picked, net.params, net.layers.front().in, net.batch,
                                       inputs);
}

static void forward(const Net &net)
{
    dim3 threads(GEMM_SIDE, GEMM_SIDE);
    for (size_t l = 0; l < net.layers.size(); l++) {
        const Layer &y = net.layers[l];
        gemm_nn<<<tiles(net.batch, y.outputs), threads>>>({y.in, net.params + y.weight,
            net.params + y.bias, nullptr, y.out, net.batch, y.outputs, y.inputs});
        int count = net.batch * y.outputs;
        if (l + 1 < net.layers.size())
            gelu_forward<<<blocks(count), BLOCK>>>(y.out, net.layers[l + 1].in, count);
    }
    const Layer &last = net.layers.back();
    cross_entropy<<<(net.batch + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK,
                    dim3(WARP, ROWS_PER_BLOCK)>>>(last.out, net.targets, net.losses, net.batch,
                                                  last.outputs);
    mean<<<1, WARP>>>(net.losses, net.loss, net.batch);
}

static void backward(const Net &net)
{
    dim3 threads(GEMM_SIDE, GEMM_SIDE);
    const float *dy = net.layers.back().out;  // cross_entropy left the gradient there
    for (size_t l = net.layers.size(); l-- > 0;) {
        const Layer &y = net.layers[l];
        gemm_tn<<<tiles(y.inputs, y.outputs), threads>>>({y.in, dy, nullptr, nullptr,
            net.grads + y.weight, y.inputs, y.outputs, net.batch});
        column_sum<<<blocks(y.outputs), BLOCK>>>(dy, net.grads + y.bias, net.batch, y.outputs);
        if (l == 0 && !net.rows)
            break;
        float *dx = net.delta[l % 2];
        gemm_nt<<<tiles(net.batch, y.inputs), threads>>>({dy, net.params + y.weight, nullptr,
            nullptr, dx, net.batch, y.inputs, y.outputs});
        if (l == 0) {
            CUDA_CHECK(cudaMemsetAsync(net.grads, 0, sizeof(float) * net.rows * y.inputs, 0));
            add_rows_backward<<<blocks(y.inputs), BLOCK>>>(net.picked, dx, net.grads, net.batch,
                                                           y.inputs);
            break;
        }
        gelu_backward<<<blocks(net.batch * y.inputs), BLOCK>>>(net.layers[l - 1].out, dx,
                                                               net.batch * y.inputs);
        dy = dx;
    }
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 20), batch = argument(argc, argv, 2, 64);
    int rows = argument(argc, argv, 3, 0);
    std::vector<int> widths;
    for (int i = 4; i < argc; i++)
        widths.push_back(argument(argc, argv, i, 0));
    Net net = make(batch, rows, widths.size() < 2 ? std::vector<int>{64, 256, 256, 16} : widths);
    int count = int(net.parameters);
    std::vector<Floats> own = {
        {net.params, net.parameters}, {net.first, net.parameters}, {net.second, net.parameters}};
    for (int n = first_step(own); n < steps; n++) {
        upload(net, world.rank, n);
        forward(net);
        backward(net);
        NCCL_CHECK(ncclAllReduce(net.grads, net.grads, net.parameters, ncclFloat, ncclAvg, comm,
                                 0));
        AdamW rule = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.01f, 1.0f - powf(0.9f, float(n + 1)),
                      1.0f - powf(0.95f, float(n + 1))};
        adamw<<<blocks(net.parameters), BLOCK>>>(net.params, net.grads, net.first, net.second,
                                                 count, rule);
        CUDA_CHECK(cudaGetLastError());
        report(n, "loss", net.loss, 1);
        save_own(world.rank, n, own);
    }
    std::vector<float> params = fetch(net.params, net.parameters);
    printf("parameters %016" PRIx64 "\n", hash(params.data(), params.size() * sizeof(float)));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
