// losses.cu: ranks that compute CTC losses and their gradients with cuDNN, with labels in memory of
// the host and of the device. All numbers depend on the rank and the step. The right answer is the
// sum over all ways to say the labels.
#include "dnn_program.h"

// As in <cudnn_adv.h>, which is not everywhere.
extern "C" {
int cudnnCreateCTCLossDescriptor(void **);
int cudnnDestroyCTCLossDescriptor(void *);
int cudnnSetCTCLossDescriptor(void *, int);
int cudnnSetCTCLossDescriptorEx(void *, int, int, int);
int cudnnSetCTCLossDescriptor_v8(void *, int, int, int, int);
int cudnnSetCTCLossDescriptor_v9(void *, int, int, int, int);
int cudnnGetCTCLossDescriptor_v9(void *, int *, int *, int *, int *);
int cudnnGetCTCLossDescriptor(void *, int *);
int cudnnGetCTCLossWorkspaceSize(void *, void *, void *, const int *, const int *, const int *,
                                 int, void *, size_t *);
int cudnnGetCTCLossWorkspaceSize_v8(void *, int, void *, void *, void *, size_t *);
int cudnnCTCLoss(void *, void *, const void *, const int *, const int *, const int *, void *,
                 void *, void *, int, void *, void *, size_t);
int cudnnCTCLoss_v8(void *, int, void *, void *, const void *, const int *, const int *,
                    const int *, void *, void *, void *, size_t, void *);
}
enum { NOT_NORMALISED = 0, SOFTMAX = 1, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };

constexpr int STEPS = 5, SEQUENCES = 3, SYMBOLS = 4;
static const std::vector<int> LABELS = {1, 2, 3, 2, 2, 1}, LABEL_LENGTHS = {2, 1, 3};
static const std::vector<int> INPUT_LENGTHS = {5, 4, 5};

struct Answer {
    std::vector<double> costs, gradients;
};

// The labels of a path: each repetition once, without blanks.
static std::vector<int> said(const std::vector<int> &path)
{
    std::vector<int> out;
    for (size_t t = 0; t < path.size(); t++)
        if (path[t] && (!t || path[t] != path[t - 1]))
            out.push_back(path[t]);
    return out;
}

static Answer expected(const std::vector<float> &x)
{
    Answer a{std::vector<double>(SEQUENCES), std::vector<double>(x.size())};
    for (int n = 0, first = 0; n < SEQUENCES; first += LABEL_LENGTHS[n++]) {
        std::vector<int> labels(LABELS.begin() + first, LABELS.begin() + first + LABEL_LENGTHS[n]);
        int steps = INPUT_LENGTHS[n], paths = 1;
        double p[STEPS][SYMBOLS], through[STEPS][SYMBOLS] = {}, chance = 0;
        for (int t = 0; t < steps; t++) {
            double sum = 0;
            for (int s = 0; s < SYMBOLS; s++)
                sum += exp(double(x[(t * SEQUENCES + n) * SYMBOLS + s]));
            for (int s = 0; s < SYMBOLS; s++)
                p[t][s] = exp(double(x[(t * SEQUENCES + n) * SYMBOLS + s])) / sum;
            paths *= SYMBOLS;
        }
        for (int number = 0; number < paths; number++) {
            std::vector<int> path;
            double each = 1;
            for (int t = 0, rest = number; t < steps; t++, rest /= SYMBOLS) {
                path.push_back(rest % SYMBOLS);
                each *= p[t][path[t]];
            }
            if (said(path) != labels)
                continue;
            chance += each;
            for (int t = 0; t < steps; t++)
                through[t][path[t]] += each;
        }
        a.costs[n] = -log(chance);
        for (int t = 0; t < steps; t++)
            for (int s = 0; s < SYMBOLS; s++)
                a.gradients[(t * SEQUENCES + n) * SYMBOLS + s] = p[t][s] - through[t][s] / chance;
    }
    return a;
}

struct Loss {
    void *handle, *as, *ctc, *area;
    size_t area_bytes;
    float *x, *costs, *gradients;
};

static void clear(const Loss &l)
{
    std::vector<float> dirt(STEPS * SEQUENCES * SYMBOLS, 99);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(l.gradients, dirt.data(), dirt.size() * 4, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(l.costs, dirt.data(), SEQUENCES * 4, cudaMemcpyHostToDevice));
}

static void check(int k, const char *name, const Loss &l, const Answer &want, bool gradients = true)
{
    auto costs = host(l.costs, SEQUENCES), found = host(l.gradients, want.gradients.size());
    expect_near("the costs", costs, want.costs);
    if (gradients)
        expect_near("the gradients", found, want.gradients);
    else
        EXPECT(found[0] == 99, "gradients without a request");
    found.insert(found.end(), costs.begin(), costs.end());
    print_line(k, name, found.data(), found.size() * sizeof(float));
    clear(l);
}

// The lists are overwritten as soon as the call has returned.
static void lose_on_host(const Loss &l, int algorithm, bool gradients)
{
    auto labels = LABELS, lengths = LABEL_LENGTHS, inputs = INPUT_LENGTHS;
    void *as = gradients ? l.as : nullptr;
    size_t bytes;
    OK(cudnnGetCTCLossWorkspaceSize(l.handle, l.as, as, labels.data(), lengths.data(),
                                    inputs.data(), algorithm, l.ctc, &bytes));
    EXPECT(bytes <= l.area_bytes && bytes > LABELS.size(), "a workspace of %zu bytes", bytes);
    OK(cudnnCTCLoss(l.handle, l.as, l.x, labels.data(), lengths.data(), inputs.data(), l.costs, as,
                    gradients ? l.gradients : nullptr, algorithm, l.ctc, l.area, bytes));
    std::fill(labels.begin(), labels.end(), 1);
    std::fill(lengths.begin(), lengths.end(), 0);
    std::fill(inputs.begin(), inputs.end(), 1);
}

static void lose_on_device(const Loss &l, int algorithm)
{
    int *labels = on_device(LABELS), *lengths = on_device(LABEL_LENGTHS);
    int *inputs = on_device(INPUT_LENGTHS);
    size_t bytes;
    OK(cudnnGetCTCLossWorkspaceSize_v8(l.handle, algorithm, l.ctc, l.as, l.as, &bytes));
    EXPECT(bytes <= l.area_bytes, "a workspace of %zu bytes", bytes);
    OK(cudnnCTCLoss_v8(l.handle, algorithm, l.ctc, l.as, l.x, labels, lengths, inputs, l.costs,
                       l.as, l.gradients, bytes, l.area));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int *each : {labels, lengths, inputs})
        CUDA_CHECK(cudaFree(each));
}

static void step(int k, double seed, const Loss &l)
{
    auto x = waves(STEPS * SEQUENCES * SYMBOLS, seed);
    Answer want = expected(x);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(l.x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudnnSetCTCLossDescriptor_v9(l.ctc, FLOAT, SOFTMAX, 0, 3));
    lose_on_host(l, 0, true);
    check(k, "host", l, want);
    lose_on_host(l, 1, true);
    check(k, "other", l, want);
    lose_on_host(l, 0, false);
    check(k, "costs", l, want, false);
    lose_on_device(l, 1);
    check(k, "device", l, want);
    // Probabilities instead of what a softmax makes into them.
    for (size_t i = 0; i < x.size(); i += SYMBOLS) {
        double sum = 0;
        for (int s = 0; s < SYMBOLS; s++)
            sum += exp(double(x[i + s]));
        for (int s = 0; s < SYMBOLS; s++)
            x[i + s] = float(exp(double(x[i + s])) / sum);
    }
    CUDA_CHECK(cudaMemcpy(l.x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudnnSetCTCLossDescriptor(l.ctc, FLOAT));
    lose_on_host(l, 0, true);
    check(k, "probabilities", l, want);
}

static void descriptors(const Loss &l)
{
    int type = -1, normalisation = -1, mode = -1, longest = -1;
    OK(cudnnSetCTCLossDescriptor_v8(l.ctc, FLOAT, SOFTMAX, 1, 7));
    OK(cudnnGetCTCLossDescriptor_v9(l.ctc, &type, &normalisation, &mode, &longest));
    EXPECT(type == FLOAT && normalisation == SOFTMAX && mode == 1 && longest == 7, "a descriptor");
    OK(cudnnSetCTCLossDescriptorEx(l.ctc, FLOAT, NOT_NORMALISED, 0));
    OK(cudnnGetCTCLossDescriptor_v9(l.ctc, &type, &normalisation, &mode, &longest));
    EXPECT(normalisation == NOT_NORMALISED && mode == 0 && longest == 0, "a descriptor");
    EXPECT(cudnnGetCTCLossDescriptor(l.as, &type) == BAD_PARAM, "a tensor");
}

// Each gets a status, and the next call its answer.
static void refusals(const Loss &l)
{
    auto lose = [&](void *handle, void *as, const std::vector<int> &labels,
                    const std::vector<int> &lengths) {
        return cudnnCTCLoss(handle, as, l.x, labels.data(), lengths.data(), INPUT_LENGTHS.data(),
                            l.costs, nullptr, nullptr, 0, l.ctc, l.area, l.area_bytes);
    };
    void *flat = tensor({STEPS, SYMBOLS});
    size_t bytes;
    EXPECT(lose(nullptr, l.as, LABELS, LABEL_LENGTHS) == 1001, "no handle");
    EXPECT(lose(l.handle, flat, LABELS, LABEL_LENGTHS) == BAD_PARAM, "two dimensions");
    EXPECT(lose(l.handle, nullptr, LABELS, LABEL_LENGTHS) == BAD_PARAM, "no tensor");
    EXPECT(lose(l.handle, l.as, LABELS, {2, -1, 3}) == BAD_PARAM, "a length below 0");
    EXPECT(lose(l.handle, l.as, std::vector<int>(9000, 1), {2, 1, 8997}) == NOT_SUPPORTED,
           "more labels than fit into a call");
    // The library's own answer.
    EXPECT(cudnnGetCTCLossWorkspaceSize(l.handle, l.as, l.as, LABELS.data(), LABEL_LENGTHS.data(),
                                        INPUT_LENGTHS.data(), 7, l.ctc, &bytes) == BAD_PARAM,
           "an algorithm 7");
    OK(cudnnDestroyTensorDescriptor(flat));
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 4);
    cudaStream_t stream;
    Loss l;
    OK(cudnnCreate(&l.handle));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudnnSetStream(l.handle, stream));
    l.as = tensor({STEPS, SEQUENCES, SYMBOLS});
    OK(cudnnCreateCTCLossDescriptor(&l.ctc));
    l.area_bytes = 1 << 20;
    l.area = bytes_on_device(l.area_bytes);
    l.x = on_device<float>(STEPS * SEQUENCES * SYMBOLS);
    l.gradients = on_device<float>(STEPS * SEQUENCES * SYMBOLS);
    l.costs = on_device<float>(SEQUENCES);
    clear(l);
    descriptors(l);
    refusals(l);
    for (int k = 0; k < steps; k++)
        step(k, world.rank + 0.5 * k, l);
    OK(cudnnDestroyCTCLossDescriptor(l.ctc));
    OK(cudnnDestroyTensorDescriptor(l.as));
    OK(cudnnDestroy(l.handle));
    for (void *each : {l.area, (void *)l.x, (void *)l.costs, (void *)l.gradients})
        CUDA_CHECK(cudaFree(each));
    CUDA_CHECK(cudaStreamDestroy(stream));
}
