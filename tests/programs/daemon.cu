// daemon.cu: a program that makes itself a daemon before it uses the device. Its rank continues in
// the child.
#include "behaviour.h"

__global__ void twice(int *values) { values[threadIdx.x] *= 2; }

static void become_a_daemon()
{
    pid_t parent = getpid(), child = fork();
    if (child != 0)
        _exit(child < 0);
    setsid();
    while (getppid() == parent)
        usleep(1000);
}

int main(int argc, char **argv)
{
    become_a_daemon();
    std::vector<int> values(32, 1);
    int *data = on_device(values);
    for (int half = 0; half < 2; half++) {
        twice<<<1, 32>>>(data);
        CUDA_CHECK(cudaMemcpy(values.data(), data, 32 * sizeof *data, cudaMemcpyDeviceToHost));
        EXPECT(values[31] == 2 << half, "%d in half %d", values[31], half);
        if (half == 0)
            interlude(argc, argv);
    }
    printf("the daemon is done\n");
    return 0;
}
