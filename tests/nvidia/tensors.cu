// tensors.cu: ranks that pool, normalise, activate, drop, combine and reduce tensors with cuDNN,
// and compute the gradients of some of that. All numbers depend on the rank and the step.
#include <functional>

#include "dnn_program.h"

// As in <cudnn_ops.h>, which is not everywhere.
extern "C" {
#define DESCRIPTOR(name)                        \
    int cudnnCreate##name##Descriptor(void **); \
    int cudnnDestroy##name##Descriptor(void *)
DESCRIPTOR(Pooling);
DESCRIPTOR(Activation);
DESCRIPTOR(LRN);
DESCRIPTOR(OpTensor);
DESCRIPTOR(ReduceTensor);
int cudnnDestroyDropoutDescriptor(void *);
int cudnnSetPooling2dDescriptor(void *, int, int, int, int, int, int, int, int);
int cudnnGetPooling2dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *);
int cudnnSetPoolingNdDescriptor(void *, int, int, int, const int *, const int *, const int *);
int cudnnGetPoolingNdDescriptor(void *, int, int *, int *, int *, int *, int *, int *);
int cudnnGetPooling2dForwardOutputDim(void *, void *, int *, int *, int *, int *);
int cudnnGetPoolingNdForwardOutputDim(void *, void *, int, int *);
int cudnnSetActivationDescriptor(void *, int, int, double);
int cudnnGetActivationDescriptor(void *, int *, int *, double *);
int cudnnSetLRNDescriptor(void *, unsigned, double, double, double);
int cudnnGetLRNDescriptor(void *, unsigned *, double *, double *, double *);
int cudnnSetOpTensorDescriptor(void *, int, int, int);
int cudnnGetOpTensorDescriptor(void *, int *, int *, int *);
int cudnnSetReduceTensorDescriptor(void *, int, int, int, int, int);
int cudnnGetReduceTensorDescriptor(void *, int *, int *, int *, int *, int *);
int cudnnPoolingForward(void *, void *, const void *, void *, const void *, const void *, void *,
                        void *);
int cudnnPoolingBackward(void *, void *, const void *, void *, const void *, void *, const void *,
                         void *, const void *, const void *, void *, void *);
int cudnnActivationForward(void *, void *, const void *, void *, const void *, const void *,
                           void *, void *);
int cudnnActivationBackward(void *, void *, const void *, void *, const void *, void *,
                            const void *, void *, const void *, const void *, void *, void *);
int cudnnSoftmaxForward(void *, int, int, const void *, void *, const void *, const void *, void *,
                        void *);
int cudnnSoftmaxBackward(void *, int, int, const void *, void *, const void *, void *, const void *,
                         const void *, void *, void *);
int cudnnLRNCrossChannelForward(void *, void *, int, const void *, void *, const void *,
                                const void *, void *, void *);
int cudnnDropoutGetReserveSpaceSize(void *, size_t *);
int cudnnDropoutForward(void *, void *, void *, const void *, void *, void *, void *, size_t);
int cudnnDropoutBackward(void *, void *, void *, const void *, void *, void *, void *, size_t);
int cudnnOpTensor(void *, void *, const void *, void *, const void *, const void *, void *,
                  const void *, const void *, void *, void *);
int cudnnGetReductionWorkspaceSize(void *, void *, void *, void *, size_t *);
int cudnnGetReductionIndicesSize(void *, void *, void *, void *, size_t *);
int cudnnReduceTensor(void *, void *, void *, size_t, void *, size_t, const void *, void *,
                      const void *, const void *, void *, void *);
int cudnnAddTensor(void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnTransformTensor(void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnScaleTensor(void *, void *, void *, const void *);
int cudnnSetTensor(void *, void *, void *, const void *);
}
enum { NCHW = 0, DOUBLE = 1, BAD_PARAM = 2000 };
enum { MOST = 0, MEAN_OF_ALL = 1, SIGMOID = 0, ELU = 4, MULTIPLY = 1, MEAN = 5 };
enum { ACCURATE = 1, LOG = 2, INSTANCE = 0, CHANNEL = 1 };

constexpr int IMAGES = 2, CHANNELS = 3, HEIGHT = 4, WIDTH = 5, PLACES = HEIGHT * WIDTH;
constexpr int OUT_HEIGHT = 3, OUT_WIDTH = 2;
constexpr size_t N = IMAGES * CHANNELS * PLACES;
constexpr size_t POOLED = IMAGES * CHANNELS * OUT_HEIGHT * OUT_WIDTH;
static const float ONE = 1, ZERO = 0;

struct Data {
    void *handle, *as, *pooled;
    float *x, *dy, *y, *dx;
    std::vector<float> host_x, host_dy;
};

// The places of x under the window of one of y: 2 * 3, from row h - 1 and column 2 * w.
static std::vector<size_t> window(size_t i)
{
    int w = i % OUT_WIDTH, h = i / OUT_WIDTH % OUT_HEIGHT;
    std::vector<size_t> out;
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 3; b++) {
            int row = 2 * h - 1 + a, column = 2 * w + b;
            if (row >= 0 && row < HEIGHT && column < WIDTH)
                out.push_back(i / (OUT_HEIGHT * OUT_WIDTH) * PLACES + row * WIDTH + column);
        }
    return out;
}

static void pool(int k, const Data &d, int mode)
{
    void *pooling;
    int n, c, h, w, four[4], windows[2], padding[2], strides[2], nan;
    OK(cudnnCreatePoolingDescriptor(&pooling));
    OK(cudnnSetPooling2dDescriptor(pooling, mode, 0, 2, 3, 1, 0, 2, 2));
    OK(cudnnGetPooling2dForwardOutputDim(pooling, d.as, &n, &c, &h, &w));
    OK(cudnnGetPoolingNdForwardOutputDim(pooling, d.as, 4, four));
    EXPECT(n == IMAGES && c == CHANNELS && h == OUT_HEIGHT && w == OUT_WIDTH && four[2] == h,
           "pooled to %d * %d", h, w);
    OK(cudnnGetPooling2dDescriptor(pooling, &n, &nan, &h, &w, &padding[0], &padding[1],
                                   &strides[0], &strides[1]));
    EXPECT(n == mode && h == 2 && w == 3 && padding[0] == 1 && strides[1] == 2, "a pooling");
    OK(cudnnGetPoolingNdDescriptor(pooling, 2, &n, &nan, &c, windows, padding, strides));
    EXPECT(c == 2 && windows[1] == 3 && padding[0] == 1 && strides[0] == 2, "a pooling");
    const int none[] = {0, 0};
    EXPECT(cudnnSetPoolingNdDescriptor(pooling, mode, 0, 2, none, none, none) == BAD_PARAM,
           "windows of 0");
    std::vector<double> want(POOLED), back(N);
    for (size_t i = 0; i < POOLED; i++) {
        auto under = window(i);
        size_t most = under[0];
        for (size_t j : under) {
            want[i] += double(d.host_x[j]) / 6;
            most = d.host_x[j] > d.host_x[most] ? j : most;
            if (mode == MEAN_OF_ALL)
                back[j] += double(d.host_dy[i]) / 6;
        }
        if (mode == MOST) {
            want[i] = d.host_x[most];
            back[most] += d.host_dy[i];
        }
    }
    OK(cudnnPoolingForward(d.handle, pooling, &ONE, d.as, d.x, &ZERO, d.pooled, d.y));
    OK(cudnnPoolingBackward(d.handle, pooling, &ONE, d.pooled, d.y, d.pooled, d.dy, d.as, d.x,
                            &ZERO, d.as, d.dx));
    auto found = host(d.y, POOLED), gradients = host(d.dx, N);
    expect_near("pooled", found, want);
    expect_near("gradients of a pooling", gradients, back);
    print_line(k, "pooled", found.data(), found.size() * sizeof(float));
    OK(cudnnDestroyPoolingDescriptor(pooling));
}

static void softmax(int k, const Data &d, int algorithm, int mode)
{
    std::vector<double> want(N), back(N), sums(N), products(N);
    auto group = [&](size_t i) {
        return mode == INSTANCE ? i / (CHANNELS * PLACES)
                                : i / (CHANNELS * PLACES) * PLACES + i % PLACES;
    };
    for (size_t i = 0; i < N; i++)
        sums[group(i)] += exp(double(d.host_x[i]));
    for (size_t i = 0; i < N; i++) {
        double part = exp(double(d.host_x[i])) / sums[group(i)];
        want[i] = algorithm == LOG ? log(part) : part;
        products[group(i)] += d.host_dy[i] * (algorithm == LOG ? 1 : part);
    }
    for (size_t i = 0; i < N; i++)
        back[i] = algorithm == LOG ? d.host_dy[i] - exp(want[i]) * products[group(i)]
                                   : want[i] * (d.host_dy[i] - products[group(i)]);
    OK(cudnnSoftmaxForward(d.handle, algorithm, mode, &ONE, d.as, d.x, &ZERO, d.as, d.y));
    OK(cudnnSoftmaxBackward(d.handle, algorithm, mode, &ONE, d.as, d.y, d.as, d.dy, &ZERO, d.as,
                            d.dx));
    auto found = host(d.y, N);
    expect_near("softmax", found, want);
    expect_near("gradients of softmax", host(d.dx, N), back);
    print_line(k, "softmax", found.data(), N * sizeof(float));
}

static void activate(int k, const Data &d, int mode)
{
    void *activation;
    int found_mode, nan;
    double coefficient;
    std::vector<double> want, back;
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, mode, 1, 0.75));
    OK(cudnnGetActivationDescriptor(activation, &found_mode, &nan, &coefficient));
    EXPECT(found_mode == mode && nan == 1 && coefficient == 0.75, "an activation");
    for (size_t i = 0; i < N; i++) {
        double x = d.host_x[i], y = 1 / (1 + exp(-x)), slope = y * (1 - y);
        if (mode == ELU) {
            y = x > 0 ? x : 0.75 * (exp(x) - 1);
            slope = x > 0 ? 1 : 0.75 * exp(x);
        }
        want.push_back(y);
        back.push_back(slope * d.host_dy[i]);
    }
    OK(cudnnActivationForward(d.handle, activation, &ONE, d.as, d.x, &ZERO, d.as, d.y));
    OK(cudnnActivationBackward(d.handle, activation, &ONE, d.as, d.y, d.as, d.dy, d.as, d.x, &ZERO,
                               d.as, d.dx));
    auto found = host(d.y, N);
    expect_near("activated", found, want);
    expect_near("gradients of an activation", host(d.dx, N), back);
    print_line(k, "activated", found.data(), N * sizeof(float));
    OK(cudnnDestroyActivationDescriptor(activation));
}

static void normalise(int k, const Data &d)
{
    constexpr double ALPHA = 0.5, BETA = 0.75, K = 2;
    void *lrn;
    unsigned channels;
    double alpha, beta, more;
    std::vector<double> want;
    OK(cudnnCreateLRNDescriptor(&lrn));
    OK(cudnnSetLRNDescriptor(lrn, 3, ALPHA, BETA, K));
    OK(cudnnGetLRNDescriptor(lrn, &channels, &alpha, &beta, &more));
    EXPECT(channels == 3 && alpha == ALPHA && beta == BETA && more == K, "an LRN");
    for (int i = 0; i < int(N); i++) {
        double squares = 0;
        for (int c = -1; c <= 1; c++)
            if (i / PLACES % CHANNELS + c >= 0 && i / PLACES % CHANNELS + c < CHANNELS)
                squares += pow(double(d.host_x[i + c * PLACES]), 2);
        want.push_back(d.host_x[i] / pow(K + ALPHA / 3 * squares, BETA));
    }
    OK(cudnnLRNCrossChannelForward(d.handle, lrn, 0, &ONE, d.as, d.x, &ZERO, d.as, d.y));
    auto found = host(d.y, N);
    expect_near("normalised", found, want);
    print_line(k, "lrn", found.data(), N * sizeof(float));
    OK(cudnnDestroyLRNDescriptor(lrn));
}

// Whatever stays is doubled, and its gradient, too.
static void drop(int k, const Data &d)
{
    void *dropout, *states, *reserve;
    size_t states_bytes, reserve_bytes;
    OK(cudnnCreateDropoutDescriptor(&dropout));
    OK(cudnnDropoutGetStatesSize(d.handle, &states_bytes));
    states = bytes_on_device(states_bytes);
    OK(cudnnSetDropoutDescriptor(dropout, d.handle, 0.5f, states, states_bytes, 77));
    OK(cudnnDropoutGetReserveSpaceSize(d.as, &reserve_bytes));
    EXPECT(reserve_bytes >= N / 8, "a reserve of %zu bytes", reserve_bytes);
    reserve = bytes_on_device(reserve_bytes);
    OK(cudnnDropoutForward(d.handle, dropout, d.as, d.x, d.as, d.y, reserve, reserve_bytes));
    OK(cudnnDropoutBackward(d.handle, dropout, d.as, d.dy, d.as, d.dx, reserve, reserve_bytes));
    auto y = host(d.y, N), dx = host(d.dx, N);
    size_t stay = 0;
    for (size_t i = 0; i < N; i++) {
        bool stays = y[i] != 0 || dx[i] != 0;
        stay += stays;
        EXPECT(y[i] == (stays ? 2 * d.host_x[i] : 0) && dx[i] == (stays ? 2 * d.host_dy[i] : 0),
               "element %zu is %g, its gradient %g", i, y[i], dx[i]);
    }
    EXPECT(stay > N / 4 && stay < 3 * N / 4, "%zu elements stay", stay);
    print_line(k, "dropped", y.data(), N * sizeof(float));
    OK(cudnnDestroyDropoutDescriptor(dropout));
    CUDA_CHECK(cudaFree(states));
    CUDA_CHECK(cudaFree(reserve));
}

static void expect_each(const char *what, const Data &d, std::function<double(size_t)> want)
{
    std::vector<double> all;
    for (size_t i = 0; i < N; i++)
        all.push_back(want(i));
    expect_near(what, host(d.y, N), all);
}

static void operate(int k, const Data &d)
{
    void *product, *mean, *channel = tensor({1, CHANNELS, 1, 1}), *doubles;
    int a, b, c, e, f;
    size_t bytes, index_bytes;
    float two = 2, half = 0.5f;
    auto channel_of = [&](size_t i) { return i / PLACES % CHANNELS; };
    OK(cudnnCreateOpTensorDescriptor(&product));
    OK(cudnnSetOpTensorDescriptor(product, MULTIPLY, FLOAT, 1));
    OK(cudnnGetOpTensorDescriptor(product, &a, &b, &c));
    EXPECT(a == MULTIPLY && b == FLOAT && c == 1, "an operation");
    OK(cudnnOpTensor(d.handle, product, &two, d.as, d.x, &half, channel, d.dy, &ZERO, d.as, d.y));
    expect_each("a product", d, [&](size_t i) { return d.host_x[i] * d.host_dy[channel_of(i)]; });
    OK(cudnnAddTensor(d.handle, &two, channel, d.dy, &ONE, d.as, d.y));
    expect_each("a sum", d, [&](size_t i) {
        return (d.host_x[i] + 2.0) * d.host_dy[channel_of(i)];
    });
    OK(cudnnScaleTensor(d.handle, d.as, d.y, &half));
    OK(cudnnTransformTensor(d.handle, &ONE, d.as, d.x, &two, d.as, d.y));
    expect_each("a copy", d, [&](size_t i) {
        return d.host_x[i] + (d.host_x[i] + 2.0) * d.host_dy[channel_of(i)];
    });
    print_line(k, "copied", host(d.y, N).data(), N * sizeof(float));
    OK(cudnnCreateReduceTensorDescriptor(&mean));
    OK(cudnnSetReduceTensorDescriptor(mean, MEAN, FLOAT, 1, 0, 0));
    OK(cudnnGetReduceTensorDescriptor(mean, &a, &b, &c, &e, &f));
    EXPECT(a == MEAN && b == FLOAT && c == 1 && e == 0 && f == 0, "a reduction");
    OK(cudnnGetReductionWorkspaceSize(d.handle, mean, d.as, channel, &bytes));
    OK(cudnnGetReductionIndicesSize(d.handle, mean, d.as, channel, &index_bytes));
    void *area = bytes_on_device(bytes);
    OK(cudnnReduceTensor(d.handle, mean, nullptr, index_bytes, area, bytes, &two, d.as, d.x, &ZERO,
                         channel, d.y));
    std::vector<double> means(CHANNELS);
    for (size_t i = 0; i < N; i++)
        means[channel_of(i)] += 2 * double(d.host_x[i]) / (IMAGES * PLACES);
    auto found = host(d.y, CHANNELS);
    expect_near("means", found, means);
    print_line(k, "means", found.data(), found.size() * sizeof(float));
    OK(cudnnSetTensor(d.handle, d.as, d.y, &half));
    expect_each("a constant", d, [&](size_t) { return 0.5; });
    OK(cudnnCreateTensorDescriptor(&doubles));
    const int size[] = {1, 1, 3}, stride[] = {3, 3, 1};
    const double third = 1.0 / 3;
    OK(cudnnSetTensorNdDescriptor(doubles, DOUBLE, 3, size, stride));
    OK(cudnnSetTensor(d.handle, doubles, d.y, &third));
    auto three = fetch((const double *)d.y, 3);
    EXPECT(three[0] == third && three[2] == third, "%g is no third", three[2]);
    EXPECT(cudnnSetTensor(d.handle, doubles, d.y, nullptr) == BAD_PARAM, "no value");
    for (void *each : {channel, doubles})
        OK(cudnnDestroyTensorDescriptor(each));
    OK(cudnnDestroyOpTensorDescriptor(product));
    OK(cudnnDestroyReduceTensorDescriptor(mean));
    CUDA_CHECK(cudaFree(area));
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 4);
    Data d;
    cudaStream_t stream;
    OK(cudnnCreate(&d.handle));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudnnSetStream(d.handle, stream));
    d.as = tensor({IMAGES, CHANNELS, HEIGHT, WIDTH});
    d.pooled = tensor({IMAGES, CHANNELS, OUT_HEIGHT, OUT_WIDTH});
    for (int k = 0; k < steps; k++) {
        d.host_x = waves(N, world.rank + 0.5 * k);
        d.host_dy = waves(N, -1 - 0.5 * k - world.rank);
        d.x = on_device(d.host_x);
        d.dy = on_device(d.host_dy);
        d.y = on_device<float>(N);
        d.dx = on_device<float>(N);
        pool(k, d, MOST);
        pool(k, d, MEAN_OF_ALL);
        softmax(k, d, ACCURATE, INSTANCE);
        softmax(k, d, LOG, CHANNEL);
        activate(k, d, SIGMOID);
        activate(k, d, ELU);
        normalise(k, d);
        drop(k, d);
        operate(k, d);
        for (float *each : {d.x, d.dy, d.y, d.dx})
            CUDA_CHECK(cudaFree(each));
    }
    for (void *each : {d.as, d.pooled})
        OK(cudnnDestroyTensorDescriptor(each));
    OK(cudnnDestroy(d.handle));
    CUDA_CHECK(cudaStreamDestroy(stream));
}
