// graphs.cu: a step is captured from streams that fork and join, instantiated and launched again
// and again; what it does is changed by an update. The result is that of the calls uncaptured.
#include <algorithm>

#include "common.h"

constexpr int COUNT = 1024;

__global__ void scale(int *data, int factor)
{
    data[blockIdx.x * blockDim.x + threadIdx.x] *= factor;
}
__global__ void add(int *to, const int *a, const int *b)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = a[i] + b[i];
}
static void CUDART_CB count_call(void *counter) { ++*static_cast<int *>(counter); }

struct Step {
    cudaStream_t first, second;
    cudaEvent_t fork, join;
    int *a, *b, *sum, *host;
    int calls = 0;

    void issue(int factor)
    {
        CUDA_CHECK(cudaEventRecord(fork, first));
        CUDA_CHECK(cudaStreamWaitEvent(second, fork, 0));
        scale<<<COUNT / 256, 256, 0, first>>>(a, factor);
        CUDA_CHECK(cudaMemsetAsync(b, 1, COUNT * sizeof(int), second));
        scale<<<COUNT / 256, 256, 0, second>>>(b, 2);
        CUDA_CHECK(cudaEventRecord(join, second));
        CUDA_CHECK(cudaStreamWaitEvent(first, join, 0));
        add<<<COUNT / 256, 256, 0, first>>>(sum, a, b);
        CUDA_CHECK(cudaMemcpyAsync(host, sum, COUNT * sizeof(int), cudaMemcpyDeviceToHost, first));
        CUDA_CHECK(cudaLaunchHostFunc(first, count_call, &calls));
    }
    cudaGraph_t capture(int factor)
    {
        cudaGraph_t graph;
        cudaStreamCaptureStatus status;
        CUDA_CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
        issue(factor);
        CUDA_CHECK(cudaStreamIsCapturing(second, &status));
        EXPECT(status == cudaStreamCaptureStatusActive, "the second stream joined");
        CUDA_CHECK(cudaStreamEndCapture(first, &graph));
        CUDA_CHECK(cudaStreamIsCapturing(second, &status));
        EXPECT(status == cudaStreamCaptureStatusNone, "and left");
        return graph;
    }
};

static void what_is_wrong(Step &s)
{
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    EXPECT(cudaStreamEndCapture(s.first, &graph) == cudaErrorIllegalState, "nothing captured");
    EXPECT(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal) ==
           cudaErrorStreamCaptureUnsupported, "the legacy stream");
    CUDA_CHECK(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeThreadLocal));
    EXPECT(cudaStreamSynchronize(s.first) == cudaErrorStreamCaptureUnsupported, "a wait");
    CUDA_CHECK(cudaStreamIsCapturing(s.first, &status));
    EXPECT(status == cudaStreamCaptureStatusInvalidated, "is no capture any more");
    EXPECT(cudaStreamEndCapture(s.first, &graph) == cudaErrorStreamCaptureInvalidated, "end");
    EXPECT(graph == nullptr, "no graph");
    CUDA_CHECK(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed));
    CUDA_CHECK(cudaEventRecord(s.fork, s.first));
    CUDA_CHECK(cudaStreamWaitEvent(s.second, s.fork, 0));
    scale<<<1, 32, 0, s.second>>>(s.a, 1);
    EXPECT(cudaStreamEndCapture(s.second, &graph) == cudaErrorStreamCaptureUnmatched, "not here");
    EXPECT(cudaStreamEndCapture(s.first, &graph) == cudaErrorStreamCaptureUnjoined, "unjoined");
    CUDA_CHECK(cudaStreamSynchronize(s.second));
    cudaGetLastError();
}

// Nodes made by hand, the first depending on the last through an edge of its own.
static void explicit_graph(Step &s)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t kernel, fill, copy, nodes[4], needs[2];
    int three = 3, *b = s.b;
    size_t count = 4;
    void *args[] = {&b, &three};
    cudaKernelNodeParams launch = {(void *)scale, dim3(COUNT / 256), dim3(256), 0, args, nullptr};
    cudaMemsetParams zero = {s.b, 0, 5, 4, COUNT, 1};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &launch));
    CUDA_CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &zero));
    CUDA_CHECK(cudaGraphAddDependencies(graph, &fill, &kernel, nullptr, 1));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, s.host, s.b,
                                        COUNT * sizeof(int), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 3, "%zu nodes", count);
    count = 2;
    CUDA_CHECK(cudaGraphNodeGetDependencies(kernel, needs, nullptr, &count));
    EXPECT(count == 1 && needs[0] == fill, "the kernel needs the fill");
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, s.first));
    CUDA_CHECK(cudaStreamSynchronize(s.first));
    EXPECT(s.host[COUNT - 1] == 15, "filled, then scaled: %d", s.host[COUNT - 1]);
    three = 7;
    CUDA_CHECK(cudaGraphExecKernelNodeSetParams(exec, kernel, &launch));
    CUDA_CHECK(cudaGraphLaunch(exec, s.first));
    CUDA_CHECK(cudaStreamSynchronize(s.first));
    EXPECT(s.host[0] == 35, "with its new parameter: %d", s.host[0]);
    CUDA_CHECK(cudaGraphAddDependencies(graph, &copy, &fill, nullptr, 1));
    cudaGraphExec_t none;
    EXPECT(cudaGraphInstantiate(&none, graph, 0) != cudaSuccess, "a circle");
    cudaGetLastError();
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    start();
    int steps = argument(argc, argv, 1, 30);
    Step s;
    CUDA_CHECK(cudaStreamCreateWithFlags(&s.first, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&s.second, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&s.fork, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&s.join, cudaEventDisableTiming));
    s.a = on_device(std::vector<int>(COUNT, 1));
    s.b = on_device<int>(COUNT);
    s.sum = on_device<int>(COUNT);
    CUDA_CHECK(cudaMallocHost(&s.host, COUNT * sizeof(int)));
    CUDA_CHECK(cudaDeviceSynchronize());  // the streams do not wait for what was set up
    what_is_wrong(s);
    explicit_graph(s);
    std::fill(s.host, s.host + COUNT, 0);
    cudaGraph_t thrice = s.capture(3), five = s.capture(5);
    EXPECT(s.host[0] == 0 && s.calls == 0, "capturing runs nothing");
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, thrice, 0));
    int expected = 1;
    for (int k = 0; k < steps; k++) {
        cudaGraphExecUpdateResultInfo info;
        CUDA_CHECK(cudaGraphExecUpdate(exec, k % 2 ? five : thrice, &info));
        CUDA_CHECK(cudaGraphLaunch(exec, s.first));
        CUDA_CHECK(cudaStreamSynchronize(s.first));
        expected = static_cast<int>(static_cast<unsigned>(expected) * (k % 2 ? 5u : 3u));
        for (int i = 0; i < COUNT; i++)
            EXPECT(s.host[i] == static_cast<int>(expected + 0x02020202u), "step %d: [%d] is %d", k,
                   i, s.host[i]);
        EXPECT(s.calls == k + 1, "step %d: %d calls", k, s.calls);
        print_line(k, "sum", s.host, COUNT * sizeof(int));
    }
    return 0;
}
