// mlp_blas.cu: data-parallel training of a small network whose products are cuBLAS's.
//
// The forward pass is a graph, captured once: cublasLtMatmul with bias and ReLU, then sgemm.
// Backward uses transposed sgemm, gemmEx, and a scalar in device memory. Beside it small integer
// matrices are multiplied in half precision, in batches by stride and by list, whose results are
// exact. All handles are made once, before the first step.
#include <cmath>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>

#include "common.h"

#define BLAS_CHECK(call)                                                                         \
    do {                                                                                         \
        cublasStatus_t status = (call);                                                          \
        if (status != CUBLAS_STATUS_SUCCESS)                                                     \
            die("%s:%d: %s: %s", __FILE__, __LINE__, #call, cublasGetStatusString(status));      \
    } while (0)

constexpr int IN = 24, HIDDEN = 40, OUT = 8, BATCH = 16;
constexpr int W1 = HIDDEN * IN, W2 = OUT * HIDDEN, PARAMETERS = W1 + W2 + HIDDEN;
constexpr float ONE = 1, ZERO = 0;

struct Network {
    float *weights, *gradients;              // W1, W2, bias
    float *x, *target, *h, *y, *dy, *dh;     // matrices by columns, one sample each
    float *ones, *scale;                     // of the gradients, in device memory
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    cudaStream_t stream;
    cudaGraphExec_t forward;
};

__global__ void difference(float *dy, const float *y, const float *target, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        dy[i] = y[i] - target[i];
}

__global__ void only_active(float *dh, const float *h, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && h[i] <= 0)
        dh[i] = 0;
}

__global__ void descend(float *weights, const float *gradients, float rate, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        weights[i] -= rate * gradients[i];
}

// h = relu(W1 x + bias)
static void hidden_layer(const Network &net)
{
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, h;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int epilogue = CUBLASLT_EPILOGUE_RELU_BIAS, count = 0;
    const float *bias = net.weights + W1 + W2;
    BLAS_CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof epilogue));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                              sizeof bias));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&w, CUDA_R_32F, HIDDEN, IN, HIDDEN));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&x, CUDA_R_32F, IN, BATCH, IN));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&h, CUDA_R_32F, HIDDEN, BATCH, HIDDEN));
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(net.lt, desc, w, x, h, h, preference, 1, &found,
                                              &count));
    EXPECT(count == 1, "no algorithm");
    BLAS_CHECK(cublasLtMatmul(net.lt, desc, &ONE, net.weights, w, net.x, x, &ZERO, net.h, h,
                              net.h, h, &found.algo, nullptr, 0, net.stream));
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    for (cublasLtMatrixLayout_t layout : {w, x, h})
        BLAS_CHECK(cublasLtMatrixLayoutDestroy(layout));
    BLAS_CHECK(cublasLtMatmulDescDestroy(desc));
}

static void capture_forward(Network &net)
{
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(net.stream, cudaStreamCaptureModeThreadLocal));
    hidden_layer(net);
    BLAS_CHECK(cublasSgemm(net.blas, CUBLAS_OP_N, CUBLAS_OP_N, OUT, BATCH, HIDDEN, &ONE,
                           net.weights + W1, OUT, net.h, HIDDEN, &ZERO, net.y, OUT));
    CUDA_CHECK(cudaStreamEndCapture(net.stream, &graph));
    size_t count = 8;
    cudaGraphNode_t nodes[8];
    cudaKernelNodeParams params;
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT(cudaGraphKernelNodeGetParams(nodes[count - 1], &params) ==
           cudaErrorInvalidDeviceFunction, "a library's kernel has no name here");
    cudaGetLastError();
    CUDA_CHECK(cudaGraphInstantiate(&net.forward, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

static void backward(const Network &net)
{
    float *g1 = net.gradients, *g2 = g1 + W1, *g_bias = g2 + W2;
    difference<<<1, OUT * BATCH, 0, net.stream>>>(net.dy, net.y, net.target, OUT * BATCH);
    BLAS_CHECK(cublasSetPointerMode(net.blas, CUBLAS_POINTER_MODE_DEVICE));
    const float *zero = net.scale + 1;
    BLAS_CHECK(cublasSgemm(net.blas, CUBLAS_OP_N, CUBLAS_OP_T, OUT, HIDDEN, BATCH, net.scale,
                           net.dy, OUT, net.h, HIDDEN, zero, g2, OUT));
    BLAS_CHECK(cublasSgemm(net.blas, CUBLAS_OP_T, CUBLAS_OP_N, HIDDEN, BATCH, OUT, net.scale,
                           net.weights + W1, OUT, net.dy, OUT, zero, net.dh, HIDDEN));
    BLAS_CHECK(cublasSetPointerMode(net.blas, CUBLAS_POINTER_MODE_HOST));
    only_active<<<3, 256, 0, net.stream>>>(net.dh, net.h, HIDDEN * BATCH);
    BLAS_CHECK(cublasGemmEx(net.blas, CUBLAS_OP_N, CUBLAS_OP_T, HIDDEN, IN, BATCH, &ONE, net.dh,
                            CUDA_R_32F, HIDDEN, net.x, CUDA_R_32F, IN, &ZERO, g1, CUDA_R_32F,
                            HIDDEN, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    BLAS_CHECK(cublasSgemm(net.blas, CUBLAS_OP_N, CUBLAS_OP_N, HIDDEN, 1, BATCH, &ONE, net.dh,
                           HIDDEN, net.ones, BATCH, &ZERO, g_bias, HIDDEN));
}

// Computes the forward pass in double, to compare with.
static void check_forward(const Network &net, const std::vector<float> &weights)
{
    std::vector<float> x = fetch(net.x, IN * BATCH), y = fetch(net.y, OUT * BATCH);
    for (int s = 0; s < BATCH; s++) {
        double h[HIDDEN];
        for (int i = 0; i < HIDDEN; i++) {
            h[i] = weights[W1 + W2 + i];
            for (int p = 0; p < IN; p++)
                h[i] += double(weights[p * HIDDEN + i]) * x[s * IN + p];
            h[i] = h[i] > 0 ? h[i] : 0;
        }
        for (int i = 0; i < OUT; i++) {
            double sum = 0;
            for (int p = 0; p < HIDDEN; p++)
                sum += double(weights[W1 + p * OUT + i]) * h[p];
            EXPECT(std::fabs(sum - y[s * OUT + i]) < 1e-4, "output %d of sample %d", i, s);
        }
    }
}

// Integers in half precision: C = A B for each of three 5 x 5 matrices, by stride and by list.
static void check_batches(const Network &net, int step)
{
    constexpr int N = 5, COUNT = 3, ALL = N * N * COUNT;
    std::vector<__half> a(ALL), b(ALL);
    for (int i = 0; i < ALL; i++) {
        a[i] = __float2half(float((i * 7 + step) % 11 - 5));
        b[i] = __float2half(float((i * 5 + step) % 9 - 4));
    }
    __half *da = on_device(a), *db = on_device(b), *dc = on_device<__half>(2 * ALL);
    std::vector<__half *> lists;
    for (__half *first : {da, db, dc + ALL})
        for (int i = 0; i < COUNT; i++)
            lists.push_back(first + i * N * N);
    __half **list = on_device(lists);
    BLAS_CHECK(cublasGemmStridedBatchedEx(
        net.blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &ONE, da, CUDA_R_16F, N, N * N, db, CUDA_R_16F,
        N, N * N, &ZERO, dc, CUDA_R_16F, N, N * N, COUNT, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    BLAS_CHECK(cublasGemmBatchedEx(
        net.blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &ONE, (const void **)list, CUDA_R_16F, N,
        (const void **)(list + COUNT), CUDA_R_16F, N, &ZERO, (void **)(list + 2 * COUNT),
        CUDA_R_16F, N, COUNT, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    std::vector<__half> c = fetch(dc, 2 * ALL);
    for (int at = 0; at < ALL; at++) {
        int first = at / (N * N) * N * N, i = at % N, j = at / N % N;
        float sum = 0;
        for (int p = 0; p < N; p++)
            sum += __half2float(a[first + p * N + i]) * __half2float(b[first + j * N + p]);
        EXPECT(__half2float(c[at]) == sum && __half2float(c[ALL + at]) == sum, "element %d", at);
    }
    for (void *buffer : {(void *)da, (void *)db, (void *)dc, (void *)list})
        CUDA_CHECK(cudaFree(buffer));
}

static Network make()
{
    Network net = {};
    std::vector<float> weights(PARAMETERS);
    for (int i = 0; i < PARAMETERS; i++)
        weights[i] = (noise(1, i) - 0.5f) * 0.4f;
    net.weights = on_device(weights);
    net.gradients = on_device<float>(PARAMETERS);
    net.x = on_device<float>(IN * BATCH);
    net.h = on_device<float>(HIDDEN * BATCH);
    net.dh = on_device<float>(HIDDEN * BATCH);
    net.target = on_device<float>(OUT * BATCH);
    net.y = on_device<float>(OUT * BATCH);
    net.dy = on_device<float>(OUT * BATCH);
    net.ones = on_device(std::vector<float>(BATCH, 1.0f));
    net.scale = on_device(std::vector<float>{1.0f, 0.0f});
    CUDA_CHECK(cudaStreamCreate(&net.stream));
    BLAS_CHECK(cublasCreate(&net.blas));
    BLAS_CHECK(cublasLtCreate(&net.lt));
    BLAS_CHECK(cublasSetStream(net.blas, net.stream));
    capture_forward(net);
    return net;
}

// Samples of this rank, and what a fixed linear map makes of them.
static void sample(const Network &net, int rank, int step)
{
    std::vector<float> x(IN * BATCH), target(OUT * BATCH);
    for (int i = 0; i < IN * BATCH; i++)
        x[i] = noise(2 + rank, step, i) - 0.5f;
    for (int i = 0; i < OUT * BATCH; i++)
        target[i] = x[i / OUT * IN + i % OUT] - x[i / OUT * IN + i % OUT + OUT];
    CUDA_CHECK(cudaMemcpy(net.x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(net.target, target.data(), target.size() * sizeof(float),
                          cudaMemcpyHostToDevice));
}

static double loss_of(const Network &net)
{
    double loss = 0;
    for (float d : fetch(net.dy, OUT * BATCH))
        loss += double(d) * d / (OUT * BATCH);
    return loss;
}

int main(int argc, char **argv)
{
    int steps = argument(argc, argv, 1, 30);
    ncclComm_t comm;
    World world = start(&comm);
    Network net = make();
    double first = 0, last = 0;
    for (int step = 0; step < steps; step++) {
        std::vector<float> weights = fetch(net.weights, PARAMETERS);
        sample(net, world.rank, step);
        CUDA_CHECK(cudaGraphLaunch(net.forward, net.stream));
        backward(net);
        NCCL_CHECK(ncclAllReduce(net.gradients, net.gradients, PARAMETERS, ncclFloat, ncclAvg,
                                 comm, net.stream));
        descend<<<(PARAMETERS + 255) / 256, 256, 0, net.stream>>>(net.weights, net.gradients,
                                                                  0.02f, PARAMETERS);
        check_forward(net, weights);
        check_batches(net, step);
        last = loss_of(net);
        first = step ? first : last;
        report(step, "weights", net.weights, PARAMETERS);
    }
    EXPECT(steps < 20 || last < first, "the loss went from %g to %g", first, last);
    BLAS_CHECK(cublasDestroy(net.blas));
    BLAS_CHECK(cublasLtDestroy(net.lt));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
