/* driver.c: finds the CUDA driver and its functions.
 *
 * The driver is libcuda.so.1, or the library that RANKFOLD_CUDA_DRIVER names. A proxy runs without
 * the client libraries. If it is started with them, libcuda.so.1 is rankfold's own, which would
 * send the proxy's calls to the proxy; that is refused.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#define DRIVER_MIN 12000 /* CUDA 12.0 */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nvidia_driver driver;
static char reason[256]; /* empty: loaded */

static bool resolve_function(void *library)
{
	bool found = true;

#define RESOLVE(name, parameters)                                                                  \
	*(void **)&driver.name = dlsym(library, #name);                                            \
	if (!driver.name && found) {                                                               \
		snprintf(reason, sizeof reason,                                                    \
			 "the driver has no %s: it must be from CUDA 12 or "                       \
			 "newer",                                                                  \
			 #name);                                                                   \
		found = false;                                                                     \
	}
	CUDA_CALLS(RESOLVE)
#undef RESOLVE
	return found;
}

static void load_library(void)
{
	const char *name = getenv("RANKFOLD_CUDA_DRIVER"), *error_name = NULL;
	void *library;
	int version = 0;
	CUresult error;

	library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(reason, sizeof reason,
			 "no NVIDIA driver: %.120s; install it, or use devices of type soft",
			 dlerror());
		return;
	}
	if (dlsym(library, "pncclAllReduce")) {
		snprintf(reason, sizeof reason,
			 "libcuda.so.1 is rankfold's client library: start "
			 "the proxy without it in LD_PRELOAD or LD_LIBRARY_PATH");
		return;
	}
	if (!resolve_function(library))
		return;
	/* All ranks' streams are in this process: give each its own queue, up to the GPU's number
	 * of queues. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	error = driver.cuInit(0);
	if (error) {
		driver.cuGetErrorName(error, &error_name);
		snprintf(reason, sizeof reason,
			 "the NVIDIA driver does not start: cuInit gives %s (%d); nvidia-smi has "
			 "details",
			 error_name ? error_name : "an error", error);
		return;
	}
	driver.cuDriverGetVersion(&version);
	if (version < DRIVER_MIN)
		snprintf(reason, sizeof reason,
			 "the NVIDIA driver is of CUDA %d.%d; 12.0 or newer "
			 "is needed",
			 version / 1000, version % 1000 / 10);
}

const struct nvidia_driver *nvidia_driver(char *text, uint32_t text_bytes)
{
	pthread_once(&once, load_library);
	if (!reason[0])
		return &driver;
	if (text)
		snprintf(text, text_bytes, "%s", reason);
	return NULL;
}
