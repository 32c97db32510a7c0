// behaviour.h: what the programs share that show how calls behave on the specification's terms.
//
// Each shows its things twice, `before` and `after` an interlude in which its rank may be moved
// elsewhere: what it made before must serve it after. It prints what does not depend on the place.
#pragma once

#include <atomic>

#include "common.h"

// The call fails in this way, and the thread's last error says so, once.
#define FAILS(call, error)                                                                   \
    do {                                                                                     \
        cudaError_t got_ = (call);                                                           \
        EXPECT(got_ == (error), "%s gives %s, not %s", #call, cudaGetErrorName(got_), #error); \
        got_ = cudaGetLastError();                                                           \
        EXPECT(got_ == (error), "the last error is %s, not %s", cudaGetErrorName(got_), #error); \
        EXPECT(cudaGetLastError() == cudaSuccess, "%s left its error", #call);               \
    } while (0)

// It answers that it is not over, which is no error that stays.
#define NOT_YET(call)                                                                        \
    do {                                                                                     \
        cudaError_t got_ = (call);                                                           \
        EXPECT(got_ == cudaErrorNotReady, "%s gives %s", #call, cudaGetErrorName(got_));     \
        EXPECT(cudaGetLastError() == cudaSuccess, "%s left its answer", #call);              \
    } while (0)

#ifdef CUDA_VERSION  // after #include <cuda.h>
#define DRIVER_CHECK(call)                                                                   \
    do {                                                                                     \
        CUresult got_ = (call);                                                              \
        EXPECT(got_ == CUDA_SUCCESS, "%s gives %d", #call, int(got_));                       \
    } while (0)
#define DRIVER_FAILS(call, error)                                                            \
    do {                                                                                     \
        CUresult got_ = (call);                                                              \
        EXPECT(got_ == (error), "%s gives %d, not %s", #call, int(got_), #error);            \
    } while (0)
#endif

// Says that one half is over, and waits for the file that argument 1 names.
inline void interlude(int argc, char **argv)
{
    printf("half\n");
    fflush(stdout);
    while (argc > 1 && access(argv[1], F_OK))
        usleep(1000);
}

// A host function that holds its stream up until the gate is open.
struct Gate {
    std::atomic<bool> open{false};
    static void wait(void *gate)
    {
        while (!static_cast<Gate *>(gate)->open)
            usleep(200);
    }
};

// Takes milliseconds on any device: a chain of steps that no compiler sees through.
inline __device__ void dawdle(unsigned *sink)
{
    unsigned x = *sink | 1;
    for (int i = 0; i < 1000000; i++)
        x = (x >> 3 ^ x << 5) * 1664525u + (x >> 17);
    *sink = x;
}
