// parameters.cu: kernels whose parameters are as large as CUDA allows, launched, captured, and in
// graphs, whose nodes have copies of their own.
#include <cuda.h>

#include <numeric>

#include "behaviour.h"

constexpr int THREADS = 64;

// All of a kernel's parameters. The first two words are where its sums go.
template <int BYTES>
struct Large {
    static constexpr int WORDS = BYTES / 4;
    unsigned word[WORDS];

    Large(unsigned *sums, unsigned seed)
    {
        memcpy(word, &sums, sizeof sums);
        std::iota(word + 2, word + WORDS, seed);
    }
};

template <int BYTES>
__global__ void add_up(const __grid_constant__ Large<BYTES> all)
{
    unsigned *sums, sum = 0;
    unsigned long long address = all.word[0] | (unsigned long long)all.word[1] << 32;
    memcpy(&sums, &address, sizeof sums);
    for (int i = 2 + threadIdx.x; i < BYTES / 4; i += THREADS)
        sum = sum * 31 + all.word[i];
    sums[threadIdx.x] = sum;
}

struct Sums {
    unsigned *device, host[THREADS];

    // Checks the kernel's result for parameters with this seed, and clears it.
    template <int BYTES>
    void expect(cudaStream_t stream, unsigned seed, const char *by)
    {
        Large<BYTES> all(device, seed);
        CUDA_CHECK(cudaMemcpyAsync(host, device, sizeof host, cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaMemsetAsync(device, 0, sizeof host, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (int t = 0; t < THREADS; t++) {
            unsigned sum = 0;
            for (int i = 2 + t; i < Large<BYTES>::WORDS; i += THREADS)
                sum = sum * 31 + all.word[i];
            EXPECT(host[t] == sum, "%d bytes %s: [%d] is %u", BYTES, by, t, host[t]);
        }
    }
};

template <int BYTES>
static void launches(Sums &sums, cudaStream_t stream)
{
    cudaFunction_t function;
    Large<BYTES> all(sums.device, 5);
    static_assert(sizeof all == BYTES, "nothing else");
    add_up<BYTES><<<1, THREADS, 0, stream>>>(all);
    sums.expect<BYTES>(stream, 5, "launched");
    CUDA_CHECK(cudaGetFuncBySymbol(&function, (void *)add_up<BYTES>));
    all = Large<BYTES>(sums.device, 6);
    size_t bytes = sizeof all;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    DRIVER_CHECK(cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, stream, nullptr, extra));
    sums.expect<BYTES>(stream, 6, "in one buffer");
    for (unsigned i = 0; i < 300; i++)  // more than the way to the device holds
        add_up<BYTES><<<1, THREADS, 0, stream>>>(Large<BYTES>(sums.device, i));
    sums.expect<BYTES>(stream, 299, "often");
}

template <int BYTES>
static void graphs(Sums &sums, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    {
        Large<BYTES> all(sums.device, 7);
        void *args[] = {&all};
        cudaKernelNodeParams p = {(void *)add_up<BYTES>, dim3(1), dim3(THREADS), 0, args, nullptr};
        CUDA_CHECK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &p));
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        all = Large<BYTES>(sums.device, 8);
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        sums.expect<BYTES>(stream, 7, "of a node");
        CUDA_CHECK(cudaGraphExecKernelNodeSetParams(exec, node, &p));
        all = Large<BYTES>(sums.device, 9);
    }
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    sums.expect<BYTES>(stream, 8, "of a node, changed");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));

    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    add_up<BYTES><<<1, THREADS, 0, stream>>>(Large<BYTES>(sums.device, 10));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    sums.expect<BYTES>(stream, 10, "captured");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

template <int BYTES>
static void both(Sums &sums, cudaStream_t stream)
{
    launches<BYTES>(sums, stream);
    graphs<BYTES>(sums, stream);
}

int main(int argc, char **argv)
{
    start();
    Sums sums;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMalloc(&sums.device, sizeof sums.host));
    for (int half = 0; half < 2; half++) {
        both<4096>(sums, stream);
        both<4100>(sums, stream);
        both<8192>(sums, stream);
        both<32764>(sums, stream);
        both<64>(sums, stream);  // after larger ones
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
