// older.cu: ranks that convolve with cuDNN without its backend API: with the algorithms that it
// names, with groups, a bias and an activation, and its gradients. All numbers depend on the rank
// and the step.
#include "dnn_program.h"

// As in <cudnn_ops.h> and <cudnn_cnn.h>, which are not everywhere.
extern "C" {
struct Performance {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
};
int cudnnCreateFilterDescriptor(void **);
int cudnnDestroyFilterDescriptor(void *);
int cudnnSetFilter4dDescriptor(void *, int, int, int, int, int, int);
int cudnnSetFilterNdDescriptor(void *, int, int, int, const int *);
int cudnnGetFilter4dDescriptor(void *, int *, int *, int *, int *, int *, int *);
int cudnnGetFilterNdDescriptor(void *, int, int *, int *, int *, int *);
int cudnnGetFilterSizeInBytes(void *, size_t *);
int cudnnCreateConvolutionDescriptor(void **);
int cudnnDestroyConvolutionDescriptor(void *);
int cudnnSetConvolution2dDescriptor(void *, int, int, int, int, int, int, int, int);
int cudnnSetConvolutionNdDescriptor(void *, int, const int *, const int *, const int *, int, int);
int cudnnGetConvolution2dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *);
int cudnnGetConvolutionNdDescriptor(void *, int, int *, int *, int *, int *, int *, int *);
int cudnnSetConvolutionGroupCount(void *, int);
int cudnnGetConvolutionGroupCount(void *, int *);
int cudnnSetConvolutionMathType(void *, int);
int cudnnGetConvolutionMathType(void *, int *);
int cudnnGetConvolution2dForwardOutputDim(void *, void *, void *, int *, int *, int *, int *);
int cudnnGetConvolutionNdForwardOutputDim(void *, void *, void *, int, int *);
int cudnnGetTensor4dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *,
                               int *);
int cudnnGetTensorSizeInBytes(void *, size_t *);
int cudnnSetTensorNdDescriptorEx(void *, int, int, int, const int *);
#define DIRECTION(name)                                                                          \
    int cudnnGetConvolution##name##AlgorithmMaxCount(void *, int *);                             \
    int cudnnGetConvolution##name##Algorithm_v7(void *, void *, void *, void *, void *, int,     \
                                                int *, Performance *);                           \
    int cudnnFindConvolution##name##Algorithm(void *, void *, void *, void *, void *, int,       \
                                              int *, Performance *);                             \
    int cudnnFindConvolution##name##AlgorithmEx(void *, void *, const void *, void *,            \
                                                const void *, void *, void *, void *, int,       \
                                                int *, Performance *, void *, size_t);           \
    int cudnnGetConvolution##name##WorkspaceSize(void *, void *, void *, void *, void *, int,    \
                                                 size_t *);                                      \
    int cudnnConvolution##name(void *, const void *, void *, const void *, void *, const void *, \
                               void *, int, void *, size_t, const void *, void *, void *)
DIRECTION(Forward);
DIRECTION(BackwardData);
DIRECTION(BackwardFilter);
int cudnnConvolutionBackwardBias(void *, const void *, void *, const void *, const void *, void *,
                                 void *);
int cudnnConvolutionBiasActivationForward(void *, const void *, void *, const void *, void *,
                                          const void *, void *, int, void *, size_t, const void *,
                                          void *, const void *, void *, const void *, void *,
                                          void *, void *);
int cudnnCreateActivationDescriptor(void **);
int cudnnDestroyActivationDescriptor(void *);
int cudnnSetActivationDescriptor(void *, int, int, double);
}
enum { NCHW = 0, NHWC = 1, CROSS_CORRELATION = 1, RELU = 1, TENSOR_OP_MATH = 1 };
enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };

constexpr int IMAGES = 2, GROUPS = 2, IN = 4, OUT = 6, HEIGHT = 5, WIDTH = 6, TAPS = 3;
constexpr int PAD_H = 1, PAD_W = 0, STEP_H = 1, STEP_W = 2, DILATION_H = 2, DILATION_W = 1;
constexpr int OUT_HEIGHT = 3, OUT_WIDTH = 2;
constexpr size_t XS = IMAGES * IN * HEIGHT * WIDTH, WS = OUT * IN / GROUPS * TAPS * TAPS;
constexpr size_t YS = IMAGES * OUT * OUT_HEIGHT * OUT_WIDTH;
static const float ONE = 1, ZERO = 0;

// Calls f(place in x, place in w, place in y) for each product.
template <typename F> static void each_product(F f)
{
    for (int n = 0; n < IMAGES; n++)
        for (int o = 0; o < OUT; o++)
            for (int h = 0; h < OUT_HEIGHT; h++)
                for (int w = 0; w < OUT_WIDTH; w++)
                    for (int i = 0; i < IN / GROUPS; i++)
                        for (int a = 0; a < TAPS; a++)
                            for (int b = 0; b < TAPS; b++) {
                                int x = h * STEP_H - PAD_H + a * DILATION_H;
                                int y = w * STEP_W - PAD_W + b * DILATION_W;
                                int channel = o / (OUT / GROUPS) * (IN / GROUPS) + i;
                                if (x < 0 || x >= HEIGHT || y < 0 || y >= WIDTH)
                                    continue;
                                f(((n * IN + channel) * HEIGHT + x) * WIDTH + y,
                                  ((o * (IN / GROUPS) + i) * TAPS + a) * TAPS + b,
                                  ((n * OUT + o) * OUT_HEIGHT + h) * OUT_WIDTH + w);
                            }
}

struct Described {
    void *handle, *x, *w, *y, *c, *bias, *relu, *area;
    size_t area_bytes;
};

static Described describe(void *handle)
{
    Described d{handle};
    d.x = tensor({IMAGES, IN, HEIGHT, WIDTH});
    d.y = tensor({IMAGES, OUT, OUT_HEIGHT, OUT_WIDTH});
    d.bias = tensor({1, OUT, 1, 1});
    OK(cudnnCreateFilterDescriptor(&d.w));
    OK(cudnnSetFilter4dDescriptor(d.w, FLOAT, NCHW, OUT, IN / GROUPS, TAPS, TAPS));
    OK(cudnnCreateConvolutionDescriptor(&d.c));
    OK(cudnnSetConvolutionGroupCount(d.c, GROUPS));
    OK(cudnnSetConvolution2dDescriptor(d.c, PAD_H, PAD_W, STEP_H, STEP_W, DILATION_H, DILATION_W,
                                       CROSS_CORRELATION, FLOAT));
    OK(cudnnSetConvolutionMathType(d.c, TENSOR_OP_MATH));
    OK(cudnnCreateActivationDescriptor(&d.relu));
    OK(cudnnSetActivationDescriptor(d.relu, RELU, 0, 0));
    d.area_bytes = 1 << 16;
    d.area = bytes_on_device(d.area_bytes);
    return d;
}

static void forget(const Described &d)
{
    for (void *each : {d.x, d.y, d.bias})
        OK(cudnnDestroyTensorDescriptor(each));
    OK(cudnnDestroyFilterDescriptor(d.w));
    OK(cudnnDestroyConvolutionDescriptor(d.c));
    OK(cudnnDestroyActivationDescriptor(d.relu));
    CUDA_CHECK(cudaFree(d.area));
}

// Descriptors give what they were set to; results have the documented sizes.
static void read_again(const Described &d)
{
    int a, b, c, e, f, g, h, i, three[3] = {7, 7, 7}, four[4];
    size_t bytes;
    OK(cudnnGetFilter4dDescriptor(d.w, &a, &b, &c, &e, &f, &g));
    EXPECT(a == FLOAT && b == NCHW && c == OUT && e == IN / GROUPS && f == TAPS && g == TAPS,
           "a filter");
    OK(cudnnGetFilterNdDescriptor(d.w, 2, &a, &b, &c, three));
    EXPECT(c == 4 && three[0] == OUT && three[1] == IN / GROUPS && three[2] == 7, "a filter");
    OK(cudnnGetFilterSizeInBytes(d.w, &bytes));
    EXPECT(bytes == WS * sizeof(float), "a filter of %zu bytes", bytes);
    OK(cudnnGetConvolution2dDescriptor(d.c, &a, &b, &c, &e, &f, &g, &h, &i));
    EXPECT(a == PAD_H && b == PAD_W && c == STEP_H && e == STEP_W && f == DILATION_H &&
               g == DILATION_W && h == CROSS_CORRELATION && i == FLOAT,
           "a convolution");
    int pad[3], step[3], dilation[3];
    OK(cudnnGetConvolutionNdDescriptor(d.c, 3, &a, pad, step, dilation, &h, &i));
    EXPECT(a == 2 && pad[0] == PAD_H && step[1] == STEP_W && dilation[0] == DILATION_H,
           "a convolution");
    OK(cudnnGetConvolutionGroupCount(d.c, &a));
    OK(cudnnGetConvolutionMathType(d.c, &b));
    EXPECT(a == GROUPS && b == TENSOR_OP_MATH, "a convolution");
    OK(cudnnGetConvolution2dForwardOutputDim(d.c, d.x, d.w, &a, &b, &c, &e));
    OK(cudnnGetConvolutionNdForwardOutputDim(d.c, d.x, d.w, 4, four));
    EXPECT(a == IMAGES && b == OUT && c == OUT_HEIGHT && e == OUT_WIDTH && four[3] == OUT_WIDTH,
           "a result of %d * %d * %d * %d", a, b, c, e);
    OK(cudnnGetTensorSizeInBytes(d.x, &bytes));
    EXPECT(bytes == XS * sizeof(float), "a tensor of %zu bytes", bytes);
    void *last = tensor({1, 1});
    const int size[] = {2, 3, 4, 5};
    int strides[4];
    OK(cudnnSetTensorNdDescriptorEx(last, NHWC, FLOAT, 4, size));
    OK(cudnnGetTensor4dDescriptor(last, &a, &four[0], &four[1], &four[2], &four[3], &strides[0],
                                  &strides[1], &strides[2], &strides[3]));
    EXPECT(four[3] == 5 && strides[0] == 60 && strides[1] == 1 && strides[2] == 15 &&
               strides[3] == 3,
           "channels last");
    OK(cudnnDestroyTensorDescriptor(last));
}

// Each gets a status at once, and changes nothing.
static void refusals(const Described &d)
{
    const int size[] = {2, 0, 3, 3}, none[] = {0, 0};
    int count, four[4];
    Performance found[2];
    size_t bytes;
    EXPECT(cudnnSetFilterNdDescriptor(d.w, FLOAT, NCHW, 4, size) == BAD_PARAM, "a size of 0");
    EXPECT(cudnnSetConvolutionNdDescriptor(d.c, 2, none, none, none, 1, FLOAT) == BAD_PARAM,
           "strides of 0");
    EXPECT(cudnnSetConvolutionGroupCount(d.c, 0) == BAD_PARAM, "no groups");
    EXPECT(cudnnSetConvolutionGroupCount(d.w, 2) == BAD_PARAM, "groups of a filter");
    EXPECT(cudnnGetConvolutionNdForwardOutputDim(d.c, d.y, d.w, 4, four) == BAD_PARAM,
           "a tensor with other channels");
    // The library's own answers.
    EXPECT(cudnnGetConvolutionForwardWorkspaceSize(d.handle, d.x, d.w, d.c, d.y, 77, &bytes) ==
               NOT_SUPPORTED,
           "an algorithm 77");
    EXPECT(cudnnGetConvolutionForwardAlgorithm_v7(d.handle, d.x, d.w, d.c, d.x, 2, &count,
                                                  found) == BAD_PARAM,
           "a result of other sizes");
    EXPECT(cudnnGetConvolutionForwardAlgorithm_v7(d.handle, d.x, d.w, d.c, d.y, 2, &count,
                                                  nullptr) == BAD_PARAM,
           "no place for results");
}

static void expect_algorithms(const Performance *found, int count, float time)
{
    EXPECT(count == 2, "%d algorithms", count);
    for (int i = 0; i < 2; i++)
        EXPECT(found[i].status == 0 && found[i].math == TENSOR_OP_MATH &&
                   (time < 0 ? found[i].time == -1 : found[i].time > 0),
               "algorithm %d: status %d, %g ms", found[i].algorithm, found[i].status,
               found[i].time);
    EXPECT(found[0].algorithm != found[1].algorithm && found[2].status == 77, "algorithms");
}

// One direction with each algorithm that the library names, of two inputs to a result.
#define RUN(name, ad, a, bd, b, tod, to, n, want)                                                \
    do {                                                                                         \
        Performance found[3] = {{}, {}, {0, 77}}, measured[3] = {{}, {}, {0, 77}};               \
        int count, most;                                                                         \
        OK(cudnnGetConvolution##name##AlgorithmMaxCount(d.handle, &most));                       \
        EXPECT(most > 1, "%d algorithms", most);                                                 \
        OK(cudnnGetConvolution##name##Algorithm_v7(d.handle, ad, bd, d.c, tod, 2, &count,        \
                                                   found));                                      \
        expect_algorithms(found, count, -1);                                                     \
        OK(cudnnFindConvolution##name##Algorithm(d.handle, ad, bd, d.c, tod, 2, &count,          \
                                                 measured));                                     \
        expect_algorithms(measured, count, 1);                                                   \
        OK(cudnnFindConvolution##name##AlgorithmEx(d.handle, ad, a, bd, b, d.c, tod, to, 2,      \
                                                   &count, measured, d.area, d.area_bytes));     \
        expect_algorithms(measured, count, 1);                                                   \
        for (int i = 0; i < 2; i++) {                                                            \
            size_t bytes;                                                                        \
            float half = 0.5f;                                                                   \
            OK(cudnnGetConvolution##name##WorkspaceSize(d.handle, ad, bd, d.c, tod,              \
                                                        found[i].algorithm, &bytes));            \
            EXPECT(bytes == found[i].memory && bytes <= d.area_bytes, "%zu bytes", bytes);       \
            OK(cudnnConvolution##name(d.handle, &ONE, ad, a, bd, b, d.c, found[i].algorithm,     \
                                      d.area, bytes, &ZERO, tod, to));                           \
            auto result = host(to, n);                                                           \
            expect_near(#name, result, want);                                                    \
            print_line(k, #name, result.data(), n * sizeof(float));                              \
            OK(cudnnConvolution##name(d.handle, &half, ad, a, bd, b, d.c, found[i].algorithm,    \
                                      d.area, bytes, &half, tod, to));                           \
            expect_near(#name, host(to, n), want);                                               \
        }                                                                                        \
    } while (0)

static void step(int k, double seed, const Described &d)
{
    auto x = waves(XS, seed), w = waves(WS, -seed), y = waves(YS, 2 * seed), b = waves(OUT, seed);
    std::vector<double> forward(YS), data(XS), filter(WS), bias(OUT), fused(YS);
    each_product([&](int xi, int wi, int yi) {
        forward[yi] += double(x[xi]) * w[wi];
        data[xi] += double(y[yi]) * w[wi];
        filter[wi] += double(y[yi]) * x[xi];
    });
    for (size_t i = 0; i < YS; i++) {
        int channel = int(i) / (OUT_HEIGHT * OUT_WIDTH) % OUT;
        bias[channel] += y[i];
        fused[i] = std::max(0.0, 2 * forward[i] + 0.5 * y[i] + b[channel]);
    }
    float *xs = on_device(x), *ws = on_device(w), *ys = on_device(y), *bs = on_device(b);
    float *to = on_device<float>(std::max(XS, std::max(WS, YS)));
    RUN(Forward, d.x, xs, d.w, ws, d.y, to, YS, forward);
    RUN(BackwardData, d.w, ws, d.y, ys, d.x, to, XS, data);
    RUN(BackwardFilter, d.x, xs, d.y, ys, d.w, to, WS, filter);
    OK(cudnnConvolutionBackwardBias(d.handle, &ONE, d.y, ys, &ZERO, d.bias, to));
    expect_near("the bias", host(to, OUT), bias);
    float two = 2, half = 0.5f;
    OK(cudnnConvolutionBiasActivationForward(d.handle, &two, d.x, xs, d.w, ws, d.c, 1, d.area,
                                             d.area_bytes, &half, d.y, ys, d.bias, bs, d.relu, d.y,
                                             to));
    auto found = host(to, YS);
    expect_near("with a bias", found, fused);
    print_line(k, "fused", found.data(), YS * sizeof(float));
    for (float *each : {xs, ws, ys, bs, to})
        CUDA_CHECK(cudaFree(each));
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
    Described d = describe(handle);
    read_again(d);
    refusals(d);
    read_again(d);
    for (int k = 0; k < steps; k++)
        step(k, world.rank + 0.5 * k, d);
    forget(d);
    OK(cudnnDestroy(handle));
    CUDA_CHECK(cudaStreamDestroy(stream));
}
