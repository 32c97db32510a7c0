// collectives.cu: every collective, with every type and with odd sizes. It launches no kernel of
// its own, so it also runs over the fake driver. It begins with a line, waits for a file (argument
// 1), and then makes as many rounds as argument 2 says; with argument 3 it pauses so many
// microseconds between two collectives. It keeps all of its memory. With argument 4 a round is one
// all-reduce of so many floats.
#include <unistd.h>

#include "../programs/common.h"

struct Type {
    const char *name;
    ncclDataType_t type;
    uint64_t kept, set;  // bits of an element: floats are within [1, 4), with either sign
    int bytes;
};

static const Type TYPES[] = {
    {"float", ncclFloat, 0x807fffff, 0x3f800000, 4},
    {"int8", ncclInt8, 0xff, 0, 1},
    {"uint8", ncclUint8, 0xff, 0, 1},
    {"int32", ncclInt32, 0xffffffff, 0, 4},
    {"uint32", ncclUint32, 0xffffffff, 0, 4},
    {"int64", ncclInt64, ~0ull, 0, 8},
    {"uint64", ncclUint64, ~0ull, 0, 8},
    {"half", ncclHalf, 0x83ff, 0x3c00, 2},
    {"double", ncclDouble, 0x800fffffffffffff, 0x3ff0000000000000, 8},
    {"bfloat16", ncclBfloat16, 0x807f, 0x3f80, 2},
};

static std::vector<char> numbers(const Type &t, size_t count, uint64_t seed)
{
    std::vector<char> all(count * t.bytes);
    for (size_t i = 0; i < count; i++) {
        uint64_t x = (seed * 1000003 + i) * 0x9e3779b97f4a7c15ull;
        x = ((x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull & t.kept) | t.set;
        memcpy(all.data() + i * t.bytes, &x, t.bytes);
    }
    return all;
}

int pause_us;

static void say(int step, const char *what, const Type &t, const char *device, size_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%s-%zu", what, t.name, count);
    report(step, name, device, count * t.bytes);
    if (pause_us)
        usleep(pause_us);
}

static void reductions(int step, const Type &t, size_t count, const char *in, char *out,
                       const World &world, ncclComm_t comm)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    for (int op = ncclSum; op <= ncclAvg; op++) {
        NCCL_CHECK(ncclAllReduce(in, out, count, t.type, ncclRedOp_t(op), comm, 0));
        say(step, names[op], t, out, count);
    }
    NCCL_CHECK(ncclReduceScatter(in, out, count / world.size, t.type, ncclSum, comm, 0));
    say(step, "reduce-scatter", t, out, count / world.size);
    NCCL_CHECK(ncclReduce(in, out, count, t.type, ncclSum, step % world.size, comm, 0));
    say(step, "reduce", t, out, count);
}

static void movements(int step, const Type &t, size_t count, const char *in, char *out,
                      const World &world, ncclComm_t comm)
{
    size_t part = count / world.size;
    int root = (step + 1) % world.size;
    int next = (world.rank + 1) % world.size, last = (world.rank + world.size - 1) % world.size;
    NCCL_CHECK(ncclBroadcast(in, out, count, t.type, step % world.size, comm, 0));
    say(step, "broadcast", t, out, count);
    NCCL_CHECK(ncclAllGather(in, out, part, t.type, comm, 0));
    say(step, "all-gather", t, out, part * world.size);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(in, count, t.type, next, comm, 0));
    NCCL_CHECK(ncclRecv(out, count, t.type, last, comm, 0));
    NCCL_CHECK(ncclGroupEnd());
    say(step, "sent", t, out, count);
    NCCL_CHECK(ncclAlltoAll(in, out, part, t.type, comm, 0));
    say(step, "all-to-all", t, out, part * world.size);
    NCCL_CHECK(ncclGather(in, out, part, t.type, root, comm, 0));
    say(step, "gather", t, out, part * world.size);
    NCCL_CHECK(ncclScatter(in, out, part, t.type, root, comm, 0));
    say(step, "scatter", t, out, part);
}

static void all_reduces(int steps, size_t count, const World &world, ncclComm_t comm)
{
    char *data = on_device(numbers(TYPES[0], count, world.rank));
    for (int k = 0; k < steps; k++) {
        NCCL_CHECK(ncclAllReduce(data, data, count, ncclFloat, ncclMax, comm, 0));
        say(k, "max", TYPES[0], data, count);
    }
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 2, 1);
    pause_us = argument(argc, argv, 3, 0);
    printf("begins\n");
    fflush(stdout);
    while (argc > 1 && access(argv[1], F_OK))
        usleep(1000);
    if (argc > 4)
        all_reduces(steps, argument(argc, argv, 4, 0), world, comm);
    for (int k = 0; argc <= 4 && k < steps; k++)
        for (const Type &t : TYPES)
            for (size_t count : {700001, 1003, 1}) {
                if (count != 1003 && t.type != ncclFloat)
                    continue;
                char *in = on_device(numbers(t, count, world.rank + 10 * k));
                char *out = on_device<char>(count * t.bytes);
                reductions(k, t, count, in, out, world, comm);
                movements(k, t, count, in, out, world, comm);
            }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
