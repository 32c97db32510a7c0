// abort.cu: rank 0 waits in a thread for a collective that rank 1 never joins, and aborts the
// communicator: the wait ends with an error, and so does what is asked of the communicator later.
#include "common.h"

#include <thread>

int main()
{
    ncclComm_t comm;
    World world = start(&comm);
    float *data = on_device<float>(64);
    if (world.rank == 0) {
        NCCL_CHECK(ncclAllReduce(data, data, 64, ncclFloat, ncclSum, comm, 0));
        std::thread waits([] { EXPECT(cudaStreamSynchronize(0) != cudaSuccess, "the wait ends"); });
        NCCL_CHECK(ncclCommAbort(comm));
        waits.join();
        EXPECT(ncclAllReduce(data, data, 64, ncclFloat, ncclSum, comm, 0) != ncclSuccess, "gone");
    }
    printf("rank %d is done\n", world.rank);
    return 0;
}
