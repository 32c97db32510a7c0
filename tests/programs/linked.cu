// linked.cu: device code of two files, which nvcc links (-rdc=true). Compiled with CALLEE defined,
// it is the second file. Both have static functions and variables of the same names, and
// instances of one template. Prints what the kernels computed.
#include <cstdio>

template <typename T> __device__ T half_of(T x) { return x / 2; }
extern __constant__ float bias[2];
extern __device__ int calls;
extern __device__ float twice(float);
__global__ void of_callee(float *x);

#ifdef CALLEE
__constant__ float bias[2];
__device__ int calls;
static __device__ int seed = 100;
static __device__ __noinline__ float local(float x) { return x + seed; }
__device__ float twice(float x)
{
    calls++;
    return half_of(4 * x);
}
__global__ void of_callee(float *x) { *x = local(*x); }
#else
static __device__ int seed = 1;
static __device__ __noinline__ float local(float x) { return x - seed; }
__global__ void of_caller(float *x) { *x = local(half_of(twice(*x))) + bias[1]; }

int main()
{
    float value = 8, biases[2] = {0, 0.5f}, *x;
    int count, changed = 2;
    cudaMalloc(&x, sizeof *x);
    cudaMemcpy(x, &value, sizeof value, cudaMemcpyHostToDevice);
    cudaMemcpyToSymbol(bias, biases, sizeof biases);
    cudaMemcpyToSymbol(seed, &changed, sizeof changed);  // this file's
    of_caller<<<1, 1>>>(x);
    of_callee<<<1, 1>>>(x);
    cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost);
    cudaMemcpyFromSymbol(&count, calls, sizeof count);
    printf("%s: %g, %d call\n", cudaGetErrorString(cudaGetLastError()), value, count);
    return 0;
}
#endif
