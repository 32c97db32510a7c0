// default_streams.cu: what stream 0 means. Compiled with --default-stream legacy and per-thread;
// argument 2 says which. Results show who waited for whom: the work that must not be waited for
// waits itself for a host function that is let go only afterwards.
#include <thread>

#include "behaviour.h"

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool per_thread = true;
#else
constexpr bool per_thread = false;
#endif

__global__ void slow_write(int *to, int value, unsigned *sink)
{
    dawdle(sink);
    *to = value;
}
__global__ void read_to(int *to, const int *from) { *to = *from; }

struct Box {
    int *value, *seen;
    unsigned *sink;
};

static int seen(const Box &box)
{
    int value;
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(&value, box.seen, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

// `second` sees the result of a slow write in `first`: it waited.
static void expect_order(const Box &box, cudaStream_t first, cudaStream_t second, int value)
{
    slow_write<<<1, 1, 0, first>>>(box.value, value, box.sink);
    read_to<<<1, 1, 0, second>>>(box.seen, box.value);
    int got = seen(box);
    EXPECT(got == value, "the second stream saw %d, not %d", got, value);
}

// The legacy stream is not through while those it waits for are not.
static void expect_query_waits(cudaStream_t blocking, cudaStream_t loner)
{
    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(blocking, Gate::wait, &gate));
    NOT_YET(cudaStreamQuery(cudaStreamLegacy));
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    CUDA_CHECK(cudaStreamQuery(cudaStreamLegacy));
    CUDA_CHECK(cudaStreamQuery(blocking));
    gate.open = false;
    CUDA_CHECK(cudaLaunchHostFunc(loner, Gate::wait, &gate));
    CUDA_CHECK(cudaStreamQuery(cudaStreamLegacy));
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(loner));
}

// The second stream continues while a host function delays the first.
static void expect_no_order(const Box &box, cudaStream_t first, cudaStream_t second)
{
    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(first, Gate::wait, &gate));
    slow_write<<<1, 1, 0, first>>>(box.value, -1, box.sink);
    read_to<<<1, 1, 0, second>>>(box.seen, box.value);
    CUDA_CHECK(cudaStreamSynchronize(second));
    NOT_YET(cudaStreamQuery(first));
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(first));
}

static void within_a_thread(const Box &box, int value)
{
    cudaStream_t blocking, loner;
    CUDA_CHECK(cudaStreamCreate(&blocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&loner, cudaStreamNonBlocking));
    expect_order(box, cudaStreamLegacy, blocking, value);
    expect_order(box, blocking, cudaStreamLegacy, value + 1);
    expect_order(box, cudaStreamLegacy, cudaStreamPerThread, value + 2);
    expect_order(box, cudaStreamPerThread, cudaStreamLegacy, value + 3);
    expect_no_order(box, blocking, loner);
    expect_no_order(box, cudaStreamLegacy, loner);
    expect_no_order(box, loner, cudaStreamLegacy);
    expect_no_order(box, cudaStreamPerThread, blocking);
    expect_query_waits(blocking, loner);
    if (per_thread) {
        expect_no_order(box, 0, blocking);
        expect_order(box, 0, cudaStreamPerThread, value + 4);
    } else {
        expect_order(box, 0, blocking, value + 4);
        expect_order(box, 0, cudaStreamPerThread, value + 5);
    }
    CUDA_CHECK(cudaStreamDestroy(blocking));
    CUDA_CHECK(cudaStreamDestroy(loner));
    FAILS(cudaStreamSynchronize(loner), cudaErrorInvalidResourceHandle);
}

// Each thread has a default stream of its own, which no other thread's delays.
static void between_threads(const Box &box)
{
    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(cudaStreamPerThread, Gate::wait, &gate));
    unsigned long long mine, other = 0;
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaStreamGetId(cudaStreamPerThread, &mine));
    std::thread([&] {
        CUDA_CHECK(cudaSetDevice(device));
        read_to<<<1, 1, 0, cudaStreamPerThread>>>(box.seen, box.value);
        CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
        CUDA_CHECK(cudaStreamGetId(cudaStreamPerThread, &other));
        cudaGraph_t graph;
        size_t nodes = 0;
        CUDA_CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
        read_to<<<1, 1, 0, cudaStreamPerThread>>>(box.seen, box.value);
        CUDA_CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
        CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
        EXPECT(nodes == 1, "%zu nodes", nodes);
        CUDA_CHECK(cudaGraphDestroy(graph));
    }).join();
    EXPECT(mine != other, "both threads' default streams are number %llu", mine);
    NOT_YET(cudaStreamQuery(cudaStreamPerThread));
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

int main(int argc, char **argv)
{
    start();
    EXPECT(per_thread == (argc > 2 && !strcmp(argv[2], "per-thread")), "compiled otherwise");
    Box box = {on_device<int>(1), on_device<int>(1), on_device<unsigned>(1)};
    for (int half = 0; half < 2; half++) {
        within_a_thread(box, 100 + 10 * half);
        between_threads(box);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
