// kernel_heap.cu: lists, vectors and objects that kernels make by malloc and new, keep from launch
// to launch and give back in later ones. Its output contains
// addresses, which are the same on every device.
#include "common.h"

struct Shape {
    __device__ virtual ~Shape() {}
    __device__ virtual int corners() const = 0;
};

struct Polygon : Shape {
    int count, *angles;
    __device__ Polygon(int n) : count(n), angles(new int[n])
    {
        for (int i = 0; i < n; i++)
            angles[i] = 360 / n + (i < 360 % n);
    }
    __device__ ~Polygon() override { delete[] angles; }
    __device__ int corners() const override
    {
        int sum = 0;
        for (int i = 0; i < count; i++)
            sum += angles[i];
        return sum == 360 ? count : -1;
    }
};

struct Point : Shape {
    __device__ int corners() const override { return 0; }
};

struct Item {
    Item *next;
    int value;
};

constexpr int LISTS = 96;
__device__ Item *lists[LISTS];
__device__ Shape *shapes[LISTS];

// Each thread puts some items before those of earlier launches, and takes some from the end.
__global__ void grow(int step, int *failed)
{
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i <= (me + step) % 4; i++) {
        Item *item = (Item *)malloc(sizeof(Item) + 8 * (me % 5));
        if (!item) {
            atomicAdd(failed, 1);
            return;
        }
        *item = {lists[me], 1000 * step + me};
        lists[me] = item;
    }
    if (step % 3 == 2) {
        Item **at = &lists[me];
        for (int i = 0; *at && i < 3; i++)
            at = &(*at)->next;
        while (Item *item = *at) {
            *at = item->next;
            free(item);
        }
    }
    delete shapes[me];
    shapes[me] = (me + step) % 3 ? (Shape *)new Polygon(3 + (me * step) % 7) : new Point;
}

__global__ void look(unsigned long long *sums, unsigned long long *places)
{
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long sum = 0, place = 0;
    for (Item *item = lists[me]; item; item = item->next) {
        sum = sum * 31 + item->value;
        place = place * 33 + (unsigned long long)item;
    }
    sums[me] = sum * 16 + shapes[me]->corners();
    places[me] = place + (unsigned long long)shapes[me];
}

// Until there is no more; then all of it goes back.
__global__ void exhaust(size_t each, int *count)
{
    void **last = nullptr;
    *count = 0;
    while (void **more = (void **)malloc(each)) {
        *more = last;
        last = more;
        ++*count;
    }
    while (last) {
        void **next = (void **)*last;
        free(last);
        last = next;
    }
    free(nullptr);
}

// The first launch is captured: there is a heap when the graph runs.
static void in_graph(int *number)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    exhaust<<<1, 1, 0, stream>>>(1 << 16, number);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        EXPECT(fetch(number, 1)[0] == 15, "%d pieces of 64 KiB", fetch(number, 1)[0]);
    }
    CUDA_CHECK(cudaMemset(number, 0, sizeof *number));
}

static std::vector<int> expected[LISTS]; // newest first

static unsigned long long expect(int me, int step)
{
    std::vector<int> &list = expected[me];
    list.insert(list.begin(), (me + step) % 4 + 1, 1000 * step + me);
    if (step % 3 == 2 && list.size() > 3)
        list.resize(3);
    unsigned long long sum = 0;
    for (int value : list)
        sum = sum * 31 + value;
    return sum * 16 + ((me + step) % 3 ? 3 + (me * step) % 7 : 0);
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 20);
    size_t limit;
    CUDA_CHECK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT(limit == 8 << 20, "the heap has %zu bytes", limit);
    int *number = on_device<int>(1);
    exhaust<<<1, 1>>>(1 << 20, number);
    EXPECT(fetch(number, 1)[0] == 7, "%d pieces of 1 MiB", fetch(number, 1)[0]);
    EXPECT(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20) == cudaErrorInvalidValue,
           "the heap's size can be changed");
    CUDA_CHECK(cudaDeviceReset());
    CUDA_CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20));
    number = on_device<int>(1);
    in_graph(number);
    auto *sums = on_device<unsigned long long>(LISTS);
    auto *places = on_device<unsigned long long>(LISTS);
    for (int k = 0; k < steps; k++) {
        grow<<<3, LISTS / 3>>>(k, number);
        look<<<2, LISTS / 2>>>(sums, places);
        std::vector<unsigned long long> got = report(k, "sums", sums, LISTS);
        report(k, "places", places, LISTS);
        for (int me = 0; me < LISTS; me++) {
            unsigned long long wanted = expect(me, k);
            EXPECT(got[me] == wanted, "list %d of step %d", me, k);
        }
        EXPECT(fetch(number, 1)[0] == 0, "%d threads had no memory", fetch(number, 1)[0]);
    }
    exhaust<<<1, 1>>>(40, number);
    print_line(steps, "left", fetch(number, 1).data(), sizeof(int));
    return 0;
}
