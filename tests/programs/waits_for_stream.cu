// waits_for_stream.cu: a kernel waits for what is written on another stream meanwhile: by a copy
// from the host, a fill, a copy within the device, a kernel, or a kernel behind a host function and
// another stream's event (second argument), into a buffer of its own. Every other time it has
// waited for so many µs (third argument) before that is enqueued.
#include <cstring>

#include "common.h"

constexpr int COUNT = 1 << 20; // 4 MiB: pages that ranks may share

__global__ void wait_for(const volatile int *flag, int value, int *out, int step)
{
    while (*flag != value)
        ;
    out[step] = 3 * value + step;
}

__global__ void count_up(int *flag, int value) { flag[threadIdx.x] = value; }

__global__ void set_to(int *values, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = value;
}

struct Setter {
    const char *how;
    int *flag, *source, *pinned;
    cudaStream_t stream, other;
    cudaEvent_t event;

    void operator()(int step) const
    {
        int value = 0x01010101 * (step + 1);
        *pinned = value;
        if (!strcmp(how, "host"))
            CUDA_CHECK(cudaMemcpyAsync(flag, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
        else if (!strcmp(how, "fill"))
            CUDA_CHECK(cudaMemsetAsync(flag, step + 1, sizeof(int), stream));
        else if (!strcmp(how, "device"))
            CUDA_CHECK(cudaMemcpyAsync(flag, source + step, sizeof(int), cudaMemcpyDeviceToDevice,
                                       stream));
        else if (!strcmp(how, "kernel"))
            count_up<<<1, 1, 0, stream>>>(flag, value);
        else
            behind(value);
    }

    void behind(int value) const
    {
        set_to<<<1, 1, 0, other>>>(source, value);
        CUDA_CHECK(cudaEventRecord(event, other));
        CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
        CUDA_CHECK(cudaLaunchHostFunc(stream, [](void *) { usleep(1000); }, nullptr));
        set_to<<<1, 1, 0, stream>>>(source + 1, value);
        set_to<<<1, 1, 0, stream>>>(flag, value);
    }
};

int main(int argc, char **argv)
{
    ncclComm_t comm;
    int steps = argument(argc, argv, 1, 6), apart_us = argument(argc, argv, 3, 3000);
    World world = start(&comm);
    int *out = on_device<int>(COUNT), *flags = on_device<int>(COUNT);
    float *sum = on_device<float>(COUNT);
    std::vector<int> values(COUNT);
    for (int i = 0; i < COUNT; i++)
        values[i] = 0x01010101 * (i % 100 + 1);
    cudaStream_t waiting, setting, third;
    cudaEvent_t event;
    CUDA_CHECK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&setting, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Setter set = {argc > 2 ? argv[2] : "host", flags,   on_device(values), nullptr,
                  setting,                     third, event};
    CUDA_CHECK(cudaMallocHost(&set.pinned, sizeof(int)));
    for (int step = 0; step < steps; step++) {
        set_to<<<COUNT / 256, 256, 0, waiting>>>(flags, 0); // all ranks have the same there again
        NCCL_CHECK(ncclAllReduce(sum, sum, COUNT, ncclFloat, ncclSum, comm, waiting));
        CUDA_CHECK(cudaStreamSynchronize(waiting));
        wait_for<<<1, 1, 0, waiting>>>(flags, 0x01010101 * (step + 1), out, step);
        if (step % 2)
            usleep(apart_us); // by now it runs
        set(step);
        CUDA_CHECK(cudaStreamSynchronize(setting));
        CUDA_CHECK(cudaStreamSynchronize(waiting));
        report(step, "out", out, COUNT);
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
