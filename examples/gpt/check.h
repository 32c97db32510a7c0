// check.h: every CUDA, NCCL and C library call that can fail goes through one of these.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

[[noreturn]] inline void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(EXIT_FAILURE);
}

#define CUDA_CHECK(call)                                                                           \
	do {                                                                                       \
		cudaError_t error_ = (call);                                                       \
		if (error_ != cudaSuccess)                                                         \
			die("%s:%d: %s: %s", __FILE__, __LINE__, #call,                            \
			    cudaGetErrorString(error_));                                           \
	} while (0)

#define NCCL_CHECK(call)                                                                           \
	do {                                                                                       \
		ncclResult_t result_ = (call);                                                     \
		if (result_ != ncclSuccess)                                                        \
			die("%s:%d: %s: %s", __FILE__, __LINE__, #call,                            \
			    ncclGetErrorString(result_));                                          \
	} while (0)
