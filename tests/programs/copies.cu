// copies.cu: every kind of copy, from and to every kind of memory: inferred directions, rows,
// nothing at all, pinned and pageable memory, one stream's order, symbols, two names of one device,
// batches, and which of them are refused.
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

// Requests of one stream happen in order; pageable sources may change once the call returns.
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

static void CUDART_CB write_late(void *memory)
{
    usleep(20000);
    fill(static_cast<int *>(memory), 5000);
}

// A synchronous copy reads pageable memory after what was asked of its stream before.
static void after_host_functions(Memory &m, int seed)
{
    for (cudaStream_t stream : {cudaStream_t(0), m.stream}) {
        fill(m.pageable.data(), seed);
        CUDA_CHECK(cudaLaunchHostFunc(stream, write_late, m.pageable.data()));
        CUDA_CHECK(cudaMemcpy(m.device, m.pageable.data(), COUNT * sizeof(int),
                              cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(m.back, m.device, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
        expect(m.back, 5000, "what a host function wrote");
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

static void become_late(void *text)
{
    usleep(20000);
    strcpy((char *)text, "late");
}

// A batch's copies go with the stream; when a source is read is said for each of them.
static void batch(Memory &m, int seed)
{
    constexpr size_t bytes = COUNT * sizeof(int), blocks = (COUNT + 255) / 256;
    char late[8] = "early", soon[8] = "early", got[2][8];
    int *temporary;
    CUDA_CHECK(cudaMallocHost(&temporary, bytes));
    fill(m.pinned, seed);
    fill(temporary, seed + 5);
    CUDA_CHECK(cudaMemset(m.device, 0, bytes));
    CUDA_CHECK(cudaStreamSynchronize(0));
    CUDA_CHECK(cudaLaunchHostFunc(m.second, become_late, late));
    char *text = (char *)m.other;
    void *to[] = {m.device, text, text + 8, m.other + 4};
    const void *from[] = {m.pinned, late, soon, temporary};
    size_t sizes[] = {bytes, 8, 8, bytes - 16}, firsts[] = {0, 2, 3};
    cudaMemcpyAttributes kinds[3] = {};
    kinds[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    kinds[0].flags = cudaMemcpyFlagPreferOverlapWithCompute;
    kinds[1].srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    kinds[2].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    CUDA_CHECK(cudaMemcpyBatchAsync(to, from, sizes, 4, kinds, firsts, 3, m.second));
    fill(temporary, -1);  // it has been read
    add<<<blocks, 256, 0, m.second>>>(m.device, COUNT, 1);
    CUDA_CHECK(cudaMemcpyAsync(m.back, m.device, bytes, cudaMemcpyDeviceToHost, m.second));
    CUDA_CHECK(cudaMemcpyAsync(got, text, sizeof got, cudaMemcpyDeviceToHost, m.second));
    CUDA_CHECK(cudaMemcpyAsync(m.pageable.data(), m.other + 4, bytes - 16, cudaMemcpyDeviceToHost,
                               m.second));
    CUDA_CHECK(cudaStreamSynchronize(m.second));
    expect(m.back, seed + 1, "a batch, then a kernel");
    EXPECT(!strcmp(got[0], "late") && !strcmp(got[1], "early"), "%s, %s", got[0], got[1]);
    for (int i = 0; i < COUNT - 4; i++)
        EXPECT(m.pageable[i] == seed + 5 + i * 3, "[%d] is %d", i, m.pageable[i]);
    CUDA_CHECK(cudaFreeHost(temporary));
}

static void batches_refused(Memory &m)
{
    void *to[] = {m.device, m.device + 8, m.device + 16};
    const void *from[] = {m.other, m.other, m.other + COUNT};
    size_t sizes[] = {16, 16, 16}, firsts[] = {0, 1}, same[] = {0, 0}, failed = 7;
    cudaMemcpyAttributes kinds[2] = {};
    kinds[0].srcAccessOrder = kinds[1].srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    CUDA_CHECK(cudaMemcpyBatchAsync(to, from, sizes, 2, kinds, firsts, 2, m.stream));
    FAILS(cudaMemcpyBatchAsync(to, from, sizes, 3, kinds, firsts, 2, m.stream),
          cudaErrorInvalidValue);  // the third source
    FAILS(cudaMemcpyBatchAsync(to, from, sizes, 2, kinds, firsts, 0, m.stream),
          cudaErrorInvalidValue);
    FAILS(cudaMemcpyBatchAsync(to, from, sizes, 2, kinds, same, 2, m.stream),
          cudaErrorInvalidValue);
    FAILS(cudaMemcpyBatchAsync(to, from, sizes, 2, kinds, firsts + 1, 1, m.stream),
          cudaErrorInvalidValue);
    FAILS(cudaMemcpyBatchAsync(to, from, sizes, 2, kinds, firsts, 2, cudaStreamLegacy),
          cudaErrorInvalidValue);
    // The driver's first form also returns which copy it was.
    CUresult (*first_form)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *,
                           size_t *, size_t, size_t *, CUstream);
    DRIVER_CHECK(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&first_form, 12080, 0, nullptr));
    auto attributes = (CUmemcpyAttributes *)kinds;
    auto dst = (CUdeviceptr *)to, src = (CUdeviceptr *)from;
    DRIVER_CHECK(first_form(dst, src, sizes, 2, attributes, firsts, 2, nullptr, m.stream));
    DRIVER_FAILS(first_form(dst, src, sizes, 3, attributes, firsts, 2, &failed, m.stream),
                 CUDA_ERROR_INVALID_VALUE);
    EXPECT(failed == 2, "copy %zu failed", failed);
    DRIVER_FAILS(first_form(dst, src, sizes, 2, attributes, firsts, 3, &failed, m.stream),
                 CUDA_ERROR_INVALID_VALUE);
    EXPECT(failed == SIZE_MAX, "copy %zu failed", failed);
    kinds[1].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    DRIVER_FAILS(first_form(dst, src, sizes, 2, attributes, firsts, 2, &failed, m.stream),
                 CUDA_ERROR_INVALID_VALUE);
    EXPECT(failed == 1, "copy %zu failed", failed);
    DRIVER_FAILS(cuMemcpyBatchAsync(dst, src, sizes, 2, attributes, firsts, 2, m.stream),
                 CUDA_ERROR_INVALID_VALUE);
}

// Boxes in a batch: rows and layers that are longer than what is copied, and packed ones.
static void batch_of_boxes(Memory &m, int seed)
{
    constexpr size_t width = 12, height = 3, depth = 2, row = 16, layer = 4;
    std::vector<unsigned char> host(row * layer * depth), got(width * height * depth);
    for (size_t i = 0; i < host.size(); i++)
        host[i] = (unsigned char)(seed + i);
    cudaMemcpy3DBatchOp op[2] = {};
    op[0].src.type = op[0].dst.type = cudaMemcpyOperandTypePointer;
    op[0].src.op.ptr.ptr = host.data();
    op[0].src.op.ptr.rowLength = row;
    op[0].src.op.ptr.layerHeight = layer;
    op[0].dst.op.ptr.ptr = m.device;
    op[0].extent = make_cudaExtent(width, height, depth);
    op[0].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    CUDA_CHECK(cudaMemcpy3DBatchAsync(1, op, 0, m.stream));
    op[1] = op[0];
    op[0].src.op.ptr = {};
    op[0].src.op.ptr.ptr = m.device;
    op[0].dst.op.ptr.ptr = got.data();
    op[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    op[1].dst.op.ptr.ptr = m.other;
    CUDA_CHECK(cudaMemcpy3DBatchAsync(2, op, 0, m.stream));
    CUDA_CHECK(cudaStreamSynchronize(m.stream));
    for (size_t i = 0; i < got.size(); i++) {
        size_t x = i % width, y = i / width % height, z = i / width / height;
        EXPECT(got[i] == host[(z * layer + y) * row + x], "(%zu, %zu, %zu)", x, y, z);
    }
    op[1].src.op.ptr.rowLength = width - 1;
    FAILS(cudaMemcpy3DBatchAsync(2, op, 0, m.stream), cudaErrorInvalidValue);
    FAILS(cudaMemcpy3DBatchAsync(1, op, 1, m.stream), cudaErrorInvalidValue);
    op[0].extent.depth = 0;
    FAILS(cudaMemcpy3DBatchAsync(1, op, 0, m.stream), cudaErrorInvalidValue);
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

// A synchronous copy has arrived, also for a stream that waits for no other stream.
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
        after_host_functions(m, seed);
        rows(m, seed);
        symbols(m, seed);
        peers(m, seed);
        streams(m, seed);
        batch(m, seed);
        batches_refused(m);
        batch_of_boxes(m, seed);
        arrival(m, seed);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
