// timing.cu: results of events and streams: elapsed times, what is not ready yet, waits across
// streams, flags, priorities and numbers.
#include <atomic>

#include "behaviour.h"

__global__ void work(unsigned *sink) { dawdle(sink); }
__global__ void put(int *to, int value) { *to = value; }
__global__ void take(int *to, const int *from) { *to = *from; }

static std::atomic<bool> gate;
static void wait_for_gate(void *)
{
    while (!gate)
        usleep(200);
}

static void elapsed(unsigned *sink)
{
    cudaEvent_t at[4], untimed, never;
    cudaStream_t stream;
    float ms, whole, before = 0;
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (cudaEvent_t &event : at)
        CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&never, cudaEventBlockingSync));
    for (cudaEvent_t event : at) {
        CUDA_CHECK(cudaEventRecord(event, stream));
        work<<<1, 1, 0, stream>>>(sink);
    }
    CUDA_CHECK(cudaEventRecord(untimed, stream));
    CUDA_CHECK(cudaEventSynchronize(untimed));
    for (int k = 1; k < 4; k++) {
        CUDA_CHECK(cudaEventElapsedTime(&ms, at[k - 1], at[k]));
        CUDA_CHECK(cudaEventElapsedTime(&whole, at[0], at[k]));
        EXPECT(ms >= 0, "a kernel took %g ms", ms);
        EXPECT(whole >= before + ms - 0.01f, "%g ms in all after %g and %g", whole, before, ms);
        before = whole;
    }
    CUDA_CHECK(cudaEventElapsedTime(&ms, at[1], at[0]));
    EXPECT(ms < 0, "backwards is %g ms", ms);
    CUDA_CHECK(cudaEventElapsedTime(&ms, at[2], at[2]));
    EXPECT(ms == 0, "nothing took %g ms", ms);
    FAILS(cudaEventElapsedTime(&ms, at[0], untimed), cudaErrorInvalidResourceHandle);
    FAILS(cudaEventElapsedTime(&ms, at[0], never), cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaEventQuery(never));
    CUDA_CHECK(cudaEventSynchronize(never));
    CUDA_CHECK(cudaStreamWaitEvent(stream, never, 0));
    for (cudaEvent_t event : at)
        CUDA_CHECK(cudaEventDestroy(event));
    FAILS(cudaEventRecord(at[0], stream), cudaErrorInvalidResourceHandle);
    FAILS(cudaEventQuery(at[0]), cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaStreamDestroy(stream));
}

static void not_ready(int *values)
{
    cudaStream_t first, second;
    cudaEvent_t start, end;
    float ms;
    int got = 0;
    CUDA_CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&start, cudaEventBlockingSync));
    CUDA_CHECK(cudaEventCreate(&end));
    gate = false;
    put<<<1, 1, 0, first>>>(values, 1);
    CUDA_CHECK(cudaEventRecord(start, first));
    CUDA_CHECK(cudaEventSynchronize(start));
    CUDA_CHECK(cudaLaunchHostFunc(first, wait_for_gate, nullptr));
    put<<<1, 1, 0, first>>>(values, 2);
    CUDA_CHECK(cudaEventRecord(end, first));
    NOT_YET(cudaEventQuery(end));
    NOT_YET(cudaStreamQuery(first));
    NOT_YET(cudaEventElapsedTime(&ms, start, end));
    CUDA_CHECK(cudaStreamWaitEvent(second, end, 0));  // the record of now, not a later one
    CUDA_CHECK(cudaEventRecord(end, first));
    take<<<1, 1, 0, second>>>(values + 1, values);
    NOT_YET(cudaStreamQuery(second));
    gate = true;
    CUDA_CHECK(cudaStreamSynchronize(second));
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventQuery(end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, start, end));
    EXPECT(ms >= 0, "%g ms", ms);
    CUDA_CHECK(cudaMemcpy(&got, values + 1, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == 2, "the waiting stream saw %d", got);
    CUDA_CHECK(cudaStreamDestroy(first));
    CUDA_CHECK(cudaStreamDestroy(second));
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(end));
}

static void facts_of_streams()
{
    int least, greatest, priority, device;
    unsigned flags;
    unsigned long long first, second;
    cudaStream_t a, b;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT(least == 0 && greatest < 0, "from %d to %d", least, greatest);
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
    for (int wanted = greatest - 2; wanted <= least + 2; wanted++) {  // clamped
        CUDA_CHECK(cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, wanted));
        CUDA_CHECK(cudaStreamGetPriority(a, &priority));
        int expected = wanted < greatest ? greatest : wanted > least ? least : wanted;
        EXPECT(priority == expected, "wanted %d, got %d", wanted, priority);
        CUDA_CHECK(cudaStreamDestroy(a));
    }
    CUDA_CHECK(cudaStreamCreate(&a));
    CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamGetPriority(a, &priority));
    EXPECT(priority == 0, "priority %d", priority);
    CUDA_CHECK(cudaStreamGetFlags(a, &flags));
    EXPECT(flags == cudaStreamDefault, "flags %u", flags);
    CUDA_CHECK(cudaStreamGetFlags(b, &flags));
    EXPECT(flags == cudaStreamNonBlocking, "flags %u", flags);
    CUDA_CHECK(cudaStreamGetFlags(0, &flags));
    EXPECT(flags == cudaStreamDefault, "flags %u of the default stream", flags);
    CUDA_CHECK(cudaStreamGetId(a, &first));
    CUDA_CHECK(cudaStreamGetId(b, &second));
    EXPECT(first != second, "both are number %llu", first);
    CUDA_CHECK(cudaStreamGetDevice(a, &device));
    EXPECT(device == world_from_env().local_rank, "device %d", device);
    FAILS(cudaStreamCreateWithFlags(&a, 6), cudaErrorInvalidValue);
    FAILS(cudaStreamDestroy(0), cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaStreamDestroy(a));
    FAILS(cudaStreamDestroy(a), cudaErrorInvalidResourceHandle);
    FAILS(cudaStreamGetFlags(a, &flags), cudaErrorInvalidResourceHandle);
    CUDA_CHECK(cudaStreamDestroy(b));
    cudaEvent_t event;
    FAILS(cudaEventCreateWithFlags(&event, 64), cudaErrorInvalidValue);
    CUDA_CHECK(cudaEventCreate(&event));
    FAILS(cudaEventRecordWithFlags(event, 0, 8), cudaErrorInvalidValue);
    FAILS(cudaStreamWaitEvent(0, event, 8), cudaErrorInvalidValue);
    CUDA_CHECK(cudaEventDestroy(event));
}

int main(int argc, char **argv)
{
    start();
    unsigned *sink = on_device<unsigned>(1);
    int *values = on_device<int>(2);
    cudaEvent_t kept, later;
    float ms;
    CUDA_CHECK(cudaEventCreate(&kept));
    CUDA_CHECK(cudaEventCreate(&later));
    CUDA_CHECK(cudaEventRecord(kept, 0));
    for (int half = 0; half < 2; half++) {
        elapsed(sink);
        not_ready(values);
        facts_of_streams();
        if (half == 0)
            interlude(argc, argv);
    }
    CUDA_CHECK(cudaEventRecord(later, 0));  // wherever that was
    CUDA_CHECK(cudaEventSynchronize(later));
    CUDA_CHECK(cudaEventElapsedTime(&ms, kept, later));
    EXPECT(ms > 1, "all of it took %g ms", ms);
    return 0;
}
