// layers.cu: ranks that normalise a batch, run an LSTM and its gradients, fill the states of a
// dropout, and make a spatial transformer's grid, with cuDNN's functions outside of its backend
// API. All numbers depend on the rank and the step.
#include "dnn_program.h"

// As in <cudnn_ops.h> and <cudnn_adv.h>, which are not everywhere.
extern "C" {
int cudnnGetTensorNdDescriptor(const void *, int, int *, int *, int *, int *);
int cudnnDeriveBNTensorDescriptor(void *, void *, int);
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *, int, int, void *, void *,
                                                             void *, void *, void *, size_t *);
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *, int, int, void *, void *,
                                                         size_t *);
int cudnnBatchNormalizationForwardTrainingEx(void *, int, int, const void *, const void *, void *,
                                             const void *, void *, const void *, void *, void *,
                                             void *, const void *, const void *, double, void *,
                                             void *, double, void *, void *, void *, void *,
                                             size_t, void *, size_t);
int cudnnRestoreDropoutDescriptor(void *, void *, float, void *, size_t, unsigned long long);
int cudnnCreateRNNDescriptor(void **);
int cudnnDestroyRNNDescriptor(void *);
int cudnnSetRNNDescriptor_v8(void *, int, int, int, int, int, int, int, int, int32_t, int32_t,
                             int32_t, int32_t, void *, uint32_t);
int cudnnCreateRNNDataDescriptor(void **);
int cudnnDestroyRNNDataDescriptor(void *);
int cudnnSetRNNDataDescriptor(void *, int, int, int, int, int, const int *, void *);
int cudnnGetRNNTempSpaceSizes(void *, void *, int, void *, size_t *, size_t *);
int cudnnGetRNNWeightSpaceSize(void *, void *, size_t *);
int cudnnGetRNNWeightParams(void *, void *, int32_t, size_t, const void *, int32_t, void *,
                            void **, void *, void **);
int cudnnRNNForward(void *, void *, int, const int32_t *, void *, const void *, void *, void *,
                    void *, const void *, void *, void *, const void *, void *, size_t,
                    const void *, size_t, void *, size_t, void *);
int cudnnRNNBackwardData_v8(void *, void *, const int32_t *, void *, const void *, const void *,
                            void *, void *, void *, const void *, const void *, void *, void *,
                            const void *, const void *, void *, size_t, const void *, size_t,
                            void *, size_t, void *);
int cudnnCreateSpatialTransformerDescriptor(void **);
int cudnnDestroySpatialTransformerDescriptor(void *);
int cudnnSetSpatialTransformerNdDescriptor(void *, int, int, int, const int *);
int cudnnSpatialTfGridGeneratorForward(void *, const void *, const void *, void *);
int cudnnRNNBackwardWeights_v8(void *, void *, int, const int32_t *, void *, const void *, void *,
                               const void *, void *, const void *, size_t, void *, size_t, void *,
                               size_t, void *);
}
enum { SPATIAL = 1, LSTM = 2, DOUBLE_BIAS = 2, PADDED = 1, FMA_MATH = 3 };
// ---- batch normalisation ----

static void normalise(int k, double seed, void *handle)
{
    constexpr int N = 3, C = 2, PLACES = 8;
    constexpr double EPSILON = 1e-5, FACTOR = 0.25;
    void *xd = tensor({N, C, 2, 4}), *pd;
    size_t area_bytes, reserve_bytes;
    float one = 1, zero = 0;
    OK(cudnnCreateTensorDescriptor(&pd));
    OK(cudnnDeriveBNTensorDescriptor(pd, xd, SPATIAL));
    OK(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle, SPATIAL, 0, xd, nullptr, xd,
                                                                pd, nullptr, &area_bytes));
    OK(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, SPATIAL, 0, nullptr, xd,
                                                            &reserve_bytes));
    auto x = waves(N * C * PLACES, seed);
    std::vector<float> scale = {1.5f, -2}, bias = {0.25f, float(seed)};
    float *xs = on_device(x), *y = on_device<float>(x.size()), *s = on_device(scale);
    float *b = on_device(bias), *mean = on_device<float>(C), *deviation = on_device<float>(C);
    float *running_mean = on_device<float>(C), *running_variance = on_device<float>(C);
    void *area = bytes_on_device(area_bytes), *reserve = bytes_on_device(reserve_bytes);
    OK(cudnnBatchNormalizationForwardTrainingEx(
        handle, SPATIAL, 0, &one, &zero, xd, xs, nullptr, nullptr, xd, y, pd, s, b, FACTOR,
        running_mean, running_variance, EPSILON, mean, deviation, nullptr, area, area_bytes,
        reserve, reserve_bytes));
    std::vector<double> want(x.size()), means(C), variances(C);
    for (int c = 0; c < C; c++) {
        double sum = 0, squares = 0;
        auto at = [&](int i) { return (i / PLACES * C + c) * PLACES + i % PLACES; };
        for (int i = 0; i < N * PLACES; i++)
            sum += x[at(i)];
        sum /= N * PLACES;
        for (int i = 0; i < N * PLACES; i++)
            squares += (x[at(i)] - sum) * (x[at(i)] - sum);
        for (int i = 0; i < N * PLACES; i++)
            want[at(i)] = (x[at(i)] - sum) / sqrt(squares / (N * PLACES) + EPSILON) * scale[c] +
                          bias[c];
        means[c] = FACTOR * sum;
        variances[c] = FACTOR * squares / (N * PLACES - 1);
    }
    auto found = host(y, x.size());
    expect_near("y", found, want);
    expect_near("the mean", host(running_mean, C), means);
    expect_near("the variance", host(running_variance, C), variances);
    print_line(k, "normalised", found.data(), found.size() * sizeof(float));
    for (void *each : {(void *)xs, (void *)y, (void *)s, (void *)b, (void *)mean,
                       (void *)deviation, (void *)running_mean, (void *)running_variance, area,
                       reserve})
        CUDA_CHECK(cudaFree(each));
    OK(cudnnDestroyTensorDescriptor(xd));
    OK(cudnnDestroyTensorDescriptor(pd));
}

// ---- LSTM ----

constexpr int TIME = 5, BATCH = 3, IN = 4, HIDDEN = 6;
static const int LENGTHS[] = {5, 3, 3};

struct Network {
    void *dropout, *rnn, *x, *y, *state, *states;
    size_t states_bytes, weight_bytes, area_bytes, reserve_bytes;
};

static Network describe(void *handle)
{
    Network n;
    float fill = 0;
    OK(cudnnCreateDropoutDescriptor(&n.dropout));
    OK(cudnnDropoutGetStatesSize(handle, &n.states_bytes));
    n.states = bytes_on_device(n.states_bytes);
    OK(cudnnSetDropoutDescriptor(n.dropout, handle, 0.5f, n.states, n.states_bytes, 77));
    OK(cudnnRestoreDropoutDescriptor(n.dropout, handle, 0.5f, n.states, n.states_bytes, 77));
    OK(cudnnCreateRNNDescriptor(&n.rnn));
    OK(cudnnSetRNNDescriptor_v8(n.rnn, 0, LSTM, DOUBLE_BIAS, 0, 0, FLOAT, FLOAT, FMA_MATH,
                                IN, HIDDEN, HIDDEN, 1, n.dropout, PADDED));
    OK(cudnnCreateRNNDataDescriptor(&n.x));
    OK(cudnnSetRNNDataDescriptor(n.x, FLOAT, 0, TIME, BATCH, IN, LENGTHS, &fill));
    OK(cudnnCreateRNNDataDescriptor(&n.y));
    OK(cudnnSetRNNDataDescriptor(n.y, FLOAT, 0, TIME, BATCH, HIDDEN, LENGTHS, &fill));
    n.state = tensor({1, BATCH, HIDDEN});
    OK(cudnnGetRNNWeightSpaceSize(handle, n.rnn, &n.weight_bytes));
    OK(cudnnGetRNNTempSpaceSizes(handle, n.rnn, 1, n.x, &n.area_bytes, &n.reserve_bytes));
    OK(cudnnGetRNNTempSpaceSizes(handle, n.rnn, 1, n.x, &n.area_bytes, nullptr));
    return n;
}

// One of the eight matrices and its bias, as the library places them.
static void fill_matrix(void *handle, const Network &n, float *weights, int which,
                        const std::vector<float> &matrix, const std::vector<float> &bias)
{
    void *md, *bd, *m, *b;
    int type, count, size[3], stride[3];
    OK(cudnnCreateTensorDescriptor(&md));
    OK(cudnnCreateTensorDescriptor(&bd));
    OK(cudnnGetRNNWeightParams(handle, n.rnn, 0, n.weight_bytes, weights, which, md, &m, bd, &b));
    OK(cudnnGetTensorNdDescriptor(md, 3, &type, &count, size, stride));
    EXPECT(type == FLOAT && count == 3 && size[0] * size[1] * size[2] == int(matrix.size()),
           "matrix %d has %d * %d * %d elements", which, size[0], size[1], size[2]);
    EXPECT(m >= weights && (char *)m < (char *)weights + n.weight_bytes, "matrix %d", which);
    CUDA_CHECK(cudaMemcpy(m, matrix.data(), matrix.size() * sizeof(float),
                          cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(b, bias.data(), bias.size() * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudnnDestroyTensorDescriptor(md));
    OK(cudnnDestroyTensorDescriptor(bd));
}

static std::vector<double> expected(const std::vector<float> &x,
                                    const std::vector<std::vector<float>> &w,
                                    const std::vector<std::vector<float>> &b)
{
    std::vector<double> out(TIME * BATCH * HIDDEN);
    for (int s = 0; s < BATCH; s++) {
        std::vector<double> h(HIDDEN), c(HIDDEN);
        for (int t = 0; t < LENGTHS[s]; t++) {
            double gate[4][HIDDEN];
            for (int g = 0; g < 4; g++)
                for (int i = 0; i < HIDDEN; i++) {
                    double sum = b[g][i] + b[4 + g][i];
                    for (int j = 0; j < IN; j++)
                        sum += w[g][i * IN + j] * x[(t * BATCH + s) * IN + j];
                    for (int j = 0; j < HIDDEN; j++)
                        sum += w[4 + g][i * HIDDEN + j] * h[j];
                    gate[g][i] = g == 2 ? tanh(sum) : 1 / (1 + exp(-sum));
                }
            for (int i = 0; i < HIDDEN; i++) {
                c[i] = gate[1][i] * c[i] + gate[0][i] * gate[2][i];
                h[i] = gate[3][i] * tanh(c[i]);
                out[(t * BATCH + s) * HIDDEN + i] = h[i];
            }
        }
    }
    return out;
}

static void run(int k, double seed, void *handle, const Network &n)
{
    auto x = waves(TIME * BATCH * IN, seed);
    float *weights = (float *)bytes_on_device(n.weight_bytes), *xs = on_device(x);
    float *d_weights = (float *)bytes_on_device(n.weight_bytes);
    CUDA_CHECK(cudaMemset(d_weights, 0, n.weight_bytes)); // gradients are added to it
    float *y = on_device<float>(TIME * BATCH * HIDDEN), *h = on_device<float>(BATCH * HIDDEN);
    float *dy = on_device(waves(TIME * BATCH * HIDDEN, 1)), *dx = on_device<float>(x.size());
    float *c = on_device<float>(BATCH * HIDDEN), *dh = on_device<float>(BATCH * HIDDEN);
    float *dc = on_device<float>(BATCH * HIDDEN);
    int32_t *lengths = on_device(std::vector<int32_t>(LENGTHS, LENGTHS + BATCH));
    void *area = bytes_on_device(n.area_bytes), *reserve = bytes_on_device(n.reserve_bytes);
    std::vector<std::vector<float>> w, b;
    for (int i = 0; i < 8; i++) {
        w.push_back(waves(HIDDEN * (i < 4 ? IN : HIDDEN), seed + i));
        b.push_back(waves(HIDDEN, -seed - i));
        fill_matrix(handle, n, weights, i, w[i], b[i]);
    }
    OK(cudnnRNNForward(handle, n.rnn, 1, lengths, n.x, xs, n.y, y, n.state, nullptr, h, n.state,
                       nullptr, c, n.weight_bytes, weights, n.area_bytes, area, n.reserve_bytes,
                       reserve));
    auto found = host(y, TIME * BATCH * HIDDEN);
    expect_near("y", found, expected(x, w, b));
    print_line(k, "lstm", found.data(), found.size() * sizeof(float));
    OK(cudnnRNNBackwardData_v8(handle, n.rnn, lengths, n.y, y, dy, n.x, dx, n.state, nullptr,
                               nullptr, dh, n.state, nullptr, nullptr, dc, n.weight_bytes, weights,
                               n.area_bytes, area, n.reserve_bytes, reserve));
    OK(cudnnRNNBackwardWeights_v8(handle, n.rnn, 0, lengths, n.x, xs, n.state, nullptr, n.y, y,
                                  n.weight_bytes, d_weights, n.area_bytes, area, n.reserve_bytes,
                                  reserve));
    float first[] = {host(dx, 1)[0], host(dh, 1)[0], host(dc, 1)[0], host(d_weights, 1)[0]};
    for (float each : first)
        EXPECT(each != 0, "a gradient was not written");
    print_line(k, "gradients", first, sizeof first);
    for (void *each : {(void *)weights, (void *)d_weights, (void *)xs, (void *)y, (void *)h,
                       (void *)c, (void *)dy, (void *)dx, (void *)dh, (void *)dc, (void *)lengths,
                       area, reserve})
        CUDA_CHECK(cudaFree(each));
}

// ---- spatial transformer ----

// The corners of the image are at -1 and 1.
static void grid(int k, double seed, void *handle)
{
    constexpr int HEIGHT = 3, WIDTH = 4;
    const int size[] = {1, 1, HEIGHT, WIDTH};
    std::vector<float> theta = {1, 0.5f, float(seed), -1, 2, 0.25f};
    std::vector<double> want;
    void *transformer;
    float *from = on_device(theta), *to = on_device<float>(2 * HEIGHT * WIDTH);
    OK(cudnnCreateSpatialTransformerDescriptor(&transformer));
    OK(cudnnSetSpatialTransformerNdDescriptor(transformer, 0, FLOAT, 4, size));
    OK(cudnnSpatialTfGridGeneratorForward(handle, transformer, from, to));
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        for (int row = 0; row < 2; row++)
            want.push_back(theta[3 * row] * (2.0 * (i % WIDTH) / (WIDTH - 1) - 1) +
                           theta[3 * row + 1] * (2.0 * (i / WIDTH) / (HEIGHT - 1) - 1) +
                           theta[3 * row + 2]);
    auto found = host(to, want.size());
    expect_near("the grid", found, want);
    print_line(k, "grid", found.data(), found.size() * sizeof(float));
    OK(cudnnDestroySpatialTransformerDescriptor(transformer));
    CUDA_CHECK(cudaFree(from));
    CUDA_CHECK(cudaFree(to));
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 4);
    void *handle;
    cudaStream_t stream;
    OK(cudnnCreate(&handle));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudnnSetStream(handle, stream));
    Network n = describe(handle);
    std::vector<unsigned char> states(n.states_bytes);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(states.data(), n.states, n.states_bytes, cudaMemcpyDeviceToHost));
    EXPECT(states[0] || states[1] || states[2] || states[3], "the states are empty");
    print_line(0, "states", states.data(), states.size());
    for (int k = 0; k < steps; k++) {
        normalise(k, world.rank + 0.5 * k, handle);
        run(k, world.rank + 0.25 * k, handle, n);
        grid(k, world.rank + 0.5 * k, handle);
    }
    OK(cudnnDestroyRNNDescriptor(n.rnn));
    OK(cudnnDestroyRNNDataDescriptor(n.x));
    OK(cudnnDestroyRNNDataDescriptor(n.y));
    OK(cudnnDestroyDropoutDescriptor(n.dropout));
    OK(cudnnDestroyTensorDescriptor(n.state));
    OK(cudnnDestroy(handle));
    CUDA_CHECK(cudaFree(n.states));
    CUDA_CHECK(cudaStreamDestroy(stream));
}
