/* main_thread_ends FILE: the main thread ends by pthread_exit, and another one computes. It says
 * "half" in the middle, waits for the file, and ends with a sum that depends on every step.
 */
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>

#include "common.h"

static const char *told;

__global__ void step(unsigned *values)
{
	unsigned old = values[threadIdx.x];
	values[threadIdx.x] = old * 1664525u + 1013904223u + threadIdx.x;
}

static void *compute(void *)
{
	unsigned *values, result[64], sum = 0;
	cudaStream_t stream;
	CUDA_CHECK(cudaStreamCreate(&stream));
	CUDA_CHECK(cudaMalloc(&values, sizeof result));
	CUDA_CHECK(cudaMemset(values, 0, sizeof result));
	for (int i = 0; i < 100; i++) {
		step<<<1, 64, 0, stream>>>(values);
		CUDA_CHECK(cudaStreamSynchronize(stream));
		if (i == 50) {
			puts("half");
			fflush(stdout);
			while (access(told, F_OK) != 0)
				usleep(10000);
		}
	}
	CUDA_CHECK(cudaMemcpy(result, values, sizeof result, cudaMemcpyDeviceToHost));
	for (unsigned value : result)
		sum = sum * 31 + value;
	printf("sum %08x\n", sum);
	return nullptr;
}

int main(int argc, char **argv)
{
	pthread_t other;
	if (argc != 2)
		return 2;
	told = argv[1];
	if (pthread_create(&other, nullptr, compute, nullptr))
		return 2;
	pthread_exit(nullptr);
}
