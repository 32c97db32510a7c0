// virtual_memory.cu: memory that the program maps at addresses that it has reserved: kernels and
// copies reach it, it is the rank's own, and what is mapped again has its content. Other ways to
// map memory are refused.
#include <cuda.h>

#include "behaviour.h"

constexpr size_t STEP = 2 << 20, BYTES = 2 * STEP;
constexpr uint32_t COUNT = BYTES / sizeof(uint32_t);

__global__ void add(uint32_t *to, uint32_t count, uint32_t what)
{
    uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] += what + i;
}

static CUmemAllocationProp property()
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
}

static CUmemGenericAllocationHandle memory(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp p = property(), got = {};
    DRIVER_CHECK(cuMemCreate(&handle, bytes, &p, 0));
    DRIVER_CHECK(cuMemGetAllocationPropertiesFromHandle(&got, handle));
    EXPECT(got.type == p.type && got.location.type == p.location.type, "other properties");
    return handle;
}

static CUdeviceptr addresses(size_t bytes)
{
    CUdeviceptr at = 0;
    DRIVER_CHECK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    EXPECT(at % STEP == 0, "%llx is no multiple of the granularity", at);
    return at;
}

static void give_access(CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc access = {property().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned long long flags = 0;
    DRIVER_CHECK(cuMemSetAccess(at, bytes, &access, 1));
    DRIVER_CHECK(cuMemGetAccess(&flags, &access.location, at));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "%llu", flags);
}

static void expect(CUdeviceptr at, uint32_t rank, uint32_t rounds)
{
    std::vector<uint32_t> got(COUNT);
    CUDA_CHECK(cudaMemcpy(got.data(), (void *)at, BYTES, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(got[i] == rounds * (rank + i), "word %u is %u", i, got[i]);
}

static void refusals()
{
    CUmemAllocationProp p = property();
    CUmemGenericAllocationHandle whole = memory(BYTES), part = memory(STEP), other;
    CUdeviceptr at = addresses(BYTES), one = addresses(STEP), nowhere;
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_FAILS(cuMemCreate(&other, STEP + 1, &p, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemCreate(&other, size_t(1) << 40, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
    DRIVER_FAILS(cuMemAddressReserve(&nowhere, STEP + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(at, STEP + 1, 0, whole, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(at, BYTES, STEP, whole, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(at, BYTES, 0, part, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(at, BYTES, 0, whole + 1, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemUnmap(at, BYTES), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemSetAccess(at, BYTES, &access, 1), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemRetainAllocationHandle(&other, (void *)at), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemMap(at, BYTES, 0, whole, 0));
    DRIVER_FAILS(cuMemMap(at, BYTES, 0, whole, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemAddressFree(at, BYTES), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemRetainAllocationHandle(&other, (void *)(at + 5)));
    EXPECT(other == whole, "another handle");
    DRIVER_CHECK(cuMemRelease(other));
    DRIVER_CHECK(cuMemUnmap(at, BYTES));
    DRIVER_FAILS(cuMemUnmap(at, BYTES), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemRelease(whole));
    DRIVER_FAILS(cuMemRelease(whole), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemRelease(part));
    DRIVER_CHECK(cuMemAddressFree(at, BYTES));
    DRIVER_FAILS(cuMemAddressFree(at, BYTES), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemAddressFree(one, STEP));
}

int main(int argc, char **argv)
{
    World world = start();
    CUDA_CHECK(cudaFree(nullptr));
    int able = 0;
    size_t step = 0;
    CUmemAllocationProp p = property();
    DRIVER_CHECK(cuDeviceGetAttribute(
        &able, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    DRIVER_CHECK(cuMemGetAllocationGranularity(&step, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(able == 1 && step == STEP, "%d, %zu", able, step);
    CUmemGenericAllocationHandle kept = memory(BYTES);
    CUdeviceptr at = addresses(BYTES);
    for (uint32_t round = 0; round < 4; round++) {
        if (round == 2)
            interlude(argc, argv);
        DRIVER_CHECK(cuMemMap(at, BYTES, 0, kept, 0));
        give_access(at, BYTES);
        if (round == 0)
            CUDA_CHECK(cudaMemset((void *)at, 0, BYTES));
        add<<<8, 128>>>((uint32_t *)at, COUNT, world.rank);
        expect(at, world.rank, round + 1);
        DRIVER_CHECK(cuMemUnmap(at, BYTES));
    }
    for (int i = 0; i < 100; i++) {  // as JAX does: what is released is there again
        CUdeviceptr again = addresses(8 * STEP);
        CUmemGenericAllocationHandle handle = memory(8 * STEP);
        DRIVER_CHECK(cuMemMap(again, 8 * STEP, 0, handle, 0));
        give_access(again, 8 * STEP);
        DRIVER_CHECK(cuMemRelease(handle));
        CUDA_CHECK(cudaMemset((void *)again, i, 8 * STEP));
        DRIVER_CHECK(cuMemUnmap(again, 8 * STEP));
        DRIVER_CHECK(cuMemAddressFree(again, 8 * STEP));
    }
    refusals();
    return 0;
}
