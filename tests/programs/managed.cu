// managed.cu: managed memory, which host and kernels use at one address: as both see it before and
// after the rank has moved, advice and queries, how it is freed, __managed__ variables.
#include <cuda.h>

#include <fstream>
#include <iterator>
#include <string>

#include "behaviour.h"

constexpr int COUNT = 10000;
constexpr size_t BYTES = COUNT * sizeof(int), PAGE = 4096;
const cudaMemLocation HOST = {cudaMemLocationTypeHost, 0};
static cudaMemLocation HERE = {cudaMemLocationTypeDevice, 0};  // the rank's own device

__managed__ int counter = 40;
__managed__ double table[600];
__device__ int factor = 2;

__global__ void add(int *data, int what) { data[blockIdx.x * blockDim.x + threadIdx.x] += what; }

__global__ void use_variables()
{
    atomicAdd(&counter, factor);
    table[threadIdx.x] += threadIdx.x;
}

__global__ void answer(volatile int *asked, volatile int *answered)
{
    while (!*asked)
        ;
    *answered = *asked + 1;
}

static void expect(const int *at, int first, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        EXPECT(at[i] == first + i, "%s: [%d] is %d", what, i, at[i]);
}

// The host writes, a kernel adds, the host reads: no copy in between.
static void seen_by_both(int *memory, cudaStream_t stream)
{
    for (int i = 0; i < COUNT; i++)
        memory[i] = i;
    add<<<COUNT / 100, 100, 0, stream>>>(memory, 7);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    expect(memory, 7, "after a kernel");
    volatile int *both = memory;
    both[0] = both[1] = 0;
    answer<<<1, 1, 0, stream>>>(memory, memory + 1);
    both[0] = 5;  // while the kernel runs
    while (both[1] != 6)
        usleep(100);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    memory[0] = 7, memory[1] = 8;
}

// Copies in each direction that one may name, and fills, which have happened when they return.
static void copied_and_filled(int *memory, int *device, cudaStream_t stream)
{
    int *other;
    std::vector<int> host(COUNT);
    CUDA_CHECK(cudaMallocManaged(&other, BYTES));
    CUDA_CHECK(cudaMemcpy(device, memory, BYTES, cudaMemcpyDeviceToDevice));
    CUDA_CHECK(cudaMemcpy(other, device, BYTES, cudaMemcpyDeviceToHost));
    expect(other, 7, "copied back");
    CUDA_CHECK(cudaMemset(other, 1, BYTES));
    EXPECT(other[0] == 0x01010101 && other[COUNT - 1] == 0x01010101, "%#x", other[0]);
    CUDA_CHECK(cudaMemset2D(other, 40, 2, 20, 5));
    EXPECT(other[40] == 0x02020202 && other[45] == 0x01010101, "%#x", other[40]);
    CUDA_CHECK(cudaMemset3D(make_cudaPitchedPtr(other, 40, 40, 3), 3, make_cudaExtent(20, 2, 2)));
    EXPECT(other[30] == 0x03030303, "%#x", other[30]);
    DRIVER_CHECK(cuMemsetD32(CUdeviceptr(other), 77, 5));
    EXPECT(other[4] == 77 && other[5] == 0x01010101, "%d", other[4]);
    CUDA_CHECK(cudaMemcpy(other, memory, BYTES, cudaMemcpyDefault));
    expect(other, 7, "copied between both");
    CUDA_CHECK(cudaMemcpyAsync(other, memory, BYTES, cudaMemcpyHostToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(host.data(), other, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    expect(host.data(), 7, "on the host");
    CUDA_CHECK(cudaFree(other));
}

template <typename T>
static T said(const int *at, size_t bytes, cudaMemRangeAttribute which)
{
    T value;
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, which, at, bytes));
    return value;
}

struct Devices {
    int id[3];
};

static void advised(int *memory, cudaStream_t stream)
{
    const cudaMemLocation nowhere = {cudaMemLocationTypeInvalid, 0};
    EXPECT(!said<int>(memory, BYTES, cudaMemRangeAttributeReadMostly), "of the start");
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributePreferredLocation) == -2, "of the start");
    CUDA_CHECK(cudaMemAdvise(memory, PAGE + 1, cudaMemAdviseSetReadMostly, nowhere));
    EXPECT(said<int>(memory, 2 * PAGE, cudaMemRangeAttributeReadMostly) == 1, "two pages");
    EXPECT(!said<int>(memory, 2 * PAGE + 1, cudaMemRangeAttributeReadMostly), "the third too");
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseUnsetReadMostly, HERE));
    EXPECT(!said<int>(memory, 1, cudaMemRangeAttributeReadMostly), "taken back");
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseSetPreferredLocation, HERE));
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributePreferredLocation) == HERE.id, "here");
    CUDA_CHECK(cudaMemAdvise(memory, 1, cudaMemAdviseSetPreferredLocation, HOST));
    EXPECT(said<int>(memory, 1, cudaMemRangeAttributePreferredLocation) == cudaCpuDeviceId, "host");
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributePreferredLocation) == cudaInvalidDeviceId,
           "the pages differ");
    EXPECT(said<int>(memory, 1, cudaMemRangeAttributePreferredLocationType) ==
               cudaMemLocationTypeHost, "host");
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseUnsetPreferredLocation, HERE));
    EXPECT(said<int>(memory, 1, cudaMemRangeAttributePreferredLocation) == cudaInvalidDeviceId, "");
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseSetAccessedBy, HERE));
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseSetAccessedBy, HOST));
    Devices by = said<Devices>(memory, BYTES, cudaMemRangeAttributeAccessedBy);
    EXPECT(by.id[0] == HERE.id && by.id[1] == -1 && by.id[2] == -2, "by %d %d", by.id[0], by.id[1]);
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseUnsetAccessedBy, HERE));
    CUDA_CHECK(cudaMemAdvise(memory, BYTES, cudaMemAdviseUnsetAccessedBy, HOST));
    by = said<Devices>(memory, BYTES, cudaMemRangeAttributeAccessedBy);
    EXPECT(by.id[0] == -2, "by %d", by.id[0]);
    CUDA_CHECK(cudaMemPrefetchAsync(memory, BYTES, HERE, 0, stream));
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributeLastPrefetchLocation) == HERE.id, "");
    CUDA_CHECK(cudaMemPrefetchAsync(memory, BYTES, HOST, 0, stream));
    int where, type;
    void *to[] = {&where, &type};
    size_t sizes[] = {4, 4};
    cudaMemRangeAttribute which[] = {cudaMemRangeAttributeLastPrefetchLocation,
                                     cudaMemRangeAttributeLastPrefetchLocationType};
    CUDA_CHECK(cudaMemRangeGetAttributes(to, sizes, which, 2, memory, BYTES));
    EXPECT(where == cudaCpuDeviceId && type == cudaMemLocationTypeHost, "%d, %d", where, type);
    CUDA_CHECK(cudaStreamAttachMemAsync(stream, memory, 0, cudaMemAttachHost));
    CUDA_CHECK(cudaStreamAttachMemAsync(stream, memory, BYTES, cudaMemAttachSingle));
    CUDA_CHECK(cudaStreamAttachMemAsync(0, memory, 0, cudaMemAttachGlobal));
}

// As CUDA 11's driver knows the calls, which programs find by name and version.
static void advised_as_of_old(int *memory, CUstream stream)
{
    using Advise = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
    using Prefetch = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
    void *advise, *prefetch;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuMemAdvise", &advise, 11000, 0, nullptr));
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuMemPrefetchAsync", &prefetch, 11000, 0,
                                                nullptr));
    CUdeviceptr at = CUdeviceptr(memory);
    DRIVER_CHECK(Advise(advise)(at, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, HERE.id));
    DRIVER_CHECK(Prefetch(prefetch)(at, BYTES, HERE.id, stream));
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributeLastPrefetchLocation) == HERE.id, "");
    DRIVER_CHECK(Prefetch(prefetch)(at, BYTES, CU_DEVICE_CPU, stream));
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributeLastPrefetchLocation) == -1, "host");
    EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributeReadMostly) == 1, "advised");
    DRIVER_CHECK(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_UNSET_READ_MOSTLY, CUmemLocation{}));
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {HERE.id}};
    DRIVER_CHECK(cuMemPrefetchAsync(at, BYTES, here, 0, stream));
    DRIVER_CHECK(cuStreamAttachMemAsync(stream, at, 0, CU_MEM_ATTACH_GLOBAL));
    int value = 5;
    DRIVER_CHECK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, BYTES));
    EXPECT(value == 0, "%d", value);
}

static void facts(int *memory, int *device)
{
    cudaPointerAttributes of;
    bool managed = false;
    unsigned type, flags;
    CUdeviceptr base;
    size_t bytes;
    CUDA_CHECK(cudaPointerGetAttributes(&of, memory + 5));
    EXPECT(of.type == cudaMemoryTypeManaged && of.hostPointer == memory + 5 &&
               of.devicePointer == memory + 5 && of.device == HERE.id, "type %d", int(of.type));
    CUdeviceptr at = CUdeviceptr(memory + 5);
    DRIVER_CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    DRIVER_CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    EXPECT(managed && type == CU_MEMORYTYPE_DEVICE, "managed %d, type %u", managed, type);
    DRIVER_CHECK(cuMemGetAddressRange(&base, &bytes, at));
    EXPECT(base == CUdeviceptr(memory) && bytes == BYTES, "%zu bytes", bytes);
    DRIVER_CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                       CUdeviceptr(device)));
    EXPECT(!managed, "what is not");
    FAILS(cudaHostGetFlags(&flags, memory), cudaErrorInvalidValue);
}

static void refused(int *memory, int *device, cudaStream_t stream)
{
    void *out;
    int value;
    FAILS(cudaMallocManaged(&out, 0), cudaErrorInvalidValue);
    FAILS(cudaMallocManaged(&out, 16, cudaMemAttachSingle), cudaErrorInvalidValue);
    FAILS(cudaMallocManaged(static_cast<void **>(nullptr), 16), cudaErrorInvalidValue);
    FAILS(cudaFreeHost(memory), cudaErrorInvalidValue);
    FAILS(cudaFree(memory + 1), cudaErrorInvalidValue);
    FAILS(cudaMemAdvise(device, 16, cudaMemAdviseSetReadMostly, HERE), cudaErrorInvalidValue);
    FAILS(cudaMemAdvise(memory, 0, cudaMemAdviseSetReadMostly, HERE), cudaErrorInvalidValue);
    FAILS(cudaMemAdvise(memory, 2 * BYTES, cudaMemAdviseSetReadMostly, HERE),
          cudaErrorInvalidValue);
    FAILS(cudaMemAdvise(memory, 16, cudaMemoryAdvise(7), HERE), cudaErrorInvalidValue);
    FAILS(cudaMemAdvise(memory, 16, cudaMemAdviseSetAccessedBy, {cudaMemLocationTypeDevice, 63}),
          cudaErrorInvalidDevice);
    FAILS(cudaMemPrefetchAsync(device, 16, HERE, 0, stream), cudaErrorInvalidValue);
    FAILS(cudaMemPrefetchAsync(memory, 16, HERE, 1, stream), cudaErrorInvalidValue);
    FAILS(cudaMemPrefetchAsync(memory, 16, {cudaMemLocationTypeInvalid, 0}, 0, stream),
          cudaErrorInvalidValue);
    FAILS(cudaMemRangeGetAttribute(&value, 8, cudaMemRangeAttributeReadMostly, memory, 16),
          cudaErrorInvalidValue);
    FAILS(cudaMemRangeGetAttribute(&value, 3, cudaMemRangeAttributeAccessedBy, memory, 16),
          cudaErrorInvalidValue);
    FAILS(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributeReadMostly, &value, 4),
          cudaErrorInvalidValue);
    FAILS(cudaStreamAttachMemAsync(0, memory, 0, cudaMemAttachSingle), cudaErrorInvalidValue);
    FAILS(cudaStreamAttachMemAsync(stream, memory, 16), cudaErrorInvalidValue);
    FAILS(cudaStreamAttachMemAsync(stream, device), cudaErrorInvalidValue);
}

// Their addresses are the kernels', and they keep their values over a move.
static void variables(int half)
{
    double *same;
    if (half == 0)
        EXPECT(counter == 40 && table[599] == 0, "as declared: %d", counter);
    counter += 1000;
    use_variables<<<1, 600>>>();
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT(counter == 40 + (1000 + 1200) * (half + 1), "counter %d", counter);
    EXPECT(table[599] == 599.0 * (half + 1), "%g", table[599]);
    CUDA_CHECK(cudaGetSymbolAddress(reinterpret_cast<void **>(&same), table));
    EXPECT(same == table, "%p", static_cast<void *>(same));
}

// The larger one of the fatbins in the program's own file: the other one is empty.
static std::string own_fatbin()
{
    std::ifstream file("/proc/self/exe", std::ios::binary);
    const std::string program(std::istreambuf_iterator<char>(file), {}), magic = "\x50\xed\x55\xba";
    std::string largest;
    for (size_t at = 0; (at = program.find(magic, at)) != std::string::npos; at++) {
        uint64_t bytes;
        memcpy(&bytes, &program[at + 8], sizeof bytes);
        if (at + bytes < program.size() && bytes > largest.size())
            largest = program.substr(at, bytes + 16);
    }
    EXPECT(!largest.empty(), "the program has no fatbin");
    return largest;
}

// Managed variables of libraries that the program loads: its own file, and a text.
static void variables_of_libraries()
{
    static const char *text = ".version 7.0\n.target sm_75\n.address_size 64\n"
                              ".visible .global .attribute(.managed) .align 4 .u32 counter = 40;\n"
                              ".visible .global .align 4 .u32 factor = 2;\n"
                              ".visible .entry increase() { .reg .u32 %r;\n"
                              "ld.global.u32 %r, [counter]; add.u32 %r, %r, 2;\n"
                              "st.global.u32 [counter], %r; ret; }\n";
    const std::string fatbin = own_fatbin();
    for (const char *code : {fatbin.data(), text}) {
        CUlibrary library;
        CUkernel kernel;
        CUdeviceptr address, again;
        size_t bytes;
        const char *name = code == text ? "increase" : "_Z13use_variablesv";
        DRIVER_CHECK(cuLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
        DRIVER_CHECK(cuLibraryGetManaged(&address, &bytes, library, "counter"));
        int *value = reinterpret_cast<int *>(address);
        EXPECT(bytes == 4 && value != &counter && *value == 40, "%zu bytes, %d", bytes, *value);
        *value = 1;
        DRIVER_CHECK(cuLibraryGetKernel(&kernel, library, name));
        DRIVER_CHECK(cuLaunchKernel(CUfunction(kernel), 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
        CUDA_CHECK(cudaDeviceSynchronize());
        EXPECT(*value == 3, "the library's counter is %d", *value);
        DRIVER_CHECK(cuLibraryGetGlobal(&again, &bytes, library, "counter"));
        EXPECT(again == address, "another counter");
        DRIVER_FAILS(cuLibraryGetManaged(&address, &bytes, library, "factor"),
                     CUDA_ERROR_NOT_FOUND);
        DRIVER_FAILS(cuLibraryGetManaged(&address, &bytes, library, "nobody"),
                     CUDA_ERROR_NOT_FOUND);
        DRIVER_CHECK(cuLibraryUnload(library));
    }
}

int main(int argc, char **argv)
{
    HERE.id = start().local_rank;
    int *memory, *device = on_device<int>(COUNT);
    CUdeviceptr driver;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMallocManaged(&memory, BYTES));
    for (int half = 0; half < 2; half++) {
        if (half)
            expect(memory, 7, "moved");
        seen_by_both(memory, stream);
        copied_and_filled(memory, device, stream);
        advised(memory, stream);
        advised_as_of_old(memory, stream);
        facts(memory, device);
        refused(memory, device, stream);
        variables(half);
        variables_of_libraries();
        expect(memory, 7, "at the end");
        // A new allocation has none of the old one's attributes.
        CUDA_CHECK(cudaFree(memory));
        CUDA_CHECK(cudaMallocManaged(&memory, BYTES, cudaMemAttachHost));
        for (int i = 0; i < COUNT; i++)
            memory[i] = 7 + i;
        EXPECT(said<int>(memory, BYTES, cudaMemRangeAttributeLastPrefetchLocation) == -2, "new");
        DRIVER_CHECK(cuMemAllocManaged(&driver, 100, CU_MEM_ATTACH_GLOBAL));
        DRIVER_CHECK(cuMemFree(driver));
        if (half == 0)
            interlude(argc, argv);
    }
    CUDA_CHECK(cudaFree(memory));
    return 0;
}
