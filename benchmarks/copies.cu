// copies.cu: how fast copies between the host and the device are. Argument: MiB of a copy. Prints a
// line for each kind: its name, and GB/s, the best of some.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t error_ = (call);                                                         \
        if (error_) {                                                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));                  \
            return 1;                                                                        \
        }                                                                                    \
    } while (0)

constexpr int ROUNDS = 8;

static int measure(const char *name, void *to, const void *from, size_t bytes)
{
    double best = 0;
    for (int k = 0; k < ROUNDS; k++) {
        auto begun = std::chrono::steady_clock::now();
        CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, 0));
        CHECK(cudaStreamSynchronize(0));
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        if (double(bytes) / took.count() / 1e9 > best)
            best = double(bytes) / took.count() / 1e9;
    }
    printf("%s %.2f\n", name, best);
    return 0;
}

int main(int argc, char **argv)
{
    size_t bytes = size_t(argc > 1 ? atoi(argv[1]) : 256) << 20;
    void *device, *other, *pinned, *pageable = malloc(bytes);
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMalloc(&other, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    memset(pinned, 1, bytes);
    memset(pageable, 2, bytes);
    return measure("pinned_to_device", device, pinned, bytes) ||
           measure("device_to_pinned", pinned, device, bytes) ||
           measure("pageable_to_device", device, pageable, bytes) ||
           measure("device_to_pageable", pageable, device, bytes) ||
           measure("within_the_device", other, device, bytes);
}
