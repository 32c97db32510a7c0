// kernels.cu: kernels of a library in a process of PyTorch. faults.py calls the functions; `stream`
// is PyTorch's. Its CUDA runtime may be another than PyTorch's.
#include <cuda_runtime.h>

__global__ void write_to(int *at) { *at = 1; }

__device__ __noinline__ int deep(volatile int *at, int depth)
{
    volatile int kept[64];
    kept[depth % 64] = depth;
    return depth == *at ? 0 : deep(at, depth + 1) + kept[depth % 64];
}
__global__ void recurse(int *never) { *never = deep(never, 1); }

__global__ void wait_for(volatile int *end)
{
    while (!*end)
        ;
}

__global__ void double_all(float *data, int count)
{
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count)
        data[place] *= 2;
}

#define EXPORT extern "C" __attribute__((visibility("default"))) int
#define LAUNCH(call)                                                                             \
    call;                                                                                        \
    return cudaGetLastError()

EXPORT launch_write(void *at, cudaStream_t stream)
{
    LAUNCH((write_to<<<1, 1, 0, stream>>>((int *)at)));
}
EXPORT launch_recursion(void *never, cudaStream_t stream)
{
    LAUNCH((recurse<<<1, 1, 0, stream>>>((int *)never)));
}
EXPORT launch_endless(void *end, cudaStream_t stream)
{
    LAUNCH((wait_for<<<1, 1, 0, stream>>>((int *)end)));
}
EXPORT launch_double(void *data, int count, cudaStream_t stream)
{
    LAUNCH((double_all<<<(count + 255) / 256, 256, 0, stream>>>((float *)data, count)));
}
