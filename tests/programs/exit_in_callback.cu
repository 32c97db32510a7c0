// exit_in_callback.cu: rank 0 exits in a host function. Behind that, in the same stream, it has
// queued its part of a sum that rank 1 waits for. First argument: its exit status.
#include "common.h"

static int status;

static void CUDART_CB leave(void *) { exit(status); }

int main(int argc, char **argv)
{
	ncclComm_t comm;
	World world = start(&comm);
	status = argument(argc, argv, 1, 0);
	float *data = on_device<float>(64);
	cudaStream_t stream;
	CUDA_CHECK(cudaStreamCreate(&stream));
	if (world.rank == 0)
		CUDA_CHECK(cudaLaunchHostFunc(stream, leave, nullptr));
	NCCL_CHECK(ncclAllReduce(data, data, 64, ncclFloat, ncclSum, comm, stream));
	if (world.rank == 1) {
		printf("it waits\n");
		fflush(stdout);
	}
	CUDA_CHECK(cudaStreamSynchronize(stream));
	printf("rank %d has a sum that rank 0 has not given\n", world.rank);
	return 0;
}
