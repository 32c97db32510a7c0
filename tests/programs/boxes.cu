// boxes.cu: copies and fills of two and three dimensions, between all kinds of memory, with
// pitches, positions and synchronous and asynchronous forms, against loops on the host.
#include "common.h"

#include <algorithm>
#include <cuda.h>

constexpr size_t W = 37, H = 11, D = 5;         // of the arrays
constexpr size_t w = 21, h = 7, d = 3;          // of what is copied
constexpr size_t X = 4, Y = 2, Z = 1;           // from where

struct Box {
    cudaPitchedPtr at;
    bool device;
};

static std::vector<uint8_t> contents(const Box &box)
{
    std::vector<uint8_t> all(W * H * D);
    for (size_t z = 0; z < D; z++)
        CUDA_CHECK(cudaMemcpy2D(&all[z * W * H], W,
                                (uint8_t *)box.at.ptr + z * box.at.pitch * box.at.ysize,
                                box.at.pitch, W, H, cudaMemcpyDefault));
    return all;
}

static Box make(int kind)
{
    Box box = {{nullptr, W + 3, W, H + 1}, kind == 0};
    size_t bytes = box.at.pitch * box.at.ysize * D;
    if (kind == 0) {
        CUDA_CHECK(cudaMalloc3D(&box.at, make_cudaExtent(W, H, D)));
        EXPECT(box.at.pitch >= W && box.at.ysize == H, "pitch %zu", box.at.pitch);
    } else if (kind == 1) {
        CUDA_CHECK(cudaMallocHost(&box.at.ptr, bytes));
    } else {
        box.at.ptr = malloc(bytes);
    }
    return box;
}

static void fill(const Box &box, int seed)
{
    std::vector<uint8_t> values(W * H * D);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = uint8_t(i * 7 + seed);
    for (size_t z = 0; z < D; z++)
        CUDA_CHECK(cudaMemcpy2D((uint8_t *)box.at.ptr + z * box.at.pitch * box.at.ysize,
                                box.at.pitch, &values[z * W * H], W, W, H, cudaMemcpyDefault));
}

static std::vector<uint8_t> expected(std::vector<uint8_t> to, const std::vector<uint8_t> &from)
{
    for (size_t z = 0; z < d; z++)
        for (size_t y = 0; y < h; y++)
            for (size_t x = 0; x < w; x++)
                to[(z * H + y + 1) * W + x + 2] = from[((z + Z) * H + y + Y) * W + x + X];
    return to;
}

static void copy(const Box &to, const Box &from, int how, cudaStream_t stream)
{
    if (how < 2) {
        cudaMemcpy3DParms p = {};
        p.srcPtr = from.at, p.dstPtr = to.at;
        p.srcPos = make_cudaPos(X, Y, Z), p.dstPos = make_cudaPos(2, 1, 0);
        p.extent = make_cudaExtent(w, h, d), p.kind = cudaMemcpyDefault;
        CUDA_CHECK(how ? cudaMemcpy3DAsync(&p, stream) : cudaMemcpy3D(&p));
    } else {
        CUDA_MEMCPY3D p = {};
        p.srcXInBytes = X, p.srcY = Y, p.srcZ = Z, p.dstXInBytes = 2, p.dstY = 1;
        p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        p.srcDevice = (CUdeviceptr)from.at.ptr, p.dstDevice = (CUdeviceptr)to.at.ptr;
        p.srcPitch = from.at.pitch, p.dstPitch = to.at.pitch;
        p.srcHeight = from.at.ysize, p.dstHeight = to.at.ysize;
        p.WidthInBytes = w, p.Height = h, p.Depth = d;
        EXPECT((how == 2 ? cuMemcpy3D(&p) : cuMemcpy3DAsync(&p, stream)) == CUDA_SUCCESS, "copy");
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
    start();
    int steps = argument(argc, argv, 1, 2);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    Box boxes[3] = {make(0), make(1), make(2)}, others[3] = {make(0), make(1), make(2)};
    for (int k = 0; k < steps; k++) {
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 3; b++)
                for (int how = 0; how < 4; how++) {
                    fill(boxes[a], k), fill(others[b], 100 + how);
                    auto wanted = expected(contents(others[b]), contents(boxes[a]));
                    copy(others[b], boxes[a], how, stream);
                    EXPECT(contents(others[b]) == wanted, "%d to %d by %d", a, b, how);
                }
        fill(boxes[0], k);
        auto wanted = contents(boxes[0]);
        for (size_t z = 0; z < d; z++)
            for (size_t y = 0; y < h; y++)
                std::fill_n(&wanted[(z * H + y) * W], w, 0xa5);
        CUDA_CHECK(cudaMemset3DAsync(boxes[0].at, 0xa5, make_cudaExtent(w, h, d), stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        EXPECT(contents(boxes[0]) == wanted, "a box is filled");
        print_line(k, "box", wanted.data(), wanted.size());
    }
    cudaMemcpy3DParms wrong = {};
    CUDA_CHECK(cudaMemcpy3D(&wrong));  // nothing is copied
    wrong.extent = make_cudaExtent(4, 1, 1);
    EXPECT(cudaMemcpy3D(&wrong) == cudaErrorInvalidValue, "from nowhere");
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "is remembered");
    return 0;
}
