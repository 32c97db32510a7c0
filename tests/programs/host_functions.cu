// host_functions.cu: host functions in two streams, in order with kernels and copies; and pinned
// memory that kernels read and write in place. A host function may not call CUDA.
#include "common.h"

constexpr int COUNT = 256;

__global__ void add(const int *in, int *out, int value)  // in and out: host memory
{
    out[threadIdx.x] = in[threadIdx.x] + value;
}

struct Ledger {
    int *box;          // pinned: written by the kernel, checked and reset by the host function
    int expected, calls, wrong;
};

static void CUDART_CB audit(void *data)
{
    Ledger *ledger = static_cast<Ledger *>(data);
    ledger->expected++;
    ledger->calls++;
    for (int i = 0; i < COUNT; i++)
        ledger->wrong += ledger->box[i] != ledger->expected + i;
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 40);
    cudaStream_t streams[2];
    Ledger ledgers[2] = {};
    for (int s = 0; s < 2; s++) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void **>(&ledgers[s].box), COUNT * sizeof(int),
                                 cudaHostAllocMapped));
        for (int i = 0; i < COUNT; i++)
            ledgers[s].box[i] = 100 * s + i;
        ledgers[s].expected = 100 * s;
    }
    for (int k = 0; k < steps; k++) {
        for (int s = 0; s < 2; s++) {
            int *mapped;
            CUDA_CHECK(cudaHostGetDevicePointer(reinterpret_cast<void **>(&mapped),
                                                ledgers[s].box, 0));
            for (int i = 0; i < 3; i++) {
                add<<<1, COUNT, 0, streams[s]>>>(mapped, mapped, 1);
                CUDA_CHECK(cudaLaunchHostFunc(streams[s], audit, &ledgers[s]));
            }
        }
        for (int s = 0; s < 2; s++) {
            CUDA_CHECK(cudaStreamSynchronize(streams[s]));
            EXPECT(ledgers[s].calls == 3 * (k + 1), "%d calls", ledgers[s].calls);
            EXPECT(ledgers[s].wrong == 0, "rank %d: %d wrong", world.rank, ledgers[s].wrong);
            print_line(k, s ? "second" : "first", ledgers[s].box, COUNT * sizeof(int));
        }
    }
    for (Ledger &ledger : ledgers)
        CUDA_CHECK(cudaFreeHost(ledger.box));
    return 0;
}
