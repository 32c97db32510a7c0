// copies.cu: every kind of copy, from and to every kind of memory: inferred directions, rows,
// nothing at all, pinned and pageable memory, one stream's order, symbols, two names of one device,
// and which of them are refused.
#include <cuda.h>

#include "behaviour.h"

constexpr int COUNT = 100000;  // of ints: more than one piece of anything
__device__ int table[64];
__constant__ int fixed[16];

__global__ void add(int *data, int count, int what)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] += what;
}
__global__ void use_symbols(int *out)
{
    out[threadIdx.x] = table[threadIdx.x] + fixed[threadIdx.x & 15];
}

struct Memory {
    int *device, *other, *pinned, *back;
    std::vector<int> pageable = std::vector<int>(COUNT);
    cudaStream_t stream, second;
};

static void fill(int *at, int seed)
{
    for (int i = 0; i < COUNT; i++)
        at[i] = seed + i * 3;
}

static void expect(const int *at, int seed, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        EXPECT(at[i] == seed + i * 3, "%s: [%d] is %d", what, i, at[i]);
}

// cudaMemcpyDefault finds the direction; a stated one must be right.
static void directions(Memory &m, int seed)
{
    constexpr size_t bytes = COUNT * sizeof(int);
    fill(m.pageable.data(), seed);
    CUDA_CHECK(cudaMemcpy(m.device, m.pageable.data(), bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy(m.other, m.device, bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy(m.pinned, m.other, bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy(m.back, m.pinned, bytes, cudaMemcpyDefault));
    std::vector<int> last(COUNT);
    CUDA_CHECK(cudaMemcpy(last.data(), m.back, bytes, cudaMemcpyHostToHost));
    expect(last.data(), seed, "host, device, device, pinned, pinned, host");
    FAILS(cudaMemcpy(last.data(), m.device, bytes, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(m.device, m.pageable.data(), bytes, cudaMemcpyDeviceToDevice),
          cudaErrorInvalidValue);
    FAILS(cudaMemcpy(m.device, m.other, bytes, cudaMemcpyKind(9)),
          cudaErrorInvalidMemcpyDirection);
    FAILS(cudaMemcpy(m.device + 1, m.other, bytes, cudaMemcpyDefault), cudaErrorInvalidValue);
    CUDA_CHECK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpyAsync(m.device, m.other, 0, cudaMemcpyDeviceToDevice, m.stream));
}

// What is asked of one stream happens in order; pageable sources may change once the call is over.
static void order(Memory &m, int seed)
{
    constexpr size_t bytes = COUNT * sizeof(int);
    constexpr int blocks = (COUNT + 255) / 256;
    for (int k = 0; k < 4; k++) {
        fill(m.pageable.data(), seed + k);
        CUDA_CHECK(cudaMemcpyAsync(m.device, m.pageable.data(), bytes, cudaMemcpyHostToDevice,
                                   m.stream));
        fill(m.pageable.data(), -1);
        add<<<blocks, 256, 0, m.stream>>>(m.device, COUNT, 100);
        CUDA_CHECK(cudaMemcpyAsync(m.pinned, m.device, bytes, cudaMemcpyDeviceToHost, m.stream));
        add<<<blocks, 256, 0, m.stream>>>(m.device, COUNT, 1000);  // after it was read
        CUDA_CHECK(cudaMemcpyAsync(m.other, m.pinned, bytes, cudaMemcpyHostToDevice, m.stream));
        CUDA_CHECK(cudaMemcpyAsync(m.pageable.data(), m.device, bytes, cudaMemcpyDeviceToHost,
                                   m.stream));
        CUDA_CHECK(cudaMemcpyAsync(m.back, m.other, bytes, cudaMemcpyDefault, m.stream));
        CUDA_CHECK(cudaStreamSynchronize(m.stream));
        expect(m.pinned, seed + k + 100, "pinned");
        expect(m.pageable.data(), seed + k + 1100, "pageable");
        expect(m.back, seed + k + 100, "through another buffer");
    }
}

// Ranges of one allocation that overlap are not allowed; those that touch are.
static void rows(Memory &m, int seed)
{
    constexpr int width = 37, height = 300, pitch = 64;
    std::vector<int> packed(width * height), got(width * height, -1);
    for (int i = 0; i < width * height; i++)
        packed[i] = seed ^ i;
    CUDA_CHECK(cudaMemset(m.device, 0xff, COUNT * sizeof(int)));
    CUDA_CHECK(cudaMemcpy2D(m.device, pitch * 4, packed.data(), width * 4, width * 4, height,
                            cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy2DAsync(m.pinned, pitch * 4, m.device, pitch * 4, width * 4, height,
                                 cudaMemcpyDeviceToHost, m.stream));
    CUDA_CHECK(cudaMemcpy2DAsync(m.other, width * 4, m.pinned, pitch * 4, width * 4, height,
                                 cudaMemcpyHostToDevice, m.stream));
    CUDA_CHECK(cudaMemcpy2DAsync(got.data(), width * 4, m.other, width * 4, width * 4, height,
                                 cudaMemcpyDeviceToHost, m.stream));
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    EXPECT(got == packed, "rows were changed on the way");
    std::vector<int> whole(pitch * height);
    CUDA_CHECK(cudaMemcpy(whole.data(), m.device, whole.size() * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < int(whole.size()) - pitch + width; i++)
        EXPECT(i % pitch < width || whole[i] == -1, "[%d] between rows is %d", i, whole[i]);
    FAILS(cudaMemcpy2D(m.device, width * 4 - 4, packed.data(), width * 4, width * 4, 2,
                       cudaMemcpyDefault), cudaErrorInvalidPitchValue);
    CUDA_CHECK(cudaMemcpy2D(m.device, pitch * 4, packed.data(), width * 4, 0, height,
                            cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy2D(m.device, pitch * 4, packed.data(), width * 4, width * 4, 0,
                            cudaMemcpyDefault));
    print_line(seed, "rows", got.data(), got.size() * 4);
}

static void symbols(Memory &m, int seed)
{
    int values[64], got[64];
    for (int i = 0; i < 64; i++)
        values[i] = seed * i;
    CUDA_CHECK(cudaMemcpyToSymbolAsync(table, values, 32 * 4, 0, cudaMemcpyDefault, m.stream));
    CUDA_CHECK(cudaMemcpy(m.device, values, sizeof values, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpyToSymbolAsync(table, m.device + 32, 32 * 4, 32 * 4,
                                       cudaMemcpyDeviceToDevice, m.stream));
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    CUDA_CHECK(cudaMemcpyToSymbol(fixed, values, sizeof fixed));
    use_symbols<<<1, 64>>>(m.other);
    CUDA_CHECK(cudaMemcpy(got, m.other, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++)
        EXPECT(got[i] == seed * (i + (i & 15)), "kernel read %d at %d", got[i], i);
    CUDA_CHECK(cudaMemcpyFromSymbol(got, table, 8, 63 * 4 - 4));
    EXPECT(got[0] == seed * 62 && got[1] == seed * 63, "%d %d", got[0], got[1]);
    CUDA_CHECK(cudaMemcpyFromSymbolAsync(m.device, table, sizeof table, 0,
                                         cudaMemcpyDeviceToDevice, m.stream));
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    FAILS(cudaMemcpyToSymbol(table, values, 8, 63 * 4), cudaErrorInvalidValue);
    FAILS(cudaMemcpyToSymbol(values, values, 8), cudaErrorInvalidSymbol);
    FAILS(cudaMemcpyFromSymbol(got, table, 8, 0, cudaMemcpyHostToDevice),
          cudaErrorInvalidMemcpyDirection);
}

// Between one device and itself, in the forms that name the devices.
static void peers(Memory &m, int seed)
{
    int device, got[8];
    CUDA_CHECK(cudaGetDevice(&device));
    std::vector<int> values(8, seed);
    CUDA_CHECK(cudaMemcpy(m.device, values.data(), 32, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpyPeer(m.other, device, m.device, device, 32));
    CUDA_CHECK(cudaMemcpyPeerAsync(m.device + 8, device, m.other, device, 32, m.stream));
    cudaMemcpy3DPeerParms p = {};
    p.srcPtr = make_cudaPitchedPtr(m.device + 8, 8, 8, 4);
    p.dstPtr = make_cudaPitchedPtr(m.other + 64, 16, 16, 4);
    p.srcDevice = p.dstDevice = device;
    p.extent = make_cudaExtent(8, 4, 1);
    CUDA_CHECK(cudaMemcpy3DPeerAsync(&p, m.stream));
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    CUDA_CHECK(cudaMemcpy3DPeer(&p));
    CUDA_CHECK(cudaMemcpy2D(got, 8, m.other + 64, 16, 8, 4, cudaMemcpyDeviceToHost));
    for (int value : got)
        EXPECT(value == seed, "got %d", value);
    CUcontext context;
    DRIVER_CHECK(cuCtxGetCurrent(&context));
    DRIVER_CHECK(cuMemcpyPeer(CUdeviceptr(m.other), context, CUdeviceptr(m.device), context, 32));
    DRIVER_CHECK(cuMemcpyPeerAsync(CUdeviceptr(m.other), context, CUdeviceptr(m.device), context,
                                   32, m.stream));
    CUDA_MEMCPY3D_PEER described = {};
    described.srcMemoryType = described.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    described.srcDevice = CUdeviceptr(m.other);
    described.dstDevice = CUdeviceptr(m.other + 128);
    described.srcContext = described.dstContext = context;
    described.WidthInBytes = 32;
    described.Height = described.Depth = 1;
    DRIVER_CHECK(cuMemcpy3DPeerAsync(&described, m.stream));
    DRIVER_CHECK(cuMemcpy3DPeer(&described));
    CUDA_CHECK(cudaMemcpy(got, m.other + 128, 32, cudaMemcpyDeviceToHost));
    EXPECT(got[0] == seed && got[7] == seed, "%d %d", got[0], got[7]);
    FAILS(cudaMemcpyPeer(m.other, device, m.device, 99, 32), cudaErrorInvalidDevice);
}

// Two streams that share nothing, then an event that orders them.
static void streams(Memory &m, int seed)
{
    constexpr size_t half = COUNT / 2 * sizeof(int);
    fill(m.pinned, seed);
    cudaEvent_t done;
    CUDA_CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CUDA_CHECK(cudaMemcpyAsync(m.device, m.pinned, half, cudaMemcpyHostToDevice, m.stream));
    CUDA_CHECK(cudaMemcpyAsync(m.device + COUNT / 2, m.pinned + COUNT / 2, half,
                               cudaMemcpyHostToDevice, m.second));
    CUDA_CHECK(cudaEventRecord(done, m.second));
    CUDA_CHECK(cudaStreamWaitEvent(m.stream, done, 0));
    CUDA_CHECK(cudaMemcpyAsync(m.back, m.device, 2 * half, cudaMemcpyDeviceToHost, m.stream));
    CUDA_CHECK(cudaEventDestroy(done));  // while it is in use
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    expect(m.back, seed, "two streams' copies");
}

// What was copied synchronously has arrived, also for a stream that waits for nobody.
static void arrival(Memory &m, int seed)
{
    for (int k = 0; k < 20; k++) {
        int count = k % 2 ? COUNT : 1;
        fill(m.pageable.data(), seed + k);
        CUDA_CHECK(cudaMemcpy(m.device, m.pageable.data(), count * sizeof(int),
                              cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpyAsync(m.back, m.device, count * sizeof(int), cudaMemcpyDeviceToHost,
                                   m.second));
        CUDA_CHECK(cudaStreamSynchronize(m.second));
        for (int i = 0; i < count; i++)
            EXPECT(m.back[i] == seed + k + i * 3, "round %d: [%d] is %d", k, i, m.back[i]);
    }
}

int main(int argc, char **argv)
{
    start();
    Memory m;
    m.device = on_device<int>(COUNT);
    m.other = on_device<int>(COUNT);
    CUDA_CHECK(cudaMallocHost(&m.pinned, COUNT * sizeof(int)));
    CUDA_CHECK(cudaHostAlloc(&m.back, COUNT * sizeof(int), cudaHostAllocPortable));
    CUDA_CHECK(cudaStreamCreate(&m.stream));  // orders with the calls that take no stream
    CUDA_CHECK(cudaStreamCreateWithFlags(&m.second, cudaStreamNonBlocking));
    for (int half = 0; half < 2; half++) {
        int seed = 7 + 1000 * half;
        directions(m, seed);
        order(m, seed);
        rows(m, seed);
        symbols(m, seed);
        peers(m, seed);
        streams(m, seed);
        arrival(m, seed);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
