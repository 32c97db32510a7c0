/* blas.c: finds cuBLASLt and its functions.
 *
 * The library is libcublasLt.so.13, or the one that RANKFOLD_CUBLASLT names, but not rankfold's own
 * library of that name, for the reason given in driver.c. It is loaded at the first matrix product,
 * because it is large and most programs bring their own kernels.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "blas.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nvidia_blas blas;
static char reason[256]; /* empty: loaded */

static void find_function(void *library, void *pointer, const char *name)
{
	*(void **)pointer = dlsym(library, name);
	if (!*(void **)pointer && !reason[0])
		snprintf(reason, sizeof reason, "the library has no %s: it must be from cuBLAS 13",
			 name);
}

static void load_library(void)
{
	const char *name = getenv("RANKFOLD_CUBLASLT");
	void *library = dlopen(name ? name : "libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		snprintf(reason, sizeof reason,
			 "matrix products need cuBLASLt: %.120s; install "
			 "cuBLAS 13, or set RANKFOLD_CUBLASLT",
			 dlerror());
		return;
	}
	if (dlsym(library, "pncclAllReduce")) {
		snprintf(reason, sizeof reason,
			 "libcublasLt.so.13 is rankfold's client library: "
			 "start the proxy without it in LD_PRELOAD or LD_LIBRARY_PATH");
		return;
	}
#define FIND(call, parameters) find_function(library, &blas.call, #call);
	FIND(cublasLtGetStatusName, )
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
