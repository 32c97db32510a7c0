/* dispatch_steps.h: for nvcc's -include, so that a program's steps are timed without changing it.
 *
 * A step ends where the program flushes its line of output. At its end the program writes the time
 * of each, in nanoseconds, to $DISPATCH_STEPS.$RANK. Both sides of the comparison pay for it alike.
 */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

struct DispatchSteps {
	std::vector<long> ends;

	static long now()
	{
		timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		return t.tv_sec * 1000000000L + t.tv_nsec;
	}
	~DispatchSteps()
	{
		const char *path = getenv("DISPATCH_STEPS"), *rank = getenv("RANK");
		FILE *file = nullptr;
		if (path && rank && !ends.empty())
			file = fopen((std::string(path) + "." + rank).c_str(), "w");
		for (size_t i = 1; file && i < ends.size(); i++)
			fprintf(file, "%ld\n", ends[i] - ends[i - 1]);
		if (file)
			fclose(file);
	}
	int flushed(FILE *file)
	{
		ends.push_back(now());
		return (fflush)(file);
	}
};
inline DispatchSteps dispatch_steps;
#define fflush(file) dispatch_steps.flushed(file)
