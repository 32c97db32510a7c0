// other_user.cu: a service that gives up root, as daemons do. Argument 1 says when: "before" its
// first CUDA call, "after" it, or "never" (it was started as another user). Then it computes,
// prints "ready", waits for the file "go" in its working directory, and computes again.
#include <grp.h>
#include <unistd.h>

#include "common.h"

constexpr int COUNT = 64;

__global__ void twice(int *values) { values[threadIdx.x] *= 2; }

static void give_up_root()
{
    constexpr uid_t NOBODY = 65534;
    EXPECT(!setgroups(0, nullptr) && !setgid(NOBODY) && !setuid(NOBODY), "cannot give up root");
}

static void compute(int *device, std::vector<int> &values)
{
    twice<<<1, COUNT>>>(device);
    CUDA_CHECK(cudaMemcpy(values.data(), device, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
}

int main(int argc, char **argv)
{
    const char *when = argc > 1 ? argv[1] : "never";
    if (!strcmp(when, "before"))
        give_up_root();
    World world = start();
    std::vector<int> values(COUNT);
    for (int i = 0; i < COUNT; i++)
        values[i] = i + world.rank;
    int *device = on_device(values), *pinned;
    if (!strcmp(when, "after"))
        give_up_root();
    compute(device, values);
    CUDA_CHECK(cudaMallocHost(&pinned, 1 << 20));
    printf("ready\n");
    fflush(stdout);
    while (access("go", F_OK))
        usleep(10000);
    *pinned = values[COUNT - 1];
    compute(device, values);
    EXPECT(values[COUNT - 1] == 2 * *pinned, "%d is not twice %d", values[COUNT - 1], *pinned);
    printf("rank %d computed %d as user %s\n", world.rank, values[COUNT - 1],
           getuid() ? "nobody" : "root");
    return 0;
}
