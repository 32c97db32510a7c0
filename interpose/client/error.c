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

static _Thread_local cudaError_t last_error;

void say(const char *format, ...)
{
	int kept = errno;
	char line[512] = "rankfold: ";
	size_t have = strlen(line);
	va_list arguments;
	va_start(arguments, format);
	int wrote = vsnprintf(line + have, sizeof line - have - 1, format, arguments);
	va_end(arguments);
	if (wrote > 0)
		have += (size_t)wrote < sizeof line - have - 1 ? (size_t)wrote : sizeof line - have - 2;
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

/* Errors of a context that is beyond repair; they come back until the process ends. */
static int sticky(void)
{
	if (!channel_header)
		return CUDA_OK;
	return (int)atomic_load_explicit(&channel_header->async_error, memory_order_relaxed);
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last_error;
	last_error = CUDA_OK;
	return error ? error : sticky();
}

cudaError_t cudaPeekAtLastError(void)
{
	return last_error ? last_error : sticky();
}

static const struct {
	int error;
	const char *runtime, *driver, *text;
} names[] = {
	{0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
	{1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{9, "cudaErrorInvalidConfiguration", NULL, "invalid configuration argument"},
	{12, "cudaErrorInvalidPitchValue", NULL, "invalid pitch argument"},
	{13, "cudaErrorInvalidSymbol", NULL, "invalid device symbol"},
	{17, "cudaErrorInvalidDevicePointer", NULL, "invalid device pointer"},
	{21, "cudaErrorInvalidMemcpyDirection", NULL, "invalid copy direction for memcpy"},
	{35, "cudaErrorInsufficientDriver", NULL,
	 "CUDA driver version is insufficient for CUDA runtime version"},
	{46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE",
	 "CUDA-capable device(s) is/are busy or unavailable"},
	{52, "cudaErrorMissingConfiguration", NULL, "__global__ function call is not configured"},
	{98, "cudaErrorInvalidDeviceFunction", NULL, "invalid device function"},
	{100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE",
	 "device kernel image is invalid"},
	{201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
	 "no kernel image is available for execution on the device"},
	{217, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	 "peer access is not supported between these two devices"},
	{218, "cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{222, "cudaErrorUnsupportedPtxVersion", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	 "the provided PTX was compiled with an unsupported toolchain."},
	{300, "cudaErrorInvalidSource", "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
	{301, "cudaErrorFileNotFound", "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	{304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM",
	 "OS call failed or operation not supported on this OS"},
	{400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE",
	 "invalid resource handle"},
	{401, "cudaErrorIllegalState", "CUDA_ERROR_ILLEGAL_STATE",
	 "the operation cannot be performed in the present state"},
	{500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS",
	 "an illegal memory access was encountered"},
	{701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	 "too many resources requested for launch"},
	{702, "cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT",
	 "the launch timed out and was terminated"},
	{704, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
	 "peer access is already enabled"},
	{705, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
	 "peer access has not been enabled"},
	{709, "cudaErrorContextIsDestroyed", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	 "context is destroyed"},
	{710, "cudaErrorAssert", "CUDA_ERROR_ASSERT", "device-side assert triggered"},
	{712, "cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	 "part or all of the requested memory range is already mapped"},
	{713, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	 "pointer does not correspond to a registered memory region"},
	{715, "cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	 "an illegal instruction was encountered"},
	{716, "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	{719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED",
	 "unspecified launch failure"},
	{720, "cudaErrorCooperativeLaunchTooLarge", "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
	 "too many blocks in cooperative launch"},
	{800, "cudaErrorNotPermitted", "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{900, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	 "operation not permitted when stream is capturing"},
	{901, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
	 "operation failed due to a previous error during capture"},
	{902, "cudaErrorStreamCaptureMerge", "CUDA_ERROR_STREAM_CAPTURE_MERGE",
	 "operation would result in a merge of separate capture sequences"},
	{903, "cudaErrorStreamCaptureUnmatched", "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
	 "capture was not ended in the same stream as it began"},
	{904, "cudaErrorStreamCaptureUnjoined", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
	 "capturing stream has unjoined work"},
	{905, "cudaErrorStreamCaptureIsolation", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
	 "dependency created on uncaptured work in another stream"},
	{907, "cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT",
	 "operation not permitted on an event last recorded in a capturing stream"},
	{908, "cudaErrorStreamCaptureWrongThread", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
	 "attempt to terminate a thread-local capture sequence from another thread"},
	{910, "cudaErrorGraphExecUpdateFailure", "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
	 "the graph update was not performed because it included changes that it may not make"},
	{999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t error)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error)
			return names[i].runtime;
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error)
			return names[i].text;
	return "unrecognized error code";
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	if (!pStr)
		return INVALID_VALUE;
	*pStr = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error && names[i].driver)
			*pStr = names[i].driver;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	if (!pStr)
		return INVALID_VALUE;
	*pStr = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error && names[i].driver)
			*pStr = names[i].text;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}
