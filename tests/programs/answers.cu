// answers.cu: what CUDA answers where programs ask for odd things. One rank. It prints each call
// with its error and, where that is another, the thread's last error after it. answers.txt has what
// NVIDIA's own libraries said on a GPU; none of these calls crashes there.
#include <cuda.h>

#include <cstring>
#include <thread>

#include "behaviour.h"

static const char *name(cudaError_t error) { return cudaGetErrorName(error); }
static const char *name(CUresult error)
{
    const char *text = nullptr;
    cuGetErrorName(error, &text);
    return text ? text : "no name";
}
static const char *name(ncclResult_t error)
{
    static const char *names[] = {
        "ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
        "ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress",
    };
    return unsigned(error) < 8 ? names[error] : "no name";
}

template <typename Call>
static void ask(const char *text, Call call)
{
    cudaGetLastError();
    auto got = call();
    cudaError_t last = cudaGetLastError();
    printf("%s: %s", text, name(got));
    if (!std::is_same<decltype(got), cudaError_t>::value ? last != cudaSuccess
                                                         : int(last) != int(got))
        printf(", last error %s", name(last));
    printf("\n");
}
#define ASK(call) ask(#call, [&] { return call; })

__global__ void put(int *to, int value) { *to = value; }
__global__ void __launch_bounds__(128) bounded(int *to) { *to = 1; }
__global__ void dynamic(int *to)
{
    extern __shared__ int room[];
    room[0] = 3;
    *to = room[0];
}
__device__ int table[16];
__constant__ int fixed[16];

constexpr size_t MIB = 1 << 20;

static void allocations(char *device, char *pinned, char *host)
{
    void *p;
    size_t pitch;
    ASK(cudaMalloc(&p, 0));
    ASK(cudaMalloc(nullptr, 16));
    ASK(cudaMalloc(&p, size_t(-1)));
    ASK(cudaMallocHost(&p, 0));
    ASK(cudaHostAlloc(&p, 16, 0x100));
    ASK(cudaMallocManaged(&p, 0));
    ASK(cudaMallocManaged(&p, 16, 7));
    ASK(cudaMallocPitch(&p, &pitch, 0, 4));
    ASK(cudaMallocPitch(&p, &pitch, 4, 0));
    ASK(cudaMalloc3D(nullptr, make_cudaExtent(1, 1, 1)));
    ASK(cudaFree(device + 4));
    ASK(cudaFree(host));
    ASK(cudaFree(pinned));
    ASK(cudaFreeHost(host));
    ASK(cudaFreeHost(device));
    ASK(cudaFreeHost(pinned + 8));
}

static void copies(char *device, char *other, char *pinned, char *host)
{
    ASK(cudaMemcpy(host, device, 0, cudaMemcpyDeviceToHost));
    ASK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault));
    ASK(cudaMemcpy(nullptr, device, 4, cudaMemcpyDeviceToHost));
    ASK(cudaMemcpy(device, nullptr, 4, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy(device, host, 4, cudaMemcpyKind(9)));
    ASK(cudaMemcpy(device, host, 4, cudaMemcpyDeviceToHost));
    ASK(cudaMemcpy(host, device, 4, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy(device, host, 4, cudaMemcpyDeviceToDevice));
    ASK(cudaMemcpy(device, device + 512, 4, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy(device, device + 512, 4, cudaMemcpyHostToHost));
    ASK(cudaMemcpy(device, host, 4, cudaMemcpyDefault));
    ASK(cudaMemcpyAsync(device, host, 4, cudaMemcpyDeviceToHost, 0));
    ASK(cudaMemcpy(other + 4 * MIB - 4, host, 8, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy(host, other + 4 * MIB - 4, 8, cudaMemcpyDeviceToHost));
    ASK(cudaMemset(other + 4 * MIB - 4, 0, 8));
    ASK(cudaMemset(nullptr, 0, 0));
    ASK(cudaMemset(nullptr, 0, 4));
    ASK(cudaMemset(host, 0, 4));
    ASK(cudaMemset(pinned, 0, 4));
    ASK(cudaMemsetAsync(nullptr, 0, 4, 0));
    ASK(cudaMemset2D(other, 16, 0, 32, 4));
    ASK(cudaMemset2D(other, 16, 0, 0, 4));
    ASK(cudaMemcpy2D(other, 16, host, 4, 8, 2, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy2D(other, 4, host, 16, 8, 2, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy2D(other, 16, host, 16, 0, 2, cudaMemcpyHostToDevice));
    ASK(cudaMemcpy2D(other, 16, host, 16, 8, 0, cudaMemcpyHostToDevice));
    cudaMemcpy3DParms box = {};
    ASK(cudaMemcpy3D(&box));
    ASK(cudaMemcpy3D(nullptr));
    box.kind = cudaMemcpyHostToDevice;
    ASK(cudaMemcpy3D(&box));
    box.extent = make_cudaExtent(4, 1, 1);
    ASK(cudaMemcpy3D(&box));
    ASK(cudaMemcpyPeer(device, 0, other, 0, 4));
    ASK(cudaMemcpyPeer(device, 0, other, 99, 4));
}

static void host_memory(char *device, char *pinned, char *host)
{
    void *p;
    size_t pitch;
    ASK(cudaMemGetInfo(nullptr, &pitch));
    ASK(cudaHostRegister(nullptr, 16, 0));
    ASK(cudaHostRegister(pinned, 16, 0));
    ASK(cudaHostUnregister(pinned));
    ASK(cudaHostUnregister(host));
    ASK(cudaHostUnregister(nullptr));
    ASK(cudaHostGetDevicePointer(&p, device, 0));
    ASK(cudaHostGetDevicePointer(&p, pinned, 5));
    ASK(cudaHostGetDevicePointer(&p, nullptr, 0));
    unsigned flags;
    ASK(cudaHostGetFlags(&flags, device));
    ASK(cudaHostGetFlags(&flags, host));
}

static void attributes(char *device, char *other, char *pinned, char *host)
{
    char *null = nullptr;
    cudaPointerAttributes of;
    for (auto [what, at] : {std::pair<const char *, void *>{"device", device}, {"pinned", pinned},
                            {"the middle", other + MIB}, {"host", host}, {"null", null},
                            {"one behind the end", other + 4 * MIB}}) {
        memset(&of, 0xff, sizeof of);
        cudaError_t error = cudaPointerGetAttributes(&of, at);
        printf("attributes of %s: %s, type %d, device %d, %s, %s\n", what, name(error),
               int(of.type), of.device, of.devicePointer == at ? "its address" : "no address",
               of.hostPointer == at ? "the host's address" : "no address of the host");
    }
    ASK(cudaPointerGetAttributes(nullptr, device));
    ASK(cudaMemPrefetchAsync(device, 4, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, 0));
    ASK(cudaMemAdvise(device, 4, cudaMemAdviseSetReadMostly,
                      cudaMemLocation{cudaMemLocationTypeDevice, 0}));
}

static void memory()
{
    char *device, *other, *pinned, host[64] = {};
    CUDA_CHECK(cudaMalloc(&device, 1000));
    CUDA_CHECK(cudaMalloc(&other, 4 * MIB));
    CUDA_CHECK(cudaMallocHost(&pinned, 4096));
    allocations(device, pinned, host);
    copies(device, other, pinned, host);
    host_memory(device, pinned, host);
    attributes(device, other, pinned, host);
    CUDA_CHECK(cudaFree(device));
    ASK(cudaFree(device));
    ASK(cudaMemset(device, 0, 4));
    CUDA_CHECK(cudaFreeHost(pinned));
    ASK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFree(other));
}

static void streams_and_events()
{
    cudaStream_t stream, s;
    cudaEvent_t event, plain, later, e;
    float ms;
    int least, greatest;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaEventCreate(&later));
    CUDA_CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    ASK(cudaStreamCreate(nullptr));
    ASK(cudaStreamCreateWithFlags(&s, 0x55));
    ASK(cudaStreamCreateWithPriority(&s, 0, least + 5));
    ASK(cudaStreamCreateWithPriority(&s, 0, greatest - 5));
    ASK(cudaStreamDestroy(0));
    ASK(cudaStreamDestroy(cudaStreamLegacy));
    ASK(cudaEventCreateWithFlags(&e, 0x100));
    ASK(cudaEventCreate(nullptr));
    ASK(cudaEventDestroy(nullptr));
    ASK(cudaEventQuery(nullptr));
    ASK(cudaEventRecord(nullptr, stream));
    ASK(cudaEventRecordWithFlags(event, stream, 0x77));
    ASK(cudaEventQuery(event));
    ASK(cudaEventSynchronize(event));
    ASK(cudaStreamWaitEvent(stream, event, 0));
    ASK(cudaStreamWaitEvent(stream, event, 0x77));
    ASK(cudaStreamWaitEvent(stream, nullptr, 0));
    ASK(cudaEventElapsedTime(&ms, event, event));
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaEventRecord(plain, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    ASK(cudaEventElapsedTime(&ms, event, plain));
    ASK(cudaEventElapsedTime(&ms, event, later));
    ASK(cudaEventElapsedTime(nullptr, event, event));
    ASK(cudaEventElapsedTime(&ms, nullptr, event));
    ASK(cudaLaunchHostFunc(stream, nullptr, nullptr));
    ASK(cudaStreamAddCallback(stream, nullptr, nullptr, 0));
    ASK(cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t, void *) {}, nullptr, 3));
    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    CUDA_CHECK(cudaEventRecord(later, stream));
    ASK(cudaStreamQuery(stream));
    ASK(cudaEventQuery(later));
    ASK(cudaEventElapsedTime(&ms, event, later));
    ASK(cuStreamQuery(stream));
    ASK(cuEventQuery(later));
    cudaMalloc(nullptr, 1);
    cudaStreamQuery(stream);
    printf("the last error, after a query: %s\n", name(cudaGetLastError()));
    gate.open = true;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    ASK(cudaStreamBeginCapture(stream, cudaStreamCaptureMode(9)));
    ASK(cudaStreamEndCapture(stream, nullptr));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Prints the error that a launch leaves.
#define LAUNCH(...) ask(#__VA_ARGS__, [&] { __VA_ARGS__; return cudaPeekAtLastError(); })

static void launches()
{
    int *device = on_device<int>(64), value = 6, blocks, block, limit;
    void *args[] = {&device, &value};
    cudaFuncAttributes of;
    CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    LAUNCH(put<<<0, 1>>>(device, 1));
    LAUNCH(put<<<1, 0>>>(device, 1));
    LAUNCH(put<<<1, 2000>>>(device, 1));
    LAUNCH(put<<<dim3(1, 70000), 1>>>(device, 1));
    LAUNCH(put<<<1, dim3(1, 1, 65)>>>(device, 1));
    LAUNCH(put<<<1, dim3(64, 64)>>>(device, 1));
    LAUNCH(put<<<1, 1, 1 << 20>>>(device, 1));
    EXPECT(fetch(device, 1)[0] == 0, "a refused launch wrote");
    LAUNCH(dynamic<<<1, 1, 48 * 1024>>>(device));
    LAUNCH(dynamic<<<1, 1, 48 * 1024 + 4>>>(device));
    LAUNCH(bounded<<<1, 128>>>(device));
    LAUNCH(bounded<<<1, 129>>>(device));
    LAUNCH(bounded<<<1, 1024>>>(device));
    CUDA_CHECK(cudaDeviceSynchronize());
    ASK(cudaLaunchKernel(&value, 1, 1, args, 0, 0));
    ASK(cudaLaunchKernel(nullptr, 1, 1, args, 0, 0));
    ASK(cudaLaunchKernel((void *)put, 0, 1, args, 0, 0));
    ASK(cudaLaunchCooperativeKernel(&value, 1, 1, args, 0, 0));
    ASK(cudaLaunchCooperativeKernel((void *)put, 0, 1, args, 0, 0));
    ASK(cudaLaunchCooperativeKernel((void *)put, 1 << 20, 1, args, 0, 0));
    ASK(cudaFuncGetAttributes(&of, &value));
    ASK(cudaFuncGetAttributes(nullptr, put));
    ASK(cudaFuncGetAttributes(&of, bounded));
    printf("threads of a bounded kernel: %d\n", of.maxThreadsPerBlock);
    ASK(cudaFuncSetCacheConfig(&value, cudaFuncCachePreferL1));
    ASK(cudaFuncSetCacheConfig(put, cudaFuncCache(17)));
    ASK(cudaFuncSetAttribute(&value, cudaFuncAttributeMaxDynamicSharedMemorySize, 64));
    ASK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
    ASK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, -1));
    ASK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
    ASK(cudaFuncSetAttribute(dynamic, cudaFuncAttribute(77), 1));
    ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &value, 32, 0));
    ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, put, 0, 0));
    ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, put, 5000, 0));
    ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 129, 0));
    printf("blocks of more than the bound: %d\n", blocks);
    ASK(cudaOccupancyMaxPotentialBlockSize(&blocks, &block, bounded));
    printf("the best block of a bounded kernel: %d\n", block);
    CUDA_CHECK(cudaFree(device));
}

static void symbols()
{
    int host[64] = {};
    void *at;
    size_t bytes;
    ASK(cudaMemcpyToSymbol(table, host, sizeof table));
    ASK(cudaMemcpyToSymbol(table, host, sizeof table + 1));
    ASK(cudaMemcpyToSymbol(table, host, 8, sizeof table - 4));
    ASK(cudaMemcpyToSymbol(fixed, host, sizeof fixed, 0, cudaMemcpyDeviceToHost));
    ASK(cudaMemcpyFromSymbol(host, fixed, sizeof fixed, 0, cudaMemcpyHostToDevice));
    ASK(cudaMemcpyToSymbol(host, host, 4));
    ASK(cudaGetSymbolAddress(&at, host));
    ASK(cudaGetSymbolAddress(&at, nullptr));
    ASK(cudaGetSymbolSize(&bytes, host));
    ASK(cudaGetSymbolSize(&bytes, table));
}

static void devices()
{
    int value;
    size_t bytes;
    cudaDeviceProp properties;
    CUdevice device;
    char text[8];
    const char *error;
    ASK(cudaSetDevice(99));
    ASK(cudaSetDevice(-1));
    ASK(cudaGetDevice(nullptr));
    ASK(cudaGetDeviceCount(nullptr));
    ASK(cudaGetDeviceProperties(&properties, 99));
    ASK(cudaDeviceGetAttribute(&value, cudaDeviceAttr(9999), 0));
    ASK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99));
    ASK(cudaDeviceSetLimit(cudaLimit(99), 1));
    ASK(cudaDeviceGetLimit(&bytes, cudaLimit(99)));
    ASK(cudaDeviceSetCacheConfig(cudaFuncCache(17)));
    ASK(cudaSetDeviceFlags(0x400));
    ASK(cudaDeviceCanAccessPeer(&value, 0, 0));
    ASK(cudaDeviceCanAccessPeer(&value, 0, 99));
    ASK(cudaDeviceEnablePeerAccess(0, 0));
    ASK(cudaDeviceDisablePeerAccess(0));
    ASK(cuDeviceGet(&device, 99));
    ASK(cuDeviceGetName(text, 2, 0));
    ASK(cuGetErrorName(CUresult(12345), &error));
    ASK(cuDeviceGetAttribute(&value, CUdevice_attribute(9999), 0));
    printf("a name of no error: %s, %s\n", cudaGetErrorName(cudaError_t(12345)),
           cudaGetErrorString(cudaError_t(12345)));
}

static void packed_parameters(CUfunction function, CUdeviceptr at)
{
    int value = 5;
    size_t bytes;
    struct { CUdeviceptr at; int value, more[5]; } packed = {at, 5, {}};
    void *args[] = {&at, &value};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    for (size_t given : {8, 11, 12, 16, 24}) {
        bytes = given;
        printf("%zu bytes of 12: ", given);
        ASK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, extra));
    }
    bytes = 12;
    ASK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, args, extra));
    ASK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
    ASK(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, 0, args, nullptr));
    ASK(cuLaunchKernel(function, 1, 1, 1, 2000, 1, 1, 0, 0, args, nullptr));
    ASK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, 0, args, nullptr));
}

static void driver()
{
    CUdeviceptr at;
    CUmodule module;
    CUfunction function, runtime;
    CUcontext context;
    size_t bytes;
    int value;
    char host[16] = {};
    const char *ptx =
        ".version 7.5\n.target sm_75\n.address_size 64\n.global .u32 seen;\n.visible .entry "
        "put(.param .u64 at, .param .u32 value)\n{\n.reg .b64 %rd; .reg .b32 %r;\nld.param.u64 "
        "%rd, [at];\nld.param.u32 %r, [value];\nst.global.u32 [%rd], %r;\nret;\n}\n";
    ASK(cuMemAlloc(&at, 0));
    ASK(cuMemAlloc(&at, size_t(-1)));
    ASK(cuMemAlloc(nullptr, 4));
    ASK(cuMemFree(0));
    CUDA_CHECK(cudaMalloc((void **)&at, 4 * MIB));
    ASK(cuMemFree(at + 8));
    ASK(cuMemcpyDtoH(host, at + 4 * MIB - 4, 8));
    ASK(cuMemcpyHtoD(at, nullptr, 4));
    ASK(cuMemcpyHtoD(0, host, 4));
    ASK(cuMemcpyDtoD(at, at + MIB, 0));
    ASK(cuMemsetD32(at + 2, 0, 1));
    ASK(cuMemsetD16(at + 1, 0, 1));
    ASK(cuMemsetD8(at, 0, 0));
    ASK(cuMemHostAlloc((void **)&at, 0, 0));
    ASK(cuMemFreeHost(host));
    ASK(cuStreamDestroy(nullptr));
    ASK(cuEventDestroy(nullptr));
    ASK(cuModuleLoadData(&module, "this is not PTX"));
    ASK(cuModuleLoadData(&module, ".version 7.5\n.target sm_75\n.address_size 64\nnonsense\n"));
    ASK(cuModuleLoadData(&module, nullptr));
    ASK(cuModuleLoad(&module, "/does/not/exist"));
    ASK(cuModuleLoadData(&module, ptx));
    ASK(cuModuleGetFunction(&function, module, "nobody"));
    ASK(cuModuleGetFunction(&function, module, "seen"));
    ASK(cuModuleGetGlobal(&at, &bytes, module, "nothing"));
    ASK(cuModuleGetGlobal(&at, &bytes, module, "put"));
    ASK(cuModuleGetGlobal(nullptr, nullptr, module, "seen"));
    ASK(cuModuleGetFunction(&function, module, "put"));
    CUDA_CHECK(cudaMalloc((void **)&at, 4 * MIB));
    packed_parameters(function, at);
    ASK(cuFuncSetAttribute(function, CUfunction_attribute(99), 1));
    ASK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
    ASK(cuFuncGetAttribute(&value, CUfunction_attribute(99), function));
    ASK(cuCtxSynchronize());
    ASK(cuModuleUnload(module));
    ASK(cuCtxSetLimit(CUlimit(99), 1));
    ASK(cuCtxGetCurrent(nullptr));
    ASK(cuCtxPopCurrent(&context));
    ASK(cuCtxPopCurrent(&context));
    ASK(cuMemAlloc(&at, 4));
    ASK(cudaDeviceSynchronize());
    ASK(cudaGetFuncBySymbol(&runtime, &value));
}

// A copy of pageable memory in a graph: when is it read? Its host changes it in a host function
// before the copy (40 more), and right after the launch (1000 more).
static void pageable_in_graphs()
{
    constexpr size_t edge = 64 * 1024;
    for (size_t bytes : {size_t(4), edge - sizeof(int), edge + sizeof(int), MIB, 64 * MIB}) {
        std::vector<int> values(bytes / 4, 2);
        static int *shared;
        static size_t at;
        shared = values.data();
        at = values.size() - 1;
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        int *device = on_device<int>(values.size()), got;
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        CUDA_CHECK(cudaLaunchHostFunc(stream, [](void *) { usleep(50000); shared[at] += 40; },
                                      nullptr));
        CUDA_CHECK(cudaMemcpyAsync(device, values.data(), bytes, cudaMemcpyHostToDevice, stream));
        CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        for (int k = 0; k < 2; k++) {
            CUDA_CHECK(cudaGraphLaunch(exec, stream));
            shared[at] += 1000;
            CUDA_CHECK(cudaStreamSynchronize(stream));
            CUDA_CHECK(cudaMemcpy(&got, device + at, 4, cudaMemcpyDeviceToHost));
            printf("launch %d of a graph copies %zu bytes that end with %d\n", k, bytes, got);
        }
        CUDA_CHECK(cudaGraphExecDestroy(exec));
        CUDA_CHECK(cudaGraphDestroy(graph));
        CUDA_CHECK(cudaFree(device));
    }
}

static void nccl(ncclComm_t comm)
{
    int *data = on_device<int>(64);
    ncclComm_t other;
    ncclUniqueId id;
    int value;
    NCCL_CHECK(ncclGetUniqueId(&id));
    ASK(ncclCommInitRank(&other, 0, id, 0));
    ASK(ncclCommInitRank(&other, 1, id, 1));
    ASK(ncclCommInitRank(&other, 1, id, -1));
    ASK(ncclCommInitRank(nullptr, 1, id, 0));
    ASK(ncclAllReduce(data, data, 0, ncclInt, ncclSum, comm, 0));
    ASK(ncclAllReduce(nullptr, nullptr, 0, ncclInt, ncclSum, comm, 0));
    ASK(ncclAllReduce(nullptr, data, 4, ncclInt, ncclSum, comm, 0));
    ASK(ncclAllReduce(data, data, 4, ncclDataType_t(99), ncclSum, comm, 0));
    ASK(ncclAllReduce(data, data, 4, ncclInt, ncclRedOp_t(99), comm, 0));
    ASK(ncclAllReduce(data, data, 4, ncclInt, ncclSum, nullptr, 0));
    ASK(ncclBroadcast(data, data, 4, ncclInt, 1, comm, 0));
    ASK(ncclReduce(data, data, 4, ncclInt, ncclSum, -1, comm, 0));
    ASK(ncclSend(data, 4, ncclInt, 1, comm, 0));
    ASK(ncclSend(data, 4, ncclInt, 0, comm, 0));
    ASK(ncclGroupEnd());
    ASK(ncclCommCount(comm, nullptr));
    ASK(ncclCommCount(nullptr, &value));
    ASK(ncclCommUserRank(comm, &value));
    ASK(ncclCommDestroy(nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
}

// ---- captures: their end by whom it is not, and what ends them ----

static cudaStream_t first, second;
static cudaEvent_t event;
static cudaGraph_t graph;
static int *data;

static void begin(cudaStreamCaptureMode mode) { CUDA_CHECK(cudaStreamBeginCapture(first, mode)); }

static void now(const char *what)
{
    cudaStreamCaptureStatus status;
    CUDA_CHECK(cudaStreamIsCapturing(first, &status));
    printf("%s: status %d\n", what, int(status));
}

static void end()
{
    graph = reinterpret_cast<cudaGraph_t>(&graph);
    ASK(cudaStreamEndCapture(first, &graph));
    printf("a graph: %d\n", graph != nullptr);
    graph = nullptr;
}

static void endings()
{
    begin(cudaStreamCaptureModeRelaxed);
    CUDA_CHECK(cudaEventRecord(event, first));
    CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
    put<<<1, 1, 0, second>>>(data, 1);
    ASK(cudaStreamEndCapture(second, &graph));
    now("ended where it had not begun");
    end();
    now("then ended");
    begin(cudaStreamCaptureModeRelaxed);
    CUDA_CHECK(cudaEventRecord(event, first));
    CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
    put<<<1, 1, 0, second>>>(data, 1);
    end();
    now("ended unjoined");
}

static void endings(cudaStreamCaptureMode mode)
{
    begin(mode);
    std::thread([&] { ASK(cudaStreamEndCapture(first, &graph)); }).join();
    now("ended by another thread");
    end();
    begin(mode);
    ASK(cudaStreamSynchronize(first));
    now("waited for");
    ASK(cudaStreamSynchronize(first));
    ASK(cudaStreamQuery(first));
    std::thread([&] { ASK(cudaStreamEndCapture(first, &graph)); }).join();
    now("ended by another thread when it was invalid");
    end();
}

template <typename Call>
static void during(cudaStreamCaptureMode mode, const char *what, Call call)
{
    begin(mode);
    ask(what, call);
    now(what);
    end();
}

static void unsafe_calls(cudaStreamCaptureMode mode)
{
    void *memory = nullptr;
    int host[4];
    during(mode, "cudaMalloc", [&] { return cudaMalloc(&memory, 512); });
    during(mode, "cudaFree", [&] { return cudaFree(memory); });
    during(mode, "cudaMallocHost", [&] { return cudaMallocHost(&memory, 512); });
    during(mode, "cudaFreeHost", [&] { return cudaFreeHost(memory); });
    during(mode, "cudaMemcpy", [&] { return cudaMemcpy(host, data, 4, cudaMemcpyDeviceToHost); });
    during(mode, "cudaMemset", [&] { return cudaMemset(data, 0, 4); });
    during(mode, "cudaDeviceSynchronize", [&] { return cudaDeviceSynchronize(); });
    during(mode, "another's synchronisation", [&] { return cudaStreamSynchronize(second); });
    during(mode, "another's query", [&] { return cudaStreamQuery(second); });
    during(mode, "cudaEventQuery", [&] { return cudaEventQuery(event); });
    during(mode, "cudaEventCreate", [&] { cudaEvent_t e; return cudaEventCreate(&e); });
    during(mode, "cudaStreamCreate", [&] { cudaStream_t s; return cudaStreamCreate(&s); });
    during(mode, "cudaMemcpyToSymbol", [&] { return cudaMemcpyToSymbol(table, host, 4); });
    during(mode, "cudaFuncGetAttributes", [&] {
        cudaFuncAttributes of;
        return cudaFuncGetAttributes(&of, put);
    });
    during(mode, "the legacy stream", [&] {
        put<<<1, 1>>>(data, 1);
        return cudaPeekAtLastError();
    });
}

static void events_of_captures()
{
    begin(cudaStreamCaptureModeRelaxed);
    CUDA_CHECK(cudaEventRecord(event, first));
    ASK(cudaEventQuery(event));
    now("an event of it asked");
    end();
    ASK(cudaEventQuery(event));
    ASK(cudaEventSynchronize(event));
    ASK(cudaStreamWaitEvent(second, event, 0));
    begin(cudaStreamCaptureModeRelaxed);
    CUDA_CHECK(cudaEventRecord(event, first));
    end();
    ASK(cudaEventQuery(event));
    ASK(cudaEventSynchronize(event));
    ASK(cudaStreamWaitEvent(second, event, 0));
    float ms;
    ASK(cudaEventElapsedTime(&ms, event, event));
    ASK(cudaStreamSynchronize(second));
}

static void captures()
{
    data = on_device<int>(64);
    CUDA_CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    endings();
    for (auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                      cudaStreamCaptureModeRelaxed}) {
        endings(mode);
        unsafe_calls(mode);
    }
    events_of_captures();
}

// A fault stays.
static void faults()
{
    int *device = on_device<int>(4);
    put<<<1, 1>>>((int *)16, 1);
    printf("the launch: %s\n", name(cudaGetLastError()));
    cudaError_t first = cudaDeviceSynchronize(), peeked = cudaPeekAtLastError();
    printf("the wait: %s, peek %s\n", name(first), name(peeked));
    for (int i = 0; i < 3; i++)
        printf("last error %d: %s\n", i, name(cudaGetLastError()));
    printf("peek: %s\n", name(cudaPeekAtLastError()));
    ASK(cudaDeviceSynchronize());
    ASK(cudaMalloc((void **)&device, 16));
    ASK(cudaStreamQuery(0));
    LAUNCH(put<<<1, 1>>>(device, 1));
    int value;
    ASK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    ASK(cudaFree(device));
    ASK(cuCtxSynchronize());
    ASK(cudaGetDevice(&value));
    ASK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    std::thread([] {
        printf("another thread's last error: %s\n", name(cudaPeekAtLastError()));
        ASK(cudaDeviceSynchronize());
    }).join();
}

int main()
{
    ncclComm_t comm;
    start(&comm);
    memory();
    streams_and_events();
    launches();
    symbols();
    devices();
    captures();
    pageable_in_graphs();
    nccl(comm);
    driver();
    cudaSetDevice(0);
    faults();
}
