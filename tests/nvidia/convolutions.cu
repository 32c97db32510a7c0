// convolutions.cu: ranks that convolve with cuDNN's backend API: they describe an operation, take
// an engine that the heuristic names, and execute its plan. All numbers of a step depend on the
// rank and the step.
#include "../programs/common.h"

// As in <cudnn_backend.h>, which is not everywhere.
extern "C" {
int cudnnCreate(void **);
int cudnnDestroy(void *);
int cudnnSetStream(void *, cudaStream_t);
int cudnnBackendCreateDescriptor(int, void **);
int cudnnBackendDestroyDescriptor(void *);
int cudnnBackendSetAttribute(void *, int, int, int64_t, const void *);
int cudnnBackendGetAttribute(const void *, int, int, int64_t, int64_t *, void *);
int cudnnBackendFinalize(void *);
int cudnnBackendExecute(void *, void *, void *);
}
enum { HANDLE = 0, TYPE = 1, INT64 = 3, FLOAT = 4, ADDRESS = 6, MODE = 7, HEURISTIC_MODE = 8 };
enum { KNOB_TYPE = 9, NUMERICAL_NOTE = 11, DESCRIPTOR = 15 };
enum { CONVOLUTION = 1, ENGINE = 2, CONFIGURATION = 3, HEURISTIC = 4, PLAN = 5, CHOICE = 7 };
enum { FORWARD = 10, FILTER = 11, DATA = 12, GRAPH = 15, PACK = 16, TENSOR = 17 };
enum { X = 120, W = 119, Y = 121 };
#define OK(call) EXPECT((call) == 0, "%s", #call)

constexpr int IMAGES = 2, IN = 3, OUT = 4, SIDE = 5, TAPS = 3;

template <typename T> static void set(void *d, int name, int kind, std::vector<T> values)
{
    OK(cudnnBackendSetAttribute(d, name, kind, int64_t(values.size()), values.data()));
}

static void *create(int type)
{
    void *made;
    OK(cudnnBackendCreateDescriptor(type, &made));
    return made;
}

static void *finish(void *d)
{
    OK(cudnnBackendFinalize(d));
    return d;
}

static void *tensor(int64_t name, std::vector<int64_t> size)
{
    void *t = create(TENSOR);
    std::vector<int64_t> stride(4, 1);
    for (int i = 2; i >= 0; i--)
        stride[i] = stride[i + 1] * size[i + 1];
    set<int>(t, 901, TYPE, {0});
    set(t, 902, INT64, size);
    set(t, 903, INT64, stride);
    set<int64_t>(t, 906, INT64, {name});
    set<int64_t>(t, 900, INT64, {4});
    return finish(t);
}

struct Graph {
    void *x, *w, *y, *convolution, *operation, *graph;
};

static Graph describe(void *handle, int direction)
{
    Graph g = {tensor(X, {IMAGES, IN, SIDE, SIDE}), tensor(W, {OUT, IN, TAPS, TAPS}),
               tensor(Y, {IMAGES, OUT, SIDE, SIDE}), create(CONVOLUTION), create(direction),
               create(GRAPH)};
    set<int>(g.convolution, 100, TYPE, {0});
    set<int>(g.convolution, 101, MODE, {1});
    set<int64_t>(g.convolution, 106, INT64, {2});
    for (int name = 102; name <= 105; name++)
        set<int64_t>(g.convolution, name, INT64, {1, 1});
    finish(g.convolution);
    int base = direction == FORWARD ? 700 : direction == DATA ? 706 : 712;
    set<float>(g.operation, base, FLOAT, {1});
    set<float>(g.operation, base + 1, FLOAT, {0});
    set(g.operation, base + 2, DESCRIPTOR, std::vector<void *>{g.convolution});
    set(g.operation, base + 3, DESCRIPTOR, std::vector<void *>{g.w});
    set(g.operation, base + 4, DESCRIPTOR, std::vector<void *>{g.x});
    set(g.operation, base + 5, DESCRIPTOR, std::vector<void *>{g.y});
    finish(g.operation);
    set(g.graph, 800, HANDLE, std::vector<void *>{handle});
    set(g.graph, 801, DESCRIPTOR, std::vector<void *>{g.operation});
    finish(g.graph);
    return g;
}

static int64_t number(const void *d, int name)
{
    int64_t value = -1, count = 0;
    OK(cudnnBackendGetAttribute(d, name, INT64, 1, &count, &value));
    EXPECT(count == 1, "attribute %d has %lld elements", name, (long long)count);
    return value;
}

// The engine of a configuration must say who it is. False: its results may differ from run to run,
// or are less precise than float.
static bool check_engine(void *configuration, int64_t engines)
{
    void *engine = create(ENGINE), *choices[64];
    int64_t count = 0;
    int note[64];
    bool usable = true;
    OK(cudnnBackendGetAttribute(configuration, 300, DESCRIPTOR, 1, &count, &engine));
    EXPECT(count == 1, "%lld engines of a configuration", (long long)count);
    int64_t index = number(engine, 1301);
    EXPECT(index >= 0 && index < engines, "engine %lld of %lld", (long long)index,
           (long long)engines);
    OK(cudnnBackendGetAttribute(engine, 1303, NUMERICAL_NOTE, 64, &count, note));
    for (int64_t i = 0; i < count; i++) // DOWN_CONVERT_INPUTS, REDUCED_PRECISION, NONDETERMINISTIC
        usable &= note[i] != 1 && note[i] != 2 && note[i] != 4;
    for (auto &each : choices)
        each = create(CHOICE);
    OK(cudnnBackendGetAttribute(configuration, 302, DESCRIPTOR, 64, &count, choices));
    for (int64_t i = 0; i < count; i++) {
        int kind = -1;
        int64_t one;
        OK(cudnnBackendGetAttribute(choices[i], 600, KNOB_TYPE, 1, &one, &kind));
        EXPECT(kind >= 0, "a knob of type %d", kind);
        number(choices[i], 601);
    }
    for (auto each : choices)
        OK(cudnnBackendDestroyDescriptor(each));
    OK(cudnnBackendDestroyDescriptor(engine));
    return usable;
}

// The plan of configuration number `which`, or of the next one that can be used.
static void *plan_for(void *handle, const Graph &g, int64_t which)
{
    void *heuristic = create(HEURISTIC), *plan = nullptr;
    int64_t count = 0;
    set(heuristic, 201, DESCRIPTOR, std::vector<void *>{g.graph});
    set<int>(heuristic, 200, HEURISTIC_MODE, {0});
    finish(heuristic);
    OK(cudnnBackendGetAttribute(heuristic, 202, DESCRIPTOR, 0, &count, nullptr));
    EXPECT(count > 0, "no configuration");
    std::vector<void *> found(count);
    for (auto &each : found)
        each = create(CONFIGURATION);
    OK(cudnnBackendGetAttribute(heuristic, 202, DESCRIPTOR, count, &count, found.data()));
    EXPECT(count == int64_t(found.size()), "%lld configurations", (long long)count);
    for (int64_t i = 0; i < count && !plan; i++) {
        void *chosen = found[(which + i) % count];
        if (!check_engine(chosen, number(g.graph, 802)))
            continue;
        plan = create(PLAN);
        set(plan, 400, HANDLE, std::vector<void *>{handle});
        set(plan, 401, DESCRIPTOR, std::vector<void *>{chosen});
        if (cudnnBackendFinalize(plan)) { // as frontends do: the next one
            OK(cudnnBackendDestroyDescriptor(plan));
            plan = nullptr;
        }
    }
    EXPECT(plan, "no plan of %lld configurations", (long long)count);
    for (auto each : found)
        OK(cudnnBackendDestroyDescriptor(each));
    OK(cudnnBackendDestroyDescriptor(heuristic));
    return plan;
}

static void execute(void *handle, void *plan, void *x, void *w, void *y)
{
    void *pack = create(PACK), *area = nullptr;
    int64_t bytes = number(plan, 402);
    if (bytes)
        CUDA_CHECK(cudaMalloc(&area, size_t(bytes)));
    set<int64_t>(pack, 1000, INT64, {X, W, Y});
    set<void *>(pack, 1001, ADDRESS, {x, w, y});
    set<void *>(pack, 1003, ADDRESS, {area});
    finish(pack);
    OK(cudnnBackendExecute(handle, plan, pack));
    OK(cudnnBackendDestroyDescriptor(pack));
    CUDA_CHECK(cudaDeviceSynchronize());
    if (area)
        CUDA_CHECK(cudaFree(area));
}

static std::vector<float> numbers(size_t n, float seed, int modulus)
{
    std::vector<float> out(n);
    for (size_t i = 0; i < n; i++)
        out[i] = seed + float(i * i % size_t(modulus));
    return out;
}

struct Tensors {
    std::vector<float> x, w, y;
};

// The numbers are small and whole: the order of a sum does not matter.
static Tensors expected(int direction, const Tensors &from)
{
    Tensors t = from;
    auto &out = direction == FORWARD ? t.y : direction == DATA ? t.x : t.w;
    out.assign(out.size(), 0);
    for (int n = 0; n < IMAGES; n++)
        for (int o = 0; o < OUT; o++)
            for (int c = 0; c < IN; c++)
                for (int at = 0; at < SIDE * SIDE * TAPS * TAPS; at++) {
                    int h = at / (SIDE * TAPS * TAPS), v = at / (TAPS * TAPS) % SIDE;
                    int r = at / TAPS % TAPS, s = at % TAPS;
                    int row = h + r - 1, column = v + s - 1;
                    if (row < 0 || row >= SIDE || column < 0 || column >= SIDE)
                        continue;
                    size_t x = ((n * IN + c) * SIDE + row) * SIDE + column;
                    size_t w = ((o * IN + c) * TAPS + r) * TAPS + s;
                    size_t y = ((n * OUT + o) * SIDE + h) * SIDE + v;
                    if (direction == FORWARD)
                        t.y[y] += from.x[x] * from.w[w];
                    else if (direction == DATA)
                        t.x[x] += from.w[w] * from.y[y];
                    else
                        t.w[w] += from.x[x] * from.y[y];
                }
    return t;
}

static std::vector<float> host(const float *at, size_t n)
{
    std::vector<float> out(n);
    CUDA_CHECK(cudaMemcpy(out.data(), at, n * sizeof(float), cudaMemcpyDeviceToHost));
    return out;
}

// Engines that transform their input are not exact.
static void expect_near(const float *at, const std::vector<float> &want, const char *what,
                        int direction)
{
    auto found = host(at, want.size());
    for (size_t i = 0; i < want.size(); i++)
        EXPECT(fabs(found[i] - want[i]) < 0.05, "%s of direction %d: element %zu is %g, not %g",
               what, direction, i, found[i], want[i]);
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 4);
    static const int directions[] = {FORWARD, FILTER, DATA};
    void *handle, *plans[3];
    cudaStream_t stream;
    OK(cudnnCreate(&handle));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudnnSetStream(handle, stream));
    for (int i = 0; i < 3; i++) {
        Graph g = describe(handle, directions[i]);
        plans[i] = plan_for(handle, g, i);
        for (void *each : {g.graph, g.operation, g.convolution, g.x, g.w, g.y})
            OK(cudnnBackendDestroyDescriptor(each)); // the plan keeps what it needs
    }
    printf("workspaces %lld %lld %lld\n", (long long)number(plans[0], 402),
           (long long)number(plans[1], 402), (long long)number(plans[2], 402));
    for (int k = 0; k < steps; k++) {
        float seed = float(1 + world.rank + k % 3);
        for (int i = 0; i < 3; i++) {
            Tensors t = {numbers(IMAGES * IN * SIDE * SIDE, seed, 5),
                         numbers(OUT * IN * TAPS * TAPS, -seed, 3),
                         numbers(IMAGES * OUT * SIDE * SIDE, seed, 4)};
            float *x = on_device(t.x), *w = on_device(t.w), *y = on_device(t.y);
            execute(handle, plans[i], x, w, y);
            Tensors want = expected(directions[i], t);
            expect_near(x, want.x, "x", directions[i]);
            expect_near(w, want.w, "w", directions[i]);
            expect_near(y, want.y, "y", directions[i]);
            // And numbers whose sums depend on the engine's order.
            for (float &each : t.x)
                each = each * 0.3711f + 1e3f * seed;
            CUDA_CHECK(cudaMemcpy(x, t.x.data(), t.x.size() * sizeof(float),
                                  cudaMemcpyHostToDevice));
            execute(handle, plans[i], x, w, y);
            auto found = host(directions[i] == FORWARD ? y : directions[i] == DATA ? x : w, 50);
            print_line(k, i == 0 ? "forward" : i == 1 ? "filter" : "data", found.data(),
                       found.size() * sizeof(float));
            for (float *each : {x, w, y})
                CUDA_CHECK(cudaFree(each));
        }
    }
    for (void *each : plans)
        OK(cudnnBackendDestroyDescriptor(each));
    OK(cudnnDestroy(handle));
    CUDA_CHECK(cudaStreamDestroy(stream));
}
