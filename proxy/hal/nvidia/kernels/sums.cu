// sums.cu: the element-wise arithmetic of collectives, and checksums, on the GPU (../sums.c), from
// the source that the host's come from. `make gpu-ptx` compiles it after a change. One thread takes
// every (threads of the grid)-th element. All pointers are aligned to an element; d is a or b, or
// overlaps neither.
#include <stdint.h>

#define INLINE static __device__ inline
#include "../../checksum.h"

#define LOOP(expression)                                                                           \
    do {                                                                                           \
        const uint64_t step = (uint64_t)gridDim.x * blockDim.x;                                    \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)   \
            d[i] = (expression);                                                                   \
        return true;                                                                               \
    } while (0)
#include "../../elements.h"

#define KERNELS(name, type)                                                                        \
    extern "C" __global__ void sum_##name(type *d, const type *a, const type *b, uint64_t count,   \
                                          uint32_t op)                                             \
    {                                                                                              \
        reduce_##name(d, a, b, count, op);                                                         \
    }                                                                                              \
    extern "C" __global__ void scale_by_##name(type *d, const type *a, uint64_t count,             \
                                               uint32_t divide, uint64_t divisor, uint64_t scalar) \
    {                                                                                              \
        type by;                                                                                   \
        memcpy(&by, &scalar, sizeof by);                                                           \
        scale_##name(d, a, count, divide ? nullptr : &by, divisor);                                \
    }

KERNELS(int8, int8_t)
KERNELS(uint8, uint8_t)
KERNELS(int32, int32_t)
KERNELS(uint32, uint32_t)
KERNELS(int64, int64_t)
KERNELS(uint64, uint64_t)
KERNELS(half, uint16_t)
KERNELS(float, float)
KERNELS(double, double)
KERNELS(bfloat16, uint16_t)

// Each block's share of the checksum of these bytes, which may begin at any address; the first byte
// is that of word `word` of the whole. Writes two words to `out`.
extern "C" __global__ void checksum(const uint8_t *from, uint64_t bytes, uint64_t word,
                                    uint64_t *out)
{
    __shared__ unsigned long long both[2];
    const uint64_t words = (bytes + 7) / 8, step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t mine[2] = {0, 0};

    if (threadIdx.x < 2)
        both[threadIdx.x] = 0;
    __syncthreads();
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
        uint64_t value = 0;

        if (8 * i + 8 <= bytes && (uint64_t)from % 8 == 0)
            value = ((const uint64_t *)from)[i];
        else
            for (uint64_t k = 8 * i; k < bytes && k < 8 * i + 8; k++)
                value |= (uint64_t)from[k] << 8 * (k % 8);
        checksum_word(mine, value, word + i);
    }
    atomicAdd(&both[0], (unsigned long long)mine[0]);
    atomicAdd(&both[1], (unsigned long long)mine[1]);
    __syncthreads();
    if (threadIdx.x < 2)
        out[2 * blockIdx.x + threadIdx.x] = both[threadIdx.x];
}
