/* errors.c: what the API reports of errors: the runtime's last one, and their names. */
#include "bodies.h"

static _Thread_local cudaError_t last_error;

cudaError_t runtime_result(int error)
{
	if (error && error != NOT_READY) /* an answer, and no error */
		last_error = error;
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = cudaPeekAtLastError();
	last_error = CUDA_OK;
	return error;
}

/* Of this thread's calls alone: a fault is among them when a call has met it. */
cudaError_t cudaPeekAtLastError(void)
{
	(void)sticky_error(); /* says what it is about */
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
