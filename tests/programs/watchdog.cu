// watchdog.cu: a training loop whose communicators keep breaking. In each step one rank, the
// victim, does not call an operation that all others have called. It aborts its communicator; the
// others are blocked, each in another call, until a watchdog thread aborts theirs. Then a new
// communicator sums the next step. The results of aborted operations are not used, so the weights
// are known. Arguments: the number of steps (0: no limit); the one way of being blocked to try (-1:
// all in turn); a folder: while its file `hold` exists, no watchdog aborts; rank 0 makes the step
// that finds `stop` there the last.
#include "common.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

static World world;
static std::string folder;
static ncclComm_t base; // never aborted
static cudaStream_t stream, other;
static float *weights, *gradients, *scratch;
static char *words;                   // an invitation, on the device
static const size_t COUNT = 40 << 10; // of floats
static const int THREADS = 256;

struct bulky { // a launch's parameter that fills the queue of requests soon
	float value;
	char rest[3900];
};

__global__ void gradient(const float *w, float *out, int rank, int step)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = w[(i * 7 + step) % COUNT] / float(3 + rank + i % 5) - 0.01f * float(rank);
}

__global__ void update(float *w, const float *sum)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	w[i] = 0.999f * w[i] - 0.05f * sum[i];
}

__global__ void put(float *out, bulky from) { out[threadIdx.x] = from.value; }

struct invitation { // from rank 0, to the next communicator
	ncclUniqueId id;
	char last; // no step follows this one
};

static bool exists(const char *name)
{
	return !folder.empty() && access((folder + "/" + name).c_str(), F_OK) == 0;
}

static ncclComm_t join(bool *last)
{
	invitation to{{}, char(*last || exists("stop"))};
	NCCL_CHECK(ncclGetUniqueId(&to.id));
	CUDA_CHECK(cudaMemcpyAsync(words, &to, sizeof to, cudaMemcpyHostToDevice, other));
	NCCL_CHECK(ncclBroadcast(words, words, sizeof to, ncclChar, 0, base, other));
	CUDA_CHECK(cudaMemcpyAsync(&to, words, sizeof to, cudaMemcpyDeviceToHost, other));
	CUDA_CHECK(cudaStreamSynchronize(other));
	*last = to.last;
	ncclComm_t comm;
	NCCL_CHECK(ncclCommInitRank(&comm, world.size, to.id, world.rank));
	return comm;
}

static void meet() // all ranks are here
{
	NCCL_CHECK(ncclAllReduce(words, words, 1, ncclChar, ncclMax, base, other));
	CUDA_CHECK(cudaStreamSynchronize(other));
}

static ncclResult_t all_reduce(ncclComm_t comm, ncclRedOp_t op = ncclSum)
{
	return ncclAllReduce(scratch, scratch, COUNT, ncclFloat, op, comm, stream);
}

static std::atomic<bool> aborted;
static std::atomic<int> launched; // by a rank that fills its queue of requests

// As PyTorch's: it asks for errors, polls the event behind the operation and the streams, destroys
// an event, and then aborts: when the victim has aborted; or, if it is `filled`, when the rank's
// queue of requests is full.
static void watch(ncclComm_t comm, cudaEvent_t behind, cudaEvent_t passed, bool filled)
{
	ncclResult_t state = ncclSuccess;
	int still = 0;
	float none;
	for (int i = 0; i < 60000 && (filled ? still < 40 : state == ncclSuccess); i++) {
		int before = launched;
		NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
		EXPECT(cudaEventQuery(behind) == cudaErrorNotReady, "no rank called it");
		EXPECT(cudaStreamQuery(stream) == cudaErrorNotReady, "no rank called it");
		CUDA_CHECK(cudaStreamQuery(other));
		CUDA_CHECK(cudaEventQuery(passed));
		CUDA_CHECK(cudaEventElapsedTime(&none, passed, passed));
		EXPECT(none == 0, "%f ms passed between an event and itself", none);
		usleep(500);
		still = before == launched ? still + 1 : 0;
	}
	EXPECT(filled || state == ncclRemoteError, "the communicator's state is %d", state);
	if (exists("hold"))
		fprintf(stderr, "the watchdog of rank %d holds\n", world.rank);
	while (exists("hold"))
		usleep(500);
	CUDA_CHECK(cudaEventDestroy(passed));
	NCCL_CHECK(ncclCommAbort(comm));
}

// The ways of being blocked. `comm` is aborted by another thread; afterwards `comm` is gone.

static void in_a_synchronisation(ncclComm_t comm)
{
	(void)comm;
	CUDA_CHECK(cudaStreamSynchronize(stream));
}

static void in_a_launch(ncclComm_t comm) // the queue of requests is full
{
	(void)comm;
	for (; !aborted; launched++)
		put<<<1, 32, 0, stream>>>(scratch, bulky{1.0f, {}});
}

static void in_a_call_of_nccl(ncclComm_t comm) // likewise
{
	while (all_reduce(comm) == ncclSuccess)
		launched++;
}

static void in_a_finalization(ncclComm_t comm)
{
	ncclResult_t result = ncclCommFinalize(comm);
	EXPECT(result != ncclSuccess, "it is not finalized");
}

static void in_a_split(ncclComm_t comm)
{
	ncclComm_t child = nullptr;
	ncclResult_t result = ncclCommSplit(comm, 0, world.rank, &child, nullptr);
	EXPECT(result != ncclSuccess && !child, "it is split");
}

static void in_a_group(ncclComm_t comm) // which it ends when the communicator is gone
{
	NCCL_CHECK(ncclGroupStart());
	ncclResult_t called = all_reduce(comm); // an invalid argument if it is gone already
	EXPECT(called == ncclSuccess || called == ncclRemoteError || called == ncclInvalidArgument,
	       "the call gave %d", called);
	CUDA_CHECK(cudaStreamSynchronize(stream));
	while (!aborted)
		usleep(100);
	(void)ncclGroupEnd();
}

static void in_a_sum_with_a_factor(ncclComm_t comm) // which is read when the stream gets there
{
	ncclRedOp_t op;
	if (ncclRedOpCreatePreMulSum(&op, gradients, ncclFloat, ncclScalarDevice, comm))
		return; // it is gone already
	(void)all_reduce(comm, op);
	(void)ncclRedOpDestroy(op, comm);
}

static void in_a_host_function(ncclComm_t comm)
{
	(void)comm;
	static std::atomic<int> ran;
	ran = 0;
	for (int i = 0; i < 300; i++)
		CUDA_CHECK(cudaLaunchHostFunc(stream, [](void *) { ran++; }, nullptr));
	CUDA_CHECK(cudaStreamSynchronize(stream));
	EXPECT(ran == 300, "%d functions ran", ran.load());
}

static void in_its_own_abort(ncclComm_t comm) // of the same communicator
{
	ncclResult_t result = ncclCommAbort(comm);
	EXPECT(result == ncclSuccess || result == ncclInvalidArgument, "it gave %d", result);
}

static void (*const ways[])(ncclComm_t) = {
	in_a_synchronisation, in_a_launch,	      in_a_call_of_nccl,  in_a_finalization, in_a_split,
	in_a_group,	      in_a_sum_with_a_factor, in_a_host_function, in_its_own_abort,
};
static const int WAYS = sizeof ways / sizeof *ways;

static void break_it(ncclComm_t comm, int victim, int way)
{
	bool own = ways[way] == in_its_own_abort;
	bool filled = ways[way] == in_a_launch || ways[way] == in_a_call_of_nccl;
	aborted = false;
	launched = 0;
	if (world.rank == victim) {
		meet();
		if (filled)
			meet(); // the others have aborted it
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	NCCL_CHECK(all_reduce(comm));
	cudaEvent_t behind, passed;
	CUDA_CHECK(cudaEventCreateWithFlags(&behind, cudaEventDisableTiming));
	CUDA_CHECK(cudaEventCreate(&passed));
	CUDA_CHECK(cudaEventRecord(behind, stream));
	CUDA_CHECK(cudaEventRecord(passed, other));
	meet();
	std::thread watchdog([&] {
		if (own)
			in_its_own_abort(comm);
		else
			watch(comm, behind, passed, filled);
		aborted = true;
	});
	ways[way](comm);
	watchdog.join();
	if (filled)
		meet();
	CUDA_CHECK(cudaDeviceSynchronize());
	CUDA_CHECK(cudaEventQuery(behind));
	CUDA_CHECK(cudaEventDestroy(behind));
	EXPECT(ncclCommAbort(comm) == ncclInvalidArgument, "it is gone");
}

// Those that are left continue with a smaller communicator.
static void shrink_it(ncclComm_t comm, int victim)
{
	if (world.rank == victim) {
		meet();
		NCCL_CHECK(ncclCommAbort(comm));
		return;
	}
	ncclComm_t fewer;
	int ranks;
	NCCL_CHECK(all_reduce(comm));
	meet();
	NCCL_CHECK(ncclCommShrink(comm, &victim, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
	NCCL_CHECK(ncclCommAbort(comm));
	NCCL_CHECK(ncclCommCount(fewer, &ranks));
	std::vector<float> ones(COUNT, 1);
	CUDA_CHECK(cudaMemcpyAsync(scratch, ones.data(), COUNT * sizeof(float),
				   cudaMemcpyHostToDevice, stream));
	NCCL_CHECK(all_reduce(fewer));
	CUDA_CHECK(cudaStreamSynchronize(stream));
	EXPECT(fetch(scratch, COUNT)[COUNT - 1] == float(ranks), "the sum of %d", ranks);
	NCCL_CHECK(ncclCommDestroy(fewer));
}

int main(int argc, char **argv)
{
	world = start(&base);
	int steps = argument(argc, argv, 1, WAYS + 1), only = argument(argc, argv, 2, -1);
	folder = argc > 3 ? argv[3] : "";
	weights = on_device(std::vector<float>(COUNT, 1));
	gradients = on_device<float>(COUNT);
	scratch = on_device<float>(COUNT);
	words = on_device<char>(sizeof(invitation));
	CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	bool last = false;
	for (int step = 0; !last; step++) {
		last = step + 1 == steps;
		ncclComm_t comm = join(&last);
		gradient<<<COUNT / THREADS, THREADS, 0, stream>>>(weights, gradients, world.rank,
								  step);
		NCCL_CHECK(ncclAllReduce(gradients, gradients, COUNT, ncclFloat, ncclSum, comm,
					 stream));
		update<<<COUNT / THREADS, THREADS, 0, stream>>>(weights, gradients);
		report(step, "weights", weights, COUNT);
		int way = only < 0 ? step % (WAYS + 1) : only, victim = step % world.size;
		if (way == WAYS)
			shrink_it(comm, victim);
		else
			break_it(comm, victim, way);
		CUDA_CHECK(cudaGetLastError());
		ncclResult_t state;
		NCCL_CHECK(ncclCommGetAsyncError(base, &state));
		NCCL_CHECK(state);
	}
	NCCL_CHECK(ncclCommDestroy(base));
	return 0;
}
