// nccl_errors.cu: what ncclGetLastError says of a thread's last error: the call, the rank and the
// reason, until the next error; and of what the server refuses later, to every thread.
#include "common.h"

#include <cstring>
#include <string>
#include <thread>

static void says(const std::vector<std::string> &parts)
{
    std::string said = ncclGetLastError(nullptr);
    for (const std::string &part : parts)
        EXPECT(said.find(part) != std::string::npos, "\"%s\" is not in \"%s\"", part.c_str(),
               said.c_str());
}

#define FAILS(call, error, ...)                                                              \
    do {                                                                                     \
        ncclResult_t got = (call);                                                           \
        EXPECT(got == (error), "%s gave %d", #call, got);                                    \
        says({ncclGetErrorString(error), __VA_ARGS__});                                      \
    } while (0)

static ncclResult_t sum(float *data, ncclDataType_t type, int op, ncclComm_t comm)
{
    return ncclAllReduce(data, data, 64, type, ncclRedOp_t(op), comm, 0);
}

int main()
{
    ncclComm_t comm;
    World world = start(&comm);
    std::string rank = "rank " + std::to_string(world.rank) + " of 2";
    float *data = on_device<float>(64), *host = new float[64];
    EXPECT(!*ncclGetLastError(comm), "no error yet, but: %s", ncclGetLastError(comm));

    FAILS(sum(data, ncclDataType_t(99), ncclSum, comm), ncclInvalidArgument, "ncclAllReduce", rank,
          "data type 99");
    FAILS(ncclBroadcast(data, data, 64, ncclFloat, 7, comm, 0), ncclInvalidArgument,
          "ncclBroadcast", rank, "root or peer 7");
    char address[32];
    snprintf(address, sizeof address, "%p", static_cast<void *>(host));
    FAILS(ncclSend(host, 64, ncclFloat, 0, comm, 0), ncclInvalidArgument, "ncclSend", rank,
          "256 bytes", address);
    FAILS(sum(data, ncclFloat, ncclSum, nullptr), ncclInvalidArgument, "ncclAllReduce",
          "not a communicator");
    FAILS(ncclMemFree(host), ncclUnhandledCudaError, "ncclMemFree", "cudaError");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", "no group");

    // The group's end gives its first error, and leaves what its call said.
    NCCL_CHECK(ncclGroupStart());
    FAILS(sum(data, ncclFloat, 7, comm), ncclInvalidArgument, "ncclAllReduce", rank, "operator 7");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "ncclAllReduce", rank, "operator 7");

    // Success says nothing, and another thread has no error.
    NCCL_CHECK(sum(data, ncclFloat, ncclSum, comm));
    says({"operator 7"});
    std::thread([] { EXPECT(!*ncclGetLastError(nullptr), "another thread's"); }).join();

    // A nonexistent operator; one of another type, which the server refuses after the call.
    FAILS(sum(data, ncclFloat, 1 << 20, comm), ncclInvalidArgument, "ncclAllReduce", rank,
          "operator 1048576");
    double two = 2;
    ncclRedOp_t twice;
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&twice, &two, ncclDouble, ncclScalarHostImmediate, comm));
    NCCL_CHECK(sum(data, ncclFloat, twice, comm));
    ncclResult_t later = ncclSuccess;
    while (later == ncclSuccess)
        NCCL_CHECK(ncclCommGetAsyncError(comm, &later));
    EXPECT(later == ncclInvalidArgument, "it became %d", later);
    says({"an earlier call", rank, "operations on communicator", "NCCL error 4"});
    std::thread([] { says({"an earlier call", "operations on", "NCCL error 4"}); }).join();
    FAILS(sum(data, ncclFloat, ncclSum, comm), ncclInvalidArgument, "ncclAllReduce", rank,
          "operations on communicator", "NCCL error 4");
    printf("rank %d is done\n", world.rank);
    return 0;
}
