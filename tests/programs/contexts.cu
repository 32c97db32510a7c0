// contexts.cu: several contexts of one device: which is current, what is made in one and ends with
// it, and what a reset of the device leaves.
#include <cuda.h>

#include <algorithm>
#include <string>
#include <thread>

#include "behaviour.h"

constexpr size_t BYTES = 4 << 20;
constexpr int COUNT = BYTES / sizeof(int);
static const char *PTX = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 kept = 5;
.visible .entry nothing() { ret; }
)";

__device__ int variable = 3;

__global__ void change(int *to, int count, int what)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = variable + what;
    if (i == 0)
        variable += 100;
}

static size_t free_bytes()
{
    size_t free, total;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
}

static CUcontext now()
{
    CUcontext context;
    DRIVER_CHECK(cuCtxGetCurrent(&context));
    return context;
}

// One of everything, made in the context that is current.
struct Things {
    CUcontext context = now();
    CUdeviceptr memory;
    void *pinned;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUfunction function;

    Things()
    {
        DRIVER_CHECK(cuMemAlloc(&memory, BYTES));
        DRIVER_CHECK(cuMemHostAlloc(&pinned, BYTES, 0));
        DRIVER_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DRIVER_CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        DRIVER_CHECK(cuModuleLoadData(&module, PTX));
        DRIVER_CHECK(cuModuleGetFunction(&function, module, "nothing"));
    }
    void work(int value)
    {
        CUcontext found;
        DRIVER_CHECK(cuMemsetD32Async(memory, value, COUNT, stream));
        DRIVER_CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
        DRIVER_CHECK(cuMemcpyDtoHAsync(pinned, memory, BYTES, stream));
        DRIVER_CHECK(cuEventRecord(event, stream));
        DRIVER_CHECK(cuStreamGetCtx(stream, &found));
        EXPECT(found == context, "the stream is in another context");
        DRIVER_CHECK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
        EXPECT(found == context, "the memory is in another context");
        DRIVER_CHECK(cuEventSynchronize(event));
        for (int i = 0; i < COUNT; i++)
            EXPECT(((int *)pinned)[i] == value, "[%d] is %d", i, ((int *)pinned)[i]);
    }
    void expect_gone()
    {
        unsigned type;
        DRIVER_FAILS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
        DRIVER_FAILS(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
        if (now()) {
            DRIVER_FAILS(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
            DRIVER_FAILS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr),
                         CUDA_ERROR_INVALID_HANDLE);
            DRIVER_FAILS(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
        }
        DRIVER_FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           CUdeviceptr(pinned)), CUDA_ERROR_INVALID_VALUE);
    }
};

static void nested(CUdevice device)
{
    CUcontext primary = now(), first, second, popped;
    unsigned flags;
    unsigned long long ids[3];
    size_t before = free_bytes();
    DRIVER_CHECK(cuCtxCreate(&first, nullptr, 0, device));
    EXPECT(now() == first && first != primary, "a new context is not current");
    Things outer;
    outer.work(1);
    DRIVER_CHECK(cuCtxCreate(&second, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, device));
    EXPECT(now() == second && second != first, "the second is not current");
    DRIVER_CHECK(cuCtxGetFlags(&flags));
    EXPECT(flags == CU_CTX_SCHED_BLOCKING_SYNC, "its flags are %u", flags);
    DRIVER_CHECK(cuCtxGetId(primary, &ids[0]));
    DRIVER_CHECK(cuCtxGetId(first, &ids[1]));
    DRIVER_CHECK(cuCtxGetId(second, &ids[2]));
    EXPECT(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "contexts of one number");
    Things inner;
    inner.work(2);
    DRIVER_CHECK(cuMemcpyDtoD(inner.memory, outer.memory, BYTES));  // one address space
    DRIVER_CHECK(cuCtxPopCurrent(&popped));
    EXPECT(popped == second && now() == first, "not the one below");
    DRIVER_CHECK(cuCtxPushCurrent(second));
    DRIVER_CHECK(cuCtxDestroy(second));
    EXPECT(now() == first, "a context that has gone is current");
    inner.expect_gone();
    outer.work(3);
    DRIVER_FAILS(cuCtxDestroy(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    DRIVER_FAILS(cuCtxSetCurrent(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    DRIVER_CHECK(cuCtxSetCurrent(primary));  // in the place of the first
    DRIVER_CHECK(cuCtxDestroy(first));       // while it is not current
    outer.expect_gone();
    EXPECT(now() == primary, "the primary context is not current");
    DRIVER_FAILS(cuCtxDestroy(primary), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(free_bytes() == before, "%zu bytes are lost", before - free_bytes());
}

// A reset frees the runtime's objects, but not memory that is in a pool, registered or in another
// context.
static void reset(CUdevice device, CUcontext other)
{
    CUcontext primary = now();
    int *memory, *pinned, *pooled, value, *own = (int *)aligned_alloc(4096, 4096);
    cudaStream_t stream;
    cudaEvent_t event;
    DRIVER_CHECK(cuCtxPushCurrent(other));
    Things kept;
    DRIVER_CHECK(cuCtxPopCurrent(&other));
    *own = 77;
    CUDA_CHECK(cudaHostRegister(own, 4096, cudaHostRegisterDefault));
    CUDA_CHECK(cudaMallocAsync(&pooled, BYTES, 0));
    CUDA_CHECK(cudaMemset(pooled, 1, BYTES));
    size_t before = free_bytes();
    CUDA_CHECK(cudaMalloc(&memory, BYTES));
    CUDA_CHECK(cudaMallocHost(&pinned, BYTES));
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaEventCreate(&event));
    change<<<COUNT / 256, 256, 0, stream>>>(memory, COUNT, 0);
    CUDA_CHECK(cudaMemcpyAsync(pinned, memory, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpyFromSymbol(&value, variable, sizeof value));
    EXPECT(value == 103 && pinned[0] == 3, "before: %d, %d", value, pinned[0]);
    CUDA_CHECK(cudaDeviceReset());
    FAILS(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    FAILS(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    FAILS(cudaFree(memory), cudaErrorInvalidValue);
    FAILS(cudaFreeHost(pinned), cudaErrorInvalidValue);
    EXPECT(free_bytes() >= before, "%zu bytes are lost", before - free_bytes());
    CUDA_CHECK(cudaMemcpyFromSymbol(&value, variable, sizeof value));
    EXPECT(value == 3, "the variable is %d", value);  // as at first
    CUDA_CHECK(cudaMalloc(&memory, BYTES));
    change<<<COUNT / 256, 256>>>(memory, COUNT, 1);
    CUDA_CHECK(cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost));
    EXPECT(value == 4, "after: %d", value);
    CUDA_CHECK(cudaMemcpy(&value, pooled, sizeof value, cudaMemcpyDeviceToHost));
    EXPECT(value == 0x01010101 && *own == 77, "what had to stay: %x, %d", value, *own);
    kept.work(4);
    CUDA_CHECK(cudaFreeAsync(pooled, 0));
    CUDA_CHECK(cudaHostUnregister(own));
    DRIVER_CHECK(cuDevicePrimaryCtxReset(device));
    FAILS(cudaFree(memory), cudaErrorInvalidValue);
    CUDA_CHECK(cudaDeviceReset());
    kept.work(5);
    EXPECT(now() == primary, "the primary context is not current");
    DRIVER_FAILS(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);  // until it is used again
    CUDA_CHECK(cudaFree(nullptr));
    DRIVER_CHECK(cuCtxSynchronize());
    free(own);
}

// A library is of no context: a reset leaves its kernels, and its variables as they were at first,
// also if the program has freed the code.
static void libraries_stay(CUdevice device)
{
    CUlibrary library, unused;
    CUkernel kernel;
    CUdeviceptr address;
    size_t bytes;
    int value = 6;
    std::string code = PTX;
    DRIVER_CHECK(cuLibraryLoadData(&library, code.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0));
    DRIVER_CHECK(cuLibraryLoadData(&unused, code.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0));
    std::fill(code.begin(), code.end(), 'x');
    DRIVER_CHECK(cuLibraryGetKernel(&kernel, library, "nothing"));
    DRIVER_CHECK(cuLibraryGetGlobal(&address, &bytes, library, "kept"));
    DRIVER_CHECK(cuMemcpyHtoD(address, &value, sizeof value));
    DRIVER_FAILS(cuLibraryGetManaged(&address, &bytes, library, "kept"), CUDA_ERROR_NOT_FOUND);
    size_t before = free_bytes();
    CUDA_CHECK(cudaDeviceReset());
    CUDA_CHECK(cudaFree(nullptr));
    DRIVER_CHECK(cuLaunchKernel(CUfunction(kernel), 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
    DRIVER_CHECK(cuLibraryGetGlobal(&address, &bytes, library, "kept"));
    DRIVER_CHECK(cuMemcpyDtoH(&value, address, sizeof value));
    EXPECT(value == 5, "the library's variable is %d", value);
    DRIVER_CHECK(cuLibraryUnload(library));
    DRIVER_CHECK(cuLibraryUnload(unused));
    DRIVER_FAILS(cuLibraryUnload(unused), CUDA_ERROR_INVALID_HANDLE);
    DRIVER_FAILS(cuLaunchKernel(CUfunction(kernel), 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr),
                 CUDA_ERROR_INVALID_HANDLE);
    EXPECT(free_bytes() >= before, "%zu bytes are lost", before - free_bytes());
}

// How threads wait may be asked for, of the primary context before it is used as well.
static void flags_are_told(CUdevice device)
{
    unsigned flags;
    int active;
    CUDA_CHECK(cudaGetDeviceFlags(&flags));
    EXPECT(flags == cudaDeviceMapHost, "they begin as %u", flags);
    CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    CUDA_CHECK(cudaGetDeviceFlags(&flags));
    EXPECT(flags == (cudaDeviceScheduleBlockingSync | cudaDeviceMapHost), "they are %u", flags);
    DRIVER_CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(flags == CU_CTX_SCHED_BLOCKING_SYNC, "the primary context's are %u", flags);
    DRIVER_CHECK(cuCtxGetFlags(&flags));
    EXPECT(flags == (CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST), "the current one's are %u",
           flags);
    DRIVER_CHECK(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_SPIN));
    DRIVER_CHECK(cuCtxGetFlags(&flags));
    EXPECT(flags == (CU_CTX_SCHED_SPIN | CU_CTX_MAP_HOST), "the current one's are %u", flags);
    FAILS(cudaSetDeviceFlags(0x400), cudaErrorInvalidValue);
    FAILS(cudaSetDeviceFlags(cudaDeviceScheduleSpin | cudaDeviceScheduleYield),
          cudaErrorInvalidValue);
    DRIVER_FAILS(cuCtxSetFlags(0x400), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuCtxSetFlags(0));
}

// Which context is current is each thread's own matter.
static void elsewhere(CUdevice device, CUcontext primary, CUcontext other, Things *of_other)
{
    CUdeviceptr memory;
    CUcontext found;
    EXPECT(now() == nullptr, "a thread begins with a context");
    DRIVER_FAILS(cuMemAlloc(&memory, BYTES), CUDA_ERROR_INVALID_CONTEXT);
    DRIVER_FAILS(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    DRIVER_FAILS(cuMemsetD32Async(of_other->memory, 1, COUNT, 0), CUDA_ERROR_INVALID_CONTEXT);
    of_other->work(6);  // in a stream that is in a context
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT(now() != nullptr, "the runtime has made no context current");
    CUDA_CHECK(cudaSetDevice(device));
    EXPECT(now() == primary, "not the primary context of its device");
    DRIVER_CHECK(cuMemAlloc(&memory, BYTES));
    DRIVER_CHECK(cuMemFree(memory));
    DRIVER_CHECK(cuCtxSetCurrent(other));
    std::thread([other] { DRIVER_CHECK(cuCtxDestroy(other)); }).join();
    EXPECT(now() == other, "it is not current any more");
    DRIVER_FAILS(cuMemAlloc(&memory, BYTES), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    FAILS(cudaDeviceSynchronize(), cudaErrorContextIsDestroyed);
    DRIVER_CHECK(cuCtxPopCurrent(&found));
    EXPECT(found == other && now() == nullptr, "it is not the last");
    of_other->expect_gone();
}

static void other_threads(CUdevice device)
{
    CUcontext primary = now(), other;
    DRIVER_CHECK(cuCtxCreate(&other, nullptr, 0, device));
    Things things;
    DRIVER_CHECK(cuCtxPopCurrent(&other));
    std::thread(elsewhere, device, primary, other, &things).join();
}

int main(int argc, char **argv)
{
    start();
    int ordinal;
    CUdevice device;
    CUcontext kept;
    CUDA_CHECK(cudaGetDevice(&ordinal));
    DRIVER_CHECK(cuDeviceGet(&device, ordinal));
    DRIVER_CHECK(cuCtxCreate(&kept, nullptr, 0, device));
    Things things;
    DRIVER_CHECK(cuCtxPopCurrent(&kept));
    for (int half = 0; half < 2; half++) {
        flags_are_told(device);
        nested(device);
        reset(device, kept);
        libraries_stay(device);
        other_threads(device);
        DRIVER_CHECK(cuCtxPushCurrent(kept));
        things.work(half);
        DRIVER_CHECK(cuCtxPopCurrent(&kept));
        if (half == 0)
            interlude(argc, argv);
    }
    size_t all = free_bytes();
    DRIVER_CHECK(cuCtxDestroy(kept));
    things.expect_gone();
    EXPECT(free_bytes() >= all + 3 * BYTES, "%zu bytes came back", free_bytes() - all);
    return 0;
}
