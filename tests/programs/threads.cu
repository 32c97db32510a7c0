// threads.cu: several threads of one program: one waits in each kind of synchronisation while
// others allocate, load, launch and copy; what the waiting one waits for is let go by the others.
// Last errors and current devices are each thread's own.
#include <atomic>
#include <thread>

#include "behaviour.h"

__device__ int counter;
__global__ void add(int *to, int count, int what)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] += what;
}
__global__ void count_one() { atomicAdd(&counter, 1); }

static std::atomic<bool> gate;
static void wait_for_gate(void *)
{
    while (!gate)
        usleep(200);
}

// The work of a thread that must not be held up: all kinds of calls, with its own results.
static void busy(int seed, int device)
{
    CUDA_CHECK(cudaSetDevice(device));
    constexpr int count = 5000;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int k = 0; k < 5; k++) {
        int *data, *pinned;
        std::vector<int> values(count, seed);
        CUDA_CHECK(cudaMalloc(&data, count * sizeof(int)));
        CUDA_CHECK(cudaHostAlloc(&pinned, count * sizeof(int), 0));
        CUDA_CHECK(cudaMemcpyAsync(data, values.data(), count * sizeof(int),
                                   cudaMemcpyHostToDevice, stream));
        add<<<(count + 127) / 128, 128, 0, stream>>>(data, count, k);
        CUDA_CHECK(cudaMemcpyAsync(pinned, data, count * sizeof(int), cudaMemcpyDeviceToHost,
                                   stream));
        CUDA_CHECK(cudaMemcpyAsync(values.data(), data, count * sizeof(int),
                                   cudaMemcpyDeviceToHost, stream));
        count_one<<<1, 1, 0, stream>>>();
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < count; i++)
            EXPECT(pinned[i] == seed + k && values[i] == seed + k, "thread %d: %d", seed,
                   pinned[i]);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
}

template <typename Wait>
static void others_continue(cudaStream_t held, Wait wait)
{
    gate = false;
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    std::atomic<bool> waits{false}, over{false};
    CUDA_CHECK(cudaLaunchHostFunc(held, wait_for_gate, nullptr));
    std::thread waiting([&] {
        CUDA_CHECK(cudaSetDevice(device));
        waits = true;
        wait();
        over = true;
    });
    while (!waits)
        usleep(200);
    std::vector<std::thread> others;
    for (int seed = 1; seed <= 3; seed++)
        others.emplace_back(busy, 1000 * seed, device);
    for (std::thread &other : others)
        other.join();
    EXPECT(!over, "nothing was waited for");
    gate = true;
    waiting.join();
}

static void own_errors_and_devices()
{
    int mine, count;
    CUDA_CHECK(cudaGetDevice(&mine));
    CUDA_CHECK(cudaGetDeviceCount(&count));
    EXPECT(cudaFree(&mine) == cudaErrorInvalidValue, "freed what it had not allocated");
    std::thread([&] {
        int device;
        EXPECT(cudaPeekAtLastError() == cudaSuccess, "another thread's error");
        CUDA_CHECK(cudaGetDevice(&device));
        EXPECT(device == 0, "a new thread begins with device %d", device);
        CUDA_CHECK(cudaSetDevice(count - 1));
        CUDA_CHECK(cudaGetDevice(&device));
        EXPECT(device == count - 1, "device %d", device);
        FAILS(cudaSetDevice(count), cudaErrorInvalidDevice);
        CUDA_CHECK(cudaGetDevice(&device));
        EXPECT(device == count - 1, "device %d after a wrong number", device);
    }).join();
    EXPECT(cudaPeekAtLastError() == cudaErrorInvalidValue, "the error is gone");
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "the error is gone");
    EXPECT(cudaGetLastError() == cudaSuccess, "the error stays");
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    EXPECT(device == mine, "another thread's device");
}

int main(int argc, char **argv)
{
    start();
    cudaStream_t held;
    cudaEvent_t event;
    CUDA_CHECK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
    int *data = on_device<int>(64), values[64];
    for (int half = 0; half < 2; half++) {
        others_continue(held, [&] { CUDA_CHECK(cudaStreamSynchronize(held)); });
        others_continue(held, [&] {
            CUDA_CHECK(cudaEventRecord(event, held));
            CUDA_CHECK(cudaEventSynchronize(event));
        });
        others_continue(held, [&] { CUDA_CHECK(cudaDeviceSynchronize()); });
        others_continue(held, [&] {
            CUDA_CHECK(cudaMemcpyAsync(values, data, sizeof values, cudaMemcpyDeviceToHost, held));
        });
        own_errors_and_devices();
        int counted;
        CUDA_CHECK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
        EXPECT(counted == (half + 1) * 4 * 3 * 5, "%d launches", counted);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
