// registered.cu: memory of the program that it registers: kernels reach it, copies of it do not
// wait where it consists of whole pages, and it is the program's as before when it is unregistered.
// And the attributes of host memory of each kind.
#include <atomic>
#include <cuda.h>
#include <sys/wait.h>

#include "behaviour.h"

constexpr int COUNT = 1 << 18;
constexpr size_t BYTES = COUNT * sizeof(int), PAGE = 4096;

__global__ void add(int *data, int what)
{
    data[blockIdx.x * blockDim.x + threadIdx.x] += what;
}

static std::atomic<bool> gate;
static void wait_for_gate(void *)
{
    while (!gate)
        usleep(200);
}
static void double_all(void *data)
{
    for (int i = 0; i < COUNT; i++)
        static_cast<int *>(data)[i] *= 2;
}

static int *pages(size_t bytes, int seed)
{
    void *memory;
    EXPECT(posix_memalign(&memory, PAGE, bytes) == 0, "no memory");
    for (size_t i = 0; i < bytes / sizeof(int); i++)
        static_cast<int *>(memory)[i] = seed + int(i);
    return static_cast<int *>(memory);
}

static void expect(const int *at, int seed, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        EXPECT(at[i] == seed + i, "%s: [%d] is %d", what, i, at[i]);
}

// Kernels and the host work on the same memory; nothing of it changes when it changes places.
static void reached_by_kernels(int *memory, int seed, cudaStream_t stream)
{
    int *reached;
    CUDA_CHECK(cudaHostGetDevicePointer(&reached, memory, 0));
    expect(memory, seed, "registered");
    add<<<COUNT / 256, 256, 0, stream>>>(reached, 5);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    expect(memory, seed + 5, "after a kernel");
    memory[7] = -1;
    CUDA_CHECK(cudaHostGetDevicePointer(&reached, memory + 7, 0));
    add<<<1, 1, 0, stream>>>(reached, 11);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(memory[7] == 10, "%d in the middle", memory[7]);
    memory[7] = seed + 5 + 7;
    CUDA_CHECK(cudaMemsetAsync(memory, 0, 4, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT(memory[0] == 0, "%d after a fill", memory[0]);
    memory[0] = seed + 5;
    add<<<COUNT / 256, 256, 0, stream>>>(reached - 7, -5);
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Copies return while the stream is held up, and take their turn in it: what they read is what
// is there then, also if a host function has put it there.
static void copies_do_not_wait(int *memory, int seed, int *device, cudaStream_t stream)
{
    gate = false;
    CUDA_CHECK(cudaMemcpy(device, memory, BYTES, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaLaunchHostFunc(stream, wait_for_gate, nullptr));
    add<<<COUNT / 256, 256, 0, stream>>>(device, 100);
    CUDA_CHECK(cudaMemcpyAsync(memory, device, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaLaunchHostFunc(stream, double_all, memory));
    CUDA_CHECK(cudaMemcpyAsync(device, memory, BYTES, cudaMemcpyHostToDevice, stream));
    expect(memory, seed, "before its turn");
    gate = true;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<int> got = fetch(device, COUNT);
    for (int i = 0; i < COUNT; i++)
        EXPECT(got[i] == 2 * (seed + 100 + i) && memory[i] == got[i], "[%d] is %d", i, got[i]);
    for (int i = 0; i < COUNT; i++)
        memory[i] = seed + i;
}

static void facts(int *memory)
{
    cudaPointerAttributes of;
    void *reached;
    CUDA_CHECK(cudaPointerGetAttributes(&of, memory + 100));
    CUDA_CHECK(cudaHostGetDevicePointer(&reached, memory + 100, 0));
    EXPECT(of.type == cudaMemoryTypeHost && of.hostPointer == memory + 100 &&
               of.devicePointer == reached, "type %d", int(of.type));
    FAILS(cudaHostRegister(memory, BYTES, 0), cudaErrorHostMemoryAlreadyRegistered);
    FAILS(cudaHostRegister(memory + COUNT / 2, PAGE, 0), cudaErrorHostMemoryAlreadyRegistered);
    FAILS(cudaHostUnregister(memory + 1024), cudaErrorInvalidValue);
    FAILS(cudaHostRegister(nullptr, 16, 0), cudaErrorInvalidValue);
    FAILS(cudaHostRegister(&of, 0, 0), cudaErrorInvalidValue);
    FAILS(cudaHostRegister(&of, 4, 128), cudaErrorInvalidValue);
    fflush(stdout);
    pid_t child = fork();  // which reads what its parent has registered
    if (child == 0)
        _exit(memory[1] - memory[0]);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 1 << 8, "status %#x", status);
}

// Several facts at once; what is no memory of the device's has none, which is no error.
static void expect_facts(const void *at, unsigned type, int ordinal)
{
    unsigned got = 0x12345678;
    int device = 0x12345678;
    CUdeviceptr range = 0x12345678;
    CUcontext context = CUcontext(0x12345678);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_CONTEXT};
    void *to[] = {&got, &device, &range, &context};
    DRIVER_CHECK(cuPointerGetAttributes(4, which, to, CUdeviceptr(at)));
    EXPECT(got == type && device == ordinal, "type %#x on device %d", got, device);
    EXPECT(!range == !type && !context == !type, "from %#llx in %p", range, context);
}

static void facts_of_all_kinds(const int *memory, const int *device)
{
    unsigned flags;
    int ordinal;
    void *pinned, *portable;
    CUDA_CHECK(cudaGetDevice(&ordinal));
    CUDA_CHECK(cudaMallocHost(&pinned, 100));
    CUDA_CHECK(cudaHostAlloc(&portable, 100, cudaHostAllocPortable | cudaHostAllocWriteCombined));
    CUDA_CHECK(cudaHostGetFlags(&flags, pinned));
    EXPECT(flags == cudaHostAllocMapped, "flags %u", flags);
    CUDA_CHECK(cudaHostGetFlags(&flags, static_cast<char *>(portable) + 99));
    EXPECT(flags == 7, "flags %u", flags);
    FAILS(cudaHostGetFlags(&flags, &flags), cudaErrorInvalidValue);
    FAILS(cudaHostGetFlags(&flags, const_cast<int *>(device)), cudaErrorInvalidValue);
    expect_facts(memory + 5, CU_MEMORYTYPE_HOST, ordinal);
    expect_facts(pinned, CU_MEMORYTYPE_HOST, ordinal);
    expect_facts(device, CU_MEMORYTYPE_DEVICE, ordinal);
    expect_facts(&flags, 0, -2);
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFreeHost(portable));
}

// Parts of pages: the copies are right, and kernels are refused.
static void parts_of_pages(int *device)
{
    std::vector<int> memory(5000, 3), back(5000);
    void *reached;
    CUDA_CHECK(cudaHostRegister(memory.data(), 20000, cudaHostRegisterPortable));
    CUDA_CHECK(cudaMemcpyAsync(device, memory.data(), 20000, cudaMemcpyDefault, 0));
    CUDA_CHECK(cudaMemcpyAsync(back.data(), device, 20000, cudaMemcpyDefault, 0));
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT(back == memory, "changed on the way");
    FAILS(cudaHostGetDevicePointer(&reached, memory.data(), 0), cudaErrorNotSupported);
    CUDA_CHECK(cudaHostUnregister(memory.data()));
    FAILS(cudaHostGetDevicePointer(&reached, memory.data(), 0), cudaErrorInvalidValue);
}

int main(int argc, char **argv)
{
    start();
    int *device = on_device<int>(COUNT), *kept = pages(BYTES, 1000);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaHostRegister(kept, BYTES, cudaHostRegisterMapped));
    for (int half = 0; half < 2; half++) {
        int *memory = pages(BYTES, half);
        CUDA_CHECK(cudaHostRegister(memory, BYTES, cudaHostRegisterDefault));
        reached_by_kernels(memory, half, stream);
        copies_do_not_wait(memory, half, device, stream);
        copies_do_not_wait(kept, 1000, device, stream);
        facts(memory);
        facts_of_all_kinds(memory, device);
        CUDA_CHECK(cudaHostUnregister(memory));
        FAILS(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
        expect(memory, half, "unregistered");
        free(memory);
        parts_of_pages(device);
        if (half == 0)
            interlude(argc, argv);
    }
    CUDA_CHECK(cudaHostUnregister(kept));
    expect(kept, 1000, "to the end");
    free(kept);
    return 0;
}
