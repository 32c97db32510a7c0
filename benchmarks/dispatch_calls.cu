// dispatch_calls.cu: what one call costs the program, call by call.
//
// dispatch_calls launch|sync ROUNDS: writes one number per call, the nanoseconds that it took less
// those that asking the clock takes, as 32-bit floats to $DISPATCH_CALLS. `launch`: rounds of
// BURST launches of an almost empty kernel, each round begun with a synchronisation, so that the
// server is awake. `sync`: cudaStreamSynchronize with nothing to wait for, one after another.
#include <cuda_runtime.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

constexpr int BURST = 64, WARM = 20;

__global__ void touch(float *at, float add)
{
    at[threadIdx.x] += add;
}

static double seconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

static unsigned long long ticks()
{
    unsigned ignored;
    unsigned long long now = __rdtscp(&ignored);
    _mm_lfence();
    return now;
}

static double empty_ticks()
{
    std::vector<unsigned long long> took(10001);
    for (auto &each : took) {
        unsigned long long start = ticks();
        each = ticks() - start;
    }
    std::nth_element(took.begin(), took.begin() + 5000, took.end());
    return double(took[5000]);
}

#define CHECK(call)                                                                          \
    if (cudaError_t error = (call)) {                                                        \
        fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                       \
        return 1;                                                                            \
    }

int main(int argc, char **argv)
{
    bool launch = argc > 1 && !strcmp(argv[1], "launch");
    int rounds = argc > 2 ? atoi(argv[2]) : 100, calls = launch ? BURST : 1;
    const char *path = getenv("DISPATCH_CALLS");
    std::vector<unsigned long long> took;
    took.reserve(size_t(rounds) * calls);
    cudaStream_t stream;
    float *at;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&at, 32 * sizeof *at));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned long long first = 0;
    double since = 0;
    for (int round = -WARM; round < rounds; round++) {
        if (round == 0)
            first = ticks(), since = seconds();
        if (launch || round < 0)
            CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < calls; i++) {
            unsigned long long start = ticks();
            if (launch)
                touch<<<1, 32, 0, stream>>>(at, 1.0f);
            else
                CHECK(cudaStreamSynchronize(stream));
            if (round >= 0)
                took.push_back(ticks() - start);
        }
    }
    double rate = (seconds() - since) * 1e9 / double(ticks() - first), empty = empty_ticks();
    CHECK(cudaDeviceSynchronize());
    FILE *file = path ? fopen(path, "wb") : nullptr;
    for (unsigned long long each : took) {
        float ns = float((double(each) - empty) * rate);
        if (file)
            fwrite(&ns, sizeof ns, 1, file);
    }
    return file && fclose(file) == 0 ? 0 : 1;
}
