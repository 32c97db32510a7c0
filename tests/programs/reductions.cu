// reductions.cu: every reduction on every integer and floating type, several of them in one
// group, against the host's own result (values for which any order of adding is exact).
#include <cuda_fp16.h>

#include <algorithm>

#include "common.h"

constexpr int COUNT = 257;

// Small integers: sums and products over eight ranks fit all types but int8's product.
static int value_of(int step, int rank, int i) { return 1 + (step + rank * 3 + i) % 2; }

template <typename T>
__global__ void fill(T *data, const int *values)
{
    data[threadIdx.x] = T(values[threadIdx.x]);
}
template <typename T>
__global__ void read(const T *data, float *values)
{
    values[threadIdx.x] = float(data[threadIdx.x]);
}

static float combine(ncclRedOp_t op, int step, int n, int i)
{
    float result = float(value_of(step, 0, i)), scaled = 2.0f * result;
    for (int r = 1; r < n; r++) {
        float x = float(value_of(step, r, i));
        scaled += 2.0f * x;
        result = op == ncclMax ? std::max(result, x) : op == ncclMin ? std::min(result, x)
                 : op == ncclProd ? result * x : result + x;
    }
    return op > ncclMin ? scaled : result;  // beyond the four: times 2, then summed
}

template <typename T>
static void check(const char *name, ncclDataType_t type, const World &world, ncclComm_t comm,
                  int step, T two)
{
    std::vector<int> values(COUNT);
    for (int i = 0; i < COUNT; i++)
        values[i] = value_of(step, world.rank, i);
    int *numbers = on_device(values);
    ncclRedOp_t twice, later, ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclSum, ncclSum};
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&twice, &two, type, ncclScalarHostImmediate, comm));
    T *factor = on_device<T>(1);  // which is two when the sum runs
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&later, factor, type, ncclScalarDevice, comm));
    CUDA_CHECK(cudaMemcpy(factor, &two, sizeof two, cudaMemcpyHostToDevice));
    ops[4] = twice;
    ops[5] = later;
    T *in = on_device<T>(COUNT), *out[6];
    for (T *&each : out)
        each = on_device<T>(COUNT);
    float *back = on_device<float>(COUNT);
    fill<<<1, COUNT>>>(in, numbers);
    NCCL_CHECK(ncclGroupStart());
    for (int i = 0; i < 6; i++)
        NCCL_CHECK(ncclAllReduce(in, out[i], COUNT, type, ops[i], comm, 0));
    NCCL_CHECK(ncclRedOpDestroy(twice, comm));  // who uses them has been called
    NCCL_CHECK(ncclRedOpDestroy(later, comm));
    NCCL_CHECK(ncclGroupEnd());
    for (int k = 0; k < 6; k++) {
        read<<<1, COUNT>>>(out[k], back);
        std::vector<float> got = report(step, name, back, COUNT);
        for (int i = 0; i < COUNT; i++)
            EXPECT(got[i] == combine(ops[k], step, world.size, i), "%s, operation %d, [%d]: %g",
                   name, k, i, got[i]);
        CUDA_CHECK(cudaFree(out[k]));
    }
    CUDA_CHECK(cudaFree(in));
    CUDA_CHECK(cudaFree(back));
    CUDA_CHECK(cudaFree(numbers));
}

// A program that makes an operator for each collective never runs out of names: they are reused.
static void names(ncclComm_t comm)
{
    float two = 2, *data = on_device<float>(1);
    ncclRedOp_t kept, gone, again;
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&gone, &two, ncclFloat, ncclScalarHostImmediate, comm));
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&kept, data, ncclFloat, ncclScalarDevice, comm));
    for (int i = 0; i < 1000; i++) {
        EXPECT(ncclRedOpDestroy(gone, comm) == ncclSuccess, "operator %d, again", gone);
        EXPECT(ncclRedOpDestroy(gone, comm) == ncclInvalidArgument, "%d goes once", gone);
        EXPECT(ncclAllReduce(data, data, 1, ncclFloat, gone, comm, 0) == ncclInvalidArgument,
               "operator %d is gone", gone);
        auto where = i % 2 ? ncclScalarDevice : ncclScalarHostImmediate;
        NCCL_CHECK(ncclRedOpCreatePreMulSum(&again, i % 2 ? data : &two, ncclFloat, where, comm));
        EXPECT(again == gone && again != kept, "%d, not %d", again, gone);
    }
    NCCL_CHECK(ncclRedOpDestroy(again, comm));
    NCCL_CHECK(ncclRedOpDestroy(kept, comm));
    for (ncclRedOp_t none : {ncclRedOp_t(5), ncclRedOp_t(-1), kept})
        EXPECT(ncclAllReduce(data, data, 1, ncclFloat, none, comm, 0) == ncclInvalidArgument,
               "%d is no operator", none);
    EXPECT(ncclRedOpDestroy(ncclSum, comm) == ncclInvalidArgument, "ncclSum stays");
    CUDA_CHECK(cudaFree(data));
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    names(comm);
    int steps = argument(argc, argv, 1, 5);
    EXPECT(world.size <= 6, "products of more than six ranks do not fit int8");
    for (int k = 0; k < steps; k++) {
        check<int8_t>("int8", ncclInt8, world, comm, k, 2);
        check<uint8_t>("uint8", ncclUint8, world, comm, k, 2);
        check<int32_t>("int32", ncclInt32, world, comm, k, 2);
        check<uint32_t>("uint32", ncclUint32, world, comm, k, 2);
        check<int64_t>("int64", ncclInt64, world, comm, k, 2);
        check<uint64_t>("uint64", ncclUint64, world, comm, k, 2);
        check<__half>("half", ncclHalf, world, comm, k, __float2half(2.0f));
        check<float>("float", ncclFloat, world, comm, k, 2.0f);
        check<double>("double", ncclDouble, world, comm, k, 2.0);
    }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
