// printing.cu: printf in kernels, with every kind of argument; its output comes in order with the
// program's own. One rank. The argument: how many lines kernels print that nothing reads between.
#include <cstdio>
#include <cstdlib>

__device__ char word[8] = "device";

__global__ void line(int step)
{
    if (threadIdx.x % 3 == 0)
        printf("step %d thread %u: %5.2f|%-6s|%+d|%08x|%lld|%c|%%|%e\n", step, threadIdx.x,
               threadIdx.x * 0.5, threadIdx.x ? "text" : word, -step, 0xabcu + threadIdx.x,
               1234567890123ll * step, 'a' + threadIdx.x, 1e-30 * step);
}

__global__ void edges()
{
    char local[4] = {'x', 'y', char('0' + threadIdx.x), 0};
    int taken = printf("%s %*d %.*f %hhd %zu %5.3s|\n", local, 6, 42, 2, 3.14159, 300, sizeof local,
                       "shortened");
    printf("took %d, %d\n", taken, printf("no arguments\n"));
    printf("%d %q %n\n", 7);
}

__global__ void many(int lines)
{
    for (int i = 0; i < lines; i++)
        printf("%07d\n", i);
}

int main(int argc, char **argv)
{
    for (int step = 0; step < 3; step++) {
        printf("before %d\n", step);
        line<<<1, 8>>>(step);
        cudaDeviceSynchronize();
        printf("after %d\n", step);
    }
    edges<<<1, 2>>>();
    cudaStreamSynchronize(0);
    int lines = argc > 1 ? atoi(argv[1]) : 10;
    many<<<1, 1>>>(lines);
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
