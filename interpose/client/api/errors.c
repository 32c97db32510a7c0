/* errors.c: error reporting of the APIs: the runtime's last error, and the names of errors. */
#include "bodies.h"

static _Thread_local cudaError_t last_error;

cudaError_t runtime_result(int error)
{
	if (error && error != NOT_READY) /* NOT_READY is a result, not an error */
		last_error = error;
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = cudaPeekAtLastError();
	last_error = CUDA_OK;
	return error;
}

/* Only errors of this thread's calls, including a fault that a call has returned. */
cudaError_t cudaPeekAtLastError(void)
{
	(void)sticky_error(); /* reports the fault */
	return last_error;
}

const char *cudaGetErrorName(cudaError_t error) { return error_name(error); }

const char *cudaGetErrorString(cudaError_t error)
{
	const struct error_text *e = error_text(error);
	return e && e->runtime ? e->text : "unrecognized error code";
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	const struct error_text *e = error_text(error);
	if (!pStr)
		return INVALID_VALUE;
	*pStr = e ? e->driver : NULL;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	const struct error_text *e = error_text(error);
	if (!pStr)
		return INVALID_VALUE;
	*pStr = e && e->driver ? e->text : NULL;
	return *pStr ? CUDA_OK : INVALID_VALUE;
}
