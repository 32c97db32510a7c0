// video.cu: sums of absolute differences between moving pictures, by video instructions: packed
// ones by CUDA's intrinsics, and those on one byte or half-word of a register by inline PTX.
#include "common.h"

constexpr int WIDTH = 64, HEIGHT = 48, BLOCK = 8, REACH = 4;

struct Found {
    unsigned difference;
    int x, y, lightest;
};

// By how much two rows of four pixels differ, and the greatest pixel so far.
__device__ unsigned differ(unsigned a, unsigned b, unsigned sum, int &lightest)
{
    unsigned packed = __vsadu4(a, b), one;
    asm("{ .reg .u32 t; vabsdiff.u32.u32.u32.add t, %1.b0, %2.b0, 0;"
        "  vabsdiff.u32.u32.u32.add t, %1.b1, %2.b1, t;"
        "  vabsdiff.u32.u32.u32.add t, %1.b2, %2.b2, t;"
        "  vabsdiff.u32.u32.u32.add %0, %1.b3, %2.b3, t; }"
        : "=r"(one) : "r"(a), "r"(b));
    asm("vmax.s32.u32.u32.max %0, %1.b0, %1.b3, %0;" : "+r"(lightest) : "r"(a));
    asm("vmax.s32.u32.u32.max %0, %1.b1, %1.b2, %0;" : "+r"(lightest) : "r"(a));
    return sum + (packed == one ? packed : 1u << 30);
}

__global__ void search(const unsigned char *now, const unsigned char *before, Found *found)
{
    int bx = blockIdx.x * BLOCK, by = blockIdx.y * BLOCK;
    int dx = int(threadIdx.x) - REACH, dy = int(threadIdx.y) - REACH;
    unsigned sum = 0;
    int lightest = 0;
    for (int y = 0; y < BLOCK; y++)
        for (int x = 0; x < BLOCK; x += 4) {
            unsigned a = 0, b = 0;
            for (int i = 0; i < 4; i++) {
                int px = (bx + x + i + dx + WIDTH) % WIDTH, py = (by + y + dy + HEIGHT) % HEIGHT;
                a |= unsigned(now[(by + y) * WIDTH + bx + x + i]) << 8 * i;
                b |= unsigned(before[py * WIDTH + px]) << 8 * i;
            }
            sum = differ(a, b, sum, lightest);
        }
    __shared__ unsigned long long best;
    if (threadIdx.x == 0 && threadIdx.y == 0)
        best = ~0ull;
    __syncthreads();
    unsigned place = threadIdx.y * blockDim.x + threadIdx.x;
    atomicMin(&best, (unsigned long long)sum << 32 | place);
    __syncthreads();
    if ((unsigned)best == place)
        found[blockIdx.y * gridDim.x + blockIdx.x] = {sum, dx, dy, lightest};
}

// The picture a step later: each pixel is an average, brighter by a clamped step.
__global__ void drift(unsigned *picture, int words, unsigned step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words)
        return;
    unsigned a = picture[i], average = __vavgu4(a, 0x40404040u * (step & 3)), out;
    asm("{ .reg .u32 t; mov.u32 t, %1;"
        "  vadd.u32.u32.u32.sat t.b0, %1.b0, %2, t;"
        "  vsub.u32.u32.u32.sat t.b1, %1.b1, %2, t;"
        "  vshl.u32.u32.u32.sat.clamp t.b2, %1.b2, 1, t;"
        "  vmad.u32.u32.u32.shr7 %0, %1.b3, 2, t; }"
        : "=r"(out) : "r"(average), "r"(step * 3));
    picture[i] = __vaddus4(a, out & 0x0f0f0f0fu);
}

static unsigned clamp(int x)
{
    return x < 0 ? 0 : x > 255 ? 255 : x;
}

static unsigned drifted(unsigned a, unsigned step)
{
    unsigned average = 0, t, sum = 0;
    for (int i = 0; i < 32; i += 8)
        average |= ((a >> i & 255) + (0x40 * (step & 3)) + 1) / 2 << i;
    t = average & 0xff000000u;
    t |= clamp((average & 255) + 3 * step) | clamp(int(average >> 8 & 255) - 3 * int(step)) << 8 |
         clamp((average >> 16 & 255) << 1) << 16;
    t = unsigned(((average >> 24) * 2ull + t) >> 7) & 0x0f0f0f0fu;
    for (int i = 0; i < 32; i += 8)
        sum |= clamp((a >> i & 255) + (t >> i & 255)) << i;
    return sum;
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 10), words = WIDTH * HEIGHT / 4;
    std::vector<unsigned> picture(words);
    for (int i = 0; i < words; i++)
        picture[i] = unsigned(noise(i, world.rank) * 0x1p31f) & 0x7f7f7f7fu;
    unsigned *now = on_device(picture), *before = on_device(picture);
    Found *found = on_device<Found>(WIDTH / BLOCK * HEIGHT / BLOCK);
    for (int k = 0; k < steps; k++) {
        CUDA_CHECK(cudaMemcpy(before, now, words * 4, cudaMemcpyDeviceToDevice));
        drift<<<(words + 63) / 64, 64>>>(now, words, k);
        search<<<dim3(WIDTH / BLOCK, HEIGHT / BLOCK), dim3(2 * REACH + 1, 2 * REACH + 1)>>>(
            (unsigned char *)now, (unsigned char *)before, found);
        for (unsigned &each : picture)
            each = drifted(each, k);
        std::vector<unsigned> got = report(k, "picture", now, words);
        EXPECT(got == picture, "the picture of step %d is wrong", k);
        for (Found each : report(k, "found", found, WIDTH / BLOCK * HEIGHT / BLOCK))
            EXPECT(each.difference < 1u << 24 && each.lightest < 256 && abs(each.x) <= REACH,
                   "a difference of %u at %d", each.difference, each.x);
    }
    return 0;
}
