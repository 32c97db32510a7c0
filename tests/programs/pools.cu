// pools.cu: stream-ordered allocation from pools, the device's own and created ones. Kernels use
// what was just allocated and free it behind them; what the pools say of themselves is what was
// done.
#include <cuda.h>

#include "common.h"

constexpr size_t MIB = size_t(1) << 20;
constexpr int COUNT = 1 << 16;

#define REFUSED(call, error)                                                                  \
    do {                                                                                      \
        cudaError_t got = (call);                                                             \
        EXPECT(got == (error), "%s: %s", #call, cudaGetErrorName(got));                       \
        cudaGetLastError();                                                                   \
    } while (0)

__global__ void fill(unsigned *data, unsigned seed)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = (i ^ seed) * 0x9e3779b9u;
}
__global__ void mix(unsigned *into, const unsigned *from)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    into[i] = into[i] * 31u + from[i];
}

static uint64_t number(cudaMemPool_t pool, cudaMemPoolAttr attribute)
{
    uint64_t value = 0;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}
static void set(cudaMemPool_t pool, cudaMemPoolAttr attribute, uint64_t value)
{
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, attribute, &value));
}
static uint64_t used(cudaMemPool_t pool) { return number(pool, cudaMemPoolAttrUsedMemCurrent); }
static uint64_t reserved(cudaMemPool_t pool)
{
    return number(pool, cudaMemPoolAttrReservedMemCurrent);
}

static cudaMemPool_t create(int device, size_t most = 0)
{
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    props.maxSize = most;
    cudaMemPool_t pool;
    CUDA_CHECK(cudaMemPoolCreate(&pool, &props));
    return pool;
}

static size_t free_memory()
{
    size_t free, total;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
}

// Current and high, in use and reserved; what a threshold keeps, and what gives it back.
static void accounts(int device, cudaStream_t stream)
{
    cudaMemPool_t pool = create(device);
    void *a, *b;
    size_t before = free_memory();
    CUDA_CHECK(cudaMallocFromPoolAsync(&a, 4 * MIB, pool, stream));
    CUDA_CHECK(cudaMallocFromPoolAsync(&b, 2 * MIB, pool, stream));
    EXPECT(used(pool) == 6 * MIB, "used: %" PRIu64, used(pool));
    EXPECT(reserved(pool) >= 6 * MIB, "reserved: %" PRIu64, reserved(pool));
    EXPECT(before - free_memory() >= 6 * MIB, "memory that is in use is not free");
    CUDA_CHECK(cudaFreeAsync(a, stream));
    EXPECT(used(pool) == 2 * MIB, "used: %" PRIu64, used(pool));
    EXPECT(number(pool, cudaMemPoolAttrUsedMemHigh) == 6 * MIB, "the high watermark stays");
    set(pool, cudaMemPoolAttrUsedMemHigh, 0);
    EXPECT(number(pool, cudaMemPoolAttrUsedMemHigh) == 2 * MIB, "and is reset to what is used");
    uint64_t wrong = 1;
    REFUSED(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &wrong),
            cudaErrorInvalidValue);
    REFUSED(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &wrong),
            cudaErrorInvalidValue);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(reserved(pool) < 6 * MIB, "threshold 0: a synchronisation gives back");
    EXPECT(number(pool, cudaMemPoolAttrReservedMemHigh) >= 6 * MIB, "it was more");

    set(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
    EXPECT(number(pool, cudaMemPoolAttrReleaseThreshold) == UINT64_MAX, "the threshold");
    CUDA_CHECK(cudaMallocFromPoolAsync(&a, 8 * MIB, pool, stream));
    CUDA_CHECK(cudaFreeAsync(a, stream));
    CUDA_CHECK(cudaFreeAsync(b, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(used(pool) == 0 && reserved(pool) >= 10 * MIB, "kept: %" PRIu64, reserved(pool));
    EXPECT(before - free_memory() >= 10 * MIB, "what a pool keeps is not free");
    void *large;
    uint64_t kept = reserved(pool);
    CUDA_CHECK(cudaMalloc(&large, free_memory() + 4 * MIB));
    EXPECT(reserved(pool) <= kept - 4 * MIB, "memory that a pool keeps causes no failure");
    CUDA_CHECK(cudaFree(large));
    CUDA_CHECK(cudaMallocFromPoolAsync(&a, 8 * MIB, pool, stream));
    CUDA_CHECK(cudaFreeAsync(a, stream));
    CUDA_CHECK(cudaMemPoolTrimTo(pool, 4 * MIB));
    EXPECT(reserved(pool) >= 4 * MIB && reserved(pool) < 8 * MIB, "%" PRIu64, reserved(pool));
    CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
    EXPECT(reserved(pool) == 0 && free_memory() == before, "all is given back");
    set(pool, cudaMemPoolAttrReservedMemHigh, 0);
    EXPECT(number(pool, cudaMemPoolAttrReservedMemHigh) == 0, "the high watermark too");
    int flag = 0;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &flag));
    EXPECT(flag == 1, "reuse is allowed at first");
    flag = 0;
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &flag));
    flag = 1;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &flag));
    EXPECT(flag == 0, "and may be forbidden");
    CUDA_CHECK(cudaMemPoolDestroy(pool));
    REFUSED(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidValue);
}

// Which pool cudaMallocAsync takes, and pools that end before what came from them.
static void current(int device, cudaStream_t stream)
{
    cudaMemPool_t first, pool = create(device, 4 * MIB), got;
    void *a, *b;
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&first, device));
    CUDA_CHECK(cudaDeviceGetMemPool(&got, device));
    EXPECT(got == first, "the default pool is the current one");
    CUDA_CHECK(cudaDeviceSetMemPool(device, pool));
    CUDA_CHECK(cudaMallocAsync(&a, MIB, stream));
    EXPECT(used(pool) == MIB && used(first) == 0, "from the current pool");
    REFUSED(cudaMallocAsync(&b, 4 * MIB, stream), cudaErrorMemoryAllocation);
    REFUSED(cudaMallocAsync(&b, size_t(1) << 50, stream), cudaErrorMemoryAllocation);
    EXPECT(used(pool) == MIB, "what failed does not count");
    CUDA_CHECK(cudaMemPoolDestroy(pool));
    CUDA_CHECK(cudaDeviceGetMemPool(&got, device));
    EXPECT(got == first, "the default pool again");
    REFUSED(cudaDeviceSetMemPool(device, pool), cudaErrorInvalidValue);
    REFUSED(cudaMallocFromPoolAsync(&b, MIB, pool, stream), cudaErrorInvalidValue);
    REFUSED(cudaMemPoolDestroy(first), cudaErrorInvalidValue);
    CUDA_CHECK(cudaMemsetAsync(a, 1, MIB, stream));
    CUDA_CHECK(cudaFree(a));  // the plain form is allowed
    CUDA_CHECK(cudaMalloc(&b, MIB));
    CUDA_CHECK(cudaFreeAsync(b, stream));
    REFUSED(cudaFreeAsync(b, stream), cudaErrorInvalidValue);

    cudaMemLocation here = {cudaMemLocationTypeDevice, device};
    cudaMemAccessFlags flags;
    cudaMemAccessDesc access = {here, cudaMemAccessFlagsProtReadWrite};
    CUDA_CHECK(cudaMemPoolGetAccess(&flags, first, &here));
    EXPECT(flags == cudaMemAccessFlagsProtReadWrite, "a pool's own device reads and writes");
    CUDA_CHECK(cudaMemPoolSetAccess(first, &access, 1));
    access.flags = cudaMemAccessFlagsProtNone;
    REFUSED(cudaMemPoolSetAccess(first, &access, 1), cudaErrorInvalidValue);
    int file;
    REFUSED(cudaMemPoolExportToShareableHandle(&file, first,
                                               cudaMemHandleTypePosixFileDescriptor, 0),
            cudaErrorNotSupported);
}

// The driver API's forms are the same pools.
static void driver(int device, cudaStream_t stream)
{
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = device;
    CUmemoryPool pool;
    CUdeviceptr at;
    uint64_t bytes;
    EXPECT(!cuMemPoolCreate(&pool, &props), "create");
    EXPECT(!cuMemAllocFromPoolAsync(&at, MIB, pool, stream), "allocate");
    EXPECT(!cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes), "ask");
    EXPECT(bytes == MIB && used((cudaMemPool_t)pool) == MIB, "%" PRIu64, bytes);
    EXPECT(!cuMemFreeAsync(at, stream), "free");
    EXPECT(!cuMemPoolDestroy(pool), "destroy");
    EXPECT(cuMemPoolTrimTo(pool, 0) == CUDA_ERROR_INVALID_VALUE, "it is gone");
}

static uint64_t of_graphs(int device)
{
    uint64_t bytes = 0;
    CUDA_CHECK(cudaDeviceGetGraphMemAttribute(device, cudaGraphMemAttrUsedMemCurrent, &bytes));
    return bytes;
}

// A graph that adds two numbers' fills to `sum`, which may be its own memory, kept by the program.
static cudaGraph_t capture(cudaStream_t stream, unsigned **sum)
{
    constexpr size_t BYTES = COUNT * sizeof **sum;
    unsigned *one, *two;
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (!*sum) {
        CUDA_CHECK(cudaMallocAsync(sum, BYTES, stream));
        CUDA_CHECK(cudaMemsetAsync(*sum, 0, BYTES, stream));
    }
    CUDA_CHECK(cudaMallocAsync(&one, BYTES, stream));
    fill<<<COUNT / 256, 256, 0, stream>>>(one, 7);
    mix<<<COUNT / 256, 256, 0, stream>>>(*sum, one);
    CUDA_CHECK(cudaFreeAsync(one, stream));
    CUDA_CHECK(cudaMallocAsync(&two, BYTES, stream));
    EXPECT(one == two, "what was freed before is used again");
    fill<<<COUNT / 256, 256, 0, stream>>>(two, 9);
    mix<<<COUNT / 256, 256, 0, stream>>>(*sum, two);
    CUDA_CHECK(cudaFreeAsync(two, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void is_right(const unsigned *sum)
{
    static unsigned got[COUNT];
    CUDA_CHECK(cudaMemcpy(got, sum, sizeof got, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < COUNT; i++)
        EXPECT(got[i] == ((i ^ 7) * 0x9e3779b9u) * 31u + (i ^ 9) * 0x9e3779b9u, "element %u", i);
}

// Memory that a graph allocates and does not free is the program's from a launch until it frees it.
static void kept(int device, cudaStream_t stream)
{
    unsigned *sum = nullptr;
    uint64_t before = of_graphs(device);
    cudaGraph_t graph = capture(stream, &sum);
    EXPECT(of_graphs(device) == before + 2 * COUNT * sizeof *sum, "%" PRIu64, of_graphs(device));
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    is_right(sum);
    REFUSED(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue);
    CUDA_CHECK(cudaFreeAsync(sum, stream));
    REFUSED(cudaFreeAsync(sum, stream), cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaFree(sum));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 2; i++)
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(of_graphs(device) == before + COUNT * sizeof *sum, "%" PRIu64, of_graphs(device));
    is_right(sum);  // the graph is gone
    CUDA_CHECK(cudaFreeAsync(sum, stream));
    EXPECT(of_graphs(device) == before, "%" PRIu64, of_graphs(device));
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 30);
    cudaStream_t stream;
    cudaMemPool_t pool = create(world.local_rank), usual;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    accounts(world.local_rank, stream);
    current(world.local_rank, stream);
    driver(world.local_rank, stream);
    kept(world.local_rank, stream);
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&usual, world.local_rank));
    set(pool, cudaMemPoolAttrReleaseThreshold, 4 * MIB);
    unsigned *sum = on_device<unsigned>(COUNT);
    cudaGraph_t graph = capture(stream, &sum);
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < steps; k++) {
        unsigned *one, *two;
        CUDA_CHECK(cudaMallocAsync(&one, COUNT * sizeof *one, stream));
        CUDA_CHECK(cudaMallocFromPoolAsync(&two, COUNT * sizeof *two, pool, stream));
        fill<<<COUNT / 256, 256, 0, stream>>>(one, unsigned(k));
        fill<<<COUNT / 256, 256, 0, stream>>>(two, unsigned(world.rank));
        mix<<<COUNT / 256, 256, 0, stream>>>(sum, one);
        CUDA_CHECK(cudaFreeAsync(one, stream));
        mix<<<COUNT / 256, 256, 0, stream>>>(sum, two);
        CUDA_CHECK(cudaFreeAsync(two, stream));
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        report(k, "sum", sum, COUNT);
        EXPECT(used(pool) == 0 && used(usual) == 0, "step %d", k);
    }
    return 0;
}
