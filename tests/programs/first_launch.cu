// first_launch.cu: the module's first launch is captured, while another stream waits for what this
// thread does next. It prints, and it has a pointer to set: both are set up at that launch.
#include "behaviour.h"

__device__ int numbers[4] = {1, 2, 3, 4};
__device__ int *third = &numbers[2];

__global__ void say(const char *when)
{
    printf("%s: %d\n", when[0] == 'b' ? "before" : "after", *third);
}

int main(int argc, char **argv)
{
    World world = world_from_env();
    CUDA_CHECK(cudaSetDevice(world.local_rank));
    cudaStream_t held, captured;
    cudaGraph_t graph;
    cudaGraphExec_t runs;
    Gate gate;
    char *text;
    CUDA_CHECK(cudaStreamCreate(&held));
    CUDA_CHECK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMallocHost(&text, 16));
    strcpy(text, "before");
    CUDA_CHECK(cudaLaunchHostFunc(held, Gate::wait, &gate));
    CUDA_CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    say<<<1, 1, 0, captured>>>(text);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaStreamEndCapture(captured, &graph));
    gate.open = true;
    CUDA_CHECK(cudaGraphInstantiate(&runs, graph, 0));
    for (int half = 0; half < 2; half++) {
        CUDA_CHECK(cudaGraphLaunch(runs, captured));
        CUDA_CHECK(cudaDeviceSynchronize());
        strcpy(text, "after");
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
