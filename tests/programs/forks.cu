// forks.cu: children made by fork. One made before CUDA is used may use it, and so may its parent
// when the child has ended; one made afterwards may not, and does its parent no harm.
#include <sys/wait.h>

#include "behaviour.h"

__global__ void put(int *to, int value) { *to = value; }

template <typename Child>
static void in_a_child(Child child)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        child();
        fflush(stdout);
        _exit(0);
    }
    int status;
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
    EXPECT(status == 0, "the child ended with status %#x", status);
}

static void use(int value)
{
    int *device = on_device<int>(1), got;
    put<<<1, 1>>>(device, value);
    CUDA_CHECK(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == value, "%d, not %d", got, value);
    CUDA_CHECK(cudaFree(device));
    printf("pid %s used it: %d\n", value == 1 ? "of the child" : "of the parent", value);
}

int main(int argc, char **argv)
{
    World world = world_from_env();
    int count;
    CUDA_CHECK(cudaGetDeviceCount(&count));  // asking is not using
    in_a_child([&] {
        CUDA_CHECK(cudaSetDevice(world.local_rank));
        use(1);
    });
    CUDA_CHECK(cudaSetDevice(world.local_rank));
    use(2);
    int *device = on_device<int>(1), got, *pinned;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMallocHost(&pinned, 4096));
    for (int half = 0; half < 2; half++) {
        put<<<1, 1, 0, stream>>>(device, 3 + half);
        in_a_child([&] {
            void *memory;
            EXPECT(cudaGetLastError() == cudaSuccess, "before any call");
            cudaError_t all[] = {
                cudaMalloc(&memory, 16), cudaDeviceSynchronize(), cudaStreamSynchronize(stream),
                cudaMemcpy(&got, device, 4, cudaMemcpyDeviceToHost), cudaFree(device),
                cudaGetDeviceCount(&count), cudaSetDevice(0), cudaFreeHost(pinned),
                cudaHostUnregister(&got), cudaStreamDestroy(stream), cudaGetLastError(),
            };
            for (cudaError_t &one : all)
                EXPECT(one == cudaErrorInitializationError, "call %zu gives %s",
                       size_t(&one - all), cudaGetErrorName(one));
            put<<<1, 1, 0, stream>>>(device, -1);
            EXPECT(cudaGetLastError() == cudaErrorInitializationError, "a launch");
        });
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost));
        EXPECT(got == 3 + half, "the parent's number is %d", got);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
