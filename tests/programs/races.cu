// races.cu: orderings between two accesses to one buffer, of two streams. Each case has a buffer
// and streams of its own, and prints `race NAME begin end`, the buffer's addresses; or `fine` if it
// does not race, or `may` if that cannot be seen from outside. Nobody cares for the results.
#include <functional>

#include "common.h"

constexpr int COUNT = 4096;
constexpr size_t BYTES = COUNT * sizeof(int);

__global__ void write(int *data, int count, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] = value;
}
__global__ void read(const int *data, int count, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = data[i];
}
__global__ void write_every_second(int *data, int count, int value)
{
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        data[i] = value;
}
__global__ void add(int *sum, int value) { atomicAdd(sum, value); }

struct Case {
    int *data, *other, *out;       // COUNT each; only `data` is reached twice
    cudaStream_t a, b;             // non-blocking
    cudaStream_t c, d;             // blocking
    cudaEvent_t event;
    ncclComm_t comm;

    void copy_in(cudaStream_t stream) const
    {
        CUDA_CHECK(cudaMemcpyAsync(data, other, BYTES, cudaMemcpyDeviceToDevice, stream));
    }
    void copy_out(cudaStream_t stream) const
    {
        CUDA_CHECK(cudaMemcpyAsync(out, data, BYTES, cudaMemcpyDeviceToDevice, stream));
    }
    void fill(cudaStream_t stream, int from = 0, int count = COUNT) const
    {
        CUDA_CHECK(cudaMemsetAsync(data + from, 1, count * sizeof(int), stream));
    }
    void kernel_in(cudaStream_t stream) const
    {
        write<<<COUNT / 128, 128, 0, stream>>>(data, COUNT, 7);
    }
    void kernel_out(cudaStream_t stream) const
    {
        read<<<COUNT / 128, 128, 0, stream>>>(data, COUNT, out);
    }
    void record(cudaStream_t stream) const { CUDA_CHECK(cudaEventRecord(event, stream)); }
    void wait(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0)); }
    void gather(cudaStream_t stream) const
    {
        NCCL_CHECK(ncclAllReduce(other, data, COUNT, ncclInt, ncclSum, comm, stream));
    }
};

struct Named {
    const char *name;
    std::function<void(Case &)> run;
};

static void nothing(void *)
{
}

static const Named CASES[] = {
    {"race copy-then-kernel", [](const Case &c) { c.copy_in(c.a); c.kernel_out(c.b); }},
    {"race kernel-then-copy", [](const Case &c) { c.kernel_in(c.a); c.copy_out(c.b); }},
    {"race kernel-then-fill", [](const Case &c) { c.kernel_out(c.a); c.fill(c.b); }},
    {"race fill-then-fill", [](const Case &c) { c.fill(c.a); c.fill(c.b); }},
    {"race blocking-streams", [](const Case &c) { c.copy_in(c.c); c.kernel_out(c.d); }},
    {"race legacy-then-non-blocking", [](const Case &c) { c.copy_in(0); c.kernel_out(c.a); }},
    {"race non-blocking-then-legacy", [](const Case &c) { c.kernel_in(c.a); c.fill(0); }},
    {"race event-of-before", [](const Case &c) {
        c.record(c.a); c.copy_in(c.a); c.wait(c.b); c.kernel_out(c.b); }},
    {"race event-that-nobody-waits-for", [](const Case &c) {
        c.copy_in(c.a); c.record(c.a); c.kernel_out(c.b); }},
    {"race stream-that-was-not-waited-for", [](const Case &c) {
        c.copy_in(c.a); CUDA_CHECK(cudaStreamSynchronize(c.b)); c.kernel_out(c.b); }},
    {"race collective-then-kernel", [](const Case &c) { c.gather(c.a); c.kernel_out(c.b); }},
    {"race kernel-then-collective", [](const Case &c) { c.kernel_out(c.a); c.gather(c.b); }},
    {"race halves-that-overlap", [](const Case &c) {
        c.fill(c.a, 0, COUNT / 2 + 1); c.fill(c.b, COUNT / 2, COUNT / 2); }},
    {"race graph", [](const Case &c) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA_CHECK(cudaStreamBeginCapture(c.a, cudaStreamCaptureModeGlobal));
        c.kernel_in(c.a);
        CUDA_CHECK(cudaStreamEndCapture(c.a, &graph));
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CUDA_CHECK(cudaGraphLaunch(exec, c.a));
        c.copy_out(c.b);
    }},
    {"fine same-stream", [](const Case &c) { c.copy_in(c.a); c.kernel_out(c.a); }},
    {"fine event", [](const Case &c) {
        c.copy_in(c.a); c.record(c.a); c.wait(c.b); c.kernel_out(c.b); }},
    {"fine event-two-steps", [](const Case &c) {
        c.copy_in(c.a); c.record(c.a); c.wait(c.c); c.record(c.c); c.wait(c.b);
        c.kernel_out(c.b); }},
    {"fine event-synchronised", [](const Case &c) {
        c.copy_in(c.a); c.record(c.a); CUDA_CHECK(cudaEventSynchronize(c.event));
        c.kernel_out(c.b); }},
    {"fine event-polled", [](const Case &c) {
        c.copy_in(c.a); c.record(c.a);
        while (cudaEventQuery(c.event) == cudaErrorNotReady)
            ;
        c.kernel_out(c.b); }},
    {"fine stream-polled", [](const Case &c) {
        c.copy_in(c.a);
        while (cudaStreamQuery(c.a) == cudaErrorNotReady)
            ;
        c.kernel_out(c.b); }},
    {"fine stream-synchronised", [](const Case &c) {
        c.copy_in(c.a); CUDA_CHECK(cudaStreamSynchronize(c.a)); c.kernel_out(c.b); }},
    {"fine device-synchronised", [](const Case &c) {
        c.copy_in(c.a); CUDA_CHECK(cudaDeviceSynchronize()); c.kernel_out(c.b); }},
    {"fine legacy-then-blocking", [](const Case &c) { c.copy_in(0); c.kernel_out(c.c); }},
    {"fine blocking-then-legacy", [](const Case &c) { c.kernel_in(c.c); c.fill(0); }},
    {"fine something-legacy-between", [](const Case &c) {
        c.copy_in(c.c); CUDA_CHECK(cudaMemsetAsync(c.other, 0, 4, 0)); c.kernel_out(c.d); }},
    {"fine blocking-copy", [](const Case &c) {
        std::vector<int> values(COUNT);
        CUDA_CHECK(cudaMemcpy(c.data, values.data(), BYTES, cudaMemcpyHostToDevice));
        c.kernel_out(c.a); }},
    {"fine two-readers", [](const Case &c) {
        CUDA_CHECK(cudaMemcpyAsync(c.other, c.data, BYTES, cudaMemcpyDeviceToDevice, c.a));
        c.copy_out(c.b); }},
    {"fine halves", [](const Case &c) {
        c.fill(c.a, 0, COUNT / 2); c.fill(c.b, COUNT / 2, COUNT / 2); }},
    {"fine host-function", [](const Case &c) {
        c.copy_in(c.a); CUDA_CHECK(cudaLaunchHostFunc(c.a, nothing, nullptr));
        c.kernel_out(c.b); }},
    {"fine additions", [](const Case &c) {
        add<<<1, 32, 0, c.a>>>(c.data, 1); add<<<1, 32, 0, c.b>>>(c.data, 2); }},
    {"may two-kernels", [](const Case &c) { c.kernel_in(c.a); c.kernel_out(c.b); }},
    {"may every-second", [](const Case &c) {
        write_every_second<<<COUNT / 256, 128, 0, c.a>>>(c.data, COUNT, 1);
        write_every_second<<<COUNT / 256, 128, 0, c.b>>>(c.data + 1, COUNT - 1, 2); }},
    {"fine kernels-on-halves", [](const Case &c) {
        write<<<COUNT / 128, 128, 0, c.a>>>(c.data, COUNT / 2, 7);
        write<<<COUNT / 256, 128, 0, c.b>>>(c.data + COUNT / 2, COUNT / 2, 7); }},
    {"fine kernel-and-half-a-copy", [](const Case &c) {
        write<<<COUNT / 128, 128, 0, c.a>>>(c.data, COUNT / 2, 7);
        c.fill(c.b, COUNT / 2, COUNT / 2); }},
    {"race kernel-on-half-and-all-of-it", [](const Case &c) {
        write<<<COUNT / 128, 128, 0, c.a>>>(c.data, COUNT / 2, 7); c.copy_out(c.b); }},
    {"race kernel-on-half-and-that-half", [](const Case &c) {
        write<<<COUNT / 128, 128, 0, c.a>>>(c.data, COUNT / 2, 7);
        c.fill(c.b, 0, COUNT / 2); }},
    {"fine one-communicator", [](const Case &c) { c.gather(c.a); c.gather(c.b); }},
    {"fine collective-event", [](const Case &c) {
        c.gather(c.a); c.record(c.a); c.wait(c.b); c.kernel_out(c.b); }},
    {"race freed-while-used", [](Case &c) {
        CUDA_CHECK(cudaMallocAsync(&c.data, BYTES, c.a));
        c.kernel_in(c.a); CUDA_CHECK(cudaFreeAsync(c.data, c.b)); }},
    {"fine freed-when-done", [](Case &c) {
        CUDA_CHECK(cudaMallocAsync(&c.data, BYTES, c.a));
        c.kernel_in(c.a); c.record(c.a); c.wait(c.b); CUDA_CHECK(cudaFreeAsync(c.data, c.b)); }},
    {"fine freed-between", [](const Case &c) {
        int *more;
        CUDA_CHECK(cudaMalloc(&more, BYTES));
        c.copy_in(c.a); CUDA_CHECK(cudaFree(more)); c.kernel_out(c.b); }},
};

int main()
{
    ncclComm_t comm;
    start(&comm);
    for (const Named &each : CASES) {
        Case c = {on_device<int>(COUNT), on_device<int>(COUNT), on_device<int>(COUNT)};
        c.comm = comm;
        CUDA_CHECK(cudaStreamCreateWithFlags(&c.a, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamCreateWithFlags(&c.b, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamCreate(&c.c));
        CUDA_CHECK(cudaStreamCreate(&c.d));
        CUDA_CHECK(cudaEventCreate(&c.event));
        each.run(c);
        CUDA_CHECK(cudaDeviceSynchronize());
        printf("%s %p %p\n", each.name, (void *)c.data, (void *)(c.data + COUNT));
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
