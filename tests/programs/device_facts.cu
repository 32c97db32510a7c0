// device_facts.cu: what the device says of itself: properties, attributes and the driver's forms
// agree with each other, and with what launches and allocations meet.
#include <cuda.h>

#include "behaviour.h"

static int device;

static int attribute(cudaDeviceAttr which)
{
    int value = -12345, driver = -12345;
    CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
    DRIVER_CHECK(cuDeviceGetAttribute(&driver, CUdevice_attribute(which), device));
    EXPECT(value == driver, "attribute %d is %d, and %d for the driver", which, value, driver);
    return value;
}

#define AGREES(member, which)                                                                \
    EXPECT((long long)p.member == attribute(cudaDevAttr##which), #member " is %lld, not %d", \
           (long long)p.member, attribute(cudaDevAttr##which))

static void limits(const cudaDeviceProp &p)
{
    AGREES(sharedMemPerBlock, MaxSharedMemoryPerBlock);
    AGREES(regsPerBlock, MaxRegistersPerBlock);
    AGREES(warpSize, WarpSize);
    AGREES(memPitch, MaxPitch);
    AGREES(maxThreadsPerBlock, MaxThreadsPerBlock);
    AGREES(maxThreadsDim[0], MaxBlockDimX);
    AGREES(maxThreadsDim[1], MaxBlockDimY);
    AGREES(maxThreadsDim[2], MaxBlockDimZ);
    AGREES(maxGridSize[0], MaxGridDimX);
    AGREES(maxGridSize[1], MaxGridDimY);
    AGREES(maxGridSize[2], MaxGridDimZ);
    AGREES(totalConstMem, TotalConstantMemory);
    AGREES(major, ComputeCapabilityMajor);
    AGREES(minor, ComputeCapabilityMinor);
    AGREES(textureAlignment, TextureAlignment);
    AGREES(texturePitchAlignment, TexturePitchAlignment);
    AGREES(surfaceAlignment, SurfaceAlignment);
    AGREES(multiProcessorCount, MultiProcessorCount);
    AGREES(memoryBusWidth, GlobalMemoryBusWidth);
    AGREES(l2CacheSize, L2CacheSize);
    AGREES(persistingL2CacheMaxSize, MaxPersistingL2CacheSize);
    AGREES(accessPolicyMaxWindowSize, MaxAccessPolicyWindowSize);
    AGREES(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor);
    AGREES(maxBlocksPerMultiProcessor, MaxBlocksPerMultiprocessor);
    AGREES(sharedMemPerMultiprocessor, MaxSharedMemoryPerMultiprocessor);
    AGREES(sharedMemPerBlockOptin, MaxSharedMemoryPerBlockOptin);
    AGREES(reservedSharedMemPerBlock, ReservedSharedMemoryPerBlock);
    AGREES(regsPerMultiprocessor, MaxRegistersPerMultiprocessor);
    EXPECT(p.maxThreadsPerMultiProcessor % p.warpSize == 0, "part of a warp");
    EXPECT(p.sharedMemPerBlock <= p.sharedMemPerBlockOptin &&
               p.sharedMemPerBlockOptin + p.reservedSharedMemPerBlock <=
                   p.sharedMemPerMultiprocessor, "a block gets more than there is");
    EXPECT(attribute(cudaDevAttrClockRate) > 0, "no clock");
    EXPECT(attribute(cudaDevAttrMemoryClockRate) > 0, "no clock");
}

static void abilities(const cudaDeviceProp &p)
{
    AGREES(integrated, Integrated);
    AGREES(canMapHostMemory, CanMapHostMemory);
    AGREES(concurrentKernels, ConcurrentKernels);
    AGREES(ECCEnabled, EccEnabled);
    AGREES(pciBusID, PciBusId);
    AGREES(pciDeviceID, PciDeviceId);
    AGREES(pciDomainID, PciDomainId);
    AGREES(tccDriver, TccDriver);
    AGREES(asyncEngineCount, AsyncEngineCount);
    AGREES(unifiedAddressing, UnifiedAddressing);
    AGREES(streamPrioritiesSupported, StreamPrioritiesSupported);
    AGREES(globalL1CacheSupported, GlobalL1CacheSupported);
    AGREES(localL1CacheSupported, LocalL1CacheSupported);
    AGREES(managedMemory, ManagedMemory);
    AGREES(isMultiGpuBoard, IsMultiGpuBoard);
    AGREES(multiGpuBoardGroupID, MultiGpuBoardGroupID);
    AGREES(hostNativeAtomicSupported, HostNativeAtomicSupported);
    AGREES(pageableMemoryAccess, PageableMemoryAccess);
    AGREES(concurrentManagedAccess, ConcurrentManagedAccess);
    AGREES(computePreemptionSupported, ComputePreemptionSupported);
    AGREES(canUseHostPointerForRegisteredMem, CanUseHostPointerForRegisteredMem);
    AGREES(cooperativeLaunch, CooperativeLaunch);
    AGREES(pageableMemoryAccessUsesHostPageTables, PageableMemoryAccessUsesHostPageTables);
    AGREES(directManagedMemAccessFromHost, DirectManagedMemAccessFromHost);
    AGREES(hostRegisterSupported, HostRegisterSupported);
    AGREES(hostRegisterReadOnlySupported, HostRegisterReadOnlySupported);
    AGREES(sparseCudaArraySupported, SparseCudaArraySupported);
    AGREES(timelineSemaphoreInteropSupported, TimelineSemaphoreInteropSupported);
    AGREES(memoryPoolsSupported, MemoryPoolsSupported);
    AGREES(gpuDirectRDMASupported, GPUDirectRDMASupported);
    AGREES(gpuDirectRDMAFlushWritesOptions, GPUDirectRDMAFlushWritesOptions);
    AGREES(gpuDirectRDMAWritesOrdering, GPUDirectRDMAWritesOrdering);
    AGREES(memoryPoolSupportedHandleTypes, MemoryPoolSupportedHandleTypes);
    AGREES(deferredMappingCudaArraySupported, DeferredMappingCudaArraySupported);
    AGREES(ipcEventSupported, IpcEventSupport);
    AGREES(clusterLaunch, ClusterLaunch);
    AGREES(deviceNumaConfig, NumaConfig);
    AGREES(deviceNumaId, NumaId);
    AGREES(mpsEnabled, MpsEnabled);
    AGREES(hostNumaId, HostNumaId);
    AGREES(gpuPciDeviceID, GpuPciDeviceId);
    AGREES(gpuPciSubsystemID, GpuPciSubsystemId);
    AGREES(hostNumaMultinodeIpcSupported, HostNumaMultinodeIpcSupported);
    EXPECT(attribute(cudaDevAttrGpuOverlap) == (p.asyncEngineCount > 0), "overlap");
    EXPECT(!p.ipcEventSupported && !p.clusterLaunch, "is refused");
    EXPECT(p.managedMemory && p.unifiedAddressing && p.memoryPoolsSupported && p.cooperativeLaunch,
           "works");
}

// The array's limits are all or none; every other number of the header has some answer.
static void all_attributes()
{
    int value;
    for (int which = 1; which < CU_DEVICE_ATTRIBUTE_MAX; which++)
        attribute(cudaDeviceAttr(which));
    FAILS(cudaDeviceGetAttribute(&value, cudaDeviceAttr(0), device), cudaErrorInvalidValue);
    FAILS(cudaDeviceGetAttribute(&value, cudaDeviceAttr(5000), device), cudaErrorInvalidValue);
    FAILS(cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, device), cudaErrorInvalidValue);
    FAILS(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1000), cudaErrorInvalidDevice);
}

static void names_and_numbers(const cudaDeviceProp &p)
{
    char name[256], bus[32];
    size_t total, available, driver_total;
    int count, other, version, runtime, major, minor;
    CUuuid uuid;
    CUDA_CHECK(cudaGetDeviceCount(&count));
    EXPECT(device < count, "device %d of %d", device, count);
    DRIVER_CHECK(cuDeviceGetName(name, sizeof name, device));
    EXPECT(!strcmp(name, p.name) && *name, "%s, %s", name, p.name);
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    DRIVER_CHECK(cuDeviceTotalMem(&driver_total, device));
    EXPECT(total == p.totalGlobalMem && driver_total == total && available <= total,
           "%zu of %zu bytes, %zu", available, total, driver_total);
    CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    CUDA_CHECK(cudaDeviceGetByPCIBusId(&other, bus));
    EXPECT(other == device, "%s is device %d", bus, other);
    int domain, number, slot;
    EXPECT(sscanf(bus, "%x:%x:%x", &domain, &number, &slot) == 3 && domain == p.pciDomainID &&
               number == p.pciBusID && slot == p.pciDeviceID, "%s", bus);
    DRIVER_CHECK(cuDeviceGetUuid(&uuid, device));
    EXPECT(!memcmp(&uuid, &p.uuid, sizeof uuid), "two UUIDs");
    DRIVER_CHECK(cuDeviceComputeCapability(&major, &minor, device));
    EXPECT(major == p.major && minor == p.minor, "%d.%d", major, minor);
    CUDA_CHECK(cudaDriverGetVersion(&version));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    EXPECT(version >= runtime && runtime >= 13000 && runtime <= CUDART_VERSION + 990,
           "versions %d and %d", version, runtime);
    cudaDeviceProp first;
    CUDA_CHECK(cudaGetDeviceProperties(&first, 0));
    if (device)
        EXPECT(memcmp(&first.uuid, &p.uuid, sizeof p.uuid) && first.pciBusID != p.pciBusID,
               "two devices of one name");
    FAILS(cudaGetDeviceProperties(&first, count), cudaErrorInvalidDevice);
}

__global__ void nothing() {}

// The stated limits are where launches begin to fail.
static void launches(const cudaDeviceProp &p)
{
    nothing<<<1, p.maxThreadsPerBlock>>>();
    CUDA_CHECK(cudaGetLastError());
    nothing<<<1, p.maxThreadsPerBlock + 1>>>();
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "a block that is too large");
    nothing<<<1, dim3(1, 1, p.maxThreadsDim[2] + 1)>>>();
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "a block that is too deep");
    nothing<<<dim3(1, unsigned(p.maxGridSize[1]) + 1), 1>>>();
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "a grid that is too wide");
    nothing<<<1, 1, p.sharedMemPerBlock>>>();
    CUDA_CHECK(cudaGetLastError());
    nothing<<<1, 1, p.sharedMemPerBlock + 1>>>();
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "too much shared memory");
    CUDA_CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
    device = start().local_rank;
    cudaDeviceProp p, again;
    CUDA_CHECK(cudaGetDeviceProperties(&p, device));
    for (int half = 0; half < 2; half++) {
        CUDA_CHECK(cudaGetDeviceProperties(&again, device));
        EXPECT(!memcmp(&p, &again, sizeof p), "the device is another one");
        limits(p);
        abilities(p);
        all_attributes();
        names_and_numbers(p);
        launches(p);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
