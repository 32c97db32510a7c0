// captures.cu: every error that a stream capture can give, by the rules of CUDA's documentation
// and, where that leaves it open, as NVIDIA's own runtime does (answers.txt): who gets it, and
// which captures are invalid afterwards. Prints the errors' names.
#include <functional>
#include <thread>

#include "common.h"

constexpr int COUNT = 1024;
constexpr auto GLOBAL = cudaStreamCaptureModeGlobal;
constexpr auto LOCAL = cudaStreamCaptureModeThreadLocal;
constexpr auto RELAXED = cudaStreamCaptureModeRelaxed;

__global__ void add(int *data, int value) { data[blockIdx.x * blockDim.x + threadIdx.x] += value; }

static int step;

static void demand(const char *what, cudaError_t got, cudaError_t wanted)
{
    EXPECT(got == wanted, "%s: %s, not %s", what, cudaGetErrorName(got), cudaGetErrorName(wanted));
    if (wanted)
        printf("step %d %s: %s\n", step, what, cudaGetErrorName(got));
    cudaGetLastError();
}

struct Program {
    cudaStream_t stream, other, blocking; // the first two do not order with the legacy stream
    cudaEvent_t event, idle;
    int *data, host[COUNT] = {};

    void begin(cudaStream_t s, cudaStreamCaptureMode mode = GLOBAL)
    {
        CUDA_CHECK(cudaStreamBeginCapture(s, mode));
    }
    // The end of a capture: it gives a graph, or the error and none.
    void end(cudaStream_t s, cudaError_t wanted = cudaErrorStreamCaptureInvalidated)
    {
        cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
        demand("the end", cudaStreamEndCapture(s, &graph), wanted);
        EXPECT((graph == nullptr) == (wanted != cudaSuccess), "a graph if there is no error");
        if (!wanted)
            CUDA_CHECK(cudaGraphDestroy(graph));
    }
    cudaStreamCaptureStatus status(cudaStream_t s)
    {
        cudaStreamCaptureStatus status;
        CUDA_CHECK(cudaStreamIsCapturing(s, &status));
        return status;
    }
    // Checks the status of a call while `stream` is captured in that mode, and that of the end.
    void during(const char *what, cudaStreamCaptureMode mode, const std::function<cudaError_t()> &f,
                cudaError_t wanted)
    {
        begin(stream, mode);
        demand(what, f(), wanted);
        if (wanted)
            EXPECT(status(stream) == cudaStreamCaptureStatusInvalidated, "%s: still valid", what);
        end(stream, wanted ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    }

    void the_stream_itself();
    void the_legacy_stream();
    void events();
    void unsafe_calls();
    void two_threads();
    void endings();
    void information();
};

void Program::the_stream_itself()
{
    auto unsupported = cudaErrorStreamCaptureUnsupported;
    for (auto mode : {GLOBAL, LOCAL, RELAXED}) {
        during("synchronise", mode, [&] { return cudaStreamSynchronize(stream); }, unsupported);
        during("query", mode, [&] { return cudaStreamQuery(stream); }, unsupported);
        during("device", mode, [&] { return cudaDeviceSynchronize(); }, unsupported);
    }
    auto callback = [](cudaStream_t, cudaError_t, void *) {};
    during("callback", RELAXED, [&] { return cudaStreamAddCallback(stream, callback, 0, 0); },
           unsupported);
    void *memory;
    during("allocate", RELAXED, [&] { return cudaMallocAsync(&memory, 512, stream); }, cudaSuccess);
    begin(stream);
    demand("begun twice", cudaStreamBeginCapture(stream, GLOBAL), cudaErrorIllegalState);
    demand("wait", cudaStreamSynchronize(stream), unsupported);
    add<<<COUNT / 256, 256, 0, stream>>>(data, 1);
    demand("launch afterwards", cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    demand("wait again", cudaStreamSynchronize(stream), unsupported);
    demand("record afterwards", cudaEventRecord(event, stream), cudaErrorStreamCaptureInvalidated);
    end(stream);
    demand("end of nothing", cudaStreamEndCapture(stream, nullptr), cudaErrorIllegalState);
    demand("legacy", cudaStreamBeginCapture(cudaStreamLegacy, RELAXED), unsupported);
}

// It cannot be used while a blocking stream is captured, whatever the mode; others do not mind.
void Program::the_legacy_stream()
{
    auto implicit = cudaErrorStreamCaptureImplicit;
    cudaStreamCaptureStatus status;
    std::function<cudaError_t()> uses[] = {
        [&] { return add<<<1, 32>>>(data, 0), cudaGetLastError(); },
        [&] { return cudaMemsetAsync(data, 0, 4, cudaStreamLegacy); },
        [&] { return cudaMemcpyAsync(data, host, 4, cudaMemcpyHostToDevice, 0); },
        [&] { return cudaMemcpy(host, data, 4, cudaMemcpyDeviceToHost); },
        [&] { return cudaEventRecord(idle, 0); },
        [&] { return cudaStreamWaitEvent(0, idle, 0); },
        [&] { return cudaStreamSynchronize(0); },
    };
    for (auto &use : uses) {
        begin(blocking, RELAXED);
        demand("legacy", use(), implicit);
        end(blocking);
        begin(stream, RELAXED);
        demand("legacy", use(), cudaSuccess);
        end(stream, cudaSuccess);
    }
    begin(blocking, RELAXED);
    demand("legacy status", cudaStreamIsCapturing(0, &status), implicit);
    EXPECT(this->status(blocking) == cudaStreamCaptureStatusActive, "a question harms nothing");
    end(blocking, cudaSuccess);
}

void Program::events()
{
    float ms;
    cudaEvent_t timed;
    CUDA_CHECK(cudaEventCreate(&timed));
    auto record = [&](auto ask) {
        return [this, ask] { return cudaEventRecord(event, stream), ask(); };
    };
    auto captured = cudaErrorCapturedEvent;
    during("event query", RELAXED, record([&] { return cudaEventQuery(event); }), captured);
    during("event wait", RELAXED, record([&] { return cudaEventSynchronize(event); }), captured);
    demand("when it is over", cudaEventQuery(event), cudaErrorInvalidValue);
    begin(stream);
    CUDA_CHECK(cudaEventRecord(timed, stream));
    end(stream, cudaSuccess);
    demand("elapsed", cudaEventElapsedTime(&ms, timed, timed), cudaErrorInvalidValue);
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaEventSynchronize(event)); // recorded anew
    CUDA_CHECK(cudaEventDestroy(timed));

    auto isolation = cudaErrorStreamCaptureIsolation;
    during("outside", RELAXED, [&] { return cudaStreamWaitEvent(stream, idle, 0); }, isolation);
    during("external", RELAXED,
           [&] { return cudaStreamWaitEvent(stream, idle, cudaEventWaitExternal); }, cudaSuccess);
    begin(stream);
    begin(other);
    CUDA_CHECK(cudaEventRecord(event, stream));
    demand("two captures", cudaStreamWaitEvent(other, event, 0), cudaErrorStreamCaptureMerge);
    end(other);
    end(stream);
    CUDA_CHECK(cudaEventRecord(event, stream));
}

// Calls that belong to no stream but may wait, or that the capture does not see.
void Program::unsafe_calls()
{
    void *memory = nullptr;
    cudaError_t no = cudaErrorStreamCaptureUnsupported;
    std::function<cudaError_t()> calls[] = {
        [&] { return cudaMalloc(&memory, 512); },
        [&] { return cudaFree(memory); },
        [&] { return cudaMallocHost(&memory, 512); },
        [&] { return cudaFreeHost(memory); },
        [&] { return cudaStreamSynchronize(other); },
        [&] { return cudaEventQuery(idle); },
    };
    during("a copy", GLOBAL, [&] { return cudaMemcpy(host, data, 4, cudaMemcpyDeviceToHost); },
           cudaSuccess);
    for (int i = 0; i < 6; i++) {
        during("unsafe", RELAXED, calls[i], cudaSuccess);
        if (i == 1 || i == 3) // both frees, for what the modes forbid below
            CUDA_CHECK(i == 1 ? cudaMalloc(&memory, 512) : cudaMallocHost(&memory, 512));
        during("unsafe", GLOBAL, calls[i], no);
        during("unsafe", LOCAL, calls[i], no);
        cudaStreamCaptureMode mode = RELAXED;
        CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
        EXPECT(mode == GLOBAL, "the usual mode of a thread");
        during("allowed", GLOBAL, calls[i], cudaSuccess);
        CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
        EXPECT(mode == RELAXED, "the mode that was set");
    }
}

// Another thread minds a capture of mode global only, and only if it is not relaxed itself. It may
// not end one that is not relaxed: that is over then, without a graph.
void Program::two_threads()
{
    auto elsewhere = [&](cudaStreamCaptureMode mode, cudaError_t *got, cudaError_t *ended) {
        std::thread([&] {
            cudaGraph_t graph;
            CUDA_CHECK(cudaSetDevice(world_from_env().local_rank));
            CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
            *got = cudaEventQuery(idle);
            *ended = cudaStreamEndCapture(stream, &graph);
        }).join();
    };
    cudaError_t got, ended, wrong = cudaErrorStreamCaptureWrongThread;
    begin(stream, GLOBAL);
    elsewhere(GLOBAL, &got, &ended);
    demand("another thread", got, cudaErrorStreamCaptureUnsupported);
    demand("its end", ended, cudaErrorStreamCaptureInvalidated);
    end(stream, cudaErrorIllegalState);
    for (auto [mode, theirs] : {std::pair{LOCAL, GLOBAL}, {GLOBAL, LOCAL}, {GLOBAL, RELAXED}}) {
        begin(stream, mode);
        elsewhere(theirs, &got, &ended);
        demand("another thread", got, cudaSuccess);
        demand("its end", ended, wrong);
        end(stream, cudaErrorIllegalState);
    }
    begin(stream, RELAXED);
    elsewhere(GLOBAL, &got, &ended);
    demand("relaxed", got, cudaSuccess);
    demand("relaxed", ended, cudaSuccess);
}

void Program::endings()
{
    begin(stream);
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaStreamWaitEvent(other, event, 0));
    add<<<COUNT / 256, 256, 0, other>>>(data, 1);
    demand("in the other", cudaStreamEndCapture(other, nullptr), cudaErrorInvalidValue);
    cudaGraph_t graph;
    demand("unmatched", cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
    end(stream);
    begin(stream);
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaStreamWaitEvent(other, event, 0));
    add<<<COUNT / 256, 256, 0, other>>>(data, 1);
    demand("unjoined", cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    EXPECT(status(other) == cudaStreamCaptureStatusNone, "it is over for both");
    demand("not captured", cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    cudaStream_t gone;
    CUDA_CHECK(cudaStreamCreate(&gone));
    begin(gone, RELAXED);
    CUDA_CHECK(cudaStreamDestroy(gone)); // and its capture with it: the legacy stream is free
    CUDA_CHECK(cudaMemset(data, 0, COUNT * sizeof(int)));
    CUDA_CHECK(cudaDeviceSynchronize());
}

void Program::information()
{
    cudaStreamCaptureStatus status;
    unsigned long long id = 0, next;
    cudaGraph_t graph, result;
    const cudaGraphNode_t *needs;
    size_t count;
    begin(stream);
    add<<<COUNT / 256, 256, 0, stream>>>(data, 1);
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &needs, nullptr, &count));
    EXPECT(status == cudaStreamCaptureStatusActive && count == 1, "one node so far");
    cudaGraphNode_t kernel = needs[0], empty;
    CUDA_CHECK(cudaGraphAddEmptyNode(&empty, graph, &kernel, 1));
    CUDA_CHECK(cudaStreamUpdateCaptureDependencies(stream, &empty, nullptr, 1,
                                                   cudaStreamSetCaptureDependencies));
    add<<<COUNT / 256, 256, 0, stream>>>(data, 2);
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &next, &graph, &needs, nullptr, &count));
    EXPECT(next == id && count == 1 && needs[0] != empty, "the second kernel follows");
    CUDA_CHECK(cudaStreamEndCapture(stream, &result));
    EXPECT(result == graph, "the graph is handed over");
    demand("nothing to update", cudaStreamUpdateCaptureDependencies(stream, &empty, nullptr, 1, 0),
           cudaErrorIllegalState);
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, result, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(result));
    begin(stream);
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &next));
    EXPECT(next > id, "captures have numbers of their own");
    end(stream, cudaSuccess);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    start(&comm);
    int steps = argument(argc, argv, 1, 30);
    Program p;
    CUDA_CHECK(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&p.other, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreate(&p.blocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&p.event, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&p.idle, cudaEventDisableTiming));
    p.data = on_device<int>(COUNT);
    p.begin(p.stream);
    EXPECT(ncclAllReduce(p.data, p.data, COUNT, ncclInt, ncclSum, comm, p.stream) ==
           ncclInvalidUsage, "no collective in a graph");
    p.end(p.stream);
    for (step = 0; step < steps; step++) {
        p.the_stream_itself();
        p.the_legacy_stream();
        p.events();
        p.unsafe_calls();
        p.two_threads();
        p.endings();
        p.information();
        NCCL_CHECK(ncclAllReduce(p.data, p.data, COUNT, ncclInt, ncclSum, comm, p.stream));
        report(step, "data", p.data, COUNT);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
