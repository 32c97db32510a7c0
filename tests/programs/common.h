// common.h: what the programs in this folder share.
//
// Each program is an ordinary CUDA + NCCL program, one process per rank, that computes something
// whose right answer it knows. It prints what it computed (`step 3 weights 8f1c…`: a hash of the
// bits), so that two runs can be compared line by line, and exits with 1 at the first wrong
// result. First argument: the number of steps. No program knows what it runs on.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <vector>

#include "../../examples/gpt/rendezvous.h"

#define EXPECT(condition, ...)                                                               \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);         \
            die(__VA_ARGS__);                                                                \
        }                                                                                    \
    } while (0)

inline int argument(int argc, char **argv, int index, int fallback)
{
    return index < argc ? atoi(argv[index]) : fallback;
}

// Takes this rank's device and, if asked, joins the communicator of all ranks. With JOIN_APART_MS
// each rank is that much later than the one before it, as if it had loaded more.
inline World start(ncclComm_t *comm = nullptr)
{
    World world = world_from_env();
    CUDA_CHECK(cudaSetDevice(world.local_rank));
    if (!comm)
        return world;
    ncclUniqueId id;
    if (world.rank == 0)
        NCCL_CHECK(ncclGetUniqueId(&id));
    share(world, &id, sizeof id);
    if (const char *apart = getenv("JOIN_APART_MS"))
        usleep(1000 * atoi(apart) * world.rank);
    NCCL_CHECK(ncclCommInitRank(comm, world.size, id, world.rank));
    return world;
}

// Memory that any stream may use at once: what fills it is done.
template <typename T>
T *on_device(size_t count)
{
    T *data;
    CUDA_CHECK(cudaMalloc(&data, count * sizeof(T)));
    CUDA_CHECK(cudaMemset(data, 0, count * sizeof(T)));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    return data;
}

template <typename T>
T *on_device(const std::vector<T> &values)
{
    T *data = on_device<T>(values.size());
    CUDA_CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    return data;
}

// The contents when everything that was enqueued before has run.
template <typename T>
std::vector<T> fetch(const T *device, size_t count)
{
    std::vector<T> values(count);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

inline uint64_t hash(const void *data, size_t bytes)  // FNV-1a
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ static_cast<const unsigned char *>(data)[i]) * 0x100000001b3ull;
    return h;
}

inline void print_line(int step, const char *name, const void *data, size_t bytes)
{
    printf("step %d %s %016" PRIx64 "\n", step, name, hash(data, bytes));
    fflush(stdout);
}

template <typename T>
std::vector<T> report(int step, const char *name, const T *device, size_t count)
{
    std::vector<T> values = fetch(device, count);
    print_line(step, name, values.data(), count * sizeof(T));
    return values;
}

// A number in [0, 1) that depends on all three and on nothing else.
inline float noise(uint32_t a, uint32_t b = 0, uint32_t c = 0)
{
    uint32_t x = a * 0x9e3779b9u ^ b * 0x85ebca6bu ^ c * 0xc2b2ae35u;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return float((x ^ (x >> 16)) >> 8) * 0x1p-24f;
}
