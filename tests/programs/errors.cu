// errors.cu: which calls leave which errors, for how long, and whose they are. After a kernel's
// fault every call fails with it, also in other threads, and the process can end in peace.
#include <cuda.h>

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "behaviour.h"

__global__ void put(int *to, int value) { *to = value; }

// Has long names.
template <int... numbers> __global__ void claim(int wrong)
{
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    assert(place != wrong && "a message that is not short, either, since PyTorch has some of 80");
}
template <int... numbers> static void launch_claim(std::integer_sequence<int, numbers...>)
{
    claim<numbers...><<<300, 4>>>(250 * 4 + 1);
}

static void expect_last(cudaError_t error, const char *what)
{
    cudaError_t got = cudaPeekAtLastError();
    EXPECT(got == error, "%s: peeked at %s", what, cudaGetErrorName(got));
    got = cudaGetLastError();
    EXPECT(got == error, "%s: got %s", what, cudaGetErrorName(got));
    EXPECT(cudaGetLastError() == cudaSuccess, "%s: it stays", what);
}

// A handle that never was is an error here; CUDA's own runtime looks into it, and crashes.
static bool survives_any_handle()
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "librankfold");
}

// Errors of calls do no harm: they are remembered until asked for, the last one wins.
static void passing(int *device)
{
    void *memory;
    int value = 0;
    EXPECT(cudaMalloc(&memory, size_t(1) << 60) == cudaErrorMemoryAllocation, "too much");
    CUDA_CHECK(cudaMemset(device, 0, sizeof *device));  // success does not clear it
    expect_last(cudaErrorMemoryAllocation, "a failed allocation");
    EXPECT(cudaFree(&value) == cudaErrorInvalidValue, "not allocated");
    EXPECT(cudaSetDevice(-1) == cudaErrorInvalidDevice, "no such device");
    expect_last(cudaErrorInvalidDevice, "two errors");
    if (survives_any_handle()) {
        EXPECT(cudaEventQuery(cudaEvent_t(12345)) == cudaErrorInvalidResourceHandle, "no event");
        expect_last(cudaErrorInvalidResourceHandle, "a query");
    }
    CUdeviceptr none;
    DRIVER_FAILS(cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cudaGetLastError() == cudaSuccess, "the driver's errors are not the runtime's");
    CUDA_CHECK(cudaFree(nullptr));
    CUDA_CHECK(cudaFreeHost(nullptr));
}

static void launches(int *device)
{
    if (survives_any_handle()) {
        put<<<1, 1, 0, cudaStream_t(987654)>>>(device, 5);
        expect_last(cudaErrorInvalidResourceHandle, "no such stream");
    }
    put<<<1, 1>>>(device, 7);
    expect_last(cudaSuccess, "a good launch");
}

// Every kind of call gives the error, whoever calls.
static void expect_broken(cudaError_t error, int *device, int *pooled)
{
    cudaStream_t stream;
    cudaEvent_t event;
    void *memory;
    int value, got;
    cudaError_t all[] = {
        cudaDeviceSynchronize(), cudaStreamSynchronize(0), cudaStreamQuery(0),
        cudaMalloc(&memory, 16), cudaFree(device), cudaMallocHost(&memory, 16),
        cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost), cudaMemset(device, 0, 4),
        cudaStreamCreate(&stream), cudaEventCreate(&event), cudaPeekAtLastError(),
        cudaGetLastError(),
    };
    for (const cudaError_t &one : all)
        EXPECT(one == error, "call %zu gives %s", size_t(&one - all), cudaGetErrorName(one));
    EXPECT(cudaGetLastError() == cudaSuccess, "it was reported, and no call has met it since");
    if (survives_any_handle()) {  // plain CUDA begins anew then
        EXPECT(cudaFreeAsync(pooled, 0) == cudaSuccess, "destructors free in streams");
        EXPECT(cudaDeviceReset() == error, "a reset");
        cudaGetLastError();
    }
    put<<<1, 1>>>(device, 1);
    EXPECT(cudaGetLastError() == error, "a launch");
    DRIVER_FAILS(cuCtxSynchronize(), CUresult(error));
    CUDA_CHECK(cudaGetDevice(&got));  // what needs no device works
    CUDA_CHECK(cudaDeviceGetAttribute(&got, cudaDevAttrWarpSize, got));
}

// A program may ask to be called for each message of the driver, and stop asking.
static void logs()
{
    CUlogsCallbackHandle handle = nullptr;
    auto callback = [](void *, CUlogLevel, char *, size_t) {};
    EXPECT(cuLogsRegisterCallback(callback, nullptr, &handle) == CUDA_SUCCESS && handle, "refused");
    EXPECT(cuLogsUnregisterCallback(handle) == CUDA_SUCCESS, "not forgotten");
}

int main(int argc, char **argv)
{
    World world = start();
    logs();
    int *device = on_device<int>(4), *pooled = on_device<int>(4);
    for (int half = 0; half < 2; half++) {
        passing(device);
        launches(device);
        if (half == 0)
            interlude(argc, argv);
    }
    cudaError_t error = world.rank ? cudaErrorAssert : cudaErrorIllegalAddress;
    Gate gate;
    CUDA_CHECK(cudaLaunchHostFunc(0, Gate::wait, &gate));
    if (world.rank)
        launch_claim(std::make_integer_sequence<int, 40>());
    else
        put<<<1, 1>>>((int *)16, 1);
    EXPECT(cudaGetLastError() == cudaSuccess, "a launch does not wait");
    gate.open = true;
    EXPECT(cudaDeviceSynchronize() == error, "%s", cudaGetErrorName(cudaPeekAtLastError()));
    expect_broken(error, device, pooled);
    std::thread([&] {
        EXPECT(cudaDeviceSynchronize() == error, "another thread");
        EXPECT(cudaGetLastError() == error, "another thread");
    }).join();
    return 0;
}
