// mlp_sharded.cu: an MLP with SGD and momentum whose optimizer is sharded over the ranks:
// reduce-scatter of the gradients, each rank updates its shard, all-gather of the parameters.
#include "common.h"

constexpr int INPUTS = 16, HIDDEN = 32, BATCH = 24;
constexpr int PARAMETERS = INPUTS * HIDDEN + HIDDEN + HIDDEN + 1;

struct Weights {
    float *w1, *b1, *w2, *b2;
    __host__ __device__ explicit Weights(float *p)
        : w1(p), b1(p + INPUTS * HIDDEN), w2(b1 + HIDDEN), b2(w2 + HIDDEN) {}
};

__global__ void forward(const float *x, const float *target, float *params, float *hidden,
                        float *dy, float *loss)
{
    int b = threadIdx.x;
    Weights w(params);
    float y = *w.b2;
    for (int j = 0; j < HIDDEN; j++) {
        float sum = w.b1[j];
        for (int i = 0; i < INPUTS; i++)
            sum += x[b * INPUTS + i] * w.w1[i * HIDDEN + j];
        hidden[b * HIDDEN + j] = tanhf(sum);
        y += hidden[b * HIDDEN + j] * w.w2[j];
    }
    dy[b] = 2.0f * (y - target[b]) / BATCH;
    loss[b] = (y - target[b]) * (y - target[b]) / BATCH;
}

// One thread per parameter: its gradient, summed over the batch in order.
__global__ void backward(const float *x, float *params, const float *hidden, const float *dy,
                         float *grads)
{
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= PARAMETERS)
        return;
    Weights w(params);
    float sum = 0.0f;
    for (int b = 0; b < BATCH; b++) {
        int j = p < INPUTS * HIDDEN ? p % HIDDEN : (p - INPUTS * HIDDEN) % HIDDEN;
        float h = hidden[b * HIDDEN + j], dh = dy[b] * w.w2[j] * (1.0f - h * h);
        if (p < INPUTS * HIDDEN)
            sum += dh * x[b * INPUTS + p / HIDDEN];
        else if (p < INPUTS * HIDDEN + HIDDEN)
            sum += dh;
        else
            sum += p < PARAMETERS - 1 ? dy[b] * h : dy[b];
    }
    grads[p] = sum;
}

__global__ void momentum(float *params, const float *grads, float *velocity, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        velocity[i] = 0.9f * velocity[i] + grads[i];
        params[i] -= 0.05f * velocity[i];
    }
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 60);
    int shard = (PARAMETERS + world.size - 1) / world.size, padded = shard * world.size;
    std::vector<float> initial(padded, 0.0f);
    for (int i = 0; i < PARAMETERS; i++)
        initial[i] = 0.5f * (noise(i) - 0.5f);
    float *params = on_device(initial), *grads = on_device<float>(padded);
    float *shard_grads = on_device<float>(shard), *velocity = on_device<float>(shard);
    float *x = on_device<float>(BATCH * INPUTS), *target = on_device<float>(BATCH);
    float *hidden = on_device<float>(BATCH * HIDDEN), *dy = on_device<float>(BATCH);
    float *loss = on_device<float>(BATCH), first = 0.0f, last = 0.0f;
    for (int n = 0; n < steps; n++) {
        std::vector<float> inputs(BATCH * INPUTS), wanted(BATCH, 0.0f);
        for (int i = 0; i < BATCH * INPUTS; i++) {
            inputs[i] = noise(i, n, 1 + world.rank) - 0.5f;
            wanted[i / INPUTS] += i % 2 ? inputs[i] : -inputs[i];
        }
        CUDA_CHECK(cudaMemcpy(x, inputs.data(), inputs.size() * 4, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(target, wanted.data(), wanted.size() * 4, cudaMemcpyHostToDevice));
        forward<<<1, BATCH>>>(x, target, params, hidden, dy, loss);
        backward<<<(PARAMETERS + 63) / 64, 64>>>(x, params, hidden, dy, grads);
        NCCL_CHECK(ncclReduceScatter(grads, shard_grads, shard, ncclFloat, ncclAvg, comm, 0));
        float *mine = params + world.rank * shard;
        momentum<<<(shard + 63) / 64, 64>>>(mine, shard_grads, velocity, shard);
        NCCL_CHECK(ncclAllGather(mine, params, shard, ncclFloat, comm, 0));
        CUDA_CHECK(cudaGetLastError());
        report(n, "parameters", params, PARAMETERS);
        last = 0.0f;
        for (float each : report(n, "loss", loss, BATCH))
            last += each;
        first = n ? first : last;
    }
    EXPECT(steps < 50 || last < 0.2f * first, "the loss went from %g to %g", first, last);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
