// The kernels of kernels.c as CUDA C++: the fake driver finds them by name, a real one runs them.
#include <stdint.h>

__device__ uint32_t counter = 41;

extern "C" __global__ void put(uint32_t *at, uint32_t value) { *at = value; }

extern "C" __global__ void increment(uint32_t *data, uint32_t count)
{
	for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
		data[i]++;
}

extern "C" __global__ void count(uint32_t *out) { *out = ++counter; }

extern "C" __global__ void until_set(uint32_t *word)
{
	while (!*(volatile uint32_t *)word)
		;
}

// Has 8 KiB in shared memory.
extern "C" __global__ void sharing(uint32_t *at, uint32_t value)
{
	__shared__ uint32_t own[2048];
	own[threadIdx.x] = value;
	*at = own[value % 2048];
}

extern "C" __global__ void fault(uint32_t *nowhere) { *nowhere = 1; }

__constant__ uint32_t table[2] = {30, 4};

extern "C" __global__ void look_up(uint32_t *out) { *out = table[0] + table[1]; }
