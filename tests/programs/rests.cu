// rests.cu: the time between two events, one before and one after its rank has rested: a span that
// was over before is the same one after, and the time at rest is not counted.
#include <ctime>

#include "behaviour.h"

__global__ void work(unsigned *sink) { dawdle(sink); }

static double awake()  // seconds; the clock stands still while a rank is at rest without processes
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static float between(cudaEvent_t begin, cudaEvent_t end)
{
    float ms;
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms;
}

int main(int argc, char **argv)
{
    start();
    unsigned *sink = on_device<unsigned>(1);
    cudaEvent_t first, second, third;
    for (cudaEvent_t *event : {&first, &second, &third})
        CUDA_CHECK(cudaEventCreate(event));
    CUDA_CHECK(cudaEventRecord(first, 0));
    work<<<1, 1>>>(sink);
    CUDA_CHECK(cudaEventRecord(second, 0));
    float before = between(first, second);
    double began = awake();
    interlude(argc, argv);
    EXPECT(between(first, second) == before, "it took %g ms", before);
    work<<<1, 1>>>(sink);
    CUDA_CHECK(cudaEventRecord(third, 0));
    double counted = between(second, third) / 1e3;
    EXPECT(-between(third, second) / 1e3 == counted, "%g s", counted);
    printf("%g s counted of %g s\n", counted, awake() - began);
    return 0;
}
