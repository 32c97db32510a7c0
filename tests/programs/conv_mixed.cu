// conv_mixed.cu: a convolutional net that tells horizontal from vertical stripes. Gradients are
// averaged in half precision, the loss in double; the two travel on different streams.
#include <cuda_fp16.h>

#include "common.h"

constexpr int SIDE = 8, KERNEL = 3, FILTERS = 4, BATCH = 16;
constexpr int OUT = SIDE - KERNEL + 1, TAPS = KERNEL * KERNEL;
constexpr int PARAMETERS = FILTERS * TAPS + FILTERS;  // taps, then the weights of the output
constexpr float SCALE = 64.0f;                        // keeps small gradients above half's floor

// pooled[b][f]: the mean of relu(conv) over the picture
__global__ void convolve(const float *images, const float *params, float *pooled)
{
    int b = blockIdx.x, f = threadIdx.x;
    float sum = 0.0f;
    for (int at = 0; at < OUT * OUT; at++) {
        float value = 0.0f;
        for (int k = 0; k < TAPS; k++)
            value += params[f * TAPS + k] *
                     images[b * SIDE * SIDE + (at / OUT + k / KERNEL) * SIDE + at % OUT +
                            k % KERNEL];
        sum += fmaxf(value, 0.0f);
    }
    pooled[b * FILTERS + f] = sum / (OUT * OUT);
}

__global__ void classify(const float *pooled, const float *labels, const float *params,
                         float *dlogit, double *loss)
{
    __shared__ double losses[BATCH];
    int b = threadIdx.x;
    float logit = 0.0f;
    for (int f = 0; f < FILTERS; f++)
        logit += pooled[b * FILTERS + f] * params[FILTERS * TAPS + f];
    float p = 1.0f / (1.0f + expf(-logit));
    dlogit[b] = (p - labels[b]) / BATCH;
    losses[b] = -log(labels[b] > 0.5f ? double(p) : 1.0 - double(p)) / BATCH;
    __syncthreads();
    if (b == 0) {
        double sum = 0.0;
        for (int i = 0; i < BATCH; i++)
            sum += losses[i];
        *loss = sum;
    }
}

__global__ void backward(const float *images, const float *params, const float *pooled,
                         const float *dlogit, __half *grads)
{
    int p = threadIdx.x, f = p < FILTERS * TAPS ? p / TAPS : p - FILTERS * TAPS;
    float sum = 0.0f;
    for (int b = 0; b < BATCH; b++) {
        if (p >= FILTERS * TAPS) {
            sum += dlogit[b] * pooled[b * FILTERS + f];
            continue;
        }
        const float *image = images + b * SIDE * SIDE;
        float slope = dlogit[b] * params[FILTERS * TAPS + f] / (OUT * OUT);
        for (int at = 0; at < OUT * OUT; at++) {
            const float *window = image + at / OUT * SIDE + at % OUT;
            float value = 0.0f;
            for (int k = 0; k < TAPS; k++)
                value += params[f * TAPS + k] * window[k / KERNEL * SIDE + k % KERNEL];
            if (value > 0.0f)
                sum += slope * window[p % TAPS / KERNEL * SIDE + p % TAPS % KERNEL];
        }
    }
    grads[p] = __float2half(sum * SCALE);
}

__global__ void update(float *params, const __half *grads)
{
    params[threadIdx.x] -= 1.0f * __half2float(grads[threadIdx.x]) / SCALE;
}

static void draw(int step, int rank, std::vector<float> &images, std::vector<float> &labels)
{
    for (int b = 0; b < BATCH; b++) {
        bool vertical = noise(step, rank, b) < 0.5f;
        labels[b] = vertical ? 1.0f : 0.0f;
        for (int i = 0; i < SIDE * SIDE; i++) {
            int stripe = vertical ? i % SIDE : i / SIDE;
            images[b * SIDE * SIDE + i] =
                (stripe % 2 ? 1.0f : -1.0f) + 0.3f * (noise(i, step, b + 100 * rank) - 0.5f);
        }
    }
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 60);
    std::vector<float> initial(PARAMETERS), images(BATCH * SIDE * SIDE), labels(BATCH);
    for (int i = 0; i < PARAMETERS; i++)
        initial[i] = noise(i, 7) - 0.5f;
    float *params = on_device(initial), *pictures = on_device(images), *wanted = on_device(labels);
    float *pooled = on_device<float>(BATCH * FILTERS), *dlogit = on_device<float>(BATCH);
    __half *grads = on_device<__half>(PARAMETERS);
    double *loss = on_device<double>(1), first = 0.0, last = 0.0;
    cudaStream_t main_stream, side;
    cudaEvent_t ready;
    CUDA_CHECK(cudaStreamCreate(&main_stream));
    CUDA_CHECK(cudaStreamCreate(&side));
    CUDA_CHECK(cudaEventCreate(&ready));
    for (int n = 0; n < steps; n++) {
        draw(n, world.rank, images, labels);
        CUDA_CHECK(cudaMemcpyAsync(pictures, images.data(), images.size() * 4,
                                   cudaMemcpyHostToDevice, main_stream));
        CUDA_CHECK(cudaMemcpyAsync(wanted, labels.data(), labels.size() * 4,
                                   cudaMemcpyHostToDevice, main_stream));
        convolve<<<BATCH, FILTERS, 0, main_stream>>>(pictures, params, pooled);
        classify<<<1, BATCH, 0, main_stream>>>(pooled, wanted, params, dlogit, loss);
        CUDA_CHECK(cudaEventRecord(ready, main_stream));
        CUDA_CHECK(cudaStreamWaitEvent(side, ready, 0));
        NCCL_CHECK(ncclAllReduce(loss, loss, 1, ncclDouble, ncclAvg, comm, side));
        backward<<<1, PARAMETERS, 0, main_stream>>>(pictures, params, pooled, dlogit, grads);
        NCCL_CHECK(ncclAllReduce(grads, grads, PARAMETERS, ncclHalf, ncclAvg, comm, main_stream));
        update<<<1, PARAMETERS, 0, main_stream>>>(params, grads);
        CUDA_CHECK(cudaGetLastError());
        report(n, "gradients", grads, PARAMETERS);
        report(n, "parameters", params, PARAMETERS);
        last = report(n, "loss", loss, 1)[0];
        first = n ? first : last;
    }
    EXPECT(steps < 50 || last < 0.5 * first, "the loss went from %g to %g", first, last);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
