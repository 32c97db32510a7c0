/* error.c: names of errors, the runtime's last error, and lines for people.
 *
 * Lines go to stderr in one write, so that those of many ranks do not mix. errno is kept.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "api.h"
#include "errors.h"

static _Thread_local cudaError_t last_error;

void say(const char *format, ...)
{
	int kept = errno;
	char line[2048] = "rankfold: ";
	size_t have = strlen(line);
	va_list arguments;
	va_start(arguments, format);
	int wrote = vsnprintf(line + have, sizeof line - have - 1, format, arguments);
	va_end(arguments);
	if (wrote > 0)
		have += (size_t)wrote < sizeof line - have - 1 ? (size_t)wrote
							       : sizeof line - have - 2;
	line[have++] = '\n';
	ssize_t ignored = write(STDERR_FILENO, line, have);
	(void)ignored;
	errno = kept;
}

int refuse(_Atomic bool *done, const char *function, const char *why, int error)
{
	if (!atomic_exchange(done, true))
		say("%s: %s", function, why ? why : "not supported by rankfold; the call failed");
	return error;
}

cudaError_t runtime_result(int error)
{
	if (error)
		last_error = error;
	return error;
}

static void tell_fault(int error)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		say("%.*s; this and all later calls fail (%s)", (int)RF_FAULT_BYTES - 1,
		    channel_header->fault, cudaGetErrorName(error));
}

/* Errors of a context that is beyond repair come back until the process ends. */
int sticky_error(void)
{
	int error = CUDA_OK;

	if (channel_header)
		error = (int)atomic_load_explicit(&channel_header->async_error,
						  memory_order_acquire);
	if (error)
		tell_fault(error);
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last_error;
	last_error = CUDA_OK;
	return error ? error : sticky_error();
}

cudaError_t cudaPeekAtLastError(void) { return last_error ? last_error : sticky_error(); }

#define NAMES (sizeof names / sizeof *names)

/* Its place in the table; NAMES: no error of either API. */
static size_t place_of(int error)
{
	size_t i = 0;
	while (i < NAMES && names[i].error != error)
		i++;
	return i;
}

const char *cudaGetErrorName(cudaError_t error)
{
	size_t i = place_of(error);
	return i < NAMES && names[i].runtime ? names[i].runtime : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	size_t i = place_of(error);
	return i < NAMES && names[i].runtime ? names[i].text : "unrecognized error code";
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	if (!pStr)
		return INVALID_VALUE;
	size_t i = place_of(error);
	*pStr = i < NAMES ? names[i].driver : NULL;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	if (!pStr)
		return INVALID_VALUE;
	size_t i = place_of(error);
	*pStr = i < NAMES && names[i].driver ? names[i].text : NULL;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}
