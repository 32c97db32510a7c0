// expandable.cu: one large range of addresses in which a program maps and unmaps pieces of memory
// one by one, as PyTorch's expandable segments do. Kernels, copies, fills and collectives reach
// over the borders of pieces, and a piece keeps its content wherever it is mapped.
//
// Arguments: the file that ends the interlude, and steps: a letter and three numbers each. They are
// carried out on the device and in a plain model of it; without steps, a list of its own.
#include <cuda.h>

#include "behaviour.h"

constexpr size_t STEP = 2 << 20;
constexpr uint32_t WORDS = STEP / sizeof(uint32_t);
constexpr int SLOTS = 12;     // places in the range
constexpr size_t PIECES = 9;  // at a time

// Where a thread reads is in memory, so that no one knows it before.
__global__ void gather(uint32_t *to, const uint32_t *from, const uint32_t *where, uint32_t count)
{
    uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[where[0] + i * where[1]];
}

// The same, with known bounds of what it writes: its result can be taken from another rank.
__global__ void pick(uint32_t *to, const uint32_t *from, const uint32_t *where, uint32_t count)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = from[where[0] + i * where[1]];
}

__global__ void count_up(uint32_t *to, uint32_t count, uint32_t first)
{
    uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = first + i;
}

static CUmemAllocationProp property()
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    return p;
}

struct Piece {
    CUmemGenericAllocationHandle handle;
    int handles, slot;  // slot -1: it is not mapped
    bool known;         // word j is first + step * j
    uint32_t first, step;
};

class Segment {
public:
    Segment()
    {
        size_t free_bytes, total;
        CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        bytes_ = total / STEP * STEP * 9 / 8 / STEP * STEP + SLOTS * STEP;
        DRIVER_CHECK(cuMemAddressReserve(&base_, bytes_, 0, 0, 0));
        size_t left;
        CUDA_CHECK(cudaMemGetInfo(&left, &total));
        EXPECT(left == free_bytes, "addresses cost %zu bytes", free_bytes - left);
        const uint32_t straight[] = {0, 1};
        where_ = on_device(std::vector<uint32_t>(straight, straight + 2));
    }

    void end()
    {
        for (int s = 0; s < SLOTS; s++)
            if (at(s))
                unmap(s, 1);
        for (size_t p = 0; p < pieces_.size(); p++)
            while (pieces_[p].handles)
                release(p);
        DRIVER_CHECK(cuMemAddressFree(base_, bytes_));
    }

    CUdeviceptr address(int slot) const { return base_ + slot * STEP; }
    uint32_t *words(int slot) const { return reinterpret_cast<uint32_t *>(address(slot)); }

    void step(char what, unsigned a, unsigned b, unsigned c)
    {
        int slot = a % SLOTS, other = b % SLOTS, count = 1 + c % 4;
        if (slot + count > SLOTS)
            count = SLOTS - slot;
        switch (what) {
        case 'c': return create();
        case 'm': return map(a, other);
        case 'u': return unmap(slot, count);
        case 'r': return release(a);
        case 't': return retain(slot);
        case 'w': return write(slot, count, b);
        case 'f': return fill(slot, count, b);
        case 'k': return copy(slot, other, count, false);
        case 'g': return copy(slot, other, count, true);
        case 'x': return check();
        default: die("no step '%c'", what);
        }
    }

    void check()
    {
        for (int s = 0, n; s < SLOTS; s += n) {
            for (n = 0; s + n < SLOTS && at(s + n);)
                n++;
            if (n)
                compare(s, n);
            else
                n = 1;
        }
    }

private:
    Piece *at(int slot)
    {
        for (Piece &p : pieces_)
            if (p.slot == slot)
                return &p;
        return nullptr;
    }

    bool all_mapped(int slot, int count)
    {
        for (int s = slot; s < slot + count; s++)
            if (s >= SLOTS || !at(s))
                return false;
        return true;
    }

    // A piece that can be mapped; its place in the list.
    size_t with_handle(size_t which) const
    {
        for (size_t i = 0; i < pieces_.size(); i++) {
            size_t p = (which + i) % pieces_.size();
            if (pieces_[p].handles)
                return p;
        }
        return PIECES;
    }

    void drop()
    {
        for (size_t p = pieces_.size(); p-- > 0;)
            if (!pieces_[p].handles && pieces_[p].slot < 0)
                pieces_.erase(pieces_.begin() + p);
    }

    void create()
    {
        CUmemAllocationProp prop = property();
        Piece p = {0, 1, -1, false, 0, 0};
        if (pieces_.size() == PIECES)
            return;
        DRIVER_CHECK(cuMemCreate(&p.handle, STEP, &prop, 0));
        pieces_.push_back(p);
    }

    void map(size_t which, int slot)
    {
        size_t i = with_handle(which);
        CUmemAccessDesc access = {property().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        unsigned long long flags = 1;
        if (i == PIECES || pieces_[i].slot >= 0)
            return;
        Piece &p = pieces_[i];
        CUresult got = cuMemMap(address(slot), STEP, 0, p.handle, 0);
        EXPECT(got == (at(slot) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS), "%d", got);
        if (got)
            return;
        p.slot = slot;
        DRIVER_CHECK(cuMemGetAccess(&flags, &access.location, address(slot)));
        EXPECT(flags == 0, "%llu", flags);
        DRIVER_CHECK(cuMemSetAccess(address(slot), STEP, &access, 1));
        DRIVER_CHECK(cuMemGetAccess(&flags, &access.location, address(slot) + 5));
        EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "%llu", flags);
    }

    void unmap(int slot, int count)
    {
        bool good = all_mapped(slot, count);
        CUresult got = cuMemUnmap(address(slot), count * STEP);
        EXPECT(got == (good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE), "%d", got);
        for (int s = slot; good && s < slot + count; s++)
            at(s)->slot = -1;
        drop();
    }

    void release(size_t which)
    {
        size_t i = with_handle(which);
        if (i == PIECES)
            return;
        DRIVER_CHECK(cuMemRelease(pieces_[i].handle));
        pieces_[i].handles--;
        drop();
    }

    void retain(int slot)
    {
        CUmemGenericAllocationHandle handle;
        CUresult got = cuMemRetainAllocationHandle(&handle, words(slot) + 3);
        Piece *p = at(slot);
        EXPECT(got == (p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE), "%d", got);
        EXPECT(!p || p->handle == handle, "the handle of another piece");
        if (p)
            p->handles++;
    }

    void write(int slot, int count, uint32_t first)
    {
        if (!all_mapped(slot, count))
            return;
        count_up<<<8, 128>>>(words(slot), count * WORDS, first);
        for (int s = 0; s < count; s++)
            content(slot + s, first + s * WORDS, 1);
    }

    void fill(int slot, int count, unsigned value)
    {
        uint32_t word = (value & 0xff) * 0x01010101u;
        cudaError_t got = cudaMemset(words(slot), int(value & 0xff), count * STEP);
        bool good = all_mapped(slot, count);
        EXPECT(got == (good ? cudaSuccess : cudaErrorInvalidValue), "%d", got);
        (void)cudaGetLastError();
        for (int s = 0; good && s < count; s++)
            content(slot + s, word, 0);
    }

    void copy(int from, int to, int count, bool by_kernel)
    {
        bool apart = from + count <= to || to + count <= from;
        if (!all_mapped(from, count) || !all_mapped(to, count) || !apart)
            return;
        if (by_kernel)
            gather<<<8, 128>>>(words(to), words(from), where_, count * WORDS);
        else
            CUDA_CHECK(cudaMemcpyAsync(words(to), words(from), count * STEP,
                                       cudaMemcpyDeviceToDevice));
        for (int s = 0; s < count; s++) {
            const Piece &p = *at(from + s);
            at(to + s)->known = p.known;
            content(to + s, p.first, p.step, p.known);
        }
    }

    void content(int slot, uint32_t first, uint32_t step, bool known = true)
    {
        Piece &p = *at(slot);
        p.known = known;
        p.first = first;
        p.step = step;
    }

    void compare(int slot, int count)
    {
        std::vector<uint32_t> got(size_t(count) * WORDS);
        CUDA_CHECK(cudaMemcpy(got.data(), words(slot), count * STEP, cudaMemcpyDeviceToHost));
        for (int s = 0; s < count; s++) {
            const Piece &p = *at(slot + s);
            for (uint32_t j = 0; p.known && j < WORDS; j++)
                EXPECT(got[size_t(s) * WORDS + j] == p.first + p.step * j,
                       "word %u of slot %d is %u", j, slot + s, got[size_t(s) * WORDS + j]);
        }
    }

    CUdeviceptr base_ = 0;
    size_t bytes_;
    std::vector<Piece> pieces_;
    uint32_t *where_;
};

static void run(Segment *segment, char **steps, int count)
{
    for (int i = 0; i < count; i++) {
        unsigned a = 0, b = 0, c = 0;
        char what;
        EXPECT(sscanf(steps[i], "%c%u,%u,%u", &what, &a, &b, &c) >= 1, "%s", steps[i]);
        segment->step(what, a, b, c);
    }
    segment->check();
}

static void expect_range(CUdeviceptr at, CUdeviceptr base, size_t bytes, bool mapped)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED};
    CUdeviceptr start = 0;
    size_t size = 0;
    bool here = !mapped;
    void *data[] = {&start, &size, &here};
    DRIVER_CHECK(cuPointerGetAttributes(3, which, data, at));
    EXPECT(start == base && size == bytes && here == mapped, "%llx, %zu, %d", start, size, here);
    cudaPointerAttributes runtime;
    CUDA_CHECK(cudaPointerGetAttributes(&runtime, reinterpret_cast<void *>(at)));
    EXPECT(runtime.type == (mapped ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered), "%d",
           runtime.type);
}

// The answers are plain CUDA's: the range of addresses, and the piece, that contain an address.
static void answers(CUdeviceptr base, CUmemGenericAllocationHandle *pieces)
{
    CUdeviceptr start;
    size_t size;
    CUmemAccessDesc access = {property().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (int i = 0; i < 3; i++)
        DRIVER_CHECK(cuMemMap(base + i * STEP, STEP, 0, pieces[i], 0));
    DRIVER_CHECK(cuMemSetAccess(base, 3 * STEP, &access, 1));
    expect_range(base + 100, base, 8 * STEP, true);
    expect_range(base + 2 * STEP, base, 8 * STEP, true);
    expect_range(base + 3 * STEP, base, 8 * STEP, false);
    DRIVER_CHECK(cuMemGetAddressRange(&start, &size, base + STEP + 100));
    EXPECT(start == base + STEP && size == STEP, "%llx, %zu", start, size);
    DRIVER_FAILS(cuMemGetAddressRange(&start, &size, base + 3 * STEP), CUDA_ERROR_NOT_FOUND);
    DRIVER_FAILS(cuMemFree(base), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(base + STEP, 2 * STEP, 0, pieces[3], 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemMap(base + 7 * STEP, 2 * STEP, 0, pieces[3], 0), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemSetAccess(base, 4 * STEP, &access, 1), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemAddressFree(base, 8 * STEP), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemUnmap(base, 4 * STEP), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemMap(base + 4 * STEP, 2 * STEP, 0, pieces[3], 0));
    DRIVER_FAILS(cuMemUnmap(base + 4 * STEP, STEP), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemUnmap(base + 5 * STEP, STEP), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuMemUnmap(base + 5 * STEP, 2 * STEP), CUDA_ERROR_INVALID_VALUE);
    DRIVER_CHECK(cuMemGetAddressRange(&start, &size, base + 5 * STEP));
    EXPECT(start == base + 4 * STEP && size == 2 * STEP, "%llx, %zu", start, size);
    DRIVER_CHECK(cuMemUnmap(base + 4 * STEP, 2 * STEP));
    DRIVER_CHECK(cuMemUnmap(base, 3 * STEP));
}

static void facts()
{
    CUmemAllocationProp prop = property();
    CUmemGenericAllocationHandle pieces[4];
    CUdeviceptr base;
    DRIVER_CHECK(cuMemAddressReserve(&base, 8 * STEP, 0, 0, 0));
    for (int i = 0; i < 4; i++)
        DRIVER_CHECK(cuMemCreate(&pieces[i], i < 3 ? STEP : 2 * STEP, &prop, 0));
    answers(base, pieces);
    for (CUmemGenericAllocationHandle piece : pieces)
        DRIVER_CHECK(cuMemRelease(piece));
    DRIVER_CHECK(cuMemMap(base, STEP, 0, 0, 0) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    DRIVER_CHECK(cuMemAddressFree(base, 8 * STEP));
}

// As many pieces fit as there is memory, whether they are mapped or not.
static void exhaust()
{
    CUmemAllocationProp prop = property();
    std::vector<CUmemGenericAllocationHandle> all;
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    for (CUmemGenericAllocationHandle one;; all.push_back(one)) {
        CUresult got = cuMemCreate(&one, STEP, &prop, 0);
        if (got == CUDA_ERROR_OUT_OF_MEMORY)
            break;
        DRIVER_CHECK(got);
    }
    EXPECT(all.size() == free_bytes / STEP, "%zu pieces of %zu bytes", all.size(), free_bytes);
    void *none;
    FAILS(cudaMalloc(&none, STEP), cudaErrorMemoryAllocation);
    for (CUmemGenericAllocationHandle one : all)
        DRIVER_CHECK(cuMemRelease(one));
    size_t again;
    CUDA_CHECK(cudaMemGetInfo(&again, &total));
    EXPECT(again == free_bytes, "%zu bytes are free, not %zu", again, free_bytes);
}

// The sum over the ranks of words in two pieces, beginning in the first one.
static void sum(World world, ncclComm_t comm)
{
    CUmemAllocationProp prop = property();
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base;
    DRIVER_CHECK(cuMemAddressReserve(&base, 2 * STEP, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle piece;
        DRIVER_CHECK(cuMemCreate(&piece, STEP, &prop, 0));
        DRIVER_CHECK(cuMemMap(base + i * STEP, STEP, 0, piece, 0));
        DRIVER_CHECK(cuMemRelease(piece));
    }
    DRIVER_CHECK(cuMemSetAccess(base, 2 * STEP, &access, 1));
    uint32_t *words = reinterpret_cast<uint32_t *>(base);
    count_up<<<8, 128>>>(words, 2 * WORDS, 1000 * world.rank);
    NCCL_CHECK(ncclAllReduce(words + 100, words + 100, 2 * WORDS - 200, ncclUint32, ncclSum, comm,
                             cudaStreamLegacy));
    std::vector<uint32_t> got = fetch(words, 2 * WORDS);
    uint32_t ranks = world.size, offsets = 1000 * (ranks * (ranks - 1) / 2);
    for (uint32_t i = 0; i < 2 * WORDS; i++) {
        bool summed = i >= 100 && i < 2 * WORDS - 100;
        EXPECT(got[i] == (summed ? ranks * i + offsets : 1000 * world.rank + i), "word %u is %u", i,
               got[i]);
    }
    DRIVER_CHECK(cuMemUnmap(base, 2 * STEP));
    DRIVER_CHECK(cuMemAddressFree(base, 2 * STEP));
}

static CUdeviceptr two_pieces()
{
    CUmemAllocationProp prop = property();
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base;
    DRIVER_CHECK(cuMemAddressReserve(&base, 3 * STEP, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle piece;
        DRIVER_CHECK(cuMemCreate(&piece, STEP, &prop, 0));
        DRIVER_CHECK(cuMemMap(base + i * STEP, STEP, 0, piece, 0));
        DRIVER_CHECK(cuMemSetAccess(base + i * STEP, STEP, &access, 1));
        DRIVER_CHECK(cuMemRelease(piece));
    }
    return base;
}

// A kernel reads behind the piece that its address points into, where each rank has other content:
// no rank takes the result of another.
static bool beyond(World world, ncclComm_t comm, CUdeviceptr base)
{
    bool good = true;
    uint32_t *words = reinterpret_cast<uint32_t *>(base), *result = on_device<uint32_t>(WORDS);
    const uint32_t behind[] = {WORDS, 1, 0};
    uint32_t *where = on_device(std::vector<uint32_t>(behind, behind + 3));
    for (uint32_t round = 0; round < 4; round++) {
        CUDA_CHECK(cudaMemset(words, 7, STEP));
        count_up<<<8, 128>>>(words + WORDS, WORDS, 1000 * world.rank + round);
        pick<<<WORDS / 256, 256>>>(result, words, where, WORDS);
        std::vector<uint32_t> got = fetch(result, WORDS);
        for (uint32_t i = 0; i < WORDS; i++)
            good = good && got[i] == 1000 * world.rank + round + i;
        NCCL_CHECK(ncclAllReduce(where + 2, where + 2, 1, ncclUint32, ncclSum, comm,
                                 cudaStreamLegacy));
    }
    DRIVER_CHECK(cuMemUnmap(base, 2 * STEP));
    DRIVER_CHECK(cuMemAddressFree(base, 3 * STEP));
    return good;
}

// It grows, shrinks at its end and in its middle, and grows again; a piece gives way to another.
static const char *const usual[] = {
    "c",       "c",         "m0,0",    "m1,1",    "r0",      "r1",        "f0,7,1",
    "c",       "m2,2",      "r2",      "w0,90,2", "u1,0,0",  "c",         "m1,1",
    "f1,3,0",  "x",         "g0,0,0",  "c",       "m3,3",    "g0,2,1",    "x",
    "k1,2,0",  "u3,0,0",    "c",       "m3,4",    "w4,8,0",  "u4,0,0",    "m3,7",
    "c",       "m4,8",      "w7,55,1", "u7,0,1",  "m4,7",    "x",         "m3,8",
    "x",       "f5,1,3",    "t7",      "u7,0,0",  "x",
};

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    CUDA_CHECK(cudaFree(nullptr));
    Segment segment;
    bool given = argc > 2;
    char **steps = given ? argv + 2 : const_cast<char **>(usual);
    int count = given ? argc - 2 : int(sizeof usual / sizeof *usual);
    if (!given) {
        facts();
        exhaust();
    }
    run(&segment, steps, count / 2);
    CUdeviceptr before = two_pieces();
    interlude(argc, argv);
    segment.check();
    sum(world, comm);
    bool good = beyond(world, comm, before), again = beyond(world, comm, two_pieces());
    EXPECT(good && again, "read behind a piece: %d before the interlude, %d after it", good, again);
    run(&segment, steps + count / 2, count - count / 2);
    segment.end();
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
