// meeting.cu: kernels that count on the threads of a warp going in step, as those of before Volta
// do, and ones whose threads come to one operation of a warp at several places.
#define EXPORT extern "C" __global__ void

// The sum of a block's 128 values by a tree, without a barrier in its last warp.
EXPORT last_warp(const int *values, int *sums)
{
    __shared__ int shared[128];
    volatile int *own = shared + threadIdx.x;
    *own = values[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 64)
        *own += own[64];
    __syncthreads();
    if (threadIdx.x < 32) {
        *own += own[32];
        *own += own[16];
        *own += own[8];
        *own += own[4];
        *own += own[2];
        *own += own[1];
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = *own;
}

// Sums of all values up to each, warp by warp: what is before the first is 0.
EXPORT scan(int *values, int rounds)
{
    __shared__ volatile int shared[4][64];
    volatile int *own = &shared[threadIdx.x / 32][threadIdx.x % 32 + 32];
    own[-32] = 0;
    *own = values[threadIdx.x];
#pragma unroll 1
    for (int step = 1, n = 0; n < rounds; step *= 2, n++) {
        int before = own[-step];
        *own = *own + before;
    }
    values[threadIdx.x] = *own;
}

// Each lane looks for the first list entry that is not below its warp's position. Lanes bring 32
// entries at a time.
EXPORT skip(const int *list, const int *positions, int *found)
{
    __shared__ volatile int entries[64];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = 0;
    entries[threadIdx.x] = -1;
    while (entries[32 * warp + 31] < positions[warp]) {
        entries[threadIdx.x] = list[base + lane];
        base += 32;
    }
    int at = 32 * warp;
    while (entries[at] < positions[warp])
        at++;
    found[threadIdx.x] = base - 32 + at - 32 * warp;
}

// Lanes whose number has the bit set shuffle at another place than the others, and vote there.
EXPORT parted(const int *values, int *out, int bit)
{
    int lane = threadIdx.x % 32, value = values[threadIdx.x], other;
    unsigned votes;
    if (lane >> bit & 1) {
        other = __shfl_sync(0xffffffff, value, lane + 1) * 3;
        votes = __ballot_sync(0xffffffff, value > 0);
        out[64 + threadIdx.x] = 1;
    } else {
        other = __shfl_sync(0xffffffff, value + 1000, lane + 5);
        votes = __ballot_sync(0xffffffff, value < 0) ^ 1;
        out[64 + threadIdx.x] = 2;
    }
    out[threadIdx.x] = other + votes;
}

// Half-warps go through a loop of their own length, which nvcc unrolls. Code behind the loop for
// one half is still in the loop for the other, until one of them is done.
EXPORT unequal(int *out, int n0, int n1)
{
    int n = threadIdx.x % 32 < 16 ? n0 : n1, sum = threadIdx.x;
    for (int i = 0; i < n; i++)
        sum += 2 * __shfl_down_sync(0xffffffff, sum, 1, 16);
    out[threadIdx.x] = sum + __shfl_down_sync(0xffffffff, sum, 3, 16);
}

// The same with nothing but barriers of the warp.
EXPORT barriers(int *out, int n0, int n1)
{
    int n = threadIdx.x % 32 < 16 ? n0 : n1, sum = threadIdx.x;
    for (int i = 0; i < n; i++) {
        __syncwarp();
        sum += 3;
    }
    __syncwarp();
    out[threadIdx.x] = sum;
}

// In each round every lane adds to a sum of its own, and some lanes skip the round. So all lanes
// must be in the same round.
EXPORT rotating(const unsigned *left_out, int *out, int turns)
{
    __shared__ int sums[64], products[64];
    int lane = threadIdx.x % 32, first = threadIdx.x - lane;
    sums[threadIdx.x] = products[threadIdx.x] = 0;
    for (int turn = 0; turn < turns; turn++)
        for (int round = 0; round < 32; round++) {
            int at = first + (lane + round) % 32;
            if (left_out[threadIdx.x] >> round & 1)
                continue;
            int sum = sums[at], product = products[at];
            sums[at] = sum + lane + turn;
            if (product % 3 != 1)
                products[at] = product + round * lane + sum;
        }
    out[threadIdx.x] = sums[threadIdx.x];
    out[64 + threadIdx.x] = products[threadIdx.x];
}

// A block's sum by a tree, with barriers as long as several warps have a part in it.
EXPORT tree(const int *values, int *sums)
{
    __shared__ volatile int shared[256];
    int me = threadIdx.x;
    shared[me] = values[blockIdx.x * 256 + me];
    __syncthreads();
#pragma unroll 1
    for (int half = 128; half > 0; half /= 2) {
        if (me < half)
            shared[me] += shared[me + half];
        if (half > 32)
            __syncthreads();
    }
    if (me == 0)
        sums[blockIdx.x] = shared[0];
}

// A warp's values in order, by comparing pairs: in each round half of the lanes have nothing to do.
EXPORT sorted(int *values)
{
    __shared__ volatile int shared[64];
    int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    shared[threadIdx.x] = values[threadIdx.x];
    for (int run = 2; run <= 32; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            int other = lane ^ step;
            if (other < lane)
                continue;
            int mine = shared[first + lane], its = shared[first + other];
            if ((mine > its) == ((lane & run) == 0)) {
                shared[first + lane] = its;
                shared[first + other] = mine;
            }
        }
    values[threadIdx.x] = shared[threadIdx.x];
}

// How many of a warp's values are positive, by atomic operations, and one value from its last lane.
EXPORT told(const int *values, int *out)
{
    __shared__ int counts[2], last[2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, value = values[threadIdx.x];
    if (lane == 0)
        counts[warp] = 0;
    __syncthreads();
    if (value > 0)
        atomicAdd(&counts[warp], 1);
    out[threadIdx.x] = counts[warp];
    if (lane == 31)
        last[warp] = value;
    __threadfence_block();
    out[64 + threadIdx.x] = last[warp];
}

// Each lane waits for the one before; waiting lanes write meanwhile, earlier in the kernel than the
// place at which they are woken.
EXPORT relay(int *out, int lanes)
{
    __shared__ volatile int turn, waited[32];
    int lane = threadIdx.x;
    turn = 0;
    if (lane >= lanes)
        return;
    for (int n = 0;; n++) {
        waited[lane] = __activemask() ? n : 0; // so that it is not seen to wait
        if (turn == lane)
            break;
    }
    out[lane] = 10 * turn + (waited[lane] > 0);
    turn = lane + 1;
}

// Each lane takes what the one before it has put, and puts that and how often it has counted: lanes
// that count for different times still load before any of them stores.
EXPORT rotated(const int *values, int *out)
{
    __shared__ int shared[64];
    int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    shared[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    int before = shared[first + (lane + 31) % 32], left = before, rounds = 0;
    for (; left > 1; rounds++)
        left = left % 2 ? 3 * left + 1 : left / 2;
    shared[threadIdx.x] = before + rounds;
    __syncthreads();
    out[threadIdx.x] = shared[threadIdx.x];
}
