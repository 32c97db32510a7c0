// host_calls.cu: functions of the host in streams: order, what they see, that CUDA must not be
// called from them, and what becomes of them when a kernel has failed.
#include <atomic>
#include <thread>

#include "behaviour.h"

__global__ void add(int *to, int what) { *to += what; }
__global__ void fault(int *nowhere) { *nowhere = 1; }

struct Ledger {
    int *box;  // pinned
    int seen[8];
    std::atomic<int> count{0};
    cudaError_t errors[6];
    std::thread::id thread;
};

static void note(void *data)
{
    Ledger *ledger = static_cast<Ledger *>(data);
    ledger->seen[ledger->count++] = *ledger->box;
    *ledger->box += 100;
}

static void note_status(cudaStream_t, cudaError_t status, void *data)
{
    Ledger *ledger = static_cast<Ledger *>(data);
    ledger->errors[0] = status;
    note(data);
}

static void call_cuda(void *data)
{
    Ledger *ledger = static_cast<Ledger *>(data);
    void *memory;
    ledger->errors[0] = cudaMalloc(&memory, 4);
    ledger->errors[1] = cudaStreamSynchronize(0);
    ledger->errors[2] = cudaDeviceSynchronize();
    ledger->errors[3] = cudaMemcpy(ledger->box, ledger->box, 4, cudaMemcpyDefault);
    ledger->errors[4] = cudaGetLastError();
    ledger->errors[5] = cudaGetLastError();
    ledger->thread = std::this_thread::get_id();
    ledger->count++;
}

// Functions and kernels of one stream take turns on one number; it travels by copies.
static void in_order(Ledger &ledger, int *device, cudaStream_t stream)
{
    ledger.count = 0;
    *ledger.box = 7;
    for (int k = 0; k < 4; k++) {
        CUDA_CHECK(cudaMemcpyAsync(device, ledger.box, 4, cudaMemcpyHostToDevice, stream));
        add<<<1, 1, 0, stream>>>(device, 1);
        CUDA_CHECK(cudaMemcpyAsync(ledger.box, device, 4, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaLaunchHostFunc(stream, note, &ledger));
        add<<<1, 1, 0, stream>>>(ledger.box, 10);  // it is reached from both sides
        CUDA_CHECK(cudaStreamAddCallback(stream, note_status, &ledger, 0));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(ledger.count == 8 && ledger.errors[0] == cudaSuccess, "%d calls", ledger.count.load());
    int value = 7;
    for (int k = 0; k < 8; k += 2) {
        EXPECT(ledger.seen[k] == value + 1, "saw %d", ledger.seen[k]);
        EXPECT(ledger.seen[k + 1] == value + 111, "saw %d", ledger.seen[k + 1]);
        value += 211;
    }
    EXPECT(*ledger.box == value, "ends with %d", *ledger.box);
    printf("ends with %d\n", value);
}

static void must_not_call(Ledger &ledger, cudaStream_t stream)
{
    ledger.count = 0;
    CUDA_CHECK(cudaLaunchHostFunc(stream, call_cuda, &ledger));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(ledger.count == 1, "%d calls", ledger.count.load());
    for (int k = 0; k < 5; k++)
        EXPECT(ledger.errors[k] == cudaErrorNotPermitted, "call %d gives %s", k,
               cudaGetErrorName(ledger.errors[k]));
    EXPECT(ledger.errors[5] == cudaSuccess, "the error stays");
    EXPECT(cudaGetLastError() == cudaSuccess, "it is an error of this thread");
    EXPECT(ledger.thread != std::this_thread::get_id(), "called by the thread that waits");
    FAILS(cudaLaunchHostFunc(stream, nullptr, nullptr), cudaErrorInvalidValue);
    FAILS(cudaStreamAddCallback(stream, note_status, &ledger, 1), cudaErrorInvalidValue);
}

// A callback hears of it, a host function is not called any more.
static void after_a_fault(Ledger &ledger, cudaStream_t stream)
{
    Gate gate;  // the fault comes when all has been asked for
    ledger.count = 0;
    CUDA_CHECK(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    fault<<<1, 1, 0, stream>>>(nullptr);
    CUDA_CHECK(cudaStreamAddCallback(stream, note_status, &ledger, 0));
    CUDA_CHECK(cudaLaunchHostFunc(stream, note, &ledger));
    gate.open = true;
    cudaError_t error = cudaStreamSynchronize(stream);
    EXPECT(error == cudaErrorIllegalAddress, "%s", cudaGetErrorName(error));
    for (int tries = 0; ledger.count == 0 && tries < 5000; tries++)
        usleep(1000);
    EXPECT(ledger.count == 1, "%d calls", ledger.count.load());
    EXPECT(ledger.errors[0] == cudaErrorIllegalAddress, "%s", cudaGetErrorName(ledger.errors[0]));
}

int main(int argc, char **argv)
{
    start();
    Ledger ledger;
    int *device = on_device<int>(1);
    cudaStream_t stream;
    CUDA_CHECK(cudaMallocHost(&ledger.box, sizeof *ledger.box));
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (int half = 0; half < 2; half++) {
        in_order(ledger, device, stream);
        must_not_call(ledger, stream);
        if (half == 0)
            interlude(argc, argv);
    }
    after_a_fault(ledger, stream);
    return 0;
}
