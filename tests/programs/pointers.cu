// pointers.cu: variables that begin with addresses, functions called through pointers, and virtual
// functions. One rank; checks itself.
#include <cstdio>
#include <new>

__device__ int numbers[4] = {10, 20, 30, 40};
__device__ int *third = &numbers[2];
struct Mixed { short tag; int *where; };
__device__ Mixed mixed[2] = {{7, &numbers[1]}, {8, &numbers[3]}};
__constant__ const char *names[2] = {"zero", "one"};

typedef int (*Operation)(int, int);
__device__ __noinline__ int plus(int a, int b) { return a + b; }
__device__ __noinline__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int across(int a, int b)
{
    __syncthreads();  // in a function that is called through a pointer
    return a - b;
}
__device__ Operation operations[3] = {plus, times, across};

struct Shape {
    __device__ virtual int area() const = 0;
    int side;
};
struct Square : Shape { __device__ int area() const override { return side * side; } };
struct Line : Shape { __device__ int area() const override { return -side; } };

__global__ void use(int *out, int which)
{
    int t = threadIdx.x;
    __shared__ __align__(8) char room[2][sizeof(Square)];
    if (t == 0) {
        (new (room[0]) Square)->side = 5;
        (new (room[1]) Line)->side = 6;
    }
    __syncthreads();
    const Shape *shape = (const Shape *)room[(t + which) & 1 ? 0 : 1];
    out[5 * t] = third[t & 1];
    out[5 * t + 1] = mixed[t & 1].tag * 100 + *mixed[t & 1].where;
    out[5 * t + 2] = names[t & 1][t & 1];
    out[5 * t + 3] = operations[which == 2 ? 2 : t & 1](t, 3);
    out[5 * t + 4] = shape->area();
}

// The kernel that calls these functions is not the one that takes their addresses.
__device__ __noinline__ int less(int a, int b) { return a - 2 * b; }
__device__ __noinline__ int more(int a, int b) { return a + 2 * b; }
__device__ Operation chosen;
__global__ void choose(int which) { chosen = which ? more : less; }
__global__ void call_chosen(int *out) { out[threadIdx.x] = chosen(threadIdx.x, 5); }

int main()
{
    constexpr int threads = 64;
    int *out, got[5 * threads], wrong = 0;
    cudaMalloc(&out, sizeof got);
    for (int which = 0; which < 3; which++) {
        use<<<1, threads>>>(out, which);
        cudaError_t error = cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
        if (error != cudaSuccess) {
            printf("%s\n", cudaGetErrorString(error));
            return 1;
        }
        for (int t = 0; t < threads; t++) {
            int odd = t & 1;
            int expected[5] = {odd ? 40 : 30, odd ? 840 : 720, odd ? 'n' : 'z',
                               which == 2 ? t - 3 : odd ? t * 3 : t + 3,
                               (t + which) & 1 ? 25 : -6};
            for (int k = 0; k < 5; k++)
                wrong += got[5 * t + k] != expected[k];
        }
    }
    for (int which = 0; which < 2; which++) {
        choose<<<1, 1>>>(which);
        call_chosen<<<1, threads>>>(out);
        wrong += cudaMemcpy(got, out, threads * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess;
        for (int t = 0; t < threads; t++)
            wrong += got[t] != (which ? t + 10 : t - 10);
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
