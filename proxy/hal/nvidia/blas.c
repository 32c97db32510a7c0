/* blas.c: finds cuBLASLt and its functions.
 *
 * The library is the one that RANKFOLD_CUBLASLT names, or the newest that libraries.c finds. It is
 * loaded at the first matrix product, because it is large and most programs bring their own
 * kernels.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "blas.h"
#include "nvidia_hal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nvidia_blas blas;
static char reason[256]; /* empty: loaded */

static void find_function(void *library, void *pointer, const char *name)
{
	*(void **)pointer = dlsym(library, name);
	if (!*(void **)pointer && !reason[0])
		snprintf(reason, sizeof reason,
			 "cuBLASLt has no %s: it must be of CUDA 12 or newer", name);
}

static void *named_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (library && !dlsym(library, "pncclAllReduce"))
		return library;
	if (library)
		snprintf(reason, sizeof reason,
			 "RANKFOLD_CUBLASLT names rankfold's client library: it must be NVIDIA's");
	else
		snprintf(reason, sizeof reason,
			 "matrix products need cuBLASLt: %.120s; install cuBLAS, or set "
			 "RANKFOLD_CUBLASLT",
			 dlerror());
	return NULL;
}

static void load_library(void)
{
	const char *name = getenv("RANKFOLD_CUBLASLT");
	void *library = name ? named_library(name)
			     : nvidia_library("cublasLt", reason, sizeof reason);

	if (!library)
		return;
#define FIND(call, parameters) find_function(library, &blas.call, #call);
	FIND(cublasLtGetStatusName, )
	FIND(cublasLtGetVersion, )
	CUBLASLT_CALLS(FIND)
#undef FIND
}

const struct nvidia_blas *nvidia_blas(char *text, uint32_t text_bytes)
{
	pthread_once(&once, load_library);
	if (!reason[0])
		return &blas;
	snprintf(text, text_bytes, "%s", reason);
	return NULL;
}
