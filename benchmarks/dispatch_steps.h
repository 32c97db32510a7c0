/* dispatch_steps.h: for nvcc's -include, so that a program's steps are timed, and its buffers
 * known, without changing it.
 *
 * A step ends where the program flushes its line of output. At its end the program writes the time
 * of each, in nanoseconds, to $DISPATCH_STEPS.$RANK, and address and bytes of all that it has
 * allocated, in order, to $DISPATCH_STEPS.$RANK.buffers. Both sides of the comparison pay for it
 * alike.
 */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <ctime>
#include <string>
#include <vector>

struct DispatchSteps {
	struct Buffer {
		void *at;
		size_t bytes;
	};
	std::vector<long> ends;
	std::vector<Buffer> buffers;

	static long now()
	{
		timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		return t.tv_sec * 1000000000L + t.tv_nsec;
	}
	FILE *open(const char *suffix) const
	{
		const char *path = getenv("DISPATCH_STEPS"), *rank = getenv("RANK");
		if (!path || !rank || ends.empty())
			return nullptr;
		return fopen((std::string(path) + "." + rank + suffix).c_str(), "w");
	}
	~DispatchSteps()
	{
		FILE *file = open("");
		for (size_t i = 1; file && i < ends.size(); i++)
			fprintf(file, "%ld\n", ends[i] - ends[i - 1]);
		if (file)
			fclose(file);
		file = open(".buffers");
		for (size_t i = 0; file && i < buffers.size(); i++)
			fprintf(file, "%zu %zu\n", size_t(buffers[i].at), buffers[i].bytes);
		if (file)
			fclose(file);
	}
	template <class T> cudaError_t allocate(T **at, size_t bytes)
	{
		cudaError_t error = (cudaMalloc)(at, bytes);
		if (!error)
			buffers.push_back({*at, bytes});
		return error;
	}
	int flushed(FILE *file)
	{
		ends.push_back(now());
		return (fflush)(file);
	}
};
inline DispatchSteps dispatch_steps;
#define fflush(file) dispatch_steps.flushed(file)
#define cudaMalloc(at, bytes) dispatch_steps.allocate(at, bytes)
