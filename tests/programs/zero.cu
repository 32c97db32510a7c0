// zero.cu: data parallelism with the optimizer's state in parts, a part to each rank (ZeRO-1). The
// parameters are updated part by part on one stream and gathered on another, tensor by tensor.
// Without the argument `ordered` nothing orders the two: what is gathered may be older.
#include <cstring>

#include "common.h"

constexpr int TENSORS = 5, BLOCK = 512;

__global__ void update(float *params, const float *grads, float *moments, size_t count, float rate)
{
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i >= count)
        return;
    float moment = 0.9f * moments[i] + 0.1f * grads[i];
    moments[i] = moment;
    params[i] -= rate * moment;
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 4);
    bool ordered = argc > 2 && !strcmp(argv[2], "ordered");
    size_t part = 3000, tensor = part * world.size;
    std::vector<float> values(TENSORS * tensor);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = noise(uint32_t(i));
    float *params = on_device(values), *grads = on_device(values);
    float *moments = on_device<float>(TENSORS * part);
    cudaStream_t main_stream, nccl_stream;
    cudaEvent_t updated;
    CUDA_CHECK(cudaStreamCreate(&main_stream));
    CUDA_CHECK(cudaStreamCreate(&nccl_stream));
    CUDA_CHECK(cudaEventCreateWithFlags(&updated, cudaEventDisableTiming));
    for (int k = 0; k < steps; k++) {
        for (int t = 0; t < TENSORS; t++) {
            float *whole = params + t * tensor, *own = whole + world.rank * part;
            update<<<(part + BLOCK - 1) / BLOCK, BLOCK, 0, main_stream>>>(
                own, grads + t * tensor + world.rank * part, moments + t * part, part, 0.01f);
            if (ordered) {
                CUDA_CHECK(cudaEventRecord(updated, main_stream));
                CUDA_CHECK(cudaStreamWaitEvent(nccl_stream, updated, 0));
            }
            NCCL_CHECK(ncclAllGather(own, whole, part, ncclFloat, comm, nccl_stream));
        }
        CUDA_CHECK(cudaDeviceSynchronize());
    }
    report(steps, "params", params, TENSORS * tensor);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
