// refused.cu: what a rank cannot have fails with "not supported", each with one line in the rank's
// log, however often it is called; what only looks like it works.
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <dlfcn.h>

#include "behaviour.h"

static void other_processes(int *device)
{
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t handle;
    cudaEvent_t event;
    void *address;
    FAILS(cudaIpcGetMemHandle(&memory, device), cudaErrorNotSupported);
    FAILS(cudaIpcOpenMemHandle(&address, memory, cudaIpcMemLazyEnablePeerAccess),
          cudaErrorNotSupported);
    FAILS(cudaIpcCloseMemHandle(device), cudaErrorNotSupported);
    FAILS(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
          cudaErrorNotSupported);
    FAILS(cudaIpcGetEventHandle(&handle, nullptr), cudaErrorNotSupported);
    FAILS(cudaIpcOpenEventHandle(&event, handle), cudaErrorNotSupported);
    CUipcMemHandle driver;
    DRIVER_FAILS(cuIpcGetMemHandle(&driver, CUdeviceptr(device)), CUDA_ERROR_NOT_SUPPORTED);
    CUmemGenericAllocationHandle parts[2];  // as PyTorch's expandable segments
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUdeviceptr range, second;
    DRIVER_CHECK(cuMemAddressReserve(&range, 2 << 21, 0, 0, 0));
    DRIVER_CHECK(cuMemAddressReserve(&second, 2 << 21, 0, 0, 0));
    DRIVER_CHECK(cuMemCreate(&parts[0], 1 << 21, &kind, 0));
    DRIVER_CHECK(cuMemCreate(&parts[1], 2 << 21, &kind, 0));
    DRIVER_FAILS(cuMemMap(range, 1 << 21, 0, parts[1], 0), CUDA_ERROR_NOT_SUPPORTED);
    DRIVER_CHECK(cuMemMap(range, 2 << 21, 0, parts[1], 0));
    DRIVER_FAILS(cuMemMap(second, 2 << 21, 0, parts[1], 0), CUDA_ERROR_NOT_SUPPORTED);
    DRIVER_CHECK(cuMemUnmap(range, 2 << 21));
    DRIVER_CHECK(cuMemAddressFree(range, 2 << 21));
    DRIVER_CHECK(cuMemAddressFree(second, 2 << 21));
    DRIVER_CHECK(cuMemRelease(parts[0]));
    DRIVER_CHECK(cuMemRelease(parts[1]));
    DRIVER_FAILS(cuMemExportToShareableHandle(&address, 1, CU_MEM_HANDLE_TYPE_FABRIC, 0),
                 CUDA_ERROR_NOT_SUPPORTED);
}

// Each is in the library, by dlsym and by cuGetProcAddress. They read no argument.
static void parts_of_devices_and_several()
{
    static const char *const names[] = {
        "cuMulticastCreate",        "cuMulticastAddDevice",     "cuMulticastBindMem",
        "cuMulticastBindAddr",      "cuMulticastUnbind",        "cuMulticastGetGranularity",
        "cuGreenCtxCreate",         "cuGreenCtxDestroy",        "cuGreenCtxGetDevResource",
        "cuGreenCtxGetId",          "cuGreenCtxRecordEvent",    "cuGreenCtxWaitEvent",
        "cuGreenCtxStreamCreate",   "cuCtxFromGreenCtx",        "cuCtxGetDevResource",
        "cuDeviceGetDevResource",   "cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount",
    };
    for (const char *name : names) {
        CUdriverProcAddressQueryResult found;
        void *function = nullptr;
        DRIVER_CHECK(cuGetProcAddress(name, &function, CUDA_VERSION, 0, &found));
        EXPECT(function && found == CU_GET_PROC_ADDRESS_SUCCESS, "%s: %d", name, found);
        EXPECT(dlsym(RTLD_DEFAULT, name), "%s", name);
        CUresult got = reinterpret_cast<CUresult (*)()>(function)();
        EXPECT(got == CUDA_ERROR_NOT_SUPPORTED, "%s gives %d", name, got);
    }
}

static void textures(int *device)
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc(32, 16, 8, 4, cudaChannelFormatKindFloat);
    EXPECT(format.x == 32 && format.y == 16 && format.z == 8 && format.w == 4 &&
               format.f == cudaChannelFormatKindFloat,
           "%d %d %d %d", format.x, format.y, format.z, format.w);
    cudaArray_t array;
    CUarray driver;
    CUDA_ARRAY_DESCRIPTOR shape = {};
    FAILS(cudaMallocArray(&array, &format, 64, 64), cudaErrorNotSupported);
    FAILS(cudaMalloc3DArray(&array, &format, make_cudaExtent(4, 4, 4)), cudaErrorNotSupported);
    DRIVER_FAILS(cuArrayCreate(&driver, &shape), CUDA_ERROR_NOT_SUPPORTED);
    cudaTextureObject_t texture;
    cudaSurfaceObject_t surface;
    cudaResourceDesc memory = {};
    cudaTextureDesc how = {};
    memory.resType = cudaResourceTypeLinear;
    memory.res.linear.devPtr = device;
    memory.res.linear.desc = format;
    memory.res.linear.sizeInBytes = sizeof *device;
    FAILS(cudaCreateTextureObject(&texture, &memory, &how, nullptr), cudaErrorNotSupported);
    FAILS(cudaCreateSurfaceObject(&surface, &memory), cudaErrorNotSupported);
}

// Devices may be asked about and chosen; using a second one is refused.
static void second_device(int mine)
{
    int *memory, count, other = 1 - mine, can;
    cudaStream_t stream;
    cudaDeviceProp p;
    CUDA_CHECK(cudaGetDeviceCount(&count));
    EXPECT(count == 2, "%d devices", count);
    CUDA_CHECK(cudaGetDeviceProperties(&p, other));
    CUDA_CHECK(cudaDeviceCanAccessPeer(&can, mine, other));
    EXPECT(!can, "no peer access, and yet it can");
    CUDA_CHECK(cudaSetDevice(other));
    FAILS(cudaMalloc(&memory, 64), cudaErrorNotSupported);
    FAILS(cudaStreamCreate(&stream), cudaErrorNotSupported);
    FAILS(cudaDeviceEnablePeerAccess(mine, 0), cudaErrorPeerAccessUnsupported);
    CUcontext context;
    DRIVER_CHECK(cuDevicePrimaryCtxRetain(&context, other));
    DRIVER_CHECK(cuCtxPushCurrent(context));
    CUdeviceptr address;
    DRIVER_FAILS(cuMemAlloc(&address, 64), CUDA_ERROR_NOT_SUPPORTED);
    DRIVER_CHECK(cuCtxPopCurrent(&context));
    DRIVER_CHECK(cuDevicePrimaryCtxRelease(other));
    CUDA_CHECK(cudaSetDevice(mine));
    FAILS(cudaMemcpyPeer(&can, other, &can, mine, 4), cudaErrorNotSupported);
    CUDA_CHECK(cudaMalloc(&memory, 64));
    CUDA_CHECK(cudaFree(memory));
}

// A graph's own memory; arrays as operands; contexts with a part of the device.
static void parts_of_calls(int *device)
{
    cudaGraph_t graph, captured;
    cudaGraphNode_t node;
    cudaStream_t stream;
    cudaMemAllocNodeParams wanted = {};
    wanted.bytesize = 64;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    FAILS(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted), cudaErrorNotSupported);
    FAILS(cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, device), cudaErrorNotSupported);
    cudaGraphNodeParams any = {}, child = {};
    cudaGraphConditionalHandle handle;
    FAILS(cudaGraphConditionalHandleCreate(&handle, graph), cudaErrorNotSupported);
    any.type = cudaGraphNodeTypeConditional;
    FAILS(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &any), cudaErrorNotSupported);
    child.type = cudaGraphNodeTypeGraph;
    child.graph.graph = graph;
    child.graph.ownership = cudaGraphChildGraphOwnershipMove;
    FAILS(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &child), cudaErrorNotSupported);
    cudaGraphExec_t exec;
    FAILS(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch),
          cudaErrorNotSupported);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    FAILS(cudaFreeAsync(device, stream), cudaErrorStreamCaptureUnsupported);
    FAILS(cudaStreamEndCapture(stream, &captured), cudaErrorStreamCaptureInvalidated);
    cudaMemcpy3DBatchOp op = {};
    op.src.type = cudaMemcpyOperandTypeArray;
    op.dst.type = cudaMemcpyOperandTypePointer;
    op.dst.op.ptr.ptr = device;
    op.extent = make_cudaExtent(4, 1, 1);
    op.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    FAILS(cudaMemcpy3DBatchAsync(1, &op, 0, stream), cudaErrorNotSupported);
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUexecAffinityParam half = {};
    CUctxCreateParams with = {};
    with.execAffinityParams = &half;
    with.numExecAffinityParams = 1;
    CUcontext context;
    DRIVER_FAILS(cuCtxCreate(&context, &with, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
}

// A kernel that the program makes at run time, and that the device cannot have, is not loaded, and
// what follows runs.
static void kernel(int *device)
{
    const char *text = ".version 7.5\n.target sm_75\n.address_size 64\n"
                       ".visible .entry stops_for_a_debugger() { brkpt; ret; }";
    static CUmodule module;
    CUfunction function;
    if (!module)
        DRIVER_CHECK(cuModuleLoadData(&module, text));
    for (int n = 0; n < 2; n++)
        DRIVER_FAILS(cuModuleGetFunction(&function, module, "stops_for_a_debugger"),
                     CUDA_ERROR_NOT_SUPPORTED);
    CUDA_CHECK(cudaMemset(device, 0, sizeof *device));
    CUDA_CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
    World world = start();
    int *device = on_device<int>(1);
    for (int half = 0; half < 2; half++) {
        other_processes(device);
        parts_of_devices_and_several();
        textures(device);
        second_device(world.local_rank);
        parts_of_calls(device);
        kernel(device);
        CUDA_CHECK(cudaProfilerStart());  // of a profiler that is not there
        CUDA_CHECK(cudaProfilerStop());
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
