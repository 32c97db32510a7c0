// tensor_maps.cu: a kernel writes where a description of a tensor says. The fake driver has the
// kernel (tensor_map.c): the one here only has its parameters.
#include <cuda.h>

#include "../programs/behaviour.h"

constexpr uint32_t COLUMNS = 256, ROWS = 4;

extern "C" __global__ void put_by_map(const __grid_constant__ CUtensorMap map, uint32_t value) {}

static CUresult tiled(CUtensorMap *map, void *at, uint32_t rank = 2, cuuint64_t pitch = 4 * COLUMNS)
{
    const cuuint64_t dim[] = {COLUMNS, ROWS}, stride[] = {pitch};
    const cuuint32_t box[] = {64, 2}, step[] = {1, 1};
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, rank, at, dim, stride, box,
                                  step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult im2col(CUtensorMap *map, void *at, uint32_t rank = 3)
{
    const cuuint64_t dim[] = {COLUMNS, ROWS, 1}, stride[] = {4 * COLUMNS, 4 * COLUMNS * ROWS};
    const cuuint32_t step[] = {1, 1, 1};
    const int lower[] = {-1}, upper[] = {1};
    return cuTensorMapEncodeIm2col(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, rank, at, dim, stride,
                                   lower, upper, 32, 16, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void use(const CUtensorMap &map, const uint32_t *row, uint32_t value)
{
    put_by_map<<<1, 32>>>(map, value);
    for (uint32_t word : fetch(row, COLUMNS))
        EXPECT(word == value, "%u", word);
}

int main(int argc, char **argv)
{
    World world = start();
    CUtensorMap map, other;
    uint32_t *data = on_device<uint32_t>(COLUMNS * ROWS), *row = data + COLUMNS;
    bool refused = argc > 2;
    if (refused) {
        DRIVER_FAILS(tiled(&map, data), CUDA_ERROR_NOT_SUPPORTED);
        DRIVER_FAILS(im2col(&map, data), CUDA_ERROR_NOT_SUPPORTED);
        DRIVER_FAILS(cuTensorMapReplaceAddress(&map, data), CUDA_ERROR_NOT_SUPPORTED);
        return 0;
    }
    DRIVER_CHECK(tiled(&map, data));
    use(map, data, 10 + world.rank);
    DRIVER_CHECK(im2col(&other, row));
    use(other, row, 20 + world.rank);
    DRIVER_FAILS(tiled(&other, data + 1), CUDA_ERROR_INVALID_VALUE);  // no multiple of 16 bytes
    DRIVER_FAILS(tiled(&other, data, 2, 1000), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(tiled(&other, data, 6), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(tiled(&other, data, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(im2col(&other, data, 2), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(tiled(nullptr, data), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuTensorMapReplaceAddress(&other, data + 1), CUDA_ERROR_INVALID_VALUE);
    interlude(argc, argv);
    use(map, data, 30 + world.rank);  // encoded before, on another device
    DRIVER_CHECK(cuTensorMapReplaceAddress(&map, row));
    use(map, row, 40 + world.rank);
    return 0;
}
