// events.cu: timing with events and polling: elapsed times are finite and ordered, a finished
// event stays finished, an event that was never recorded counts as finished.
#include "common.h"

__global__ void work(float *data, int rounds)
{
    float x = data[threadIdx.x];
    for (int i = 0; i < rounds; i++)
        x = x * 0.5f + 1.0f;
    data[threadIdx.x] = x;
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 40);
    float *data = on_device<float>(256), short_ms, whole_ms;
    cudaStream_t stream;
    cudaEvent_t begin, middle, end, never;
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (cudaEvent_t *event : {&begin, &middle, &end, &never})
        CUDA_CHECK(cudaEventCreate(event));
    EXPECT(cudaEventQuery(never) == cudaSuccess, "an event without work is done");
    for (int k = 0; k < steps; k++) {
        CUDA_CHECK(cudaEventRecord(begin, stream));
        work<<<1, 256, 0, stream>>>(data, 100);
        CUDA_CHECK(cudaEventRecord(middle, stream));
        work<<<1, 256, 0, stream>>>(data, 20000);
        CUDA_CHECK(cudaEventRecord(end, stream));
        cudaError_t state;
        while ((state = cudaEventQuery(end)) == cudaErrorNotReady)
            usleep(200);
        CUDA_CHECK(state);
        CUDA_CHECK(cudaStreamQuery(stream));
        CUDA_CHECK(cudaEventElapsedTime(&short_ms, begin, middle));
        CUDA_CHECK(cudaEventElapsedTime(&whole_ms, begin, end));
        EXPECT(short_ms >= 0.0f && whole_ms >= short_ms, "%g ms, then %g ms", short_ms, whole_ms);
        report(k, "data", data, 256);
    }
    for (float value : fetch(data, 256))
        EXPECT(value == 2.0f, "rank %d: %g instead of 2", world.rank, value);
    return 0;
}
