// abort.cu: ranks abort a communicator in the middle of its operations (ncclCommAbort), as
// watchdogs of training frameworks do, and continue: waits end, streams and memory stay
// usable, and so do other communicators and new ones. First argument: how it is aborted.
#include "common.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

static World world;
static const size_t COUNT = 3 << 20; // several pieces

static ncclComm_t join(const ncclConfig_t *config = nullptr)
{
	ncclUniqueId id;
	if (world.rank == 0)
		NCCL_CHECK(ncclGetUniqueId(&id));
	share(world, &id, sizeof id);
	ncclComm_t comm;
	ncclConfig_t copy = NCCL_CONFIG_INITIALIZER;
	ncclResult_t result = ncclCommInitRankConfig(&comm, world.size, id, world.rank,
						     config ? (copy = *config, &copy) : nullptr);
	EXPECT(result == ncclSuccess || (config && result == ncclInProgress), "it gave %d", result);
	return comm;
}

static ncclResult_t settled(ncclComm_t comm)
{
	ncclResult_t state = ncclInProgress;
	for (int i = 0; i < 60000 && state == ncclInProgress; i++, usleep(1000))
		NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
	return state;
}

// The sum over all ranks of rank + 1 in each element, by this communicator, on this stream.
static void works(ncclComm_t comm, float *data, cudaStream_t stream, int ranks, float own)
{
	std::vector<float> ones(COUNT, own);
	CUDA_CHECK(cudaMemcpyAsync(data, ones.data(), COUNT * sizeof(float), cudaMemcpyHostToDevice,
				   stream));
	NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	CUDA_CHECK(cudaMemcpyAsync(ones.data(), data, COUNT * sizeof(float), cudaMemcpyDeviceToHost,
				   stream));
	CUDA_CHECK(cudaStreamSynchronize(stream));
	EXPECT(ones[0] == float(ranks) && ones[COUNT - 1] == float(ranks), "the sum is %f",
	       ones[0]);
}

// Where the ranks wait for each other while operations of another communicator are outstanding.
struct meeting {
	ncclComm_t comm = join();
	float *word;
	cudaStream_t stream;
	meeting()
	{
		CUDA_CHECK(cudaMalloc(&word, sizeof *word));
		CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	}
	void all_are_here()
	{
		NCCL_CHECK(ncclAllReduce(word, word, 1, ncclFloat, ncclSum, comm, stream));
		CUDA_CHECK(cudaStreamSynchronize(stream));
	}
};

// All ranks but the first have called an operation; then they abort it while they wait for it. None
// aborts before all have called: a later call may get the abort's error at once.
static void from_a_thread(ncclComm_t comm, float *data, cudaStream_t stream, bool sends)
{
	meeting point;
	if (world.rank == 0) {
		point.all_are_here();
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	if (sends)
		NCCL_CHECK(ncclRecv(data, COUNT, ncclFloat, 0, comm, stream));
	else
		NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	for (int i = 0; i < 200; i++) { // work that is queued behind it
		CUDA_CHECK(cudaMemsetAsync(data, i, COUNT, stream));
		if (i % 4 == 0 && !sends) // and more that is given up with it
			NCCL_CHECK(
				ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	}
	cudaEvent_t behind;
	CUDA_CHECK(cudaEventCreate(&behind));
	CUDA_CHECK(cudaEventRecord(behind, stream));
	point.all_are_here();
	std::atomic<bool> waited{false};
	std::thread watchdog([&] {
		EXPECT(cudaEventQuery(behind) == cudaErrorNotReady && !waited,
		       "no other rank has called it");
		NCCL_CHECK(ncclCommAbort(comm));
	});
	CUDA_CHECK(cudaStreamSynchronize(stream));
	waited = true;
	watchdog.join();
	CUDA_CHECK(cudaEventQuery(behind));
	unsigned char byte;
	CUDA_CHECK(cudaMemcpy(&byte, data, 1, cudaMemcpyDeviceToHost));
	EXPECT(byte == 199, "the work behind it ran last, not %d", byte);
}

// A rank that waits for one that has aborted learns it from its communicator.
static void is_told(ncclComm_t comm, float *data, cudaStream_t stream)
{
	NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	CUDA_CHECK(cudaStreamSynchronize(stream));
	if (world.rank == 0) {
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	ncclResult_t state = ncclSuccess;
	ncclResult_t called = ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream);
	for (int i = 0; i < 60000 && state == ncclSuccess; i++, usleep(1000))
		NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
	EXPECT(state == ncclRemoteError, "the communicator's state is %d", state);
	EXPECT(called == ncclSuccess || called == ncclRemoteError, "the call gave %d", called);
	NCCL_CHECK(ncclCommAbort(comm));
}

// The first rank never splits it: the others' calls end when another thread aborts the parent.
static void while_it_is_split(ncclComm_t comm)
{
	meeting point;
	point.all_are_here();
	if (world.rank == 0) {
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	std::thread watchdog([&] {
		ncclResult_t state = ncclSuccess;
		for (int i = 0; i < 60000 && state == ncclSuccess; i++, usleep(1000))
			NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
		EXPECT(state == ncclRemoteError, "the communicator's state is %d", state);
		NCCL_CHECK(ncclCommAbort(comm));
	});
	ncclComm_t child = nullptr;
	EXPECT(ncclCommSplit(comm, 0, world.rank, &child, nullptr) != ncclSuccess, "it is split");
	watchdog.join();
}

static void in_a_group(ncclComm_t comm, float *data, cudaStream_t stream)
{
	meeting point;
	ncclComm_t more = join();
	if (world.rank != 0)
		NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, more, stream));
	point.all_are_here();
	NCCL_CHECK(ncclGroupStart());
	// Others may have aborted it by now.
	ncclResult_t called = ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream);
	EXPECT(called == ncclSuccess || called == ncclRemoteError, "the call gave %d", called);
	NCCL_CHECK(ncclCommAbort(more));
	NCCL_CHECK(ncclCommAbort(comm));
	ncclResult_t ended = ncclGroupEnd();
	EXPECT(ended == ncclSuccess || ended == ncclRemoteError, "the group gave %d", ended);
	CUDA_CHECK(cudaStreamSynchronize(stream));
	EXPECT(ncclCommAbort(comm) == ncclInvalidArgument, "it is gone");
	EXPECT(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, stream) != ncclSuccess,
	       "gone");
}

// A thread ends its group when another thread has aborted the communicator.
static void in_a_group_of_another_thread(ncclComm_t comm, float *data, cudaStream_t stream)
{
	std::atomic<bool> called{false}, aborted{false};
	std::thread other([&] {
		NCCL_CHECK(ncclGroupStart());
		NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
		called = true;
		while (!aborted)
			usleep(100);
		(void)ncclGroupEnd();
		CUDA_CHECK(cudaStreamSynchronize(stream));
	});
	while (!called)
		usleep(100);
	NCCL_CHECK(ncclCommAbort(comm));
	aborted = true;
	other.join();
	EXPECT(!*ncclGetLastError(nullptr), "%s", ncclGetLastError(nullptr));
}

// Rank 0 never joins; the others give up.
static void joining(ncclComm_t comm)
{
	NCCL_CHECK(ncclCommAbort(comm));
	ncclUniqueId id;
	if (world.rank == 0)
		NCCL_CHECK(ncclGetUniqueId(&id));
	share(world, &id, sizeof id);
	if (world.rank == 0)
		return;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	config.blocking = 0;
	ncclComm_t never;
	ncclResult_t result = ncclCommInitRankConfig(&never, world.size, id, world.rank, &config);
	EXPECT(result == ncclInProgress, "it gave %d", result);
	NCCL_CHECK(ncclCommAbort(never));
}

// Communicators that do not block, finalized and destroyed.
static void without_blocking(ncclComm_t comm, float *data, cudaStream_t stream)
{
	NCCL_CHECK(ncclCommAbort(comm));
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	config.blocking = 0;
	ncclComm_t patient = join(&config), part;
	NCCL_CHECK(settled(patient));
	works(patient, data, stream, world.size, 1);
	ncclResult_t result = ncclCommSplit(patient, world.rank % 2, 0, &part, nullptr);
	EXPECT(result == ncclInProgress, "a split gave %d", result);
	NCCL_CHECK(settled(part));
	int ranks = 0;
	NCCL_CHECK(ncclCommCount(part, &ranks));
	EXPECT(ranks == (world.size + 1 - world.rank % 2) / 2, "%d ranks", ranks);
	works(part, data, stream, ranks, 1);
	result = ncclCommFinalize(part);
	EXPECT(result == ncclSuccess || result == ncclInProgress, "it gave %d", result);
	NCCL_CHECK(settled(part));
	EXPECT(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, part, stream) == ncclInvalidUsage,
	       "it is finalized");
	NCCL_CHECK(ncclCommDestroy(part));
	NCCL_CHECK(ncclCommAbort(patient));
}

// Rank 0 is abandoned; the others continue without it.
static void shrinking(ncclComm_t comm, float *data, cudaStream_t stream)
{
	meeting point;
	if (world.rank == 0) {
		point.all_are_here();
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	point.all_are_here();
	int excluded = 0, rank, ranks;
	ncclComm_t fewer;
	NCCL_CHECK(ncclCommShrink(comm, &excluded, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
	NCCL_CHECK(ncclCommUserRank(fewer, &rank));
	NCCL_CHECK(ncclCommCount(fewer, &ranks));
	EXPECT(rank == world.rank - 1 && ranks == world.size - 1, "rank %d of %d", rank, ranks);
	CUDA_CHECK(cudaStreamSynchronize(stream));
	works(fewer, data, stream, ranks, 1);
	NCCL_CHECK(ncclCommDestroy(comm));
	NCCL_CHECK(ncclCommFinalize(fewer));
	NCCL_CHECK(ncclCommDestroy(fewer));
}

// Rank 0 is killed while the others are blocked in a collective without it. When `told` exists, as
// if their watchdogs timed out, they abort it and continue with a smaller communicator.
static void peer_is_killed(ncclComm_t comm, float *data, cudaStream_t stream, const char *told)
{
	works(comm, data, stream, world.size, 1);
	if (world.rank == 0)
		raise(SIGKILL);
	NCCL_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
	int excluded = 0, ranks;
	ncclComm_t fewer;
	std::thread watchdog([&] {
		for (int i = 0; i < 60000 && access(told, F_OK) != 0; i++)
			usleep(1000);
		NCCL_CHECK(
			ncclCommShrink(comm, &excluded, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
	});
	CUDA_CHECK(cudaStreamSynchronize(stream));
	watchdog.join();
	NCCL_CHECK(ncclCommCount(fewer, &ranks));
	EXPECT(ranks == world.size - 1, "%d ranks", ranks);
	works(fewer, data, stream, ranks, 1);
	NCCL_CHECK(ncclCommAbort(comm));
	NCCL_CHECK(ncclCommDestroy(fewer));
}

int main(int argc, char **argv)
{
	ncclComm_t comm;
	world = start(&comm);
	std::string how = argc > 1 ? argv[1] : "thread";
	ncclComm_t other = join();
	float *data = on_device<float>(COUNT);
	cudaStream_t stream;
	CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (how == "killed" && argc > 2) {
		peer_is_killed(comm, data, stream, argv[2]);
		printf("rank %d is done\n", world.rank);
		return 0;
	}
	works(comm, data, stream, world.size, 1);
	if (how == "thread" || how == "sends")
		from_a_thread(comm, data, stream, how == "sends");
	else if (how == "told")
		is_told(comm, data, stream);
	else if (how == "split")
		while_it_is_split(comm);
	else if (how == "group")
		in_a_group(comm, data, stream);
	else if (how == "late")
		in_a_group_of_another_thread(comm, data, stream);
	else if (how == "joining")
		joining(comm);
	else if (how == "patient")
		without_blocking(comm, data, stream);
	else
		shrinking(comm, data, stream);
	CUDA_CHECK(cudaGetLastError());
	works(other, data, stream, world.size, 1);
	ncclComm_t fresh = join();
	works(fresh, data, stream, world.size, 1);
	NCCL_CHECK(ncclCommDestroy(fresh));
	NCCL_CHECK(ncclCommDestroy(other));
	float *later;
	CUDA_CHECK(cudaFree(data));
	CUDA_CHECK(cudaMalloc(&later, 4096));
	CUDA_CHECK(cudaDeviceSynchronize());
	printf("rank %d is done\n", world.rank);
	return 0;
}
