// alone.cu: ranks that never communicate, each with its own pace and its own state.
#include "common.h"

__global__ void logistic(double *x, double r)
{
    for (int i = 0; i < 100; i++)
        x[threadIdx.x] = r * x[threadIdx.x] * (1.0 - x[threadIdx.x]);
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 40) + 3 * world.rank;
    double *x = on_device(std::vector<double>(32, 0.25 + 0.01 * world.rank));
    for (int k = 0; k < steps; k++) {
        logistic<<<1, 32>>>(x, 3.9);
        for (double each : report(k, "x", x, 32))
            EXPECT(each > 0.0 && each < 1.0, "the map left its interval: %g", each);
    }
    return 0;
}
