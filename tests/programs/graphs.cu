// graphs.cu: a step is captured from streams that fork and join, instantiated and launched again
// and again; what it does is changed by an update. The result is that of the calls uncaptured.
#include <algorithm>

#include "common.h"

constexpr int COUNT = 1024;

__global__ void scale(int *data, int factor)
{
    data[blockIdx.x * blockDim.x + threadIdx.x] *= factor;
}
// For kernels that nothing orders.
__global__ void scale_together(int *data, int factor)
{
    int *at = data + blockIdx.x * blockDim.x + threadIdx.x, found = *at, seen;
    do
        seen = found;
    while ((found = atomicCAS(at, seen, seen * factor)) != seen);
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
    EXPECT(cudaStreamEndCapture(s.first, &graph) == cudaErrorStreamCaptureInvalidated, "spoilt");
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
    cudaMemsetParams zero = {s.b, 0, 5, 4, COUNT, 1}, odd = {s.b, 0, 5, 3, COUNT, 1};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &launch));
    EXPECT(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &odd) == cudaErrorInvalidValue,
           "elements of three bytes");
    cudaGetLastError();
    CUDA_CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &zero));
    CUDA_CHECK(cudaGraphAddDependencies(graph, &fill, &kernel, nullptr, 1));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, s.host, s.b,
                                        COUNT * sizeof(int), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 3, "%zu nodes", count);
    cudaGraphNode_t twice[2] = {copy, copy}, none_made;
    EXPECT(cudaGraphAddDependencies(graph, &fill, &kernel, nullptr, 1) == cudaErrorInvalidValue &&
           cudaGraphAddEmptyNode(&none_made, graph, twice, 2) == cudaErrorInvalidValue,
           "one edge, twice");
    cudaGetLastError();
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

// Kernels that each need the first ('f') or the previous one ('b').
static cudaGraph_t chain(Step &s, const char *needs, int factor)
{
    cudaGraph_t graph;
    cudaGraphNode_t first, last;
    int *b = s.b;
    void *args[] = {&b, &factor};
    cudaKernelNodeParams launch = {(void *)scale_together, dim3(1), dim3(32), 0, args, nullptr};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &launch));
    last = first;
    for (; *needs; needs++)
        CUDA_CHECK(cudaGraphAddKernelNode(&last, graph, *needs == 'f' ? &first : &last, 1,
                                          &launch));
    return graph;
}

// An update that would change which node needs which is refused, and changes nothing.
static void updates_refused(Step &s)
{
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo info;
    cudaGraph_t graph = chain(s, "bf", 2), same = chain(s, "bf", 3), other = chain(s, "bb", 5),
                longer = chain(s, "bfb", 7);
    CUDA_CHECK(cudaMemset(s.b, 1, 1));
    CUDA_CHECK(cudaMemset((char *)s.b + 1, 0, 3));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphExecUpdate(exec, same, &info));
    for (cudaGraph_t wrong : {other, longer}) {
        EXPECT(cudaGraphExecUpdate(exec, wrong, &info) == cudaErrorGraphExecUpdateFailure, "other");
        EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged, "it is %d", info.result);
    }
    cudaGetLastError();
    CUDA_CHECK(cudaGraphLaunch(exec, s.first));
    CUDA_CHECK(cudaMemcpyAsync(s.host, s.b, 4, cudaMemcpyDeviceToHost, s.first));
    CUDA_CHECK(cudaStreamSynchronize(s.first));
    EXPECT(s.host[0] == 27, "three kernels by 3 make %d", s.host[0]);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    for (cudaGraph_t one : {graph, same, other, longer})
        CUDA_CHECK(cudaGraphDestroy(one));
}

static void CUDART_CB write_late(void *value)
{
    usleep(20000);
    *static_cast<int *>(value) += 40;
}

// A copy in a graph reads pageable memory when it is its turn, not when the graph is launched (as
// NVIDIA's runtime does with 64 MiB, while it takes what is at most 1 MiB at the launch).
static void pageable_source(Step &s)
{
    int value = 2;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(cudaLaunchHostFunc(s.first, write_late, &value));
    CUDA_CHECK(cudaMemcpyAsync(s.b, &value, sizeof value, cudaMemcpyHostToDevice, s.first));
    CUDA_CHECK(cudaMemcpyAsync(s.host, s.b, sizeof value, cudaMemcpyDeviceToHost, s.first));
    CUDA_CHECK(cudaStreamEndCapture(s.first, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 1; k < 3; k++) {
        CUDA_CHECK(cudaGraphLaunch(exec, s.first));
        CUDA_CHECK(cudaStreamSynchronize(s.first));
        EXPECT(s.host[0] == 2 + 40 * k, "launch %d copied %d", k, s.host[0]);
    }
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
    updates_refused(s);
    pageable_source(s);
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
