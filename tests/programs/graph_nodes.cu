// graph_nodes.cu: nodes of graphs are queried, changed, removed and switched off; execs change only
// when they are updated. User objects end when the last graph, exec or launch lets them go.
#include <cuda.h>
#include <fcntl.h>

#include <fstream>
#include <sstream>
#include <string>

#include "behaviour.h"

constexpr int COUNT = 256;

__device__ int variable[8];

__global__ void scale(int *data, int factor) { data[threadIdx.x] *= factor; }
__global__ void add(int *data, int a, int b) { data[threadIdx.x] += a + b; }
static void CUDART_CB count_call(void *counter) { ++*static_cast<std::atomic<int> *>(counter); }

__global__ void nothing(int *, int) {}

struct Program {
    cudaStream_t stream;
    int *data, *other, *host;
    std::string folder;

    // One kernel that multiplies or adds; its arguments are copied when the node is made.
    cudaGraphNode_t node(cudaGraph_t graph, int factor, std::vector<cudaGraphNode_t> needs = {})
    {
        cudaGraphNode_t made;
        void *args[] = {&data, &factor};
        cudaKernelNodeParams p = {(void *)scale, dim3(1), dim3(COUNT), 0, args, nullptr};
        CUDA_CHECK(cudaGraphAddKernelNode(&made, graph, needs.data(), needs.size(), &p));
        return made;
    }
    // Returns the data after one launch if all were `before`.
    int launch(cudaGraphExec_t exec, int before)
    {
        std::fill(host, host + COUNT, before);
        CUDA_CHECK(cudaMemcpyAsync(data, host, COUNT * sizeof(int), cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaMemcpyAsync(host, data, COUNT * sizeof(int), cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (int i = 1; i < COUNT; i++)
            EXPECT(host[i] == host[0], "[%d] is %d, [0] is %d", i, host[i], host[0]);
        return host[0];
    }
    int once(cudaGraph_t graph, int before)
    {
        cudaGraphExec_t exec;
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        int after = launch(exec, before);
        CUDA_CHECK(cudaGraphExecDestroy(exec));
        return after;
    }

    void edges();
    void removal();
    void kernels();
    void driver_kernels();
    void copies();
    void variables();
    void fills_and_calls();
    void captured();
    void clones();
    void switched_off();
    void any_kind();
    void any_other_kind();
    void instantiation();
    void children();
    void events();
    void picture();
    void stream_attributes();
    void node_attributes();
    void cooperation();
    void captured_attributes();
    void old_update();
    void user_objects();
};

void Program::edges()
{
    cudaGraph_t graph;
    cudaGraphNode_t from[6], to[6], found[3];
    cudaGraphEdgeData data[6], odd = {};
    size_t count = 0;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a}), c = node(graph, 5, {a}),
                    d = node(graph, 7, {b, c});
    CUDA_CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    EXPECT(count == 4, "%zu edges", count);
    count = 6;
    memset(data, 1, sizeof data);
    CUDA_CHECK(cudaGraphGetEdges(graph, from, to, data, &count));
    EXPECT(count == 4 && !from[4] && !to[5], "%zu edges, then nothing", count);
    EXPECT(!data[0].type && !data[3].from_port, "plain edges");
    int seen = 0;
    for (size_t i = 0; i < count; i++)
        seen |= from[i] == a && to[i] == b ? 1 : from[i] == a && to[i] == c ? 2
              : from[i] == b && to[i] == d ? 4 : from[i] == c && to[i] == d ? 8 : 16;
    EXPECT(seen == 15, "edges %d", seen);
    count = 1;
    from[1] = nullptr;
    CUDA_CHECK(cudaGraphGetEdges(graph, from, to, nullptr, &count));
    EXPECT(count == 1 && from[0] == a && !from[1], "only as many as there is room for");
    FAILS(cudaGraphGetEdges(graph, from, nullptr, nullptr, &count), cudaErrorInvalidValue);
    FAILS(cudaGraphGetEdges(graph, nullptr, nullptr, data, &count), cudaErrorInvalidValue);
    FAILS(cudaGraphGetEdges(nullptr, from, to, nullptr, &count), cudaErrorInvalidValue);
    DRIVER_CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    EXPECT(count == 4, "%zu edges by the driver", count);

    count = 3;
    CUDA_CHECK(cudaGraphNodeGetDependentNodes(a, found, nullptr, &count));
    EXPECT(count == 2 && found[0] == b && found[1] == c && !found[2], "%zu need the first", count);
    CUDA_CHECK(cudaGraphNodeGetDependentNodes(d, nullptr, nullptr, &count));
    EXPECT(count == 0, "%zu need the last", count);
    count = 3;
    DRIVER_CHECK(cuGraphNodeGetDependencies(d, found, nullptr, &count));
    EXPECT(count == 2 && found[0] == b && found[1] == c, "the last needs %zu", count);
    FAILS(cudaGraphNodeGetDependencies(nullptr, found, nullptr, &count), cudaErrorInvalidValue);
    FAILS(cudaGraphNodeGetDependencies(d, nullptr, data, &count), cudaErrorInvalidValue);

    CUDA_CHECK(cudaGraphRemoveDependencies(graph, &b, &d, nullptr, 1));
    FAILS(cudaGraphRemoveDependencies(graph, &b, &d, nullptr, 1), cudaErrorInvalidValue);
    FAILS(cudaGraphRemoveDependencies(graph, &d, &c, nullptr, 1), cudaErrorInvalidValue);
    odd.from_port = cudaGraphKernelNodePortProgrammatic;
    odd.type = cudaGraphDependencyTypeProgrammatic;
    FAILS(cudaGraphRemoveDependencies(graph, &c, &d, &odd, 1), cudaErrorInvalidValue);
    odd.to_port = 1;
    FAILS(cudaGraphAddDependencies(graph, &b, &d, &odd, 1), cudaErrorInvalidValue);
    data[0] = {};
    CUDA_CHECK(cudaGraphAddDependencies(graph, &b, &d, data, 1));
    DRIVER_CHECK(cuGraphRemoveDependencies(graph, &b, &d, nullptr, 1));
    CUDA_CHECK(cudaGraphNodeGetDependencies(d, nullptr, nullptr, &count));
    EXPECT(count == 1, "the last needs %zu", count);
    EXPECT(once(graph, 1) == 210, "all run: %d", host[0]);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::removal()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t left[3];
    size_t count = 3;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a}), c = node(graph, 5, {b});
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroyNode(a));
    CUDA_CHECK(cudaGraphGetNodes(graph, left, &count));
    EXPECT(count == 2 && left[0] == b && left[1] == c, "%zu are left", count);
    CUDA_CHECK(cudaGraphNodeGetDependencies(b, nullptr, nullptr, &count));
    EXPECT(count == 0, "and need %zu", count);
    FAILS(cudaGraphDestroyNode(nullptr), cudaErrorInvalidValue);
    EXPECT(launch(exec, 1) == 30, "the exec has its own: %d", host[0]);
    int factor = 11;
    void *args[] = {&data, &factor};
    cudaKernelNodeParams p = {(void *)scale, dim3(1), dim3(COUNT), 0, args, nullptr};
    CUDA_CHECK(cudaGraphExecKernelNodeSetParams(exec, c, &p)); // still the third
    EXPECT(launch(exec, 1) == 66, "2 * 3 * 11 is %d", host[0]);
    FAILS(cudaGraphExecKernelNodeSetParams(nullptr, c, &p), cudaErrorInvalidValue);
    EXPECT(once(graph, 1) == 15, "3 * 5 is %d", host[0]);
    DRIVER_CHECK(cuGraphDestroyNode(b));
    EXPECT(once(graph, 1) == 5, "5 is %d", host[0]);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::kernels()
{
    cudaGraph_t graph;
    cudaGraphNode_t empty;
    cudaKernelNodeParams p = {}, wrong = {};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t n = node(graph, 6);
    CUDA_CHECK(cudaGraphKernelNodeGetParams(n, &p));
    EXPECT(p.func == (void *)scale && p.gridDim.x == 1 && p.blockDim.x == COUNT &&
           p.blockDim.z == 1 && p.sharedMemBytes == 0 && !p.extra, "as it was made");
    EXPECT(*(int **)p.kernelParams[0] == data && *(int *)p.kernelParams[1] == 6, "its arguments");
    CUDA_CHECK(cudaGraphKernelNodeSetParams(n, &p)); // its own
    EXPECT(once(graph, 2) == 12, "unchanged: %d", host[0]);
    int a = 30, b = 4;
    void *args[] = {&data, &a, &b};
    p = {(void *)add, dim3(1), dim3(COUNT), 64, args, nullptr};
    CUDA_CHECK(cudaGraphKernelNodeSetParams(n, &p));
    a = 0; // was copied
    CUDA_CHECK(cudaGraphKernelNodeGetParams(n, &p));
    EXPECT(p.func == (void *)add && p.sharedMemBytes == 64 && *(int *)p.kernelParams[2] == 4,
           "another kernel");
    EXPECT(once(graph, 2) == 36, "2 + 30 + 4 is %d", host[0]);
    FAILS(cudaGraphKernelNodeSetParams(n, nullptr), cudaErrorInvalidValue);
    wrong.func = &wrong;
    FAILS(cudaGraphKernelNodeSetParams(n, &wrong), cudaErrorInvalidResourceHandle);
    EXPECT(once(graph, 2) == 36, "nothing is changed by what is wrong: %d", host[0]);
    CUDA_CHECK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    FAILS(cudaGraphKernelNodeGetParams(empty, &p), cudaErrorInvalidValue);
    FAILS(cudaGraphKernelNodeGetParams(n, nullptr), cudaErrorInvalidValue);
    FAILS(cudaGraphKernelNodeSetParams(empty, &p), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::driver_kernels()
{
    cudaGraph_t graph;
    CUgraphNode n;
    CUfunction function;
    CUDA_KERNEL_NODE_PARAMS p = {}, got = {};
    CUDA_CHECK(cudaGetFuncBySymbol((cudaFunction_t *)&function, (void *)scale));
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    struct { int *data; int factor; } packed = {data, 9};
    size_t bytes = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    p.func = function;
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1;
    p.blockDimX = COUNT;
    p.extra = extra;
    DRIVER_CHECK(cuGraphAddKernelNode(&n, graph, nullptr, 0, &p));
    DRIVER_CHECK(cuGraphKernelNodeGetParams(n, &got));
    EXPECT(got.func == function && got.kern == CUkernel(function) && !got.kernelParams &&
               got.extra && got.blockDimX == COUNT,
           "as it was made");
    EXPECT(got.extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER && got.extra[1] != &packed &&
           !memcmp(got.extra[1], &packed, sizeof packed - 4) && *(size_t *)got.extra[3] == bytes,
           "the buffer is the node's own");
    EXPECT(once(graph, 2) == 18, "2 * 9 is %d", host[0]);
    int factor = 8;
    void *args[] = {&data, &factor};
    p.extra = nullptr;
    p.kernelParams = args;
    DRIVER_CHECK(cuGraphKernelNodeSetParams(n, &p));
    DRIVER_CHECK(cuGraphKernelNodeGetParams(n, &got));
    EXPECT(got.kernelParams && !got.extra && *(int *)got.kernelParams[1] == 8, "by a list now");
    EXPECT(once(graph, 2) == 16, "2 * 8 is %d", host[0]);
    p.func = (CUfunction)this;
    p.kern = nullptr;
    DRIVER_FAILS(cuGraphKernelNodeSetParams(n, &p), CUDA_ERROR_INVALID_HANDLE);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// Boxes of 4 x 3 x 2 numbers in layers of 8 x 4.
void Program::copies()
{
    cudaGraph_t graph;
    cudaGraphNode_t copy;
    cudaMemcpy3DParms box = {}, got = {};
    box.srcPtr = make_cudaPitchedPtr(host, 32, 32, 4);
    box.srcPos = make_cudaPos(8, 1, 1);
    box.dstPtr = make_cudaPitchedPtr(data, 32, 32, 4);
    box.dstPos = make_cudaPos(4, 0, 1);
    box.extent = make_cudaExtent(16, 3, 2);
    box.kind = cudaMemcpyHostToDevice;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemcpyNode(&copy, graph, nullptr, 0, &box));
    CUDA_CHECK(cudaGraphMemcpyNodeGetParams(copy, &got));
    EXPECT(got.srcPtr.ptr == host && got.srcPtr.pitch == 32 && got.srcPtr.ysize == 4 &&
           got.srcPos.x == 8 && got.srcPos.y == 1 && got.srcPos.z == 1, "where it is from");
    EXPECT(got.dstPtr.ptr == data && got.dstPos.x == 4 && got.dstPos.z == 1 && !got.dstArray &&
           got.extent.width == 16 && got.extent.height == 3 && got.extent.depth == 2 &&
           got.kind == cudaMemcpyHostToDevice, "where it goes");
    CUDA_MEMCPY3D described;
    DRIVER_CHECK(cuGraphMemcpyNodeGetParams(copy, &described));
    EXPECT(described.srcMemoryType == CU_MEMORYTYPE_HOST && described.srcHost == host &&
           described.dstMemoryType == CU_MEMORYTYPE_DEVICE && described.dstHeight == 4 &&
           described.dstDevice == (CUdeviceptr)data && described.srcXInBytes == 8, "the same");
    got.extent.depth = 1;
    CUDA_CHECK(cudaGraphMemcpyNodeSetParams(copy, &got));
    std::vector<int> expected(COUNT, -1);
    for (int i = 0; i < COUNT; i++)
        host[i] = i;
    for (int y = 0; y < 3; y++)
        for (int x = 0; x < 4; x++)
            expected[32 + y * 8 + 1 + x] = 32 + (y + 1) * 8 + 2 + x;
    CUDA_CHECK(cudaMemsetAsync(data, 255, COUNT * sizeof(int), stream));
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    EXPECT(fetch(data, COUNT) == expected, "one layer of the box");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    got.kind = cudaMemcpyKind(9);
    FAILS(cudaGraphMemcpyNodeSetParams(copy, &got), cudaErrorInvalidMemcpyDirection);
    CUDA_CHECK(cudaGraphMemcpyNodeSetParams1D(copy, other, data, 64, cudaMemcpyDeviceToDevice));
    CUDA_CHECK(cudaGraphMemcpyNodeGetParams(copy, &got));
    EXPECT(got.extent.width == 64 && got.extent.height == 1 && got.dstPtr.ptr == other &&
           got.kind == cudaMemcpyDeviceToDevice, "a line");
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// Copies to a part of a variable, and from it; each is set anew in the graph, then in the exec.
void Program::variables()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t to, from;
    const auto h2d = cudaMemcpyHostToDevice, d2h = cudaMemcpyDeviceToHost;
    std::vector<int> values = {10, 11, 12, 13, 14, 15, 16, 17}, zeros(8);
    CUDA_CHECK(cudaMemcpyToSymbol(variable, zeros.data(), 32));
    std::copy(values.begin(), values.end(), host);
    int *back = host + 16;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemcpyNodeToSymbol(&to, graph, nullptr, 0, variable, host, 8, 0, h2d));
    CUDA_CHECK(cudaGraphAddMemcpyNodeFromSymbol(&from, graph, &to, 1, back, variable, 8, 0, d2h));
    auto run = [&](std::vector<int> expected) {
        std::fill(back, back + 8, -1);
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < 8; i++)
            EXPECT(back[i] == expected[i], "[%d] is %d, not %d", i, back[i], expected[i]);
    };
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    run({10, 11, -1, -1, -1, -1, -1, -1});
    CUDA_CHECK(cudaGraphExecMemcpyNodeSetParamsToSymbol(exec, to, variable, host + 4, 8, 4, h2d));
    CUDA_CHECK(cudaGraphExecMemcpyNodeSetParamsFromSymbol(exec, from, back, variable, 16, 0, d2h));
    run({10, 14, 15, 0, -1, -1, -1, -1});
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphMemcpyNodeSetParamsToSymbol(to, variable, host + 2, 4, 12, h2d));
    CUDA_CHECK(cudaGraphMemcpyNodeSetParamsFromSymbol(from, back + 1, variable, 12, 4, d2h));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    run({-1, 14, 15, 12, -1, -1, -1, -1});
    FAILS(cudaGraphMemcpyNodeSetParamsToSymbol(to, variable, host, 8, 28, h2d),
          cudaErrorInvalidValue); // past its end
    FAILS(cudaGraphMemcpyNodeSetParamsToSymbol(to, variable, host, 4, 0, d2h),
          cudaErrorInvalidMemcpyDirection);
    FAILS(cudaGraphMemcpyNodeSetParamsFromSymbol(from, host, host, 4, 0, d2h),
          cudaErrorInvalidSymbol);
    FAILS(cudaGraphExecMemcpyNodeSetParamsToSymbol(nullptr, to, variable, host, 4, 0, h2d),
          cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::fills_and_calls()
{
    cudaGraph_t graph;
    cudaGraphNode_t copy, fill, call;
    cudaMemcpy3DParms got;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, other, data, 64,
                                        cudaMemcpyDeviceToDevice));
    cudaMemsetParams p = {data, 0, 3, 4, COUNT, 1}, q = {};
    CUDA_CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &p));
    p.value = 17;
    CUDA_CHECK(cudaGraphMemsetNodeSetParams(fill, &p));
    CUDA_CHECK(cudaGraphMemsetNodeGetParams(fill, &q));
    EXPECT(q.dst == data && q.value == 17 && q.elementSize == 4 && q.width == COUNT, "a fill");
    p.elementSize = 3;
    FAILS(cudaGraphMemsetNodeSetParams(fill, &p), cudaErrorInvalidValue);
    FAILS(cudaGraphMemsetNodeGetParams(copy, &q), cudaErrorInvalidValue);
    FAILS(cudaGraphMemcpyNodeGetParams(fill, &got), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphDestroyNode(copy));
    EXPECT(once(graph, 1) == 17, "filled: %d", host[0]);

    std::atomic<int> first{0}, second{0};
    cudaHostNodeParams f = {count_call, &first}, g = {};
    CUDA_CHECK(cudaGraphAddHostNode(&call, graph, nullptr, 0, &f));
    CUDA_CHECK(cudaGraphHostNodeGetParams(call, &g));
    EXPECT(g.fn == count_call && g.userData == &first, "a host function");
    g.userData = &second;
    CUDA_CHECK(cudaGraphHostNodeSetParams(call, &g));
    once(graph, 1);
    EXPECT(first == 0 && second == 1, "called: %d, %d", int(first), int(second));
    g.fn = nullptr;
    FAILS(cudaGraphHostNodeSetParams(call, &g), cudaErrorInvalidValue);
    FAILS(cudaGraphHostNodeGetParams(fill, &g), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// A captured graph can be queried and changed as if it had been made by hand.
void Program::captured()
{
    cudaGraph_t graph;
    cudaGraphNode_t nodes[3];
    cudaKernelNodeParams p;
    cudaMemcpy3DParms copy;
    size_t count = 3;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, stream>>>(data, 2, 3);
    CUDA_CHECK(cudaMemcpyAsync(other, data, 64, cudaMemcpyDefault, stream));
    CUDA_CHECK(cudaMemcpyAsync(host, other, 64, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    CUDA_CHECK(cudaGraphKernelNodeGetParams(nodes[0], &p));
    EXPECT(count == 3 && p.func == (void *)add && *(int *)p.kernelParams[1] == 2, "the kernel");
    *(int *)p.kernelParams[1] = 40; // in place, then set
    CUDA_CHECK(cudaGraphKernelNodeSetParams(nodes[0], &p));
    CUDA_CHECK(cudaGraphMemcpyNodeGetParams(nodes[1], &copy));
    EXPECT(copy.kind == cudaMemcpyDeviceToDevice && copy.srcPtr.ptr == data &&
           copy.dstPtr.ptr == other && copy.extent.width == 64 && copy.extent.depth == 1, "a copy");
    CUDA_CHECK(cudaGraphMemcpyNodeGetParams(nodes[2], &copy));
    EXPECT(copy.kind == cudaMemcpyDeviceToHost && copy.dstPtr.ptr == host, "another");
    EXPECT(once(graph, 1) == 44, "1 + 40 + 3 is %d", host[0]);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::clones()
{
    cudaGraph_t graph, clone;
    cudaGraphNode_t found = nullptr;
    cudaKernelNodeParams p;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a});
    CUDA_CHECK(cudaGraphClone(&clone, graph));
    CUDA_CHECK(cudaGraphDestroyNode(a));
    CUDA_CHECK(cudaGraphNodeFindInClone(&found, b, clone));
    EXPECT(found && found != b, "a node of its own");
    CUDA_CHECK(cudaGraphKernelNodeGetParams(found, &p));
    EXPECT(*(int *)p.kernelParams[1] == 3, "the second: %d", *(int *)p.kernelParams[1]);
    FAILS(cudaGraphNodeFindInClone(&found, b, graph), cudaErrorInvalidValue);
    FAILS(cudaGraphNodeFindInClone(&found, nullptr, clone), cudaErrorInvalidValue);
    cudaGraphNode_t late = node(graph, 5);
    FAILS(cudaGraphNodeFindInClone(&found, late, clone), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphDestroyNode(found));
    FAILS(cudaGraphNodeFindInClone(&found, b, clone), cudaErrorInvalidValue);
    EXPECT(once(clone, 1) == 2, "one is left in the clone: %d", host[0]);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(clone));
}

void Program::switched_off()
{
    cudaGraph_t graph, same;
    cudaGraphExec_t exec;
    cudaGraphNode_t empty;
    cudaGraphExecUpdateResultInfo info;
    unsigned on = 7;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a});
    CUDA_CHECK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphNodeGetEnabled(exec, a, &on));
    EXPECT(on == 1, "%u", on);
    CUDA_CHECK(cudaGraphNodeSetEnabled(exec, a, 0));
    CUDA_CHECK(cudaGraphNodeGetEnabled(exec, a, &on));
    EXPECT(on == 0 && launch(exec, 1) == 3, "without the first: %d", host[0]);
    CUDA_CHECK(cudaGraphClone(&same, graph));
    CUDA_CHECK(cudaGraphExecUpdate(exec, same, &info)); // its nodes are still called by the graph's
    CUDA_CHECK(cudaGraphDestroy(same));
    EXPECT(launch(exec, 1) == 3, "still without: %d", host[0]);
    EXPECT(once(graph, 1) == 6, "the graph is as it was: %d", host[0]);
    DRIVER_CHECK(cuGraphNodeSetEnabled(exec, a, 5));
    DRIVER_CHECK(cuGraphNodeGetEnabled(exec, a, &on));
    EXPECT(on == 1 && launch(exec, 1) == 6, "with it again: %d", host[0]);
    FAILS(cudaGraphNodeSetEnabled(exec, empty, 0), cudaErrorInvalidValue);
    FAILS(cudaGraphNodeGetEnabled(exec, empty, &on), cudaErrorInvalidValue);
    FAILS(cudaGraphNodeGetEnabled(exec, b, nullptr), cudaErrorInvalidValue);
    cudaGraphNode_t late = node(graph, 5);
    FAILS(cudaGraphNodeSetEnabled(exec, late, 0), cudaErrorInvalidValue); // not in the exec
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::any_kind()
{
    cudaGraph_t graph, child;
    cudaGraphExec_t exec;
    cudaGraphNode_t fill, kernel, inner;
    cudaGraphNodeParams p = {};
    int factor = 3;
    void *args[] = {&data, &factor};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&child, 0));
    node(child, 10);
    p.type = cudaGraphNodeTypeMemset;
    p.memset.dst = data, p.memset.value = 4, p.memset.elementSize = 4;
    p.memset.width = COUNT, p.memset.height = 1;
    CUDA_CHECK(cudaGraphAddNode(&fill, graph, nullptr, nullptr, 0, &p));
    p = {};
    p.type = cudaGraphNodeTypeKernel;
    p.kernel.func = (void *)scale, p.kernel.gridDim = {1, 1, 1};
    p.kernel.blockDim = {COUNT, 1, 1}, p.kernel.kernelParams = args;
    CUDA_CHECK(cudaGraphAddNode(&kernel, graph, &fill, nullptr, 1, &p));
    factor = 5;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphExecNodeSetParams(exec, kernel, &p));
    EXPECT(launch(exec, 0) == 20, "4 * 5 is %d", host[0]);
    EXPECT(once(graph, 0) == 12, "4 * 3 is %d", host[0]);
    CUDA_CHECK(cudaGraphNodeSetParams(kernel, &p));
    EXPECT(once(graph, 0) == 20, "4 * 5 is %d", host[0]);
    FAILS(cudaGraphNodeSetParams(fill, &p), cudaErrorInvalidValue); // another type
    FAILS(cudaGraphExecNodeSetParams(exec, fill, &p), cudaErrorInvalidValue);
    FAILS(cudaGraphExecNodeSetParams(nullptr, kernel, &p), cudaErrorInvalidValue);
    p.reserved0[1] = 1;
    FAILS(cudaGraphNodeSetParams(kernel, &p), cudaErrorInvalidValue);
    p.reserved0[1] = 0;
    p.reserved2 = 1;
    FAILS(cudaGraphAddNode(&kernel, graph, nullptr, nullptr, 0, &p), cudaErrorInvalidValue);
    p = {};
    p.type = cudaGraphNodeTypeGraph;
    p.graph.graph = child;
    CUDA_CHECK(cudaGraphAddNode(&inner, graph, &kernel, nullptr, 1, &p));
    p.reserved1[2] = 1; // past that member
    FAILS(cudaGraphAddNode(&inner, graph, nullptr, nullptr, 0, &p), cudaErrorInvalidValue);
    EXPECT(once(graph, 0) == 200, "4 * 5 * 10 is %d", host[0]);
    p = {};
    p.type = cudaGraphNodeType(99);
    FAILS(cudaGraphAddNode(&inner, graph, nullptr, nullptr, 0, &p), cudaErrorInvalidValue);
    FAILS(cudaGraphAddNode(&inner, graph, nullptr, nullptr, 0, nullptr), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(child));
}

void Program::any_other_kind()
{
    cudaGraph_t graph;
    cudaGraphNode_t nodes[2], copy;
    cudaGraphNodeType type;
    cudaGraphNodeParams p = {};
    std::atomic<int> calls{0};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t kernel = node(graph, 40);
    p.type = cudaGraphNodeTypeHost;
    p.host.fn = count_call, p.host.userData = &calls;
    CUDA_CHECK(cudaGraphAddNode(&nodes[0], graph, &kernel, nullptr, 1, &p));
    p = {};
    p.type = cudaGraphNodeTypeEmpty;
    CUDA_CHECK(cudaGraphAddNode(&nodes[1], graph, &nodes[0], nullptr, 1, &p));
    p.type = cudaGraphNodeTypeMemcpy;
    p.memcpy.copyParams.srcPtr = make_cudaPitchedPtr(data, 64, 64, 1);
    p.memcpy.copyParams.dstPtr = make_cudaPitchedPtr(other, 64, 64, 1);
    p.memcpy.copyParams.extent = make_cudaExtent(64, 1, 1);
    p.memcpy.copyParams.kind = cudaMemcpyDefault;
    CUDA_CHECK(cudaGraphAddNode(&copy, graph, &nodes[1], nullptr, 1, &p));
    p.memcpy.flags = 1;
    FAILS(cudaGraphNodeSetParams(copy, &p), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphNodeGetType(copy, &type));
    EXPECT(type == cudaGraphNodeTypeMemcpy, "type %d", type);
    once(graph, 5);
    EXPECT(calls == 1 && fetch(other, 16)[15] == 200, "called and copied");

    CUgraphNode made;
    CUgraphNodeParams d = {};
    d.type = CU_GRAPH_NODE_TYPE_MEMSET;
    d.memset.dst = (CUdeviceptr)data, d.memset.value = 6, d.memset.elementSize = 4;
    d.memset.width = COUNT, d.memset.height = 1;
    DRIVER_CHECK(cuGraphAddNode(&made, graph, (CUgraphNode *)&copy, nullptr, 1, &d));
    EXPECT(once(graph, 0) == 6, "filled by the driver's: %d", host[0]);
    d.reserved2 = 1;
    DRIVER_FAILS(cuGraphNodeSetParams(made, &d), CUDA_ERROR_INVALID_VALUE);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::instantiation()
{
    cudaGraph_t graph, outer;
    cudaGraphNode_t child;
    cudaGraphExec_t exec;
    unsigned long long flags = 99;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a}), c = node(graph, 5, {b});
    for (unsigned long long good : {0, 1, 8, 9}) {
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, good));
        CUDA_CHECK(cudaGraphExecGetFlags(exec, &flags));
        EXPECT(flags == good, "flags %llu, not %llu", flags, good);
        CUDA_CHECK(cudaGraphExecDestroy(exec));
    }
    for (unsigned long long bad : {2ull, 5ull, 16ull, 1ull << 40})
        FAILS(cudaGraphInstantiate(&exec, graph, bad), cudaErrorInvalidValue);
    FAILS(cudaGraphExecGetFlags(nullptr, &flags), cudaErrorInvalidValue);
    cudaGraphInstantiateParams p = {};
    p.flags = cudaGraphInstantiateFlagUpload | cudaGraphInstantiateFlagUseNodePriority;
    p.uploadStream = stream;
    p.errNode_out = a;
    CUDA_CHECK(cudaGraphInstantiateWithParams(&exec, graph, &p));
    EXPECT(p.result_out == cudaGraphInstantiateSuccess && !p.errNode_out, "%d", p.result_out);
    cuuint64_t told = 99;
    DRIVER_CHECK(cuGraphExecGetFlags(exec, &told));
    EXPECT(told == 8, "an upload is not returned: %d", int(told));
    EXPECT(launch(exec, 1) == 30, "2 * 3 * 5 is %d", host[0]);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphAddDependencies(graph, &c, &b, nullptr, 1));
    FAILS(cudaGraphInstantiateWithParams(&exec, graph, &p), cudaErrorInvalidValue);
    EXPECT(p.result_out == cudaGraphInstantiateInvalidStructure &&
           (p.errNode_out == b || p.errNode_out == c), "the circle is named: %d", p.result_out);
    CUDA_CHECK(cudaGraphCreate(&outer, 0));
    CUDA_CHECK(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
    FAILS(cudaGraphInstantiateWithParams(&exec, outer, &p), cudaErrorInvalidValue);
    EXPECT(p.result_out == cudaGraphInstantiateInvalidStructure && p.errNode_out, "in a child too");
    CUDA_CHECK(cudaGraphDestroy(outer));
    p.flags = 64;
    CUDA_CHECK(cudaGraphRemoveDependencies(graph, &c, &b, nullptr, 1));
    FAILS(cudaGraphInstantiateWithParams(&exec, graph, &p), cudaErrorInvalidValue);
    EXPECT(p.result_out == cudaGraphInstantiateError && !p.errNode_out, "%d", p.result_out);
    FAILS(cudaGraphInstantiateWithParams(&exec, graph, nullptr), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphDestroy(graph));
}

void Program::children()
{
    cudaGraph_t graph, child, inside, fresh, longer;
    cudaGraphExec_t exec;
    cudaGraphNode_t n, first;
    size_t count;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&child, 0));
    CUDA_CHECK(cudaGraphCreate(&fresh, 0));
    CUDA_CHECK(cudaGraphCreate(&longer, 0));
    node(child, 3);
    node(fresh, 4);
    node(longer, 5, {node(longer, 6)});
    cudaGraphNode_t a = node(graph, 2);
    CUDA_CHECK(cudaGraphAddChildGraphNode(&n, graph, &a, 1, child));
    CUDA_CHECK(cudaGraphDestroy(child)); // the node has a copy
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    EXPECT(launch(exec, 1) == 6, "2 * 3 is %d", host[0]);
    CUDA_CHECK(cudaGraphExecChildGraphNodeSetParams(exec, n, fresh));
    EXPECT(launch(exec, 1) == 8, "2 * 4 is %d", host[0]);
    FAILS(cudaGraphExecChildGraphNodeSetParams(exec, n, longer), cudaErrorInvalidValue);
    FAILS(cudaGraphExecChildGraphNodeSetParams(exec, a, fresh), cudaErrorInvalidValue);
    EXPECT(launch(exec, 1) == 8, "as before: %d", host[0]);
    CUDA_CHECK(cudaGraphChildGraphNodeGetGraph(n, &inside));
    count = 1;
    CUDA_CHECK(cudaGraphGetNodes(inside, &first, &count));
    EXPECT(count == 1, "%zu nodes inside", count);
    node(inside, 7, {first}); // changes what the node does
    EXPECT(once(graph, 1) == 42, "2 * 3 * 7 is %d", host[0]);
    FAILS(cudaGraphDestroy(inside), cudaErrorInvalidValue); // the node's
    FAILS(cudaGraphChildGraphNodeGetGraph(a, &inside), cudaErrorInvalidValue);
    cudaGraphExecUpdateResultInfo info;
    FAILS(cudaGraphExecUpdate(exec, graph, &info), cudaErrorGraphExecUpdateFailure);
    EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged, "%d", info.result);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    for (cudaGraph_t g : {graph, fresh, longer})
        CUDA_CHECK(cudaGraphDestroy(g));
}

// The node waits for an event on another stream, which a gate holds up, then fills and records.
void Program::events()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t wait, fill, record;
    cudaStream_t side, reader;
    cudaEvent_t event[3], got = nullptr;
    for (cudaEvent_t &e : event)
        CUDA_CHECK(cudaEventCreate(&e));
    CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
    cudaMemsetParams p = {data, 0, 5, 4, COUNT, 1};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, event[2]));
    CUDA_CHECK(cudaGraphAddMemsetNode(&fill, graph, &wait, 1, &p));
    CUDA_CHECK(cudaGraphAddEventRecordNode(&record, graph, &fill, 1, event[2]));
    CUDA_CHECK(cudaGraphEventRecordNodeSetEvent(record, event[0]));
    CUDA_CHECK(cudaGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == event[0], "the first event");
    CUDA_CHECK(cudaGraphEventWaitNodeGetEvent(wait, &got));
    EXPECT(got == event[2], "the third");
    CUDA_CHECK(cudaGraphEventWaitNodeSetEvent(wait, event[1]));
    CUDA_CHECK(cudaGraphEventWaitNodeGetEvent(wait, &got));
    EXPECT(got == event[1], "the second");
    FAILS(cudaGraphEventWaitNodeGetEvent(record, &got), cudaErrorInvalidValue);
    FAILS(cudaGraphEventRecordNodeSetEvent(wait, event[0]), cudaErrorInvalidValue);
    FAILS(cudaGraphEventRecordNodeGetEvent(record, nullptr), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k : {0, 1}) {
        // The other one keeps the time at which the launch began.
        cudaEvent_t awaited = event[1 - k], due = event[2 * k], idle = event[k ? 1 : 2];
        if (k == 1) {
            CUDA_CHECK(cudaGraphExecEventRecordNodeSetEvent(exec, record, due));
            CUDA_CHECK(cudaGraphExecEventWaitNodeSetEvent(exec, wait, awaited));
        }
        Gate gate;
        float ms;
        CUDA_CHECK(cudaMemsetAsync(data, 0, COUNT * sizeof(int), stream));
        for (cudaEvent_t e : event)
            CUDA_CHECK(cudaEventRecord(e, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaLaunchHostFunc(side, Gate::wait, &gate));
        CUDA_CHECK(cudaEventRecord(awaited, side));
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        usleep(30000);
        CUDA_CHECK(cudaMemcpyAsync(host, data, 4, cudaMemcpyDeviceToHost, reader));
        CUDA_CHECK(cudaStreamSynchronize(reader));
        gate.open = true;
        CUDA_CHECK(cudaStreamSynchronize(stream));
        EXPECT(host[0] == 0, "%d: it did not wait: %d", k, host[0]);
        EXPECT(fetch(data, COUNT)[3] == 5, "%d: filled", k);
        CUDA_CHECK(cudaEventElapsedTime(&ms, idle, due));
        EXPECT(ms > 20, "%d: recorded after %f ms", k, ms);
    }
    CUDA_CHECK(cudaGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == event[0], "the graph's node has its own");
    CUevent driver;
    DRIVER_CHECK(cuGraphEventRecordNodeGetEvent(record, &driver));
    EXPECT(driver == (CUevent)event[0], "by the driver");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    for (cudaEvent_t e : event)
        CUDA_CHECK(cudaEventDestroy(e));
    CUDA_CHECK(cudaStreamDestroy(side));
    CUDA_CHECK(cudaStreamDestroy(reader));
}

static size_t occurrences(const std::string &text, const std::string &what)
{
    size_t count = 0;
    for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1))
        count++;
    return count;
}

void Program::picture()
{
    cudaGraph_t graph, child;
    cudaGraphNode_t n;
    std::string path = folder + ".dot" + std::to_string(getpid());
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&child, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a}), c = node(graph, 5, {a});
    node(child, 7, {node(child, 9)});
    cudaGraphNode_t both[] = {b, c};
    CUDA_CHECK(cudaGraphAddChildGraphNode(&n, graph, both, 2, child));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&n, graph, &n, 1, host, data, 64, cudaMemcpyDeviceToHost));
    for (bool verbose : {false, true}) {
        CUDA_CHECK(cudaGraphDebugDotPrint(graph, path.c_str(),
                                          verbose ? cudaGraphDebugDotFlagsVerbose : 0));
        std::stringstream text;
        text << std::ifstream(path).rdbuf();
        std::string dot = text.str();
        EXPECT(dot.rfind("digraph", 0) == 0 && occurrences(dot, "{") == occurrences(dot, "}") &&
               occurrences(dot, "\"") % 2 == 0, "a digraph: %s", dot.c_str());
        EXPECT(occurrences(dot, " -> ") == 6 && occurrences(dot, "shape=") == 7 &&
               occurrences(dot, "subgraph") == 2, "nodes and edges: %s", dot.c_str());
        EXPECT(occurrences(dot, "scale") == 5 && occurrences(dot, "DtoH") == 1, "%s", dot.c_str());
        EXPECT(occurrences(dot, "width: 64") == verbose, "details on demand: %s", dot.c_str());
    }
    unlink(path.c_str());
    FAILS(cudaGraphDebugDotPrint(graph, nullptr, 0), cudaErrorInvalidValue);
    FAILS(cudaGraphDebugDotPrint(graph, "/nowhere/at all", 0), cudaErrorOperatingSystem);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(child));
}

void Program::stream_attributes()
{
    cudaStream_t a, b;
    cudaStreamAttrValue value = {};
    int priority;
    CUDA_CHECK(cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, -1));
    CUDA_CHECK(cudaStreamCreate(&b));
    CUDA_CHECK(cudaStreamGetAttribute(a, cudaStreamAttributePriority, &value));
    EXPECT(value.priority == -1, "priority %d", value.priority);
    CUDA_CHECK(cudaStreamGetAttribute(b, cudaStreamAttributeSynchronizationPolicy, &value));
    EXPECT(value.syncPolicy == cudaSyncPolicyAuto, "policy %d", value.syncPolicy);
    value.priority = -2;
    CUDA_CHECK(cudaStreamSetAttribute(a, cudaStreamAttributePriority, &value));
    CUDA_CHECK(cudaStreamGetPriority(a, &priority));
    EXPECT(priority == -2, "priority %d", priority);
    value.syncPolicy = cudaSyncPolicyYield;
    CUDA_CHECK(cudaStreamSetAttribute(a, cudaStreamAttributeSynchronizationPolicy, &value));
    value = {};
    value.accessPolicyWindow.base_ptr = data;
    value.accessPolicyWindow.num_bytes = 512;
    value.accessPolicyWindow.hitRatio = 0.5f;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CUDA_CHECK(cudaStreamSetAttribute(a, cudaStreamAttributeAccessPolicyWindow, &value));
    value.accessPolicyWindow.hitRatio = 1.5f;
    FAILS(cudaStreamSetAttribute(a, cudaStreamAttributeAccessPolicyWindow, &value),
          cudaErrorInvalidValue);
    value.accessPolicyWindow.hitRatio = 1;
    value.accessPolicyWindow.missProp = cudaAccessPropertyPersisting;
    FAILS(cudaStreamSetAttribute(a, cudaStreamAttributeAccessPolicyWindow, &value),
          cudaErrorInvalidValue);
    value.syncPolicy = cudaSynchronizationPolicy(9);
    FAILS(cudaStreamSetAttribute(a, cudaStreamAttributeSynchronizationPolicy, &value),
          cudaErrorInvalidValue);
    FAILS(cudaStreamGetAttribute(a, cudaLaunchAttributeCooperative, &value), cudaErrorInvalidValue);
    FAILS(cudaStreamSetAttribute(a, cudaLaunchAttributeClusterDimension, &value),
          cudaErrorInvalidValue);
    FAILS(cudaStreamGetAttribute(a, cudaStreamAttributePriority, nullptr), cudaErrorInvalidValue);
    FAILS(cudaStreamGetAttribute((cudaStream_t)this, cudaStreamAttributePriority, &value),
          cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaStreamCopyAttributes(b, a));
    for (cudaStream_t s : {a, b}) {
        memset(&value, 255, sizeof value);
        CUDA_CHECK(cudaStreamGetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &value));
        EXPECT(value.accessPolicyWindow.base_ptr == data &&
               value.accessPolicyWindow.num_bytes == 512 &&
               value.accessPolicyWindow.hitRatio == 0.5f &&
               value.accessPolicyWindow.hitProp == cudaAccessPropertyPersisting &&
               value.accessPolicyWindow.missProp == cudaAccessPropertyStreaming, "the window");
        CUstreamAttrValue told;
        DRIVER_CHECK(cuStreamGetAttribute(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &told));
        EXPECT(told.syncPolicy == CU_SYNC_POLICY_YIELD, "policy %d", told.syncPolicy);
        CUDA_CHECK(cudaStreamGetPriority(s, &priority));
        EXPECT(priority == -2, "priority %d", priority);
    }
    FAILS(cudaStreamCopyAttributes(b, (cudaStream_t)this), cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaStreamGetAttribute(0, cudaStreamAttributeSynchronizationPolicy, &value));
    EXPECT(value.syncPolicy == cudaSyncPolicyAuto, "the default stream: %d", value.syncPolicy);
    CUDA_CHECK(cudaCtxResetPersistingL2Cache());
    DRIVER_CHECK(cuCtxResetPersistingL2Cache());
    CUDA_CHECK(cudaStreamDestroy(a));
    CUDA_CHECK(cudaStreamDestroy(b));
}

// The destructor runs on another thread, soon.
static bool ended(const std::atomic<int> &count, int wanted)
{
    for (int i = 0; i < 5000 && count < wanted; i++)
        usleep(1000);
    return count == wanted;
}

static bool alive(const std::atomic<int> &count, int wanted)
{
    usleep(20000);
    return count == wanted;
}

void Program::user_objects()
{
    static std::atomic<int> destroyed;
    cudaUserObject_t o;
    cudaGraph_t graph, clone, outer;
    cudaGraphExec_t exec;
    cudaGraphNode_t n;
    unsigned no_sync = cudaUserObjectNoDestructorSync, many = 1u << 31;
    destroyed = 0;
    FAILS(cudaUserObjectCreate(&o, &destroyed, count_call, 1, 0), cudaErrorInvalidValue);
    FAILS(cudaUserObjectCreate(&o, &destroyed, count_call, 0, no_sync), cudaErrorInvalidValue);
    FAILS(cudaUserObjectCreate(&o, &destroyed, nullptr, 1, no_sync), cudaErrorInvalidValue);
    CUDA_CHECK(cudaUserObjectCreate(&o, &destroyed, count_call, 2, no_sync));
    FAILS(cudaUserObjectRetain(o, 0), cudaErrorInvalidValue);
    FAILS(cudaUserObjectRelease(o, many), cudaErrorInvalidValue);
    CUDA_CHECK(cudaUserObjectRetain(o, 3));
    CUDA_CHECK(cudaUserObjectRelease(o, 4));
    EXPECT(alive(destroyed, 0), "one reference is left");
    CUDA_CHECK(cudaUserObjectRelease(o, 1));
    EXPECT(ended(destroyed, 1), "none is left: %d", int(destroyed));

    CUDA_CHECK(cudaUserObjectCreate(&o, &destroyed, count_call, 1, no_sync));
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    node(graph, 2);
    FAILS(cudaGraphRetainUserObject(graph, o, 1, 2), cudaErrorInvalidValue);
    FAILS(cudaGraphReleaseUserObject(graph, o, 1), cudaErrorInvalidValue); // it has none
    CUDA_CHECK(cudaGraphRetainUserObject(graph, o, 2, 0));
    CUDA_CHECK(cudaGraphRetainUserObject(graph, o, 1, cudaGraphUserObjectMove));
    CUDA_CHECK(cudaGraphReleaseUserObject(graph, o, 2));
    FAILS(cudaGraphReleaseUserObject(graph, o, 2), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphClone(&clone, graph));
    CUDA_CHECK(cudaGraphDestroy(graph));
    EXPECT(alive(destroyed, 1), "the clone has it");
    CUDA_CHECK(cudaGraphCreate(&outer, 0));
    CUDA_CHECK(cudaGraphAddChildGraphNode(&n, outer, nullptr, 0, clone));
    CUDA_CHECK(cudaGraphDestroy(clone));
    EXPECT(alive(destroyed, 1), "the child has it");
    CUDA_CHECK(cudaGraphInstantiate(&exec, outer, 0));
    CUDA_CHECK(cudaGraphDestroy(outer));
    EXPECT(alive(destroyed, 1) && launch(exec, 1) == 2, "the exec has it");

    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    EXPECT(alive(destroyed, 1), "a launch is still to come");
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(ended(destroyed, 2), "all is over: %d", int(destroyed));

    // An update gives the exec what the other graph refers to, in place of its own.
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&outer, 0));
    node(graph, 2), node(outer, 3);
    DRIVER_CHECK(cuUserObjectCreate((CUuserObject *)&o, &destroyed, count_call, 1,
                                    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DRIVER_CHECK(cuGraphRetainUserObject(graph, (CUuserObject)o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    cudaGraphExecUpdateResultInfo info;
    CUDA_CHECK(cudaGraphExecUpdate(exec, outer, &info));
    EXPECT(ended(destroyed, 3), "replaced: %d", int(destroyed));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(outer));
}

// Made before the interlude, changed and launched after it.
struct Lasting {
    cudaGraph_t graph, clone;
    cudaGraphExec_t exec;
    cudaGraphNode_t kernel, copied;
    cudaStream_t stream;
    std::atomic<int> destroyed{0};

    void make(Program &p)
    {
        cudaUserObject_t o;
        cudaStreamAttrValue value = {};
        CUDA_CHECK(cudaGraphCreate(&graph, 0));
        kernel = p.node(graph, 6);
        CUDA_CHECK(cudaUserObjectCreate(&o, &destroyed, count_call, 1,
                                        cudaUserObjectNoDestructorSync));
        CUDA_CHECK(cudaGraphRetainUserObject(graph, o, 1, cudaGraphUserObjectMove));
        CUDA_CHECK(cudaGraphClone(&clone, graph));
        CUDA_CHECK(cudaGraphNodeFindInClone(&copied, kernel, clone));
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
        CUDA_CHECK(cudaGraphNodeSetEnabled(exec, kernel, 0));
        CUDA_CHECK(cudaStreamCreate(&stream));
        value.syncPolicy = cudaSyncPolicySpin;
        CUDA_CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeSynchronizationPolicy,
                                          &value));
    }
    void use(Program &p)
    {
        cudaKernelNodeParams params;
        cudaStreamAttrValue value;
        unsigned long long flags;
        EXPECT(p.launch(exec, 5) == 5, "switched off: %d", p.host[0]);
        CUDA_CHECK(cudaGraphNodeSetEnabled(exec, kernel, 1));
        EXPECT(p.launch(exec, 5) == 30, "switched on: %d", p.host[0]);
        CUDA_CHECK(cudaGraphKernelNodeGetParams(copied, &params));
        EXPECT(params.func == (void *)scale && *(int *)params.kernelParams[1] == 6, "the clone's");
        *(int *)params.kernelParams[1] = 7;
        CUDA_CHECK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
        EXPECT(p.launch(exec, 5) == 35, "as the exec was set: %d", p.host[0]);
        CUDA_CHECK(cudaGraphExecGetFlags(exec, &flags));
        EXPECT(flags == cudaGraphInstantiateFlagUseNodePriority, "flags %llu", flags);
        CUDA_CHECK(cudaStreamGetAttribute(stream, cudaStreamAttributeSynchronizationPolicy,
                                          &value));
        EXPECT(value.syncPolicy == cudaSyncPolicySpin, "policy %d", value.syncPolicy);
        CUDA_CHECK(cudaGraphDestroy(graph));
        CUDA_CHECK(cudaGraphDestroy(clone));
        EXPECT(alive(destroyed, 0), "the exec has it");
        CUDA_CHECK(cudaGraphExecDestroy(exec));
        EXPECT(ended(destroyed, 1), "all are gone");
    }
};

static int priority_of(cudaGraphNode_t node)
{
    cudaKernelNodeAttrValue value;
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    return value.priority;
}

// All are returned, and copied; unknown attributes, and nodes of other kinds, are refused.
void Program::node_attributes()
{
    cudaGraph_t graph, clone;
    cudaGraphNode_t empty, cloned;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = node(graph, 2), b = node(graph, 3, {a});
    CUDA_CHECK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    cudaKernelNodeAttrValue v = {}, got;
    v.priority = -3;
    EXPECT(priority_of(a) == 0, "it begins as %d", priority_of(a));
    CUDA_CHECK(cudaGraphKernelNodeSetAttribute(a, cudaLaunchAttributePriority, &v));
    v = {};
    v.accessPolicyWindow = {data, 64, 0.5f, cudaAccessPropertyPersisting,
                            cudaAccessPropertyStreaming};
    CUDA_CHECK(cudaGraphKernelNodeSetAttribute(a, cudaLaunchAttributeAccessPolicyWindow, &v));
    v.accessPolicyWindow.hitRatio = 2;
    FAILS(cudaGraphKernelNodeSetAttribute(a, cudaLaunchAttributeAccessPolicyWindow, &v),
          cudaErrorInvalidValue);
    v.memSyncDomain = cudaLaunchMemSyncDomainRemote;
    DRIVER_CHECK(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
                                               (CUkernelNodeAttrValue *)&v));
    v.clusterDim = {1, 1, 1};
    CUDA_CHECK(cudaGraphKernelNodeSetAttribute(a, cudaLaunchAttributeClusterDimension, &v));
    CUDA_CHECK(cudaGraphKernelNodeCopyAttributes(b, a));
    EXPECT(priority_of(b) == -3, "the copy's priority is %d", priority_of(b));
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(b, cudaLaunchAttributeAccessPolicyWindow, &got));
    EXPECT(got.accessPolicyWindow.base_ptr == data && got.accessPolicyWindow.hitRatio == 0.5f,
           "the copy's window");
    DRIVER_CHECK(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
                                               (CUkernelNodeAttrValue *)&got));
    EXPECT(got.memSyncDomain == cudaLaunchMemSyncDomainRemote, "the copy's domain");
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(b, cudaLaunchAttributeMemSyncDomainMap, &got));
    EXPECT(got.memSyncDomainMap.default_ == 0 && got.memSyncDomainMap.remote == 1, "as usual");
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(b, cudaLaunchAttributeClusterDimension, &got));
    EXPECT(got.clusterDim.x == 1, "clusters of %u", got.clusterDim.x);

    FAILS(cudaGraphKernelNodeGetAttribute(a, cudaLaunchAttributeSynchronizationPolicy, &got),
          cudaErrorInvalidValue);
    FAILS(cudaGraphKernelNodeSetAttribute(a, cudaLaunchAttributeID(77), &v), cudaErrorInvalidValue);
    FAILS(cudaGraphKernelNodeGetAttribute(empty, cudaLaunchAttributePriority, &got),
          cudaErrorInvalidValue);
    FAILS(cudaGraphKernelNodeCopyAttributes(empty, a), cudaErrorInvalidValue);
    DRIVER_FAILS(cuGraphKernelNodeCopyAttributes(a, empty), CUDA_ERROR_INVALID_VALUE);

    CUDA_CHECK(cudaGraphClone(&clone, graph));
    CUDA_CHECK(cudaGraphNodeFindInClone(&cloned, a, clone));
    EXPECT(priority_of(cloned) == -3, "the clone's priority is %d", priority_of(cloned));
    EXPECT(once(graph, 1) == 6, "they run: %d", host[0]);
    CUDA_CHECK(cudaGraphDestroy(clone));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// A cooperative kernel must fit the device as a whole.
void Program::cooperation()
{
    cudaGraph_t graph;
    cudaGraphNode_t many;
    cudaGraphExec_t exec;
    int factor = 1;
    void *args[] = {&data, &factor};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaKernelNodeParams p = {(void *)nothing, dim3(1 << 20), dim3(1024), 0, args, nullptr};
    CUDA_CHECK(cudaGraphAddKernelNode(&many, graph, nullptr, 0, &p));
    cudaKernelNodeAttrValue v = {};
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(many, cudaLaunchAttributeCooperative, &v));
    EXPECT(v.cooperative == 0, "it begins as %d", v.cooperative);
    v.cooperative = 1;
    CUDA_CHECK(cudaGraphKernelNodeSetAttribute(many, cudaLaunchAttributeCooperative, &v));
    v.cooperative = 5;
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(many, cudaLaunchAttributeCooperative, &v));
    EXPECT(v.cooperative == 1, "it is %d", v.cooperative);
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorCooperativeLaunchTooLarge);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// A captured kernel has the attributes of its launch, and else those of its stream.
void Program::captured_attributes()
{
    cudaGraph_t graph;
    cudaGraphNode_t nodes[2];
    cudaStream_t urgent;
    size_t count = 2;
    CUDA_CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -2));
    CUDA_CHECK(cudaStreamBeginCapture(urgent, cudaStreamCaptureModeRelaxed));
    scale<<<1, COUNT, 0, urgent>>>(data, 2);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributePriority;
    attribute.val.priority = -4;
    cudaLaunchConfig_t config = {dim3(1), dim3(COUNT), 0, urgent, &attribute, 1};
    CUDA_CHECK(cudaLaunchKernelEx(&config, scale, data, 3));
    attribute.id = cudaLaunchAttributeID(77);
    FAILS(cudaLaunchKernelEx(&config, scale, data, 3), cudaErrorInvalidValue);
    CUDA_CHECK(cudaStreamEndCapture(urgent, &graph));
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 2 && priority_of(nodes[0]) == -2 && priority_of(nodes[1]) == -4,
           "%zu nodes of priorities %d, %d", count, priority_of(nodes[0]), priority_of(nodes[1]));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamDestroy(urgent));
}

// The form of before CUDA 12, as programs that were compiled for that find it.
void Program::old_update()
{
    CUresult (*update)(CUgraphExec, CUgraph, CUgraphNode *, CUgraphExecUpdateResult *);
    cudaGraph_t graph, fresh;
    cudaGraphExec_t exec;
    cudaGraphNode_t failed = nullptr;
    CUgraphExecUpdateResult result;
    DRIVER_CHECK(cuGetProcAddress("cuGraphExecUpdate", (void **)&update, 10020, 0, nullptr));
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    node(graph, 2);
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphCreate(&fresh, 0));
    cudaGraphNode_t only = node(fresh, 5);
    DRIVER_CHECK(update(exec, fresh, &failed, &result));
    EXPECT(result == CU_GRAPH_EXEC_UPDATE_SUCCESS && launch(exec, 1) == 5, "it is %d", host[0]);
    node(fresh, 7, {only});
    DRIVER_FAILS(update(exec, fresh, &failed, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    EXPECT(result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, "the reason is %d", result);
    DRIVER_FAILS(update(exec, fresh, nullptr, &result), CUDA_ERROR_INVALID_VALUE);
    EXPECT(launch(exec, 1) == 5, "it stays as it was: %d", host[0]);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(fresh));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    start();
    Program p;
    Lasting lasting;
    p.folder = argc > 1 ? argv[1] : "/tmp/graph_nodes";
    CUDA_CHECK(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
    p.data = on_device<int>(COUNT);
    p.other = on_device<int>(COUNT);
    CUDA_CHECK(cudaMallocHost(&p.host, COUNT * sizeof(int)));
    lasting.make(p);
    for (int half = 0; half < 2; half++) {
        p.edges();
        p.removal();
        p.kernels();
        p.driver_kernels();
        p.copies();
        p.variables();
        p.fills_and_calls();
        p.captured();
        p.clones();
        p.switched_off();
        p.any_kind();
        p.any_other_kind();
        p.instantiation();
        p.children();
        p.events();
        p.picture();
        p.stream_attributes();
        p.node_attributes();
        p.cooperation();
        p.captured_attributes();
        p.old_update();
        p.user_objects();
        if (half == 0)
            interlude(argc, argv);
    }
    lasting.use(p);
    return 0;
}
