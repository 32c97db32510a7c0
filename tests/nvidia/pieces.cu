// pieces.cu: ranks whose memory is mapped piece by piece, with a kernel that the fake driver knows
// too (kernels.c): each step maps another piece behind the last one, up to a limit, and unmaps all.
#include <cuda.h>

#include "../programs/behaviour.h"

constexpr size_t STEP = 2 << 20, PIECES = 3;
constexpr uint32_t WORDS = STEP / sizeof(uint32_t);

extern "C" __global__ void increment(uint32_t *data, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        data[i]++;
}

static void map(CUdeviceptr at)
{
    CUmemAllocationProp prop = {};
    CUmemGenericAllocationHandle piece;
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_CHECK(cuMemCreate(&piece, STEP, &prop, 0));
    DRIVER_CHECK(cuMemMap(at, STEP, 0, piece, 0));
    DRIVER_CHECK(cuMemSetAccess(at, STEP, &access, 1));
    DRIVER_CHECK(cuMemRelease(piece));
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    CUdeviceptr base;
    DRIVER_CHECK(cuMemAddressReserve(&base, 64 * STEP, 0, 0, 0));
    uint32_t *data = reinterpret_cast<uint32_t *>(base);
    for (int k = 0; k < steps; k++) {
        uint32_t pieces = k % PIECES + 1, n = pieces * WORDS;
        map(base + (pieces - 1) * STEP);
        CUDA_CHECK(cudaMemsetAsync(data, world.rank, n * sizeof *data));
        increment<<<1, 128>>>(data + 1, n - 2);
        NCCL_CHECK(ncclAllReduce(data + 1, data + 1, n - 2, ncclUint32, ncclMax, comm, nullptr));
        std::vector<uint32_t> got = report(k, "data", data + 1, n - 2);
        uint32_t most = (world.size - 1) * 0x01010101u + 1;
        for (uint32_t i = 0; i < n - 2; i++)
            EXPECT(got[i] == most, "word %u of %u is %u", i, n, got[i]);
        if (pieces == PIECES)
            DRIVER_CHECK(cuMemUnmap(base, PIECES * STEP));
    }
    return 0;
}
