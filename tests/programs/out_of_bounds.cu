// out_of_bounds.cu: a kernel writes far outside any allocation. The error is
// cudaErrorIllegalAddress, it shows at the next synchronisation and it stays.
// Argument 2: the rank that does it (default 0); the others continue. Argument 3, if it is
// given: a copy of so many bytes is the only call that meets the error.
#include "common.h"

__global__ void write_at(float *data, long long index) { data[index] = 1.0f; }

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 20), culprit = argument(argc, argv, 2, 0);
    float *data = on_device<float>(64);
    for (int k = 0; k < steps; k++) {
        write_at<<<1, 1>>>(data, k % 64);
        std::vector<float> values = report(k, "data", data, 64);
        EXPECT(values[k % 64] == 1.0f, "step %d", k);
    }
    if (world.rank != culprit)
        return 0;
    write_at<<<1, 1>>>(data, 1ll << 34);
    if (int bytes = argument(argc, argv, 3, 0)) {
        std::vector<char> values(bytes);
        cudaError_t error = cudaMemcpy(values.data(), data, bytes, cudaMemcpyDeviceToHost);
        EXPECT(error == cudaErrorIllegalAddress, "%s", cudaGetErrorName(error));
        return 0;
    }
    cudaError_t error = cudaDeviceSynchronize();
    EXPECT(error == cudaErrorIllegalAddress, "%s", cudaGetErrorName(error));
    float *more;
    error = cudaMalloc(&more, 64);
    EXPECT(error == cudaErrorIllegalAddress, "after the fault: %s", cudaGetErrorName(error));
    printf("illegal address reported\n");
    return 0;
}
