// fills.cu: every fill of both APIs: elements of 1, 2 and 4 bytes, rows, boxes, nothing, pinned
// memory, a stream's order, and what is refused. A host model says what each byte must be.
#include <cuda.h>

#include "behaviour.h"

constexpr size_t BYTES = 1 << 20, PITCH = 768;

struct Fills {
    unsigned char *device;
    std::vector<unsigned char> model = std::vector<unsigned char>(BYTES);
    cudaStream_t stream;

    CUdeviceptr at(size_t offset) { return CUdeviceptr(device + offset); }
    void rows(size_t offset, size_t pitch, unsigned value, size_t element, size_t width,
              size_t height)
    {
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width * element; x++)
                model[offset + y * pitch + x] = value >> (8 * (x % element));
    }
    void check(const char *what)
    {
        std::vector<unsigned char> got(BYTES);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaMemcpy(got.data(), device, BYTES, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < BYTES; i++)
            EXPECT(got[i] == model[i], "%s: byte %zu is %d, not %d", what, i, got[i], model[i]);
    }
};

static void of_the_runtime(Fills &f, int value)
{
    CUDA_CHECK(cudaMemset(f.device, value, BYTES));
    f.rows(0, BYTES, value, 1, BYTES, 1);
    CUDA_CHECK(cudaMemset(f.device + 3, value + 0x101, 1000));  // the low byte counts
    f.rows(3, BYTES, value + 0x101, 1, 1000, 1);
    CUDA_CHECK(cudaMemsetAsync(f.device + 5000, 1, 777, f.stream));
    f.rows(5000, BYTES, 1, 1, 777, 1);
    CUDA_CHECK(cudaMemset2DAsync(f.device + 9001, PITCH, 2, 333, 50, f.stream));
    f.rows(9001, PITCH, 2, 1, 333, 50);
    CUDA_CHECK(cudaMemset2D(f.device + 60000, PITCH, 3, PITCH, 20));
    f.rows(60000, PITCH, 3, 1, PITCH, 20);
    cudaPitchedPtr box = make_cudaPitchedPtr(f.device + 100000, PITCH, PITCH, 40);
    CUDA_CHECK(cudaMemset3DAsync(box, 4, make_cudaExtent(100, 30, 5), f.stream));
    for (int z = 0; z < 5; z++)
        f.rows(100000 + z * 40 * PITCH, PITCH, 4, 1, 100, 30);
    f.check("the runtime's fills");
    CUDA_CHECK(cudaMemset(f.device, 9, 0));
    CUDA_CHECK(cudaMemset2D(f.device, PITCH, 9, 0, 5));
    CUDA_CHECK(cudaMemset2D(f.device, PITCH, 9, 5, 0));
    CUDA_CHECK(cudaMemset3D(box, 9, make_cudaExtent(0, 3, 3)));
    FAILS(cudaMemset(f.device, 9, BYTES + 1), cudaErrorInvalidValue);
    FAILS(cudaMemset(f.model.data(), 9, 10), cudaErrorInvalidValue);
    FAILS(cudaMemset2D(f.device, 10, 9, 11, 2), cudaErrorInvalidValue);
    f.check("refused fills and fills of nothing");
}

static void of_a_word(Fills &f, unsigned value)
{
    DRIVER_CHECK(cuStreamWriteValue32(f.stream, f.at(4096), value * 0x01020304u, 0));
    f.rows(4096, BYTES, value * 0x01020304u, 4, 1, 1);
    DRIVER_CHECK(cuStreamWriteValue32(f.stream, f.at(BYTES - 4), value,
                                      CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    f.rows(BYTES - 4, BYTES, value, 4, 1, 1);
    f.check("words");
    DRIVER_FAILS(cuStreamWriteValue32(f.stream, f.at(4098), 1, 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuStreamWriteValue32(f.stream, f.at(4096), 1, 8), CUDA_ERROR_INVALID_VALUE);
    f.check("refused words");
}

static void of_the_driver(Fills &f, unsigned value)
{
    of_a_word(f, value);
    DRIVER_CHECK(cuMemsetD8(f.at(1), value, 999));
    f.rows(1, BYTES, value, 1, 999, 1);
    DRIVER_CHECK(cuMemsetD16(f.at(2002), value, 501));
    f.rows(2002, BYTES, value, 2, 501, 1);
    DRIVER_CHECK(cuMemsetD32(f.at(4004), value, 1025));
    f.rows(4004, BYTES, value, 4, 1025, 1);
    DRIVER_CHECK(cuMemsetD2D8(f.at(20001), PITCH, value, 11, 9));
    f.rows(20001, PITCH, value, 1, 11, 9);
    DRIVER_CHECK(cuMemsetD2D16(f.at(40002), PITCH, value, 111, 19));
    f.rows(40002, PITCH, value, 2, 111, 19);
    DRIVER_CHECK(cuMemsetD2D32(f.at(80004), PITCH, value, 64, 29));
    f.rows(80004, PITCH, value, 4, 64, 29);
    f.check("the driver's fills");
    value = ~value;  // in one stream: later ones win where they overlap
    DRIVER_CHECK(cuMemsetD32Async(f.at(4000), value, 2000, f.stream));
    f.rows(4000, BYTES, value, 4, 2000, 1);
    DRIVER_CHECK(cuMemsetD16Async(f.at(5002), value >> 3, 3000, f.stream));
    f.rows(5002, BYTES, value >> 3, 2, 3000, 1);
    DRIVER_CHECK(cuMemsetD8Async(f.at(5101), value >> 5, 77, f.stream));
    f.rows(5101, BYTES, value >> 5, 1, 77, 1);
    DRIVER_CHECK(cuMemsetD2D32Async(f.at(200000), PITCH, value, 100, 40, f.stream));
    f.rows(200000, PITCH, value, 4, 100, 40);
    DRIVER_CHECK(cuMemsetD2D16Async(f.at(200002), PITCH, value >> 7, 50, 39, f.stream));
    f.rows(200002, PITCH, value >> 7, 2, 50, 39);
    DRIVER_CHECK(cuMemsetD2D8Async(f.at(200007), PITCH, value >> 9, 5, 3, f.stream));
    f.rows(200007, PITCH, value >> 9, 1, 5, 3);
    f.check("the driver's fills in a stream");
    DRIVER_FAILS(cuMemsetD16(f.at(1), 1, 1), CUDA_ERROR_INVALID_VALUE);  // not aligned
    DRIVER_FAILS(cuMemsetD32(f.at(2), 1, 1), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemsetD2D32(f.at(0), 6, 1, 1, 2), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemsetD32(f.at(0), 1, 0));
    f.check("refused fills");
}

int main(int argc, char **argv)
{
    World world = start();
    Fills f;
    unsigned char *pinned;
    CUDA_CHECK(cudaMalloc(&f.device, BYTES));
    CUDA_CHECK(cudaMallocHost(&pinned, 4096));
    CUDA_CHECK(cudaStreamCreate(&f.stream));  // orders with the calls that take no stream
    for (int half = 0; half < 2; half++) {
        of_the_runtime(f, 0x42 + half);
        of_the_driver(f, 0x89abcdef + half);
        CUDA_CHECK(cudaMemsetAsync(pinned, 0x55 + half, 4096, f.stream));
        CUDA_CHECK(cudaStreamSynchronize(f.stream));
        EXPECT(pinned[0] == 0x55 + half && pinned[4095] == 0x55 + half, "%d", pinned[4095]);
        print_line(half, "model", f.model.data(), BYTES);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
