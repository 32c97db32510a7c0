// pathologies.cu: data-parallel training in which something is not as in the other ranks, or not
// as one would expect. Sharing must take these differences into account. Buffers have more
// than 4 MiB. Arguments: steps, and which peculiarity, by its name in `jobs` at the end.
#include <memory>

#include <cuda_runtime.h>
#include <nccl.h>

#include "common.h"

constexpr int COUNT = (1 << 20) + 777;  // floats of a buffer: they end anywhere in a page
constexpr int HALF = 4;                 // the step at which things change
constexpr int CLIPPED = 37;             // the step from which on gradients are clipped
constexpr float RATE = 0.01f;

__host__ __device__ inline float drawn(uint32_t i, uint32_t step, uint32_t rank)
{
    uint32_t x = i * 0x9e3779b9u ^ step * 0x85ebca6bu ^ rank * 0xc2b2ae35u;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    return float((x ^ (x >> 15)) >> 8) * 0x1p-24f - 0.5f;
}

__global__ void forward(const float *params, float *activations, int count, int step, int rank)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        activations[i] = params[i] * drawn(i, step, rank) + 0.25f * rank;
}

__global__ void backward(const float *params, const float *activations, float *grads, int count,
                         int step, int rank)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        grads[i] = 0.5f * params[i] + 0.125f * activations[i] + drawn(i, step, rank);
}

__global__ void momentum(float *params, float *velocity, const float *grads, int count, float rate)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        velocity[i] = 0.9f * velocity[i] + grads[i];
        params[i] -= rate * velocity[i];
    }
}

// A program that trains, one step after another. Each subclass overrides the part in which it
// differs.
class Training {
  public:
    explicit Training(World w, ncclComm_t c) : world(w), comm(c) {}
    virtual ~Training() = default;
    virtual void allocate()
    {
        std::vector<float> initial(count);
        for (int i = 0; i < count; i++)
            initial[i] = drawn(i, 0, 99);
        params = on_device(initial);
        velocity = on_device<float>(count);
        grads = on_device<float>(count);
        activations = on_device<float>(count);
    }
    virtual void exchange(int)
    {
        NCCL_CHECK(ncclAllReduce(grads, grads, count, ncclFloat, ncclAvg, comm, 0));
    }
    virtual void update(int) { update_with(RATE); }
    virtual void after_update(int) {}
    virtual void print(int step) { report(step, "parameters", params, count); }
    void step(int k)
    {
        forward<<<blocks(), 256>>>(params, activations, count, k, world.rank);
        backward<<<blocks(), 256>>>(params, activations, grads, count, k, world.rank);
        exchange(k);
        update(k);
        after_update(k);
        CUDA_CHECK(cudaGetLastError());
        print(k);
    }

  protected:
    int blocks() const { return (count + 255) / 256; }
    void update_with(float rate)
    {
        momentum<<<blocks(), 256>>>(params, velocity, grads, count, rate);
    }
    World world;
    ncclComm_t comm;
    int count = COUNT;
    float *params, *velocity, *grads, *activations;
};

struct Plain : Training {
    using Training::Training;
};

// ---- the update ------------------------------------------------------------------------------

struct Scaled : Training {
    using Training::Training;
    void update(int) override { update_with(RATE * (1 + world.rank)); }
};

struct EveryThird : Training {
    using Training::Training;
    void update(int step) override { update_with(step % 3 == 2 ? RATE / (1 + world.rank) : RATE); }
};

struct Skipped : Training {
    using Training::Training;
    void update(int step) override
    {
        if (world.rank != 2 || (step != 3 && step != 5))
            update_with(RATE);
    }
};

__global__ void seed(uint32_t *states, int count, int rank)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        states[i] = i * 2654435761u + rank;
}

__global__ void shaken(float *params, const float *grads, uint32_t *states, int count, float rate)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        states[i] = states[i] * 1664525u + 1013904223u;
        params[i] -= rate * (grads[i] + (states[i] >> 8) * 0x1p-24f);
    }
}

struct Random : Training {
    using Training::Training;
    uint32_t *states = nullptr;
    void update(int) override
    {
        if (!states) {
            states = on_device<uint32_t>(count);
            seed<<<blocks(), 256>>>(states, count, world.rank);
        }
        shaken<<<blocks(), 256>>>(params, grads, states, count, RATE);
    }
};

__global__ void square_sum(const float *values, int count, float *sum)  // one block
{
    __shared__ float sums[256];
    float mine = 0.0f;
    for (int i = threadIdx.x; i < count; i += 256)
        mine += values[i] * values[i];
    sums[threadIdx.x] = mine;
    for (int width = 128; width; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width)
            sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    if (threadIdx.x == 0)
        *sum = sums[0];
}

// Clipped by the norm of what this rank alone has computed, which is not what one should do.
struct LocalNorm : Training {
    using Training::Training;
    float *sum = nullptr, rate = RATE;
    void exchange(int step) override
    {
        sum = sum ? sum : on_device<float>(1);
        if (step >= CLIPPED) {
            square_sum<<<1, 256>>>(grads, count, sum);
            float norm = sqrtf(fetch(sum, 1)[0]);
            rate = norm > 10.0f ? RATE * 10.0f / norm : RATE;
        }
        Training::exchange(step);
    }
    void update(int) override { update_with(rate); }
};

__global__ void look_for(const float *values, int count, float limit, int *found)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && values[i] > limit)
        *found = 1;
}

__global__ void unless(const int *found, float *params, float *velocity, const float *grads,
                       int count, float rate)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && !*found) {
        velocity[i] = 0.9f * velocity[i] + grads[i];
        params[i] -= rate * velocity[i];
    }
}

// As scaled training in half precision does it, but each rank looks at its own numbers only.
struct FoundInf : Training {
    using Training::Training;
    int *found = nullptr;
    void exchange(int step) override
    {
        found = found ? found : on_device<int>(1);
        CUDA_CHECK(cudaMemsetAsync(found, 0, sizeof(int), 0));
        float limit = step == HALF ? 0.9f : 1e30f;
        look_for<<<blocks(), 256>>>(activations, count, limit, found);
        Training::exchange(step);
    }
    void update(int) override
    {
        unless<<<blocks(), 256>>>(found, params, velocity, grads, count, RATE);
    }
    void print(int step) override
    {
        Training::print(step);
        report(step, "found", found, 1);
    }
};

__global__ void through(float *const *table, int count, float rate)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        table[1][i] = 0.9f * table[1][i] + table[2][i];
        table[0][i] -= rate * table[1][i];
    }
}

// The kernel finds its buffers in memory; from the middle on another one in the last rank.
struct Pointers : Training {
    using Training::Training;
    float **table = nullptr, *other = nullptr;
    void update(int step) override
    {
        other = other ? other : on_device<float>(count);
        bool mine = step >= HALF && world.rank == world.size - 1;
        std::vector<float *> found = {mine ? other : params, velocity, grads};
        table = table ? table : on_device<float *>(3);
        CUDA_CHECK(cudaMemcpy(table, found.data(), 3 * sizeof(float *), cudaMemcpyHostToDevice));
        through<<<blocks(), 256>>>(table, count, RATE);
    }
    void print(int step) override
    {
        Training::print(step);
        report(step, "other", other, count);
    }
};

__global__ void telling(float *params, const float *grads, int count, float rate, int step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        params[i] -= rate * grads[i];
    if (i == count - 1)
        printf("after step %d: %f\n", step, params[i]);
}

// All that decides what is written is the same in all ranks, and each has its line to print.

struct Printing : Training {
    using Training::Training;
    void update(int step) override
    {
        telling<<<blocks(), 256>>>(params, grads, count, RATE, step);
    }
};

// In its last step one rank reads where nothing is. The other ranks' results are right.
struct Fault : Training {
    int steps;
    Fault(World w, ncclComm_t c, int n) : Training(w, c), steps(n) {}
    bool wrong(int step) const { return step == steps - 1 && world.rank == 2; }
    void update(int step) override
    {
        const float *read = wrong(step) ? nullptr : grads;
        momentum<<<blocks(), 256>>>(params, velocity, read, count, RATE);
    }
    void print(int step) override
    {
        if (!wrong(step))
            return Training::print(step);
        printf("step %d error %d\n", step, cudaDeviceSynchronize());
        exit(0);
    }
};

// ---- memory ----------------------------------------------------------------------------------

__global__ void average(float *running, const float *values, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        running[i] = 0.9f * running[i] + 0.1f * values[i];
}

struct Statistics : Training {
    using Training::Training;
    float *running = nullptr;
    void after_update(int) override
    {
        running = running ? running : on_device<float>(count);
        average<<<blocks(), 256>>>(running, activations, count);
    }
    void print(int step) override
    {
        Training::print(step);
        report(step, "statistics", running, count);
    }
};

// The host writes to a part of the parameters: the same in all ranks, except in one step.
struct HostCopy : Training {
    using Training::Training;
    void after_update(int step) override
    {
        std::vector<float> values(count / 4);
        for (size_t i = 0; i < values.size(); i++)
            values[i] = drawn(i, step, step == HALF ? world.rank : 99);
        CUDA_CHECK(cudaMemcpy(params + count / 2, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice));
    }
};

// Other buffers, and more of them, in each rank: before, between and at each step.
struct Allocations : Training {
    using Training::Training;
    std::vector<float *> kept;
    void more(int number)
    {
        for (int i = 0; i < number; i++)
            kept.push_back(on_device<float>((i + 1) * (200000 + 70000 * world.rank)));
    }
    void allocate() override
    {
        more(world.rank);
        Training::allocate();
        more(world.size - world.rank);
    }
    void update(int step) override
    {
        float *temporary = on_device<float>(count);
        CUDA_CHECK(cudaMemcpy(temporary, grads, count * sizeof(float), cudaMemcpyDeviceToDevice));
        momentum<<<blocks(), 256>>>(params, velocity, temporary, count, RATE);
        CUDA_CHECK(cudaFree(temporary));
        if (!kept.empty() && step % (world.rank + 1) == 0) {
            CUDA_CHECK(cudaFree(kept.back()));
            kept.pop_back();
        }
    }
};

// Half-way the model is twice as large, and the new half is not the same everywhere.
struct Changed : Training {
    using Training::Training;
    void after_update(int step) override
    {
        if (step != HALF)
            return;
        std::vector<float> added(count);
        for (int i = 0; i < count; i++)
            added[i] = drawn(i, 1, world.rank % 2);
        float *old = params, *others[] = {velocity, grads, activations};
        params = on_device<float>(2 * count);
        CUDA_CHECK(cudaMemcpy(params, old, count * sizeof(float), cudaMemcpyDeviceToDevice));
        CUDA_CHECK(cudaMemcpy(params + count, added.data(), count * sizeof(float),
                              cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaFree(old));
        for (float *each : others)
            CUDA_CHECK(cudaFree(each));
        count *= 2;
        velocity = on_device<float>(count);
        grads = on_device<float>(count);
        activations = on_device<float>(count);
    }
};

// One buffer has the rank's own values and those that all ranks share; they meet within a page.
struct Adjacent : Training {
    using Training::Training;
    void allocate() override
    {
        Training::allocate();
        float *both = on_device<float>(2 * count);
        CUDA_CHECK(cudaMemcpy(both, params, count * sizeof(float), cudaMemcpyDeviceToDevice));
        CUDA_CHECK(cudaFree(params));
        CUDA_CHECK(cudaFree(activations));
        params = both;
        activations = both + count;
    }
    void print(int step) override
    {
        Training::print(step);
        report(step, "activations", activations, count);
    }
};

__global__ void beyond(float *buffer, long long distance, int count, int rank)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        buffer[distance + i] += 0.5f * rank + i;
}

// A kernel gets one buffer and writes to another, at its beginning and at its end.
struct Past : Training {
    using Training::Training;
    float *victim = nullptr;
    void after_update(int) override
    {
        victim = victim ? victim : on_device<float>(count);
        long long distance = victim - velocity;
        beyond<<<1, 64>>>(velocity, distance, 64, world.rank);
        beyond<<<1, 64>>>(velocity, distance + count - 64, 64, world.rank);
    }
    void print(int step) override
    {
        Training::print(step);
        report(step, "victim", victim, count);
        report(step, "velocity", velocity, count);
    }
};

__global__ void scattered(float *buffer, const long long *places, int count, int rank)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        buffer[places[i]] += 0.5f * rank + i;
}

// The same, where only a value in memory says which buffer that is.
struct Scattered : Past {
    using Past::Past;
    long long *places = nullptr;
    void after_update(int) override
    {
        victim = victim ? victim : on_device<float>(count);
        std::vector<long long> found;
        for (int i = 0; i < 64; i++)
            found.push_back(victim - velocity + i * 16001);
        places = places ? places : on_device(found);
        scattered<<<1, 64>>>(velocity, places, 64, world.rank);
    }
};

// ---- ranks -----------------------------------------------------------------------------------

// Half of the ranks agree on a part of their parameters between two halves of the update.
struct Subgroup : Training {
    using Training::Training;
    ncclComm_t group = nullptr;
    void update(int) override
    {
        int part = count / 2;
        if (!group)
            NCCL_CHECK(ncclCommSplit(comm, world.rank % 2, world.rank, &group, nullptr));
        momentum<<<(part + 255) / 256, 256>>>(params, velocity, grads, part,
                                              RATE * (1 + world.rank));
        if (world.rank % 2 == 0)
            NCCL_CHECK(ncclAllReduce(params, params, part, ncclFloat, ncclAvg, group, 0));
        momentum<<<(count - part + 255) / 256, 256>>>(params + part, velocity + part,
                                                      grads + part, count - part, RATE);
    }
};

// All meet over TCP in the middle of the step, with work on its way.
struct Meeting : Training {
    using Training::Training;
    std::vector<int> others;
    void connect_all()
    {
        if (world.rank) {
            others.push_back(connect_to_master(world));
            return;
        }
        int server = listen_on(world);
        while (int(others.size()) < world.size - 1)
            others.push_back(accept(server, nullptr, nullptr));
        close(server);
    }
    void told(int peer) const
    {
        char byte;
        EXPECT(recv(peer, &byte, 1, MSG_WAITALL) == 1, "a rank is gone");
    }
    void tell(int peer) const { EXPECT(send(peer, "", 1, MSG_NOSIGNAL) == 1, "a rank is gone"); }
    void update(int) override
    {
        if (others.empty())
            connect_all();
        momentum<<<blocks() / 2, 256>>>(params, velocity, grads, count, RATE);
        for (int peer : others)
            world.rank ? tell(peer) : told(peer);
        for (int peer : others)
            world.rank ? told(peer) : tell(peer);
        int done = blocks() / 2 * 256;
        momentum<<<blocks(), 256>>>(params + done, velocity + done, grads + done, count - done,
                                    RATE);
    }
};

// One buffer of gradients, in buckets: one is added up while the one before it is used.
struct Buckets : Training {
    using Training::Training;
    static constexpr int BUCKETS = 5;
    cudaStream_t side = nullptr;
    cudaEvent_t there[BUCKETS], before;
    void exchange(int) override
    {
        if (!side) {
            CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
            CUDA_CHECK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
            for (cudaEvent_t &each : there)
                CUDA_CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming));
        }
        CUDA_CHECK(cudaEventRecord(before, 0));
        CUDA_CHECK(cudaStreamWaitEvent(side, before, 0));
    }
    void update(int) override
    {
        int size = (count + BUCKETS - 1) / BUCKETS;
        for (int b = 0; b < BUCKETS; b++) {
            int at = b * size, n = count - at < size ? count - at : size;
            NCCL_CHECK(ncclAllReduce(grads + at, grads + at, n, ncclFloat, ncclAvg, comm, side));
            CUDA_CHECK(cudaEventRecord(there[b], side));
            CUDA_CHECK(cudaStreamWaitEvent(0, there[b], 0));
            momentum<<<(n + 255) / 256, 256>>>(params + at, velocity + at, grads + at, n, RATE);
        }
    }
};

// ---- by name ---------------------------------------------------------------------------------

template <typename T>
std::unique_ptr<Training> made(World world, ncclComm_t comm)
{
    return std::unique_ptr<Training>(new T(world, comm));
}

static const struct {
    const char *name;
    std::unique_ptr<Training> (*make)(World, ncclComm_t);
} jobs[] = {
    {"plain", made<Plain>},           {"scaled", made<Scaled>},
    {"every_third", made<EveryThird>}, {"skipped", made<Skipped>},
    {"random", made<Random>},         {"local_norm", made<LocalNorm>},
    {"found_inf", made<FoundInf>},    {"pointers", made<Pointers>},
    {"printing", made<Printing>},     {"statistics", made<Statistics>},
    {"host_copy", made<HostCopy>},    {"allocations", made<Allocations>},
    {"changed", made<Changed>},       {"adjacent", made<Adjacent>},
    {"past", made<Past>},             {"scattered", made<Scattered>},
    {"subgroup", made<Subgroup>},     {"meeting", made<Meeting>},
    {"buckets", made<Buckets>},
};

static std::unique_ptr<Training> job(const char *name, World world, ncclComm_t comm, int steps)
{
    if (!strcmp(name, "fault"))
        return std::unique_ptr<Training>(new Fault(world, comm, steps));
    for (const auto &each : jobs)
        if (!strcmp(each.name, name))
            return each.make(world, comm);
    die("there is no job '%s'", name);
}

static void held(const char *folder, int step)
{
    std::string gate = std::string(folder) + "/" + std::to_string(step);
    while (!access(gate.c_str(), F_OK))
        usleep(1000);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 8);
    std::unique_ptr<Training> training = job(argc > 2 ? argv[2] : "plain", world, comm, steps);
    training->allocate();
    for (int k = 0; k < steps; k++) {
        if (argc > 3)
            held(argv[3], k);
        training->step(k);
    }
    if (argc > 2 && !strcmp(argv[2], "fault"))
        return 0;  // one rank can do nothing any more
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
